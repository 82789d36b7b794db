"""Monte Carlo labels of programs: completions graded by hidden tests."""

from __future__ import annotations

import asyncio

import pytest

from surefoot import Problem, Trace, Usage
from surefoot.errors import LabelError, SandboxError
from surefoot.labelling import MonteCarloLabeller, MonteCarloSettings
from surefoot.labelling.verifiers.programs import ProgramGrader
from surefoot.policies import IN_PROCESS
from surefoot.protocols import Completion, ProblemTrace, SampleResult
from surefoot.sandbox import open_sandbox
from surefoot.segment import segment_trace, segmenter

PROMPT = "def f(a):\n"
CODE = {
    "entry_point": "f",
    "prompt": PROMPT,
    "tests": [{"name": "one", "code": "assert candidate(3) == 7", "visibility": "hidden"}],
}
PROBLEM = Problem(id="f", text=PROMPT, meta={"code": CODE})


class Finishes:
    """Writes what is right if ``b`` is ``2 * a``."""

    name = "finishes"

    def capabilities(self):
        return IN_PROCESS

    async def sample(self, requests):
        text = "    return b + 1\n"
        done = Completion(text=text, finish_reason="stop", tokens=5)
        usage = Usage(completion_tokens=5, calls=1)
        return [SampleResult(completions=(done,) * one.n, usage=usage) for one in requests]


@pytest.fixture(scope="module")
def sandbox():
    try:
        box = open_sandbox("bubblewrap", concurrency=2)
    except SandboxError as missing:
        pytest.skip(str(missing))
    with box:
        yield box


@pytest.mark.parametrize("order", ["every", "until-error", "bisect"])
def test_the_first_step_from_which_no_completion_passes(sandbox, order):
    text = "    b = 2 * a\n    b = b + 0\n    b = b + 1\n    return b + 1\n"
    trace = segment_trace(Trace(problem_id="f", text=text, finish_reason="stop"), segmenter("python"))
    labeller = MonteCarloLabeller(
        policy=Finishes(),
        grader=ProgramGrader(sandbox),
        settings=MonteCarloSettings(estimate="hard", rollouts=2, first=2, order=order),
    )
    [labels] = asyncio.run(labeller.label([ProblemTrace(problem=PROBLEM, trace=trace)]))
    assert [label.value for label in labels[:3]] == [1, 1, 0]
    assert labels[3].value in (None, 0)


def test_a_problem_without_hidden_tests_is_refused(sandbox):
    item = ProblemTrace(problem=Problem(id="p", text="?", answer="2"), trace=Trace(problem_id="p", text="2"))
    labeller = MonteCarloLabeller(policy=Finishes(), grader=ProgramGrader(sandbox))
    with pytest.raises(LabelError, match="no hidden tests"):
        asyncio.run(labeller.label([item]))
