"""ReasonEval: golden tokens, and scores by the authors' own index arithmetic on a full forward."""

import pytest
import torch
from published_checkpoints import (
    BATCH,
    PIECES,
    TINY,
    close,
    hold_later_steps_apart,
    item,
    piece_tokenizer,
    pieces,
    scores_of,
    states,
)
from published_inputs import reasoneval_reads
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaModel,
    LlamaPreTrainedModel,
    MistralConfig,
    MistralModel,
    MistralPreTrainedModel,
)

from surefoot import load_prm
from surefoot.errors import CheckpointError

BOS = PIECES.index("<s>")
STEPS = [["2"], ["4", "so 4!", "4"], ["2", "3", "9-1=8", "8"]]


class ReasonEval_7B(MistralPreTrainedModel):  # noqa: N801 - the published name
    def __init__(self, config):
        super().__init__(config)
        self.model = MistralModel(config)
        self.score_head = nn.Linear(config.hidden_size, config.score_dimension, bias=config.use_bias)
        self.post_init()

    def forward(self, **inputs):
        return self.score_head(self.model(**inputs)[0])


class ReasonEval_34B(LlamaPreTrainedModel):  # noqa: N801 - the published name
    def __init__(self, config):
        super().__init__(config)
        self.model = LlamaModel(config)
        self.score_head = nn.Linear(config.hidden_size, config.score_dim, bias=config.bias)
        self.post_init()

    def forward(self, **inputs):
        return self.score_head(self.model(**inputs)[0])


def save(directory, size, **changes):
    torch.manual_seed(6)
    if size == "7B":
        model = ReasonEval_7B(MistralConfig(**TINY | changes, score_dimension=3, use_bias=True))
    else:
        model = ReasonEval_34B(LlamaConfig(**TINY | changes, score_dim=3, bias=False))
    model.eval().save_pretrained(directory)
    piece_tokenizer(pad="<s>" if size == "7B" else "<pad>").save_pretrained(directory)
    return model


@pytest.fixture(scope="module", params=["7B", "34B"])
def checkpoint(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("evaluator")
    return directory, save(directory, request.param), request.param


@pytest.fixture(scope="module")
def scorer(checkpoint):
    return load_prm(checkpoint[0])


def golden(question, steps, size):
    """The prompt, then the steps; the 7B is read at the last token but one of each, the 34B at the last."""
    ids = [BOS, *pieces(f"▁Question:\n{question}\nAnswer:\nLet's▁think▁step▁by▁step.\n")]
    reads = []
    for step in steps:
        ids += pieces("▁" + step.replace(" ", "▁"))
        reads.append(len(ids) - (2 if size == "7B" else 1))
    return ids, reads


def test_golden_tokens_and_positions(checkpoint, scorer):
    [encoded] = scorer.model.encode([item("1+1?", ["2", "so 2"])])
    text = "".join(scorer.model.tokenizer.convert_ids_to_tokens(encoded.ids))
    assert text == "<s>▁Question:\n1+1?\nAnswer:\nLet's▁think▁step▁by▁step.\n▁2▁so▁2"
    assert (list(encoded.ids), list(encoded.positions)) == golden("1+1?", ["2", "so 2"], checkpoint[2])
    read = [scorer.model.tokenizer.convert_ids_to_tokens(encoded.ids[at]) for at in encoded.positions]
    assert read == (["▁", "▁"] if checkpoint[2] == "7B" else ["2", "2"])


@pytest.mark.parametrize("side", ["left", "right"])
def test_scores_of_the_plain_forward(checkpoint, scorer, side):
    _, model, size = checkpoint
    written = [golden(one.problem.text, texts, size) for one, texts in zip(BATCH, STEPS, strict=True)]
    for one, texts, (ids, reads) in zip(BATCH, STEPS, written, strict=True):
        assert reasoneval_reads(scorer.model.tokenizer, one.problem.text, texts, size) == (ids, reads)
    logits = states(model, [ids for ids, _ in written], side)
    chances = [row[reads].softmax(-1) for row, (_, reads) in zip(logits, written, strict=True)]
    close(scores_of(scorer, BATCH), [(row[:, 1] + row[:, 2]).tolist() for row in chances])


def test_later_steps_change_nothing(scorer):
    hold_later_steps_apart(scorer)


def test_a_separator_in_a_step_is_text(checkpoint, scorer):
    mark = scorer.model.tokenizer.pad_token
    [encoded] = scorer.model.encode([item("1+1?", [f"a{mark}b", "2"])])
    assert len(encoded.positions) == 2
    text = "".join(scorer.model.tokenizer.convert_ids_to_tokens(encoded.ids))
    assert text.endswith(f"▁a<▁{mark[1:]}b▁2")


def test_card_and_context(scorer, tmp_path):
    assert (scorer.card.family, scorer.card.aggregation) == ("reasoneval", "min")
    save(tmp_path, "34B", max_position_embeddings=60)
    [record] = load_prm(tmp_path).score_traces([item("1+1?", ["2", "so 2" * 4])])
    assert (record.scores[0] is None, record.scores[1]) == (False, None)
    assert "context of 60 tokens" in record.unscored_reason


def test_a_tokenizer_without_pad_token_is_refused(tmp_path):
    save(tmp_path, "34B")
    piece_tokenizer(pad=None).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="pad_token"):
        load_prm(tmp_path)
