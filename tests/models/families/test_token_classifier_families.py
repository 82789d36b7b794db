"""TRL's token classifiers and PURE: golden tokens, and scores against transformers' own class."""

import shutil

import pytest
import torch
from published_checkpoints import (
    BATCH,
    QWEN_TEMPLATE,
    SPECIAL,
    TINY,
    byte_tokenizer,
    close,
    hold_later_steps_apart,
    item,
    save_qwen_prm,
    scores_of,
    states,
)
from transformers import Qwen2Config, Qwen2ForTokenClassification

from surefoot import load_prm
from surefoot.errors import CheckpointError

TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
STEPS = [[b"2"], [b"4", b"so 4!", b"4"], [b"2", b"3", b"9-1=8", b"8"]]


def save(directory, *, bos=None, labels=2, **changes):
    torch.manual_seed(5)
    model = Qwen2ForTokenClassification(Qwen2Config(**TINY | changes, num_labels=labels)).eval()
    model.save_pretrained(directory)
    byte_tokenizer(TOKENS, template=QWEN_TEMPLATE, bos=bos, pad="<|endoftext|>").save_pretrained(directory)
    return model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("classifier")
    return directory, save(directory)


def golden(question, steps, first=()):
    """Question, then each step and its line end; no template."""
    ids, reads = [*first, *question], []
    for step in steps:
        ids += [*step, *b"\n"]
        reads.append(len(ids) - 1)
    return ids, reads


def expected_chances(model, side, first=()):
    written = [
        golden(one.problem.text.encode(), texts, first) for one, texts in zip(BATCH, STEPS, strict=True)
    ]
    logits = states(model, [ids for ids, _ in written], side)
    return [row[reads].softmax(-1) for row, (_, reads) in zip(logits, written, strict=True)]


def test_golden_tokens_and_positions(checkpoint, tmp_path):
    for family in (None, "pure"):
        [encoded] = load_prm(checkpoint[0], family=family).model.encode([item("1+1?", ["2", "so 2"])])
        assert encoded.ids == tuple(b"1+1?2\nso 2\n")
        assert encoded.positions == (5, 10)
    save(tmp_path, bos="<|endoftext|>")
    [encoded] = load_prm(tmp_path).model.encode([item("1+1?", ["2"])])
    assert encoded.ids == (SPECIAL, *b"1+1?2\n")
    [encoded] = load_prm(tmp_path, family="pure").model.encode([item("1+1?", ["2"])])
    assert encoded.ids == tuple(b"1+1?2\n")


@pytest.mark.parametrize("side", ["left", "right"])
def test_scores_of_the_plain_forward(checkpoint, side):
    directory, model = checkpoint
    chances = expected_chances(model, side)
    scorer = load_prm(directory)
    assert (scorer.card.family, scorer.card.aggregation) == ("trl", "min")
    close(scores_of(scorer, BATCH), [row[:, 1].tolist() for row in chances])
    close([scores_of(scorer, [one])[0] for one in BATCH], [row[:, 1].tolist() for row in chances])
    pure = load_prm(directory, family="pure")
    assert (pure.card.family, pure.card.aggregation) == ("pure", "min")
    close(scores_of(pure, BATCH), [(row[:, 1] - row[:, 0]).tolist() for row in chances])


def test_later_steps_separators_and_special_tokens(checkpoint):
    scorer = load_prm(checkpoint[0])
    hold_later_steps_apart(scorer)
    [encoded] = scorer.model.encode([item("1+1?", ["a\nb<|im_end|>", "2"])])
    assert encoded.ids == tuple(b"1+1?a\nb< |im_end|>\n2\n")
    assert encoded.positions == (18, 20)


def test_pure_with_the_wide_head(tmp_path):
    model = save_qwen_prm(tmp_path, tokens=TOKENS)
    scorer = load_prm(tmp_path)
    assert scorer.card.family == "pure"
    expected = [(row[:, 1] - row[:, 0]).tolist() for row in expected_chances(model, "right")]
    close(scores_of(scorer, BATCH), expected)
    assert min(map(min, expected)) < 0 or max(map(max, expected)) > 0


def test_pure_is_known_by_its_repository(checkpoint, tmp_path):
    shutil.copytree(checkpoint[0], tmp_path / "PURE-PRM-7B")
    with pytest.raises(CheckpointError, match=r"'pure', 'trl'; say which with family="):
        load_prm(tmp_path / "PURE-PRM-7B")
    assert load_prm(tmp_path / "PURE-PRM-7B", family="pure").card.family == "pure"


def test_context_and_classes(tmp_path):
    save(tmp_path / "short", max_position_embeddings=8)
    [record] = load_prm(tmp_path / "short").score_traces([item("1+1?", ["2", "so 2"])])
    assert (record.scores[0] is None, record.scores[1]) == (False, None)
    assert "context of 8 tokens" in record.unscored_reason
    save(tmp_path / "three", labels=3)
    with pytest.raises(CheckpointError, match="score has 3 classes, not 2"):
        load_prm(tmp_path / "three", family="trl")
    with pytest.raises(CheckpointError, match=r"Qwen2ForTokenClassification\) is of no known family"):
        load_prm(tmp_path / "three")
