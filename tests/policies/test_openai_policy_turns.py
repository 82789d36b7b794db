"""Calls to one server take fair turns of the clients."""

from __future__ import annotations

import asyncio

from openai_server import Reply, chat, serve

from surefoot.concurrency import CALLER
from surefoot.policies.openai import OpenAIPolicy
from surefoot.protocols import SampleRequest


def test_one_clients_many_samples_do_not_wait_before_anothers_one() -> None:
    with serve(lambda _: Reply(payload=chat(["hello"]), wait_s=0.02)) as server:
        policy = OpenAIPolicy(model="m", base_url=server.url, concurrency=2, max_retries=0)

        async def ask(caller: str, n: int) -> int:
            CALLER.set(caller)
            [result] = await policy.sample([SampleRequest(prompt="hi", n=n)])
            assert len(result.completions) == n
            return len(server.seen)

        async def both() -> int:
            flood = asyncio.create_task(ask("flood", 60))
            while len(server.seen) < 4:
                await asyncio.sleep(0.005)
            seen = await asyncio.create_task(ask("other", 1))
            await flood
            return seen

        assert asyncio.run(both()) < 20
