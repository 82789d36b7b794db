"""An OpenAI-compatible server without a model, for measuring clients: slots, long-tailed times, its own
load.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import random
import time
from collections import Counter
from typing import Any

from benchmarks.common.http import Http, run

ANSWER = "The answer is {}."


class Load:
    """Slots of a server, and how busy they were."""

    def __init__(self, slots: int, mean_s: float, sigma: float) -> None:
        self.slots = asyncio.Semaphore(slots)
        # the mean of a log-normal distribution is exp(mu + sigma**2 / 2)
        self.mu, self.sigma = math.log(mean_s) - sigma**2 / 2, sigma
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
        self.answered[f"{body['prompt']}#{body.get('seed', 0)}"] += 1
        choices = [
            {"index": number, "text": text, "finish_reason": "stop", "token_ids": [1] * len(text.split())}
            for number, text in enumerate(texts)
        ]
        tokens = sum(len(text.split()) for text in texts)
        usage = {"prompt_tokens": len(body["prompt"].split()), "completion_tokens": tokens}
        return {"id": "cmpl-0", "object": "text_completion", "choices": choices, "usage": usage}

    async def _sample(self, body: dict[str, Any], number: int) -> str:
        key = f"{body['prompt']}#{body.get('seed', 0) + number}"
        rng = random.Random(hashlib.blake2b(key.encode(), digest_size=8).digest())
        chance = 0.05 if "wrong" in body["prompt"] else 0.6
        right, taken = rng.random() < chance, rng.lognormvariate(self.mu, self.sigma)
        async with self.slots:
            start = time.monotonic()
            await asyncio.sleep(taken)
            self.busy_s += time.monotonic() - start
        return f"So it goes on {rng.randrange(10**6)}.\n" + ANSWER.format(42 if right else 41)


class Server(Http):
    """Answers completions, and says how busy the slots were."""

    def __init__(self, load: Load) -> None:
        super().__init__()
        self.load = load

    async def answer(self, path: str, body: bytes) -> bytes:
        """Of ``/completions``, ``/load`` and ``/models``."""
        reply: dict[str, Any] = {}
        if path.endswith("/completions"):
            reply = await self.load.answer(json.loads(body))
        elif path == "/load":
            reply = self.load.report()
        elif path.endswith("/models"):
            reply = {"object": "list", "data": [{"id": "simulated"}]}
        return json.dumps(reply).encode()


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--mean-s", type=float, default=0.4)
    parser.add_argument("--sigma", type=float, default=1.0)
    options = parser.parse_args()
    load = Load(options.slots, options.mean_s, options.sigma)
    run(lambda: Server(load))


if __name__ == "__main__":
    main()
