"""What counts as the answer of a policy that continued a prefix, and of one that was cut off."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot import Problem, Step, Trace
from surefoot.answers import AnswerChecker, Grader, Solution, extract_answer, final_answer
from surefoot.labelling import MonteCarloLabeller, MonteCarloSettings
from surefoot.protocols import ProblemTrace, Sampling

ALL = ("boxed", "hash", "phrase", "last_number")


@pytest.mark.parametrize(
    ("prefix", "text", "finish", "answer"),
    [
        # the completion's own answer
        ("Tom has 3 apples.\n", "The answer is 4.", "stop", "4"),
        (r"First \boxed{3}." + "\n", r"No: \boxed{4}.", "stop", "4"),
        (r"First \boxed{3}." + "\n", "The answer is 4.", "stop", "4"),
        ("Tom has 3 apples.\n", "So he gets 4", "stop", "4"),
        ("", "So he gets 4", None, "4"),
        # what was given is no answer of the completion
        ("Tom has 3 apples.\n", "", "stop", None),
        ("Tom has 3 apples.\n", "I do not know.", "stop", None),
        (r"Guess \boxed{3} first." + "\n", "I do not know.", "stop", None),
        (r"Guess \boxed{3} first." + "\n", "", "stop", None),
        ("#### 3\n", "Wait, that is wrong.", "stop", None),
        ("#### 3\n", "Wait, it is 4", "stop", "4"),
        ("The answer is 3. Or is it?\n", "", "stop", None),
        # a solution that was finished already
        (r"So it is \boxed{3}.", "", "stop", "3"),
        (r"So it is $\boxed{3}$." + "\n\n", "\n", "stop", "3"),
        (r"So it is \boxed{3}.", " I hope it is correct.", "stop", "3"),
        ("The answer is 3.\n", "", None, "3"),
        ("Answer: 3", "\n", "stop", "3"),
        ("#### 3", "", "stop", "3"),
        (r"So it is \boxed{3}.", "", "length", None),
        # a statement that the prefix begins
        ("The answer is", " 4.", "stop", "4"),
        (r"So \boxed{", "4}", "stop", "4"),
        # reasoning is no answer
        ("<think>Maybe 3.\n", "No, 4.</think> So 5", "stop", "5"),
        ("<think>Maybe 3.\n", "No, 4.", "stop", None),
        (r"<think>\boxed{3}</think>" + "\n", "", "stop", None),
        # cut off
        ("", "we get 3", "length", None),
        ("", "we get 3 and then", "length", None),
        ("", "The answer is 1", "length", None),
        ("", "#### 1", "length", None),
        ("", r"\boxed 1", "length", None),
        ("", r"\boxed{1", "length", None),
        ("", r"\boxed{3} for x, so \boxed{12", "length", None),
        ("", r"\boxed{3} for x, so \boxed{12", "stop", None),
        (r"\boxed{3}, so \boxed{", "12", "stop", None),
        ("", r"<think>\boxed{1</think> So \boxed{12}", "stop", "12"),
        ("", r"So \boxed{18}", "length", "18"),
        ("", "The answer is 18.\nLet me check", "length", "18"),
        ("", "The answer is 18. Let me", "length", "18"),
        ("", "#### 18\n", "length", "18"),
        (r"\boxed{3} ", "we get 4", "length", None),
    ],
)
def test_final_answer(prefix, text, finish, answer):
    assert final_answer(Solution(prefix=prefix, text=text, finish_reason=finish), ALL) == answer


PIECES = st.lists(
    st.sampled_from([r"\boxed{3}", "#### 3", "The answer is 3.", "3 apples", "\n", " so ", "x"])
)


@given(PIECES.map("".join))
def test_a_prefix_alone_is_graded_by_no_number(prefix):
    assert final_answer(Solution(prefix=prefix, text=""), ["last_number"]) is None
    assert final_answer(Solution(prefix=prefix, text="\nand so on"), ALL) is None
    assert final_answer(Solution(prefix=prefix, text="", finish_reason="length"), ALL) is None


@given(PIECES.map("".join))
def test_a_whole_text_that_ended_by_itself_is_graded_by_its_answer(text):
    for finish in ("stop", None):
        assert final_answer(Solution(text=text, finish_reason=finish), ALL) == extract_answer(text)


def test_rollouts_are_graded_by_what_they_add():
    problem = Problem(text="How many apples?", answer="3")
    text = "Tom has 3 apples.\nMaybe \\boxed{3} then.\nSo \\boxed{4}.\n"
    steps, start = [], 0
    for line in text.splitlines(keepends=True):
        steps.append(Step(start=start, end=start + len(line)))
        start += len(line)
    trace = Trace(problem_id=problem.id, text=text, steps=tuple(steps), finish_reason="stop")
    written = {1: "", 2: "I am not sure."}

    def answer(request, sample):
        return written[request.prefix.count("\n")]

    def values(policy, **options):
        with AnswerChecker("math") as checker:
            labeller = MonteCarloLabeller(
                policy=policy,
                grader=Grader(checker=checker),
                settings=MonteCarloSettings(rollouts=2),
                **options,
            )
            [labels] = asyncio.run(labeller.label([ProblemTrace(problem=problem, trace=trace)]))
        return [label.value for label in labels]

    assert values(ScriptedPolicy(answer)) == [0.0, 0.0, 0.0]
    cut = ScriptedPolicy(lambda request, sample: "we get 3 and that is all there is to it")
    assert values(cut, sampling=Sampling(max_tokens=3)) == [0.0, 0.0, 0.0]
    whole = ScriptedPolicy(lambda request, sample: "we get 3")
    assert values(whole, sampling=Sampling(max_tokens=3)) == [1.0, 1.0, 0.0]
