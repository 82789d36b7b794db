"""Presets against the formulas of their papers and code, written out again for one small batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from surefoot.rl.advantage import Group, LeaveOneOut
from surefoot.rl.config import KL, Objective, RLConfig
from surefoot.rl.credit import Outcome
from surefoot.rl.learners import TokenBatch, policy_loss, token_weights
from surefoot.rl.sample import Sample


def named(rule: str, **more: object) -> RLConfig:
    return RLConfig.model_validate({"credit": {"rule": rule}, **more})


def advantages(config: RLConfig, groups: list[list[Sample]]) -> list[list[np.ndarray]]:
    credited = [
        [
            Sample(tokens=one.tokens, ends=one.ends, rewards=streams)
            for one, streams in zip(group, rewards, strict=True)
        ]
        for group, rewards in zip(groups, config.credit.credit(groups), strict=True)
    ]
    return config.advantage.advantages(credited)


def test_grpo_is_equation_3_of_deepseekmath():
    """J = 1/G sum_i 1/|o_i| sum_t { min(ratio A, clip(ratio) A) - 0.04 (ref/pi - log(ref/pi) - 1) }."""
    config = named("grpo")
    lengths, outcomes = [5, 2, 9, 4], [1.0, 0.0, 0.0, 1.0]
    group = [
        Sample(tokens=length, ends=(length - 1,), outcome=outcome)
        for length, outcome in zip(lengths, outcomes, strict=True)
    ]
    rng = np.random.default_rng(0)
    now, old, reference = (-rng.random(sum(lengths)) - 0.2 for _ in range(3))
    objective, place = 0.0, 0
    for length, outcome in zip(lengths, outcomes, strict=True):
        advantage = (outcome - np.mean(outcomes)) / np.std(outcomes)
        inner = 0.0
        for _ in range(length):
            ratio = np.exp(now[place] - old[place])
            against = np.exp(reference[place] - now[place])
            gain = min(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
            inner += gain - 0.04 * (against - np.log(against) - 1)
            place += 1
        objective += inner / length / len(lengths)
    weights = token_weights(lengths, config.objective.mean, longest=config.max_tokens)
    batch = TokenBatch(
        logprobs=torch.tensor(now),
        old_logprobs=torch.tensor(old),
        advantages=torch.tensor(np.concatenate(advantages(config, [group])[0])),
        weights=torch.tensor(np.repeat(weights, lengths)),
        reference_logprobs=torch.tensor(reference),
    )
    assert policy_loss(batch, config.objective).loss.item() == pytest.approx(-objective, rel=1e-5)
    assert named("process-grpo").objective == config.objective


def pure_by_its_code(groups: list[list[tuple[list[int], list[float], bool]]]) -> list[np.ndarray]:
    """Advantages of CJReinforce/PURE, train_pure.sh, without its KL, in its order of operations.

    A rollout is (tokens of each step, scores p of each step, solved). Process reward softmax(-r/0.1) r with
    r = 2 p - 1 at the last token of each step, less (reward per token of the others) times the step's tokens;
    verifiable reward less the others' mean, at the end; sums from each token on; 0 at the separators; then
    normalised over all tokens that are not 0.
    """
    returns = []
    for group in groups:
        rewards = []
        for _, scores, _ in group:
            r = 2 * np.array(scores) - 1
            weights = np.exp(-r / 0.1) / np.exp(-r / 0.1).sum()
            rewards.append(weights * r)
        sums, sizes = [reward.sum() for reward in rewards], [sum(steps) for steps, _, _ in group]
        solved = [float(one) - 1 for _, _, one in group]
        for i, (steps, _, _) in enumerate(group):
            per_token = (sum(sums) - sums[i]) / (sum(sizes) - sizes[i])
            ends = np.cumsum(steps) - 1
            reward = np.zeros(sizes[i])
            reward[ends] = rewards[i] - per_token * np.array(steps)
            reward[-1] += solved[i] - (sum(solved) - solved[i]) / (len(group) - 1)
            one = reward[::-1].cumsum()[::-1].copy()
            one[ends] = 0
            returns.append(one)
    flat = np.concatenate(returns)
    counted = flat[flat != 0]
    return [np.where(one != 0, (one - counted.mean()) / counted.std(), 0) for one in returns]


def test_pure_is_its_authors_code_up_to_the_divisor_of_the_deviation():
    raw = [
        [
            ([3, 2, 4], [0.9, 0.2, 0.7], True),
            ([5, 3], [0.8, 0.95], False),
            ([2, 2, 2, 3], [0.6, 0.9, 0.1, 0.3], True),
        ],
        [([4], [0.3], False), ([2, 6], [0.7, 0.4], False), ([3, 3], [0.99, 0.5], True)],
    ]
    groups = [
        [
            Sample(
                tokens=sum(steps),
                ends=tuple(int(end) for end in np.cumsum(steps) - 1),
                scores=tuple(scores),
                outcome=float(solved),
            )
            for steps, scores, solved in group
        ]
        for group in raw
    ]
    config = named("pure")
    found = [array for group in advantages(config, groups) for array in group]
    expected = pure_by_its_code(raw)
    count = sum(int((one != 0).sum()) for one in expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one * np.sqrt(count / (count - 1)), other, atol=1e-7)
        assert (one == 0).sum() == (other == 0).sum() > 0
    assert config.objective == Objective(mean="sequence", kl=KL(coefficient=0.001, where="reward"))


def test_a_preset_gives_way_to_what_is_said_field_by_field():
    config = named("grpo", objective={"clip_high": 0.28, "kl": {"coefficient": 0.1}})
    assert config.objective == Objective(mean="sequence", clip_high=0.28, kl=KL(coefficient=0.1))
    assert named("grpo", objective={"kl": {"coefficient": 0}}).objective == Objective(mean="sequence")
    assert named("grpo", objective=Objective()).objective == Objective()
    assert named("pure", advantage={"kind": "leave-one-out"}).advantage == LeaveOneOut()
    assert named("pure", objective={"kl": {"coefficient": 0.01}}).objective.kl == KL(
        coefficient=0.01, where="reward"
    )
    assert RLConfig(credit=Outcome(), advantage=Group()).objective == Objective()
