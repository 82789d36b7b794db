"""The fields of ``summary.json``, and ``report.html``: the conclusions of a run and its limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from surefoot.evaluation.best_of_n import RULE_NAMES
from surefoot.evaluation.frame import SMALLEST_GAIN, Card, FirstScreen, Origin, WorkedExample, card, sentence
from surefoot.evaluation.plots import curve_figure
from surefoot.evaluation.report import JSONResult, Report, Section
from surefoot.records import Usage
from surefoot.scores import AGGREGATORS
from surefoot.search.selection import COMMON_RULES
from surefoot.stats.intervals import Interval

Curve = dict[int, Interval]
"""Number of samples N → accuracy. Intervals are 95 %, over problems and training seeds."""

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

RIVALS = ("orm_lowest_step", "majority")
UNDECIDED = "may or may not select better answers: one training seed cannot say"


@dataclass(frozen=True, kw_only=True)
class StepQuality:
    """How well a scorer tells good prefixes from bad ones on the test traces."""

    auc: float
    """Pooled over all steps; position alone can lift it."""
    auc_less_position: Interval
    """``auc`` minus the position baseline's, which scores an earlier step higher."""
    auc_within_position: float
    auc_within_problem: float
    probe_right: Interval
    """Content probe: share of a problem's lines whose correct digit scores highest of ten; chance is 0.1."""
    probe_contrast: float


@dataclass(frozen=True, kw_only=True)
class RuleComparison:
    """PRM and ORM by the same rule, from the same samples, at the largest N."""

    prm: Interval
    orm: Interval
    difference: Interval
    """PRM minus ORM, paired by problem and training seed."""
    by_seed: list[float]
    """The difference of each training seed."""

    @property
    def verdict(self) -> str:
        """``PRM`` or ``ORM`` is better, the difference is ``not significant``, or one seed cannot say."""
        if len(self.by_seed) == 1:
            return "one training seed"
        if self.difference.includes(0):
            return "not significant"
        return "PRM" if self.difference.value > 0 else "ORM"


@dataclass(frozen=True, kw_only=True)
class Summary(JSONResult):
    """``summary.json``, without its findings and seconds."""

    pass_at: Curve
    majority: Curve
    orm: Curve
    """Read at the last step, as outcome models are."""
    orm_lowest_step: Curve
    """The same model read at its lowest step, as if it were a PRM."""
    prm: Curve
    prm_gold: Curve
    differences: dict[str, Interval]
    """Paired by problem, e.g. ``prm - orm @ 64``."""
    fall_from_peak: Curve
    """N at which best of N by the PRM's lowest step is highest → how much of that is lost later."""
    selectors: dict[str, Curve]
    """Every scorer with every aggregation and the weighted vote."""
    prm_against_orm: dict[str, RuleComparison]
    """By rule, as ``RULES`` has them."""
    policy: dict[str, float]
    label_noise: dict[str, float]
    steps: dict[str, StepQuality]
    position_auc: float
    """Step AUC of the position baseline."""
    tokens: dict[str, Usage]
    training: dict[str, Any]
    training_seeds: int
    counts: dict[str, int]


def findings(summary: Summary) -> list[str]:
    """One plain sentence for each result, whichever way it went."""
    top, noise = max(summary.prm), summary.label_noise
    sentences = [
        f"The policy answers {summary.policy['accuracy']:.1%} of the problems correctly; "
        f"{summary.policy['lucky_fraction']:.1%} of its correct answers rest on a wrong step.",
        f"Monte Carlo labels find {noise['recall']:.1%} of the wrong prefixes, and {noise['precision']:.1%} "
        "of the prefixes that they call wrong are wrong; they place the first error correctly in "
        f"{noise['first_error_accuracy']:.1%} of the traces.",
        "Step AUC, pooled: "
        + ", ".join(f"{name} {quality.auc:.3f}" for name, quality in summary.steps.items())
        + f"; the position of a step alone: {summary.position_auc:.3f}.",
    ]
    real = [f"{row.verdict} by {rule}" for rule, row in summary.prm_against_orm.items()]
    real = [verdict for verdict in real if verdict.startswith(("PRM", "ORM"))]
    sentences.append(
        f"PRM less ORM by the same rule, at N={top}: "
        + (f"better are {', '.join(real)}." if real else "no difference is called real.")
    )
    return sentences


