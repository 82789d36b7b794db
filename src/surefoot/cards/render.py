"""A card as Markdown for the hub, as a page and as a safety case; a card that holds is built again alike."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from os.path import relpath
from pathlib import Path
from typing import Any

from surefoot.cards.build import build_card
from surefoot.cards.record import CardClaim, ReleaseCard, read_release
from surefoot.errors import RunError, SurefootError
from surefoot.evaluation.report import FirstScreen, Origin, Report, Section
from surefoot.evaluation.verdict import Conclusion, Tone
from surefoot.io.runs import digest_of

MARKDOWN, PAGE, RECORD = "README.md", "card.html", "card.json"


def sections_of(release: ReleaseCard) -> Iterator[tuple[str, list[str]]]:
    """Title and sentences of each section."""
    about = release.about
    yield (
        "What process was supervised",
        list(release.process) or ["No run on this card trained a model on steps."],
    )
    yield "How labels were produced", list(release.labels)
    yield "Where the method was tested", list(release.tested)
    yield "Not tested", [f"Not tested: {name}." for name in release.not_tested]
    yield "What failures remain", list(release.failures) or ["No test on this card failed or was undecided."]
    yield (
        "Intended use and limits",
        [f"Intended use: {about.intended_use}.", f"Not for: {about.not_for}.", f"Licence: {about.licence}."],
    )
    roles = []
    for role in release.roles:
        shared = ", ".join(role.shares_base_with)
        flag = f" — shares its base model with: {shared}" if shared else ""
        roles.append(f"{role.name}: {', '.join(role.filled_by)}{flag}")
    yield "Roles", roles
    yield "Sources", [f"{source.name}: licence {source.licence}" for source in release.sources]
    yield "Runs", [f"`{run.command}` {run.path}: sha256 {run.sha256}" for run in release.runs]
    yield "Versions", [f"{name} {number}" for name, number in release.versions.items()]


def markdown_of(release: ReleaseCard) -> str:
    """The hub's README with its metadata: licence, language, base model, results."""
    about, bases = release.about, next(role for role in release.roles if role.name == "base model")
    hub_names = [name for name in bases.filled_by if name.count("/") == 1 and not name.startswith((".", "/"))]
    tested = [claim for claim in release.claims if claim.tests and claim.value is not None]
    metrics = [{"type": c.figure, "value": c.value, "name": c.id.rpartition("#")[2]} for c in tested]
    results = [
        {
            "task": {"type": "process-supervision"},
            "dataset": {"name": claim.tests[0], "type": "surefoot"},
            "metrics": metrics,
        }
        for claim in tested[:1]  # the hub knows one data set of a type
    ]
    data = {
        "base_model": [name.partition("@")[0] for name in hub_names],
        "language": about.language,
        "library_name": "surefoot",
        "license": None if about.licence == "not stated" else about.licence.lower(),
        "tags": ["process-supervision", "process-reward-model"],
        "model-index": [{"name": about.name, "results": results}] if results else None,
    }
    # JSON in one line is YAML, too
    head = "\n".join(f"{key}: {json.dumps(value)}" for key, value in data.items() if value)
    parts = [f"# {about.name}", release.summary[:1].upper() + release.summary[1:] + "."]
    for title, sentences in sections_of(release):
        parts += [f"## {title}", "\n".join(f"- {sentence}" for sentence in sentences) or "- none"]
    return f"---\n{head}\n---\n\n" + "\n\n".join(parts) + "\n"


def page_of(release: ReleaseCard) -> str:
    """The page: summary, decisions, claims as a table, then the sections."""
    tones: Mapping[str, Tone] = {"yes": "good", "no": "wrong"}
    first = FirstScreen(
        sentence=f"{release.about.name}: {release.summary}.",
        verdicts=[
            Conclusion(sentence=c.text, tone=tones.get(c.verdict, "open"), decided=c.verdict in tones)
            for c in release.claims
            if c.verdict != "measured"
        ],
        limits=[*release.failures, f"Not tested: {', '.join(release.not_tested)}."],
        origin=Origin(model=release.about.name, json=RECORD),
    )
    rows = {
        c.id: {"verdict": c.verdict, "value": c.estimate, "units": c.units, "figure": c.figure}
        for c in release.claims
    }
    about = "Every figure is recomputed by `surefoot card check`."
    report = Report(release.about.name, first)
    report.section(Section(title="Claims", about=about, results={"claims": rows}))
    for title, sentences in sections_of(release):
        report.heading(title)
        for sentence in sentences:
            report.text(sentence)
    return report.html()


def render_all(release: ReleaseCard) -> dict[str, str]:
    """Content of each file by its name; the record is the last."""
    return {
        MARKDOWN: markdown_of(release),
        PAGE: page_of(release),
        RECORD: release.model_dump_json(indent=1) + "\n",
    }


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


def check_card(path: Path) -> list[str]:
    """Reasons why ``card.json`` does not hold, or a file rendered from it differs; empty if it is true.

    Every figure, role and list is computed again from the runs in the working directory.
    """
    stored = read_release(path)
    try:
        built = build_card([Path(run.path) for run in stored.runs], stored.about, Path(stored.scope))
        reasons = [f"{change} (card, now)" for change in diff_cards(stored, built)]
    except SurefootError as error:
        reasons = [str(error)]
    for name, content in render_all(stored).items():
        rendered = path.with_name(name)
        if rendered.is_file() and rendered.read_text("utf-8") != content:
            reasons.append(f"{rendered} is not what {path.name} says; build the card again")
    return reasons


def diff_cards(first: ReleaseCard, second: ReleaseCard) -> list[str]:
    """Every fact that differs: ``claims[ID].value: 0.7, 0.8``. Entries of lists are matched by name."""
    old, new = (dict(leaves(card.model_dump(mode="json"), "")) for card in (first, second))
    return [
        f"{key}: {old.get(key, 'absent')}, {new.get(key, 'absent')}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]


def leaves(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """Name and JSON text of every value below ``value``; entries of lists go by their id, name or path."""
    if isinstance(value, Mapping) and value:
        for key, part in value.items():
            yield from leaves(part, f"{name}.{key}".lstrip("."))
    elif isinstance(value, list) and value:
        for number, part in enumerate(value):
            named = (
                part.get("id") or part.get("name") or part.get("path") if isinstance(part, Mapping) else part
            )
            yield from leaves(part, f"{name}[{named if named is not None else number}]")
    else:
        yield name, json.dumps(value, ensure_ascii=False)
