"""The implicit reward model that learns online: its rewards, its learning, and the checkpoint it leaves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from rollouts import made, of_item
from transformers import AutoModelForCausalLM, AutoTokenizer

from surefoot.errors import TrainingError
from surefoot.models.kinds.implicit import ImplicitPRM
from surefoot.models.loading import load_prm
from surefoot.policies.prompts import PromptFormat
from surefoot.rl.config import OnlinePRMConfig, RLConfig
from surefoot.rl.learners import OnlinePRM
from surefoot.rl.sample import Sample
from surefoot.training.config import TrainingLog
from surefoot.training.loop import load_state, save_state


@pytest.fixture(scope="module", params=["lab_base", "gpt2_base"])
def base(request):
    path = request.getfixturevalue(request.param)
    return AutoModelForCausalLM.from_pretrained(path).eval(), AutoTokenizer.from_pretrained(path)


@pytest.fixture
def rollouts(base, lab_items):
    return [of_item(base[1], item) for item in lab_items[:6]]


def start(base, *, microbatch_tokens: int = 16_384, recompute: bool = False, **settings) -> OnlinePRM:
    return OnlinePRM.from_policy(
        *base,
        RLConfig(
            online_prm=OnlinePRMConfig(**settings),
            microbatch_tokens=microbatch_tokens,
            gradient_checkpointing=recompute,
        ),
        prompt=PromptFormat(),
    )


def shaken(model: OnlinePRM) -> OnlinePRM:
    """``model`` with noise on its weights, so that it differs from its reference."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters.values():
            parameter += 0.05 * torch.randn_like(parameter)
    return model


def straight(model: OnlinePRM, rollout) -> np.ndarray:
    """By the definition: one rollout at a time, whole logits."""
    ids = torch.tensor([rollout.prompt_ids + rollout.ids])
    with torch.no_grad():
        ratios = [
            one(ids).logits.double().log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
            for one in (model.prm.policy, model.prm.reference)
        ]
    return (ratios[0] - ratios[1])[len(rollout.prompt_ids) - 1 :].numpy()


def judged(rollouts: Sequence[Sample], outcomes: Sequence[float | None]) -> list[Sample]:
    pairs = zip(rollouts, outcomes, strict=True)
    return [replace(rollout, outcome=outcome) for rollout, outcome in pairs]


def snapshot(model: OnlinePRM) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters.values()]


def test_at_the_reference_rewards_are_zero_and_the_loss_is_ln_2(base, rollouts):
    model = start(base)
    ratios = model.log_ratios(rollouts)
    assert [len(one) for one in ratios] == [len(rollout.ids) for rollout in rollouts]
    assert {one.dtype for one in ratios} == {np.dtype(np.float64)}
    assert not np.concatenate(ratios).any()
    assert model.learn(judged(rollouts, [1, 0] * 3)) == pytest.approx(math.log(2), abs=1e-5)


def test_log_ratios_are_those_of_the_definition(base, rollouts):
    model = shaken(start(base))
    found = model.log_ratios(rollouts)
    for rollout, one in zip(rollouts, found, strict=True):
        np.testing.assert_allclose(one, straight(model, rollout), atol=1e-4)
    assert max(np.abs(one).max() for one in found) > 0.1


def test_the_loss_is_the_cross_entropy_of_the_whole_responses_reward(base, rollouts):
    model = shaken(start(base, beta=0.3))
    outcomes = [1.0, 0.0, 0.25, 1.0, 0.0, 1.0]
    rewards = [0.3 * one.sum() for one in model.log_ratios(rollouts)]
    expected = [
        -outcome * math.log(1 / (1 + math.exp(-reward)))
        - (1 - outcome) * math.log(1 / (1 + math.exp(reward)))
        for outcome, reward in zip(outcomes, rewards, strict=True)
    ]
    assert model.learn(judged(rollouts, outcomes)) == pytest.approx(np.mean(expected), abs=1e-4)


def test_passes_and_recomputing_change_nothing(base, rollouts):
    outcomes = [1, 0, 0, 1, 0, 1]
    ways = [start(base), start(base, microbatch_tokens=60), start(base, recompute=True)]
    losses = [[model.learn(judged(rollouts, outcomes)) for _ in range(3)] for model in ways]
    for model, one in zip(ways[1:], losses[1:], strict=True):
        assert one == pytest.approx(losses[0], abs=1e-4)
        for mine, first in zip(snapshot(model), snapshot(ways[0]), strict=True):
            torch.testing.assert_close(mine, first, atol=2e-3, rtol=1e-2)
    assert not any(module.training for module in ways[2].prm.policy.modules())


def test_rewards_of_a_round_are_those_before_its_learning(base, rollouts):
    """The reference's numbers, kept since the rewards were read, are dropped when the round is over."""
    model, other = start(base), start(base)
    model.log_ratios(rollouts)
    for outcomes in ([1, 0] * 3, [0, 1] * 3):
        group = judged(rollouts, outcomes)
        assert model.learn(group) == pytest.approx(other.learn(group), abs=1e-6)
    with torch.no_grad():
        for parameter in model.prm.reference.parameters():
            parameter += 0.1
    np.testing.assert_allclose(model.log_ratios(rollouts)[0], straight(model, rollouts[0]), atol=1e-4)


