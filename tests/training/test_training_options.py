"""Adapters, shared updates, held-out traces and trackers in the training loop."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from surefoot.errors import TrainingError
from surefoot.models.card import CheckpointCard
from surefoot.models.kinds.classifier import RewardModel
from surefoot.models.loading import load_prm
from surefoot.models.lora import Lora
from surefoot.models.scorer import Scorer
from surefoot.training.classifier import train
from surefoot.training.config import TrainingConfig
from surefoot.training.examples import Example


def model_on(base: Path, **fields) -> RewardModel:
    return RewardModel.initialise(
        base, CheckpointCard(kind="prm", label_source="test", base="tiny", **fields)
    )


def examples_of(model: RewardModel, items) -> list[Example]:
    return [
        Example(
            trace_id=item.trace.id,
            ids=encoded.ids,
            positions=encoded.positions,
            targets=(float(item.trace.outcome),) * len(encoded.positions),
        )
        for item, encoded in zip(items, model.encode(items), strict=True)
    ]


def digits(count: int = 4) -> list[Example]:
    """Good traces hold an even digit at the step's end, bad ones an odd digit."""
    return [
        Example(
            trace_id=f"{digit}{first}",
            ids=(1, 4 + first, 22, 4 + digit),
            positions=(3,),
            targets=(1.0 - digit % 2,),
        )
        for digit in range(10)
        for first in range(count)
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"gradient_accumulation_steps": 3},
        {"microbatch_tokens": 80},
        {"layout": "packed"},
        {"layout": "packed", "microbatch_tokens": 80},
        {"gradient_checkpointing": True},
    ],
)
def test_how_an_update_is_computed_does_not_change_it(lab_base, lab_items, tmp_path, changes):
    logs = []
    for number, settings in enumerate(({}, changes)):
        model = model_on(lab_base)
        config = TrainingConfig(epochs=2, batch_size=6, **settings)
        logs.append(train(model, examples_of(model, lab_items), config, tmp_path / str(number)))
    assert logs[1].losses == pytest.approx(logs[0].losses, rel=2e-3)
    assert logs[1].norms == pytest.approx(logs[0].norms, rel=2e-2)
    assert logs[1].tokens == logs[0].tokens


@pytest.mark.parametrize("loss", ["mse", "classes"])
def test_other_losses_learn_too(lab_base, tmp_path, loss):
    model = model_on(lab_base, head="classes" if loss == "classes" else "linear")
    config = TrainingConfig(loss=loss, epochs=20, batch_size=10, learning_rate=5e-3, head_epochs=0)
    log = train(model, digits(), config, tmp_path)
    # a zero head: three equal chances, or a score of 0, which is wrong at the 4 good of the first 10 traces
    assert log.losses[0] == pytest.approx(math.log(3) if loss == "classes" else 0.4, rel=1e-4)
    assert max(log.losses[-4:]) < 0.1


def test_a_loss_that_does_not_fit_the_head_is_refused(lab_base, tmp_path):
    with pytest.raises(TrainingError, match="'head' is 'logit'"):
        train(model_on(lab_base), digits(), TrainingConfig(loss="classes"), tmp_path)


@pytest.mark.parametrize("stop_after", [1, 5])
def test_an_adapter_is_trained_and_resumed_to_equal_numbers(lab_base, lab_items, tmp_path, stop_after):
    pytest.importorskip("peft")
    config = TrainingConfig(
        epochs=2, batch_size=4, checkpoint_every=2, lora=Lora(rank=2), learning_rate=0.02, head_epochs=1
    )
    whole = model_on(lab_base)
    before = {name: tensor.clone() for name, tensor in whole.trunk.state_dict().items()}
    examples = examples_of(whole, lab_items)
    expected = train(whole, examples, config, tmp_path / "whole")
    after = whole.trunk.state_dict()
    base_weights = {
        name.replace(".base_layer", ""): value for name, value in after.items() if "lora_" not in name
    }
    assert base_weights.keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in base_weights.items())
    assert all(value.abs().max() > 0 for name, value in after.items() if "lora_B" in name)

    def stop(done: int, total: int, loss: float) -> None:
        if done == stop_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(model_on(lab_base), examples, config, tmp_path / "cut", progress=stop)
    assert train(model_on(lab_base), examples, config, tmp_path / "cut") == expected
    files = {path.name for path in (tmp_path / "whole").iterdir()}
    assert "adapter_model.safetensors" in files
    for name in files:
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    found = load_prm(tmp_path / "whole").score_traces(lab_items)
    assert [one.scores for one in found] == [
        one.scores for one in Scorer(whole, name="m").score_traces(lab_items)
    ]


