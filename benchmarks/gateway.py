"""What the gateway adds to a request: many clients on this machine, a scripted policy of known latency.

``python benchmarks/gateway.py [--quick] [--json FILE] [--clients 200] [--seconds 120]
[--latency-ms 1000]``

The server is a process of its own, as is the load. Each client asks one question after the other, by one of
several strategies, half of them as streams, and checks that the answer is to its own question. Overhead is
the time of a request beyond the policy's: its latency times the calls that follow each other for that
strategy. The clients begin at times spread over the latency and do not wait between questions: with more of
them than the machine can serve in that time, overhead is the length of a queue (see ``server_cpu_ms``).
``errors`` also counts answers to another's question, entries that the log lacks, and 429s, for the limits are
set above the load. ``memory_growth`` is the server's resident memory at the end against that after a tenth of
the time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

STRATEGIES = {"scripted": 1, "best-of-4": 1, "majority-4": 1, "accept-reject": 3}
"""Calls of the policy that follow each other."""
LINES = 2


def serve(latency_s: float, log: str) -> None:
    """Run the server until its standard input is closed."""
    from surefoot.policies.scripted import ScriptedPolicy
    from surefoot.protocols import ProblemTrace, SampleRequest
    from surefoot.records import StepScores, Usage
    from surefoot.server.app import create_app
    from surefoot.server.gateway import Gateway, GatewaySettings, JsonLinesLog
    from surefoot.server.run import server_of
    from surefoot.server.settings import Limits, ServerSettings

    class Scorer:
        name = "even"

        def score_traces(self, items: list[ProblemTrace]) -> list[StepScores]:
            return [
                StepScores(
                    trace_id=item.trace.id,
                    scorer=self.name,
                    scores=(0.9,) * len(item.trace.steps),
                    usage=Usage(verifier_tokens=len(item.trace.steps), calls=1),
                )
                for item in items
            ]

    def answer(request: SampleRequest, _: int) -> str:
        written = request.prefix.count("\n")
        question = str(request.prompt).split()[-1]
        lines = [f"line {at} of {question}\n" for at in range(written, LINES)]
        return "".join(lines) + f"The answer is {question}"

    async def main() -> None:
        limits = Limits(running=2000, waiting=2000, timeout_s=60)
        settings = ServerSettings(port=0, limits=limits)
        gateway = Gateway(
            ScriptedPolicy(answer, latency_s=latency_s),
            Scorer(),
            settings=GatewaySettings(overlap=True),
            limits=limits,
            log=JsonLinesLog(Path(log)),
        )
        server = server_of(create_app(settings, gateway=gateway), settings)
        work = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        print(server.servers[0].sockets[0].getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)
        server.should_exit = True
        await work

    asyncio.run(main())


@dataclass
class Seen:
    """What the clients met."""

    overheads_s: list[float] = field(default_factory=list)
    by_strategy: dict[str, list[float]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    mixed: int = 0
    memory: list[tuple[float, int]] = field(default_factory=list)


async def client(number: int, port: int, until: float, latency_s: float, seen: Seen) -> None:
    """One client on one connection: a question after the other until the time is up."""
    await asyncio.sleep(random.Random(number).uniform(0, latency_s))  # else all come at the same moment
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    names = list(STRATEGIES)
    asked = 0
    while time.monotonic() < until:
        asked += 1
        question = f"q{number}x{asked}"
        strategy, stream = names[(number + asked) % len(names)], (number + asked) % 8 < 4
        body = {
            "model": strategy,
            "messages": [{"role": "user", "content": f"what is {question}"}],
            "stream": stream,
            "surefoot": {"candidates": "none"},
        }
        began = time.monotonic()
        try:
            status, text = await post(reader, writer, json.dumps(body).encode())
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            seen.errors.append(f"{type(error).__name__}: {error}")
            writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            continue
        took = time.monotonic() - began
        if status != 200:
            seen.errors.append(f"{status}: {text[:200]}")
            continue
        overhead = took - latency_s * STRATEGIES[strategy]
        seen.overheads_s.append(overhead)
        seen.by_strategy.setdefault(strategy, []).append(overhead)
        if content(text, stream) != expected(question):
            seen.mixed += 1
    writer.close()


def expected(question: str) -> str:
    """The only right answer."""
    return "".join(f"line {at} of {question}\n" for at in range(LINES)) + f"The answer is {question}"


def content(text: str, stream: bool) -> str:
    """The answer's text."""
    if not stream:
        return str(json.loads(text)["choices"][0]["message"]["content"])
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    if events[-1] != "[DONE]":
        return ""
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events[:-1]]
    return "".join(delta.get("content") or "" for delta in deltas)


