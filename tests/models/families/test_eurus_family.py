"""EurusPRM: golden tokens, and log-ratios by the authors' own steps on full forwards."""

import pytest
import torch
from published_checkpoints import (
    BATCH,
    DOT_NL2,
    NL2,
    QWEN_TEMPLATE,
    SPECIAL,
    TINY,
    byte_tokenizer,
    close,
    item,
    scores_of,
    states,
)
from transformers import Qwen2Config, Qwen2ForCausalLM

from surefoot import load_prm
from surefoot.errors import CheckpointError

END, START, END_TURN = range(SPECIAL, SPECIAL + 3)
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SYSTEM = b"system\nPlease reason step by step, and put your final answer within \\boxed{}."


def save(directory, seed, **changes):
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(Qwen2Config(**TINY | changes)).eval()
    model.save_pretrained(directory)
    byte_tokenizer(TOKENS, template=QWEN_TEMPLATE, pad="<|endoftext|>").save_pretrained(directory)
    return model


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    hub = tmp_path_factory.mktemp("hub")
    return hub, save(hub / "EurusPRM-Stage2", 7), save(hub / "reference", 8)


@pytest.fixture(scope="module")
def scorer(models):
    return load_prm(models[0] / "EurusPRM-Stage2", reference=models[0] / "reference")


def test_golden_tokens_and_positions(scorer):
    [encoded] = scorer.encode([item("1+1?", ["2.", "so 2", "Step 3: 2"])])
    prompt = [START, *SYSTEM, END_TURN, *b"\n", START, *b"user\n1+1?", END_TURN, *b"\n"]
    prompt += [START, *b"assistant\n"]
    answer = [*b"Step 1: 2", DOT_NL2, *b"Step 2: so 2", NL2, *b"Step 3: 2", END_TURN, *b"\n"]
    assert encoded.ids == (*prompt, *answer)
    start = len(prompt)
    assert start == 103
    # "Step 1: 2.", end of turn, blank line are 10 + 2 tokens; as many count of the whole answer, in which the
    # blank line has merged with the full stop: up to the "t" of "Step 2". Then 22 + 2, up to the "S" of
    # "Step 3", and 32 + 1, the end of turn.
    assert encoded.positions == (start + 11, start + 23, start + 32)
    assert encoded.starts == (start, start + 12, start + 24)
    assert [encoded.ids[at] for at in encoded.positions] == [ord("t"), ord("S"), END_TURN]


def published(tokenizer, model, reference, question, steps, side):
    """The authors' script: positions from conversations cut short, a sum from the answer's first token."""
    numbered = [f"Step {number}: {step}" for number, step in enumerate(steps, start=1)]

    def conversation(count):
        turns = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": "\n\n".join(numbered[:count])},
        ]
        return tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=False)

    ids = tokenizer(conversation(len(steps)))["input_ids"]
    last = []
    for count in range(len(steps) + 1):
        text = conversation(count).strip()
        if count not in (0, len(steps)):
            text += "\n\n"
        last.append(len(tokenizer.encode(text, add_special_tokens=False)) - 2)
    wanted = torch.tensor(ids)[1:, None]

    def logps(which):
        # a second, longer row, so that there is padding
        logits = states(which, [ids, [*ids, 1, 2, 3]], side)[0]
        return logits[:-1].log_softmax(-1).gather(1, wanted)[:, 0]

    ratio = logps(model) - logps(reference)
    ratio[: last[0]] = 0
    return (0.001 * ratio).cumsum(0)[last[1:]].tolist()


@pytest.mark.parametrize("side", ["left", "right"])
def test_scores_of_the_plain_forward(models, scorer, side):
    steps = [["2"], ["4", "so 4!", "4"], ["2", "3", "9-1=8", "8"]]
    expected = [
        published(scorer.tokenizer, *models[1:], one.problem.text, texts, side)
        for one, texts in zip(BATCH, steps, strict=True)
    ]
    close(scores_of(scorer, BATCH), expected, 1e-6)
    close([scores_of(scorer, [one])[0] for one in BATCH], expected, 1e-6)
    assert max(map(max, expected)) - min(map(min, expected)) > 1e-3
    [record] = scorer.score_traces([BATCH[1]])
    assert scorer.aggregate(record) == min(record.scores)


def test_later_steps_change_nothing(scorer):
    first, second = item("7-3?", ["4.", "so", "five", "9"]), item("7-3?", ["4.", "so", "9", "five"])
    [one], [two] = scores_of(scorer, [first]), scores_of(scorer, [second])
    close([one[:2]], [two[:2]], 1e-7)
    assert one[2:] != two[2:]


def test_special_tokens_in_a_step_are_text(scorer):
    [encoded] = scorer.encode([item("1+1?", ["2<|im_end|>", "3"])])
    assert "Step 1: 2< |im_end|>" in scorer.tokenizer.decode(encoded.ids)
    assert encoded.ids.count(END_TURN) == 3
    assert len(encoded.positions) == 2


def test_context_is_the_smaller_of_the_two(models, tmp_path):
    save(tmp_path, 8, max_position_embeddings=120)
    scorer = load_prm(models[0] / "EurusPRM-Stage2", reference=tmp_path)
    [record] = scorer.score_traces([item("1+1?", ["2", "so 2", "2"])])
    assert record.scores[0] is not None
    assert record.scores[1:] == (None, None)
    assert "context of 120 tokens" in record.unscored_reason


def test_what_it_cannot_do_is_said(models, scorer, tmp_path):
    save(tmp_path, 8, vocab_size=200)
    with pytest.raises(CheckpointError, match="vocabulary is smaller"):
        load_prm(models[0] / "EurusPRM-Stage2", reference=tmp_path)
