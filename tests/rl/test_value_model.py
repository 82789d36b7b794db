"""The critic: where it reads, what it fits, and the clipped loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from rollouts import made, of_item
from transformers import AutoModelForCausalLM, AutoTokenizer

from surefoot.errors import ScoreError, TrainingError
from surefoot.models.lora import Lora
from surefoot.rl.config import CriticConfig, RLConfig
from surefoot.rl.learners import Critic, value_losses
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


def start(base, *, microbatch_tokens: int = 16_384, recompute: bool = False, **settings) -> Critic:
    return Critic(
        base[0],
        RLConfig(
            critic=CriticConfig(**settings),
            microbatch_tokens=microbatch_tokens,
            gradient_checkpointing=recompute,
        ),
    )


def shaken(critic: Critic) -> Critic:
    """``critic`` with a head that gives values of about 1."""
    torch.manual_seed(1)
    with torch.no_grad():
        critic.model.head.weight.normal_(std=0.3)
    return critic


def constant(rollouts, value: float) -> list[np.ndarray]:
    return [np.full(len(rollout.ids), value) for rollout in rollouts]


def fitting(
    rollouts: Sequence[Sample], targets: Sequence[np.ndarray], values: Sequence[np.ndarray]
) -> list[Sample]:
    rows = zip(rollouts, targets, values, strict=True)
    return [replace(rollout, returns=target, values=value) for rollout, target, value in rows]


def test_at_first_every_value_is_zero(base, rollouts):
    values = start(base).values(rollouts)
    assert [len(one) for one in values] == [len(rollout.ids) for rollout in rollouts]
    assert {one.dtype for one in values} == {np.dtype(np.float64)}
    assert not np.concatenate(values).any()


def test_a_value_is_read_at_the_token_before(base, rollouts):
    critic = shaken(start(base))
    for rollout, found in zip(rollouts, critic.values(rollouts), strict=True):
        ids = torch.tensor([rollout.prompt_ids + rollout.ids])
        with torch.no_grad():
            states = base[0].base_model(input_ids=ids).last_hidden_state[0]
            whole = critic.model.head(states)[:, 0]
        np.testing.assert_allclose(found, whole[len(rollout.prompt_ids) - 1 : -1].numpy(), atol=1e-4)


def test_a_later_token_changes_no_earlier_value(base):
    one, other = made([1, 5], [7, 8, 9, 10, 2]), made([1, 5], [7, 8, 9, 11, 2])
    critic = shaken(start(base))
    first, second = critic.values([one, other])
    np.testing.assert_allclose(first[:4], second[:4], atol=1e-6)  # the state that drew token 3 as well
    assert abs(first[4] - second[4]) > 1e-3


def test_values_do_not_depend_on_what_is_read_along(base, rollouts):
    critic = shaken(start(base))
    together = critic.values(rollouts)
    for rollout, found in zip(rollouts, together, strict=True):
        np.testing.assert_allclose(critic.values([rollout])[0], found, atol=1e-5)


def test_constant_returns_are_fitted(base, rollouts):
    critic = start(base, learning_rate=1e-2, value_clip=None, minibatches=2)
    targets = constant(rollouts, 0.7)
    losses = []
    for seed in range(15):
        group = fitting(rollouts, targets, critic.values(rollouts))
        losses.append(critic.learn(group, seed=seed))
    assert losses[0] <= 0.7**2 / 2 + 1e-6
    assert losses[-1] < 5e-3
    assert np.concatenate(critic.values(rollouts)) == pytest.approx(0.7, abs=0.2)


def test_returns_that_depend_on_what_was_written_are_fitted(base):
    good, bad = made([1, 5], [7, 8, 9, 2]), made([1, 5], [7, 12, 9, 2])
    critic = start(base, learning_rate=1e-2, value_clip=None, minibatches=1)
    for _ in range(40):
        critic.learn(fitting([good, bad], [np.ones(4), np.zeros(4)], critic.values([good, bad])))
    values = critic.values([good, bad])
    # not to be told apart before the second token was drawn, which was a mean of the two
    np.testing.assert_allclose(values[0][:2], values[1][:2], atol=1e-5)
    assert values[0][:2] == pytest.approx(0.5, abs=0.15)
    assert (values[0][2:] > 0.8).all()
    assert (values[1][2:] < 0.2).all()


def test_the_clipped_loss_by_hand():
    values = torch.tensor([0.5, 0.5, 1.0, -1.0, 0.1], requires_grad=True)
    returns, old = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0]), torch.tensor([0.0, 0.0, 0.9, 0.0, 0.0])
    found = value_losses(values, returns, old, 0.2)
    # bounded: 0.2, 0.2, 1.0, -0.2, 0.1; the worse of the two squares
    assert found.tolist() == pytest.approx([0.32, 0.125, 0.5, 0.5, 0.405])
    found.sum().backward()
    # the first went far enough towards its return: nothing pulls it on
    assert values.grad.tolist() == pytest.approx([0.0, 0.5, 1.0, -1.0, -0.9])
    assert value_losses(values, returns, old, None).tolist() == pytest.approx([0.125, 0.125, 0.5, 0.5, 0.405])


def test_the_loss_is_a_mean_over_tokens(base, rollouts):
    critic = shaken(start(base, minibatches=1, value_clip=None))
    values = np.concatenate(critic.values(rollouts))
    loss = critic.learn(fitting(rollouts, constant(rollouts, 0.25), constant(rollouts, 0.0)))
    assert loss == pytest.approx(((values - 0.25) ** 2).mean() / 2, rel=1e-4)


def test_passes_and_recomputing_change_nothing(base, rollouts):
    ways = [start(base), start(base, microbatch_tokens=60), start(base, recompute=True)]
    targets = [np.linspace(0, 1, len(rollout.ids)) for rollout in rollouts]
    group = fitting(rollouts, targets, constant(rollouts, 0.0))
    losses = [[critic.learn(group, seed=seed) for seed in range(3)] for critic in ways]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    assert losses[2] == pytest.approx(losses[0], rel=1e-3)
    assert not any(module.training for module in ways[2].model.trunk.modules())


def test_epochs_and_minibatches_are_steps(base, rollouts):
    critic = start(base, epochs=3, minibatches=2)
    critic.learn(fitting(rollouts, constant(rollouts, 1.0), constant(rollouts, 0.0)))
    steps = {int(state["step"]) for state in critic.optimiser.state.values()}
    assert steps == {6}
    few = start(base, minibatches=5)
    few.learn(fitting(rollouts[:2], constant(rollouts[:2], 1.0), constant(rollouts[:2], 0.0)))
    assert {int(state["step"]) for state in few.optimiser.state.values()} == {2}


def test_the_policy_is_left_alone(base, rollouts):
    before = [parameter.detach().clone() for parameter in base[0].parameters()]
    critic = start(base, learning_rate=1e-2)
    critic.learn(fitting(rollouts, constant(rollouts, 1.0), constant(rollouts, 0.0)))
    assert all(map(torch.equal, before, base[0].parameters()))
    assert set(critic.parameters) == {name for name, _ in critic.model.named_parameters()}


def test_its_state_goes_on_from_a_checkpoint(base, rollouts, tmp_path):
    group = fitting(rollouts, constant(rollouts, 1.0), constant(rollouts, 0.0))
    whole, cut, resumed = start(base), start(base), start(base)
    expected = [whole.learn(group, seed=seed) for seed in range(4)][2:]
    for seed in range(2):
        cut.learn(group, seed=seed)
    save_state(tmp_path / "state", cut.parameters, [cut.optimiser], TrainingLog(), write=True)
    load_state(tmp_path / "state", resumed.parameters, [resumed.optimiser], TrainingLog)
    assert [resumed.learn(group, seed=seed) for seed in (2, 3)] == expected


def test_what_cannot_be_learned_from_is_refused(base, rollouts):
    critic = start(base)
    with pytest.raises(TrainingError, match="'returns' and 'values'"):
        critic.learn(rollouts)
    for wrong in ("returns", "values"):
        with pytest.raises(ScoreError, match=f"'{wrong}' has shape"):
            replace(rollouts[0], **{wrong: np.zeros(1)})
    with pytest.raises(TrainingError, match="no rollouts"):
        critic.learn([])
    with pytest.raises(TrainingError, match="the critic"):
        critic.learn(fitting(rollouts, constant(rollouts, math.nan), constant(rollouts, 0.0)))
    with pytest.raises(ValidationError):
        CriticConfig(value_clip=0)


def test_with_lora_an_adapter_and_the_head_learn_and_the_trunk_stays(lab_base, lab_items):
    model = AutoModelForCausalLM.from_pretrained(lab_base, dtype=torch.bfloat16).eval()
    tokenizer = AutoTokenizer.from_pretrained(lab_base)
    rollouts = [of_item(tokenizer, item) for item in lab_items[:4]]
    critic = Critic(model, RLConfig(critic=CriticConfig(learning_rate=0.01), lora=Lora(rank=2)))
    frozen = {name: one.clone() for name, one in critic.model.named_parameters() if not one.requires_grad}
    assert {name for name in critic.parameters if "lora" not in name} == {"head.weight", "head.bias"}
    assert {one.dtype for one in critic.parameters.values()} == {torch.float32}
    targets = constant(rollouts, 1.0)
    losses = [critic.learn(fitting(rollouts, targets, critic.values(rollouts))) for _ in range(30)]
    assert losses[-1] < losses[0] / 4
    assert all(torch.equal(one, dict(critic.model.named_parameters())[name]) for name, one in frozen.items())
    assert any(one.any() for name, one in critic.parameters.items() if "lora_B" in name)
    assert not any("lora" in name for name, _ in model.named_parameters())
