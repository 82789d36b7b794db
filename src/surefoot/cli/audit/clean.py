"""``surefoot audit clean``: solutions that look clean and were written after the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surefoot.cli.audit import _inputs as i

if TYPE_CHECKING:
    from surefoot.evaluation.audits import Case, Subject
    from surefoot.evaluation.audits.sections import Section

Threshold = Annotated[
    float, typer.Option("--threshold", help="A trace with at least this score is taken for right.")
]
Build = Annotated[
    bool,
    typer.Option(
        "--build",
        help="Write right, rationalised and wrong solutions of the lab's --problems, in place of --traces.",
    ),
]


def clean(
    scorers: i.Scorers,
    out: i.Out,
    problems: i.Problems = None,
    traces: i.Traces = None,
    labels: i.Labels = None,
    processbench: i.ProcessBench = None,
    build: Build = False,
    threshold: Threshold = 0.5,
    aggregate: i.Aggregate = None,
    partial: i.Partial = False,
    limit: i.Limit = None,
    per_problem: i.PerProblem = None,
    draws: i.Draws = 1000,
    seed: i.Seed = 0,
    device: i.Device = "cpu",
) -> None:
    """Compare right solutions with rationalised ones: a wrong step, and yet the right answer.

    A scorer of outcomes cannot tell them apart, a scorer of steps can. Groups come from outcomes and labels
    (ProcessBench: the right answer and a labelled error), or are built for problems of the lab.

    Example: `surefoot audit clean qwen=scores.jsonl --processbench gsm8k.json --partial --out audit`
    Example: `surefoot audit clean prm=prm orm=orm --problems problems.jsonl --build --out audit`
    """
    settings = dict(locals())
    from surefoot.cli.audit._write import leave

    if build:
        i.refuse_idle(
            "--build", traces=traces, labels=labels, processbench=processbench, per_problem=per_problem
        )
    subjects = i.open_subjects(scorers, aggregate=aggregate, partial=partial, device=device)
    if build:
        cases = built(problems, subjects, limit=limit, seed=seed)
    else:
        cases = i.read_cases(
            problems, traces, labels, processbench, limit=limit, per_problem=per_problem, seed=seed
        )
    sections, results = run(
        subjects, i.recorded(cases, subjects), threshold=threshold, draws=draws, seed=seed
    )
    leave("clean", sections, results, settings, out)


def run(
    subjects: Sequence[Subject], cases: Sequence[Case], *, threshold: float, draws: int, seed: int
) -> tuple[list[Section], dict[str, Any]]:
    """The audit of each scorer."""
    from surefoot.evaluation.audits import audit_clean
    from surefoot.evaluation.audits.sections import clean_section

    audits = [
        audit_clean(subject, cases, threshold=threshold, draws=draws, seed=seed) for subject in subjects
    ]
    return [clean_section(audits)], {"clean": audits}


def built(problems: str | None, subjects: Sequence[Subject], *, limit: int | None, seed: int) -> list[Case]:
    """The three solutions of each lab problem, or of ``limit`` drawn with ``seed``.

    Raises ``RunError`` without problems or for stored scores.
    """
    from surefoot.cli._shared import read_all
    from surefoot.errors import RunError
    from surefoot.evaluation.audits import rationalised_lab_cases
    from surefoot.records import Problem

    if problems is None:
        raise RunError("--build needs --problems, a file of problems of the lab")
    if stored := [subject.name for subject in subjects if subject.stored]:
        raise RunError(f"--build writes new solutions, and {stored[0]} is a file of stored scores")
    return rationalised_lab_cases(i.drawn(read_all(problems, Problem), limit, seed), seed=seed)
