"""Expert iteration: a policy learns from those of its own solutions that are good enough.

Also rejection-sampling fine-tuning: STaR (Zelikman et al., arXiv 2203.14465), ReST-EM (Singh et al., arXiv
2312.06585), and the reinforcement learning of Uesato et al. (arXiv 2211.14275). By the answer alone, a
solution is learned from whatever its steps are, also one that is right by luck after a wrong step (the trace
error). A scorer of steps keeps such solutions out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, model_validator

from surefoot.errors import ScoreError, TrainingError
from surefoot.io import Run
from surefoot.policies.traces import sample_traces
from surefoot.protocols import ProblemTrace, StepScorer
from surefoot.records import Problem, StepScores, Trace, Usage
from surefoot.rl.exercise import Exercise, RoundsConfig
from surefoot.rl.gathering import Gathered, Turn
from surefoot.rl.round_rows import RoundRow
from surefoot.rl.rounds import Progress, run_rounds
from surefoot.training.cloning import demonstrate


class ExpertIterationConfig(RoundsConfig):
    """Rounds of sampling and selection. The defaults are ReST-EM's: newest data, from the first policy."""

    samples: int = Field(default=8, ge=1)
    """Solutions a problem and round; ReST-EM drew 32 (MATH) and 64 (APPS)."""
    data: Literal["all", "last"] = "last"
    keep_solutions: int = Field(default=4, ge=1)
    """At most so many different solutions a problem and round, so that easy problems do not prevail (10 in
    ReST-EM). Those with the best worst step go first, else those drawn first."""
    threshold: float | None = Field(default=None, ge=0, le=1)
    """Lowest score that every step of a solution must reach; ``None`` = the answer alone decides."""

    @model_validator(mode="after")
    def _check_temperature(self) -> Self:
        if self.temperature == 0 and self.samples > 1:
            raise ValueError("'samples' at 'temperature' 0 would be equal; raise the temperature")
        return self


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Solutions of one problem that are learned from, and why the others are not."""

    kept: tuple[Trace, ...]
    dropped: Counter[str]


def iterate(
    run: Run,
    exercise: Exercise,
    config: ExpertIterationConfig,
    progress: Progress,
    *,
    scorer: StepScorer | None = None,
) -> list[RoundRow]:
    """Expert iteration in the run directory, or the rest of it (:func:`surefoot.rl.rounds.run_rounds`).

    Raises ``TrainingError`` if a threshold is set without ``scorer`` or the other way round, for problems
    without an answer, and for a round in which nothing is kept.
    """
    if (scorer is None) != (config.threshold is None):
        raise TrainingError("'threshold' and a scorer of steps go together: one needs the other")
    if unanswered := [problem.id for problem in exercise.problems if problem.answer is None]:
        raise TrainingError(
            f"{len(unanswered)} problems have no 'answer', first {unanswered[0]}: no solution could be kept"
        )
    gather = _GoodSolutions(exercise, config, scorer)
    return run_rounds(run, exercise, config, gather, progress, distinct=True)


def select_solutions(
    traces: Sequence[Trace],
    *,
    most: int,
    scores: Mapping[str, StepScores] | None = None,
    threshold: float = 0.5,
) -> Selection:
    """At most ``most`` different complete solutions with a right answer, of one problem's ``traces``.

    With ``scores``, by the traces' ids, every step must have at least ``threshold``; a step without a score
    has not. Two solutions with equal texts, white space at the ends aside, are one.
    """
    dropped: Counter[str] = Counter()
    good: list[tuple[float, Trace]] = []
    seen: set[str] = set()
    for trace in traces:
        worst, reason = _verdict(trace, scores, threshold)
        text = (trace.text or "").strip()
        if reason is None and text in seen:
            reason = "solutions drawn before"
        if reason is None:
            seen.add(text)
            good.append((worst, trace))
        else:
            dropped[reason] += 1
    good.sort(key=lambda pair: -pair[0])  # stable: equals stay in the order drawn
    dropped["good solutions beyond those kept"] = max(0, len(good) - most)
    return Selection(kept=tuple(trace for _, trace in good[:most]), dropped=+dropped)


@dataclass(frozen=True)
class _GoodSolutions:
    """Gathers a policy's own good solutions (:class:`surefoot.rl.gathering.Gather`)."""

    exercise: Exercise
    config: ExpertIterationConfig
    scorer: StepScorer | None

    async def __call__(self, turn: Turn) -> list[Gathered]:
        drawn = await sample_traces(
            turn.policy,
            turn.problems,
            n=self.config.samples,
            seed=turn.seed,
            segmenter=self.exercise.segmenter,
            grader=self.exercise.grader,
            prompt=self.exercise.prompt,
            sampling=self.config.sampling,
        )
        scores = await self._scores(turn.problems, drawn)
        return [
            self._gathered(problem, traces, scores)
            for problem, traces in zip(turn.problems, drawn, strict=True)
        ]

    async def _scores(
        self, problems: Sequence[Problem], drawn: Sequence[Sequence[Trace]]
    ) -> dict[str, StepScores] | None:
        """Of the solutions that are right so far, by trace: of the others no step matters."""
        if self.scorer is None:
            return None
        items = [
            ProblemTrace(problem=problem, trace=trace)
            for problem, traces in zip(problems, drawn, strict=True)
            for trace in traces
            if _answer_fault(trace) is None
        ]
        records = await asyncio.to_thread(self.scorer.score_traces, items) if items else []
        if len(records) != len(items):
            raise ScoreError(f"the scorer gave {len(records)} records for {len(items)} traces")
        return {item.trace.id: record for item, record in zip(items, records, strict=True)}

    def _gathered(
        self, problem: Problem, traces: Sequence[Trace], scores: Mapping[str, StepScores] | None
    ) -> Gathered:
        found = select_solutions(
            traces,
            most=self.config.keep_solutions,
            scores=scores,
            threshold=self.config.threshold or 0.0,
        )
        spent = [trace.usage for trace in traces]
        spent += [scores[trace.id].usage for trace in traces if scores and trace.id in scores]
        return Gathered(
            problem_id=problem.id,
            drawn=tuple(traces),
            shown=tuple(demonstrate(trace) for trace in found.kept),
            dropped=dict(found.dropped),
            usage=sum(spent, Usage()),
        )


def _verdict(
    trace: Trace, scores: Mapping[str, StepScores] | None, threshold: float
) -> tuple[float, str | None]:
    """Score of the worst step (1 where steps are not scored), and why the solution is not kept."""
    fault = _answer_fault(trace)
    if fault or scores is None:
        return 1.0, fault
    found = scores[trace.id].scores if trace.id in scores else (None,) * len(trace.steps)
    if len(found) != len(trace.steps):
        raise ScoreError(f"{len(found)} scores for the {len(trace.steps)} steps of trace {trace.id}")
    known = [score for score in found if score is not None]
    if not all(score >= threshold for score in known):
        return 0.0, "right answers with a step below the threshold"
    if len(known) < len(found):
        return 0.0, "right answers with a step that was not scored"
    return min(known), None


def _answer_fault(trace: Trace) -> str | None:
    """Why the answer alone keeps a solution out."""
    if not trace.text:
        return "samples that did not come" if trace.error else "empty samples"
    if not trace.steps:
        return "solutions without a step"
    if trace.finish_reason == "length":
        return "solutions cut off by max_tokens"
    if trace.outcome is None:
        return "solutions whose answer could not be judged"
    return None if trace.outcome else "wrong answers"
