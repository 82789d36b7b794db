"""Clocks and threads of a race: wall time on an idle machine, or the process's own time on a shared one."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}


def add_clock(parser: argparse.ArgumentParser) -> None:
    """Options of the threads and the clock."""
    parser.add_argument("--threads", type=int, help="of torch; by default all cores, with --quick one")
    parser.add_argument(
        "--clock",
        choices=sorted(CLOCKS),
        help="cpu (with --quick the default): the process's own time, with --threads 1 for a shared machine",
    )


def prepare(options: argparse.Namespace) -> Clock:
    """Set the threads, and return the clock: with ``--quick`` CPU time on one thread by default."""
    options.clock = options.clock or ("cpu" if options.quick else "wall")
    options.threads = options.threads or (1 if options.quick else torch.get_num_threads())
    torch.set_num_threads(options.threads)
    return CLOCKS[options.clock]
