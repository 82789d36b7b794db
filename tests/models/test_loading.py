"""``load_prm`` on every kind of checkpoint that is trained here, and what it says of broken ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.worlds import critic
from surefoot import load_prm
from surefoot.errors import CheckpointError
from surefoot.models.card import CheckpointCard
from surefoot.models.kinds.classifier import RewardModel
from surefoot.models.kinds.derived import (
    CALIBRATION,
    CalibratedScorer,
    fit_calibration,
    load_calibration,
    save_calibration,
)
from surefoot.models.kinds.generative import load_verifier
from surefoot.models.kinds.implicit import ImplicitPRM
from surefoot.models.loading import identifying_files
from surefoot.models.lora import Lora, add_adapter
from surefoot.models.scorer import CheckpointScorer, Scorer
from surefoot.policies.devices import Loading
from surefoot.protocols import StepScorer
from surefoot.records import StepScores

CARD = CheckpointCard(kind="prm", aggregation="product", label_source="test", base="tiny")
FORM = critic.FORMAT
VERIFIER = CARD.model_copy(
    update={"family": "generative", "aggregation": "last", "score_means": "correctness"}
)


def shaken(model: torch.nn.Module) -> None:
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)


def close(one: StepScores, other: StepScores) -> None:
    """Equal up to rounding: passes of another size round otherwise."""
    known = [[score is not None for score in record.scores] for record in (one, other)]
    assert known[0] == known[1]
    assert [s for s in one.scores if s is not None] == pytest.approx(
        [s for s in other.scores if s is not None], abs=1e-5
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory, lab_base) -> Path:
    """One checkpoint of each kind. The verifier writes nothing that can be read; loading is the point."""
    folder = tmp_path_factory.mktemp("kinds")
    classifier = RewardModel.initialise(lab_base, CARD)
    torch.manual_seed(1)
    torch.nn.init.normal_(classifier.head.weight)
    classifier.save(folder / "classifier")
    implicit = ImplicitPRM.initialise(lab_base)
    shaken(implicit.policy)
    implicit.save(folder / "implicit")
    implicit.save(folder / "named", with_reference=False)
    tokenizer = AutoTokenizer.from_pretrained(lab_base)
    tokenizer.add_tokens(list(critic.PIECES))
    policy = AutoModelForCausalLM.from_pretrained(lab_base)
    policy.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    policy.save_pretrained(folder / "generative")
    tokenizer.save_pretrained(folder / "generative")
    (folder / "generative" / "verifier.json").write_text(FORM.model_dump_json())
    (folder / "generative" / "surefoot.json").write_text(VERIFIER.model_dump_json())
    return folder


@pytest.fixture
def copy(folder, tmp_path):
    """A checkpoint that a test may spoil."""

    def copied(kind: str) -> Path:
        return Path(shutil.copytree(folder / kind, tmp_path / kind))

    return copied


KINDS = {
    "classifier": ("surefoot", lambda path: Scorer(RewardModel.load(path), name="classifier")),
    "implicit": ("implicit", ImplicitPRM.load),
    "named": ("implicit", ImplicitPRM.load),
    "generative": ("generative", load_verifier),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_opened_and_scores_as_its_own_loader_does(folder, lab_items, kind):
    family, own = KINDS[kind]
    some = lab_items[:3]
    found = load_prm(folder / kind)
    assert isinstance(found, StepScorer)
    assert isinstance(found, CheckpointScorer)
    assert (found.card.family, found.name) == (family, kind)
    expected = own(folder / kind).score_traces(some)
    assert found.score_traces(some) == expected
    [pasted] = found.score(lab_items[0].problem, [lab_items[0].trace.text])
    close(pasted, expected[0])
    assert load_prm(folder / kind, family=family).card == found.card


@pytest.mark.parametrize("kind", ["classifier", "implicit", "generative"])
def test_the_type_of_the_weights_can_be_chosen(folder, lab_items, kind):
    whole, half = load_prm(folder / kind), load_prm(folder / kind, loading=Loading(dtype="bfloat16"))
    model = {
        "classifier": lambda: half.model.trunk,
        "implicit": lambda: half.reference,
        "generative": lambda: half.policy.model,
    }[kind]()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    if kind == "generative":
        return
    for one, other in zip(whole.score_traces(lab_items), half.score_traces(lab_items), strict=True):
        assert one.scores == pytest.approx(other.scores, abs=0.1)


def test_an_adapter_finds_its_base_or_is_told_where_it_is(lab_base, lab_items, tmp_path):
    pytest.importorskip("peft")
    base = Path(shutil.copytree(lab_base, tmp_path / "base"))
    model = RewardModel.initialise(base, CARD)
    add_adapter(model.trunk, Lora(rank=2, alpha=4), seed=0)
    shaken(model)
    model.save(tmp_path / "prm")
    expected = load_prm(tmp_path / "prm").score_traces(lab_items)
    base.rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=r"adapter alone, and its base '.*base' .* with base="):
        load_prm(tmp_path / "prm")
    assert load_prm(tmp_path / "prm", base=tmp_path / "elsewhere").score_traces(lab_items) == expected
    stated = json.loads((tmp_path / "prm" / "adapter_config.json").read_text())
    for lie in ({"r": 10**7}, {"r": None}, {"rank_pattern": {"q_proj": 10**9}}, {"target_modules": 7}):
        (tmp_path / "prm" / "adapter_config.json").write_text(json.dumps(stated | lie))
        with pytest.raises(CheckpointError):
            load_prm(tmp_path / "prm", base=tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        ("classifier", {"reference": "other"}, "reference='other' is for implicit rewards"),
        ("classifier", {"chains": 4}, "chains=4 is for generative verifiers; this is a step classifier"),
        ("classifier", {"base": "other"}, "base='other' is for adapters; this is whole"),
        ("implicit", {"chains": 4}, "this is an implicit reward model"),
        ("generative", {"reference": "other"}, "this is a generative verifier"),
        ("classifier", {"family": "implicit"}, "family 'surefoot' is not 'implicit'"),
        ("implicit", {"family": "surefoot"}, "family 'implicit' is not 'surefoot'"),
        ("implicit", {"calibrated": True}, "has no calibration.json"),
    ],
)
def test_options_that_a_kind_does_not_have_are_refused(folder, kind, options, says):
    with pytest.raises(CheckpointError, match=says):
        load_prm(folder / kind, **options)


def test_several_chains_are_drawn(folder):
    assert load_prm(folder / "generative", chains=4).chains == 4


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("classifier", "head.safetensors"),
        ("classifier", "model.safetensors"),
        ("implicit", "implicit.json"),
        ("implicit", "model.safetensors"),
        ("generative", "verifier.json"),
        ("generative", "model.safetensors"),
    ],
)
@pytest.mark.parametrize("broken", [False, True])
def test_a_missing_or_broken_file_is_named(copy, kind, name, broken):
    directory = copy(kind)
    if broken:
        (directory / name).write_text("broken")
    else:
        (directory / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        load_prm(directory)


def test_a_card_of_no_kind_that_is_trained_here(copy):
    directory = copy("classifier")
    card = json.loads((directory / "surefoot.json").read_text())
    (directory / "surefoot.json").write_text(json.dumps(card | {"family": "other"}))
    with pytest.raises(
        CheckpointError, match=r"family 'other' is none .* 'surefoot', 'implicit', 'generative'"
    ):
        load_prm(directory)
    (directory / "surefoot.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"surefoot\.json"):
        load_prm(directory)


def test_a_reference_that_has_moved(copy, lab_base, lab_items, tmp_path):
    expected = load_prm(copy("implicit")).score_traces(lab_items)
    directory = tmp_path / "implicit"
    moved = (directory / "reference").rename(tmp_path / "moved")
    with pytest.raises(CheckpointError, match=r"the reference .* is missing or broken.* with reference="):
        load_prm(directory)
    assert load_prm(directory, reference=moved).score_traces(lab_items) == expected
    with pytest.raises(CheckpointError, match="other weights than the one that was trained against"):
        load_prm(directory, reference=directory)


@pytest.mark.parametrize("kind", ["classifier", "implicit"])
def test_scores_are_raw_unless_calibrated_ones_are_asked_for(copy, lab_items, kind):
    directory = copy(kind)
    raw = load_prm(directory).score_traces(lab_items)
    steps = [score for record in raw for score in record.scores]
    good = [float(number % 3 > 0) for number in range(len(steps))]
    fitted = fit_calibration("isotonic", steps, good, split="held-out", trace_ids=[r.trace_id for r in raw])
    save_calibration(directory, fitted)
    assert load_prm(directory).score_traces(lab_items) == raw
    found = load_prm(directory, calibrated=True)
    assert isinstance(found, CheckpointScorer)
    expected = CalibratedScorer(load_prm(directory), load_calibration(directory)).score_traces(lab_items)
    assert found.score_traces(lab_items) == expected
    assert [record.scores for record in expected] != [record.scores for record in raw]
    assert {record.scorer for record in expected} == {found.name} == {f"{kind}+isotonic"}
    [pasted] = found.score(lab_items[0].problem, [lab_items[0].trace.text])
    close(pasted, expected[0])
    rule = {"classifier": lambda s: torch.tensor(s).double().prod().item(), "implicit": min}[kind]
    assert found.aggregate(pasted) == pytest.approx(rule(pasted.scores), abs=1e-6)


def test_the_files_that_tell_checkpoints_apart(folder, copy):
    names = {kind: set(identifying_files(folder / kind)) for kind in ("classifier", "implicit", "generative")}
    assert names == {
        "classifier": {"surefoot.json", "head.safetensors"},
        "implicit": {"surefoot.json", "implicit.json"},
        "generative": {"surefoot.json", "verifier.json"},
    }
    directory = copy("classifier")
    (directory / CALIBRATION).write_text("{}")
    assert CALIBRATION in identifying_files(directory)
    (directory / "surefoot.json").unlink()  # a published one has no such file: its weights tell it
    assert {"config.json", "model.safetensors"} <= set(identifying_files(directory))


def test_several_names_are_an_ensemble(folder, lab_items):
    some = lab_items[:3]
    ensemble = load_prm([folder / "classifier", str(folder / "classifier")])
    assert isinstance(ensemble, CheckpointScorer)
    assert (ensemble.name, ensemble.card.aggregation) == ("classifier+classifier", "product")
    alone = load_prm([folder / "classifier"])
    assert isinstance(alone, Scorer)
    for record, one in zip(ensemble.score_traces(some), alone.score_traces(some), strict=True):
        assert record.scores == one.scores
        assert record.usage == one.usage + one.usage
    with pytest.raises(CheckpointError, match="mean different things: correctness, value"):
        load_prm([folder / "classifier", folder / "generative"])
    with pytest.raises(CheckpointError, match="no ensemble of nothing"):
        load_prm([])
    files = identifying_files([folder / "classifier", folder / "implicit"])
    assert set(files) > {"0/surefoot.json", "1/implicit.json"}
