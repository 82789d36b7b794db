"""Real vLLM servers on this machine's CPU: one, two, and two of which one is killed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.scale.workers import Inputs, make_inputs
from surefoot.lab import POLICY

START_S = 600.0
NAME = "lab"
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True, kw_only=True)
class Server:
    """One vLLM, in a session of its own: its engine is another process."""

    process: subprocess.Popen[bytes]
    port: int

    def kill(self) -> None:
        """At once, with its engine."""
        os.killpg(self.process.pid, 9)
        self.process.wait(60)

    def answered(self) -> float:
        """Requests that it has finished."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as reply:
            lines = reply.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if "request_success_total{" in line)


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What the three runs gave."""

    one_s: float
    two_s: float
    killed_s: float
    labels: int
    lost: int
    """Steps labelled by one server and not by two, or the other way round."""
    doubled: int
    """Steps with more than one label."""
    differing: int
    """Labels of another value: batches of another size add in another order, so a near tie may turn."""


@contextmanager
def serving(
    python: str, count: int, folder: Path, *, model: Path = POLICY, max_model_len: int = 256
) -> Iterator[list[Server]]:
    """``count`` servers of a model, by default the lab's policy, in float32, with one thread each."""
    with ExitStack() as stack:
        servers = []
        for _ in range(count):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            command = [
                *(python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
                *("--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(port)),
                *(
                    "--dtype",
                    "float32",
                    "--max-model-len",
                    str(max_model_len),
                    "--max-num-seqs",
                    "64",
                    "--enforce-eager",
                ),
                # half a prompt of a request with a seed ends vLLM 0.32's engine on a CPU
                "--no-enable-chunked-prefill",
            ]
            log = stack.enter_context((folder / f"vllm-{port}.log").open("wb"))
            process = subprocess.Popen(
                command, env=os.environ | ENVIRONMENT, stdout=log, stderr=log, start_new_session=True
            )
            server = Server(process=process, port=port)
            stack.callback(_end, server)
            servers.append(server)
        for server in servers:
            _wait(server, folder / f"vllm-{server.port}.log")
        yield servers


def compared(python: str, folder: Path, problems: int) -> Compared:
    """``label mc`` of the same traces against one server, two, and two of which one dies half-way."""
    inputs = make_inputs(folder / "job", problems, 2)
    with serving(python, 1, folder) as servers:
        expected, one_s = _label(inputs, servers, folder / "one.jsonl")
    with serving(python, 2, folder) as servers:
        both, two_s = _label(inputs, servers, folder / "two.jsonl")
    with serving(python, 2, folder) as servers:
        survivor, victim = servers

        def kill() -> None:
            while survivor.answered() < 1:
                time.sleep(0.1)
            time.sleep(two_s / 3)
            victim.kill()

        killed, killed_s = _label(inputs, servers, folder / "killed.jsonl", then=kill)
        if victim.process.poll() is None:
            raise RuntimeError("the run ended before a server was killed")
    runs = both, killed
    value = {(row["trace_id"], row["step"]): row["value"] for row in expected}
    found = [{(row["trace_id"], row["step"]): row["value"] for row in rows} for rows in runs]
    return Compared(
        one_s=one_s,
        two_s=two_s,
        killed_s=killed_s,
        labels=len(expected),
        lost=sum(len(value.keys() ^ other.keys()) for other in found),
        doubled=sum(len(rows) - len(other) for rows, other in zip(runs, found, strict=True)),
        differing=sum(other.get(step) != one for other in found for step, one in value.items()),
    )


def _label(
    inputs: Inputs, servers: Sequence[Server], out: Path, *, then: Callable[[], object] | None = None
) -> tuple[list[dict[str, Any]], float]:
    """The labels and the seconds of the command; ``then`` is called while it runs."""
    command = [
        *(
            sys.executable,
            "-m",
            "surefoot",
            *inputs.command("labelling"),
            "--policy",
            NAME,
            "--out",
            str(out),
        ),
        *(f"--base-url=http://127.0.0.1:{server.port}/v1" for server in servers),
        *("--dialect", "vllm", "--concurrency", "64"),
    ]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        if then is not None:
            threading.Thread(target=then, daemon=True).start()
        said = process.communicate(timeout=1800)[1]
    if process.returncode:
        raise RuntimeError(said)
    return [json.loads(line) for line in out.read_text().splitlines()], time.perf_counter() - start


def _wait(server: Server, log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and server.process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(f"vLLM did not start: {log.read_text(errors='replace')[-3000:]}")


def _end(server: Server) -> None:
    if server.process.poll() is None:
        server.kill()
