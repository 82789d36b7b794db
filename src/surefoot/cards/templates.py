"""Documents that are filled in from a card: a safety case, and the report of an incident."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os.path import relpath
from pathlib import Path

from surefoot.cards.check import digest_of_card
from surefoot.cards.record import CardClaim, ReleaseCard
from surefoot.errors import RunError
from surefoot.io.runs import digest_of
from surefoot.records import StepScores, Trace

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
    if not verdicts or "cannot tell" in verdicts:
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


def incident_report(
    card: Path,
    release: ReleaseCard,
    traces: Sequence[Trace],
    scores: Mapping[str, StepScores],
    *,
    threshold: float,
    server: str,
    out: Path,
) -> str:
    """Requests of an incident with their step scores, links to their pages, and what the card says.

    A request is a trace that ``serve sessions`` wrote; its session is in ``meta``. Raises ``RunError``
    without one.
    """
    if not traces:
        raise RunError("an incident needs a request; name traces that are in the file")
    address = server.rstrip("/")
    parts = [
        f"# Incident: {release.about.name}",
        f"Card: [{card.name}]({relpath(card, out.parent)}), sha256 "
        f"{digest_of_card(card)}. In one line: {release.summary}.",
        "## What happened",
        "*To be written: the observation, the observer, the time, the decision.*",
        "## Requests",
    ]
    for trace in traces:
        record = scores.get(trace.id)
        values = record.scores if record else ()
        low = [step for step, score in enumerate(values) if score is not None and score < threshold]
        unscored = len(trace.steps) - sum(score is not None for score in values)
        session = trace.meta.get("session")
        page = f"[page]({address}/requests?session={session})" if session else "no session was recorded"
        judged = f"first step below {threshold:g}: {low[0] + 1}" if low else f"no step below {threshold:g}"
        parts.append(
            f"- `{trace.id}` ({page}): {len(trace.steps)} steps, {judged}, {unscored} without a score"
        )
        if low:
            quoted = trace.step_text(low[0]).strip().replace("`", "'")[:300]
            parts.append(f"  Step {low[0] + 1}: `{quoted}`")
    runs = [f"- `{run.command}`: {run.path}, sha256 {run.sha256}" for run in release.runs]
    parts += ["## Runs behind the model", "\n".join(runs)]
    stated = [*release.failures, *(f"Not tested: {test}." for test in release.not_tested)]
    parts += ["## Failures that the card stated", "\n".join(f"- {text}" for text in stated)]
    return "\n\n".join(parts) + "\n"
