import asyncio
import dataclasses
import json
import math

import pytest
import torch
from pydantic import ValidationError
from sklearn.metrics import roc_auc_score

from benchmarks.worlds.digits.checkpoints import TRUNK
from benchmarks.worlds.digits.solver import NoisySolver
from benchmarks.worlds.digits.world import Difficulty, generate_problems
from surefoot.errors import TrainingError
from surefoot.models.encoding import Encoding
from surefoot.models.kinds.implicit import ImplicitPRM
from surefoot.protocols import ProblemTrace, SampleRequest
from surefoot.records import Trace
from surefoot.segment import Line, segment_trace
from surefoot.training.config import ImplicitConfig
from surefoot.training.implicit import OutcomeLoss, build_outcome_examples, train_implicit

SHORT = ImplicitConfig(epochs=2, batch_size=4, learning_rate=3e-3, checkpoint_every=2)


def sampled(problems: int, *, seed: int) -> list[ProblemTrace]:
    """Four solutions a problem by a solver that errs; about half of them are right."""
    difficulty = Difficulty(min_operations=2, max_operations=3, operations="+-")
    found = generate_problems(problems, seed=seed, difficulty=difficulty)
    requests = [SampleRequest(prompt=problem.text, n=4, seed=seed) for problem in found]
    items = []
    for problem, result in zip(found, asyncio.run(NoisySolver(error_rate=0.2).sample(requests)), strict=True):
        for number, completion in enumerate(result.completions):
            right = completion.text.endswith(f"Answer: {problem.answer}\n")
            trace = Trace(problem_id=problem.id, text=completion.text, sample=number, outcome=right)
            items.append(ProblemTrace(problem=problem, trace=segment_trace(trace, Line())))
    return items


def weights(model: ImplicitPRM) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.policy.parameters()]


@pytest.fixture
def prm(lab_base) -> ImplicitPRM:
    return ImplicitPRM.initialise(lab_base)


def test_at_the_reference_the_loss_is_ln_2(prm, lab_items):
    examples = build_outcome_examples(prm, lab_items).examples
    with torch.no_grad():
        loss = OutcomeLoss(prm, examples)
        assert loss.rewards(examples).abs().max() < 1e-5
        assert float(loss(examples)) / len(examples) == pytest.approx(math.log(2), abs=1e-6)


def test_the_reward_trained_on_is_the_sum_of_the_step_rewards(prm, lab_items):
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in prm.policy.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
        examples = build_outcome_examples(prm, lab_items).examples
        rewards = OutcomeLoss(prm, examples).rewards(examples).tolist()
        losses = [float(OutcomeLoss(prm, [example])([example])) for example in examples]
    sums = [math.fsum(found.steps) for found in prm.rewards(lab_items)]
    assert rewards == pytest.approx(sums, abs=1e-4)
    signs = [1 if item.trace.outcome else -1 for item in lab_items]
    expected = [math.log1p(math.exp(-sign * total)) for sign, total in zip(signs, sums, strict=True)]
    assert losses == pytest.approx(expected, abs=1e-4)


def test_what_cannot_be_trained_on_is_counted(lab_base, lab_items):
    lengths = sorted(len(trace.ids) for trace in ImplicitPRM.initialise(lab_base).encode(lab_items))
    model = ImplicitPRM.initialise(lab_base, encoding=Encoding(max_length=lengths[-1] - 2))
    unjudged = dataclasses.replace(
        lab_items[0], trace=lab_items[0].trace.model_copy(update={"outcome": None})
    )
    bare = dataclasses.replace(lab_items[1], trace=lab_items[1].trace.model_copy(update={"steps": ()}))
    found = build_outcome_examples(model, [unjudged, bare, *lab_items])
    assert found.dropped["traces without outcome"] == 1
    assert found.dropped["traces without steps"] == 1
    beyond = sum(length > lengths[-1] - 1 for length in lengths)
    assert found.dropped["traces longer than the context"] == beyond >= 1
    assert len(found.examples) == len(lab_items) - beyond


