"""Step labels by Monte Carlo rollouts (Wang et al., Math-Shepherd, arXiv 2312.08935).

From each prefix the policy writes ``rollouts`` completions; with c of N reaching the reference answer the
hard estimate is 1[c > 0] (eq. 3) and the soft one c / N (eq. 4). Both estimate a *value*, the chance of
success from here, not the correctness of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from surefoot.answers import Grader
from surefoot.errors import LabelError
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import Policy, ProblemTrace, SampleRequest, SampleResult, Sampling
from surefoot.records import Evidence, Problem, StepLabel, Trace, Usage

Estimate = Literal["hard", "soft"]


@dataclass(frozen=True, kw_only=True)
class MonteCarloLabeller:
    """A :class:`surefoot.protocols.Labeller` that spends ``rollouts`` samples on each distinct prefix.

    Prefixes that several traces share are rolled out once; the trace's own end needs no rollout, because
    its outcome is known. The evidence keeps successes, trials and the policy tokens that
    the label cost; a label that reuses rollouts cost nothing.
    """

    policy: Policy
    grader: Grader
    prompt: PromptFormat = field(default_factory=PromptFormat)
    rollouts: int = 8
    estimate: Estimate = "hard"
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rollouts < 1:
            raise LabelError(f"rollouts must be at least 1, not {self.rollouts}")

    async def label(self, items: Sequence[ProblemTrace]) -> list[list[StepLabel]]:
        """One list per item, one label per step.

        Raises ``LabelError`` for a problem without reference answer or a chat trace.
        """
        prefixes: dict[tuple[str, str], Problem] = {}
        for item in items:
            _require_labellable(item)
            for prefix in self._open_prefixes(item.trace):
                prefixes[item.problem.id, prefix] = item.problem
        results = await self.policy.sample(
            [
                SampleRequest(
                    prompt=self.prompt.render(problem),
                    prefix=prefix,
                    n=self.rollouts,
                    seed=self.seed,
                    sampling=self.sampling,
                )
                for (_, prefix), problem in prefixes.items()
            ]
        )
        estimates = {
            key: self._estimate(problem, key[1], result)
            for (key, problem), result in zip(prefixes.items(), results, strict=True)
        }
        spent: set[tuple[str, str]] = set()
        return [self._labels(item, estimates, spent) for item in items]

    def _open_prefixes(self, trace: Trace) -> list[str]:
        """Prefixes whose value is not yet decided: all but the end of a finished trace."""
        count = len(trace.steps) if trace.finish_reason == "length" else len(trace.steps) - 1
        return [trace.prefix(step + 1) for step in range(count)]

    def _estimate(self, problem: Problem, prefix: str, result: SampleResult) -> _Estimated:
        if result.error:
            return _Estimated(reason=f"rollouts failed: {result.error}", usage=result.usage)
        texts = [prefix + completion.text for completion in result.completions]
        graded = self.grader.grade(texts, [problem.answer] * len(texts))
        known = [grade.outcome for grade in graded if grade.outcome is not None]
        if not known:
            return _Estimated(reason="no rollout's answer could be compared", usage=result.usage)
        return _Estimated(successes=sum(known), trials=len(known), usage=result.usage)

    def _labels(
        self, item: ProblemTrace, estimates: dict[tuple[str, str], _Estimated], spent: set[tuple[str, str]]
    ) -> list[StepLabel]:
        labels = []
        for step, prefix in enumerate(self._open_prefixes(item.trace)):
            key = (item.problem.id, prefix)
            usage = estimates[key].usage if key not in spent else Usage()
            spent.add(key)
            labels.append(self._label(item.trace, step, estimates[key], usage))
        for step in range(len(labels), len(item.trace.steps)):
            labels.append(self._label(item.trace, step, self._ending(item), Usage()))
        return labels

    def _ending(self, item: ProblemTrace) -> _Estimated:
        outcome = item.trace.outcome
        if outcome is None:
            outcome = self.grader.grade([item.trace.text or ""], [item.problem.answer])[0].outcome
        if outcome is None:
            return _Estimated(reason="the trace's own answer could not be compared")
        return _Estimated(successes=int(outcome), trials=1)

    def _label(self, trace: Trace, step: int, estimated: _Estimated, usage: Usage) -> StepLabel:
        value = None
        if estimated.trials:
            share = estimated.successes / estimated.trials
            value = share if self.estimate == "soft" else float(share > 0)
        return StepLabel(
            trace_id=trace.id,
            step=step,
            kind="value",
            value=value,
            reason=estimated.reason,
            source=f"monte-carlo-{self.estimate}",
            evidence=Evidence(
                successes=estimated.successes, trials=estimated.trials, usage=usage, rater=self.policy.name
            ),
        )


@dataclass(frozen=True, kw_only=True)
class _Estimated:
    successes: int = 0
    trials: int = 0
    usage: Usage = field(default_factory=Usage)
    reason: str | None = None


def _require_labellable(item: ProblemTrace) -> None:
    if item.problem.answer is None:
        raise LabelError(f"problem {item.problem.id} has no 'answer'; rollouts cannot be judged without one")
    if item.trace.text is None:
        raise LabelError(f"trace {item.trace.id} has messages; Monte Carlo rollouts continue text traces")