def cards(summary: Summary) -> list[Card]:
    """The three questions, answered for the PRM."""
    top, problems, prm = max(summary.prm), summary.counts["test_problems"], summary.steps["prm"]
    against = {rival: summary.differences[f"prm - {rival} @ {top}"] for rival in RIVALS}
    [(peak, fall)] = summary.fall_from_peak.items()
    answers = [
        card(
            "reads",
            prm.probe_right,
            "of the lines get their highest score with the correct digit of ten; chance is 10 %. Step AUC "
            f"{prm.auc:.3f}; the position alone: {summary.position_auc:.3f}.",
            units=min(problems, 100),
            null=0.1,
            spec=".0%",
        ),
        card(
            "selects",
            against["orm_lowest_step"],
            f"PRM less ORM, both best of {top} by the lowest step; PRM less majority vote: "
            f"{against['majority']:+.1p}.",
            units=problems,
            smallest=SMALLEST_GAIN,
            spec="+.1p",
        ),
        card(
            "trust",
            fall,
            f"are lost after {peak} of {top} samples, where best of N by its lowest step is highest.",
            units=problems,
            smallest=SMALLEST_GAIN,
            spec=".1p",
            harm=True,
        ),
    ]
    if summary.training_seeds > 1:
        return answers
    one_seed: Any = {"verdict": "cannot tell", "chip": "cannot tell: one training seed"}
    return [answers[0], replace(answers[1], **one_seed, claim=UNDECIDED), answers[2]]


def limits(summary: Summary) -> list[str]:
    """What the run cannot conclude, and from how much it concludes the rest."""
    counts, seeds = summary.counts, summary.training_seeds
    left_out = counts["traces_without_steps"] + counts["traces_with_error"] + counts["labels_without_value"]
    return [
        f"{counts['test_problems']} test problems, {max(summary.prm)} samples each, {counts['train_traces']} "
        f"labelled traces; {seeds} training seed{'s' * (seeds > 1)}; {left_out} traces or labels left out.",
        "One run is one run: other seeds of the same training move a difference between two models by "
        "several points, which intervals over problems leave out. `--full` trains five of each."
        if seeds == 1
        else "Samples, labels and test problems come from one seed; intervals are over problems and training "
        "seeds.",
        "The domain is arithmetic modulo 10 with small models that know it. Nothing here was measured on "
        "real text, and the sizes of the effects do not carry over.",
    ]


def first_screen(
    summary: Summary, *, examples: Sequence[WorkedExample] = (), command: str = ""
) -> FirstScreen:
    """The sentence, the cards and the limits."""
    answers = cards(summary)
    return FirstScreen(
        sentence=sentence("The PRM", answers),
        cards=answers,
        examples=examples,
        limits=limits(summary),
        origin=Origin(
            data="problems of the lab", model="lab policy and trunk", command=command, json="summary.json"
        ),
    )


def report_of(summary: Summary, *, examples: Sequence[WorkedExample] = (), command: str = "") -> Report:
    """One offline page: first screen, curve, tables. Equal arguments give equal bytes."""
    curves: dict[str, Curve] = {title: getattr(summary, key) for key, title in CURVES.items()}
    tables = {
        "accuracy": {title: _by_size(curve) for title, curve in curves.items()},
        "prm_against_orm": summary.prm_against_orm,
        "differences": {name: {"difference": value} for name, value in summary.differences.items()},
        "steps": summary.steps,
        "every_rule": {name: _by_size(curve) for name, curve in summary.selectors.items()},
        **{name: getattr(summary, name) for name in ("policy", "label_noise", "counts", "tokens")},
    }
    section = Section(
        title="All results",
        about="Intervals are 95 %, over problems and training seeds.",
        results=tables,
        findings=findings(summary),
    )
    first = first_screen(summary, examples=examples, command=command)
    report = Report("surefoot quickstart: does step supervision choose better answers?", first)
    report.figure(
        partial(curve_figure, curves), "Accuracy of the chosen answer against the number of samples."
    )
    return report.section(section)


def _by_size(curve: Curve) -> dict[str, Interval]:
    return {f"N={size}": value for size, value in curve.items()}
