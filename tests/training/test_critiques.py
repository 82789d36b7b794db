"""Critiques that become training data, and those that do not."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.worlds import critic
from benchmarks.worlds.digits.checkpoints import build_tokenizer
from benchmarks.worlds.digits.world import ExactLabeller
from surefoot.errors import TrainingError
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.records import Problem, Step, StepLabel, Trace
from surefoot.training.critiques import build_critique_examples as build
from surefoot.training.critiques import sample_critiques
from surefoot.training.examples import Example

FORM = critic.FORMAT


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = build_tokenizer()
    tokenizer.add_tokens(list(critic.PIECES))
    return tokenizer


@pytest.fixture(scope="module")
def items(lab_items: list[ProblemTrace]) -> list[LabelledTrace]:
    labels = asyncio.run(ExactLabeller().label(lab_items))
    return [
        LabelledTrace(problem=item.problem, trace=item.trace, labels=tuple(of_trace))
        for item, of_trace in zip(lab_items, labels, strict=True)
    ]


def texts_of(items: list[LabelledTrace], chains: int = 1, **noise: float) -> list[list[str]]:
    traces = [ProblemTrace(problem=item.problem, trace=item.trace) for item in items]
    written = sample_critiques(critic.NoisyCritic(**noise), traces, FORM, chains=chains)
    return [list(record.texts) for record in asyncio.run(written)]


def right(example: Example) -> bool:
    return example.targets == (1.0,)


def test_faultless_critiques_all_stay_and_are_balanced(tokenizer, items) -> None:
    data = build(tokenizer, items, texts_of(items), FORM)
    assert len(data.examples) == 12
    assert sum(right(example) for example in data.examples) == 6
    assert not data.dropped


def test_tokens_are_prompt_critique_question_answer_end(tokenizer, items) -> None:
    data = build(tokenizer, items, texts_of(items), FORM, balance=False)
    for item, example, (text,) in zip(items, data.examples, texts_of(items), strict=True):
        prompt = FORM.prompt(ProblemTrace(problem=item.problem, trace=item.trace)) + FORM.opening
        answer = " Yes" if right(example) else " No"
        whole = prompt + text.removesuffix(f"\n{critic.END}") + FORM.closing + answer
        learned = example.positions[0]
        assert example.positions == tuple(range(learned, len(example.ids)))
        assert tokenizer.decode(example.ids[:learned]) == "<s>" + prompt
        assert tokenizer.decode(example.ids) == "<s>" + whole + "</s>"
        assert example.ids[:learned] == tuple(tokenizer(prompt)["input_ids"])


def test_noise_is_filtered_and_accounted_for(tokenizer, items) -> None:
    texts = texts_of(items, chains=40, error_rate=0.15, omit_rate=0.1)
    assert sum(map(len, texts)) == 480
    data = build(tokenizer, items, texts, FORM, balance=False)
    assert len(data.examples) + sum(data.dropped.values()) == 480
    assert len(data.examples) == 12  # the lab's critic writes one right critique of each trace
    assert data.dropped["unreadable: a verdict is missing"] > 20
    assert data.dropped["verdict is wrong"] > 20
    assert data.dropped["correct in the end, a step verdict differs"] > 10
    assert data.dropped["repeated"] > 100


def test_a_right_end_with_a_wrong_middle_is_rejected(tokenizer, items) -> None:
    wrong = items[1]
    first = next(label.step for label in wrong.labels if label.value == -1)
    # an error is found, but at another step than the labels say
    at = 0 if first else 1
    texts = [critic.CORRECT * at + critic.INCORRECT]
    with pytest.raises(TrainingError, match="1 correct in the end, a step verdict differs"):
        build(tokenizer, [wrong], [texts], FORM, balance=False)


def test_text_after_the_last_verdict_is_removed(tokenizer, items) -> None:
    (text,) = texts_of(items[:1])[0]
    chatter = text.removesuffix(f"\n{critic.END}") + "\n7 + 7 = 4" + critic.END
    data = build(tokenizer, items[:1], [[chatter]], FORM, balance=False)
    plain = build(tokenizer, items[:1], [[text]], FORM, balance=False)
    assert data.examples[0].ids == plain.examples[0].ids


def test_long_critiques_are_left_out(tokenizer, items) -> None:
    lengths = [
        len(example.positions)
        for example in build(tokenizer, items, texts_of(items), FORM, balance=False).examples
    ]
    limit = sorted(lengths)[5]
    data = build(tokenizer, items, texts_of(items), FORM, balance=False, max_tokens=limit)
    assert len(data.examples) == sum(length <= limit for length in lengths)
    assert data.dropped["too long"] == 12 - len(data.examples)


def test_balance_takes_from_the_larger_side(tokenizer, items) -> None:
    some = [item for number, item in enumerate(items) if number % 2 == 0 or number < 4]
    data = build(tokenizer, some, texts_of(some), FORM, seed=1)
    again = build(tokenizer, some, texts_of(some), FORM, seed=1)
    assert sum(right(example) for example in data.examples) == 2
    assert len(data.examples) == 4
    assert data.dropped == {"balance: correct solutions": 4}
    assert data == again


def test_unlabelled_traces_are_left_out(tokenizer, items) -> None:
    bare = LabelledTrace(problem=items[0].problem, trace=items[0].trace, labels=items[0].labels[:-1])
    with pytest.raises(TrainingError, match="1 no gold label on some step"):
        build(tokenizer, [bare], texts_of([bare]), FORM)


@pytest.mark.parametrize(("neutral", "kept"), [("good", 1), ("bad", 0), ("drop", 0)])
def test_neutral_labels(tokenizer, items, neutral, kept) -> None:
    right = items[0]
    labels = (right.labels[0].model_copy(update={"value": 0.0}), *right.labels[1:])
    item = LabelledTrace(problem=right.problem, trace=right.trace, labels=labels)
    texts = texts_of([item])
    if kept:
        assert build(tokenizer, [item], texts, FORM, neutral=neutral, balance=False).examples
    else:
        with pytest.raises(TrainingError):
            build(tokenizer, [item], texts, FORM, neutral=neutral, balance=False)


def test_special_tokens_in_a_solution_are_text_in_training_too(tokenizer) -> None:
    problem = Problem(text="Start with 7. Add 3.\n", answer="0")
    text = "7 + 3 = 0</s>\nAnswer: 0\n"
    at = text.index("\n") + 1
    trace = Trace(
        problem_id=problem.id, text=text, steps=(Step(start=0, end=at), Step(start=at, end=len(text)))
    )
    labels = tuple(
        StepLabel(trace_id=trace.id, step=step, kind="correctness", value=1.0, source="test")
        for step in (0, 1)
    )
    item = LabelledTrace(problem=problem, trace=trace, labels=labels)
    critique = f"\nStep 1) {critic.CORRECT}\nStep 2) {critic.CORRECT}"
    [example] = build(tokenizer, [item], [[critique]], FORM, balance=False).examples
    assert [at for at, token in enumerate(example.ids) if token == tokenizer.eos_token_id] == [
        len(example.ids) - 1
    ]
