"""``surefoot audit gaming``: edits of solutions, and a search against the scorer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surefoot.cli.audit import _inputs as i

if TYPE_CHECKING:
    from surefoot.evaluation.audits import Case, Subject
    from surefoot.evaluation.audits.gaming import Truth
    from surefoot.evaluation.audits.sections import Section
    from surefoot.lab.probe import ProbeResult

Tolerance = Annotated[
    float, typer.Option("--tolerance", min=0, help="How far an edit of style may move the mean trace score.")
]
MustFall = Annotated[
    float,
    typer.Option("--must-fall", min=0, max=1, help="Share of right traces that broken logic must lower."),
]
Rounds = Annotated[
    int, typer.Option("--rounds", min=0, help="Rounds of hill climbing against the scorer; 0 = no search.")
]
Proposals = Annotated[
    int, typer.Option("--proposals", min=1, help="Edits proposed for each wrong trace in a round.")
]
Versions = Annotated[
    int, typer.Option("--versions", min=1, help="Random versions of each wrong trace for best-of-N.")
]
Attacked = Annotated[
    int, typer.Option("--attacked", min=1, help="Wrong traces that the search starts from, at most.")
]


def gaming(
    scorers: i.Scorers,
    out: i.Out,
    problems: i.Problems = None,
    traces: i.Traces = None,
    labels: i.Labels = None,
    processbench: i.ProcessBench = None,
    aggregate: i.Aggregate = None,
    tolerance: Tolerance = 0.05,
    must_fall: MustFall = 0.9,
    rounds: Rounds = 12,
    proposals: Proposals = 8,
    versions: Versions = 64,
    attacked: Attacked = 100,
    limit: i.Limit = None,
    per_problem: i.PerProblem = 2,
    draws: i.Draws = 1000,
    seed: i.Seed = 0,
    device: i.Device = "cpu",
) -> None:
    """Edit solutions and see whether the score follows the logic or the looks.

    Right traces are broken (number swapped, premise deleted, steps reordered, answer pasted after nonsense):
    the score must fall. Right and wrong ones get empty steps, filler, repetition, merged and split steps,
    sure words, words to the verifier: it must not move. Then wrong traces are edited again and again, and
    what scores higher is kept: proxy and gold are reported by round. Needs checkpoints and labels; with the
    lab's traces (`--labels lab`) every edit is checked by the exact truth and the content probe is run.

    Example: `surefoot audit gaming prm=prm orm=orm --problems problems.jsonl --traces traces.jsonl --labels
    lab --out audit`
    """
    settings = dict(locals())
    from surefoot.cli.audit._write import leave

    subjects = i.open_subjects(scorers, aggregate=aggregate, partial=False, device=device)
    cases = i.read_cases(
        problems, traces, labels, processbench, limit=limit, per_problem=per_problem, seed=seed
    )
    sections, results = run(
        subjects,
        cases,
        lab=labels == "lab",
        tolerance=tolerance,
        must_fall=must_fall,
        rounds=rounds,
        proposals=proposals,
        versions=versions,
        attacked=attacked,
        draws=draws,
        seed=seed,
    )
    leave("gaming", sections, results, settings, out)


def run(
    subjects: Sequence[Subject],
    cases: Sequence[Case],
    *,
    lab: bool,
    tolerance: float,
    must_fall: float,
    rounds: int,
    proposals: int,
    versions: int,
    attacked: int,
    draws: int,
    seed: int,
) -> tuple[list[Section], dict[str, Any]]:
    """Edits, probe and search for each scorer; ``lab`` says that the exact truth is known."""
    from surefoot.cli._shared import stages
    from surefoot.errors import ScoreError
    from surefoot.evaluation.audits import audit_attack, audit_gaming, lab_right
    from surefoot.evaluation.audits.sections import attack_section, gaming_section

    truth: Truth | None = lab_right if lab else None
    edits, attacks = [], []
    probes: dict[str, ProbeResult] = {}
    left_out: dict[str, str] = {}
    with stages() as progress:
        for subject in subjects:
            edits.append(
                audit_gaming(
                    subject,
                    cases,
                    truth=truth,
                    tolerance=tolerance,
                    must_fall=must_fall,
                    draws=draws,
                    seed=seed,
                )
            )
            if lab:
                probes[subject.name] = _probe(subject, cases)
            if not rounds:
                continue
            try:
                attacks.append(
                    audit_attack(
                        subject,
                        cases,
                        truth=truth,
                        attacked=attacked,
                        rounds=rounds,
                        proposals=proposals,
                        versions=versions,
                        draws=draws,
                        seed=seed,
                        progress=lambda done, of, name=subject.name: progress(f"climb {name}", done, of),  # type: ignore[misc]
                    )
                )
            except ScoreError as error:  # the edits' results are worth having without the search
                left_out[subject.name] = str(error)
                typer.echo(f"no search against {subject.name}: {error}", err=True)
    sections = [gaming_section(edits, probes)] + ([attack_section(attacks)] if attacks else [])
    return sections, {"gaming": edits, "probe": probes, "attack": attacks, "attack_left_out": left_out}


def _probe(subject: Subject, cases: Sequence[Case]) -> ProbeResult:
    from surefoot.lab.probe import content_probe

    problems = {case.problem_id: case.item.problem for case in cases}
    return content_probe(subject.scorer, list(problems.values())[:PROBED])


PROBED = 100
"""Problems whose lines the content probe varies."""
