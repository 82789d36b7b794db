"""PRMBench (Song et al., arXiv 2501.03124) for any number of scorers and judges, side by side.

Steps are kept or flagged, against steps valid or wrong. The positive class is the valid step: TP valid and
kept, FN valid but flagged, FP wrong but kept, TN wrong and flagged. PRMScore = 0.5 F1 + 0.5 F1_neg, where
F1_neg is the F1 of the wrong steps. F1 = 2 TP / (2 TP + FP + FN) is 0 without a hit and NaN for 0/0 (no such
step, and none predicted); the published script uses −1 for an undefined precision or recall, which can enter
its F1.

As in the published evaluation: a step is kept if its score is above the threshold (0.5); counts are pooled
over all steps of a class, and over all classes for the total; the score of a class group is the mean of its
classes; ``multi_solutions``, which has only valid steps, is scored by F1 alone; repeated rows are left out; a
trace without any verdict is left out, and ``parsed`` is the share of the others. The similarity to controls
(the unmodified processes) is not measured.

Figures, with 95 % intervals over problems and fixed thresholds: ``score``, ``f1``, ``f1_negative`` and the
four counts in ``total`` and each of ``classes``; ``groups``, NaN if a class is; ``accuracy`` of all, valid
(``_good``) and wrong (``_bad``) steps; ``first_error``, the share of traces with a wrong step whose first one
is flagged; ``unjudged_steps`` without a verdict, which are not counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from surefoot.errors import LabelError, counted
from surefoot.evaluation.benchmarks.processbench import Missing
from surefoot.evaluation.measures import Measured, Ratios
from surefoot.evaluation.report import Section
from surefoot.evaluation.splits import SPLIT, ranked, readings, threshold_above
from surefoot.evaluation.step_scores import System, recorded_by_all
from surefoot.evaluation.verdict import Conclusion, Counts, detected, measured
from surefoot.labels import LabelRule, binary_labels
from surefoot.protocols import LabelledTrace
from surefoot.stats.bootstrap import Bootstrap, FloatArray

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
_KINDS = [kind for group in GROUPS.values() for kind in group]
_BLOCKS = ["", *_KINDS]
"""Blocks of four counts: the total, and each class."""


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


Verdicts = Sequence[FloatArray]
"""[traces][steps]: 1 kept, 0 flagged, NaN without a verdict."""


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


def _scores(totals: FloatArray) -> list[FloatArray]:
    counts = totals[:, 0]
    return [prm_score(counts), f1(counts), f1_negative(counts)]


_COUNTS = {"tp": TP, "fp": FP, "fn": FN, "tn": TN}
_FLAGS = Ratios(names=("score", "f1", "f1_negative"), of=_scores, totals=_COUNTS)
_F1_FLAGS = Ratios(names=_FLAGS.names, of=lambda t: [f1(t[:, 0]), *_scores(t)[1:]], totals=_COUNTS)


def _of_groups(totals: FloatArray) -> list[FloatArray]:
    """Of counts [n, 1, blocks x 4]: the mean score of each group's classes."""
    counts = totals[:, 0].reshape(len(totals), -1, 4)
    score = prm_score(counts)
    score[:, _BLOCKS.index(F1_ALONE)] = f1(counts[:, _BLOCKS.index(F1_ALONE)])
    return [score[:, [_BLOCKS.index(kind) for kind in group]].mean(axis=1) for group in GROUPS.values()]


def _accuracies(totals: FloatArray) -> list[FloatArray]:
    """Of the total's counts, first errors flagged, and first errors."""
    tp, fp, fn, tn, flagged, firsts = np.moveaxis(totals[:, 0], -1, 0)
    return [(tp + tn) / (tp + fp + fn + tn), tp / (tp + fn), tn / (tn + fp), flagged / firsts]


_GROUPS = Ratios(names=tuple(GROUPS), of=_of_groups)
_ACCURACY = Ratios(names=("accuracy", "accuracy_good", "accuracy_bad", "first_error"), of=_accuracies)


def _flags(cases: Sequence[PRMBenchCase], verdicts: Verdicts, bootstrap: Bootstrap) -> Measured:
    """All figures of one system's verdicts."""
    tested = list(zip(cases, verdicts, strict=True))
    blocks, firsts = np.zeros((len(tested), len(_BLOCKS), 4)), np.zeros((len(tested), 2))
    for row, first_row, (case, verdict) in zip(blocks, firsts, tested, strict=True):
        for step in np.flatnonzero(~np.isnan(verdict)).tolist():
            cell = (TP if case.good[step] else FP) if verdict[step] else (FN if case.good[step] else TN)
            row[[_BLOCKS.index(name) for name in ("", case.kind)], cell] += 1
        if (first := case.first_error) is not None and not np.isnan(verdict[first]):
            first_row[:] = not verdict[first], 1
    problems = [case.problem for case, _ in tested]

    def of(name: str) -> Measured:
        rates = _F1_FLAGS if name == F1_ALONE else _FLAGS
        return rates.row(bootstrap, blocks[:, _BLOCKS.index(name)], problems)

    unparsed = sum(bool(np.isnan(verdict).all()) for _, verdict in tested)
    return Measured(
        total=of(""),
        classes={kind: of(kind) for kind in _KINDS},
        groups=_GROUPS.row(bootstrap, blocks.reshape(len(tested), -1), problems),
        **_ACCURACY.row(bootstrap, np.concatenate([blocks[:, 0], firsts], axis=1), problems),
        parsed=1 - unparsed / len(tested),
        unparsed=unparsed,
        unjudged_steps=sum(int(np.isnan(verdict).sum()) for _, verdict in tested),
    )


