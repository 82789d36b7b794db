"""ProcessBench (Zheng et al., arXiv 2412.06559) for any number of scorers and judges, side by side.

The metric of a subset is in ``surefoot.evaluation.first_errors``; over subsets it is the unweighted mean of
their F1s. A score below the threshold is an error; where the threshold comes from is said with each figure
(``surefoot.evaluation.splits``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from surefoot.errors import LabelError
from surefoot.evaluation._plain import plain
from surefoot.evaluation.first_errors import Board, Case, FirstErrors, Part
from surefoot.evaluation.splits import SPLIT, Thresholds, thresholds
from surefoot.evaluation.step_scores import System, SystemCounts, recorded_by_all
from surefoot.evaluation.steps import best_threshold, first_error_below
from surefoot.labels import LabelRule, first_error
from surefoot.protocols import LabelledTrace
from surefoot.stats.intervals import Interval

Missing = Literal["leave-out", "wrong"]

AS_LABELLED = "as labelled"
"""The rule of a judge, which has no threshold."""


@dataclass(frozen=True, kw_only=True)
class ProcessBenchScore:
    """One system under one rule for its threshold."""

    system: str
    kind: Literal["scores", "labels"]
    rule: str
    thresholds: Mapping[str, float]
    """What was applied to what; empty for labels."""
    fitted_on: str
    seen: str | None
    """Subset that the threshold was fitted on and whose figures are therefore optimistic."""
    average_f1: Interval
    """Unweighted mean of the subsets' F1s."""
    difference: Interval | None
    """``average_f1`` less that of the first system (same rule, if it has it), paired by problem."""
    subsets: Mapping[str, FirstErrors]
    parts: tuple[Part, ...]
    partial: int
    """Traces with scores for some steps only; they are judged on those."""


@dataclass(frozen=True, kw_only=True)
class ProcessBenchEvaluation:
    """All systems over the same traces."""

    traces: int
    problems: int
    left_out: int
    """Traces of which some system has no record; no system is judged on them."""
    subsets: Mapping[str, int]
    """Traces of each subset."""
    systems: tuple[SystemCounts, ...]
    scores: tuple[ProcessBenchScore, ...]
    settings: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Plain data for a JSON file; an undefined number (NaN) is ``null``."""
        found: dict[str, Any] = plain(self)
        return found


def processbench_cases(data: Mapping[str, Sequence[LabelledTrace]]) -> list[Case]:
    """Traces by subset with the index of their first error, from their correctness labels.

    Raises ``LabelError`` for a trace in which a step without label leaves the first error open, and for an
    id that occurs twice.
    """
    cases = [
        Case(trace=item.trace, subset=subset, label=_label(item))
        for subset, items in data.items()
        for item in items
    ]
    seen: set[str] = set()
    for case in cases:
        if case.trace.id in seen:
            raise LabelError(f"trace {case.trace.id} occurs twice in the data; give each file once")
        seen.add(case.trace.id)
    return cases


def evaluate_processbench(
    cases: Sequence[Case],
    systems: Sequence[System],
    *,
    rules: Sequence[str | float] = (SPLIT, 0.5),
    missing: Missing = "leave-out",
    draws: int = 1000,
    seed: int = 0,
) -> ProcessBenchEvaluation:
    """Hold ``systems`` (laid beside the traces of ``cases``, in order) against the truth under each rule.

    A judge's prediction is its first bad step; it is unparsed if a step without verdict leaves that open. A
    scorer's is if no step has a score. Both count as wrong, as in the paper. ``missing`` says what a trace is
    of which a system has no record at all: left out for every system, or wrong. Thresholds are held while
    problems are resampled.

    Raises ``LabelError`` for no cases or systems, and where a threshold cannot be fitted; ``ScoreError`` if
    no trace has a record of every system.
    """
    if not cases or not systems:
        raise LabelError("give at least one trace and one scorer or judge")
    kept = recorded_by_all(systems) if missing == "leave-out" else list(range(len(cases)))
    used = [cases[t] for t in kept]
    board = Board(used, draws=draws, seed=seed)
    entries = [entry for system in systems for entry in _entries(system, kept, used, rules)]
    firsts = {entry.rule: entry for entry in entries if entry.system is systems[0]}
    other = next(iter(firsts.values()))
    return ProcessBenchEvaluation(
        traces=len(used),
        problems=len({case.trace.problem_id for case in used}),
        left_out=len(cases) - len(used),
        subsets={name: len(members) for name, members in board.subsets.items()},
        systems=tuple(system.summary() for system in systems),
        scores=tuple(_score(board, entry, firsts.get(entry.rule, other)) for entry in entries),
        settings={"rules": list(rules), "missing": missing, "draws": draws, "seed": seed},
    )


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """Predictions of one system under one rule."""

    system: System
    rule: str
    applied: Thresholds | None
    predicted: list[int | None]
    partial: int


def _entries(
    system: System, kept: Sequence[int], cases: Sequence[Case], rules: Sequence[str | float]
) -> list[_Entry]:
    if system.kind == "labels":
        predicted = [first_error(system.good[t]) for t in kept]
        return [_Entry(system=system, rule=AS_LABELLED, applied=None, predicted=predicted, partial=0)]
    scores = [system.scores[t] for t in kept]
    known = [sum(score is not None for score in row) for row in scores]
    partial = sum(0 < count < len(row) for count, row in zip(known, scores, strict=True))

    def fit(members: list[int]) -> float:
        return best_threshold([scores[t] for t in members], [cases[t].label for t in members]).threshold

    entries = []
    for rule in rules:
        applied = thresholds(rule, [c.trace.problem_id for c in cases], [c.subset for c in cases], fit)
        rows = zip(scores, applied.of_trace, known, strict=True)
        said = [first_error_below(row, cut) if count else None for row, cut, count in rows]
        entries.append(
            _Entry(system=system, rule=applied.rule, applied=applied, predicted=said, partial=partial)
        )
    return entries


def _score(board: Board, entry: _Entry, reference: _Entry) -> ProcessBenchScore:
    applied, said = entry.applied, entry.predicted
    is_first = entry.system is reference.system
    return ProcessBenchScore(
        system=entry.system.name,
        kind=entry.system.kind,
        rule=entry.rule,
        thresholds=dict(applied.values) if applied else {},
        fitted_on=applied.fitted_on if applied else "labels have no threshold",
        seen=applied.seen if applied else None,
        average_f1=board.average_f1(said),
        difference=None if is_first else board.difference(said, reference.predicted),
        subsets={name: board.found(said, members) for name, members in board.subsets.items()},
        parts=board.parts(said),
        partial=entry.partial,
    )


def _label(item: LabelledTrace) -> int:
    rule = LabelRule(neutral="good", good_above=None)
    good: list[bool | None] = [None] * len(item.trace.steps)
    for label in item.labels:
        if (value := rule.good(label)) is not None:
            good[label.step] = value
    first = first_error(good)
    if first is None:
        raise LabelError(
            f"trace {item.trace.id}: a step without a correctness label leaves its first error open; "
            "label every step up to the first error"
        )
    return first
