"""Predict the cost of labelling, before a token is spent.

The labeller runs on a policy that simulates completions: as long as the traces and as often correct. So every
rule and every search is predicted by the code that runs later.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby

import numpy as np

from surefoot.answers import AnswerChecker, Grader
from surefoot.errors import LabelError
from surefoot.policies import PromptFormat
from surefoot.protocols import Completion, Labeller, Policy, ProblemTrace, SampleRequest, SampleResult
from surefoot.records import Problem, Usage, content_id

_RIGHT = "right"
_SLIP = "slip"
CHARACTERS_PER_TOKEN = 3.5
"""For traces without token counts."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Expected cost of labelling all traces."""

    labels: int
    usage: Usage
    traces: int
    """Simulated traces, from which the numbers are extrapolated."""
    pass_rate: float
    """Share of correct traces, from which the chances of success are derived."""

    def summary(self) -> str:
        """One sentence."""
        usage = self.usage
        return (
            f"about {usage.tokens:,} tokens ({usage.prompt_tokens:,} read, "
            f"{usage.completion_tokens:,} written) in {usage.calls:,} requests for {self.labels:,} labels "
            f"of these traces, {self.pass_rate:.0%} of them correct; simulated on {self.traces} traces"
        )


def predict(
    items: Sequence[ProblemTrace],
    build: Callable[[Policy, Grader], Labeller],
    *,
    prompt: PromptFormat,
    luck: float = 0.1,
    at_most: int = 500,
    seed: int = 0,
) -> Prediction:
    """Run ``build(policy, grader)`` on simulated completions of at most ``at_most`` traces.

    Assumptions: every step is wrong with the same probability, such that solutions of T steps are correct as
    often as the problem's traces (shrunk towards the overall rate); a solution with an error reaches the
    answer with probability ``luck``; the remaining steps take as many tokens as in the trace. No two
    simulated steps are equal, so savings from rollouts that share prefixes are not predicted.

    Needs traces with ``outcome``. Raises ``LabelError`` if none has one. Runs its own event loop.
    """
    chosen = _subset(items, at_most)
    sample = [item for item in chosen if item.trace.outcome is not None and item.trace.steps]
    if not sample:
        raise LabelError(
            "no trace has an 'outcome', so the chance of success is unknown; sample with answers, or run a "
            "part with --token-budget"
        )
    policy = _SimulatedPolicy(sample, prompt, luck, seed)
    simulated = [
        ProblemTrace(
            problem=item.problem.model_copy(update={"answer": _RIGHT}),
            trace=item.trace.model_copy(update={"policy": policy.name if item.trace.policy else None}),
        )
        for item in sample
    ]
    with AnswerChecker("exact") as checker:
        labeller = build(policy, Grader(checker=checker, styles=("phrase",)))
        rows = asyncio.run(labeller.label(simulated))
    labels = [label for row in rows for label in row if label.value is not None]
    usage = sum((label.evidence.usage for row in rows for label in row), Usage())
    factor = len(items) / len(chosen)
    return Prediction(
        labels=round(len(labels) * factor),
        usage=Usage(**{name: round(count * factor) for name, count in usage.model_dump().items()}),
        traces=len(sample),
        pass_rate=policy.rate,
    )


def _subset(items: Sequence[ProblemTrace], at_most: int) -> list[ProblemTrace]:
    """Evenly spread groups of consecutive traces of a problem, about ``at_most`` traces in all."""
    if len(items) <= at_most:
        return list(items)
    ids = (item.problem.id for item in items)
    ends = array("Q", accumulate(sum(1 for _ in stretch) for _, stretch in groupby(ids)))
    stride = len(items) / at_most
    chosen = (int(number * stride) for number in range(int(len(ends) / stride) or 1))
    return [item for number in chosen for item in items[ends[number - 1] if number else 0 : ends[number]]]


