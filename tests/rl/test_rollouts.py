"""Rollouts: the tokens that were drawn, the characters at which they begin, and where steps end."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollouts import TellsTokens
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.answers import AnswerChecker, Grader
from surefoot.errors import TrainingError
from surefoot.policies.prompts import PromptFormat
from surefoot.policies.transformers import TransformersPolicy
from surefoot.protocols import Sampling
from surefoot.records import Problem, Step
from surefoot.rl.rollouts import Task, roll_out, step_ends, token_starts
from surefoot.segment import Line, Sentence

GRADER = Grader(checker=AnswerChecker("exact"), styles=("phrase",))
PROBLEMS = [Problem(text=f"Start with {n}. Add 3.", answer=str(3 + n)) for n in (1, 4)]
TEXT = "naïve café → 2 ≤ 3\n日本 so\n\n7 + 3 = 10 ✓\n"


@pytest.fixture(scope="module")
def lab(lab_base) -> TransformersPolicy:
    return TransformersPolicy.from_pretrained(lab_base)


@pytest.fixture(scope="module")
def bpe(gpt2_base) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(gpt2_base)


def roll(policy, tokenizer, problems=PROBLEMS, *, template="{problem}\n", **fields):
    options = {"n": 6, "seed": 4, "sampling": Sampling(max_tokens=40)} | fields
    prompt = PromptFormat(template=template)
    task = Task(problems=problems, segmenter=Line(), grader=GRADER, prompt=prompt)
    return asyncio.run(roll_out(policy, problems, tokenizer, task, **options))


def step_texts(rollout, tokenizer) -> list[str]:
    """Text of each step's own tokens."""
    cuts = (-1, *rollout.ends)
    return [
        tokenizer.decode(list(rollout.ids[before + 1 : last + 1]), skip_special_tokens=True)
        for before, last in pairwise(cuts)
    ]


def byte_starts(tokenizer, ids, text) -> list[int]:
    """By the bytes: whole characters of ``text`` before each token; a byte is a letter of a token's name."""
    raw, starts, at = text.encode(), [], 0
    for token in ids:
        start = len(raw[:at].decode(errors="ignore"))
        at += len(tokenizer.convert_ids_to_tokens(token)) if token != tokenizer.eos_token_id else 0
        own = text[start : len(raw[:at].decode(errors="ignore"))]
        starts.append(start + (len(own) - len(own.lstrip()) if own.strip() else 0))
    return starts


def test_the_labs_steps_are_the_texts_of_their_tokens(lab):
    tokenizer = lab.tokenizer
    found = roll(lab, tokenizer, n=30)
    assert found.failed == 0
    assert [len(group) for group in found.groups] == [30, 30]
    finished = 0
    for problem, group in zip(PROBLEMS, found.groups, strict=True):
        for rollout in group:
            trace = rollout.trace
            assert rollout.problem == rollout.item.problem == problem
            assert rollout.prompt_ids == tuple(tokenizer(problem.text + "\n")["input_ids"])
            assert tokenizer.decode(list(rollout.ids), skip_special_tokens=True) == trace.text
            finished += rollout.trace.finish_reason != "length"
            if not trace.steps:  # an end of sequence alone
                continue
            # white space that ends a step may be written by the token that begins the next
            assert [text.strip() for text in step_texts(rollout, tokenizer)] == [
                trace.step_text(number).strip() for number in range(len(trace.steps))
            ]
            assert rollout.ends[-1] == len(rollout.ids) - 1
            assert (rollout.trace.finish_reason != "length") == (rollout.ids[-1] == tokenizer.eos_token_id)
    assert 0 < finished < 60
    assert max(len(rollout.ends) for group in found.groups for rollout in group) > 3


@pytest.mark.parametrize("seed", range(3))
def test_a_random_byte_level_model_is_followed(gpt2_base, seed):
    """It draws broken characters, too: tokens never go back, and steps end in order."""
    policy = TransformersPolicy.from_pretrained(gpt2_base)
    found = roll(policy, policy.tokenizer, n=20, seed=seed)
    rollouts = [rollout for group in found.groups for rollout in group]
    assert len(rollouts) + found.failed == 40
    assert any("�" in rollout.trace.text for rollout in rollouts)
    assert any(len(rollout.ends) > 1 for rollout in rollouts)
    for rollout in rollouts:
        starts = token_starts(policy.tokenizer, rollout.ids, rollout.trace.text, before=rollout.prompt_ids)
        assert len(starts) == len(rollout.ids)
        assert starts == sorted(starts)
        assert starts[-1] <= len(rollout.trace.text)
        assert rollout.ends == tuple(sorted(rollout.ends))
        assert rollout.ends[-1] == len(rollout.ids) - 1
        for last, step in zip(rollout.ends, rollout.trace.steps[:-1], strict=False):
            assert starts[last] < step.end <= starts[last + 1]


