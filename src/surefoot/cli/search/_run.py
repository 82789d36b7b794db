"""What every ``search`` command does with its method: a whole file of problems, in pieces, and a summary."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from surefoot.cli._pieces import file_inputs, in_pieces
from surefoot.cli._shared import checked_options, grader, read_all, stages
from surefoot.cli.options import BudgetSettings
from surefoot.cli.search._options import FileOptions, PolicyOptions, PrmOptions
from surefoot.cli.search._summary import Summary
from surefoot.cli.search._trees import kept_trees
from surefoot.errors import PolicyError

if TYPE_CHECKING:
    from surefoot.records import Problem
    from surefoot.search.method import Search, SearchResult
    from surefoot.search.saved_tree import SavedTree
    from surefoot.search.space import Space

_IN_PIECE = 4
"""Problems of a piece, in those that are searched at once: the next starts as soon as one has ended."""
_UNSEEN = {"out", "token_budget", "time_budget", "concurrency", "timeout"}
"""Options that change no result."""


def search_file(
    command: str, search: Search, files: FileOptions, policy: PolicyOptions, prm: PrmOptions | None = None
) -> None:
    """Search all problems of a file by one method, and say how it went.

    Raises ``PolicyError`` when every request of a piece failed, as when the server is gone: the pieces
    before it are kept, and the same command goes on from there.
    """
    from surefoot.cli.search._remember import remembering_policy, remembering_scorer
    from surefoot.models.loading import identifying_files
    from surefoot.records import Problem
    from surefoot.search.method import SearchResult, run_search
    from surefoot.search.saved_tree import save_tree

    with checked_options():
        steps = policy.steps()
    how = prm.aggregation() if prm else None
    memory = policy.memory()
    problems = _distinct(read_all(files.problems, Problem))
    inputs = file_inputs(problems=files.problems) | (identifying_files(prm.prm) if prm else {})
    config = _config(search, files, policy, prm)
    scorer = prm.open(policy.device) if prm else None
    writer = policy.open()
    size = _IN_PIECE * files.in_flight
    places = {problem.id: place for place, problem in enumerate(problems)}
    summary = Summary()
    with (
        grader(files.extract, files.equality) as judge,
        kept_trees(files.trees, files.out, command=command, config=config, inputs=inputs) as keep,
        stages() as show,
    ):
        bar = _Bar(command, size, len(problems), show)

        def work(piece: Sequence[Problem]) -> list[SearchResult]:
            trees: dict[str, SavedTree] = {}

            def watch(space: Space, result: SearchResult) -> None:
                bar.one()
                if keep:
                    trees[result.problem_id] = save_tree(space, result)

            results = asyncio.run(
                run_search(
                    search,
                    piece,
                    remembering_policy(writer, memory),
                    remembering_scorer(scorer, memory) if scorer else None,
                    steps=steps,
                    aggregation=how,
                    grader=judge,
                    seed=files.seed,
                    overlap=policy.base_url is not None,
                    concurrency=files.in_flight,
                    watch=watch,
                )
            )
            _require_answers(results)
            if keep:
                keep(places[piece[0].id] // size, [trees[problem.id] for problem in piece])
            if files.out == "-":
                summary.add(results)
            return results

        in_pieces(
            files.out,
            SearchResult,
            problems,
            work,
            size=size,
            command=command,
            config=config,
            inputs=inputs,
            budget=BudgetSettings(tokens=files.token_budget, minutes=files.time_budget),
            cost=lambda results: sum(result.usage.tokens for result in results),
            progress=bar.pieces,
        )
    if files.out != "-":
        summary.add_file(Path(files.out))
    summary.show(command)


def _config(
    search: Search, files: FileOptions, policy: PolicyOptions, prm: PrmOptions | None
) -> dict[str, Any]:
    """Everything that a result depends on."""
    groups = [dataclasses.asdict(group) for group in (files, policy, prm) if group]
    options = {name: value for group in groups for name, value in group.items() if name not in _UNSEEN}
    return {**options, "method": repr(search)}


def _distinct(problems: Sequence[Problem]) -> list[Problem]:
    """Problems of different ids; how many came again is said on standard error."""
    found: dict[str, Problem] = {}
    for problem in problems:
        found.setdefault(problem.id, problem)
    if again := len(problems) - len(found):
        typer.echo(f"{again} problems skipped: an earlier one has the same id", err=True)
    return list(found.values())


def _require_answers(results: Sequence[SearchResult]) -> None:
    if results and all(result.counts.failed and not result.candidates for result in results):
        raise PolicyError(
            f"no problem of this piece has a solution, the last with: {results[-1].error}; mend that and "
            "start the same command again, finished pieces are kept"
        )


class _Bar:
    """A progress bar of problems, those of an earlier start included."""

    def __init__(self, command: str, size: int, problems: int, show: Callable[[str, int, int], None]) -> None:
        self._command, self._size, self._problems, self._show = command, size, problems, show
        self._done = 0

    def one(self) -> None:
        """One more is done."""
        self._done += 1
        self._show(self._command, self._done, self._problems)

    def pieces(self, _: str, done: int, __: int) -> None:
        """So many pieces are done."""
        self._done = min(done * self._size, self._problems)
        self._show(self._command, self._done, self._problems)
