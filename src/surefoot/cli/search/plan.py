"""``surefoot search optimal`` and ``surefoot search plan``: choose the search by predicted difficulty."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from surefoot.cli import options as o
from surefoot.cli.runs import checked_options, read_table
from surefoot.cli.search.command import GuidedSearch, Judge, SearchSettings
from surefoot.cli.settings import Flag, OptionGroup, fill
from surefoot.cli.terminal import echo_table, note
from surefoot.errors import RunError
from surefoot.io import write_json
from surefoot.records import Problem
from surefoot.search import ComputeOptimal, Probe, Trial
from surefoot.search.optimal import SearchPlan, search_of
from surefoot.search.selection import Rule


def read_plan(path: str) -> SearchPlan:
    """The plan in a JSON file. Raises ``RunError`` for an invalid file."""
    return o.settings_file("--plan", path, SearchPlan)


class Optimal(GuidedSearch):
    """Compute-optimal search: a few solutions predict the difficulty, which decides the search.

    Example: `surefoot search optimal problems.jsonl --policy lab --plan plan.json --prm prm --out r.jsonl`
    """

    plan: Annotated[str, o.INPUT] = Field(description="JSON file of `surefoot search plan`, or your own.")

    def search(self) -> ComputeOptimal:
        with checked_options():
            return read_plan(self.plan).search()


class FindPlan(SearchSettings):
    """Find the best search for each bin of predicted difficulty, from results on development problems.

    Each trial is a search and the file of its results, made by `surefoot search METHOD` with these settings.

    Example: `surefoot search plan best-of-n:n=16@bon.jsonl beam:width=4@beam.jsonl --tokens 2000
    --problems dev.jsonl --prm prm --out plan.json`
    """

    problems: o.Problems
    trials: Annotated[tuple[str, ...], Flag(argument=True, metavar="METHOD:SETTING=VALUE,…@FILE")]
    """A search, and the file of its results on these problems."""
    judge: Judge
    tokens: float = Field(ge=1, description="Most tokens per problem: policy, verifier and probe.")
    out: Annotated[str, Flag(short="-o", output=True)] = "plan.json"
    """JSON file to write."""
    bins: int = Field(default=5, ge=1, description="Bins of difficulty, equally full.")
    slack: float = Field(default=0.1, ge=0, description="Share by which a search may exceed `--tokens`.")
    probe: Annotated[Probe, OptionGroup(names={"n": "--probe"})] = Probe()
    rule: Rule = Field(default="weighted_vote", description="How the solution that is returned is chosen.")

    def run(self) -> None:
        import asyncio

        from surefoot.search import fit_optimal, predict_difficulties

        problems = read_table(self.problems, Problem)
        trials = _trials(self.trials, problems)
        with self.judge.open(self.loading) as scorer, self.grading.open() as grader:
            policy = self.policy.open(chat=self.prompt.chat, loading=self.loading)
            about = self.about(policy, scorer, grader)
            probed = asyncio.run(predict_difficulties(self.probe, problems, steps=self.how(scorer), **about))
        with checked_options():
            fit = fill(fit_optimal, self, trials, probed)
        plan = SearchPlan.of(fit)
        write_json(Path(self.out), plan.model_dump(mode="json"))
        _show(plan)


def _trials(words: Sequence[str], problems: Sequence[Problem]) -> list[Trial]:
    from surefoot.search import SearchResult

    trials = []
    for trial in words:
        search, at, path = trial.partition("@")
        if not at or not path:
            raise RunError(
                f"{trial!r}: give a search and the file of its results, as beam:width=4@beam.jsonl"
            )
        results = {result.problem_id: result for result in read_table(path, SearchResult)}
        missing = [problem.id for problem in problems if problem.id not in results]
        if missing:
            raise RunError(
                f"{path}: {len(missing)} of {len(problems)} problems lack a result, first {missing[0]}"
            )
        of_search = [results[problem.id] for problem in problems]
        trials.append(Trial(search=search_of(search), results=of_search))
    return trials


def _show(plan: SearchPlan) -> None:
    """Accuracy and tokens of each search in each bin; the chosen one is marked."""
    rows = []
    for row, chosen, edge in zip(plan.bins, plan.searches, [*plan.edges, None], strict=True):
        cells = [
            ("n/a" if cell.accuracy is None else f"{100 * cell.accuracy:.1f}")
            + f" at {cell.tokens:.0f}"
            + (" *" if name == chosen else "")
            for name, cell in row.items()
        ]
        most = max(cell.problems for cell in row.values())
        rows.append(["" if edge is None else f"{edge:.3f}", str(most), *cells])
    echo_table(
        "correct, %, and tokens per problem with the probe; * = chosen",
        ["difficulty below", "problems", *plan.bins[0]],
        rows,
    )
    if plan.unknown:
        note(f"left out: {plan.unknown} problems of unknown difficulty")
