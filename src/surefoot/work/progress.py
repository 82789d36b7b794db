"""Progress of long work on standard error: bars on a terminal, a line a minute in a log file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from surefoot.printable import printable

Progress = Callable[[str, int, int], None]
"""Called with the name of a stage, the items done and their total."""

LINE_EVERY_S = 60.0


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """One bar per stage on a terminal; elsewhere lines. Both with the remaining time."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal:
        import click

        yield progress_lines(lambda line: click.echo(line, err=True))
        return
    columns = (
        TextColumn("{task.description:16}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, int] = {}

        def update(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(printable(stage), total=total)
            bars.update(tasks[stage], completed=done, total=total)  # type: ignore[arg-type]

        yield update


def progress_lines(write: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> Progress:
    """Writes a line a minute with the share done and the time that is left at this pace.

    Work of less than a minute writes nothing. A resumed stage is timed from where it was resumed.
    """
    last_line_at = clock()
    starts: dict[str, tuple[float, int]] = {}

    def update(stage: str, done: int, total: int) -> None:
        nonlocal last_line_at
        now = clock()
        start, done_at_start = starts.setdefault(stage, (now, done))
        if now - last_line_at < LINE_EVERY_S:
            return
        last_line_at = now
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
