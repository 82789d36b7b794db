"""Programs in several processes that communicate, as under torchrun, with a single import of torch."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack

PROGRAM = """
import json, os, sys, traceback
imports, body, jobs = json.loads(sys.stdin.read())
exec(imports, globals())

def end_group():
    # the next group has a port of its own, so that an early rank cannot join the one that ends
    from accelerate.state import AcceleratorState
    AcceleratorState._reset_state(reset_partial_state=True)
    if ports := os.environ.get("LATER_PORTS"):
        os.environ["MASTER_PORT"], _, os.environ["LATER_PORTS"] = ports.partition(",")

for ranks in jobs:
    children = []
    for environment, arguments in ranks:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.environ.update(environment)
                sys.argv = ["ranks", *arguments]
                exec(body, globals())
                status = 0
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        children.append(child)
    if any(os.waitpid(child, 0)[1] for child in children):
        sys.exit(1)
"""


def run_ranks(
    imports: str, body: str, jobs: Mapping[int, tuple[object, ...]], *, timeout_s: float = 600
) -> None:
    """Run ``body`` once per job, after ``imports``; a job is a number of processes and their arguments.

    Between two runs of a body, ``end_group()`` ends the group of processes.
    One process imports, then forks the ranks of each job: imports take longer than the work.
    Raises ``AssertionError`` with the output if a rank fails or the time is over.
    """
    programs = []
    for size, arguments in jobs.items():
        address = _address(size)
        programs.append([(address(rank), [str(argument) for argument in arguments]) for rank in range(size)])
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
    )
    try:
        output, _ = process.communicate(json.dumps([imports, body, programs]), timeout=600)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 0, output


def _address(size: int) -> Callable[[int], dict[str, str]]:
    """The environment of each rank; a process alone needs none."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(16)]
        for free in sockets:
            free.bind(("127.0.0.1", 0))
        first, *later = (str(free.getsockname()[1]) for free in sockets)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": first, "LATER_PORTS": ",".join(later)}
    shared["WORLD_SIZE"] = str(size)
    return lambda rank: shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if size > 1 else {}
