"""The label audit: what each source of labels costs, how far sources agree, and how far they are right."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import LabelError
from surefoot.evaluation.label_sets import LabelCost, LabelCounts, LabelSet, label_set
from surefoot.evaluation.label_truth import AgainstTruth, against_truth
from surefoot.evaluation.report import JSONResult
from surefoot.labels import LabelRule, first_error
from surefoot.records import StepLabel, Trace
from surefoot.stats.bootstrap import bootstrap_statistic
from surefoot.stats.calibration import Binning
from surefoot.stats.intervals import Interval
from surefoot.stats.rater_agreement import (
    Agreement,
    Level,
    agreement,
    alpha_of,
    cohens_kappa,
    coincidences,
    contingency,
)

FloatArray = NDArray[np.float64]

TRUTH = "truth"
"""The name that the reference has in the agreement matrix."""

SIGNS = (-1.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class Source:
    """One source of labels; ``against_truth`` is ``None`` without truth, and for the truth itself."""

    name: str
    reading: LabelRule
    counts: LabelCounts
    cost: LabelCost
    against_truth: AgainstTruth | None = None


@dataclass(frozen=True, kw_only=True)
class PairAgreement:
    """Two sources, over the steps and traces that both have labelled."""

    first: str
    second: str
    steps: Agreement
    """Good or bad, step by step."""
    kappa: Interval
    """Cohen's kappa of the steps with its 95 % interval over problems."""
    first_error: Agreement
    """Units are traces; the value is the index of the first bad step, -1 for none."""


@dataclass(frozen=True, kw_only=True)
class OverallAgreement:
    """All sources but the truth together."""

    steps: Agreement
    alpha: Interval
    """Krippendorff's alpha of the steps with its 95 % interval over problems."""
    first_error: Agreement
    graded: Agreement | None
    """The numbers as they were given: ordinal where all sources label correctness (-1, 0, 1), interval where
    all label values; ``None`` where sources differ in kind."""
    graded_level: Level | None


@dataclass(frozen=True, kw_only=True)
class LabelAudit(JSONResult):
    """Everything that ``audit_labels`` finds."""

    traces: int
    problems: int
    steps: int
    traces_without_steps: int
    """Left out of everything."""
    sources: tuple[Source, ...]
    truth: Source | None
    pairs: tuple[PairAgreement, ...]
    """Every two sources, and every source with the truth, which comes last."""
    overall: OverallAgreement | None
    """``None`` with fewer than two sources."""
    settings: Mapping[str, Any] = field(default_factory=dict)


def audit_labels(
    traces: Sequence[Trace],
    sources: Mapping[str, Sequence[StepLabel]],
    *,
    truth: Sequence[StepLabel] | None = None,
    readings: Mapping[str, LabelRule] | None = None,
    reading: LabelRule | None = None,
    bins: int = 10,
    binning: Binning = "equal-mass",
    draws: int = 1000,
    seed: int = 0,
) -> LabelAudit:
    """Audit label sets by name. ``reading`` says how labels become good or bad, ``readings`` by name.

    The truth's own name is "truth". Intervals are 95 % percentile bootstraps that resample problems (by
    ``Trace.problem_id``) ``draws`` times. Raises ``LabelError`` for no sources, a source called "truth", a
    reading for a name that is not there, two traces of one id, and label sets that share no step with the
    traces.
    """
    usable = [trace for trace in traces if trace.steps]
    _check(usable, sources, truth, readings or {})
    reads = {
        name: (readings or {}).get(name, reading or LabelRule(neutral="good")) for name in (*sources, TRUTH)
    }
    sets = {name: label_set(name, labels, usable, reads[name]) for name, labels in sources.items()}
    facts = label_set(TRUTH, truth, usable, reads[TRUTH]) if truth is not None else None
    problems = [trace.problem_id for trace in usable]
    compare = _Comparison(problems, draws=draws, seed=seed)
    everyone = [*sets.values(), *([facts] if facts else [])]
    return LabelAudit(
        traces=len(usable),
        problems=len(set(problems)),
        steps=sum(len(trace.steps) for trace in usable),
        traces_without_steps=len(traces) - len(usable),
        sources=tuple(
            Source(
                name=name,
                reading=reads[name],
                counts=source.counts,
                cost=source.cost,
                against_truth=against_truth(
                    source, facts, problems, bins=bins, binning=binning, draws=draws, seed=seed
                )
                if facts
                else None,
            )
            for name, source in sets.items()
        ),
        truth=Source(name=TRUTH, reading=reads[TRUTH], counts=facts.counts, cost=facts.cost)
        if facts
        else None,
        pairs=tuple(compare.pair(first, second) for first, second in combinations(everyone, 2)),
        overall=compare.overall(list(sets.values())) if len(sets) > 1 else None,
        settings={"bins": bins, "binning": binning, "draws": draws, "seed": seed},
    )


