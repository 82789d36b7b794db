"""Named functions that compute each figure of a card from files; a card holds no code."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from surefoot.errors import RunError
from surefoot.formats.rows import build_rows, raw_rows
from surefoot.io import read_records
from surefoot.records import StepLabel
from surefoot.search.trust import HeldOutChoice, HeldOutScores, HeldOutStep, trust_of
from surefoot.stats.bootstrap import bootstrap_mean
from surefoot.stats.intervals import Interval
from surefoot.stats.rater_agreement import agreement

_DIGITS: Final = 5
_TOKENS: Final = ("prompt_tokens", "completion_tokens", "verifier_tokens")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A computed value with its 95 % interval over ``units``; ``None`` if it is undefined."""

    value: float | None
    low: float | None = None
    high: float | None = None
    units: int = 0

    def rounded(self) -> dict[str, Any]:
        """The fields of a claim; NaN becomes ``None``."""
        numbers = {"value": self.value, "low": self.low, "high": self.high}
        finite = {k: round(v, _DIGITS) for k, v in numbers.items() if v is not None and math.isfinite(v)}
        return {**dict.fromkeys(numbers), **finite, "units": self.units}


def rows_of(path: Path) -> Iterator[Any]:
    """The rows of a file of records as plain objects. Raises ``RecordError`` for a line that is not JSON."""
    return build_rows(raw_rows(path), lambda _, row: [row], None, path)


def records(files: Sequence[Path]) -> Figure:
    """Number of records in all files."""
    total = sum(1 for path in files for _ in rows_of(path))
    return Figure(value=total, units=total)


def tokens(files: Sequence[Path]) -> Figure:
    """Tokens read and written for the records of all files; unknown if none is recorded."""
    total = count = 0
    for row in (row for path in files for row in rows_of(path)):
        usage = row.get("usage") or (row.get("evidence") or {}).get("usage") or {}
        total += sum(int(usage.get(name) or 0) for name in _TOKENS)
        count += 1
    return Figure(value=total or None, units=count)


def rater_agreement(files: Sequence[Path]) -> Figure:
    """Krippendorff's alpha of the raters of a file of labels; raters stay anonymous."""
    ratings: dict[str, dict[tuple[str, int], float]] = {}
    for label in (label for path in files for label in read_records(path, StepLabel)):
        if label.value is not None and label.evidence.rater:
            ratings.setdefault(label.evidence.rater, {})[label.trace_id, label.step] = label.value
    if len(ratings) < 2:
        return Figure(value=None)
    units = sorted({unit for row in ratings.values() for unit in row})
    table = [[row.get(unit, math.nan) for unit in units] for row in ratings.values()]
    result = agreement(table)
    return Figure(value=result.alpha, units=result.units)


def held_out_auc(files: Sequence[Path], of: str = "scores") -> Figure:
    """Step AUC on held-out problems (``held-out-steps.jsonl``).

    ``of``: ``scores``, ``baseline`` for the best of its rivals (:data:`surefoot.stats.RIVALS`), or
    ``reading`` for the difference to the one that decides whether the model reads.
    """
    steps = list(read_records(files[0], HeldOutStep))
    trust = trust_of(HeldOutScores(steps=steps, choices=()))
    if trust is None:
        return Figure(value=None)
    if of == "reading":
        if trust.reading is None or (lead := trust.reading.interval) is None:
            return Figure(value=None)
        return Figure(value=lead.value, low=lead.low, high=lead.high, units=trust.reading.problems)
    if of == "baseline":
        return Figure(value=trust.rival_auc, units=trust.problems)
    return Figure(value=trust.auc[0], low=trust.auc[1], high=trust.auc[2], units=trust.problems)


def held_out_lead(files: Sequence[Path]) -> Figure:
    """Accuracy of best-of-N by the scorer less majority voting (``held-out-choices.jsonl``)."""
    choices = list(read_records(files[0], HeldOutChoice))
    if not choices:
        return Figure(value=None)
    leads = [float(row.best_of_n) - float(row.majority) for row in choices]
    mean = bootstrap_mean(leads, draws=1000, rng=np.random.default_rng(0))
    return Figure(value=mean.value, low=mean.low, high=mean.high, units=len(leads))


def rl_change(files: Sequence[Path], of: str = "gain") -> Figure:
    """Held-out accuracy at the end less the start (``gain``), or the best less the end (``fall``).

    From ``curves.jsonl``; the interval treats evaluations as independent.
    """
    rows = [row for row in rows_of(files[0]) if row["kind"] == "evaluation"]
    if len(rows) < 2:
        return Figure(value=None)
    ends = rows[-1], rows[0]
    if of == "fall":
        ends = max(rows, key=lambda row: float(row["accuracy_value"])), rows[-1]
    end, start = (
        Interval(**{part: row[f"accuracy_{part}"] for part in ("value", "low", "high")}) for row in ends
    )
    change = end.less(start)
    return Figure(value=change.value, low=change.low, high=change.high, units=int(rows[-1]["problems"]))


def reported(files: Sequence[Path], at: str = "") -> Figure:
    """The estimate at a path (``first_screen|verdicts|0|estimate``) of a result's JSON file."""
    data: Any = json.loads(files[0].read_bytes())
    for key in filter(None, at.split("|")):
        try:
            data = data[int(key) if isinstance(data, list) else key]
        except (KeyError, IndexError, ValueError) as error:
            raise RunError(f"{files[0]} has no {at}; run the command again") from error
    if not isinstance(data, Mapping):
        return Figure(value=data if isinstance(data, int | float) else None)
    return Figure(value=data.get("value"), low=data.get("low"), high=data.get("high"))


FIGURES: Final[Mapping[str, Callable[..., Figure]]] = MappingProxyType(
    {
        function.__name__: function
        for function in (records, tokens, rater_agreement, held_out_auc, held_out_lead, rl_change, reported)
    }
)
