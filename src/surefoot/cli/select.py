"""``surefoot select``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from surefoot.cli import _options as o

if TYPE_CHECKING:
    from surefoot.protocols import Candidate
    from surefoot.records import Trace
    from surefoot.scores import Aggregator
    from surefoot.search.estimators import Method


def select(
    traces: o.Traces,
    scores: Annotated[
        str | None, typer.Option("--scores", help="File of step scores; majority needs none.")
    ] = None,
    rule: Annotated[str, typer.Option("--rule", help="best_of_n, weighted_vote or majority.")] = "best_of_n",
    aggregate: Annotated[
        str, typer.Option("--aggregate", help="Step scores to one number: min, product, last or mean.")
    ] = "min",
    equality: o.Equality = "math",
    out: o.Out = "-",
) -> None:
    """Choose one trace per problem, and say how often it is right against N.

    The chosen traces are written out; where outcomes are known, a table on standard error gives the unbiased
    accuracy for 1, 2, 4 … samples with 95 % intervals over problems.

    Example: `surefoot select --traces traces.jsonl --scores scores.jsonl --out chosen.jsonl`
    """
    from pathlib import Path

    from surefoot.answers import group_equal
    from surefoot.cli._shared import checker, read_all
    from surefoot.errors import ScoreError
    from surefoot.io import write_records
    from surefoot.protocols import Candidate
    from surefoot.records import StepScores, Trace
    from surefoot.scores import AGGREGATORS, trace_score
    from surefoot.search import SELECTORS

    if rule not in SELECTORS:
        raise ScoreError(f"--rule is {rule!r}; choose from {', '.join(SELECTORS)}")
    if aggregate not in AGGREGATORS:
        raise ScoreError(f"--aggregate is {aggregate!r}; choose from {', '.join(AGGREGATORS)}")
    if scores is None and rule != "majority":
        raise ScoreError(f"--rule {rule} needs --scores")
    records = {record.trace_id: record for record in read_all(scores, StepScores)} if scores else {}
    groups: dict[str, list[Trace]] = {}
    for trace in read_all(traces, Trace):
        groups.setdefault(trace.problem_id, []).append(trace)
    pools: list[list[Candidate]] = []
    how: Aggregator = aggregate
    with checker(equality) as compare:
        for group in groups.values():
            answers = group_equal([trace.answer for trace in group], compare)
            known = [records.get(trace.id) for trace in group]
            values = [None if record is None else trace_score(record.scores, how) for record in known]
            pools.append([Candidate(answer=a, score=v) for a, v in zip(answers, values, strict=True)])
    if unscored := sum(c.score is None for pool in pools for c in pool if scores):
        typer.echo(f"{unscored} traces have no score and are chosen last", err=True)
    chosen = [group[SELECTORS[rule].select(pool)] for group, pool in zip(groups.values(), pools, strict=True)]
    write_records(out if out == "-" else Path(out), chosen, record=Trace)
    _table(list(groups.values()), pools, rule)


def _table(groups: list[list[Trace]], pools: list[list[Candidate]], rule: str) -> None:
    """Accuracy against N, over the problems whose traces all have an outcome."""
    import numpy as np
    from rich.console import Console
    from rich.table import Table

    from surefoot.evaluation.pools import sizes_up_to
    from surefoot.search import Pool, selection_curve
    from surefoot.stats.bootstrap import bootstrap_mean

    graded = [
        Pool(
            answers=[candidate.answer for candidate in pool],
            correct=[trace.outcome is True for trace in group],
            scores=[candidate.score for candidate in pool],
        )
        for group, pool in zip(groups, pools, strict=True)
        if all(trace.outcome is not None for trace in group)
    ]
    if not graded:
        typer.echo("no problem has outcomes for all its traces: no accuracy to report", err=True)
        return
    sizes = sizes_up_to(min(len(pool.correct) for pool in graded))
    table = Table(title=f"{len(graded)} problems, accuracy with 95 % interval")
    for heading in ("N", "pass@N", "majority", rule):
        table.add_column(heading, justify="right")
    methods: list[Method] = ["pass", "majority", cast("Method", rule)]
    curves = [selection_curve(graded, method, sizes, rng=np.random.default_rng(0)) for method in methods]
    for column, size in enumerate(sizes):
        estimates = [bootstrap_mean(curve[:, column], rng=np.random.default_rng(0)) for curve in curves]
        table.add_row(str(size), *(f"{estimate:.1%}" for estimate in estimates))
    Console(stderr=True).print(table)
