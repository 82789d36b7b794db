"""Skywork-o1-Open-PRM: golden tokens, and scores against a full forward with the value head applied."""

import json

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
    scores_of,
    states,
)
from safetensors.torch import save_file
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from surefoot import load_prm
from surefoot.errors import CheckpointError
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Step, Trace

BOS = SPECIAL
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


class Valued(nn.Module):
    """A causal model with a linear value head, as the authors' wrapper has it."""

    def __init__(self, model):
        super().__init__()
        self.model, self.summary = model, nn.Linear(32, 1)

    def forward(self, **inputs):
        return self.summary(self.model(**inputs, output_hidden_states=True).hidden_states[-1])


def save(directory, *, bos="<|endoftext|>", **changes):
    torch.manual_seed(4)
    model = Valued(Qwen2ForCausalLM(Qwen2Config(**TINY | changes))).eval()
    model.model.save_pretrained(directory)
    head = {f"v_head.summary.{name}": tensor for name, tensor in model.summary.state_dict().items()}
    save_file(model.model.state_dict() | head, directory / "model.safetensors", {"format": "pt"})
    config = json.loads((directory / "config.json").read_text()) | {"architectures": ["Qwen2ForPrmModel"]}
    (directory / "config.json").write_text(json.dumps(config))
    byte_tokenizer(TOKENS, template=QWEN_TEMPLATE, bos=bos, pad="<|endoftext|>").save_pretrained(directory)
    return model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("skywork")
    return directory, save(directory)


@pytest.fixture(scope="module")
def scorer(checkpoint):
    return load_prm(checkpoint[0])


def golden(question, steps):
    """The authors' ``prepare_input``: beginning, question, line end; then each step and a line end, and one
    more for each blank line between steps."""
    ids, reads = [BOS, *question, *b"\n"], []
    for step in steps:
        ids += [*(b"\n" if reads else b""), *step, *b"\n"]
        reads.append(len(ids) - 1)
    return ids, reads


def test_golden_tokens_and_positions(scorer):
    [encoded] = scorer.model.encode([item("1+1?", ["2", "so 2"], join="\n")])
    assert scorer.model.tokenizer.decode(encoded.ids) == "<|endoftext|>1+1?\n2\nso 2\n"
    assert encoded.ids == (BOS, *b"1+1?\n2\nso 2\n")
    assert encoded.positions == (7, 12)


@pytest.mark.parametrize("side", ["left", "right"])
def test_scores_of_the_plain_forward(checkpoint, scorer, side):
    steps = [[b"2"], [b"4", b"so 4!", b"4"], [b"2", b"3", b"9-1=8", b"8"]]
    written = [golden(one.problem.text.encode(), texts) for one, texts in zip(BATCH, steps, strict=True)]
    values = states(checkpoint[1], [ids for ids, _ in written], side)
    expected = [
        torch.sigmoid(row[reads][:, 0]).tolist() for row, (_, reads) in zip(values, written, strict=True)
    ]
    close(scores_of(scorer, BATCH), expected)
    close([scores_of(scorer, [one])[0] for one in BATCH], expected)
    assert max(map(max, expected)) - min(map(min, expected)) > 0.01


def test_later_steps_change_nothing(scorer):
    hold_later_steps_apart(scorer)


def test_a_line_end_or_special_token_in_a_step_adds_no_score(scorer):
    [encoded] = scorer.model.encode([item("1+1?", ["a\nb<|endoftext|>\n", "2"])])
    assert encoded.ids == (BOS, *b"1+1?\na\nb< |endoftext|>\n\n\n2\n")
    assert encoded.positions == (23, 27)


def test_steps_of_one_line_each_get_a_line_end(scorer):
    text, cuts = "  a. b \n\n c.\n d\n\n", [(0, 4), (4, 9), (9, 13), (13, 17)]
    problem, steps = Problem(text="1+1?"), tuple(Step(start=start, end=end) for start, end in cuts)
    trace = Trace(problem_id=problem.id, text=text, steps=steps)
    [encoded] = scorer.model.encode([ProblemTrace(problem=problem, trace=trace)])
    assert encoded.ids == (BOS, *b"1+1?\n  a.\n b \n\n c.\n d\n\n\n")
    assert encoded.positions == (10, 14, 19, 22)


def test_card_and_context(scorer, tmp_path):
    assert (scorer.card.family, scorer.card.aggregation) == ("skywork", "last")
    save(tmp_path, max_position_embeddings=12)
    [record] = load_prm(tmp_path).score_traces([item("1+1?", ["2", "so 2"])])
    assert (record.scores[0] is None, record.scores[1]) == (False, None)
    assert "1 steps lie beyond" in record.unscored_reason


def test_a_tokenizer_without_a_beginning_is_refused(tmp_path):
    save(tmp_path, bos=None)
    with pytest.raises(CheckpointError, match="bos_token"):
        load_prm(tmp_path)
