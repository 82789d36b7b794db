"""An OpenAI-compatible server without a model, for measuring clients: slots, long-tailed times, its own load.

    python -m benchmarks.scale.simulated_server [--slots 64] [--mean-s 0.4] [--sigma 1.0]

It listens on a free port of 127.0.0.1, prints the port, and ends with its standard input. Each sample
occupies one slot, waits for one if none is free, and takes a time from a log-normal distribution. Text and
time depend on prompt, seed and number of the sample alone, so equal requests get equal answers, in whatever
order. A prompt with ``wrong`` in it leads to the right answer seldom. ``GET /load`` gives the slot seconds
that were busy, the time since the first request, and how often each request was answered; ``POST /reset``
clears them.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import random
import sys
import threading
import time
from collections import Counter
from typing import Any

ANSWER = "The answer is {}."


class Load:
    """Slots of a server, and how busy they were."""

    def __init__(self, slots: int, mean_s: float, sigma: float) -> None:
        self.slots = asyncio.Semaphore(slots)
        # the mean of a log-normal distribution is exp(mu + sigma**2 / 2)
        self.mu, self.sigma = math.log(mean_s) - sigma**2 / 2, sigma
        self.reset()

    def reset(self) -> None:
        """Forget what was."""
        self.answered: Counter[str] = Counter()
        self.busy_s = 0.0
        self.first = self.last = 0.0

    def report(self) -> dict[str, Any]:
        """What ``GET /load`` gives."""
        return {
            "busy_s": self.busy_s,
            "elapsed_s": self.last - self.first,
            "answered": dict(self.answered),
        }

    async def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """All samples of a request to ``/completions``."""
        self.first = self.first or time.monotonic()
        samples = range(body.get("n") or 1)
        texts = await asyncio.gather(*(self._sample(body, number) for number in samples))
        self.last = time.monotonic()
        self.answered[f"{body['prompt']}#{body['seed']}"] += 1
        choices = [
            {"index": number, "text": text, "finish_reason": "stop", "token_ids": [1] * len(text.split())}
            for number, text in enumerate(texts)
        ]
        tokens = sum(len(text.split()) for text in texts)
        usage = {"prompt_tokens": len(body["prompt"].split()), "completion_tokens": tokens}
        return {"id": "cmpl-0", "object": "text_completion", "choices": choices, "usage": usage}

    async def _sample(self, body: dict[str, Any], number: int) -> str:
        key = f"{body['prompt']}#{body['seed'] + number}"
        rng = random.Random(hashlib.blake2b(key.encode(), digest_size=8).digest())
        chance = 0.05 if "wrong" in body["prompt"] else 0.6
        right, taken = rng.random() < chance, rng.lognormvariate(self.mu, self.sigma)
        async with self.slots:
            start = time.monotonic()
            await asyncio.sleep(taken)
            self.busy_s += time.monotonic() - start
        return f"So it goes on {rng.randrange(10**6)}.\n" + ANSWER.format(42 if right else 41)


class Connection(asyncio.Protocol):
    """HTTP/1.1 with ``Content-Length``, one request after another."""

    def __init__(self, load: Load, models: list[str]) -> None:
        self.load, self.models = load, models
        self.buffer = b""
        self.tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of ``asyncio.Protocol``."""
        self.transport: Any = transport

    def connection_lost(self, _: Exception | None) -> None:
        """Of ``asyncio.Protocol``: a client that has gone frees its slots."""
        for task in self.tasks:
            task.cancel()

    def data_received(self, data: bytes) -> None:
        """Of ``asyncio.Protocol``."""
        self.buffer += data
        head, end, rest = self.buffer.partition(b"\r\n\r\n")
        if not end:
            return
        length = 0
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        if len(rest) < length:
            return
        self.buffer = rest[length:]
        task = asyncio.create_task(self._respond(head.split(b" ", 2)[1], rest[:length]))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _respond(self, path: bytes, body: bytes) -> None:
        reply: dict[str, Any] = {}
        if path.endswith(b"/completions"):
            reply = await self.load.answer(json.loads(body))
        elif path == b"/load":
            reply = self.load.report()
        elif path == b"/reset":
            self.load.reset()
        elif path.endswith(b"/models"):
            reply = {"object": "list", "data": [{"id": name} for name in self.models]}
        data = json.dumps(reply).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data)
        self.transport.write(head + data)


async def main(slots: int, mean_s: float, sigma: float) -> None:
    """Serve until standard input ends."""
    load, loop = Load(slots, mean_s, sigma), asyncio.get_running_loop()
    ended = asyncio.Event()

    def watch() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=watch, daemon=True).start()
    server = await loop.create_server(lambda: Connection(load, ["simulated"]), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await ended.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A simulated OpenAI-compatible server.")
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--mean-s", type=float, default=0.4)
    parser.add_argument("--sigma", type=float, default=1.0)
    options = parser.parse_args()
    asyncio.run(main(options.slots, options.mean_s, options.sigma))
