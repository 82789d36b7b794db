"""PRMBench (Song et al., arXiv 2501.03124) for any number of scorers and judges, side by side.

Steps are kept or flagged, against steps valid or wrong. The positive class is the valid step: TP valid and
kept, FN valid but flagged, FP wrong but kept, TN wrong and flagged. PRMScore = 0.5 F1 + 0.5 F1_neg, where
F1_neg is the F1 of the wrong steps. F1 = 2 TP / (2 TP + FP + FN) is 0 without a hit and NaN for 0/0 (no such
step, and none predicted); the published script uses −1 for an undefined precision or recall, which can enter
its F1.

As in the published evaluation: a step is kept if its score is above the threshold (0.5); counts are pooled
over all steps of a class, and over all classes for the total; the score of a class group is the mean of its
classes; ``multi_solutions``, which has only valid steps, is scored by F1 alone; a control (the unmodified
process) enters only the similarity; repeated rows are left out; a trace without any verdict is left out, and
``parsed`` is the share of the others. Redundancy scores, if given, judge the classes of simplicity: a step
above the redundancy threshold (0.15) is flagged.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from surefoot.errors import LabelError
from surefoot.evaluation.benchmarks.processbench import Missing
from surefoot.evaluation.frame import Card, Question, card
from surefoot.evaluation.report import Plot, Section
from surefoot.evaluation.splits import (
    LABELLED,
    POSITIONS,
    SPLIT,
    RuleScore,
    Thresholds,
    position_of,
    ranked,
    threshold_above,
    thresholds,
)
from surefoot.evaluation.step_layout import FloatArray
from surefoot.evaluation.step_scores import System, SystemCounts, recorded_by_all
from surefoot.labels import LabelRule, binary_labels
from surefoot.protocols import LabelledTrace
from surefoot.stats.bootstrap import Bootstrap, group_sums
from surefoot.stats.intervals import Interval

TP, FP, FN, TN = range(4)
"""Columns of the counts."""

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
_KINDS = [kind for group in GROUPS.values() for kind in group]
_BLOCKS = ["", *_KINDS, *POSITIONS]
"""Blocks of four counts: the total, each class, each position."""


def f1(counts: FloatArray) -> FloatArray:
    """F1 of the valid steps; ``counts`` is [..., 4], the result [...]."""
    return _f1(counts[..., TP], counts[..., FP] + counts[..., FN])


def f1_negative(counts: FloatArray) -> FloatArray:
    """F1 of the wrong steps; ``counts`` is [..., 4], the result [...]."""
    return _f1(counts[..., TN], counts[..., FP] + counts[..., FN])


def prm_score(counts: FloatArray) -> FloatArray:
    """0.5 F1 + 0.5 F1_neg; ``counts`` is [..., 4], the result [...]."""
    return (f1(counts) + f1_negative(counts)) / 2


def best_flag_threshold(scores: Sequence[float], good: Sequence[bool]) -> float:
    """The threshold with the highest PRMScore if steps with a higher score are kept; both are [steps].

    Cuts lie midway between neighbouring distinct scores; the lowest of equally good ones wins.
    O(steps log steps). Raises ``LabelError`` if lengths differ or a class (valid, wrong) is absent: the score
    is then undefined or 0 at every cut.
    """
    if len(scores) != len(good):
        raise LabelError(f"'scores' has {len(scores)} steps and 'good' has {len(good)}")
    valid = np.array(good, dtype=bool)
    if not valid.any() or valid.all():
        raise LabelError("a threshold needs both valid and wrong steps")
    distinct, position = np.unique(np.array(scores, dtype=float), return_inverse=True)
    # cut j flags the j lowest distinct scores
    flagged_good = np.r_[0, np.bincount(position[valid], minlength=len(distinct)).cumsum()]
    flagged_bad = np.r_[0, np.bincount(position[~valid], minlength=len(distinct)).cumsum()]
    counts = np.empty((len(distinct) + 1, 4))
    counts[:, TP], counts[:, FN] = valid.sum() - flagged_good, flagged_good
    counts[:, FP], counts[:, TN] = (~valid).sum() - flagged_bad, flagged_bad
    score = prm_score(counts)
    cut = int(np.flatnonzero(score >= np.nanmax(score) - 1e-12)[0])
    # kept scores lie above the threshold, so negated ones lie below it
    return -threshold_above(-distinct[::-1], len(distinct) - cut)


def _f1(hits: FloatArray, misses: FloatArray) -> FloatArray:
    with np.errstate(invalid="ignore"):  # 0/0 is undefined, so NaN is intended
        result: FloatArray = 2 * hits / (2 * hits + misses)
    return result


Verdicts = Sequence[Sequence[bool | None]]
"""[traces][steps]: kept (True), flagged (False), no verdict."""


@dataclass(frozen=True, kw_only=True)
class PRMBenchCase:
    """One trace of the benchmark."""

    item: LabelledTrace
    kind: str
    """Its class."""
    problem: str
    """The resampled unit: traces of one problem are correlated."""
    good: tuple[bool, ...]
    """Whether each step is valid."""

    @property
    def first_error(self) -> int | None:
        """The first wrong step."""
        return self.good.index(False) if False in self.good else None


@dataclass(frozen=True, kw_only=True)
class ClassFlags:
    """Steps of one class, or of one position over all classes; 95 % intervals over problems."""

    score: Interval
    """PRMScore; for the class without wrong steps, F1."""
    f1: Interval
    f1_negative: Interval
    tp: int
    """Valid and kept."""
    fp: int
    fn: int
    tn: int
    """Wrong and flagged."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Verdicts against the truth over all traces without the controls."""

    total: ClassFlags
    classes: Mapping[str, ClassFlags]
    groups: Mapping[str, Interval]
    """Mean of the scores of the group's classes; NaN if one of them is."""
    positions: Mapping[str, ClassFlags]
    """By index of the step."""
    accuracy: Interval
    """Of all steps."""
    accuracy_good: Interval
    """Of valid steps."""
    accuracy_bad: Interval
    """Of wrong steps."""
    first_error: Interval
    """Share of traces with a wrong step whose first one is flagged."""
    similarity: float
    """Mean |share of steps kept - share kept of the control|, over traces with a control. As in the published
    script, a pair is left out if no step of its control is kept."""
    pairs: int
    """Pairs of trace and control in the similarity."""
    parsed: float
    """Share of traces with at least one verdict."""
    unparsed: int
    unjudged_steps: int
    """Steps without verdict, unparsed traces' included; not counted."""


