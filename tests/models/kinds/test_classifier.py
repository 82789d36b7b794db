import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from surefoot.errors import CheckpointError, ScoreError
from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import Encoding, encode_traces
from surefoot.models.kinds.classifier import RewardModel
from surefoot.models.loading import load_prm
from surefoot.models.scorer import Scorer
from surefoot.protocols import ProblemTrace, StepScorer
from surefoot.records import Problem, Trace
from surefoot.segment import Line, Sentence, segment_trace

CARD = CheckpointCard(
    kind="prm", aggregation="product", score_means="correctness", label_source="test", base="tiny"
)


def random_model(base: Path, card: CheckpointCard = CARD) -> RewardModel:
    """A reward model whose head is random too, so that scores differ."""
    model = RewardModel.initialise(base, card)
    torch.manual_seed(1)
    torch.nn.init.normal_(model.head.weight)
    return model.eval()


@pytest.fixture(params=["lab_base", "gpt2_base"])
def model(request) -> RewardModel:
    return random_model(request.getfixturevalue(request.param))


@pytest.fixture
def checkpoint(lab_base, tmp_path) -> Path:
    random_model(lab_base).save(tmp_path / "prm")
    return tmp_path / "prm"


def drop_checksums(checkpoint: Path) -> None:
    """Make the card one of earlier versions, which stated none."""
    card = json.loads((checkpoint / "surefoot.json").read_text())
    assert set(card.pop("weights")) == {"model.safetensors", "head.safetensors"}
    (checkpoint / "surefoot.json").write_text(json.dumps(card))


def scores_of(scorer: Scorer, items) -> list[tuple[float | None, ...]]:
    return [record.scores for record in scorer.score_traces(items)]


def test_save_and_load_give_equal_scores(model, lab_items, tmp_path):
    model.save(tmp_path / "prm")
    loaded = load_prm(tmp_path / "prm")
    assert isinstance(loaded, StepScorer)
    assert scores_of(loaded, lab_items) == scores_of(Scorer(model, name="m"), lab_items)
    assert loaded.name == "prm"
    assert not loaded.model.training


def test_a_checkpoint_is_safetensors_and_json(checkpoint):
    names = {path.name for path in checkpoint.iterdir()}
    assert {
        "config.json",
        "model.safetensors",
        "head.safetensors",
        "surefoot.json",
        "tokenizer.json",
    } <= names
    assert {Path(name).suffix for name in names} <= {".json", ".safetensors", ".jinja", ".txt"}
    assert set(load_file(checkpoint / "head.safetensors")) == {"weight", "bias"}


def test_the_card_says_what_the_checkpoint_is(checkpoint):
    assert json.loads((checkpoint / "surefoot.json").read_text()) == {
        "format": 1,
        "family": "surefoot",
        "kind": "prm",
        "encoding": {"template": "{problem}\n", "chat": False, "system": None, "max_length": 128},
        "aggregation": "product",
        "score_means": "correctness",
        "label_source": "test",
        "reads": ["reasoning", "text", "calls", "observations"],
        "base": "tiny",
        "frozen_trunk": False,
        "weights": {
            name: hashlib.sha256((checkpoint / name).read_bytes()).hexdigest()
            for name in ("head.safetensors", "model.safetensors")
        },
    }


@pytest.mark.parametrize("name", ["surefoot.json", "head.safetensors", "config.json", "model.safetensors"])
def test_a_missing_file_is_named(checkpoint, name):
    (checkpoint / name).unlink()
    with pytest.raises(CheckpointError, match="model_type" if name == "config.json" else name):
        RewardModel.load(checkpoint)


@pytest.mark.parametrize("name", ["surefoot.json", "head.safetensors", "config.json", "model.safetensors"])
def test_a_broken_file_is_named(checkpoint, name):
    (checkpoint / name).write_text("broken")
    with pytest.raises(CheckpointError, match=name):
        RewardModel.load(checkpoint)


def test_a_missing_tokenizer_is_an_error_of_the_checkpoint(checkpoint):
    (checkpoint / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="tokenizer"):
        RewardModel.load(checkpoint)


def test_a_card_of_another_family_is_refused(checkpoint):
    card = json.loads((checkpoint / "surefoot.json").read_text())
    (checkpoint / "surefoot.json").write_text(json.dumps(card | {"family": "other"}))
    with pytest.raises(CheckpointError, match="family"):
        RewardModel.load(checkpoint)


