"""Starts a real vLLM server for the time of a block."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VLLM = os.environ.get("SUREFOOT_VLLM", "")
"""``vllm``, or a Python interpreter that can import it."""
START_S = 600.0
WIDE = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
"""Sizes for tiny models: vLLM's attention on a CPU takes heads of 32 and more."""


@contextmanager
def running(model: Path, *options: str) -> Iterator[str]:
    """The address of a server of ``model``, without ``/v1``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if Path(VLLM).name.startswith("python"):
        command = [VLLM, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    else:
        command = [VLLM, "serve", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager", *options]
    quiet = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    log = model.parent / f"vllm-{port}.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            command,
            env={**os.environ, **quiet, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(process, url, log)
            yield url
        finally:
            process.terminate()
            process.wait(60)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):  # noqa: S310 - an address made here
                return
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(f"vLLM did not start: {log.read_text(errors='replace')[-3000:]}")
