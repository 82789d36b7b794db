"""Processor time of a request to the gateway over an HTTP upstream, next to other proxies on the same load.

Each server runs in its own process between the same clients and the same upstream, which answers at once. The
rivals run where they are installed, by one command for each:

    python -m venv RIVALS/its_hub && RIVALS/its_hub/bin/pip install 'its-hub[iaas]'
    python -m venv RIVALS/litellm && RIVALS/litellm/bin/pip install 'litellm[proxy]'

``bare`` is a proxy of this file: it forwards bytes, and answers once they are on disk. Ours checks a key and
stores the whole record, which its_hub and LiteLLM do not. All of them in one run, with ratios:

    python -m benchmarks.gateway.processor race --rivals RIVALS

prints ``cpu_ms_plain`` and ``cpu_ms_majority_4`` of every server, and ``vs_its_hub``, ``vs_litellm`` and
``vs_bare``: its time divided by ours, so that more than 1 means that ours takes less. The servers run beside
each other and take turns in five rounds, so that other work on the machine falls on all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

MODULE = "benchmarks.gateway.processor"
CONNECTIONS = 16
"""Clients that ask at the same time, each on one connection."""
_START_S = 90.0


@dataclass(frozen=True, kw_only=True)
class Rival:
    """A server of the race, ready for requests."""

    process: int
    port: int
    model: dict[str, dict[str, Any]]
    """Fields of the body by kind of request, ``plain`` or ``majority_4``; those that it cannot do are
    absent."""
    headers: str = ""


def processor_ms(process: int) -> float:
    """Processor time of a process and its threads so far."""
    return 1000 * time.clock_gettime(~process << 3 | 2)  # Linux's number of the clock of another process


async def _client(rival: Rival, kind: str, numbers: Iterator[int], bad: list[str]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", rival.port)
    for number in numbers:
        question = f"What is {number} plus {number}? Explain each step on its own line, then give the answer."
        body = {"messages": [{"role": "user", "content": question}], **rival.model[kind]}
        data = json.dumps(body).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n{rival.headers}\r\n"
        )
        writer.write(head.encode() + data)
        text = (await _response(reader)).decode()
        if '"content"' not in text or "The answer is" not in text:
            bad.append(text[:300])
    writer.close()


async def _response(reader: asyncio.StreamReader) -> bytes:
    """The body of the next response on a connection."""
    top = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b"transfer-encoding: chunked" not in top:
        return await reader.readexactly(int(top.split(b"content-length:")[1].split(b"\r\n", 1)[0]))
    pieces = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        pieces.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return b"".join(pieces)


async def _load(rival: Rival, kind: str, requests: int) -> None:
    bad: list[str] = []
    numbers = iter(range(requests))
    await asyncio.gather(*(_client(rival, kind, numbers, bad) for _ in range(CONNECTIONS)))
    if bad:
        raise SystemExit(f"{len(bad)} of {requests} requests failed; the first: {bad[0]}")


def measure(rival: Rival, kind: str, requests: int) -> float:
    """Processor milliseconds of a request, over one load."""
    begin = processor_ms(rival.process)
    asyncio.run(_load(rival, kind, requests))
    return (processor_ms(rival.process) - begin) / requests


def answer_of(body: dict[str, Any]) -> bytes:
    """The upstream's response: as many choices as asked for, most of which agree."""
    seed, count = int(body.get("seed") or 0), int(body.get("n") or 1)
    first = 7 + (seed % 10_000 if count > 1 else 0)  # calls for one sample each do not know each other's
    answers = [first + (number % 4 == 1) for number in range(count)]
    if count == 1 and seed % 4 == 2:
        answers = [8]
    texts = [f"We double the number.\nThat gives {a}.\nThe answer is {a}." for a in answers]
    choices = [
        {"index": index, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        for index, text in enumerate(texts)
    ]
    usage = {"prompt_tokens": 24, "completion_tokens": 18 * len(texts), "total_tokens": 24 + 18 * len(texts)}
    response = {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": choices}
    return json.dumps({**response, "usage": usage}).encode()


class _Http(asyncio.Protocol):
    """Requests with a content length on one connection, passed to ``handle`` one after the other."""

    def __init__(self) -> None:
        self.data = b""
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        while b"\r\n\r\n" in self.data:
            head, _, rest = self.data.partition(b"\r\n\r\n")
            lower = head.lower()
            size = 0
            if b"content-length:" in lower:
                size = int(lower.split(b"content-length:")[1].split(b"\r\n", 1)[0])
            if len(rest) < size:
                return
            self.data = rest[size:]
            self.handle(rest[:size])

    def handle(self, body: bytes) -> None:
        raise NotImplementedError

    def respond(self, body: bytes) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self.transport.write(head.encode() + body)


class _Upstream(_Http):
    def handle(self, body: bytes) -> None:
        self.respond(answer_of(json.loads(body or b"{}")))


@dataclass
class _Journal:
    """Appends to a file in a thread; writers that wait share one flush to disk."""

    file: int
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    waiting: list[tuple[bytes, asyncio.Future[None]]] = field(default_factory=list)
    writing: bool = False

    async def append(self, data: bytes) -> None:
        done = asyncio.get_running_loop().create_future()
        self.waiting.append((data, done))
        if not self.writing:
            self.writing = True
            while self.waiting:
                batch, self.waiting = self.waiting, []
                lines = b"".join(line for line, _ in batch)
                await asyncio.get_running_loop().run_in_executor(self.thread, self._write, lines)
                for _, future in batch:
                    future.set_result(None)
            self.writing = False
        await done

    def _write(self, data: bytes) -> None:
        os.write(self.file, data)
        os.fsync(self.file)


def _bare(port: int, folder: str) -> type[_Http]:
    journal = _Journal(os.open(f"{folder}/journal", os.O_CREAT | os.O_APPEND | os.O_WRONLY))
    free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    tasks: set[asyncio.Task[None]] = set()

    class Bare(_Http):
        def handle(self, body: bytes) -> None:
            task = asyncio.ensure_future(self.forward(body))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        async def forward(self, body: bytes) -> None:
            link = free.pop() if free else await asyncio.open_connection("127.0.0.1", port)
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: u\r\nContent-Length: {len(body)}\r\n\r\n"
            link[1].write(head.encode() + body)
            response = await _response(link[0])
            free.append(link)
            await journal.append(body + b"\n" + response + b"\n")
            self.respond(response)

    return Bare


def _gateway(upstream: int, folder: str) -> None:
    """Run this package's server, as ``surefoot serve`` sets it up, until standard input is closed."""
    from surefoot.policies import OpenAIPolicy
    from surefoot.server import (
        Gateway,
        GatewaySettings,
        KeyLimits,
        ServerLimits,
        ServerSettings,
        create_app,
        make_server,
        open_database,
    )

    limits = ServerLimits(running_per_key=1000)
    settings = ServerSettings(port=0, limits=limits, require_key=True)
    with open_database(f"{folder}/store.db") as db:
        key, _ = db.keys.create("clients", "client", **KeyLimits(rate_limit=10**9))
        policy = OpenAIPolicy(model="m", base_url=f"http://127.0.0.1:{upstream}/v1")
        policy.capabilities()
        gateway = Gateway(
            policy,
            settings=GatewaySettings(chat=True, candidates="none"),
            limits=limits,
            log=db.gateway,
        )
        server = make_server(create_app(settings, gateway=gateway, keys=db.keys), settings)

        def announce() -> None:
            while not server.started:
                time.sleep(0.01)
            print(server.servers[0].sockets[0].getsockname()[1], key, flush=True)
            sys.stdin.read()
            server.should_exit = True

        threading.Thread(target=announce, daemon=True).start()
        server.run()


def _run_protocol(protocol: type[_Http]) -> None:
    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)

    asyncio.run(main())


@contextmanager
def _process(*command: str, folder: str | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process; one with a ``folder`` writes its log there."""
    with (
        Path(f"{folder}/log" if folder else os.devnull).open("w") as log,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log if folder else subprocess.PIPE,
            stderr=log if folder else None,
            text=True,
            cwd=folder,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            process.wait()


def _line(process: subprocess.Popen[str]) -> str:
    """The first line that a process prints."""
    return process.stdout.readline() if process.stdout is not None else ""


@contextmanager
def _ours(role: str, upstream: int, folder: str) -> Iterator[Rival]:
    with _process(sys.executable, "-m", MODULE, role, str(upstream), folder) as process:
        port, *key = _line(process).split()
        models: dict[str, dict[str, Any]] = {"plain": {"model": "m"}}
        if key:
            models["majority_4"] = {"model": "majority-4"}
        headers = f"Authorization: Bearer {key[0]}\r\n" if key else ""
        yield Rival(process=process.pid, port=int(port), model=models, headers=headers)


@contextmanager
def _its_hub(python: Path, upstream: int, folder: str) -> Iterator[Rival]:
    port = free_port()
    program = str(python.parent / "its-iaas")
    with _process(program, "--port", str(port), "--log-level", "ERROR", folder=folder) as process:
        settings = {
            "endpoint": f"http://127.0.0.1:{upstream}/v1",
            "api_key": "k",
            "model": "m",
            "alg": "self-consistency",
            "regex_patterns": [r"The answer is (\S+)\."],
        }
        asyncio.run(_once(port, "/configure", settings))
        models: dict[str, dict[str, Any]] = {
            "plain": {"model": "m", "budget": 1},
            "majority_4": {"model": "m", "budget": 4},
        }
        yield Rival(process=process.pid, port=port, model=models)


@contextmanager
def _litellm(python: Path, upstream: int, folder: str) -> Iterator[Rival]:
    port = free_port()
    base = f"http://127.0.0.1:{upstream}/v1"
    config = {
        "model_list": [
            {"model_name": "m", "litellm_params": {"model": "openai/m", "api_base": base, "api_key": "k"}}
        ],
        "general_settings": {"dangerously_permit_weak_or_unset_master_key": True},
    }
    (Path(folder) / "config.yaml").write_text(json.dumps(config))
    program = str(python.parent / "litellm")
    with _process(program, "--config", "config.yaml", "--port", str(port), folder=folder) as process:
        asyncio.run(_once(port, "/v1/chat/completions", {"model": "m", "messages": []}))
        yield Rival(process=process.pid, port=port, model={"plain": {"model": "m"}})


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


async def _once(port: int, path: str, body: dict[str, Any]) -> None:
    """Post until the server answers, whatever it says."""
    until = time.monotonic() + _START_S
    data = json.dumps(body).encode()
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            break
        except OSError:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.1)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    writer.write(head.encode() + data)
    await _response(reader)
    writer.close()


def race(rivals: Path | None, requests: int, only: str | None = None) -> dict[str, dict[str, list[float]]]:
    """Processor milliseconds of a request, by server and kind of request, in five rounds."""
    with ExitStack() as stack:
        top = stack.enter_context(tempfile.TemporaryDirectory())
        port = int(_line(stack.enter_context(_process(sys.executable, "-m", MODULE, "upstream"))))
        servers: dict[str, Rival] = {}
        for name in ("surefoot", "bare", "its_hub", "litellm"):
            folder = f"{top}/{name}"
            Path(folder).mkdir()
            python = (rivals or Path()) / name / "bin" / "python"
            if only not in (None, name):
                continue
            if name in ("surefoot", "bare"):
                started = _ours(name, port, folder)
            elif rivals is None or not python.exists():
                print(f"{name} is not installed; see the command in {Path(__file__).name}, and give --rivals")
                continue
            else:
                started = (_its_hub if name == "its_hub" else _litellm)(python, port, folder)
            servers[name] = stack.enter_context(started)
        sizes = {name: requests // (20 if name == "litellm" else 5) for name in servers}
        results: dict[str, dict[str, list[float]]] = {name: {} for name in servers}
        for number in range(6):  # the first round warms up
            for name, rival in servers.items():
                for kind in rival.model:
                    spent = measure(rival, kind, sizes[name])
                    results[name].setdefault(kind, []).extend([spent] if number else [])
        return results


def report(results: dict[str, dict[str, list[float]]]) -> None:
    """Print the median of each server, its rounds, and its ratio to ours of the same rounds."""
    for name, kinds in results.items():
        for kind, rounds in kinds.items():
            line = f"{name:10} cpu_ms_{kind:11} {median(rounds):7.3f}  {[round(part, 3) for part in rounds]}"
            ours = results.get("surefoot", {}).get(kind)
            if ours and name != "surefoot":
                ratio = median(pair[0] / pair[1] for pair in zip(rounds, ours, strict=True))
                line += f"  vs_{name} {ratio:.2f}"
            print(line)


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["upstream", "bare", "surefoot", "race"])
    parser.add_argument("upstream", nargs="?", type=int)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--rivals", type=Path)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--only")
    given = parser.parse_args()
    if given.role == "upstream":
        _run_protocol(_Upstream)
    elif given.role == "bare":
        _run_protocol(_bare(given.upstream, given.folder))
    elif given.role == "surefoot":
        _gateway(given.upstream, given.folder)
    else:
        report(race(given.rivals, given.requests, given.only))


if __name__ == "__main__":
    _main()
