"""Has anything changed? A chart of signals of each request, compared with a reference."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from surefoot.records import Problem
from surefoot.scores import is_scored
from surefoot.server.gateway.settings import MonitorSettings
from surefoot.server.records import GatewayCandidate, GatewayRecord, GoldResult
from surefoot.stats.e_detector import EDetector, FloatArray
from surefoot.stats.intervals import Interval

_NAMES: Final = (
    *("prompt length", "failed", "empty", "cut off", "tokens per character"),
    *("without answer", "unscored", "step length", "answer length"),
    *("score", "proxy minus gold"),
)
"""Signals, in the order in which causes act: the questions, the server that answers, the parser of steps and
answers, the policy's text, the score, and the score less what people say of the same answer."""
_SHARES: Final = frozenset({"failed", "empty", "cut off", "without answer", "unscored"})
"""Signals that are 0 or 1; the others but the last are ranked among the reference."""
_STANDARD_ERRORS = 2.0
"""Half width of the interval that a mean of the reference has, in the chart."""
_CLEAR = 3.5
"""Standard errors from which a signal counts as changed after an alarm."""
_KEPT = 500
_LATEST = 100


@dataclass(frozen=True, kw_only=True)
class Change:
    """State of the chart."""

    evidence: float
    """A change is claimed from ``MonitorSettings.run_length`` on."""
    alarm: bool
    requests: int
    """Answered since the change, by estimate; 0 without an alarm."""
    signals: Mapping[str, float]
    """Changed signals, in standard errors; empty without an alarm."""


class ChangeChart:
    """The first ``settings.reference`` requests are the reference; the chart follows the others."""

    def __init__(self, settings: MonitorSettings) -> None:
        self.settings = settings
        self._waiting: list[dict[str, float]] = []
        self._gold: list[tuple[float, float]] | None = []
        self._results: set[int] = set()
        self._fitted: _Reference | None = None
        self._rows: deque[FloatArray] = deque(maxlen=_KEPT)
        self.scores: deque[float] = deque(maxlen=_KEPT)
        self._new_gold: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        self._since: int | None = None
        self.evidence: deque[float] = deque(maxlen=_KEPT)
        """Of a change, after each of the latest requests; ``scores`` are theirs, NaN without one."""

    def add(self, record: GatewayRecord) -> None:
        """Add an answered or failed request; requests that clients got wrong are passed over."""
        if (seen := signals_of(record)) is None:
            return
        if self._fitted is None:
            self._waiting.append(seen)
            if len(self._waiting) >= self.settings.reference:
                self._fitted = _Reference(self._waiting, self.settings.run_length)
                self._waiting = []
                self._fit_gold()
            return
        row = self._fitted.row(seen)
        if self._new_gold:
            row[-1] = self._fitted.weighted(*self._new_gold.popleft())
        self._rows.append(row)
        self.scores.append(seen["score"])
        evidence = self._fitted.chart.add(row)
        self.evidence.append(evidence)
        if self._since is not None:
            self._since += 1
        elif evidence >= self.settings.run_length:
            self._since = len(self._rows) - self._fitted.chart.change_point(np.array(self._rows))

    def add_gold(self, proxy: float, right: bool, weight: float = 1.0) -> None:
        """Add an answer's score in [0, 1], and whether people found all its steps right.

        ``weight`` is 1 / (the chance of being sent to people). Charted with the next request.
        """
        if not (0 <= proxy <= 1 and math.isfinite(weight) and weight >= 1):
            raise ValueError(f"a proxy lies in [0, 1] and a weight is at least 1, not {proxy} and {weight}")
        value = (proxy - right + 1) / 2, weight
        if self._gold is None:
            self._new_gold.append(value)
        else:
            self._gold.append(value)
            self._fit_gold()

    def add_result(self, result: GoldResult) -> bool:
        """:meth:`add_gold`, once for each sample; whether it is new."""
        if result.sample in self._results:
            return False
        self._results.add(result.sample)
        self.add_gold(result.proxy, result.right, result.weight)
        return True

    def _fit_gold(self) -> None:
        """Labels arrive late, so their reference is the first labels to arrive."""
        if self._fitted is not None and self._gold and len(self._gold) >= self.settings.gold_reference:
            self._fitted.fit_gold(self._gold)
            self._gold = None

    def compared(self) -> dict[str, tuple[Interval, Interval]]:
        """Mean of each signal in the reference and in the requests since a change, else the latest; 95 %."""
        if self._fitted is None or not self._rows:
            return {}
        return self._fitted.compared(np.array(self._rows)[-(self._since or _LATEST) :])

    @property
    def fitted(self) -> bool:
        """Whether the reference is complete."""
        return self._fitted is not None

    @property
    def alarm(self) -> bool:
        """Whether a change is claimed."""
        return self._since is not None

    @property
    def change(self) -> Change:
        """The state, with the signals that changed by all requests since the change."""
        if self._fitted is None or self._since is None:
            evidence = self._fitted.chart.evidence if self._fitted else 0.0
            return Change(evidence=evidence, alarm=False, requests=0, signals={})
        changed = self._fitted.changed(np.array(self._rows)[-self._since :])
        return Change(
            evidence=self._fitted.chart.evidence,
            alarm=True,
            requests=self._since,
            signals={name: z for name, z in changed.items() if abs(z) >= _CLEAR},
        )


