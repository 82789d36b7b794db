"""Processor time of a request to the gateway over an HTTP upstream, next to other proxies on one load."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sqlite3
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.figures import left_out
from benchmarks.common.http import Http, post, run
from benchmarks.common.processes import free_port, serve, started

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
    key: str = ""


def processor_ms(process: int) -> float:
    """Processor time of a process and its threads so far."""
    return 1000 * time.clock_gettime(~process << 3 | 2)  # Linux's number of the clock of another process


async def _client(rival: Rival, kind: str, numbers: Iterator[int], bad: list[str]) -> None:
    link = await asyncio.open_connection("127.0.0.1", rival.port)
    for number in numbers:
        question = f"What is {number} plus {number}? Explain each step on its own line, then give the answer."
        body = {"messages": [{"role": "user", "content": question}], **rival.model[kind]}
        text = (await post(link, json.dumps(body).encode(), key=rival.key))[1].decode()
        if '"content"' not in text or "The answer is" not in text:
            bad.append(text[:300])
    link[1].close()


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


class _Upstream(Http):
    async def answer(self, _: str, body: bytes) -> bytes:
        return answer_of(json.loads(body or b"{}"))


def _durable(upstream: int, folder: str) -> None:
    """Run the smallest proxy that votes and loses nothing: Starlette, aiohttp, and SQLite with full
    synchronisation, which requests that wait write to together. It has no keys, limits or monitoring."""
    import aiohttp
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    store = sqlite3.connect(f"{folder}/store.db", check_same_thread=False)
    store.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")
    store.execute("CREATE TABLE requests (id INTEGER PRIMARY KEY, sent BLOB, received BLOB)")
    thread = ThreadPoolExecutor(1)
    waiting: list[tuple[bytes, bytes, asyncio.Future[None]]] = []

    def commit(rows: list[tuple[bytes, bytes]]) -> None:
        with store:
            store.executemany("INSERT INTO requests (sent, received) VALUES (?, ?)", rows)

    async def write() -> None:
        while batch := waiting[:]:
            waiting.clear()
            await asyncio.get_running_loop().run_in_executor(thread, commit, [row[:2] for row in batch])
            for _, _, done in batch:
                done.set_result(None)

    writing: list[asyncio.Task[None]] = []

    async def chat(request: Request) -> Response:
        sent = await request.body()
        body = json.loads(sent)
        url = f"http://127.0.0.1:{upstream}/v1/chat/completions"
        async with request.app.state.session.post(url, json=body) as response:
            received = await response.read()
        answer = json.loads(received)
        if body.get("n", 1) > 1:
            texts = [choice["message"]["content"] for choice in answer["choices"]]
            votes = [(re.findall(r"The answer is (\S+)\.", text) or [""])[-1] for text in texts]
            answer["choices"] = [answer["choices"][votes.index(Counter(votes).most_common(1)[0][0])]]
            received = json.dumps(answer).encode()
        done = asyncio.get_running_loop().create_future()
        waiting.append((sent, received, done))
        if not writing or writing[0].done():
            writing[:] = [asyncio.create_task(write())]
        await done
        return Response(received, media_type="application/json")

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as app.state.session:
            yield

    app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])], lifespan=lifespan)
    serve(uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", access_log=False)), str)


def _gateway(upstream: int, folder: str) -> None:
    """Run this package's server, as ``surefoot serve`` sets it up, until standard input is closed."""
    from surefoot.policies import OpenAIPolicy
    from surefoot.server import (
        Gateway,
        GatewaySettings,
        ServerLimits,
        ServerSettings,
        create_app,
        make_server,
        open_database,
    )

    limits = ServerLimits()
    settings = ServerSettings(port=0, limits=limits, require_key=True)
    with open_database(f"{folder}/store.db") as db:
        key, _ = db.keys.create("clients", "client", rate_limit=10**9)
        policy = OpenAIPolicy(model="m", base_url=f"http://127.0.0.1:{upstream}/v1")
        policy.capabilities()
        gateway = Gateway(
            policy,
            settings=GatewaySettings(chat=True, candidates="none"),
            limits=limits,
            log=db.gateway,
        )
        server = make_server(create_app(settings, gateway=gateway, keys=db.keys), settings)

        serve(server, lambda port: f"{port} {key}")


@contextmanager
def _process(*command: str, folder: str) -> Iterator[subprocess.Popen[bytes]]:
    """A rival, which works and logs in its folder."""
    with (
        Path(folder, "log").open("w") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=folder) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()


@contextmanager
def _ours(role: str, upstream: int, folder: str) -> Iterator[Rival]:
    with started(MODULE, role, str(upstream), folder) as (process, line):
        port, *key = line.split()
        majority = {"model": "majority:n=4"} if key else {"model": "m", "n": 4}
        models: dict[str, dict[str, Any]] = {"plain": {"model": "m"}, "majority_4": majority}
        yield Rival(process=process.pid, port=int(port), model=models, key="".join(key))


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


async def _once(port: int, path: str, body: dict[str, Any]) -> None:
    """Post until the server answers, whatever it says."""
    until = time.monotonic() + _START_S
    while True:
        try:
            link = await asyncio.open_connection("127.0.0.1", port)
            break
        except OSError:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.1)
    await post(link, json.dumps(body).encode(), path=path)
    link[1].close()


def race(rivals: Path | None, requests: int, only: str | None = None) -> dict[str, dict[str, list[float]]]:
    """Processor milliseconds of a request, by server and kind of request, in five rounds."""
    with ExitStack() as stack:
        top = stack.enter_context(tempfile.TemporaryDirectory())
        port = int(stack.enter_context(started(MODULE, "upstream"))[1])
        servers: dict[str, Rival] = {}
        for name in ("surefoot", "durable", "its_hub", "litellm"):
            folder = f"{top}/{name}"
            Path(folder).mkdir()
            python = (rivals or Path()) / name / "bin" / "python"
            if only not in (None, name):
                continue
            if name in ("surefoot", "durable"):
                entered = _ours(name, port, folder)
            elif rivals is None or not python.exists():
                left_out(name, "README.md has the command that installs it; give --rivals")
                continue
            else:
                entered = (_its_hub if name == "its_hub" else _litellm)(python, port, folder)
            servers[name] = stack.enter_context(entered)
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
    parser.add_argument("role", choices=["upstream", "durable", "surefoot", "race"])
    parser.add_argument("upstream", nargs="?", type=int)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--rivals", type=Path)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--only")
    given = parser.parse_args()
    if given.role == "upstream":
        run(_Upstream)
    elif given.role == "durable":
        _durable(given.upstream, given.folder)
    elif given.role == "surefoot":
        _gateway(given.upstream, given.folder)
    else:
        report(race(given.rivals, given.requests, given.only))


if __name__ == "__main__":
    _main()
