"""Heads, markers, adapters and the hub's conventions of the discriminative reward model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from surefoot.errors import CheckpointError
from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import Encoding
from surefoot.models.kinds.classifier import RewardModel
from surefoot.models.loading import load_prm
from surefoot.models.lora import Lora, add_adapter
from surefoot.models.scorer import Scorer


def card(**fields) -> CheckpointCard:
    return CheckpointCard(kind="prm", label_source="test", base="tiny", **fields)


def random_head(model: RewardModel) -> RewardModel:
    torch.manual_seed(1)
    torch.nn.init.normal_(model.head.weight)
    return model.eval()


def scores(model_or_scorer, items) -> list[tuple[float | None, ...]]:
    scorer = model_or_scorer if isinstance(model_or_scorer, Scorer) else Scorer(model_or_scorer, name="m")
    return [record.scores for record in scorer.score_traces(items)]


@pytest.mark.parametrize(("neutral", "expected"), [("good", 0.9), ("bad", 0.7)])
def test_the_score_of_three_classes(lab_base, neutral, expected):
    """Lightman et al.: a step with (good, neutral, bad) = (.7, .2, .1) scores .9, or .7 without neutral."""
    model = RewardModel.initialise(lab_base, card(head="classes", neutral=neutral))
    outputs = torch.tensor([[0.1, 0.2, 0.7]]).log()
    assert model.scores(outputs).tolist() == [pytest.approx(expected)]


def test_a_linear_head_gives_its_output(lab_base):
    model = RewardModel.initialise(lab_base, card(head="linear"))
    assert model.scores(torch.tensor([[1.5], [-0.25]])).tolist() == [1.5, -0.25]


@pytest.mark.parametrize("head", ["classes", "linear"])
def test_heads_are_saved_and_loaded(lab_base, lab_items, tmp_path, head):
    model = random_head(RewardModel.initialise(lab_base, card(head=head)))
    model.save(tmp_path)
    assert json.loads((tmp_path / "surefoot.json").read_text())["head"] == head
    assert scores(load_prm(tmp_path), lab_items) == scores(model, lab_items)


@pytest.mark.parametrize("base", ["lab_base", "gpt2_base"])
def test_a_marker_is_one_new_token_after_each_step(base, lab_items, tmp_path, request):
    marked = card(encoding=Encoding(marker="<extra_0>"))
    model = random_head(RewardModel.initialise(request.getfixturevalue(base), marked))
    token = model.tokenizer.convert_tokens_to_ids("<extra_0>")
    for item, encoded in zip(lab_items, model.encode(lab_items), strict=True):
        assert [encoded.ids[at] for at in encoded.positions] == [token] * len(item.trace.steps)
        assert encoded.ids.count(token) == len(item.trace.steps)
    embeddings = model.trunk.get_input_embeddings().weight
    torch.testing.assert_close(embeddings[token], embeddings[:token].mean(0))
    model.save(tmp_path)
    assert scores(load_prm(tmp_path), lab_items) == scores(model, lab_items)


def test_a_marker_that_is_cut_off_leaves_its_step_unscored(lab_base, lab_items):
    plain = RewardModel.initialise(lab_base, card()).encode(lab_items)[0]
    short = card(encoding=Encoding(marker="<extra_0>", max_length=plain.positions[0] + 2))
    [encoded] = RewardModel.initialise(lab_base, short).encode(lab_items[:1])
    assert encoded.positions == (None,) * len(lab_items[0].trace.steps)


def trained_adapter(base: Path, **fields) -> RewardModel:
    """An adapter whose weights are random, as if it had been trained."""
    model = random_head(RewardModel.initialise(base, card(**fields)))
    add_adapter(model.trunk, Lora(rank=2), seed=0)
    for name, parameter in model.trunk.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    return model.eval()


def test_a_new_adapter_changes_nothing_and_equal_seeds_give_equal_ones(lab_base, lab_items):
    pytest.importorskip("peft")
    model = random_head(RewardModel.initialise(lab_base, card()))
    before = scores(model, lab_items)
    add_adapter(model.trunk, Lora(rank=2, targets=("q_proj", "v_proj")), seed=3)
    assert scores(model, lab_items) == before
    twin = RewardModel.initialise(lab_base, card())
    add_adapter(twin.trunk, Lora(rank=2, targets=("q_proj", "v_proj")), seed=3)
    trainable = {n: p for n, p in model.trunk.named_parameters() if p.requires_grad}
    others = dict(twin.trunk.named_parameters())
    assert len(trainable) == 2 * 2 * 2
    assert all(torch.equal(value, others[name]) for name, value in trainable.items())
    with pytest.raises(CheckpointError, match="no adapter"):
        add_adapter(RewardModel.initialise(lab_base, card()).trunk, Lora(targets=("nothing",)), seed=0)


@pytest.mark.parametrize("marker", [None, "<extra_0>"])
def test_an_adapter_is_saved_alone_and_loaded_on_its_base(lab_base, lab_items, tmp_path, marker):
    pytest.importorskip("peft")
    model = trained_adapter(lab_base, encoding=Encoding(marker=marker))
    model.save(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert "adapter_model.safetensors" in names
    assert "model.safetensors" not in names
    loaded = load_prm(tmp_path)
    assert scores(loaded, lab_items) == scores(model, lab_items)
    plain = random_head(RewardModel.initialise(lab_base, card(encoding=Encoding(marker=marker))))
    assert scores(loaded, lab_items) != scores(plain, lab_items)


def test_an_adapter_without_its_base_says_so(lab_base, lab_items, tmp_path):
    pytest.importorskip("peft")
    model = trained_adapter(lab_base)
    model.save(tmp_path)
    config = tmp_path / "adapter_config.json"
    stated = json.loads(config.read_text())
    config.write_text(json.dumps(stated | {"base_model_name_or_path": str(tmp_path / "moved")}))
    with pytest.raises(CheckpointError, match="moved"):
        RewardModel.load(tmp_path)
    loaded = RewardModel.load(tmp_path, base=lab_base)
    assert scores(loaded, lab_items) == scores(model, lab_items)
