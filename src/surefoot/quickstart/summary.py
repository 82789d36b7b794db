"""The fields of ``summary.json``, its findings in sentences, and ``report.html``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer

from surefoot.evaluation.best_of_n import RULE_NAMES
from surefoot.evaluation.plots import curve_figure
from surefoot.evaluation.report import Report
from surefoot.io import write_json
from surefoot.records import FrozenModel, Usage
from surefoot.scores import AGGREGATORS
from surefoot.search.selection import COMMON_RULES
from surefoot.stats.intervals import Interval

Number = Annotated[
    float,
    BeforeValidator(lambda value: math.nan if value is None else value),
    PlainSerializer(lambda value: None if math.isnan(value) else value, when_used="json"),
]
"""A number that may be undefined (a share of nothing): NaN in Python, ``null`` in JSON."""

Estimate = Annotated[Interval, PlainSerializer(lambda x: {"value": x.value, "low": x.low, "high": x.high})]
"""An accuracy or difference with its 95 % interval over problems (percentile bootstrap)."""

Curve = dict[int, Estimate]
"""Number of samples N → accuracy."""

RULES = tuple(f"{RULE_NAMES[rule]} {how}" for rule in COMMON_RULES for how in AGGREGATORS)
"""Every way to choose by step scores: how many scores become one, and best-of-N or the weighted vote."""

CURVES = {
    "pass_at": "pass@N (ceiling)",
    "prm_gold": "PRM at its lowest step, exact labels",
    "prm": "PRM at its lowest step, Monte Carlo labels",
    "orm": "ORM at its last step",
    "orm_lowest_step": "ORM at its lowest step",
    "majority": "majority vote",
}
"""Field of :class:`Summary` → how tables and figures call it."""

PAIRS = (
    ("prm", "orm"),
    ("prm", "orm_lowest_step"),
    ("prm", "majority"),
    ("orm", "majority"),
    ("prm_gold", "prm"),
)
"""Differences that are reported, paired by problem."""

_MODELS = {"prm": "PRM", "orm": "ORM", "prm_gold": "PRM on exact labels"}
_SELECTORS = {
    "prm": "PRM at its lowest step",
    "orm": "ORM at its last step",
    "orm_lowest_step": "ORM at its lowest step",
    "majority": "majority vote",
}


def rounded(interval: Interval) -> Interval:
    """Rounded to what the number of problems supports."""
    value, low, high = (round(number, 5) for number in (interval.value, interval.low, interval.high))
    return Interval(value=value, low=low, high=high)


class StepQuality(FrozenModel):
    """How well a scorer tells good prefixes from bad ones on the test traces."""

    auc: Number
    """Pooled over all steps; position alone can lift it."""
    auc_within_position: Number
    auc_within_problem: Number
    probe_right: Number
    """Content probe: share of lines whose correct digit scores highest of ten; chance is 0.1."""
    probe_contrast: Number


class RuleComparison(FrozenModel):
    """PRM and ORM by the same rule, from the same samples, at the largest N."""

    prm: Estimate
    orm: Estimate
    difference: Estimate
    """PRM minus ORM, paired by problem."""

    @property
    def verdict(self) -> str:
        """``PRM`` or ``ORM`` is better, or the difference is ``not significant``: its interval includes 0."""
        return _sign(self.difference, "not significant", "PRM", "ORM")


class BestRuleComparison(RuleComparison):
    """Each model by its own best rule, chosen on the half of the test problems that it is not used on."""

    prm_rules: list[str]
    """The rule chosen on the second half and used on the first, then the other way round."""
    orm_rules: list[str]


class Summary(FrozenModel):
    """``summary.json``."""

    pass_at: Curve
    majority: Curve
    orm: Curve
    """Read at the last step, as outcome models are."""
    orm_lowest_step: Curve
    """The same model read at its lowest step, as if it were a PRM."""
    prm: Curve
    prm_gold: Curve
    differences: dict[str, Estimate]
    """Paired by problem, e.g. ``prm - orm @ 64``."""
    selectors: dict[str, Curve]
    """Every scorer with every aggregation and the weighted vote."""
    prm_against_orm: dict[str, RuleComparison]
    """By rule, as ``RULES`` has them."""
    best_rules: BestRuleComparison | None
    """``None`` if one half is empty."""
    policy: dict[str, Number]
    label_noise: dict[str, Number]
    steps: dict[str, StepQuality]
    tokens: dict[str, Usage]
    training: dict[str, Any]
    counts: dict[str, int]
    findings: list[str] = Field(default_factory=list)
    """The results in sentences (:func:`findings`)."""
    seconds: dict[str, float] = Field(default_factory=dict)

    def write(self, path: Path, *, seconds: Mapping[str, float]) -> Path:
        """Write as JSON, atomically; ``seconds`` is the only part that differs between equal runs."""
        by_stage = {stage: round(value, 1) for stage, value in seconds.items()}
        data = self.model_dump(mode="json") | {
            "seconds": by_stage | {"total": round(sum(by_stage.values()), 1)}
        }
        write_json(path, data)
        return path


def findings(summary: Summary) -> list[str]:
    """One plain sentence for each result, whichever way it went."""
    top = max(summary.prm)
    noise = summary.label_noise
    sentences = [
        f"The policy answers {summary.policy['accuracy']:.1%} of the problems correctly; "
        f"{summary.policy['lucky_fraction']:.1%} of its correct answers rest on a wrong step.",
        f"Monte Carlo labels find {noise['recall']:.1%} of the wrong prefixes, and {noise['precision']:.1%} "
        "of the prefixes that they call wrong are wrong; they place the first error correctly in "
        f"{noise['first_error_accuracy']:.1%} of the traces.",
    ]
    for first, second in PAIRS[:3]:
        gap = summary.differences.get(f"{first} - {second} @ {top}")
        if gap:
            against = _sign(gap, "does not differ significantly from", "beats", "loses to")
            models = f"the {_SELECTORS[first]} {against} the {_SELECTORS[second]}"
            sentences.append(f"Best of {top}: {models}: {gap:+.1p}.")
    growth = summary.differences.get(f"gap prm - orm, @ {top} less @ 4")
    if growth:
        changes = _sign(growth, "does not clearly change", "grows", "shrinks")
        sentences.append(
            f"From 4 to {top} samples the PRM's lead over the ORM at its last step {changes}: {growth:+.1p}."
        )
    sentences.append(_by_rule(summary, top))
    if summary.best_rules:
        sentences.append(_best(summary.best_rules, top))
    sentences.append(
        "With one line held fixed and its result varied, the correct digit scores highest in "
        + ", ".join(f"{quality.probe_right:.0%} ({_MODELS[name]})" for name, quality in summary.steps.items())
        + " of the lines; chance is 10%."
    )
    return sentences


def _by_rule(summary: Summary, top: int) -> str:
    """The rules under which the PRM is better, worse, or not significantly different."""
    verdicts = {
        "PRM": "the PRM is better",
        "not significant": "no significant difference",
        "ORM": "the ORM is better",
    }
    rules = {
        verdict: [rule for rule, row in summary.prm_against_orm.items() if row.verdict == verdict]
        for verdict in verdicts
    }
    parts = [f"{text} by {', '.join(rules[verdict])}" for verdict, text in verdicts.items() if rules[verdict]]
    return f"Both by the same rule, at N={top}: {'; '.join(parts)}."


def _best(best: BestRuleComparison, top: int) -> str:
    prm, orm = (" and ".join(dict.fromkeys(names)) for names in (best.prm_rules, best.orm_rules))
    verdict = _sign(best.difference, "no significant difference", "the PRM is better", "the ORM is better")
    return (
        f"Each by its best rule, chosen on the other half of the test problems, at N={top}: "
        f"PRM {best.prm:.1%} ({prm}), ORM {best.orm:.1%} ({orm}); {verdict}: {best.difference:+.1p}."
    )


def _sign(difference: Interval, unclear: str, positive: str, negative: str) -> str:
    """One of three words, by whether the interval includes 0, and on which side it is."""
    if difference.includes(0):
        return unclear
    return positive if difference.value > 0 else negative


def write_report(summary: Summary, path: Path) -> None:
    """One offline page: findings, curves, tables. Equal summaries give equal bytes."""
    curves: dict[str, Curve] = {title: getattr(summary, key) for key, title in CURVES.items()}
    report = Report("surefoot quickstart: does step supervision choose better answers?")
    for finding in summary.findings:
        report.text(finding)
    report.heading("Accuracy against the number of samples")
    report.figure(
        curve_figure(curves), "Accuracy of the chosen answer; bands are 95 % intervals over problems."
    )
    sizes = list(summary.prm)
    report.table(
        ["selection", *(f"N={size}" for size in sizes)],
        [[title, *(curve[size] for size in sizes)] for title, curve in curves.items()],
        "Share of problems answered correctly, with 95 % intervals",
        spec=".1%",
    )
    differences = list(summary.differences.items())
    report.table(["difference", "value"], differences, "Paired differences", spec="+.1p")
    report.heading("PRM and ORM by every rule")
    report.table(*rule_table(summary), "Share of problems answered correctly, with 95 % intervals")
    report.table(
        ["scorer and rule", *(f"N={size}" for size in sizes)],
        [[name, *(curve[size].value for size in sizes)] for name, curve in summary.selectors.items()],
        "Every scorer by every rule",
        spec=".1%",
    )
    report.heading("Do the scorers look at the step?")
    columns = [
        "step AUC",
        "within position",
        "within problem",
        "probe: correct digit first",
        "probe contrast",
    ]
    report.table(
        ["scorer", *columns],
        [[name, *quality.model_dump().values()] for name, quality in summary.steps.items()],
        "Good prefixes against bad ones on the test traces, by the exact checker",
    )
    report.heading("Policy, labels and cost")
    noise = "Monte Carlo labels (hard) against the exact checker; precision and recall of errors"
    for caption, values in (
        ("Policy", summary.policy),
        (noise, summary.label_noise),
        ("Counts", summary.counts),
    ):
        report.table(["what", "value"], list(values.items()), caption)
    report.table(
        ["stage", "policy tokens read", "policy tokens written", "verifier tokens"],
        [[k, u.prompt_tokens, u.completion_tokens, u.verifier_tokens] for k, u in summary.tokens.items()],
        "Tokens",
    )
    report.write(path)


def rule_table(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """Headers and rows of PRM against ORM at the largest N, for the page and the terminal."""
    top = max(summary.prm)
    return ["rule", f"PRM, N={top}", f"ORM, N={top}", "PRM - ORM, points", "ahead"], [
        [
            rule,
            f"{comparison.prm:.1%}",
            f"{comparison.orm:.1%}",
            f"{100 * comparison.difference:+.1f}",
            comparison.verdict,
        ]
        for rule, comparison in summary.prm_against_orm.items()
    ]
