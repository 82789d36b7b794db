"""What the gateway adds to a request: processor time next to other proxies, and latency for many clients."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.common.figures import Figure, Figures, arguments, figure, over_draws, over_rounds, show, write
from benchmarks.common.http import post
from benchmarks.common.processes import serve, started
from benchmarks.gateway.processor import race

MODULE = "benchmarks.gateway.run"
STRATEGIES = {"scripted": 1, "best-of-n:n=4": 1, "majority:n=4": 1, "accept-reject": 3}
"""Calls of the policy that follow each other."""
LINES = 2


def run_server(latency_s: float, database: str) -> None:
    """Serve until standard input ends."""
    from benchmarks.worlds.scripted import ScriptedPolicy
    from surefoot.protocols import ProblemTrace, SampleRequest
    from surefoot.records import StepScores, Usage
    from surefoot.server import Gateway, ServerLimits, ServerSettings, create_app, make_server, open_database

    class Upstream(ScriptedPolicy):
        overlaps = True

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

    limits = ServerLimits(running=2000, waiting=2000, timeout_s=60)
    settings = ServerSettings(port=0, limits=limits)
    with open_database(database) as db:
        gateway = Gateway(
            Upstream(answer, latency_s=latency_s),
            Scorer(),
            limits=limits,
            log=db.gateway,
        )
        server = make_server(create_app(settings, gateway=gateway, keys=db.keys), settings)
        serve(server)


@dataclass
class Seen:
    """What the clients met."""

    overheads_s: list[float] = field(default_factory=list)
    by_strategy: dict[str, list[float]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    mixed: int = 0
    acknowledged: list[str] = field(default_factory=list)
    """Ids of answers that a client has."""
    memory: list[tuple[float, int]] = field(default_factory=list)


async def client(number: int, port: int, until: float, latency_s: float, key: str, seen: Seen) -> None:
    """One client on one connection: a question after the other until the time is up, or the server gone."""
    await asyncio.sleep(random.Random(number).uniform(0, latency_s))  # else all come at the same moment
    link = await asyncio.open_connection("127.0.0.1", port)
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
            status, found = await post(link, json.dumps(body).encode(), key=key)
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            seen.errors.append(f"{type(error).__name__}: {error}")
            link[1].close()
            try:
                link = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                return
            continue
        took, text = time.monotonic() - began, found.decode()
        if status != 200:
            seen.errors.append(f"{status}: {text[:200]}")
            continue
        overhead = took - latency_s * STRATEGIES[strategy]
        seen.overheads_s.append(overhead)
        seen.by_strategy.setdefault(strategy, []).append(overhead)
        name, got = answer_of(text, stream)
        seen.acknowledged.append(name)
        seen.mixed += got != expected(question)
    link[1].close()


def expected(question: str) -> str:
    """The only right answer."""
    return "".join(f"line {at} of {question}\n" for at in range(LINES)) + f"The answer is {question}"


def answer_of(text: str, stream: bool) -> tuple[str, str]:
    """The answer's id and text."""
    if not stream:
        answer = json.loads(text)
        return answer["id"], answer["choices"][0]["message"]["content"]
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    chunks = [json.loads(event) for event in events if event != "[DONE]"]
    if events[-1] != "[DONE]":
        return chunks[0]["id"], ""
    return chunks[0]["id"], "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)


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


async def load(
    clients: int, port: int, seconds: float, latency_s: float, keys: list[str], process: int | None
) -> Seen:
    """All clients until the time is up; the memory of ``process`` is watched, if one is given."""
    seen = Seen()
    until = time.monotonic() + seconds
    keys = keys or [""]
    work = [
        client(number, port, until, latency_s, keys[number % len(keys)], seen) for number in range(clients)
    ]
    if process is not None:
        work.append(watch(process, until, seen))
    await asyncio.gather(*work)
    return seen


def missing(database: str, acknowledged: list[str]) -> int:
    """How many answers that clients have are not in the record, whole and with their candidates."""
    from surefoot.errors import NotFoundError
    from surefoot.server import open_database

    absent = 0
    with open_database(database) as db:
        for name in acknowledged:
            try:
                absent += not db.gateway.get(name).candidates
            except NotFoundError:
                absent += 1
    return absent


def made_keys(database: str, count: int) -> list[str]:
    """New API keys with rate limits."""
    from surefoot.server import open_database

    with open_database(database) as db:
        return [db.keys.create(f"clients {number}", "client", rate_limit=10**9)[0] for number in range(count)]