def test_outcomes_that_can_be_told_apart_are_learned(base):
    """Right answers end with one token, wrong ones with another: that token gets the reward."""
    right, wrong = 9, 12
    group = [made([1, 5], [7, 8, right if at % 2 else wrong, 2]) for at in range(8)]
    model = start(base, learning_rate=3e-3, epochs=2, beta=0.2)
    losses = [model.learn(judged(group, [at % 2 for at in range(8)])) for _ in range(12)]
    assert losses[-1] < 0.5 * losses[0]
    good, bad = model.log_ratios([group[1], group[0]])
    assert good[2] - bad[2] > 1
    assert good[2] - bad[2] > 3 * abs(good[:2] - bad[:2]).max()


def test_the_start_policy_is_left_alone(base, rollouts):
    before = [parameter.detach().clone() for parameter in base[0].parameters()]
    model = start(base, learning_rate=1e-2)
    frozen = [parameter.detach().clone() for parameter in model.prm.reference.parameters()]
    begun = snapshot(model)
    model.learn(judged(rollouts, [1, 0] * 3))
    assert all(map(torch.equal, before, base[0].parameters()))
    assert all(map(torch.equal, frozen, model.prm.reference.parameters()))
    assert not any(parameter.requires_grad for parameter in model.prm.reference.parameters())
    assert not any(map(torch.equal, begun, snapshot(model)))


def test_the_checkpoint_gives_the_same_rewards_to_the_same_tokens(base, rollouts, lab_items, tmp_path):
    model = start(base, learning_rate=1e-2, beta=0.2)
    model.learn(judged(rollouts, [1, 0] * 3))
    found = model.log_ratios(rollouts)
    model.save(tmp_path / "prm")
    opened = ImplicitPRM.load(tmp_path / "prm")
    assert opened.settings.beta == 0.2
    encoded = opened.encode(lab_items[:6])
    for one, rollout, ratios, rewards in zip(
        encoded, rollouts, found, opened.rewards(lab_items[:6]), strict=True
    ):
        first = len(rollout.prompt_ids)
        assert one.ids == (rollout.prompt_ids + rollout.ids)[: len(one.ids)]
        cuts = [0, *(at + 1 - first for at in one.positions)]
        sums = [0.2 * ratios[a:b].sum() for a, b in pairwise(cuts)]
        assert rewards.steps == pytest.approx(sums, abs=1e-5)
        assert max(map(abs, sums)) > 1e-3
    scores = load_prm(tmp_path / "prm").score_traces(lab_items[:6])
    assert [record.scores for record in scores] == [
        record.scores for record in opened.score_traces(lab_items[:6])
    ]


def test_one_that_was_trained_before_goes_on_with_its_own_reference(base, rollouts, tmp_path):
    first = shaken(start(base))
    first.save(tmp_path / "prm")
    model = OnlinePRM(ImplicitPRM.load(tmp_path / "prm"), RLConfig())
    for one, other in zip(model.log_ratios(rollouts), first.log_ratios(rollouts), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    group = judged(rollouts, [1, 0] * 3)
    assert model.learn(group) == pytest.approx(first.learn(group), abs=1e-5)
    with pytest.raises(TrainingError, match="beta"):
        OnlinePRM(ImplicitPRM.load(tmp_path / "prm"), RLConfig(online_prm=OnlinePRMConfig(beta=0.1)))


def test_its_state_goes_on_from_a_checkpoint(base, rollouts, tmp_path):
    outcomes = [1, 0] * 3
    whole, cut = start(base), start(base)
    expected = [whole.learn(judged(rollouts, outcomes)) for _ in range(4)][2:]
    for _ in range(2):
        cut.learn(judged(rollouts, outcomes))
    save_state(tmp_path / "state", cut.parameters, [cut.optimiser], TrainingLog(), write=True)
    resumed = start(base)
    load_state(tmp_path / "state", resumed.parameters, [resumed.optimiser], TrainingLog)
    assert [resumed.learn(judged(rollouts, outcomes)) for _ in range(2)] == expected


def test_what_cannot_be_learned_from_is_refused(base, rollouts):
    model = start(base)
    with pytest.raises(TrainingError, match="outcome"):
        model.learn(judged(rollouts, [1, None] * 3))
    with pytest.raises(TrainingError, match="outcome"):
        model.learn(judged(rollouts, [2] * 6))
    with pytest.raises(TrainingError, match="no rollouts"):
        model.learn([])
    with torch.no_grad():
        next(iter(model.parameters.values())).fill_(math.nan)
    with pytest.raises(TrainingError, match="online implicit reward model"):
        model.learn(judged(rollouts, [1, 0] * 3))
    with pytest.raises(ValidationError):
        OnlinePRMConfig(beta=0)