def test_a_head_of_another_size_is_refused(checkpoint):
    drop_checksums(checkpoint)
    save_file({"weight": torch.zeros(1, 7), "bias": torch.zeros(1)}, checkpoint / "head.safetensors")
    with pytest.raises(CheckpointError, match=r"head\.safetensors is not the head"):
        RewardModel.load(checkpoint)


def test_trunk_weights_that_are_missing_are_not_made_up(checkpoint):
    drop_checksums(checkpoint)
    weights = load_file(checkpoint / "model.safetensors")
    del weights["norm.weight"]
    save_file(weights, checkpoint / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"norm\.weight"):
        RewardModel.load(checkpoint)


def test_a_folder_that_is_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match=r"surefoot\.json is missing"):
        load_prm(tmp_path)
    with pytest.raises(CheckpointError, match="nowhere"):
        RewardModel.initialise(tmp_path / "nowhere" / "at" / "all", CARD)


def test_an_untrained_model_scores_one_half(lab_base, gpt2_base, lab_items):
    for base in (lab_base, gpt2_base):
        untrained = Scorer(RewardModel.initialise(base, CARD), name="m")
        assert {score for record in scores_of(untrained, lab_items) for score in record} == {0.5}


def test_max_length_is_capped_to_the_context(lab_base, gpt2_base):
    for base in (lab_base, gpt2_base):
        assert RewardModel.initialise(base, CARD).card.encoding.max_length == 128
    short = CARD.model_copy(update={"encoding": Encoding(max_length=50)})
    assert RewardModel.initialise(lab_base, short).card.encoding.max_length == 50


def test_a_batch_equals_one_trace_at_a_time(model, lab_items):
    assert (model.tokenizer.pad_token is None) == (model.trunk.config.model_type == "gpt2")
    together = scores_of(Scorer(model, name="m"), lab_items)
    assert len({len(encoded.ids) for encoded in encode(model, lab_items)}) > 1, "padding is exercised"
    for item, scores, encoded in zip(lab_items, together, encode(model, lab_items), strict=True):
        with torch.no_grad():
            ids = torch.tensor([encoded.ids])
            hidden = model.trunk(input_ids=ids).last_hidden_state[0, list(encoded.positions)]
            alone = torch.sigmoid(model.head(hidden))[:, 0]
        assert scores == pytest.approx(alone.tolist(), abs=1e-5)
        assert len(scores) == len(item.trace.steps)
    assert len({score for scores in together for score in scores}) > 20


def encode(model: RewardModel, items):
    return encode_traces(model.tokenizer, model.card.encoding, items)


@pytest.mark.slow
@pytest.mark.parametrize("batch_tokens", [1, 100, 400])
def test_the_size_of_batches_changes_neither_order_nor_scores(model, lab_items, batch_tokens):
    cut = Scorer(model, name="m", batch_tokens=batch_tokens).score_traces(lab_items)
    whole = Scorer(model, name="m").score_traces(lab_items)
    assert [record.trace_id for record in cut] == [item.trace.id for item in lab_items]
    for small, large in zip(cut, whole, strict=True):
        assert small.scores == pytest.approx(large.scores, abs=1e-5)
        assert small.usage == large.usage


def test_later_steps_do_not_change_earlier_scores(model, lab_items):
    item = max(lab_items, key=lambda one: len(one.trace.steps))
    lines = item.trace.text.splitlines(keepends=True)
    shuffled = segment_trace(Trace(problem_id="p", text="".join([*lines[:2], *lines[:1:-1]])), Line())
    scorer = Scorer(model, name="m")
    one, other = scores_of(scorer, [item, ProblemTrace(problem=item.problem, trace=shuffled)])
    assert one[:2] == pytest.approx(other[:2], abs=1e-5)
    assert one[2:] != pytest.approx(other[2:], abs=1e-5)


def test_equal_inputs_are_computed_once(model, lab_items):
    first, second = lab_items[0], lab_items[1]
    twin = ProblemTrace(problem=first.problem, trace=first.trace.model_copy(update={"id": "twin"}))
    records = Scorer(model, name="m").score_traces([first, second, twin])
    assert [record.trace_id for record in records] == [first.trace.id, second.trace.id, "twin"]
    assert records[0].scores == records[2].scores
    read = [trace.ids[: trace.positions[-1] + 1] for trace in encode(model, [first, second])]
    distinct = {ids[: end + 1] for ids in read for end in range(len(ids))}
    tokens = [record.usage.verifier_tokens for record in records]
    assert (sum(tokens), tokens[2]) == (len(distinct), 0)


