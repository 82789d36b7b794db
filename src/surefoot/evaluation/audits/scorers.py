"""Scorers under audit: a name, scores of steps, and one number per trace by a named rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import ScoreError
from surefoot.protocols import ProblemTrace, StepScorer, TraceChannel
from surefoot.records import StepScores, Usage
from surefoot.scores import Aggregator, channels_read, checked_scores, trace_score

FloatArray = NDArray[np.float64]


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
        rows = [
            np.array([math.nan if score is None else score for score in record.scores], dtype=float)
            for record in records
        ]
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