def test_tokens_that_are_parts_of_characters(bpe):
    ids = (*bpe(TEXT)["input_ids"], bpe.eos_token_id)
    assert len(ids) > len(TEXT)
    starts = token_starts(bpe, ids, TEXT)
    assert starts == byte_starts(bpe, ids, TEXT)
    assert (starts.count(TEXT.index("日")), starts[-1]) == (3, len(TEXT))
    cuts = Line().segment(TEXT)
    ends = step_ends(starts, [Step(start=start, end=end) for start, end in cuts])
    texts = [bpe.decode(list(ids[a + 1 : b + 1])) for a, b in pairwise((-1, *ends))]
    texts[-1] = texts[-1].removesuffix(bpe.eos_token)
    assert texts == [TEXT[start:end] for start, end in cuts]
    assert ids[ends[-1]] == bpe.eos_token_id


@given(st.text(st.sampled_from("ab 7=\n→é≤日😀"), min_size=1, max_size=25), st.booleans())
def test_starts_are_those_of_the_bytes(bpe, text, stopped):
    ids = bpe(text)["input_ids"] + [bpe.eos_token_id] * stopped
    found = token_starts(bpe, ids, text)
    assert found == byte_starts(bpe, ids, text)


def test_a_space_that_a_lone_token_loses_is_counted():
    """Tokenizers of the SentencePiece kind write a leading space only after another token."""
    vocabulary = {piece: at for at, piece in enumerate(("?", "▁so", "▁2", "▁+", "▁3", "\n", "▁x"))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    before, ids = (1,), (2, 3, 4, 5, 6, 2)
    text = fast.decode([*before, *ids])[len(fast.decode(list(before))) :]
    assert text == " 2 + 3\n x 2"
    starts = token_starts(fast, ids, text, before=before)
    assert starts == [1, 3, 5, 6, 8, 10]
    steps = [Step(start=start, end=end) for start, end in Line().segment(text)]
    assert steps[0].end == 7  # the space belongs to its line, and so does the token that writes it
    assert step_ends(starts, steps) == (3, 5)


def test_a_sentences_first_word_is_its_own(bpe):
    text = "Add 3. So 7 + 3 = 10. Now 2\n"
    ids = bpe(text)["input_ids"]
    steps = [Step(start=start, end=end) for start, end in Sentence().segment(text)]
    ends = step_ends(token_starts(bpe, ids, text), steps)
    texts = [bpe.decode(ids[a + 1 : b + 1]) for a, b in pairwise((-1, *ends))]
    assert [one.strip() for one in texts] == ["Add 3.", "So 7 + 3 = 10.", "Now 2"]


def test_a_text_that_is_cut_inside_its_last_token(bpe):
    ids = bpe("7 + 3 = 10\n")["input_ids"]
    text = "7 + 3 = 1"
    assert max(token_starts(bpe, ids, text)) <= len(text)


def test_two_steps_in_one_token_end_together():
    steps = [Step(start=0, end=2), Step(start=2, end=4), Step(start=4, end=6)]
    assert step_ends([0, 4, 6], steps) == (0, 0, 2)  # "a\nb\n", "cd", end of sequence
    assert step_ends([0, 4], steps[:1]) == (1,)


def test_failures_and_empty_texts_are_counted(lab):
    def answer(request, sample):
        return ("", "1 + 3 = 4\nAnswer: 4\n", " \n")[sample % 3]

    policy = ScriptedPolicy(answer, fail=lambda request: "server: 503" if "4." in request.prompt else None)
    found = roll(TellsTokens(policy, lab.tokenizer), lab.tokenizer)
    assert [len(group) for group in found.groups] == [6, 0]
    assert found.failed == 6
    assert found.error == "server: 503"
    for rollout in found.groups[0]:  # an empty text is a solution, too: one step that nobody can score
        assert rollout.ends[-1] == len(rollout.ids) - 1
        assert bool(rollout.trace.steps) == (rollout.trace.sample % 3 == 1)


def test_text_without_its_tokens_is_refused(lab):
    policy = ScriptedPolicy(lambda request, sample: "1 + 3 = 4\nAnswer: 4\n")
    with pytest.raises(TrainingError, match="does not say which tokens it sampled"):
        roll(policy, lab.tokenizer)


def test_a_solution_that_the_limit_ended_has_no_end_of_sequence(lab):
    policy = ScriptedPolicy(
        lambda request, sample: "1 + 3 = 4\nAnswer: 4\n", tokens=len
    )  # a character is a token
    tokenizer = lab.tokenizer
    ((rollout, *_), _) = roll(TellsTokens(policy, tokenizer), tokenizer).groups
    expected = tokenizer("1 + 3 = 4\nAnswer: 4\n", add_special_tokens=False)["input_ids"]
    assert rollout.ids == (*expected, tokenizer.eos_token_id)
    assert rollout.ends == (5, 9)
    assert rollout.trace.outcome is True
    short = Sampling(max_tokens=9)
    ((cut, *_), _) = roll(TellsTokens(policy, tokenizer), tokenizer, sampling=short).groups
    assert cut.ids == tuple(expected[:5])
    assert (cut.trace.finish_reason, cut.ends) == ("length", (4,))
