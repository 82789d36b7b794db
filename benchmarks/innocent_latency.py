"""Latency of an innocent client of the gateway while others attack it: hard answers, and slow connections.

The innocent client asks for a majority of 16 answers, of two forms that need algebra to be seen as equal. The
policy costs nothing, so the times are those of the server.

``python benchmarks/innocent_latency.py [--quick] [--json FILE]``
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path

from surefoot.gateway import Gateway, GatewaySettings, Limits, ServerSettings, create_app, make_server
from surefoot.policies import ScriptedPolicy
from surefoot.protocols import SampleRequest

ATTACKERS = 8
SLOW_CONNECTIONS = 400


def write(request: SampleRequest, sample: int) -> str:
    """Sixteen sums that no algebra can reduce, or two answers that are equal."""
    prompt = str(request.prompt)
    if "hostile" in prompt:
        return rf"So \boxed{{\sum_{{k=1}}^{{10^{{100}}}} k^{{k+{sample}i+{abs(hash(prompt)) % 10**6}}}}}"
    number = abs(hash(prompt)) % 10**6
    return rf"So \boxed{{{(f'x+{number}', f'{number}+x')[sample % 2]}}}"


@contextmanager
def serving() -> Iterator[int]:
    """A gateway in a thread; its port."""
    limits = Limits(header_s=5, connections_per_address=2 * SLOW_CONNECTIONS)
    settings = ServerSettings(port=0, limits=limits)
    gateway = Gateway(ScriptedPolicy(write), settings=GatewaySettings(strategy="majority-16"), limits=limits)
    server = make_server(create_app(settings, gateway=gateway), settings)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def generate(port: int, text: str) -> float:
    """Seconds of one request."""
    begin = time.monotonic()
    link = HTTPConnection("127.0.0.1", port, timeout=120)
    body = {"model": "surefoot", "messages": [{"role": "user", "content": text}]}
    link.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    status = link.getresponse().status
    link.close()
    if status != 200:
        raise RuntimeError(f"an innocent request got {status}")
    return time.monotonic() - begin


def hard_answers(port: int, stop: threading.Event) -> None:
    """One attacker: sixteen hard answers after another."""
    number = 0
    while not stop.is_set():
        number += 1
        generate(port, f"hostile {threading.get_ident()} {number}")


def slow_connections(port: int, stop: threading.Event) -> None:
    """Half-sent requests, opened again when the server closes them."""
    with ExitStack() as links:
        while not stop.is_set():
            for _ in range(SLOW_CONNECTIONS // ATTACKERS):
                link = links.enter_context(socket.create_connection(("127.0.0.1", port)))
                link.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost:")
            stop.wait(5)
            links.close()


def measure(port: int, seconds: float, attack: Callable[[int, threading.Event], None] | None) -> list[float]:
    """Times of innocent requests, one after the other, while attackers work."""
    stop = threading.Event()
    attackers = [
        threading.Thread(target=attack, args=(port, stop)) for _ in range(ATTACKERS if attack else 0)
    ]
    for attacker in attackers:
        attacker.start()
    times: list[float] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        times.append(generate(port, f"innocent {len(times)} {time.monotonic()}"))
        time.sleep(0.05)
    stop.set()
    for attacker in attackers:
        attacker.join()
    return sorted(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    seconds = 15.0 if options.quick else 120.0
    figures = []
    with serving() as port:
        generate(port, "innocent: starts the workers")
        attacks: dict[str, Callable[[int, threading.Event], None] | None] = {
            "no attack": None,
            "slow connections": slow_connections,
            "hard answers": hard_answers,
        }
        for name, attack in attacks.items():
            times = measure(port, seconds, attack)
            for share in (50, 99):
                value = times[min(len(times) - 1, len(times) * share // 100)]
                figures.append({"name": f"p{share}, {name}", "value": value, "unit": "s"})
                print(f"p{share} {name}: {value:.3f} s of {len(times)} requests", file=sys.stdout)
    if options.json:
        setting = {"attackers": ATTACKERS, "slow_connections": SLOW_CONNECTIONS, "seconds": seconds}
        options.json.write_text(json.dumps({"figures": figures, "setting": setting}, indent=1))


if __name__ == "__main__":
    main()
