"""Progress in a log file, by a fake clock, and on a terminal."""

import os
import pty
import re
import subprocess
import sys

from surefoot.work.progress import LINE_EVERY_S, clock_time, progress_lines


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def written(seconds_per_item, items):
    clock, lines = Clock(), []
    update = progress_lines(lines.append, every_s=LINE_EVERY_S, clock=clock)
    for done in range(items + 1):
        update("stage 2 of 10, train-labels", done, items)
        clock.now += seconds_per_item
    return lines


def test_a_log_gets_a_first_line_and_then_one_a_minute():
    lines = written(5, 120)  # ten minutes
    assert len(lines) == 10
    assert lines[0] == "stage 2 of 10, train-labels: 2 of 120 after 0:10, about 9:50 left"
    assert lines[1] == "stage 2 of 10, train-labels: 14 of 120 after 1:10, about 8:50 left"
    assert lines[-1] == "stage 2 of 10, train-labels: 110 of 120 after 9:10, about 0:50 left"


def test_short_work_writes_nothing_and_slow_items_write_when_they_end():
    assert written(1, 9) == []
    assert [re.search(r": (\d of 2)", line)[1] for line in written(150, 2)] == ["1 of 2", "2 of 2"]


def test_a_resumed_stage_is_timed_from_where_it_was_resumed():
    clock, lines = Clock(), []
    update = progress_lines(lines.append, every_s=LINE_EVERY_S, clock=clock)
    update("a", 90, 100)
    clock.now = 60
    update("a", 95, 100)
    assert lines == ["a: 95 of 100 after 1:00, about 1:00 left"]


def test_a_terminal_shows_a_line_until_the_work_is_done():
    program = (
        "import time; from surefoot.work.progress import show_progress\n"
        "with show_progress() as show:\n"
        "    show('labels', 0, 4); time.sleep(0.3); show('labels', 1, 4); show('labels', 2, 4)"
    )
    terminal, end = pty.openpty()
    subprocess.run([sys.executable, "-c", program], stderr=end, check=True)
    os.close(end)
    shown = os.read(terminal, 10_000).decode()
    os.close(terminal)
    assert re.fullmatch(r"\rlabels: 1 of 4 after 0:00, about 0:01 left *\r\r *\r", shown)


def test_times_are_written_as_on_a_clock():
    assert [clock_time(seconds) for seconds in (7, 61, 3909)] == ["0:07", "1:01", "1:05:09"]