@dataclass(frozen=True, kw_only=True)
class PRMBenchCases:
    """The traces of a file and the number of repeated rows."""

    cases: tuple[PRMBenchCase, ...]
    repeated: int


def prmbench_cases(items: Sequence[LabelledTrace]) -> PRMBenchCases:
    """Cases from what ``read_prmbench`` gives.

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
    rules: Sequence[str | float] = (0.5, SPLIT),
    missing: Missing = "leave-out",
    draws: int = 1000,
    seed: int = 0,
) -> Measured:
    """Compare ``systems`` (aligned with the traces of the cases) with the truth under each rule.

    A trace without a record of some system is left out for every system, or, if ``missing`` is ``wrong``,
    stays without a verdict for this system.

    Raises ``LabelError`` for no cases or systems, and where a threshold cannot be fitted; ``ScoreError`` if
    no trace has a record of every system.
    """
    cases = data.cases
    if not cases or not systems:
        raise LabelError("give at least one trace, and one scorer or judge")
    used = recorded_by_all(systems) if missing == "leave-out" else list(range(len(cases)))
    chosen, bootstrap = [cases[t] for t in used], Bootstrap(draws=draws, seed=seed)
    scores = []
    for system in systems:
        rows = [(system.scores if system.kind == "scores" else system.good).array(t) for t in used]

        def fit(members: list[int], rows: Verdicts = rows) -> float:
            values = np.concatenate([rows[t] for t in members] or [np.empty(0)])
            good = np.array([step for t in members for step in chosen[t].good], dtype=bool)
            scored = ~np.isnan(values)
            return best_flag_threshold(values[scored].tolist(), good[scored].tolist())

        names = [case.problem for case in chosen], [case.kind for case in chosen]
        for applied in readings(system, rules, *names, fit):
            cuts = applied.of_trace or (0.5,) * len(rows)
            verdicts = [
                np.where(np.isnan(row), np.nan, row > cut) for row, cut in zip(rows, cuts, strict=True)
            ]
            scores.append(applied.score(system, flags=_flags(chosen, verdicts, bootstrap)))
    return Measured(
        traces=len(used),
        repeated=data.repeated,
        left_out=len(cases) - len(used),
        classes=dict(Counter(case.kind for case in chosen)),
        systems=[system.summary() for system in systems],
        scores=scores,
    )


def _case(item: LabelledTrace) -> PRMBenchCase:
    trace = item.trace
    kind, problem = trace.meta.get("classification"), trace.meta.get("idx")
    if not isinstance(problem, str) or kind not in _KINDS:
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


def blind_prm_score(flags: Measured) -> float:
    """The highest PRMScore of verdicts that do not depend on the step, over the share of steps kept."""
    valid, wrong = flags.tp + flags.fn, flags.fp + flags.tn
    share = np.linspace(0, 1, 1001)[:, None]
    counts = np.concatenate([valid * share, wrong * share, valid * (1 - share), wrong * (1 - share)], axis=1)
    return float(np.nanmax(prm_score(counts)))


def _verdicts(score: Measured, traces: int) -> Iterator[Conclusion]:
    """PRMScore overall, and in the weakest group."""
    flags, total = score.flags, score.flags.total
    blind = blind_prm_score(total)
    counts = Counts(
        found=total.tn,
        wrong=total.tn + total.fp,
        alarms=total.fn,
        right=total.tp + total.fn,
        of=total.tp + total.fp + total.tn + total.fn + flags.unjudged_steps,
        what="wrong step",
        unit="step",
    )
    rival = "verdicts that do not read"
    text = f"(rule {score.rule}); verdicts that do not read the step reach {blind:.2f}."
    overall = f"is the PRMScore over all steps {text}"
    yield detected(counts, total.score, overall, traces, rival=rival, null=blind)
    groups = {name: group for name, group in flags.groups.items() if not math.isnan(group.value)}
    if groups:
        weakest = min(groups, key=lambda name: groups[name].value)
        text = f"is the PRMScore of {weakest}, its weakest group {text}"
        rival += f" on {weakest}"
        yield measured("single steps", groups[weakest], text, traces, "traces", null=blind, rival=rival)


def prmbench_section(result: Measured) -> Section:
    """PRMScore overall, by group and class."""
    order = ranked(result.scores, lambda score: score.flags.total.score.value)
    size = counted(result.traces, "trace")
    return Section(
        title="PRMBench",
        tested="wrong steps on public benchmarks",
        about=f"{size}; {result.left_out} left out because a source lacks them, "
        f"{result.repeated} as repeated rows. PRMScore is 0.5 F1 + 0.5 F1_neg over all steps: F1 of the "
        "valid steps and F1_neg of the wrong ones; a group's score is the mean of its classes. "
        "multi_solutions has valid steps only and is scored by F1 alone. Rule 'split': the threshold was "
        "fitted on the other half of the problems. Intervals are 95 %, by bootstrap over problems, with "
        "fixed thresholds.",
        results=result,
        verdicts={score.system: list(_verdicts(score, result.traces)) for score in order},
        limits=[f"{size} of mathematics; {result.left_out} that a source lacks left out."],
    )
