"""Real vLLM servers on this machine's CPU."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.processes import free_port
from benchmarks.worlds.digits import POLICY

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


@contextmanager
def serving(
    python: str, count: int, folder: Path, *, model: Path = POLICY, max_model_len: int = 256
) -> Iterator[list[Server]]:
    """``count`` servers of a model, by default the lab's policy, in float32, with one thread each."""
    with ExitStack() as stack:
        servers = []
        for _ in range(count):
            port = free_port()
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