def test_equal_outcomes_are_refused(prm, lab_items):
    with pytest.raises(TrainingError, match="same outcome"):
        build_outcome_examples(prm, [item for item in lab_items if item.trace.outcome])
    with pytest.raises(TrainingError, match="nothing to train on"):
        build_outcome_examples(prm, [])


def test_training_saves_what_it_trained(prm, lab_items, tmp_path):
    examples = build_outcome_examples(prm, lab_items).examples
    log = train_implicit(prm, examples, SHORT, tmp_path)
    assert log.losses[0] == pytest.approx(math.log(2), abs=1e-5)
    assert len(log.losses) == 6
    assert json.loads((tmp_path / "training.json").read_text())["losses"] == log.losses
    assert len((tmp_path / "curves.jsonl").read_text().splitlines()) == 6
    assert not (tmp_path / "checkpoint.safetensors").exists()
    loaded = ImplicitPRM.load(tmp_path)
    assert [r.scores for r in loaded.score_traces(lab_items)] == [
        r.scores for r in prm.score_traces(lab_items)
    ]
    assert any(reward for found in loaded.rewards(lab_items) for reward in found.steps)


def test_a_stopped_run_goes_on_with_the_same_losses(lab_base, lab_items, tmp_path):
    def run(folder, progress=None):
        model = ImplicitPRM.initialise(lab_base)
        examples = build_outcome_examples(model, lab_items).examples
        return train_implicit(model, examples, SHORT, folder, progress=progress), weights(model)

    whole, expected = run(tmp_path / "whole")

    def stop(done: int, total: int, loss: float) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "stopped", stop)
    assert (tmp_path / "stopped" / "checkpoint.safetensors").exists()
    resumed, found = run(tmp_path / "stopped")
    assert resumed.losses == whole.losses
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_passes_of_an_update_add_up(lab_base, lab_items, tmp_path):
    losses = []
    for name, changes in {
        "one": {},
        "many": {"microbatch_tokens": 60},
        "two": {"gradient_accumulation_steps": 2},
    }.items():
        model = ImplicitPRM.initialise(lab_base)
        examples = build_outcome_examples(model, lab_items).examples
        config = SHORT.model_copy(update={**changes, "gradient_checkpointing": name == "many"})
        losses.append(train_implicit(model, examples, config, tmp_path / name).losses)
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)
    assert losses[2] == pytest.approx(losses[0], abs=1e-4)


@pytest.mark.parametrize("name", ["freeze_trunk", "loss", "layout", "patience"])
def test_options_that_do_not_apply_are_refused(name):
    with pytest.raises(ValidationError, match=name):
        ImplicitConfig(**{name: 1})


def test_a_loss_that_is_not_finite_names_its_traces(prm, lab_items, tmp_path):
    examples = build_outcome_examples(prm, lab_items).examples
    with torch.no_grad():
        prm.policy.get_output_embeddings().weight[5] = math.nan
    with pytest.raises(TrainingError, match="at update 0, traces of this batch: "):
        train_implicit(prm, examples, SHORT, tmp_path)


@pytest.mark.slow
def test_it_learns_outcomes_and_step_rewards_follow(tmp_path):
    model = ImplicitPRM.initialise(TRUNK, beta=0.2)
    examples = build_outcome_examples(model, sampled(48, seed=1)).examples
    config = ImplicitConfig(epochs=3, batch_size=16, learning_rate=1e-3)
    log = train_implicit(model, examples, config, tmp_path, with_reference=False)
    assert sum(log.losses[-10:]) / 10 < 0.55 < log.losses[0]
    fresh = sampled(40, seed=2)
    outcomes = [item.trace.outcome for item in fresh]
    found = [math.fsum(rewards.steps) for rewards in model.rewards(fresh)]
    assert roc_auc_score(outcomes, found) > 0.6
