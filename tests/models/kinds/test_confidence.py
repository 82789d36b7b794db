"""Training-free scores against closed forms, brute force, and a plain reading of the model token by token."""

from __future__ import annotations

import math

import pytest
import torch
from command_line import good
from hypothesis import given
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel

from surefoot.errors import CheckpointError
from surefoot.io import read_records, write_records
from surefoot.models import ConfidenceScorer, Encoding, load_causal, load_prm
from surefoot.models.encoding import encode_traces
from surefoot.models.kinds.confidence import MEASURES, lowest_group, split_measure, token_confidences
from surefoot.models.loading import identifying_files
from surefoot.records import StepScores


@pytest.fixture(scope="module")
def tiny() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=32, n_embd=8, n_layer=1, n_head=1, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    return GPT2LMHeadModel(config).eval()


@pytest.mark.parametrize(
    ("measure", "uniform", "peaked"),
    [
        # p = 1/2 on one of 32 tokens and 1/62 on each other
        ("deepconf", math.log(32), (math.log(2) + 3 * math.log(62)) / 4),
        ("self-certainty", 0.0, -math.log(32) + (math.log(2) + 31 * math.log(62)) / 32),
        ("entropy", -math.log(32), -(math.log(2) + math.log(62)) / 2),
    ],
)
def test_closed_forms(tiny, measure, uniform, peaked):
    with torch.no_grad():
        tiny.lm_head.weight.zero_()
        flat = token_confidences(tiny, torch.ones(2, 8), measure, top_k=4)
        tiny.lm_head.weight[3, 0] = math.log(31)
    states = torch.zeros(1, 8)
    states[0, 0] = 1.0
    assert flat.tolist() == pytest.approx([uniform] * 2, abs=1e-5)
    assert token_confidences(tiny, states, measure, top_k=4).item() == pytest.approx(peaked, abs=1e-5)
    # DeepConf's is not monotone: a flat tail pays more than half of the mass on one token
    assert (peaked > uniform) is (measure != "deepconf")


def test_pieces_are_the_whole(tiny):
    torch.manual_seed(1)
    states = torch.randn(9, 8)
    for measure in MEASURES:
        whole = token_confidences(tiny, states, measure)
        torch.testing.assert_close(token_confidences(tiny, states, measure, limit=64), whole)
        assert token_confidences(tiny, states[:0], measure).shape == (0,)


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=30), st.integers(1, 40))
def test_the_lowest_group_is_that_of_all_windows(values, window):
    groups = [values[at : at + window] for at in range(max(1, len(values) - window + 1))]
    expected = min(sum(group) / len(group) for group in groups)
    assert lowest_group([float(value) for value in values], window) == pytest.approx(expected, abs=1e-9)


def test_a_step_without_tokens_has_no_confidence():
    with pytest.raises(ValueError, match="empty"):
        lowest_group([], 5)


def by_token(logits: torch.Tensor, measure: str) -> float:
    """Confidence of one distribution by its definition, in float64."""
    p = logits.double().softmax(0)
    if measure == "deepconf":
        return float(-p.sort(descending=True).values[:5].log().mean())
    if measure == "entropy":
        return float((p * p.log()).sum())
    uniform = torch.full_like(p, 1 / len(p))
    return float((uniform * (uniform.log() - p.log())).sum())


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("window", [2048, 2])
def test_scores_are_those_of_a_plain_reading(lab_base, lab_items, measure, window):
    policy, tokenizer = load_causal(lab_base)
    scorer = ConfidenceScorer(policy, tokenizer, measure=measure, window=window, top_k=5)
    items = lab_items[:3]
    records = scorer.score_traces([*items, items[0]])
    for item, record in zip([*items, items[0]], records, strict=True):
        [encoded] = encode_traces(tokenizer, Encoding(), [item])
        with torch.no_grad():
            logits = policy(torch.tensor([encoded.ids])).logits[0]
        expected = []
        for first, end in encoded.written:
            tokens = [by_token(logits[at - 1], measure) for at in range(first, min(end, len(encoded.ids)))]
            size = min(window, len(tokens))
            expected.append(min(sum(tokens[at : at + size]) / size for at in range(len(tokens) - size + 1)))
        assert record.scores == pytest.approx(expected, abs=1e-4)
        assert record.scorer == f"{measure}:{lab_base.name}"
    assert sum(record.usage.verifier_tokens for record in records) < 2 * sum(
        len(one.ids) for one in encode_traces(tokenizer, Encoding(), items)
    )


def test_a_model_is_opened_by_the_name_of_its_measure(lab_base, lab_items):
    scorer = load_prm(f"deepconf:{lab_base}")
    assert (scorer.card.family, scorer.card.score_means, scorer.card.aggregation) == (
        "deepconf",
        "confidence",
        "min",
    )
    [record] = scorer.score_traces(lab_items[:1])
    assert len(record.scores) == len(lab_items[0].trace.steps)
    assert scorer.aggregate(record) == min(record.scores)
    assert any(name.endswith("safetensors") for name in identifying_files(f"entropy:{lab_base}"))
    assert split_measure(f"entropy:{lab_base}") == ("entropy", str(lab_base))
    assert [split_measure(name) for name in ("prm", "http://host", "other:x", "entropy:")] == [None] * 4
    with pytest.raises(CheckpointError, match="of a model in this process"):
        load_prm("deepconf:http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"family": "qwen"}, "family='qwen' is for reward models"),
        ({"calibrated": True}, "calibration"),
        ({"chains": 3}, "chains=3 is for generative verifiers"),
    ],
)
def test_options_of_other_kinds_are_refused(lab_base, options, message):
    with pytest.raises(CheckpointError, match=message):
        load_prm(f"deepconf:{lab_base}", **options)


def test_steps_beyond_the_context_have_no_score(lab_base, lab_items):
    policy, tokenizer = load_causal(lab_base)
    [encoded] = encode_traces(tokenizer, Encoding(), lab_items[:1])
    scorer = ConfidenceScorer(policy, tokenizer, encoding=Encoding(max_length=encoded.positions[0] + 2))
    [record] = scorer.score_traces(lab_items[:1])
    assert record.scores[0] is not None
    assert set(record.scores[1:]) == {None}
    assert "beyond the model's context" in record.unscored_reason


def test_the_command_scores_with_it(lab_base, lab_items, tmp_path):
    write_records(tmp_path / "p.jsonl", [item.problem for item in lab_items[:2]])
    write_records(tmp_path / "t.jsonl", [item.trace for item in lab_items[:2]])
    files = (
        "score",
        tmp_path / "t.jsonl",
        "--problems",
        tmp_path / "p.jsonl",
        "--out",
        tmp_path / "s.jsonl",
    )
    good(*files, "-m", f"self-certainty:{lab_base}")
    expected = load_prm(f"self-certainty:{lab_base}").score_traces(lab_items[:2])
    assert [one.scores for one in read_records(tmp_path / "s.jsonl", StepScores)] == [
        pytest.approx(one.scores, abs=1e-5) for one in expected
    ]
