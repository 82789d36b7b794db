"""Programs in several processes that communicate, as under torchrun, with a single import of torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

PROGRAM = """
import json, os, signal, sys, traceback
from datetime import timedelta
imports, body, jobs = json.loads(sys.stdin.read())
exec(imports, globals())

groups = 0

def begin_group():
    # a file, not a port: a free port may be taken before rank 0 listens, and rank 1 then waits for ever
    global groups
    groups += 1
    if (size := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{os.environ['GROUP_FILE']}-{groups}", rank=int(os.environ["RANK"]),
            world_size=size, timeout=timedelta(minutes=4),
        )

def end_group():
    from accelerate.state import AcceleratorState
    AcceleratorState._reset_state(reset_partial_state=True)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    begin_group()

for ranks in jobs:
    children = set()
    for environment, arguments in ranks:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.environ.update(environment)
                sys.argv = ["ranks", *arguments]
                begin_group()
                exec(body, globals())
                status = 0
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        children.add(child)
    while children:
        child, status = os.wait()
        children.discard(child)
        if status:
            for other in children:  # they wait for the one that failed
                os.kill(other, signal.SIGKILL)
            sys.exit(1)
"""


def run_ranks(
    imports: str, body: str, jobs: Mapping[int, tuple[object, ...]], folder: Path, *, timeout_s: float = 500
) -> None:
    """Run ``body`` once per job, after ``imports``; a job is a number of processes and their arguments.

    ``imports`` name ``torch``. Between two runs of a body, ``end_group()`` ends the group of processes and
    begins another; the processes of a group meet by files in ``folder``.
    One process imports, then forks the ranks of each job: imports take longer than the work.
    Raises ``AssertionError`` with the output if a rank fails or the time is over.
    """
    programs = []
    for size, arguments in jobs.items():
        shared = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "GROUP_FILE": f"{folder}/of-{size}"}
        programs.append(
            [
                (
                    shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if size > 1 else {},
                    [str(argument) for argument in arguments],
                )
                for rank in range(size)
            ]
        )
    output = folder / "output.txt"
    with output.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
        )
        try:
            process.communicate(json.dumps([imports, body, programs]), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    assert process.returncode == 0, output.read_text(encoding="utf-8")
