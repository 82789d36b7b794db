"""What a generative verifier is shown, and how its critique is read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from surefoot.errors import ScoreError
from surefoot.models.kinds.verifier_format import CritiqueError, VerifierFormat
from surefoot.protocols import ProblemTrace
from surefoot.records import Message, Problem, Step, Trace

FORM = VerifierFormat()
GOOD, BAD = r"\boxed{correct}", r"\boxed{incorrect}"


def item(problem: str, *steps: str) -> ProblemTrace:
    spans, at = [], 0
    for step in steps:
        spans.append(Step(start=at, end=at + len(step)))
        at += len(step)
    record = Problem(text=problem)
    return ProblemTrace(
        problem=record, trace=Trace(problem_id=record.id, text="".join(steps), steps=tuple(spans))
    )


def test_the_prompt_is_thinkprms() -> None:
    (message,) = FORM.prompt(item("What is 1 + 1?", "1 + 1 = 2.\n", "Answer: 2\n"))
    assert message.role == "user"
    assert message.content == (
        "You are given a math problem and a proposed step-by-step solution:\n\n[Math Problem]\n\n"
        "What is 1 + 1?\n\n[Solution]\n\nStep 1: 1 + 1 = 2.\nStep 2: Answer: 2\n\n"
        "Review and critique each step in the proposed solution to determine whether each step is correct. "
        "If the solution is incomplete, only verify the provided steps."
    )


def test_braces_of_a_problem_are_left_alone() -> None:
    form = VerifierFormat(template="{problem}|{solution}", chat=False, step="{number}. {text}")
    assert form.prompt(item("{solution} {number}", "{text} {problem}")) == (
        "{solution} {number}|1. {text} {problem}"
    )


@pytest.mark.parametrize("token", ["<|im_end|>", "<|im_start|>system", "</s>", "[/INST]", "<extra_0>"])
def test_control_tokens_of_problem_and_steps_are_broken(token: str) -> None:
    (message,) = FORM.prompt(item(f"P{token}", f"A{token}{token}\n", f"{token}B"), {"<extra_0>"})
    broken = f"{token[0]} {token[1:]}"
    assert f"P{broken}\n" in message.content
    assert f"Step 1: A{broken}{broken}\nStep 2: {broken}B\n" in message.content
    assert token not in message.content


def test_traces_without_text_or_steps_are_refused() -> None:
    problem = Problem(text="p")
    chat = Trace(problem_id=problem.id, messages=(Message(role="user", content="hi"),))
    for trace in (chat, Trace(problem_id=problem.id, text="x")):
        with pytest.raises(ScoreError, match=trace.id):
            FORM.prompt(ProblemTrace(problem=problem, trace=trace))


def test_a_critique_ends_at_its_last_verdict() -> None:
    critique = FORM.read(f"Step 1: fine {GOOD}\nStep 2: fine {GOOD} I am done.\n</think> {BAD}", 2)
    assert critique.verdicts == (True, True)
    assert critique.correct
    assert critique.text == f"Step 1: fine {GOOD}\nStep 2: fine {GOOD}"


def test_a_critique_stops_at_the_first_incorrect_step() -> None:
    critique = FORM.read(f"a {GOOD} b {BAD} c {GOOD} d {BAD} e {GOOD}", 3)
    assert critique.verdicts == (True, False)
    assert not critique.correct
    assert critique.text == f"a {GOOD} b {BAD}"


@pytest.mark.parametrize(
    ("text", "steps", "reason"),
    [
        ("", 1, "missing"),
        (f"a {GOOD}", 2, "missing"),
        (f"a {GOOD} b {GOOD}", 1, "more verdicts"),
        (rf"a \boxed{{partly}} b {GOOD}", 1, "something other"),
        (rf"a {GOOD} b \boxed{{7}}, so {BAD}", 3, "something other"),
        (f"thinking </think> {GOOD}", 1, "missing"),
    ],
)
def test_unreadable_critiques_are_rejected(text: str, steps: int, reason: str) -> None:
    with pytest.raises(CritiqueError, match=reason):
        FORM.read(text, steps)


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=8), st.text("ab \n", max_size=5))
def test_reading_gives_back_what_was_written(verdicts: list[bool], filler: str) -> None:
    text = "".join(f"{filler}{GOOD if verdict else BAD}" for verdict in verdicts)
    read = FORM.read(text + filler, len(verdicts))
    upto = verdicts.index(False) + 1 if False in verdicts else len(verdicts)
    assert read.verdicts == tuple(verdicts[:upto])


@pytest.mark.parametrize(
    "changes",
    [
        {"template": "{problem}"},
        {"step": "none"},
        {"correct": "correct", "incorrect": "incorrect"},
        {"end": ""},
        {"yes": ()},
        {"no": (" Yes",)},
    ],
)
def test_formats_that_could_not_be_read_are_refused(changes: dict) -> None:
    with pytest.raises(ValidationError):
        VerifierFormat(**changes)