class _Reference:
    """Distribution of each signal before any change, and the chart that compares with it."""

    def __init__(self, seen: Sequence[Mapping[str, float]], run_length: float) -> None:
        self._largest_weight = 1.0
        self._sorted = {
            name: sorted(row[name] for row in seen if not math.isnan(row[name]))
            for name in _NAMES[:-1]
            if name not in _SHARES
        }
        table = np.array([self.row(row) for row in seen])
        observed = ~np.isnan(table)
        self.counts = observed.sum(axis=0)
        filled = np.where(observed, table, 0.0)
        n = np.maximum(self.counts, 1)
        self.means = np.where(self.counts > 0, filled.sum(axis=0) / n, 0.5)
        spread = np.where(observed, (table - self.means) ** 2, 0.0).sum(axis=0) / n
        self.variances = np.maximum(spread, 1 / np.maximum(self.counts, 4))
        errors = _STANDARD_ERRORS * np.sqrt(self.variances / np.maximum(self.counts, 1))
        absent = self.counts < 20  # such as scores without a reward model
        low = np.where(absent, 0.0, self.means - errors)
        high = np.where(absent, 1.0, self.means + errors)
        self.chart = EDetector(low.tolist(), high.tolist(), run_length=run_length)

    def fit_gold(self, gold: Sequence[tuple[float, float]]) -> None:
        """Add proxy minus gold to the chart, from signals of reference labels and their weights."""
        values, weights = np.array(gold).T
        mean = float(np.average(values, weights=weights))
        count = round(weights.sum() ** 2 / (weights**2).sum())
        variance = max(float(np.average((values - mean) ** 2, weights=weights)), 1 / count)
        self._largest_weight = float(weights.max())
        self.means[-1], self.counts[-1], self.variances[-1] = mean, count, variance
        error = _STANDARD_ERRORS * math.sqrt(variance / count)
        self.chart.restart(len(_NAMES) - 1, mean - error, mean + error)

    def row(self, seen: Mapping[str, float]) -> FloatArray:
        """The signals of a request, [signals] in [0, 1]: shares as they are, the others as their rank in the
        reference."""
        placed = [
            seen[name] if name in _SHARES else _rank(seen[name], self._sorted[name]) for name in _NAMES[:-1]
        ]
        return np.array([*placed, math.nan])

    def weighted(self, value: float, weight: float) -> float:
        """A gold label's signal such that its mean moves as the mean over all requests does."""
        return float(self.means[-1] + (value - self.means[-1]) * min(weight / self._largest_weight, 1.0))

    def changed(self, rows: FloatArray) -> dict[str, float]:
        """Standard errors by which the means of ``rows`` [T, signals] differ from the reference."""
        counts = (~np.isnan(rows)).sum(axis=0)
        usable = (counts > 0) & (self.counts >= 20)
        means = np.nansum(rows, axis=0) / np.maximum(counts, 1)
        error = np.sqrt(self.variances * (1 / np.maximum(counts, 1) + 1 / np.maximum(self.counts, 1)))
        return {
            name: float(z)
            for name, z, use in zip(_NAMES, (means - self.means) / error, usable, strict=True)
            if use
        }

    def compared(self, rows: FloatArray) -> dict[str, tuple[Interval, Interval]]:
        """Means of the reference and of ``rows`` [T, signals], of the signals that both have."""
        counts = (~np.isnan(rows)).sum(axis=0)
        means = np.nansum(rows, axis=0) / np.maximum(counts, 1)

        def interval(mean: float, variance: float, count: int) -> Interval:
            error = NormalDist().inv_cdf(0.975) * math.sqrt(variance / count)
            return Interval(value=mean, low=max(0.0, mean - error), high=min(1.0, mean + error))

        columns = zip(_NAMES, self.means, self.variances, self.counts, means, counts, strict=True)
        return {
            name: (interval(mean, variance, count), interval(latest, variance, number))
            for name, mean, variance, count, latest, number in columns
            if count >= 20 and number
        }


def _rank(value: float, ordered: Sequence[float]) -> float:
    if math.isnan(value) or not ordered:
        return math.nan
    return (bisect_left(ordered, value) + bisect_right(ordered, value)) / 2 / len(ordered)


def signals_of(record: GatewayRecord) -> dict[str, float] | None:
    """Signals of a request, NaN where they do not apply.

    ``None`` for a request that failed by its client's fault.
    """
    if 400 <= record.status < 500:
        return None
    best = next((item for item in record.candidates if item.chosen or item.choice is None), None)
    sampled = [item for item in record.candidates if item.choice is not None]
    written = sum(len(item.trace.text or "") * item.weight for item in sampled)
    signals = _answer_signals(record.problem, best) | {
        "failed": float(record.status >= 500),
        "tokens per character": record.usage.completion_tokens / written if written else math.nan,
    }
    return signals if record.strategy else signals | {"without answer": math.nan}


def _answer_signals(problem: Problem | None, best: GatewayCandidate | None) -> dict[str, float]:
    trace = best.trace if best else None
    text = "" if trace is None else trace.text or (trace.messages[-1].content or "" if trace.messages else "")
    steps = len(trace.steps) if trace is not None else 0
    prompt = problem.text if problem is not None else ""
    return {
        "prompt length": float(len(prompt)) if prompt else math.nan,
        "failed": math.nan,
        "empty": float(trace is not None and not text.strip()),
        "cut off": float(trace is not None and trace.cut_off),
        "tokens per character": math.nan,
        "without answer": float(trace.answer is None) if trace is not None else math.nan,
        "unscored": float(not is_scored(best.new_scores, "min")) if best and best.scores else math.nan,
        "step length": len(text) / steps if steps else math.nan,
        "answer length": float(len(text)) if text else math.nan,
        "score": best.score if best and best.score is not None else math.nan,
    }
