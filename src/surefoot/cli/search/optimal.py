"""``surefoot search optimal`` and ``search plan``: the method that a problem's difficulty asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from surefoot.cli import _options as o
from surefoot.cli.search import _options as s
from surefoot.cli.search._options import FileOptions, PolicyOptions, PrmOptions

if TYPE_CHECKING:
    from surefoot.cli.search._plan import Plan
    from surefoot.records import Problem
    from surefoot.search import Trial


def optimal(
    files: FileOptions,
    writes: PolicyOptions,
    scores: PrmOptions,
    plan: Annotated[str, typer.Option("--plan", help="JSON file of `surefoot search plan`, or your own.")],
) -> None:
    """Compute-optimal search: a few solutions tell how hard a problem is, and so how to search it.

    Example: `surefoot search optimal --plan plan.json --problems problems.jsonl --prm prm --out r.jsonl`
    """
    from surefoot.cli._shared import checked_options
    from surefoot.cli.search._plan import read_plan
    from surefoot.cli.search._run import search_file

    with checked_options():
        method = read_plan(plan).search()
    search_file("search optimal", method, files, writes, scores)


def plan(
    trials: Annotated[
        list[str],
        typer.Argument(help="METHOD:setting=value,…@FILE: a search, and its results on these problems."),
    ],
    problems: o.Problems,
    writes: PolicyOptions,
    scores: PrmOptions,
    tokens: Annotated[
        float, typer.Option("--tokens", min=1, help="Most tokens a problem, policy and verifier.")
    ],
    out: Annotated[str, typer.Option("--out", "-o", help="JSON file to write.")] = "plan.json",
    bins: Annotated[int, typer.Option("--bins", min=1, help="Bins of difficulty, equally full.")] = 5,
    slack: Annotated[
        float, typer.Option("--slack", min=0, help="Share by which a search may go over --tokens.")
    ] = 0.1,
    probe: Annotated[
        int, typer.Option("--probe", min=1, help="Solutions that tell how hard a problem is.")
    ] = 4,
    measure: Annotated[
        str, typer.Option("--measure", help="By their mean score, or by the agreement of their answers.")
    ] = "score",
    rule: s.Rule = "weighted_vote",
    seed: o.Seed = 0,
    in_flight: s.InFlight = 32,
    extract: o.Extract = "boxed,hash,phrase,last_number",
    equality: o.Equality = "math",
) -> None:
    """Find the best search for each bin of predicted difficulty, from results on development problems.

    Each trial is a search and the file of its results, made by `surefoot search METHOD` with these settings.

    Example: `surefoot search plan best-of-n:n=16@bon.jsonl beam:width=4@beam.jsonl --tokens 2000
    --problems dev.jsonl --prm prm --out plan.json`
    """
    from surefoot.cli._shared import checked_options, choice, grader, read_all
    from surefoot.cli.search._plan import Plan
    from surefoot.cli.search._remember import remembering_policy, remembering_scorer
    from surefoot.io import write_json
    from surefoot.records import Problem
    from surefoot.search import Probe, fit_optimal, predict_difficulties
    from surefoot.search.optimal import Measure

    choice("--measure", measure, "score", "agreement")
    measured = Probe(n=probe, measure=cast("Measure", measure))
    with checked_options():
        steps = writes.steps()
    memory = writes.memory()
    rows = read_all(problems, Problem)
    tried = _trials(trials, rows)
    with grader(extract, equality) as judge:
        difficulties = asyncio.run(
            predict_difficulties(
                measured,
                rows,
                remembering_policy(writes.open(), memory),
                remembering_scorer(scores.open(writes.device), memory),
                steps=steps,
                aggregation=scores.aggregation(),
                grader=judge,
                seed=seed,
                overlap=writes.base_url is not None,
                concurrency=in_flight,
            )
        )
    with checked_options():
        fit = fit_optimal(
            tried, difficulties, tokens=tokens, bins=bins, slack=slack, probe=measured, rule=rule
        )
    found = Plan.of(fit)
    write_json(Path(out), found.model_dump(mode="json"))
    _show(found)


def _trials(words: Sequence[str], problems: Sequence[Problem]) -> list[Trial]:
    from surefoot.cli._shared import read_all
    from surefoot.cli.search._plan import search_of
    from surefoot.errors import RunError
    from surefoot.search import SearchResult, Trial

    found = []
    for trial in words:
        search, at, path = trial.partition("@")
        if not at or not path:
            raise RunError(
                f"{trial!r}: give a search and the file of its results, as beam:width=4@beam.jsonl"
            )
        results = {result.problem_id: result for result in read_all(path, SearchResult)}
        missing = [problem.id for problem in problems if problem.id not in results]
        if missing:
            raise RunError(
                f"{path}: {len(missing)} of {len(problems)} problems have no result, first {missing[0]}"
            )
        of_search = [results[problem.id] for problem in problems]
        found.append(Trial(search=search_of(search), results=of_search))
    return found


def _show(plan: Plan) -> None:
    """Accuracy and tokens of each search in each bin; the chosen one is marked."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="right, %, and tokens a problem; * = chosen", title_justify="left")
    for heading in ("difficulty below", "problems", *plan.bins[0]):
        table.add_column(heading, justify="right", overflow="fold")
    for row, chosen, edge in zip(plan.bins, plan.searches, [*plan.edges, None], strict=True):
        cells = [
            ("n/a" if cell.accuracy is None else f"{100 * cell.accuracy:.1f}")
            + f" at {cell.tokens:.0f}"
            + (" *" if name == chosen else "")
            for name, cell in row.items()
        ]
        most = max(cell.problems for cell in row.values())
        table.add_row("" if edge is None else f"{edge:.3f}", str(most), *cells)
    Console().print(table)
    if plan.unknown:
        typer.echo(f"left out: {plan.unknown} problems whose difficulty could not be told", err=True)
