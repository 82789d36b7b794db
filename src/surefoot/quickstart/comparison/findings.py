"""What the comparison found, in sentences."""

from __future__ import annotations

from collections.abc import Mapping

from surefoot.quickstart.comparison.curves import PAIRS
from surefoot.quickstart.comparison.summary import Curve, StepQuality
from surefoot.stats.intervals import Interval


def findings_of(
    curves: Mapping[str, Curve],
    differences: Mapping[str, Interval],
    selectors: Mapping[str, Curve],
    policy: Mapping[str, float],
    noise: Mapping[str, float],
    steps: Mapping[str, StepQuality],
) -> list[str]:
    """One plain sentence for each result, whichever way it went."""
    top = max(curves["prm"])
    sentences = [
        f"The policy answers {policy['accuracy']:.1%} of the problems right; "
        f"{policy['lucky_fraction']:.1%} of its right answers rest on a wrong step.",
        f"Monte Carlo labels find {noise['recall']:.1%} of the wrong prefixes, and {noise['precision']:.1%} "
        "of what they call wrong is wrong; they place the first error right in "
        f"{noise['first_error_accuracy']:.1%} of the traces.",
    ]
    for first, second in PAIRS[:3]:
        gap = differences.get(f"{first} - {second} @ {top}")
        if gap:
            sentences.append(
                f"Best of {top} by the {_name(first)} {_against(gap)} {_name(second)}: {gap:+.1p}."
            )
    growth = differences.get(f"gap prm - orm, @ {top} less @ 4")
    if growth:
        sentences.append(
            f"From 4 to {top} samples the lead of the PRM over the ORM {_changes(growth)}: {growth:+.1p}."
        )
    for name in ("prm", "orm"):
        rules = {rule: curve[top].value for rule, curve in selectors.items() if rule.startswith(f"{name} ")}
        best = max(rules, key=lambda rule: rules[rule])
        how = best.removeprefix(name).strip()
        sentences.append(
            f"In hindsight the {_name(name)} with {top} samples does best by {how} ({rules[best]:.1%})."
        )
    sentences.append(
        "With one line held fixed and its result varied, the right digit scores highest in "
        + ", ".join(f"{quality.probe_right:.0%} ({_name(name)})" for name, quality in steps.items())
        + " of the lines; chance is 10%."
    )
    return sentences


def _name(key: str) -> str:
    names = {
        "prm": "PRM",
        "orm": "ORM",
        "orm_lowest_step": "ORM read at its lowest step",
        "prm_gold": "PRM on exact labels",
    }
    return names.get(key, f"{key} vote")


def _against(gap: Interval) -> str:
    if gap.low > 0:
        return "beats the"
    return "loses to the" if gap.high < 0 else "is not told apart from the"


def _changes(gap: Interval) -> str:
    if gap.low > 0:
        return "grows"
    return "shrinks" if gap.high < 0 else "does not change measurably"
