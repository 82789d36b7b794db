"""What each audit found, in one plain sentence a scorer, whichever way it went."""

from __future__ import annotations

from surefoot.evaluation.audits.attack import AttackAudit
from surefoot.evaluation.audits.clean import CleanAudit
from surefoot.evaluation.audits.gaming import EditEffect, GamingAudit
from surefoot.evaluation.audits.outcome import OutcomeAudit
from surefoot.evaluation.audits.over_optimisation import OverOptimisationAudit
from surefoot.evaluation.audits.transfer import TransferAudit
from surefoot.lab.probe import ProbeResult


def gaming_finding(audit: GamingAudit, probe: ProbeResult | None) -> str:
    """Which tests with edits were passed, and which failed."""

    def named(kind: str, verdict: str) -> list[EditEffect]:
        return [e for e in audit.effects if e.kind == kind and e.verdict == verdict]

    parts = []
    for kind, bad in (("breaks", "does not fall for"), ("style", "is moved by")):
        every = [e for e in audit.effects if e.kind == kind]
        failed = named(kind, "fails")
        listed = f", {bad} " + ", ".join(f"{e.edit} ({e.on})" for e in failed) if failed else ""
        what = "edits that break logic" if kind == "breaks" else "edits of style"
        parts.append(f"passes {len(named(kind, 'passes'))} of {len(every)} tests with {what}{listed}")
    sentence = f"{audit.scorer} {parts[0]}; it {parts[1]}."
    if probe:
        sentence += (
            f" In the content probe the right digit comes first in {probe.right:.0%} of the lines; chance "
            "is 10%."
        )
    return sentence


def attack_finding(audit: AttackAudit) -> str:
    """How far the climb got, and what is right of it."""
    first, last = audit.climb[0], audit.climb[max(audit.climb)]
    return (
        f"Climbing against {audit.scorer} takes the score of {audit.traces} wrong solutions from "
        f"{first.proxy.value:.3f} to {last.proxy.value:.3f} in {max(audit.climb)} rounds; "
        f"{last.gold:.1%} of them are correct then, and "
        f"{last.fooled:.3f} are wrong and score like the median right solution or better "
        f"({first.fooled:.3f} before)."
    )


def outcome_finding(audit: OutcomeAudit) -> str:
    """What an error costs by outcome, and what the last step alone tells."""
    lucky, wrong = (audit.around_error[name].drop for name in ("right answer", "wrong answer"))
    sentence = (
        f"At the first error the score of {audit.scorer} drops by {lucky:.3f} where the answer is right "
        f"all the same, and by {wrong:.3f} where it is wrong."
    )
    if "last step only" in audit.controls:
        whole, last, shuffled = (
            audit.controls[name].auc for name in ("whole", "last step only", "shuffled steps")
        )
        sentence += (
            f" It tells right answers from wrong ones with AUC {whole:.3f}; from the last step alone "
            f"with {last:.3f}, with the steps before it shuffled {shuffled:.3f} (the same "
            f"{audit.controls['whole'].traces} traces)."
        )
    return sentence


def clean_finding(audit: CleanAudit) -> str:
    """Whether rationalised solutions are seen through."""
    return (
        f"{audit.scorer} prefers the right solution to a rationalised one in "
        f"{audit.right_over_rationalised:.3f} of the pairs, to a wrong one in "
        f"{audit.right_over_wrong:.3f}; it clears {audit.groups['rationalised'].cleared:.3f} of "
        f"the rationalised and {audit.groups['right'].cleared:.3f} of the right ones."
    )


def transfer_finding(audit: TransferAudit, train: str) -> str:
    """One scorer's row of the matrix."""
    shown = ", ".join(f"{audit.cell(train, test).auc:.3f} on {test}" for test in audit.tested)
    return f"{train} has AUC {shown}."


def over_finding(audit: OverOptimisationAudit) -> str:
    """Where gold and proxy part."""
    first, last = audit.points[0], audit.points[-1]
    how = "falls beyond chance" if audit.parted else "does not fall beyond chance"
    return (
        f"Best of N by {audit.scorer}: from N = 1 to N = {last.n} gold goes from {first.gold.value:.3f} to "
        f"{last.gold.value:.3f} and the proxy from {first.proxy.value:.3f} to {last.proxy.value:.3f}; gold "
        f"is highest at N = {audit.peak} (95 %: {audit.peak_interval[0]} to {audit.peak_interval[1]}) and "
        f"{how} after it ({audit.fall:.3f})."
    )
