"""Change detection: a chart of signals of the answers, compared with a reference in blocks.

Answers of one session resemble each other, so single answers are not independent. The unit is the mean of a
block of consecutive answers. The reference is the first ``_BLOCKS`` blocks, whose means give the variance.
After each block, the means of the latest 2, 4, 8 and 16 blocks are compared with the
reference by a t-test. A test of w blocks takes place every w blocks. Its level is its share of one false
alarm in ``run_length`` answers over all signals and sizes: by the union bound, the tests may depend on each
other.

Assumption: without a change the blocks' means are about normal and nearly independent, as they are if a block
(1/20 of the reference) is longer than most sessions.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Final

from surefoot.server.gateway.settings import MonitorSettings
from surefoot.server.records import GatewayRecord, GoldResult
from surefoot.stats.intervals import Interval
from surefoot.stats.prediction_powered import student_t

_SIZES: Final = (2, 4, 8, 16)
"""Blocks of a test; a single one may be one long session."""
_BLOCKS, _GOLD_BLOCKS = 20, 10
"""Blocks of the reference, and of the few labels from people."""
_LEAST_BLOCKS = 8
"""Fewest blocks of the reference in which a signal must be observed."""
_OF_REQUESTS: Final = ("score", "answer length", "without answer")
_GOLD: Final = "proxy minus gold"
_TESTS: Final = len(_SIZES) * (len(_OF_REQUESTS) + 1)
_LEAST_SPREAD = 0.1
"""Of a block's share of missing answers, which may come in one session: a fifth of a block alone is no
alarm."""
_SMALLEST = 1e-3
_CLEAR = 3.5
"""Standard errors from which another signal counts as changed after an alarm."""
_SHOWN = 500
"""Latest answers whose scores and evidence are kept for display."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """State of the chart."""

    evidence: float
    """So strong a result comes by chance once in this many requests; a change is claimed from
    ``MonitorSettings.run_length`` on."""
    alarm: bool
    requests: int
    """Answered since the change, by estimate; 0 without an alarm."""
    signals: Mapping[str, float]
    """Changed signals, in standard errors; empty without an alarm."""


class BlockTest:
    """A stream of values, whose block means are compared with the blocks of the first ``reference`` values.

    ``run_length``: values between two false alarms, on average at least, of ``_TESTS`` such tests together.
    NaN = not observed; a block's mean is over its other values.
    """

    def __init__(
        self, reference: int, run_length: float, *, blocks: int = _BLOCKS, least_spread: float
    ) -> None:
        self.size = max(1, reference // blocks)
        self._run_length, self._least_spread = run_length, least_spread
        self._open: list[float] = []
        self._left = blocks
        """Blocks that the reference still needs."""
        self._first: list[float] = []
        """Means of the blocks of the reference."""
        self._latest: deque[float] = deque(maxlen=max(_SIZES))
        self._count = 0
        self.mean = self.spread = 0.0
        """Of the blocks' means in the reference."""
        self.evidence = 0.0
        """As a share of ``run_length``, of the latest tests; from 1 on it is an alarm."""
        self.changed = 0
        """Values since the change, at the first alarm."""

    def add(self, value: float) -> None:
        """Add a value."""
        self._open.append(value)
        if len(self._open) < self.size:
            return
        values = [value for value in self._open if not math.isnan(value)]
        self._open = []
        if self._left:
            self._first += [fmean(values)] if values else []
            self._left -= 1
            if not self._left and len(self._first) >= _LEAST_BLOCKS:
                self._fit()
        elif values and self.spread:
            self._latest.append(fmean(values))
            self._count += 1
            self._test()

    def _test(self) -> None:
        strengths = {size: self._strength(size) for size in _SIZES if not self._count % size}
        self.evidence = max(strengths.values(), default=self.evidence)
        if self.evidence >= 1 and not self.changed:
            self.changed = self.size * next(size for size, strength in strengths.items() if strength >= 1)

    def _fit(self) -> None:
        # k times the variance of means of k blocks is larger if neighbours resemble each other
        estimate = max(k * variance(_means(self._first, k)) for k in (1, 2, 4) if 5 * k <= len(self._first))
        self.mean, self.spread = fmean(self._first), max(math.sqrt(estimate), self._least_spread)

    def _strength(self, size: int) -> float:
        chance = p_value(self.errors(size), len(self._first) - 1)
        return size * self.size / (_TESTS * self._run_length * chance)

    def errors(self, size: int) -> float:
        """Standard errors between the mean of the latest ``size`` blocks and the reference's."""
        latest = list(self._latest)[-size:]
        error = self.spread * math.sqrt(1 / len(self._first) + 1 / len(latest))
        return (fmean(latest) - self.mean) / error

    @property
    def blocks_since(self) -> int:
        """Complete blocks since the change, else the latest two, as far as there are."""
        return min(len(self._latest), self.changed // self.size if self.changed else 2)

    def means(self) -> tuple[Interval, Interval]:
        """Mean of the reference and of the latest blocks, with 95 % intervals."""
        width = student_t(len(self._first) - 1) * self.spread

        def interval(blocks: Sequence[float]) -> Interval:
            mean, error = fmean(blocks), width / math.sqrt(len(blocks))
            return Interval(value=mean, low=mean - error, high=mean + error)

        return interval(self._first), interval(list(self._latest)[-self.blocks_since :])


def _means(values: Sequence[float], size: int) -> list[float]:
    """Means of ``size`` neighbours each."""
    return [fmean(values[at : at + size]) for at in range(0, len(values) - size + 1, size)]


class ChangeChart:
    """The first ``settings.reference`` requests are the reference; the chart follows the others."""

    def __init__(self, settings: MonitorSettings | None = None) -> None:
        self.settings = settings = settings or MonitorSettings()
        gold_length = settings.run_length * (settings.gold_share or 1.0)
        spreads = {"without answer": _LEAST_SPREAD}
        self._tests = {
            name: BlockTest(
                settings.reference, settings.run_length, least_spread=spreads.get(name, _SMALLEST)
            )
            for name in _OF_REQUESTS
        }
        self._tests[_GOLD] = BlockTest(
            settings.gold_reference, gold_length, blocks=_GOLD_BLOCKS, least_spread=2 * _LEAST_SPREAD
        )
        self._requests = 0
        self._results: set[int] = set()
        self._since: int | None = None
        """Requests since the change."""
        self.scores: deque[float] = deque(maxlen=_SHOWN)
        """Of the latest requests after the reference, NaN without one."""
        self.evidence: deque[float] = deque(maxlen=_SHOWN)
        """After each of them; see :attr:`Change.evidence`."""

    def add(self, record: GatewayRecord) -> None:
        """Add an answered or failed request; invalid requests are skipped."""
        if (seen := signals_of(record)) is None:
            return
        for name in _OF_REQUESTS:
            self._tests[name].add(seen[name])
        self._requests += 1
        if self._since is not None:
            self._since += 1
        self._look()
        if self.fitted:
            self.scores.append(seen["score"])
            self.evidence.append(self._evidence)

    def add_gold(self, proxy: float, right: bool) -> None:
        """Add an answer's score in [0, 1], and whether people found all its steps right."""
        if not 0 <= proxy <= 1:
            raise ValueError(f"a proxy score must lie in [0, 1], not {proxy}")
        self._tests[_GOLD].add(proxy - right)
        self._look()

    def add_result(self, result: GoldResult) -> bool:
        """:meth:`add_gold`, once for each sample; whether it is new."""
        if result.sample in self._results:
            return False
        self._results.add(result.sample)
        self.add_gold(result.proxy, result.right)
        return True

    def _look(self) -> None:
        changed = [test.changed for test in self._tests.values() if test.changed]
        if changed and self._since is None:
            self._since = max(changed)

    @property
    def _evidence(self) -> float:
        return self.settings.run_length * max(test.evidence for test in self._tests.values())

    def compared(self) -> dict[str, tuple[Interval, Interval]]:
        """Mean of each signal in the reference and since a change, else in the latest two blocks; 95 %. Of
        the answer length, the geometric mean of the characters."""
        means = {name: test.means() for name, test in self._tests.items() if test.blocks_since}
        if pair := means.get("answer length"):
            means["answer length"] = _characters(pair[0]), _characters(pair[1])
        return means

    @property
    def fitted(self) -> bool:
        """Whether the reference is complete."""
        return self._requests >= self.settings.reference

    @property
    def alarm(self) -> bool:
        """Whether a change is claimed; it stays until the server restarts."""
        return self._since is not None

    @property
    def change(self) -> Change:
        """The state, with the signals that changed."""
        signals = {
            name: errors
            for name, test in self._tests.items()
            if self.alarm and test.blocks_since
            if test.changed or abs(test.errors(test.blocks_since)) >= _CLEAR
            for errors in (test.errors(test.blocks_since),)
        }
        return Change(evidence=self._evidence, alarm=self.alarm, requests=self._since or 0, signals=signals)


def _characters(mean: Interval) -> Interval:
    low, value, high = map(math.expm1, (mean.low, mean.value, mean.high))
    return Interval(value=value, low=low, high=high)


def signals_of(record: GatewayRecord) -> dict[str, float] | None:
    """Signals of a request, NaN where they do not apply: the score of its answer, the logarithm of the
    answer's characters, and 1 for a request that failed or whose answer is empty, cut off, or without the
    final answer that a search looks for.

    ``None`` for a request that failed by its client's fault.
    """
    if 400 <= record.status < 500:
        return None
    best = next((item for item in record.candidates if item.chosen), None)
    if best is None:
        return {"score": math.nan, "answer length": math.nan, "without answer": 1.0}
    trace = best.trace
    message = trace.messages[-1] if trace.messages else None
    text = trace.text or (message.content if message else None) or ""
    calls = bool(message and message.tool_calls)
    unread = record.strategy != "plain" and trace.answer is None
    missing = not calls and (not text.strip() or trace.cut_off or unread)
    return {
        "score": math.nan if best.score is None else best.score,
        "answer length": math.log1p(len(text)) if text else math.nan,
        "without answer": float(missing or record.status >= 500),
    }


def p_value(errors: float, degrees: int) -> float:
    """Two-sided, of Student's t (Abramowitz and Stegun 26.7.3 and 26.7.4); at least 1e-15."""
    angle, odd = math.atan(abs(errors) / math.sqrt(degrees)), degrees % 2
    term = total = math.cos(angle) if odd else 1.0
    for power in range(2 + odd, degrees - 1, 2):
        term *= math.cos(angle) ** 2 * (power - 1) / power
        total += term
    inside = math.sin(angle) * total
    return max(1 - (2 / math.pi * (angle + inside) if odd else inside), 1e-15)
