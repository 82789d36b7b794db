"""benchmarks/scale/run.py: the server that it simulates, and that server's account of its own load."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.scale.run import SLOTS, simulated
from surefoot.policies import OpenAIPolicy
from surefoot.protocols import SampleRequest


@pytest.mark.parametrize("dialect", ["openai", "vllm"])
def test_equal_requests_have_equal_answers_and_the_load_adds_up(dialect):
    requests = [SampleRequest(prompt=f"problem {number}", n=2) for number in range(40)]
    with simulated(2, 0.02) as servers:
        texts = []
        for server in servers:
            policy = OpenAIPolicy(
                model="simulated", base_url=server.url, mode="completions", dialect=dialect, concurrency=80
            )
            results = asyncio.run(policy.sample(requests))
            texts.append([one.text for result in results for one in result.completions])
            load = server.get("/load")
            assert 0 < load["busy_s"] <= SLOTS * load["elapsed_s"]
            assert sum(load["answered"].values()) == (40 if dialect == "vllm" else 80)
            assert set(load["answered"].values()) == {1}
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 70