async def post(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> tuple[int, str]:
    """Status and body of an answer, whole or in chunks; a library would cost more than what is measured."""
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()
    top = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    status = int(top.split(" ", 2)[1])
    if "transfer-encoding: chunked" not in top:
        size = int(top.split("content-length:")[1].split("\r\n", 1)[0])
        return status, (await reader.readexactly(size)).decode()
    pieces = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        pieces.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return status, b"".join(pieces).decode()


def resident(process: int) -> int:
    """Resident memory of a process in bytes."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def processor_s(process: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def watch(process: int, until: float, seen: Seen) -> None:
    while time.monotonic() < until:
        seen.memory.append((time.monotonic(), resident(process)))
        await asyncio.sleep(0.25)


async def load(clients: int, port: int, seconds: float, latency_s: float, process: int) -> Seen:
    """All clients until the time is up."""
    seen = Seen()
    until = time.monotonic() + seconds
    work = [client(number, port, until, latency_s, seen) for number in range(clients)]
    await asyncio.gather(*work, watch(process, until, seen))
    return seen


def logged(path: Path) -> int:
    """Entries in the gateway's log, each of which must be whole."""
    with path.open(encoding="utf-8") as stream:
        return sum(bool(json.loads(line)["id"]) for line in stream)


def figures(seen: Seen, entries: int) -> list[dict[str, Any]]:
    values = np.array(seen.overheads_s) * 1000
    generator = np.random.default_rng(0)

    def share(name: str, q: float) -> dict[str, Any]:
        draws = [float(np.percentile(generator.choice(values, values.size), q)) for _ in range(200)]
        low, high = np.percentile(draws, [2.5, 97.5])
        return {
            "name": name,
            "value": float(np.percentile(values, q)),
            "unit": "ms",
            "low": low,
            "high": high,
        }

    start = seen.memory[0][0] + (seen.memory[-1][0] - seen.memory[0][0]) / 10
    early = next(size for moment, size in seen.memory if moment >= start)
    growth = seen.memory[-1][1] / early
    bad = len(seen.errors) + seen.mixed + abs(entries - len(seen.overheads_s))
    return [
        share("overhead_p50_ms", 50),
        share("overhead_p99_ms", 99),
        {"name": "errors", "value": bad, "unit": "requests", "low": None, "high": None},
        {"name": "memory_growth", "value": growth, "unit": "x", "low": None, "high": None},
    ]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="5 seconds")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--latency-ms", type=float, default=1000.0)
    parser.add_argument("--serve", metavar="LOG", help=argparse.SUPPRESS)
    given = parser.parse_args()
    latency_s = given.latency_ms / 1000
    if given.serve:
        serve(latency_s, given.serve)
        return
    seconds = 5.0 if given.quick else given.seconds
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        command = [sys.executable, __file__, "--serve", str(log), "--latency-ms", str(given.latency_ms)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            if server.stdout is None or server.stdin is None:
                raise SystemExit("the server has no pipes")
            port = int(server.stdout.readline())
            asyncio.run(load(8, port, 1.0, latency_s, server.pid))  # first calls import and compile
            before, spent_s = logged(log), processor_s(server.pid)
            seen = asyncio.run(load(given.clients, port, seconds, latency_s, server.pid))
            spent_s = processor_s(server.pid) - spent_s
            server.stdin.close()
        found = figures(seen, logged(log) - before)
    setting = {
        "clients": given.clients,
        "seconds": seconds,
        "latency_ms": given.latency_ms,
        "requests": len(seen.overheads_s),
        "requests_a_second": len(seen.overheads_s) / seconds,
        "server_cpu_ms": 1000 * spent_s / max(1, len(seen.overheads_s)),
        "mixed_up": seen.mixed,
        "first_errors": seen.errors[:3],
        "p50_ms_by_strategy": {
            name: float(np.median(values)) * 1000 for name, values in sorted(seen.by_strategy.items())
        },
        "memory_mb": [round(size / 1e6) for _, size in seen.memory[:: max(1, len(seen.memory) // 10)]],
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "quick": given.quick,
    }
    for figure in found:
        print(f"{figure['name']:18} {figure['value']:10.3f} {figure['unit']}")
    print(json.dumps(setting, indent=2))
    if given.json:
        result = [{"ratio": None, **figure} for figure in found]
        given.json.write_text(json.dumps({"figures": result, "setting": setting}, indent=2) + "\n")


if __name__ == "__main__":
    main()