def killed(
    database: str, clients: int, seconds: float, latency_ms: float, keys: list[str]
) -> tuple[int, int]:
    """Answers that clients had when the server was killed under load, and how many of them are lost."""

    async def work(server: subprocess.Popen[str], port: int) -> Seen:
        asyncio.get_running_loop().call_later(seconds, server.kill)
        return await load(clients, port, 2 * seconds, latency_ms / 1000, keys, None)

    with started(MODULE, "--serve", database, "--latency-ms", str(latency_ms)) as (server, port):
        acknowledged = asyncio.run(work(server, int(port))).acknowledged
    return len(acknowledged), missing(database, acknowledged)


def cpu_figures(results: dict[str, dict[str, list[float]]]) -> Figures:
    """Processor time by kind of request, as medians of five rounds with their range, next to the rivals'."""
    rows = []
    for kind, parts in results["surefoot"].items():
        ours = float(np.median(parts))
        rows.append(over_rounds(f"cpu_ms_{kind}", parts, "ms"))
        for rival, kinds in results.items():
            if rival != "surefoot" and kind in kinds:
                ratio = ours / float(np.median(kinds[kind]))
                rows.append(over_rounds(f"{rival}_cpu_ms_{kind}", kinds[kind], "ms", ratio=ratio))
    return rows


def figures(seen: Seen, lost: int) -> Figures:
    """Overhead, errors and memory of the load."""
    values = np.array(seen.overheads_s) * 1000
    generator = np.random.default_rng(0)

    def share(name: str, q: float) -> Figure:
        draws = [float(np.percentile(generator.choice(values, values.size), q)) for _ in range(200)]
        return figure(name, over_draws(float(np.percentile(values, q)), draws), "ms")

    start = seen.memory[0][0] + (seen.memory[-1][0] - seen.memory[0][0]) / 10
    early = next(size for moment, size in seen.memory if moment >= start)
    return [
        share("overhead_p50_ms", 50),
        share("overhead_p99_ms", 99),
        figure("errors", len(seen.errors) + seen.mixed + lost, "requests"),
        figure("memory_growth", seen.memory[-1][1] / early, "x"),
    ]


def main() -> None:
    """Measure, print, write."""
    parser = arguments(__doc__, "30 seconds of load in place of 120")
    parser.add_argument("--rivals", type=Path, help="folder with the environments of its_hub and litellm")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--latency-ms", type=float, default=1000.0)
    parser.add_argument("--database", help="PostgreSQL by URL; left out, SQLite in a new file")
    parser.add_argument("--keys", type=int, default=0, help="API keys that the clients share")
    parser.add_argument("--serve", metavar="DATABASE", help=argparse.SUPPRESS)
    given = parser.parse_args()
    latency_s = given.latency_ms / 1000
    if given.serve:
        run_server(latency_s, given.serve)
        return
    cpu = cpu_figures(race(given.rivals, 1000 if given.quick else 4000))
    seconds = 30.0 if given.quick else given.seconds
    with tempfile.TemporaryDirectory() as folder:
        database = given.database or str(Path(folder) / "store.db")
        keys = made_keys(database, given.keys)
        serving = started(MODULE, "--serve", database, "--latency-ms", str(given.latency_ms))
        with serving as (server, port):
            asyncio.run(
                load(8, int(port), 1.0, latency_s, keys, server.pid)
            )  # first calls import and compile
            spent_s = processor_s(server.pid)
            seen = asyncio.run(load(given.clients, int(port), seconds, latency_s, keys, server.pid))
            spent_s = processor_s(server.pid) - spent_s
        lost = missing(database, seen.acknowledged)
        before_kill, lost_by_kill = killed(
            database, given.clients, min(10.0, seconds), given.latency_ms, keys
        )
    setting = {
        "clients": given.clients,
        "seconds": seconds,
        "latency_ms": given.latency_ms,
        "keys": given.keys,
        "requests": len(seen.overheads_s),
        "requests_a_second": len(seen.overheads_s) / seconds,
        "server_cpu_ms": 1000 * spent_s / max(1, len(seen.overheads_s)),
        "mixed_up": seen.mixed,
        "not_recorded": lost,
        "answers_before_kill": before_kill,
        "lost_by_kill": lost_by_kill,
        "first_errors": seen.errors[:3],
        "p50_ms_by_strategy": {
            name: float(np.median(values)) * 1000 for name, values in sorted(seen.by_strategy.items())
        },
        "memory_mb": [round(size / 1e6) for _, size in seen.memory[:: max(1, len(seen.memory) // 10)]],
    }
    print(json.dumps(setting, indent=2))
    write(given, show(cpu + figures(seen, lost + lost_by_kill)), **setting)


if __name__ == "__main__":
    main()
