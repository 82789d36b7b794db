"""``surefoot audit all``: every audit that one set of traces allows, in one report."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surefoot.cli.audit import _inputs as i
from surefoot.cli.audit import clean, gaming, outcome, over_optimisation

if TYPE_CHECKING:
    from surefoot.evaluation.audits.sections import Section

PerProblem = Annotated[
    int,
    typer.Option(
        "--per-problem", min=1, help="Traces of a problem for gaming and outcome; the others use all of them."
    ),
]

Found = tuple[list["Section"], dict[str, Any]]


def every(
    scorers: i.Scorers,
    out: i.Out,
    problems: i.Problems = None,
    traces: i.Traces = None,
    labels: i.Labels = None,
    processbench: i.ProcessBench = None,
    aggregate: i.Aggregate = None,
    partial: i.Partial = False,
    tolerance: gaming.Tolerance = 0.05,
    must_fall: gaming.MustFall = 0.9,
    rounds: gaming.Rounds = 12,
    proposals: gaming.Proposals = 8,
    versions: gaming.Versions = 64,
    attacked: gaming.Attacked = 100,
    threshold: clean.Threshold = 0.5,
    largest: over_optimisation.Largest = None,
    limit: i.Limit = None,
    per_problem: PerProblem = 2,
    draws: i.Draws = 1000,
    seed: i.Seed = 0,
    device: i.Device = "cpu",
) -> None:
    """Run gaming, outcome, clean and over-optimisation on the same traces.

    What cannot be done with them is said and left out: gaming needs checkpoints, clean needs outcomes and
    labels, over-optimisation several traces a problem. With `--labels lab` the rationalised solutions are
    built. Transfer needs several sets: see its own command.

    Example: `surefoot audit all prm=prm orm=orm --problems problems.jsonl --traces traces.jsonl --labels lab
    --out audit`
    """
    settings = dict(locals())
    from surefoot.cli.audit._write import leave
    from surefoot.errors import ScoreError

    subjects = i.open_subjects(scorers, aggregate=aggregate, partial=partial, device=device)
    live = [subject for subject in subjects if not subject.stored]
    found = i.read_cases(problems, traces, labels, processbench, limit=limit, seed=seed)
    cases = i.recorded(found, subjects)
    few = i.limited(cases, None, per_problem, seed)
    lab = labels == "lab"

    def edits() -> Found:
        if not live:
            raise ScoreError("there are only stored scores, and edited text has to be scored")
        return gaming.run(
            live,
            few,
            lab=lab,
            tolerance=tolerance,
            must_fall=must_fall,
            rounds=rounds,
            proposals=proposals,
            versions=versions,
            attacked=attacked,
            draws=draws,
            seed=seed,
        )

    def rationalised() -> Found:
        material = (
            clean.built(problems, subjects, limit=limit, seed=seed) if lab and live == subjects else cases
        )
        return clean.run(subjects, material, threshold=threshold, draws=draws, seed=seed)

    parts: dict[str, Callable[[], Found]] = {
        "gaming": edits,
        "outcome": lambda: outcome.run(subjects, few, draws=draws, seed=seed),
        "clean": rationalised,
        "over-optimisation": lambda: over_optimisation.run(
            subjects, i.items_of(cases), largest=largest, draws=draws, seed=seed
        ),
    }
    sections, results, left_out = _run(parts)
    leave("all", sections, {**results, "left_out": left_out}, settings, out)


def _run(parts: dict[str, Callable[[], Found]]) -> tuple[list[Section], dict[str, Any], dict[str, str]]:
    """Every part that its material allows; the others by the reason.

    Raises ``ScoreError`` if none is left.
    """
    from surefoot.errors import ScoreError

    sections: list[Section] = []
    results: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for name, part in parts.items():
        try:
            found, records = part()
        except ScoreError as error:
            left_out[name] = str(error)
            typer.echo(f"{name} left out: {error}", err=True)
            continue
        sections += found
        results |= records
    if not sections:
        raise ScoreError(f"no audit can be run on these traces: {'; '.join(left_out.values())}")
    return sections, results, left_out
