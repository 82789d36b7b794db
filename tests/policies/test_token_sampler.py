"""Tokens drawn on the device are those that inverse-CDF sampling in NumPy draws."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.worlds.digits.checkpoints import POLICY
from benchmarks.worlds.digits.world import generate_problems
from surefoot.policies import Loading, TransformersPolicy
from surefoot.policies.transformers import TokenSampler, nucleus
from surefoot.protocols import SampleRequest, Sampling

SETTINGS = [
    Sampling(temperature=temperature, top_p=top_p)
    for temperature in (0.0, 0.7, 1.0, 1.5)
    for top_p in (1.0, 0.95, 0.5, 1e-6)
]


def drawn(logits: np.ndarray, number: float, settings: Sampling) -> int:
    """The definition, in float64."""
    if settings.temperature == 0:
        return int(logits.argmax())
    chances = np.exp(logits / settings.temperature - (logits / settings.temperature).max())
    chances /= chances.sum()
    if settings.top_p < 1:
        order = np.argsort(-chances, kind="stable")
        before = np.cumsum(chances[order]) - chances[order]
        chances[order[before >= settings.top_p]] = 0
    cumulated = np.cumsum(chances)
    return int(np.searchsorted(cumulated, number * cumulated[-1], side="right"))


@pytest.mark.parametrize(("vocabulary", "spread"), [(50, 1.0), (3000, 4.0), (40_000, 0.5)])
def test_tokens_are_those_of_the_definition(vocabulary, spread):
    rng = np.random.default_rng(vocabulary)
    logits = (spread * rng.standard_normal((len(SETTINGS), vocabulary))).astype(np.float32)
    noise = rng.random((len(SETTINGS), 3))
    sampler = TokenSampler(SETTINGS, noise, torch.device("cpu"))
    for turn in range(3):
        found = sampler.draw(torch.from_numpy(logits), turn).tolist()
        expected = [
            drawn(row.astype(np.float64), number, settings)
            for row, number, settings in zip(logits, noise[:, turn], SETTINGS, strict=True)
        ]
        assert found == expected
    rows = [5, 0, 15, 8]
    sampler.keep(rows)
    assert sampler.draw(torch.from_numpy(logits[rows]), 2).tolist() == [expected[row] for row in rows]


def test_a_nucleus_of_any_size_is_the_smallest_that_reaches_its_mass():
    torch.manual_seed(0)
    chances = torch.softmax(torch.randn(6, 20_000) * torch.tensor([9.0, 3, 1, 0.1, 0.1, 0])[:, None], dim=1)
    top_p = torch.tensor([0.5, 0.9, 0.9, 0.3, 0.999, 0.5])[:, None]
    kept = nucleus(chances, top_p)
    sizes = (kept > 0).sum(1)
    assert torch.equal(kept[kept > 0], chances[kept > 0])
    for row, size in enumerate(sizes.tolist()):
        ordered = chances[row].double().sort(descending=True).values.cumsum(0)
        assert ordered[size - 1] >= top_p[row, 0] - 1e-4
        assert size == 1 or ordered[size - 2] < top_p[row, 0] + 1e-4
    assert sizes[0] < 1024 < sizes[2] < 16_384 < sizes[4]  # every stage of the search


@pytest.mark.parametrize("remember", [0, 5000])
@pytest.mark.parametrize("transfer_every", [4, 100])
def test_how_often_tokens_leave_the_device_changes_nothing(remember, transfer_every):
    requests = [
        SampleRequest(prompt=f"{problem.text}\n", n=3, seed=seed, sampling=sampling)
        for problem in generate_problems(2, seed=1)
        for seed, sampling in enumerate(
            replace(settings, stop=stop, max_tokens=40)
            for settings in (SETTINGS[0], SETTINGS[5], SETTINGS[12])
            for stop in ((), ("\n",))
        )
    ]
    policies = [
        TransformersPolicy.from_pretrained(POLICY, loading=Loading(), batch_size=8, remember=remember)
        for _ in range(2)
    ]
    policies[1].transfer_every = transfer_every
    for _ in range(2):  # the second time from what is remembered
        one, other = (asyncio.run(policy.sample(requests)) for policy in policies)
        assert one == other
    assert len({completion.text for result in one for completion in result.completions}) > 10