@pytest.mark.parametrize("freeze_trunk", [False, True])
def test_training_stops_when_the_held_out_auc_does_and_keeps_the_best(lab_base, tmp_path, freeze_trunk):
    train_on, held_out = digits(3), [one for one in digits(6) if int(one.trace_id[1]) >= 3]
    # the training labels turn against the held-out ones half-way: the best weights are early ones
    wrong = [Example(**{**vars(one), "targets": (1 - one.targets[0],)}) for one in train_on]
    config = TrainingConfig(
        epochs=40, batch_size=30, learning_rate=0.02, evaluate_every=1, patience=3, freeze_trunk=freeze_trunk
    )
    model = model_on(lab_base)
    log = train(model, wrong, config, tmp_path, validation=held_out)
    assert log.stopped
    assert len(log.losses) == len(log.validation) == log.best.update + 3
    assert log.best.auc == max(one.auc for one in log.validation)
    kept = train(model_on(lab_base), wrong, config, tmp_path / "again", validation=held_out)
    assert kept == log
    rows = [json.loads(line) for line in (tmp_path / "curves.jsonl").read_text().splitlines()]
    assert [row["loss"] for row in rows] == log.losses
    assert [row["validation_auc"] for row in rows] == [one.auc for one in log.validation]
    assert not (tmp_path / "best.safetensors").exists()
    with torch.no_grad():
        scores = [
            model.read(model.trunk(input_ids=torch.tensor([one.ids])).last_hidden_state[0, [3]]).item()
            for one in held_out
        ]
    good = [score for score, one in zip(scores, held_out, strict=True) if one.targets[0]]
    bad = [score for score, one in zip(scores, held_out, strict=True) if not one.targets[0]]
    auc = sum((a > b) + (a == b) / 2 for a in good for b in bad) / (len(good) * len(bad))
    assert auc == pytest.approx(log.best.auc, abs=0.02)


def test_early_stopping_needs_held_out_steps_of_both_kinds(lab_base, tmp_path):
    with pytest.raises(TrainingError, match="validation"):
        train(model_on(lab_base), digits(), TrainingConfig(patience=1), tmp_path)
    good = [one for one in digits() if one.targets == (1.0,)]
    with pytest.raises(TrainingError, match="all good"):
        train(model_on(lab_base), digits(), TrainingConfig(), tmp_path, validation=good)


def test_bfloat16_is_near_float32(lab_base, tmp_path):
    losses = []
    for number, bf16 in enumerate((False, True)):
        config = TrainingConfig(epochs=1, batch_size=10, bf16=bf16)
        losses.append(train(model_on(lab_base), digits(), config, tmp_path / str(number)).losses)
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


def test_a_tracker_that_is_unknown_or_absent_is_named(lab_base, tmp_path):
    pytest.importorskip("accelerate")
    with pytest.raises(TrainingError, match="nonsense"):
        train(model_on(lab_base), digits(), TrainingConfig(report_to=("nonsense",)), tmp_path)
    with pytest.raises(TrainingError, match="pip install dvclive"):
        train(model_on(lab_base), digits(), TrainingConfig(report_to=("dvclive",)), tmp_path)
