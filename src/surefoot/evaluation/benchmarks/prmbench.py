"""PRMBench (Song et al., arXiv 2501.03124) for any number of scorers and judges, side by side.

As in the published evaluation: a step is kept if its score is above the threshold (0.5); counts are pooled
over all steps of a class, and over all classes for the total; the score of a class group is the mean of its
classes; ``multi_solutions``, which has only valid steps, is scored by F1 alone; a control (the unmodified
process) enters only the similarity; repeated rows are left out; a trace without any verdict is left out, and
``parsed`` is the share of the others. Redundancy scores, if given, judge the classes of simplicity: a step
above the redundancy threshold (0.15) is flagged. The metric is in ``step_flags``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from surefoot.errors import LabelError
from surefoot.evaluation.benchmarks.processbench import Missing
from surefoot.evaluation.benchmarks.step_flags import (
    Flags,
    PRMBenchCase,
    StepFlagEvaluator,
    best_flag_threshold,
)
from surefoot.evaluation.report import JSONResult, Plot, Section
from surefoot.evaluation.splits import SPLIT, RuleScore, rules_of
from surefoot.evaluation.step_scores import System, SystemCounts, recorded_by_all
from surefoot.labels import LabelRule, binary_labels
from surefoot.protocols import LabelledTrace

GROUPS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "simplicity": {"redundency": "NR", "circular": "NCL"},
        "soundness": {
            "counterfactual": "ES",
            "step_contradiction": "SC",
            "domain_inconsistency": "DC",
            "confidence": "CI",
        },
        "sensitivity": {"missing_condition": "PS", "deception": "DR", "multi_solutions": "MS"},
    }
)
"""Classes by group, with the paper's abbreviations; ``redundency`` is spelt as in the data."""

F1_ALONE = "multi_solutions"
CONTROL = "correct"
REDUNDANCY_THRESHOLD = 0.15


@dataclass(frozen=True, kw_only=True)
class PRMBenchScore(RuleScore):
    """One system under one rule for its threshold."""

    redundancy_threshold: float | None
    """``None`` without redundancy scores: simplicity is then judged like the other classes."""
    flags: Flags


@dataclass(frozen=True, kw_only=True)
class PRMBenchEvaluation(JSONResult):
    """All systems over the same traces."""

    traces: int
    """Without controls."""
    controls: int
    repeated: int
    """Rows with the class and ``idx`` of an earlier row; left out."""
    left_out: int
    """Traces without a record of some system; no system is judged on them."""
    classes: Mapping[str, int]
    """Traces of each class."""
    systems: tuple[SystemCounts, ...]
    scores: tuple[PRMBenchScore, ...]
    settings: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class PRMBenchCases:
    """The traces of a file and the number of repeated rows."""

    cases: tuple[PRMBenchCase, ...]
    repeated: int


def prmbench_cases(items: Sequence[LabelledTrace]) -> PRMBenchCases:
    """Cases from what ``read_prmbench`` and ``read_prmbench_controls`` give; controls have class "correct".

    Raises ``LabelError`` for a trace without ``idx`` and a known class in its ``meta``, or with a step that
    has no correctness label.
    """
    cases: dict[tuple[str, str], PRMBenchCase] = {}
    for item in items:
        case = _case(item)
        cases.setdefault((case.kind, case.problem), case)
    return PRMBenchCases(cases=tuple(cases.values()), repeated=len(items) - len(cases))


def evaluate_prmbench(
    data: PRMBenchCases,
    systems: Sequence[System],
    *,
    redundancy: Mapping[str, System] | None = None,
    redundancy_threshold: float = REDUNDANCY_THRESHOLD,
    rules: Sequence[str | float] = (0.5, SPLIT),
    missing: Missing = "leave-out",
    draws: int = 1000,
    seed: int = 0,
) -> PRMBenchEvaluation:
    """Compare ``systems`` (aligned with the traces of the cases) with the truth under each rule.

    ``redundancy`` has the redundancy scores of a system by its name. A trace without a record of some system
    is left out for every system, or, if ``missing`` is ``wrong``, has no verdict for this system. Controls
    need no record. Steps without verdict are not counted, but reported. Intervals resample problems
    (``idx``), with fixed thresholds.

    Raises ``LabelError`` for no cases or systems, redundancy scores of an unknown system, and where a
    threshold cannot be fitted; ``ScoreError`` if no trace has a record of every system.
    """
    redundancy = redundancy or {}
    cases = data.cases
    tested = [t for t, case in enumerate(cases) if case.kind != CONTROL]
    if not tested or not systems:
        raise LabelError("give at least one trace besides the controls, and one scorer or judge")
    if unknown := sorted(set(redundancy) - {s.name for s in systems if s.kind == "scores"}):
        raise LabelError(f"redundancy scores of {unknown[0]!r}, which is not a scorer under evaluation")
    common = set(tested)
    if missing == "leave-out":
        common = set(recorded_by_all(systems, tested))
        simple = [t for t in common if cases[t].kind in GROUPS["simplicity"]]
        if redundancy and simple:  # redundancy is read for these classes only
            common -= set(simple) - set(recorded_by_all(list(redundancy.values()), simple))
    used = [t for t, case in enumerate(cases) if t in common or case.kind == CONTROL]
    evaluator = StepFlagEvaluator(
        [cases[t] for t in used], draws=draws, seed=seed, groups=GROUPS, f1_alone=F1_ALONE, control=CONTROL
    )
    scores = [
        score
        for system in systems
        for score in _scores(
            evaluator, system, redundancy.get(system.name), redundancy_threshold, used, rules
        )
    ]
    return PRMBenchEvaluation(
        traces=len(common),
        controls=len(used) - len(common),
        repeated=data.repeated,
        left_out=len(tested) - len(common),
        classes=evaluator.classes,
        systems=tuple(system.summary() for system in systems),
        scores=tuple(scores),
        settings={
            "rules": list(rules),
            "redundancy_threshold": redundancy_threshold,
            "missing": missing,
            "draws": draws,
            "seed": seed,
        },
    )