def test_what_lies_beyond_the_context_is_unscored_with_a_reason(lab_base, lab_items):
    short = CARD.model_copy(update={"encoding": Encoding(max_length=20)})
    longest = max(lab_items, key=lambda item: len(item.trace.text))
    records = Scorer(random_model(lab_base, short), name="m").score_traces([longest, *lab_items])
    assert records[0].scores[0] is not None
    assert records[0].scores[-1] is None
    assert f"{records[0].scores.count(None)} steps" in records[0].unscored_reason
    assert "20 tokens" in records[0].unscored_reason
    assert records[0].usage.verifier_tokens <= 20
    full = scores_of(Scorer(random_model(lab_base), name="m"), lab_items)
    for record, scores in zip(records[1:], full, strict=True):
        kept = [score for score in record.scores if score is not None]
        assert kept == pytest.approx(scores[: len(kept)], abs=1e-5)


def test_a_trace_of_which_nothing_fits_spends_nothing_wrong(lab_base, lab_items):
    short = CARD.model_copy(update={"encoding": Encoding(max_length=8)})
    records = Scorer(random_model(lab_base, short), name="m").score_traces(lab_items)
    assert {score for record in records for score in record.scores} == {None}
    assert all(record.unscored_reason for record in records)


def test_pasted_solutions_are_cut_and_scored(model):
    scorer = Scorer(model, name="m")
    task = "Start with 2. Add 2."
    lines, paragraphs = scorer.score(task, ["2\n2 + 2\n2 + 2 = 4", "2\n2 + 2\n\n2 + 2 = 4"])
    assert (len(lines.scores), len(paragraphs.scores)) == (3, 2)
    [sentences] = scorer.score(Problem(text=task), ["Start with 2. Add 2."], segmenter=Sentence())
    assert len(sentences.scores) == 2
    assert all(0 < score < 1 for score in [*lines.scores, *paragraphs.scores])
    assert scorer.aggregate(lines) == pytest.approx(lines.scores[0] * lines.scores[1] * lines.scores[2])
    with pytest.raises(ScoreError, match="empty"):
        scorer.score(task, [" \n"])
    assert scorer.score(task, []) == []


def test_saving_again_replaces_the_checkpoint(checkpoint, lab_items, tmp_path):
    model = RewardModel.load(checkpoint)
    torch.nn.init.zeros_(model.head.weight)
    shutil.copytree(checkpoint, tmp_path / "old")
    model.save(checkpoint)
    assert {score for record in scores_of(load_prm(checkpoint), lab_items) for score in record} == {0.5}
    assert {score for record in scores_of(load_prm(tmp_path / "old"), lab_items) for score in record} != {0.5}


def flip(path: Path, at: int = -1) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["model.safetensors", "head.safetensors"])
def test_a_flipped_bit_in_the_weights_is_found(checkpoint, name):
    flip(checkpoint / name)
    with pytest.raises(CheckpointError, match=f"{name} is damaged: its checksum"):
        load_prm(checkpoint)


def test_a_checkpoint_without_checksums_loads(checkpoint, lab_items):
    before = scores_of(load_prm(checkpoint), lab_items)
    drop_checksums(checkpoint)
    assert scores_of(load_prm(checkpoint), lab_items) == before


@pytest.mark.parametrize("part", ["trunk", "head"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_do_not_load(lab_base, tmp_path, part, value):
    model = random_model(lab_base)
    with torch.no_grad():
        next(getattr(model, part).parameters()).view(-1)[3] = value
    model.save(tmp_path / "prm")
    with pytest.raises(CheckpointError, match=r"weight '.*' has values that are not finite"):
        load_prm(tmp_path / "prm")


def test_scores_that_overflow_are_missing_with_the_count(lab_base, lab_items):
    model = random_model(lab_base)
    with torch.no_grad():
        model.head.bias.fill_(float("nan"))
    for item, record in zip(lab_items, Scorer(model, name="m").score_traces(lab_items), strict=True):
        steps = len(item.trace.steps)
        assert record.scores == (None,) * steps
        assert record.unscored_reason == f"{steps} of {steps} scores were not finite (NaN or infinity)"
