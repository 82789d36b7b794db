"""Features of a frozen trunk: those of plain reading, kept over a kill, and gone when the run is over."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaModel

from benchmarks.worlds.digits.checkpoints import build_tokenizer
from surefoot.models.card import CheckpointCard
from surefoot.models.kinds.classifier import RewardModel
from surefoot.training import classifier
from surefoot.training.classifier import FrozenFeatures, train
from surefoot.training.config import TrainingConfig
from surefoot.training.examples import Example


@pytest.fixture
def model() -> RewardModel:
    torch.manual_seed(0)
    tokenizer = build_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
    )
    card = CheckpointCard(kind="prm", label_source="test", base="tiny", frozen_trunk=True)
    made = RewardModel(LlamaModel(config), tokenizer, card).eval()
    torch.nn.init.normal_(made.head.weight)
    return made


def example(name: str, ids: tuple[int, ...], targets: dict[int, float]) -> Example:
    return Example(trace_id=name, ids=ids, positions=tuple(targets), targets=tuple(targets.values()))


EXAMPLES = [
    example("a", (1, 5, 6, 7, 8), {2: 1.0, 4: 0.0}),
    example("b", (1, 5, 6, 9), {3: 1.0}),
    example("c", (1, 4, 4), {1: 0.0, 2: 0.0}),
    example("same tokens as b, other positions", (1, 5, 6, 9), {1: 0.5}),
]


def plain_logits(model: RewardModel, one: Example) -> torch.Tensor:
    rows = torch.zeros(len(one.positions), dtype=torch.long)
    ids = torch.tensor([one.ids])
    return model(ids, torch.ones_like(ids), rows, torch.tensor(one.positions))


def test_logits_equal_those_of_the_model(model: RewardModel, tmp_path: Path) -> None:
    features = FrozenFeatures(model, EXAMPLES, tmp_path)
    expected = torch.cat([plain_logits(model, one) for one in EXAMPLES])
    torch.testing.assert_close(features.logits(EXAMPLES), expected, atol=1e-5, rtol=1e-4)


def test_what_is_on_disk_is_not_read_again(
    model: RewardModel, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "surefoot.training.classifier")
    monkeypatch.setattr(classifier, "_FILE_TOKENS", 6)
    before = FrozenFeatures(model, EXAMPLES[:2], tmp_path).logits(EXAMPLES[:2])
    again = FrozenFeatures(model, iter(EXAMPLES), tmp_path)
    read = [f"frozen trunk: {count} traces read" for count in (2, 4)]
    assert [record.getMessage() for record in caplog.records] == read
    torch.testing.assert_close(again.logits(EXAMPLES[:2]), before, rtol=0, atol=0)
    expected = torch.cat([plain_logits(model, one) for one in EXAMPLES])
    torch.testing.assert_close(again.logits(EXAMPLES), expected, atol=1e-5, rtol=1e-4)


def test_another_trunk_does_not_use_the_files(model: RewardModel, tmp_path: Path) -> None:
    FrozenFeatures(model, EXAMPLES, tmp_path)
    with torch.no_grad():
        model.trunk.embed_tokens.weight.mul_(-1)
    changed = FrozenFeatures(model, EXAMPLES, tmp_path)
    expected = torch.cat([plain_logits(model, one) for one in EXAMPLES])
    torch.testing.assert_close(changed.logits(EXAMPLES), expected, atol=1e-5, rtol=1e-4)


def test_bfloat16_reads_the_trunk_again(model: RewardModel, tmp_path: Path) -> None:
    exact = FrozenFeatures(model, EXAMPLES, tmp_path).logits(EXAMPLES)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        features = FrozenFeatures(model, EXAMPLES, tmp_path)
        expected = torch.cat([plain_logits(model, one) for one in EXAMPLES])
    rounded = features.logits(EXAMPLES)
    assert not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, expected, atol=0.02, rtol=0.02)


def test_training_moves_the_head_alone_and_leaves_no_features(model: RewardModel, tmp_path: Path) -> None:
    trunk = {name: value.clone() for name, value in model.trunk.state_dict().items()}
    head = model.head.weight.detach().clone()
    log = train(model, EXAMPLES, TrainingConfig(freeze_trunk=True, epochs=30, learning_rate=0.05), tmp_path)
    assert log.losses[-1] < log.losses[0]
    assert not torch.equal(head, model.head.weight)
    assert all(torch.equal(value, trunk[name]) for name, value in model.trunk.state_dict().items())
    assert not (tmp_path / "features").exists()