def _scores(
    evaluator: StepFlagEvaluator,
    system: System,
    redundancy: System | None,
    redundancy_threshold: float,
    used: Sequence[int],
    rules: Sequence[str | float],
) -> list[PRMBenchScore]:
    cases = evaluator.cases
    rows = [] if system.kind == "labels" else [system.scores[t] for t in used]
    redundant = [redundancy.scores[t] for t in used] if redundancy else None
    simple = [redundant is not None and case.kind in GROUPS["simplicity"] for case in cases]

    def fit(members: list[int]) -> float:
        scored = [
            (score, good)
            for t in members
            if cases[t].kind != CONTROL and not simple[t]
            for score, good in zip(rows[t], cases[t].good, strict=True)
            if score is not None
        ]
        return best_flag_threshold([score for score, _ in scored], [good for _, good in scored])

    results = []
    for applied in rules_of(
        system, rules, [case.problem for case in cases], [case.kind for case in cases], fit
    ):
        verdicts: list[list[bool | None]] = [
            [None if score is None else score <= redundancy_threshold for score in redundant[t]]
            if redundant is not None and simple[t]
            else [None if score is None else score > threshold for score in rows[t]]
            for t, threshold in enumerate(applied.of_trace)
        ]
        if system.kind == "labels":
            verdicts = [system.good[t] for t in used]
        results.append(
            PRMBenchScore(
                system=system.name,
                kind=system.kind,
                rule=applied.rule,
                thresholds=dict(applied.values),
                fitted_on=applied.fitted_on,
                redundancy_threshold=None if redundant is None else redundancy_threshold,
                flags=evaluator.evaluate(verdicts),
            )
        )
    return results


def _case(item: LabelledTrace) -> PRMBenchCase:
    trace = item.trace
    kind, problem = trace.meta.get("classification"), trace.meta.get("idx")
    if not isinstance(problem, str) or kind not in {
        CONTROL,
        *(c for group in GROUPS.values() for c in group),
    }:
        raise LabelError(
            f"trace {trace.id}: its 'meta' has class {kind!r} and idx {problem!r}; "
            "give PRMBench's own rows, with one of its classes"
        )
    rule = LabelRule(neutral="bad", good_above=None)
    good = [label.good for label in binary_labels(item.labels, len(trace.steps), rule)]
    labelled = tuple(value for value in good if value is not None)
    if len(labelled) < len(good):
        raise LabelError(f"trace {trace.id}: step {good.index(None)} needs a correctness label")
    return PRMBenchCase(item=item, kind=kind, problem=problem, good=labelled)


def prmbench_section(result: PRMBenchEvaluation) -> Section:
    """PRMScore overall, by group, class and position."""
    return Section(
        title="PRMBench",
        about=f"{result.traces} traces and {result.controls} controls; {result.left_out} left out because a "
        f"source has no record of them, {result.repeated} as repeated rows. PRMScore is 0.5 F1 + 0.5 F1_neg "
        "over all steps: F1 of the valid steps and F1_neg of the wrong ones; a group's score is the mean "
        "of its classes. multi_solutions has valid steps only and is scored by F1 alone. Controls enter "
        "the similarity only. Rule 'split': the threshold was fitted on the other half of the problems. "
        f"Intervals are 95 %, from {result.settings['draws']} bootstrap draws of problems, with fixed "
        "thresholds.",
        results=result,
        plots=[
            Plot("scores.flags.total", "PRMScore over all steps with 95 % intervals.", y=("score",)),
            Plot("scores.flags.positions", "PRMScore by the index of the step.", x="positions", y=("score",)),
        ],
        printed=("systems", "scores.flags", "scores.flags.total", "scores.flags.groups"),
    )
