"""Progress of long work on standard error: one line on a terminal, in a log file a first line and then one a
minute."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from shutil import get_terminal_size

import click

from surefoot.printable import printable

Progress = Callable[[str, int, int], None]
"""Called with the name of a stage, the items done and their total."""

LINE_EVERY_S = 60.0
FIRST_LINE_S = 10.0
TERMINAL_EVERY_S = 0.2


@contextmanager
def show_progress() -> Iterator[Progress]:
    """One line on a terminal, written over until the work is done; elsewhere a first line, then minutely."""
    if not sys.stderr.isatty():
        yield progress_lines(lambda line: click.echo(line, err=True), every_s=LINE_EVERY_S)
        return

    def write(line: str) -> None:
        columns = get_terminal_size().columns - 1
        click.echo(f"\r{line:{columns}.{columns}}\r", err=True, nl=False)

    yield progress_lines(write, every_s=TERMINAL_EVERY_S)
    write("")


def progress_lines(
    write: Callable[[str], None], *, every_s: float, clock: Callable[[], float] = time.monotonic
) -> Progress:
    """Writes a line every so often with the share done and the time that is left at this pace.

    The first line comes after at most ten seconds; shorter work writes nothing. A resumed stage is timed from
    where it was resumed.
    """
    next_line_at = clock() + min(every_s, FIRST_LINE_S)
    starts: dict[str, tuple[float, int]] = {}

    def update(stage: str, done: int, total: int) -> None:
        nonlocal next_line_at
        now = clock()
        start, done_at_start = starts.setdefault(stage, (now, done))
        if now < next_line_at:
            return
        next_line_at = now + every_s
        pace = (now - start) / (done - done_at_start) if done > done_at_start else None
        remaining = (
            "" if pace is None or done >= total else f", about {clock_time(pace * (total - done))} left"
        )
        write(f"{printable(stage)}: {done:,} of {total:,} after {clock_time(now - start)}{remaining}")

    return update


def clock_time(seconds: float) -> str:
    """``1:05:09``, ``12:30`` or ``0:07``."""
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds_left:02}" if hours else f"{minutes}:{seconds_left:02}"