class StepFlagEvaluator:
    """Compares any number of verdicts with the truth of the same traces, with the same bootstrap samples."""

    def __init__(self, cases: Sequence[PRMBenchCase], *, draws: int, seed: int) -> None:
        self.cases, self._bootstrap = cases, Bootstrap(draws=draws, seed=seed)
        self._tested = [t for t, case in enumerate(cases) if case.kind != CONTROL]
        self.classes: Mapping[str, int] = dict(Counter(cases[t].kind for t in self._tested))
        """Traces of each class."""

    def evaluate(self, verdicts: Verdicts) -> Flags:
        """All measures of one system's verdicts, one list per case."""
        rows = self._by_problem(verdicts)
        intervals = self._bootstrap.totals([rows], self._statistics)
        totals = rows.sum(axis=0)[:-2].reshape(-1, 4).astype(int).tolist()
        blocks = {}
        for at, (name, (tp, fp, fn, tn)) in enumerate(zip(_BLOCKS, totals, strict=True)):
            score, positive, negative = intervals[3 * at : 3 * at + 3]
            blocks[name] = ClassFlags(
                score=score, f1=positive, f1_negative=negative, tp=tp, fp=fp, fn=fn, tn=tn
            )
        accuracy, accuracy_good, accuracy_bad, first_error, *groups = intervals[3 * len(_BLOCKS) :]
        similarity, pairs = self._similarity(verdicts)
        judged = sum(any(keep is not None for keep in verdicts[t]) for t in self._tested)
        return Flags(
            total=blocks[""],
            classes={kind: blocks[kind] for kind in _KINDS},
            groups=dict(zip(GROUPS, groups, strict=True)),
            positions={name: blocks[name] for name in POSITIONS},
            accuracy=accuracy,
            accuracy_good=accuracy_good,
            accuracy_bad=accuracy_bad,
            first_error=first_error,
            similarity=similarity,
            pairs=pairs,
            parsed=judged / len(self._tested),
            unparsed=len(self._tested) - judged,
            unjudged_steps=sum(keep is None for t in self._tested for keep in verdicts[t]),
        )

    def _by_problem(self, verdicts: Verdicts) -> FloatArray:
        """Counts of each problem: the blocks, then first errors flagged and first errors."""
        rows = np.zeros((len(self._tested), 4 * len(_BLOCKS) + 2))
        for row, t in zip(rows, self._tested, strict=True):
            case, verdict = self.cases[t], verdicts[t]
            blocks = row[:-2].reshape(-1, 4)
            for step, (keep, good) in enumerate(zip(verdict, case.good, strict=True)):
                if keep is not None:
                    names = ("", case.kind, position_of(step))
                    cell = (TP if good else FP) if keep else (FN if good else TN)
                    blocks[[_BLOCKS.index(name) for name in names], cell] += 1
            first = case.first_error
            if first is not None and verdict[first] is not None:
                row[-2:] = (not verdict[first], 1)
        return group_sums(rows, [self.cases[t].problem for t in self._tested])

    def _statistics(self, totals_n1c: FloatArray) -> FloatArray:
        """Score, F1 and F1_neg of each block, four accuracies, the groups' scores: [n, K]."""
        totals = totals_n1c[:, 0]
        counts = totals[:, :-2].reshape(len(totals), -1, 4)
        positive, negative, score = f1(counts), f1_negative(counts), prm_score(counts)
        alone = _BLOCKS.index(F1_ALONE)
        score[:, alone] = positive[:, alone]
        blocks = np.stack([score, positive, negative], axis=2).reshape(len(totals), -1)
        total = counts[:, 0]
        good, bad = total[:, TP] + total[:, FN], total[:, TN] + total[:, FP]
        with np.errstate(invalid="ignore"):  # 0/0 is undefined, so NaN is intended
            shares = [
                (total[:, TP] + total[:, TN]) / (good + bad),
                total[:, TP] / good,
                total[:, TN] / bad,
                totals[:, -2] / totals[:, -1],
            ]
        groups = [score[:, [_BLOCKS.index(kind) for kind in group]].mean(axis=1) for group in GROUPS.values()]
        return np.concatenate([blocks, np.stack([*shares, *groups], axis=1)], axis=1)

    def _similarity(self, verdicts: Verdicts) -> tuple[float, int]:
        shares = {}
        for case, verdict in zip(self.cases, verdicts, strict=True):
            judged = [keep for keep in verdict if keep is not None]
            shares[case.kind, case.problem] = sum(judged) / len(judged) if judged else None
        gaps = []
        for t in self._tested:
            share = shares[self.cases[t].kind, self.cases[t].problem]
            control = shares.get((CONTROL, self.cases[t].problem))
            if share is not None and control:
                gaps.append(abs(share - control))
        return (sum(gaps) / len(gaps) if gaps else math.nan), len(gaps)


