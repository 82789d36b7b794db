"""Expert iteration: a policy is fine-tuned on its own solutions that are good enough.

By the answer alone, a solution is learned from whatever its steps are, including one whose correct answer
follows a wrong step by luck (trace error). A scorer of steps keeps such solutions out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from surefoot.errors import TrainingError
from surefoot.io import Run
from surefoot.policies.devices import LOADING, Loading
from surefoot.protocols import Policy, ProblemTrace
from surefoot.records import Problem, StepScores, Trace, Usage
from surefoot.rl.config import ExpertIterationConfig
from surefoot.rl.rollouts import Task
from surefoot.rl.rounds import ProblemData, Progress, RoundRow, run_rounds
from surefoot.scores import checked_scores, require_fit
from surefoot.training.cloning import demonstrate


def iterate(
    run: Run,
    policy: str | Path,
    task: Task,
    config: ExpertIterationConfig,
    progress: Progress,
    *,
    loading: Loading = LOADING,
) -> list[RoundRow]:
    """Run or resume expert iteration in the run directory (:func:`surefoot.rl.rounds.run_rounds`).

    Also known as rejection-sampling fine-tuning: STaR (Zelikman et al., arXiv 2203.14465), ReST-EM (Singh et
    al., arXiv 2312.06585), and the reinforcement learning of Uesato et al. (arXiv 2211.14275).

    Raises ``TrainingError`` for a threshold without a ``scorer`` in the task or the other way round, for
    problems without an answer, and for a round in which no solution is kept.
    """
    if (task.scorer is None) != (config.threshold is None):
        raise TrainingError("'threshold' and a scorer of steps go together: one needs the other")
    if unanswered := [problem.id for problem in task.problems if problem.answer is None]:
        raise TrainingError(
            f"{len(unanswered)} problems have no 'answer', first {unanswered[0]}: no solution could be kept"
        )
    return run_rounds(
        run, policy, task, config, _GoodSolutions(task, config), progress, distinct=True, loading=loading
    )


@dataclass(frozen=True, kw_only=True)
class SolutionSelection:
    """Solutions of one problem that are learned from, and how many of the others were dropped by reason."""

    traces: tuple[Trace, ...]
    dropped: Counter[str]


def select_solutions(
    traces: Sequence[Trace],
    *,
    most: int,
    scores: Mapping[str, StepScores] | None = None,
    threshold: float = 0.5,
) -> SolutionSelection:
    """At most ``most`` different complete solutions with a correct answer, of one problem's ``traces``.

    With ``scores``, by trace id, every step must have at least ``threshold``; a step without a score fails.
    Two solutions with equal texts, ignoring white space at the ends, are one.
    """
    dropped: Counter[str] = Counter()
    good: list[tuple[float, Trace]] = []
    texts: set[str] = set()
    for trace in traces:
        worst, reason = _worst_step(trace, scores, threshold)
        text = (trace.text or "").strip()
        if reason is None and text in texts:
            reason = "duplicate solutions"
        if reason is None:
            texts.add(text)
            good.append((worst, trace))
        else:
            dropped[reason] += 1
    good.sort(key=lambda pair: -pair[0])  # stable: ties stay in sampling order
    dropped["good solutions beyond the limit"] = max(0, len(good) - most)
    return SolutionSelection(traces=tuple(trace for _, trace in good[:most]), dropped=+dropped)


@dataclass(frozen=True)
class _GoodSolutions:
    """Collects a policy's own good solutions (:class:`surefoot.rl.rounds.Collector`)."""

    task: Task
    config: ExpertIterationConfig

    async def __call__(
        self,
        policy: Policy,
        problems: Sequence[Problem],
        *,
        number: int,  # noqa: ARG002 (of the protocol)
        seed: int,
    ) -> list[ProblemData]:
        groups = await self.task.sample(
            policy, problems, n=self.config.samples, seed=seed, sampling=self.config.sampling
        )
        scores = await self._scores(problems, groups)
        return [
            self._problem_data(problem, traces, scores)
            for problem, traces in zip(problems, groups, strict=True)
        ]

    async def _scores(
        self, problems: Sequence[Problem], groups: Sequence[Sequence[Trace]]
    ) -> dict[str, StepScores] | None:
        """Scores by trace id, of solutions with good answers only: the steps of the others do not matter."""
        if self.task.scorer is None:
            return None
        items = [
            ProblemTrace(problem=problem, trace=trace)
            for problem, traces in zip(problems, groups, strict=True)
            for trace in traces
            if _answer_fault(trace) is None
        ]
        records = await asyncio.to_thread(checked_scores, self.task.scorer, items)
        return {item.trace.id: record for item, record in zip(items, records, strict=True)}

    def _problem_data(
        self, problem: Problem, traces: Sequence[Trace], scores: Mapping[str, StepScores] | None
    ) -> ProblemData:
        selection = select_solutions(
            traces,
            most=self.config.keep_solutions,
            scores=scores,
            threshold=self.config.threshold or 0.0,
        )
        usage = [trace.usage for trace in traces]
        usage += [scores[trace.id].usage for trace in traces if scores and trace.id in scores]
        return ProblemData(
            problem_id=problem.id,
            traces=tuple(traces),
            demonstrations=tuple(demonstrate(trace) for trace in selection.traces),
            dropped=dict(selection.dropped),
            usage=sum(usage, Usage()),
        )


def _worst_step(
    trace: Trace, scores: Mapping[str, StepScores] | None, threshold: float
) -> tuple[float, str | None]:
    """Lowest score of a step (1 where steps are not scored), and why the solution is dropped if it is."""
    fault = _answer_fault(trace)
    if fault or scores is None:
        return 1.0, fault
    of_steps: tuple[float | None, ...] = (None,) * len(trace.steps)
    if trace.id in scores:
        require_fit(scores[trace.id], trace)
        of_steps = scores[trace.id].scores
    scored = [score for score in of_steps if score is not None]
    if not all(score >= threshold for score in scored):
        return 0.0, "correct answers with a step below the threshold"
    if len(scored) < len(of_steps):
        return 0.0, "correct answers with an unscored step"
    return min(scored), None


def _answer_fault(trace: Trace) -> str | None:
    """Why the answer alone keeps a solution out."""
    if not trace.text:
        return "failed samples" if trace.error else "empty samples"
    if not trace.steps:
        return "solutions without a step"
    if trace.finish_reason == "length":
        return "solutions truncated at max_tokens"
    if trace.outcome is None:
        return "solutions whose answer could not be judged"
    return None if trace.outcome else "wrong answers"
