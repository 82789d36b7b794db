"""benchmarks/scale: the server that it simulates, that server's account of its own load, and two workers."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.scale.run import SLOTS, simulated
from benchmarks.scale.workers import START, TRACES
from surefoot.cli import score
from surefoot.cli.label.models import MonteCarlo
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


@pytest.mark.parametrize(("what", "size"), [("labelling", MonteCarlo.size), ("scoring", score._PIECE)])
def test_a_start_has_one_whole_piece_for_each_of_two_workers(what, size):
    assert START * TRACES[what] == 2 * size
