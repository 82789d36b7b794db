"""Thresholds, and whether they were fitted on the traces that they are reported on.

A threshold fitted and reported on the same traces flatters the scorer. There are three rules:

- ``split``: problems are split into two halves by the hash of their id; each half is judged with the
  threshold fitted on the other (cross-fitting), so all traces are reported and none was used for its own fit.
- the name of a subset, such as ``gsm8k``: fitted on it and applied to all subsets, which is ProcessBench's
  convention (arXiv 2412.06559). On the subset itself the result is optimistic.
- a fixed number.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import LabelError
from surefoot.evaluation.measures import Measured
from surefoot.evaluation.report import JudgedTrace
from surefoot.evaluation.step_scores import System
from surefoot.protocols import ProblemTrace

SPLIT = "split"
HALVES = 2
AS_LABELLED = "as labelled"
"""The rule of a judge, whose labels are used without a threshold."""

Fit = Callable[[list[int]], float]
"""Fits a threshold on the traces of these indices."""


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """The threshold of each trace, and how it was fitted."""

    rule: str
    of_trace: tuple[float, ...]
    values: Mapping[str, float]
    """The thresholds by the traces that they apply to: ``all``, or ``half 0`` and ``half 1``."""
    fitted_on: str

    def score(self, system: System, **figures: Any) -> Measured:
        """The row of a system under this rule; ``name`` is for tables."""
        return Measured(
            system=system.name,
            kind=system.kind,
            rule=self.rule,
            thresholds=dict(self.values),
            fitted_on=self.fitted_on,
            name=f"{system.name}, {self.rule}",
            **figures,
        )


CHOSEN_HERE = "The first of several scorers is chosen on the data it is measured on."
"""A limit of every comparison."""
LABELLED = Thresholds(rule=AS_LABELLED, of_trace=(), values={}, fitted_on="labels need no threshold")


def half_of(problem_id: str) -> int:
    """0 or 1, by a hash of the id alone: a problem is in the same half in every data set and every run."""
    return hashlib.blake2b(problem_id.encode("utf-8", "surrogatepass"), digest_size=1).digest()[0] % HALVES


def parse_rules(texts: Sequence[str], subsets: Sequence[str]) -> list[str | float]:
    """``split``, names of subsets and numbers, without repetitions. Raises ``LabelError`` for other text."""
    rules: list[str | float] = []
    for text in texts:
        rule: str | float = text
        if text != SPLIT and text not in subsets:
            try:
                rule = float(text)
            except ValueError as error:
                names = ", ".join([SPLIT, *subsets])
                raise LabelError(f"threshold {text!r}: give a number or one of {names}") from error
            if math.isnan(rule):
                raise LabelError(f"threshold {text!r}: give a number or {SPLIT}")
        if rule not in rules:
            rules.append(rule)
    return rules


def thresholds(rule: str | float, problem_ids: Sequence[str], subsets: Sequence[str], fit: Fit) -> Thresholds:
    """Apply ``rule`` to traces; ``problem_ids`` and ``subsets`` have shape [traces].

    Raises ``LabelError`` if the traces to fit on are missing, and whatever ``fit`` raises.
    """
    number = len(problem_ids)
    if not isinstance(rule, str):
        values = {"all": float(rule)}
        return Thresholds(
            rule=f"{rule:g}", of_trace=(float(rule),) * number, values=values, fitted_on="fixed beforehand"
        )
    if rule == SPLIT:
        half = [half_of(problem) for problem in problem_ids]
        fitted = [
            _fitted(fit, [t for t in range(number) if half[t] != part], f"the other half of half {part}")
            for part in range(HALVES)
        ]
        return Thresholds(
            rule=SPLIT,
            of_trace=tuple(fitted[part] for part in half),
            values={f"half {part}": value for part, value in enumerate(fitted)},
            fitted_on="the other half of the problems",
        )
    value = _fitted(fit, [t for t in range(number) if subsets[t] == rule], f"subset {rule}")
    return Thresholds(
        rule=rule, of_trace=(value,) * number, values={"all": value}, fitted_on=f"subset {rule}"
    )


def readings(
    system: System, rules: Sequence[str | float], problem_ids: Sequence[str], subsets: Sequence[str], fit: Fit
) -> Iterator[Thresholds]:
    """The thresholds of a system under each rule, as :func:`thresholds`; labels are read once, without."""
    if system.kind == "labels":
        yield LABELLED
        return
    for rule in rules:
        yield thresholds(rule, problem_ids, subsets, fit)


def ranked(scores: Sequence[Measured], value: Callable[[Measured], float]) -> list[Measured]:
    """The first rule of each system, highest value first."""
    first = {score.system: score for score in reversed(scores)}
    return sorted(first.values(), key=lambda score: -value(score))


def judged(
    lead: Measured, systems: Sequence[System], errors: Iterable[tuple[Any, int | None, str]]
) -> Iterator[JudgedTrace]:
    """What the system of ``lead`` says of traces, for worked examples.

    ``errors`` has each trace with its problem, its first error (-1 = none, ``None`` = unknown) and its
    subset. The threshold belongs to the half of the trace's problem, or to all.
    """
    system = next(system for system in systems if system.name == lead.system)
    for number, (item, error, subset) in enumerate(errors):
        if error is None or not isinstance(item, ProblemTrace):
            continue
        half = f"half {half_of(item.trace.problem_id)}"
        names = (f"{subset}, {half}", half, "all")
        cut = next((lead.thresholds[name] for name in names if name in lead.thresholds), None)
        scores = system.scores[number] if system.kind == "scores" else []
        good = [None if score is None else not score < (cut or 0) for score in scores] or system.good[number]
        silent = None in good and (not scores or set(good) == {None})
        step = good.index(False) if False in good else None if silent else -1
        yield JudgedTrace(
            item=item,
            error=error,
            predicted=step if system.recorded[number] else None,
            scores=scores,
            threshold=cut if scores else None,
        )


def threshold_above(distinct: NDArray[np.float64], cut: int) -> float:
    """A threshold above the ``cut`` lowest of the ``distinct`` scores and not above the others."""
    if cut == 0:
        return float(distinct[0]) if len(distinct) else 0.0
    if cut == len(distinct):
        return math.nextafter(distinct[-1], math.inf)
    below, above = float(distinct[cut - 1]), float(distinct[cut])
    middle = below / 2 + above / 2
    return middle if below < middle <= above else above  # no float lies between neighbours


def _fitted(fit: Fit, members: list[int], where: str) -> float:
    if not members:
        raise LabelError(f"no trace in {where} to fit a threshold on; give a number instead")
    try:
        return fit(members)
    except LabelError as error:
        raise LabelError(f"{where}: {error}") from error
