"""From problems to traces: sample a policy, cut the texts into steps, grade the answers."""

from __future__ import annotations

from collections.abc import Sequence

from surefoot.answers import Grader, Solution
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import Policy, SampleRequest, SampleResult, Sampling, Segmenter
from surefoot.records import Problem, Trace, Usage
from surefoot.segment import segment_trace


async def sample_traces(
    policy: Policy,
    problems: Sequence[Problem],
    *,
    n: int,
    seed: int,
    segmenter: Segmenter,
    grader: Grader,
    prompt: PromptFormat | None = None,
    sampling: Sampling | None = None,
) -> list[list[Trace]]:
    """``n`` traces of each problem, in order.

    A problem whose request failed gets one trace with an empty text and the ``error``, so that it is seen
    and counted. The prompt's tokens and the calls are accounted to the first trace of its problem.
    """
    prompt, sampling = prompt or PromptFormat(), sampling or Sampling()
    requests = [
        SampleRequest(prompt=prompt.render(problem), n=n, seed=seed, sampling=sampling)
        for problem in problems
    ]
    results = await policy.sample(requests)
    return [
        build_traces(policy.name, problem, result, seed=seed, segmenter=segmenter, grader=grader)
        for problem, result in zip(problems, results, strict=True)
    ]


def build_traces(
    policy: str,
    problem: Problem,
    result: SampleResult,
    *,
    seed: int,
    segmenter: Segmenter,
    grader: Grader,
    reasoning_opened: bool = False,
) -> list[Trace]:
    """The traces of one problem, in the order of the completions: cut into steps, with answer and outcome.

    With ``reasoning_opened`` the prompt began the reasoning; texts without its closing tag have no answer.

    A request that failed before its first completion gives one trace with an empty text and the ``error``.
    """
    written = [
        Solution(
            text=completion.text,
            prefix="<think>" if reasoning_opened else "",
            finish_reason=completion.finish_reason,
        )
        for completion in result.completions
    ]
    grades = grader.grade(written, [problem.answer] * len(written))
    traces = []
    for sample, (completion, grade) in enumerate(zip(result.completions, grades, strict=True)):
        reasoning = completion.reasoning
        shared = result.usage.model_copy(update={"completion_tokens": 0}) if sample == 0 else Usage()
        trace = Trace(
            problem_id=problem.id,
            text=completion.whole_text,
            # what the text cannot hold: summarised, encrypted or withheld
            reasoning=None if reasoning and reasoning.visibility == "visible" else reasoning,
            answer=grade.answer,
            outcome=grade.outcome,
            policy=policy,
            seed=seed,
            sample=sample,
            finish_reason=completion.finish_reason,
            error=result.error,
            usage=shared + Usage(completion_tokens=completion.tokens),
        )
        traces.append(segment_trace(trace, segmenter))
    if traces:
        return traces
    return [
        Trace(
            problem_id=problem.id, text="", policy=policy, seed=seed, error=result.error, usage=result.usage
        )
    ]
