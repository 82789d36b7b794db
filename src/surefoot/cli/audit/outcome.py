"""``surefoot audit outcome``: does the scorer judge steps, or foresee the answer?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from surefoot.cli.audit import _inputs as i

if TYPE_CHECKING:
    from surefoot.evaluation.audits import Case, Subject
    from surefoot.evaluation.audits.sections import Section


def outcome(
    scorers: i.Scorers,
    out: i.Out,
    problems: i.Problems = None,
    traces: i.Traces = None,
    labels: i.Labels = None,
    processbench: i.ProcessBench = None,
    aggregate: i.Aggregate = None,
    partial: i.Partial = False,
    limit: i.Limit = None,
    per_problem: i.PerProblem = None,
    draws: i.Draws = 1000,
    seed: i.Seed = 0,
    device: i.Device = "cpu",
) -> None:
    """See how much of a step scorer is only the outcome.

    Reports how often the lowest step is the last; how far the score drops at the first error where the answer
    is right all the same, and where it is wrong; and how well the outcome can be told from the last step
    alone, and from the steps in random order. Traces need outcomes; stored scores serve for all but the
    altered texts.

    Example: `surefoot audit outcome prm=prm orm=orm --problems problems.jsonl --traces traces.jsonl --labels
    lab --out audit`
    """
    settings = dict(locals())
    from surefoot.cli.audit._write import leave

    subjects = i.open_subjects(scorers, aggregate=aggregate, partial=partial, device=device)
    cases = i.read_cases(
        problems, traces, labels, processbench, limit=limit, per_problem=per_problem, seed=seed
    )
    sections, results = run(subjects, i.recorded(cases, subjects), draws=draws, seed=seed)
    leave("outcome", sections, results, settings, out)


def run(
    subjects: Sequence[Subject], cases: Sequence[Case], *, draws: int, seed: int
) -> tuple[list[Section], dict[str, Any]]:
    """The audit of each scorer."""
    from surefoot.evaluation.audits import audit_outcome
    from surefoot.evaluation.audits.sections import outcome_section

    audits = [audit_outcome(subject, cases, draws=draws, seed=seed) for subject in subjects]
    return [outcome_section(audits)], {"outcome": audits}
