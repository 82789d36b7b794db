"""``surefoot audit over-optimisation``: gold and proxy against the number of samples chosen from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surefoot.cli.audit import _inputs as i

if TYPE_CHECKING:
    from surefoot.evaluation.audits import Subject
    from surefoot.evaluation.audits.sections import Section
    from surefoot.protocols import ProblemTrace

Pool = Annotated[
    str | None,
    typer.Option(
        "--pool",
        help="File of candidates with stored scores (search-and-learn's or Qwen2.5-Math's form), in place of "
        "scorers, problems and traces.",
    ),
]
Largest = Annotated[
    int | None,
    typer.Option("--largest", min=2, help="Largest N; else the one that nine in ten problems have."),
]


def over_optimisation(
    out: i.Out,
    scorers: Annotated[
        list[str] | None,
        typer.Argument(help="Scorers, as NAME=CHECKPOINT or NAME=FILE of step scores; none with --pool."),
    ] = None,
    problems: i.Problems = None,
    traces: i.Traces = None,
    pool: Pool = None,
    aggregate: i.Aggregate = None,
    largest: Largest = None,
    limit: i.Limit = None,
    draws: i.Draws = 2000,
    seed: i.Seed = 0,
    device: i.Device = "cpu",
) -> None:
    """Show where more pressure on the score stops buying right answers.

    From stored traces with outcomes: expected score (proxy) and share of right answers (gold) for best of N,
    without bias, against N and the square root of KL; the N where gold is highest, and what is lost beyond
    it.

    Example: `surefoot audit over-optimisation prm=scores.jsonl --problems problems.jsonl --traces
    traces.jsonl --out audit`
    Example: `surefoot audit over-optimisation --pool pool.jsonl.gz --aggregate last --out audit`
    """
    settings = dict(locals())
    from surefoot.cli.audit._write import leave
    from surefoot.errors import RunError

    if bool(pool) == bool(scorers):
        raise RunError("give scorers with --problems and --traces, or --pool")
    if pool:
        i.refuse_idle(
            "--pool", problems=problems, traces=traces, limit=limit, device=device != "cpu" and device
        )
        subjects, items = _from_pool(pool, aggregate)
    else:
        subjects = i.open_subjects(scorers or [], aggregate=aggregate, partial=False, device=device)
        cases = i.read_cases(problems, traces, None, None, limit=limit, seed=seed)
        items = i.items_of(i.recorded(cases, subjects))
    sections, results = run(subjects, items, largest=largest, draws=draws, seed=seed)
    leave("over-optimisation", sections, results, settings, out)


def run(
    subjects: Sequence[Subject], items: Sequence[ProblemTrace], *, largest: int | None, draws: int, seed: int
) -> tuple[list[Section], dict[str, Any]]:
    """The audit of each scorer."""
    from surefoot.evaluation.audits import audit_over_optimisation
    from surefoot.evaluation.audits.sections import over_optimisation_section

    audits = [
        audit_over_optimisation(subject, items, largest=largest, draws=draws, seed=seed)
        for subject in subjects
    ]
    return [over_optimisation_section(audits)], {"over_optimisation": audits}


def _from_pool(path: str, aggregate: str | None) -> tuple[list[Subject], list[ProblemTrace]]:
    """The pool's own scorer, once by each rule if none is asked for; outcomes are the file's verdicts."""
    from surefoot.cli._shared import choice
    from surefoot.evaluation.audits import StoredScores, Subject
    from surefoot.formats.candidate_pool import read_candidate_pool
    from surefoot.protocols import ProblemTrace
    from surefoot.scores import AGGREGATORS

    if aggregate:
        choice("--aggregate", aggregate, *AGGREGATORS)
    rules = [rule for rule in AGGREGATORS if aggregate in (None, rule)]
    pools = list(read_candidate_pool(path))
    if dropped := sum(count for pool in pools for count in pool.dropped.values()):
        typer.echo(
            f"{dropped} candidates skipped: not as many steps, cut at blank lines, as scores", err=True
        )
    items = [
        ProblemTrace(
            problem=pool.problem, trace=trace.model_copy(update={"outcome": trace.meta.get("correct")})
        )
        for pool in pools
        for trace in pool.traces
    ]
    records = [record for pool in pools for record in pool.scores]
    name = records[0].scorer if records else "stored"
    return [
        Subject(name=f"{name} ({rule})", scorer=StoredScores(name, records), rule=rule, stored=True)
        for rule in rules
    ], items
