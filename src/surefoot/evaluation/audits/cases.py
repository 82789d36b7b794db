"""The material of every audit: traces with step labels, and scorers.

A scorer has a name, scores of steps, and one number per trace by a named rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from surefoot.errors import ScoreError
from surefoot.evaluation.labels import label_set
from surefoot.evaluation.report import JudgedTrace
from surefoot.labels import NO_ERROR, all_good, first_error
from surefoot.protocols import ProblemTrace, StepScorer, TraceChannel
from surefoot.records import StepLabel, StepScores, Usage
from surefoot.scores import Aggregator, channels_read, checked_scores, trace_score
from surefoot.stats.bootstrap import FloatArray


@dataclass(frozen=True, kw_only=True)
class AuditScores:
    """Scores of n traces; NaN = not scored."""

    steps: list[FloatArray]
    """One array [steps] per trace."""
    traces: FloatArray
    """Aggregated, [n]."""
    usage: Usage


@dataclass(frozen=True, kw_only=True)
class AuditedScorer:
    """A scorer under audit."""

    name: str
    scorer: StepScorer
    rule: Aggregator
    """How step scores become one number per trace."""
    stored: bool = False
    """Whether the scores come from a file, so that new text cannot be scored."""
    partial: bool = False
    """Aggregate the scored steps of a partly scored trace (published files end at the first error). A minimum
    is then an upper bound. Otherwise such a trace is unscored."""

    def require_live(self) -> None:
        """Raise ``ScoreError`` for stored scores."""
        if self.stored:
            raise ScoreError(f"{self.name}: stored scores cannot score edited text; give a checkpoint")

    def score(self, items: Sequence[ProblemTrace]) -> AuditScores:
        """Score traces, in order. Raises ``ScoreError`` if the scores do not fit the traces."""
        records = checked_scores(self.scorer, items)
        rows = [np.array(record.scores, dtype=float) for record in records]
        usage = sum((record.usage for record in records), Usage())
        return AuditScores(steps=rows, traces=np.array([self._one(row) for row in rows]), usage=usage)

    def _one(self, row: FloatArray) -> float:
        used = row[~np.isnan(row)] if self.partial else row
        score = trace_score(used.tolist(), self.rule)
        return math.nan if score is None else score


class CachedScorer:
    """A :class:`surefoot.protocols.StepScorer` that scores each trace once; repeats are free.

    Several audits score the same traces. Memory grows with the number of distinct traces.
    """

    @property
    def reads(self) -> frozenset[TraceChannel]:
        return channels_read(self.scorer)

    def __init__(self, scorer: StepScorer) -> None:
        self.scorer = scorer
        self._cache: dict[str, StepScores] = {}

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """One record per trace, by the trace's id."""
        new = {item.trace.id: item for item in items if item.trace.id not in self._cache}
        fresh = dict(zip(new, checked_scores(self.scorer, list(new.values())), strict=True))
        self._cache.update(
            {name: record.model_copy(update={"usage": Usage()}) for name, record in fresh.items()}
        )
        # the first record of a new trace states its cost
        return [fresh.pop(item.trace.id, self._cache[item.trace.id]) for item in items]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A trace with the labels of its steps."""

    item: ProblemTrace
    good: tuple[bool | None, ...]
    """One per step; ``None`` = unknown, as usual after the first error."""

    @property
    def problem_id(self) -> str:
        """The unit that intervals resample."""
        return self.item.problem.id

    @property
    def outcome(self) -> bool | None:
        """Whether the final answer is correct; ``None`` = not graded."""
        return self.item.trace.outcome

    @property
    def right(self) -> bool | None:
        """Whether all steps are good; ``None`` if none is bad and one is unknown."""
        return all_good(self.good)

    @property
    def first_error(self) -> int | None:
        """The first bad step, if all before it are known to be good."""
        step = first_error(self.good)
        return None if step == NO_ERROR else step


def labelled_cases(items: Sequence[ProblemTrace], labels: Sequence[StepLabel]) -> list[Case]:
    """Cases from stored labels. Raises ``LabelError`` if no label belongs to a step of the traces."""
    rows = label_set("labels", labels, [item.trace for item in items]).good
    return [Case(item=item, good=tuple(row)) for item, row in zip(items, rows, strict=True)]


def judged_cases(
    audited: AuditedScorer, cases: Sequence[Case], threshold: float = 0.5
) -> Iterator[JudgedTrace]:
    """Cases with a known first error and the first step below ``threshold``, for worked examples."""
    erring = [case for case in cases if case.first_error is not None]
    for case, row in zip(erring, audited.score([case.item for case in erring]).steps, strict=True):
        below = [step for step, score in enumerate(row) if score < threshold]
        yield JudgedTrace(
            item=case.item,
            error=case.first_error or 0,
            predicted=None if np.isnan(row).all() else below[0] if below else -1,
            threshold=threshold,
            scores=[None if np.isnan(score) else float(score) for score in row],
        )
