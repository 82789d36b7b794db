"""From problems to traces: cut, graded, accounted, with failures kept."""

from __future__ import annotations

import asyncio
from functools import reduce

import pytest

from benchmarks.worlds.digits.solver import NoisySolver
from benchmarks.worlds.digits.world import generate_problems
from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.answers import AnswerChecker, Grader, Solution
from surefoot.policies import IN_PROCESS
from surefoot.policies.episodes import sample_traces
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import Completion, SampleResult, Sampling
from surefoot.records import Message, Problem, Usage
from surefoot.segment import Line

GRADER = Grader(checker=AnswerChecker("exact"), styles=("phrase",))
PROBLEMS = [Problem(text=f"2 + {n}", answer=str(2 + n)) for n in range(3)]
REPLIES = ("Two.\nAnswer: 2\n", "Three?\nHm.\nAnswer: 3\n", "No idea.\n")


def sample(policy, problems=PROBLEMS, **fields):
    settings = {"n": 3, "seed": 4, "segmenter": Line(), "grader": GRADER} | fields
    return asyncio.run(sample_traces(policy, problems, **settings))


def total(traces):
    return reduce(Usage.__add__, (trace.usage for trace in traces), Usage())


def test_traces_are_cut_and_graded():
    policy = ScriptedPolicy(lambda request, sample: REPLIES[sample], name="script")
    found = sample(policy)
    assert [len(traces) for traces in found] == [3, 3, 3]
    for problem, traces in zip(PROBLEMS, found, strict=True):
        assert [trace.text for trace in traces] == list(REPLIES)
        assert [trace.answer for trace in traces] == ["2", "3", None]
        assert [trace.outcome for trace in traces] == [problem.answer == "2", problem.answer == "3", False]
        assert [trace.sample for trace in traces] == [0, 1, 2]
        assert {(t.problem_id, t.policy, t.seed) for t in traces} == {(problem.id, "script", 4)}
        assert [trace.error for trace in traces] == [None] * 3
    steps = [found[0][1].step_text(index) for index in range(len(found[0][1].steps))]
    assert steps == ["Three?\n", "Hm.\n", "Answer: 3\n"]
    assert len({trace.id for traces in found for trace in traces}) == 9


def test_without_a_reference_the_outcome_is_unknown():
    policy = ScriptedPolicy(lambda request, sample: REPLIES[sample])
    (traces,) = sample(policy, [Problem(text="2 + 0")])
    assert [(trace.answer, trace.outcome) for trace in traces] == [("2", None), ("3", None), (None, None)]


def test_the_grader_keeps_each_verdict_with_its_solution():
    texts = ["Answer: 1", "No idea.", "Answer: 2", "Answer: 3", "Hm."]
    grades = GRADER.grade([Solution(text=text) for text in texts], ["1", "1", None, "4", None])
    assert [(grade.answer, grade.outcome) for grade in grades] == [
        ("1", True),
        (None, False),  # no answer is a wrong one
        ("2", None),  # nothing to compare with
        ("3", False),
        (None, None),
    ]
    checker = AnswerChecker()
    solutions = [Solution(text="#### 5"), Solution(text="so 5.0")]
    grades = Grader(checker=checker).grade(solutions, [r"\frac{5", "5"])
    assert [(grade.answer, grade.outcome) for grade in grades] == [("5", None), ("5.0", True)]
    assert checker.failures == {"unreadable": 1}
    with pytest.raises(ValueError, match="shorter"):
        GRADER.grade(solutions, ["1"])


def test_settings_reach_the_policy():
    requests = []

    def answer(request, sample):
        requests.append(request)
        return "one two three"

    prompt = PromptFormat(template="Solve {problem}.", chat=True, system="Be brief.")
    (traces, *_) = sample(ScriptedPolicy(answer), n=1, prompt=prompt, sampling=Sampling(max_tokens=2))
    assert requests[0].prompt == (
        Message(role="system", content="Be brief."),
        Message(role="user", content="Solve 2 + 0."),
    )
    assert (requests[0].seed, requests[0].n) == (4, 1)
    assert [(trace.text.split(), trace.finish_reason) for trace in traces] == [(["one", "two"], "length")]


def test_a_failure_is_kept_as_one_trace_with_its_error():
    policy = ScriptedPolicy(
        lambda request, sample: REPLIES[sample],
        fail=lambda request: "server: down" if "+ 1" in request.prompt else None,
    )
    first, (failed,), last = sample(policy)
    assert (failed.text, failed.error, failed.outcome, failed.steps) == ("", "server: down", None, ())
    assert (failed.problem_id, failed.usage) == (PROBLEMS[1].id, Usage(calls=1))
    assert [trace.error for trace in first + last] == [None] * 6


class Fixed:
    """A policy with one result for every request."""

    name = "fixed"

    def __init__(self, result):
        self.result = result

    def capabilities(self):
        return IN_PROCESS

    async def sample(self, requests):
        return [self.result for _ in requests]


def test_the_usage_of_the_traces_adds_up_to_that_of_the_request():
    # a server may need several calls for one request
    usage = Usage(prompt_tokens=7, completion_tokens=5, calls=3)
    completions = (
        Completion(text="a", finish_reason="stop", tokens=2),
        Completion(text="b", finish_reason="stop", tokens=3),
    )
    (traces,) = sample(Fixed(SampleResult(completions=completions, usage=usage)), PROBLEMS[:1])
    assert total(traces) == usage
    assert [trace.usage.prompt_tokens for trace in traces] == [7, 0]
    solver, problems = NoisySolver(error_rate=0.3), generate_problems(3, seed=0)
    for traces in sample(solver, problems):
        assert total(traces).calls == 1
        assert total(traces).completion_tokens == sum(trace.usage.completion_tokens for trace in traces) > 0


def test_what_came_before_a_failure_is_kept_and_marked():
    result = SampleResult(
        completions=(Completion(text="Answer: 2", finish_reason="stop", tokens=3),),
        usage=Usage(prompt_tokens=4, completion_tokens=3, calls=1),
        error="server: 2 of 3 choices are missing",
    )
    ((trace,),) = sample(Fixed(result), PROBLEMS[:1])
    assert (trace.text, trace.outcome, trace.error) == ("Answer: 2", True, result.error)


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"template": "no place"}, "must contain '{problem}'"), ({"system": "s"}, "needs 'chat'")],
)
def test_broken_prompt_formats_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        PromptFormat(**fields)


def test_braces_of_a_problem_are_left_alone():
    assert PromptFormat(template="{problem}|{x}").render(Problem(text="{x} {problem}")) == "{x} {problem}|{x}"
