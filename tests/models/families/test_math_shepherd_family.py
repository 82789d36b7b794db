"""Math-Shepherd: golden tokens, and scores against a full forward of transformers' Mistral."""

import pytest
import torch
from published_checkpoints import (
    BATCH,
    PIECES,
    TINY,
    byte_tokenizer,
    close,
    hold_later_steps_apart,
    item,
    pieces,
    scores_of,
    states,
)
from published_checkpoints import save_math_shepherd as save
from transformers import MistralConfig, MistralForCausalLM

from surefoot import load_prm
from surefoot.errors import CheckpointError

BOS, TAG = PIECES.index("<s>"), PIECES.index("▁ки")
PLUS, MINUS = PIECES.index("▁+"), PIECES.index("▁-")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("hub") / "math-shepherd-mistral-7b-prm"
    return directory, save(directory)


@pytest.fixture(scope="module")
def scorer(checkpoint):
    return load_prm(checkpoint[0])


def golden(question, steps):
    """Question, a space, and the steps, each with its tag, joined by line ends."""
    ids, reads = [BOS, *pieces("▁" + question.replace(" ", "▁") + "▁")], []
    for number, step in enumerate(steps):
        ids += [*pieces("\n" * (number > 0) + step.replace(" ", "▁")), TAG]
        reads.append(len(ids) - 1)
    return ids, reads


def test_golden_tokens_and_positions(scorer):
    [encoded] = scorer.model.encode([item("1+1?", ["2", "so 2"])])
    tokens = scorer.model.tokenizer.convert_ids_to_tokens(encoded.ids)
    assert " ".join(tokens) == "<s> ▁ 1 + 1 ? ▁ 2 ▁ки \n s o ▁ 2 ▁ки"
    assert encoded.positions == (8, 14)
    assert (list(encoded.ids), list(encoded.positions)) == golden("1+1?", ["2", "so 2"])


@pytest.mark.parametrize("side", ["left", "right"])
def test_scores_of_the_plain_forward(checkpoint, scorer, side):
    steps = [["2"], ["4", "so 4!", "4"], ["2", "3", "9-1=8", "8"]]
    written = [golden(one.problem.text, texts) for one, texts in zip(BATCH, steps, strict=True)]
    logits = states(checkpoint[1], [ids for ids, _ in written], side)
    expected = [
        row[reads][:, [PLUS, MINUS]].softmax(-1)[:, 0].tolist()
        for row, (_, reads) in zip(logits, written, strict=True)
    ]
    close(scores_of(scorer, BATCH), expected)
    close([scores_of(scorer, [one])[0] for one in BATCH], expected)
    assert max(map(max, expected)) - min(map(min, expected)) > 0.01


@pytest.mark.parametrize(("window", "shared"), [(8, False), (64, True)])
def test_a_sliding_window_is_that_of_the_plain_forward(tmp_path, window, shared):
    """Traces longer than the window are padded together, within it their beginnings are read once."""
    model = save(tmp_path, sliding_window=window)
    scorer = load_prm(tmp_path, family="math-shepherd")
    texts = [["2", "so 2", "then 2+2=4"], ["2", "so 2", "then 9-1=8", "8"], ["4"]]
    written = [golden("1+1?", steps) for steps in texts]
    assert max(len(ids) for ids, _ in written) > 8
    expected, unbounded = [], []
    with torch.no_grad():
        for sliding, rows in ((window, expected), (None, unbounded)):
            alone = MistralForCausalLM(MistralConfig(**TINY, sliding_window=sliding)).eval()
            alone.load_state_dict(model.state_dict())
            for ids, reads in written:  # one trace at a time, without padding
                logits = alone(torch.tensor([ids])).logits[0][reads]
                rows.append(logits[:, [PLUS, MINUS]].softmax(-1)[:, 0].tolist())
    batch = [item("1+1?", steps) for steps in texts]
    close(scores_of(scorer, batch), expected)
    close([scores_of(scorer, [one])[0] for one in batch], expected)
    tokens = sum(record.usage.verifier_tokens for record in scorer.score_traces(batch))
    assert (tokens < sum(len(ids) for ids, _ in written)) == shared
    assert (expected[1] == pytest.approx(unbounded[1], abs=1e-5)) == shared  # the small window matters


def test_only_two_rows_of_the_head_are_kept(checkpoint, scorer):
    assert len(list(checkpoint[0].glob("model-*.safetensors"))) > 1
    assert torch.equal(scorer.model.head.weight, checkpoint[1].lm_head.weight[[PLUS, MINUS]])
    assert not any("lm_head" in name for name, _ in scorer.model.named_parameters())


def test_later_steps_change_nothing(scorer):
    hold_later_steps_apart(scorer)


def test_a_tag_in_a_step_is_text(scorer):
    [encoded] = scorer.model.encode([item("1+1?", ["2 ки ки", "so <s> ки, 2"])])
    text = "".join(scorer.model.tokenizer.convert_ids_to_tokens(encoded.ids))
    assert text == "<s>▁1+1?▁2▁к▁и▁ки\nso▁<▁s>▁к▁и,▁2▁ки"
    assert [encoded.ids[at] for at in encoded.positions] == [TAG, TAG]
    assert encoded.ids.count(TAG) == 2


def test_card_and_context(tmp_path):
    save(tmp_path, max_position_embeddings=14)
    scorer = load_prm(tmp_path, family="math-shepherd")
    assert (scorer.card.family, scorer.card.aggregation) == ("math-shepherd", "min")
    [record] = scorer.score_traces([item("1+1?", ["2", "so 2"])])
    assert record.scores[0] is not None
    assert record.scores[1] is None
    assert "context of 14 tokens" in record.unscored_reason


def test_tied_embeddings_serve_as_head(tmp_path):
    model = save(tmp_path, tie_word_embeddings=True)
    scorer = load_prm(tmp_path, family="math-shepherd")
    assert torch.equal(scorer.model.head.weight, model.model.embed_tokens.weight[[PLUS, MINUS]])


def test_a_plain_language_model_is_not_taken_for_a_reward_model(tmp_path):
    save(tmp_path)
    with pytest.raises(CheckpointError, match=r"plain language model.*'math-shepherd'.*family="):
        load_prm(tmp_path)
    with pytest.raises(CheckpointError, match=r"family='shepherd' is not known; choose 'math-shepherd'"):
        load_prm(tmp_path, family="shepherd")


def test_another_tokenizer_is_refused(tmp_path):
    save(tmp_path)
    byte_tokenizer(["<s>"], bos="<s>").save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"'\+ -' is 3 tokens"):
        load_prm(tmp_path, family="math-shepherd")