@dataclass(frozen=True, kw_only=True)
class PRMBenchScore(RuleScore):
    """One system under one rule for its threshold."""

    redundancy_threshold: float | None
    """``None`` without redundancy scores: simplicity is then judged like the other classes."""
    flags: Flags


@dataclass(frozen=True, kw_only=True)
class PRMBenchEvaluation:
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


@dataclass(frozen=True, kw_only=True)
class PRMBenchCases:
    """The traces of a file and the number of repeated rows."""

    cases: tuple[PRMBenchCase, ...]
    repeated: int


def prmbench_cases(items: Sequence[LabelledTrace]) -> PRMBenchCases:
    """Cases from what ``read_prmbench`` and ``read_prmbench_controls`` give; controls have class "correct".

    Raises ``LabelError`` for a trace without ``idx`` and a known class in its ``meta``, or with a step
    without a correctness label.
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
    is left out for every system, or, if ``missing`` is ``wrong``, stays without a verdict for this system.
    Controls do not need a record. Steps without verdict are not counted, but reported. Intervals resample
    problems (``idx``), with fixed thresholds.

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
    evaluator = StepFlagEvaluator([cases[t] for t in used], draws=draws, seed=seed)
    scores = [
        PRMBenchScore(
            **applied.of(system),
            redundancy_threshold=redundancy_threshold if system.name in redundancy else None,
            flags=evaluator.evaluate(verdicts),
        )
        for system in systems
        for applied, verdicts in _verdicts(
            system, redundancy.get(system.name), redundancy_threshold, used, evaluator.cases, rules
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
    )


def _verdicts(
    system: System,
    redundancy: System | None,
    redundancy_threshold: float,
    used: Sequence[int],
    cases: Sequence[PRMBenchCase],
    rules: Sequence[str | float],
) -> Iterator[tuple[Thresholds, list[list[bool | None]]]]:
    """The thresholds and the verdicts under each rule."""
    if system.kind == "labels":
        yield LABELLED, [system.good[t] for t in used]
        return
    rows = [system.scores[t] for t in used]
    redundant = {
        at: [None if score is None else score <= redundancy_threshold for score in redundancy.scores[t]]
        for at, t in enumerate(used)
        if redundancy and cases[at].kind in GROUPS["simplicity"]
    }

    def fit(members: list[int]) -> float:
        scored = [
            (score, good)
            for t in members
            if cases[t].kind != CONTROL and t not in redundant
            for score, good in zip(rows[t], cases[t].good, strict=True)
            if score is not None
        ]
        return best_flag_threshold([score for score, _ in scored], [good for _, good in scored])

    for rule in rules:
        applied = thresholds(rule, [case.problem for case in cases], [case.kind for case in cases], fit)
        yield (
            applied,
            [
                redundant.get(t) or [None if score is None else score > cut for score in row]
                for t, (row, cut) in enumerate(zip(rows, applied.of_trace, strict=True))
            ],
        )


def _case(item: LabelledTrace) -> PRMBenchCase:
    trace = item.trace
    kind, problem = trace.meta.get("classification"), trace.meta.get("idx")
    if not isinstance(problem, str) or kind not in {CONTROL, *_KINDS}:
        raise LabelError(
            f"trace {trace.id}: its 'meta' has class {kind!r} and idx {problem!r}; "
            "give PRMBench's own rows, with one of its classes"
        )
    rule = LabelRule(neutral="bad", good_above=None)
    good = [label.good for label in binary_labels(item.labels, len(trace.steps), rule)]
    labelled = tuple(value for value in good if value is not None)
    if len(labelled) < len(good):
        raise LabelError(f"trace {trace.id}: step {good.index(None) + 1} needs a correctness label")
    return PRMBenchCase(item=item, kind=kind, problem=problem, good=labelled)


def blind_prm_score(flags: ClassFlags) -> float:
    """The highest PRMScore of verdicts that do not depend on the step, over the share of steps kept."""
    valid, wrong = flags.tp + flags.fn, flags.fp + flags.tn
    share = np.linspace(0, 1, 1001)[:, None]
    counts = np.concatenate([valid * share, wrong * share, valid * (1 - share), wrong * (1 - share)], axis=1)
    return float(np.nanmax(prm_score(counts)))


def _cards(score: PRMBenchScore, traces: int) -> list[Card]:
    """PRMScore overall, and in the weakest group."""
    flags, blind = score.flags, blind_prm_score(score.flags.total)
    groups = {name: group for name, group in flags.groups.items() if not math.isnan(group.value)}
    weakest = min(groups, key=lambda name: groups[name].value, default="")
    estimates: list[tuple[Question, Interval, str]] = [("reads", flags.total.score, "over all steps")]
    estimates += [("trust", groups[weakest], f"of {weakest}, its weakest group")] if weakest else []
    text = f"(rule {score.rule}). Verdicts that do not read the step reach {blind:.2f}."
    return [
        card(question, estimate, f"is the PRMScore {where} {text}", traces, "traces", null=blind)
        for question, estimate, where in estimates
    ]


def prmbench_section(result: PRMBenchEvaluation) -> Section:
    """PRMScore overall, by group, class and position."""
    order = ranked(result.scores, lambda score: score.flags.total.score.value)
    return Section(
        title="PRMBench",
        tested="wrong steps on public benchmarks",
        about=f"{result.traces} traces and {result.controls} controls; {result.left_out} left out because a "
        f"source lacks them, {result.repeated} as repeated rows. PRMScore is 0.5 F1 + 0.5 F1_neg "
        "over all steps: F1 of the valid steps and F1_neg of the wrong ones; a group's score is the mean "
        "of its classes. multi_solutions has valid steps only and is scored by F1 alone. Controls enter "
        "the similarity only. Rule 'split': the threshold was fitted on the other half of the problems. "
        f"Intervals are 95 %, by bootstrap over problems, with fixed "
        "thresholds.",
        results=result,
        cards={score.system: _cards(score, result.traces) for score in order},
        limits=[
            f"{result.traces} traces of mathematics; {result.left_out} left out because a source lacks them."
        ],
        plots=[
            Plot("scores.flags.total", "PRMScore over all steps with 95 % intervals.", y=("score",)),
            Plot("scores.flags.positions", "PRMScore by number of the step.", x="positions", y=("score",)),
        ],
    )