@dataclass(frozen=True, kw_only=True)
class _Profile:
    """Statistics of the traces of a problem."""

    right: float
    steps: float
    tokens: float
    prompt_tokens: int
    errors: dict[str, int] = field(default_factory=dict)
    """Simulated first error of each wrong trace, by its text."""
    ends: dict[str, tuple[int, ...]] = field(default_factory=dict)


class _SimulatedPolicy:
    """A :class:`surefoot.protocols.Policy` whose steps contain a word if they are wrong."""

    name = "made-up"

    def __init__(self, items: Sequence[ProblemTrace], prompt: PromptFormat, luck: float, seed: int) -> None:
        self._luck, self._seed = luck, seed
        self.rate = sum(bool(item.trace.outcome) for item in items) / len(items)
        by_problem: dict[str, list[ProblemTrace]] = {}
        for item in items:
            by_problem.setdefault(item.problem.id, []).append(item)
        self._profiles = {
            repr(prompt.render(group[0].problem)): self._profile(group[0].problem, group)
            for group in by_problem.values()
        }

    def _profile(self, problem: Problem, items: Sequence[ProblemTrace]) -> _Profile:
        rng = np.random.default_rng(int(content_id(self._seed, problem.id), 16))
        traces = [item.trace for item in items]
        right = sum(bool(trace.outcome) for trace in traces)
        errors, ends = {}, {}
        for trace in traces:
            text, count = trace.text or "", len(trace.steps)
            ends[text] = tuple(step.end for step in trace.steps)
            if not trace.outcome:
                errors[text] = int(rng.integers(1, count + 1))
        return _Profile(
            right=(right + 2 * self.rate) / (len(traces) + 2),
            steps=sum(len(trace.steps) for trace in traces) / len(traces),
            tokens=sum(trace.usage.completion_tokens or _tokens(trace.text or "") for trace in traces)
            / len(traces),
            prompt_tokens=max(trace.usage.prompt_tokens for trace in traces) or _tokens(problem.text),
            errors=errors,
            ends=ends,
        )

    async def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        return [self._result(request) for request in requests]

    def _result(self, request: SampleRequest) -> SampleResult:
        profile = self._profiles[repr(request.prompt)]
        done, good = _prefix_state(profile, request.prefix)
        completions = tuple(
            self._completion(profile, request, done, good, sample)
            for sample in range(request.first, request.first + request.n)
        )
        usage = Usage(
            prompt_tokens=profile.prompt_tokens + round(profile.tokens * min(done / profile.steps, 1.0)),
            completion_tokens=sum(completion.tokens for completion in completions),
            calls=1,
        )
        return SampleResult(completions=completions, usage=usage)

    def _completion(
        self, profile: _Profile, request: SampleRequest, done: int, good: bool, sample: int
    ) -> Completion:
        mark = content_id(self._seed, request.seed, request.prefix, repr(request.prompt), sample)
        rng = np.random.default_rng(int(mark, 16))
        remaining = max(round(profile.steps) - done, 1)
        slip = 1 - max(profile.right, 1e-3) ** (1 / profile.steps)
        steps = []
        for number in range(remaining - 1):
            wrong = rng.random() < slip
            good = good and not wrong
            steps.append(f"{_SLIP if wrong else 'Step'} {mark} {number}.\n\n")
        reached = (good and rng.random() >= slip) or rng.random() < self._luck
        steps.append(f"The answer is {_RIGHT if reached else mark}.")
        tokens = max(round(profile.tokens * remaining / profile.steps), 1)
        return Completion(text="".join(steps), finish_reason="stop", tokens=tokens)


def _prefix_state(profile: _Profile, prefix: str) -> tuple[int, bool]:
    """Steps in ``prefix``, and whether all of them are (simulated to be) correct."""
    for text, ends in profile.ends.items():
        if prefix and len(prefix) <= len(text) and text.startswith(prefix):
            done = sum(end <= len(prefix) for end in ends)
            return done, text not in profile.errors or done < profile.errors[text]
    return prefix.count("\n\n"), _SLIP not in prefix


def _tokens(text: str) -> int:
    return max(round(len(text) / CHARACTERS_PER_TOKEN), 1)
