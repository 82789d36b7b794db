"""Thresholds that have not seen what they are reported on, beside those that have.

A threshold fitted and reported on the same traces flatters the scorer. Three rules are offered:

- ``split``: problems are dealt into two halves by the hash of their id; each half is judged with the
  threshold fitted on the other (cross-fitting), so every trace counts and none was seen.
- the name of a subset, such as ``gsm8k``: fitted on that subset and applied to all, which is ProcessBench's
  own convention (arXiv 2412.06559). On the subset itself the figure is optimistic.
- a number, fixed beforehand.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from surefoot.errors import LabelError

SPLIT = "split"
HALVES = 2

Fit = Callable[[list[int]], float]
"""Fits a threshold on the traces of these indices."""


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """The threshold that each trace is judged with, and where it comes from."""

    rule: str
    of_trace: tuple[float, ...]
    values: Mapping[str, float]
    """The thresholds by what they are applied to: ``all``, or ``half 0`` and ``half 1``."""
    fitted_on: str
    seen: str | None = None
    """Subset whose own traces the threshold was fitted on, so that its figures are optimistic."""


def half_of(problem_id: str) -> int:
    """0 or 1, by a hash of the id alone: a problem is in the same half in every data set and every run."""
    return hashlib.blake2b(problem_id.encode("utf-8", "surrogatepass"), digest_size=1).digest()[0] % HALVES


def parse_rules(texts: Sequence[str], subsets: Sequence[str]) -> list[str | float]:
    """``split``, names of subsets and numbers, each once. Raises ``LabelError`` for anything else."""
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

    Raises ``LabelError`` if a part to fit on is empty, and whatever ``fit`` raises.
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
        rule=rule, of_trace=(value,) * number, values={"all": value}, fitted_on=f"subset {rule}", seen=rule
    )


def _fitted(fit: Fit, members: list[int], where: str) -> float:
    if not members:
        raise LabelError(f"no trace in {where} to fit a threshold on; give a number instead")
    try:
        return fit(members)
    except LabelError as error:
        raise LabelError(f"{where}: {error}") from error
