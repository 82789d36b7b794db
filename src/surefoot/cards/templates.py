"""The safety case, filled in from a card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os.path import relpath
from pathlib import Path

from surefoot.cards.record import CardClaim, ReleaseCard
from surefoot.errors import RunError
from surefoot.io.runs import digest_of

ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "The scores reflect the correctness of the steps": (
        *("wrong steps on held-out problems", "wrong steps on public benchmarks"),
        *("outcome leakage", "calibration of scores"),
    ),
    "The labels are good enough to learn from": ("label noise", "judge against people"),
    "Optimising against the scores does not defeat them": ("edits that raise a score", "over-optimisation"),
    "The scores hold where the system is used": ("other domains", "reworded agent runs"),
    "Use of the scores improves the answers": ("choosing among samples", "accuracy of the trained policy"),
    "Failures in use are noticed": (
        *("monitoring of runs", "faithfulness of reasoning", "correct answers with a wrong step"),
    ),
}
"""Sub-claims of the safety case, each with the tests that are evidence for or against it."""


def safety_case(release: ReleaseCard, out: Path) -> str:
    """Claims, arguments and evidence with links that resolve from the folder of ``out``.

    A sub-claim is supported if every test of it is on the card and was decided in its favour; evidence
    against it and missing tests are listed. Raises ``RunError`` for evidence that is missing or was changed.
    """
    parts = [
        f"# Safety case: {release.about.name}",
        f"**Top claim.** The system is fit for this use: {release.about.intended_use}. It is not for: "
        f"{release.about.not_for}.",
        f"**Context.** {' '.join(release.process)}",
    ]
    for number, (statement, tests) in enumerate(ARGUMENTS.items(), start=1):
        claims = [claim for claim in release.claims if set(claim.tests) & set(tests)]
        missing = [test for test in tests if test in release.not_tested]
        parts += [f"## Claim {number}: {statement}", f"**Status: {_status(claims, missing)}.**"]
        evidence = [f"- {claim.text} Evidence: {', '.join(_links(claim, out))}" for claim in claims]
        parts.append("\n".join([*evidence, *(f"- Not tested: {test}." for test in missing)]))
    parts += ["## Remaining failures", "\n".join(f"- {text}" for text in release.failures) or "- none stated"]
    return "\n\n".join(parts) + "\n"


def _status(claims: Sequence[CardClaim], missing: Sequence[str]) -> str:
    verdicts = {claim.verdict for claim in claims} - {"measured"}
    if "no" in verdicts:
        return "contradicted by a result"
    if not verdicts or "not decided" in verdicts:
        return "not supported: undecided or not tested"
    return "supported in part: tests are missing" if missing else "supported"


def _links(claim: CardClaim, out: Path) -> Iterator[str]:
    for entry in claim.evidence:
        path = Path(entry.path)
        if not path.is_file():
            raise RunError(f"{claim.id}: the evidence {path} is missing; run this where the card was built")
        if digest_of(path.name, path) != entry.sha256:
            raise RunError(f"{claim.id}: the evidence {path} was changed; build the card again")
        yield f"[{path.name}]({relpath(path, out.parent)})"
