"""Latency of an innocent client while the policy's server sends another client a stream without end, and the
processor time of a stream by its length."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import re
import sys
import tempfile
from collections import Counter
from itertools import product
from pathlib import Path

from benchmarks.common.figures import Figure, Figures, arguments, figure, show, write
from benchmarks.common.processes import serve, started
from benchmarks.fair_turns.attacks import PAUSE_S, Attacker, Outcome, Site, measure, working
from benchmarks.gateway.run import processor_s

MODULE = "benchmarks.fair_turns.streams"
STREAMS = {
    "words": b'data: {"choices": [{"index": 0, "delta": {"content": "a "}}]}\n\n' * 20,
    "long texts": b'data: {"choices": [{"index": 0, "delta": {"content": "%s"}}]}\n\n' % (b"x" * 1000),
    "one line": b"data: " + b"x" * 65_536,
    "data without an end": b"data: x\n" * 5000,
    "comments": b": keep-alive\n\n" * 500,
    "empty events": b'data: {"choices": []}\n\n' * 50,
    "many choices": b'data: {"choices": ['
    + b",".join([b'{"delta": {"tool_calls": [{}]}}'] * 20_000)
    + b"]}\n\n",
}
LENGTHS = (500, 2000, 8000)
HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: "
USAGE = {"prompt_tokens": 1, "completion_tokens": 1}


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One request to the policy's server: ``hostile KIND``, ``write COUNT`` words, or another."""
    head = await reader.readuntil(b"\r\n\r\n")
    body = json.loads(await reader.readexactly(int(re.search(rb"(?i)content-length: (\d+)", head)[1])))  # type: ignore[index]
    kind, _, rest = body["messages"][-1]["content"].partition(" ")
    writer.write(HEAD + (b"text/event-stream" if body.get("stream") else b"application/json") + b"\r\n\r\n")
    try:
        while kind == "hostile":
            writer.write(STREAMS[rest.partition("#")[0]])
            await writer.drain()
        if kind == "write":
            for _ in range(int(rest)):
                writer.write(b'data: {"choices": [{"index": 0, "delta": {"content": "word "}}]}\n\n')
                await writer.drain()
            end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": USAGE}
            writer.write(f"data: {json.dumps(end)}\n\ndata: [DONE]\n\n".encode())
        else:
            message = {"role": "assistant", "content": "It is 1."}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            writer.write(json.dumps({"choices": [choice], "usage": USAGE}).encode())
        await writer.drain()
    except ConnectionError:
        return
    writer.close()


async def upstream() -> None:
    """The policy's server, on a free port, which is printed, until standard input ends."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


def run_server(folder: Path) -> None:
    """The gateway in front of it."""
    logging.disable(logging.WARNING)
    from surefoot.policies import OpenAIPolicy
    from surefoot.server import (
        Gateway,
        GatewaySettings,
        ServerSettings,
        create_app,
        make_server,
        open_database,
    )

    settings = ServerSettings(port=0, require_key=True)
    with open_database(folder / "streams.db") as db, started(MODULE, "--upstream") as (_, port):
        keys = {name: db.keys.create(name, "client")[0] for name in ("innocent", "hostile 0")}
        policy = OpenAIPolicy(
            model="m", base_url=f"http://127.0.0.1:{port.strip()}/v1", max_retries=0, timeout_s=20
        )
        gateway = Gateway(policy, settings=GatewaySettings(chat=True), log=db.gateway)
        server = make_server(create_app(settings, gateway=gateway, keys=db.keys), settings)
        serve(server, lambda port: json.dumps({"port": port, "keys": keys, "traces": {}}))


def asked(text: str, tokens: int, *, stream: bool) -> dict[str, object]:
    """Body of a chat request."""
    return {
        "model": "m",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "stream": stream,
    }


def main() -> None:
    """Measure, print, write."""
    parser = arguments(__doc__, "2 seconds for each attack")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each attack")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--upstream", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.upstream:
        asyncio.run(upstream())
        return
    if options.serve:
        run_server(options.serve)
        return
    seconds, figures = 2.0 if options.quick else options.seconds, Figures()
    with tempfile.TemporaryDirectory() as folder, started(MODULE, "--serve", folder) as (process, line):
        site = Site(**json.loads(line))
        hostile, innocent = Attacker(site, 0), Attacker(site, -1)
        for count in LENGTHS:
            before = processor_s(process.pid)
            for _ in range(5):
                hostile.post("/v1/chat/completions", asked(f"write {count}", 8192, stream=True))
            spent = 1e6 * (processor_s(process.pid) - before) / 5 / count
            figures.append(figure(f"cpu_of_a_streamed_token_at_{count}", spent, "µs"))

        def ask(number: int) -> Counter[str]:
            body = asked(f"innocent {number}", 50, stream=False)
            innocent.post("/v1/chat/completions", body, key=site.keys["innocent"])
            return innocent.done()

        figures.append(_p99(measure("alone", ask, [], seconds, PAUSE_S)))
        for kind, (attackers, tokens) in product(STREAMS, ((1, 50), (8, 50), (8, 8192))):

            def attack(attacker: Attacker, number: int, kind: str = kind, tokens: int = tokens) -> None:
                attacker.post("/v1/chat/completions", asked(f"hostile {kind}#{number}", tokens, stream=True))

            work = [working(Attacker(site, 0), attack) for _ in range(attackers)]
            figures.append(
                _p99(measure(f"{kind}, {attackers} × {tokens} tokens", ask, work, seconds, PAUSE_S))
            )
    write(options, show(figures), seconds=seconds)


def _p99(outcome: Outcome) -> Figure:
    note = f"{dict(outcome.innocent)}, attackers {dict(outcome.attackers)}"
    return figure(f"innocent_p99 {outcome.name}", outcome.percentile(99), "s", note=note)


if __name__ == "__main__":
    main()
