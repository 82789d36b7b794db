"""Device, type and attention of models: the same options wherever one is loaded, and what they do."""

from __future__ import annotations

import pytest
import torch
from command_line import refused

from surefoot.cli import load_settings
from surefoot.cli.commands import COMMANDS
from surefoot.cli.settings import options_of
from surefoot.models import CheckpointCard, RewardModel, load_causal, load_prm
from surefoot.models.scorer import CheckpointScorer
from surefoot.policies import Loading, load_policy

CARD = CheckpointCard(kind="prm", aggregation="min", label_source="test", base="tiny")
SETTINGS = {"device", "dtype", "attention", "batch_tokens", "device_map"}


def test_every_command_that_has_one_of_the_options_has_them_all():
    commands = dict(zip(COMMANDS, map(load_settings, COMMANDS), strict=True))
    names = {name: {option.name for option in options_of(command)} for name, command in commands.items()}
    settings = {
        name: {option.path[-1] for option in options_of(command) if option.path[0] == "loading"}
        for name, command in commands.items()
    }
    asked = {"--prm", "--policy", "--base", "--device"}
    loads_models = {name for name, some in names.items() if some & asked}
    missing = {name: SETTINGS - settings[name] for name in loads_models}
    assert {name: some for name, some in missing.items() if some} == {}
    assert {"score", "sample", "train prm", "rl"} <= loads_models


@pytest.fixture(scope="module")
def half(lab_base, tmp_path_factory):
    """A reward model and a policy saved in bfloat16."""
    folder = tmp_path_factory.mktemp("half")
    prm = RewardModel.initialise(lab_base, CARD, loading=Loading(dtype="bfloat16"))
    torch.manual_seed(0)
    torch.nn.init.normal_(prm.head.weight, std=0.1)
    prm.save(folder / "prm")
    model, tokenizer = load_causal(lab_base, Loading(dtype="bfloat16"))
    model.save_pretrained(folder / "policy")
    tokenizer.save_pretrained(folder / "policy")
    return folder


def types(model: torch.nn.Module) -> set[torch.dtype]:
    return {parameter.dtype for parameter in model.parameters()}


def test_a_checkpoint_opens_in_the_type_it_was_saved_in_unless_asked_otherwise(half, lab_items):
    as_saved, whole = load_prm(half / "prm"), load_prm(half / "prm", loading=Loading(dtype="float32"))
    assert types(as_saved.model.trunk) == {torch.bfloat16}
    assert types(whole.model.trunk) == {torch.float32}
    assert types(as_saved.model.head) == types(whole.model.head) == {torch.float32}
    for one, other in zip(as_saved.score_traces(lab_items), whole.score_traces(lab_items), strict=True):
        assert one.scores == pytest.approx(other.scores, abs=0.05)
    assert types(load_policy(half / "policy").model) == {torch.bfloat16}
    assert types(load_policy(half / "policy", loading=Loading(dtype="float32")).model) == {torch.float32}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_is_as_asked_and_scores_are_the_same(half, lab_items, attention):
    def scored(**settings: str) -> tuple[CheckpointScorer, list[float]]:
        scorer = load_prm(half / "prm", loading=Loading(dtype="float32", **settings))
        return scorer, [value for record in scorer.score_traces(lab_items) for value in record.scores]

    scorer, scores = scored(attention=attention)
    assert scorer.model.trunk.config._attn_implementation == attention
    assert scores == pytest.approx(scored()[1], abs=1e-5)


def test_a_model_spread_over_devices_scores_as_one_that_is_not(half, lab_items):
    pytest.importorskip("accelerate")
    spread = load_prm(half / "prm", loading=Loading(dtype="float32", device_map="auto"))
    whole = load_prm(half / "prm", loading=Loading(dtype="float32"))
    assert Loading(device_map="auto").options()["device_map"] == "auto"
    for one, other in zip(spread.score_traces(lab_items), whole.score_traces(lab_items), strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-5)


def test_float32_is_exact_unless_tf32_is_asked_for():
    before = torch.get_float32_matmul_precision()
    try:
        Loading(tf32=True).options()
        assert torch.get_float32_matmul_precision() == "high"
        Loading().options()
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision(before)


def test_what_cannot_be_is_refused_with_the_option():
    words = ("train", "orm", "--problems", "p", "t", "--base", "lab", "--out", "x")
    assert "'device_map'" in refused(*words, "--set", "device_map=auto")
    assert "FSDP" in refused(*words, "--set", "device_map=auto")
    assert refused("sample", "p", "--policy=lab", "--dtype", "int8").startswith(
        "--dtype is 'int8'; choose auto, float32"
    )
    assert "choose auto, eager, sdpa" in refused("sample", "p", "--policy=lab", "--set", "attention=fast")