class _Comparison:
    """Agreement of label sets over the same traces, with intervals over problems."""

    def __init__(self, problems: Sequence[str], *, draws: int, seed: int) -> None:
        index: dict[str, int] = {}
        self._problem = np.array([index.setdefault(problem, len(index)) for problem in problems], dtype=int)
        self._draws, self._seed = draws, seed

    def pair(self, first: LabelSet, second: LabelSet) -> PairAgreement:
        signs = _signs([first, second])
        tables = self._by_problem(first, signs, lambda part: contingency(*part, values=SIGNS))
        return PairAgreement(
            first=first.name,
            second=second.name,
            steps=agreement(signs, categories=SIGNS),
            kappa=self._interval(tables, cohens_kappa),
            first_error=agreement(_first_errors([first, second])),
        )

    def overall(self, sets: Sequence[LabelSet]) -> OverallAgreement:
        signs = _signs(sets)
        matrices = self._by_problem(sets[0], signs, lambda part: coincidences(part, SIGNS))
        level = _common_level(sets)
        return OverallAgreement(
            steps=agreement(signs, categories=SIGNS),
            alpha=self._interval(matrices, lambda matrix: alpha_of(matrix, SIGNS)),
            first_error=agreement(_first_errors(sets)),
            graded=agreement(_values(sets), level=level) if level else None,
            graded_level=level,
        )

    def _by_problem(self, like: LabelSet, signs: FloatArray, count: Any) -> FloatArray:
        """``count`` of the steps of each problem, stacked: [problems, values, values]."""
        of_step = np.repeat(self._problem, [len(row) for row in like.good])
        order = np.argsort(of_step, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(of_step[order])) + 1)
        return np.stack([count(signs[:, part]) for part in parts])

    def _interval(self, counts: FloatArray, statistic: Any) -> Interval:
        return bootstrap_statistic(
            range(len(counts)),
            lambda draw: statistic(counts[draw.items].sum(axis=0)),
            draws=self._draws,
            rng=np.random.default_rng(self._seed),
        )


def _signs(sets: Sequence[LabelSet]) -> FloatArray:
    """[sources, steps]: 1 good, -1 bad, NaN unknown."""
    meaning = {True: 1.0, False: -1.0, None: math.nan}
    return np.array([[meaning[good] for row in source.good for good in row] for source in sets])


def _values(sets: Sequence[LabelSet]) -> FloatArray:
    """[sources, steps]: the labels' own numbers."""
    return np.array(
        [
            [math.nan if label is None else label.value for row in source.labels for label in row]
            for source in sets
        ],
        dtype=float,
    )


def _first_errors(sets: Sequence[LabelSet]) -> FloatArray:
    """[sources, traces]: index of the first bad step, -1 for none, NaN where an unknown step hides it."""
    return np.array([[first_error(row) for row in source.good] for source in sets], dtype=float)


def _common_level(sets: Sequence[LabelSet]) -> Level | None:
    kinds = {label.kind for source in sets for row in source.labels for label in row if label is not None}
    levels: dict[str, Level] = {"correctness": "ordinal", "value": "interval"}
    return levels[kinds.pop()] if len(kinds) == 1 else None


def _check(
    traces: Sequence[Trace],
    sources: Mapping[str, Sequence[StepLabel]],
    truth: Sequence[StepLabel] | None,
    readings: Mapping[str, LabelRule],
) -> None:
    if not sources:
        raise LabelError("'sources' is empty; give at least one set of labels")
    if TRUTH in sources:
        raise LabelError(f"a source is called {TRUTH!r}, the name of the reference; give it another name")
    names = {*sources, *([TRUTH] if truth is not None else [])}
    if foreign := sorted(set(readings) - names):
        raise LabelError(f"a reading is given for {foreign[0]!r}; the names are {', '.join(sorted(names))}")
    twice = [trace for trace, count in Counter(trace.id for trace in traces).items() if count > 1]
    if twice:
        raise LabelError(f"{len(twice)} trace ids occur twice, first {twice[0]}; keep one trace of each id")
