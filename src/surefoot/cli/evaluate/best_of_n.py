"""The measure of selectors: best-of-N."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from surefoot.answers import AnswerChecker
from surefoot.cli.evaluate.inputs import Measure, named, read_noted, read_scores
from surefoot.cli.runs import pair, read_table
from surefoot.cli.terminal import note
from surefoot.errors import ScoreError
from surefoot.evaluation.best_of_n import (
    BestOfNCurves,
    StoredPools,
    best_of_n_section,
    evaluate_best_of_n,
    grade_stored,
    judged_candidates,
)
from surefoot.evaluation.step_scores import StoredScores, score_once, scorer_tables
from surefoot.formats import read_candidate_pool
from surefoot.io.sources import names_files
from surefoot.io.tables import facts_in, open_table
from surefoot.records import Problem, StepScores, Trace
from surefoot.search.selection import COMMON_RULES, ScoreRule
from surefoot.work import show_progress

if TYPE_CHECKING:
    from surefoot.cli.evaluate.command import Evaluate

Progress = Callable[[str, int, int], None]


class BestOfNMeasure(Measure):
    """Choose among N samples: best-of-N and votes by min, product, last, mean and sum, for any number of
    scorers on the same samples, against N and tokens, with pass@N and differences from majority paired by
    problem."""

    takes: ClassVar = ("sources", "traces", "problems", "pool", "grading", "loading")
    sizes: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Numbers of samples, such as 1+2+4+8; by default 1, 2, 4 … up to the number that half of the problems
    have."""
    rule: tuple[ScoreRule, ...] = Field(default=COMMON_RULES, min_length=1)
    """Selection rules to apply to every scorer."""
    subsets: int = Field(default=400, ge=1)
    """Random subsets for votes, whose accuracy lacks a closed form."""
    bootstrap: int = Field(default=10_000, ge=1, description="Bootstrap draws of problems for the intervals.")

    def check(self, command: Evaluate) -> None:
        if (command.traces is None) == (command.pool is None):
            raise ValueError("give either 'traces' or 'pool'")
        if not command.sources and command.pool is None:
            raise ValueError("give a scorer as NAME=CHECKPOINT or NAME=FILE, or stored scores with 'pool'")

    def run(self, command: Evaluate) -> None:
        with AnswerChecker(command.grading.equality) as checker, show_progress() as progress:
            stored = None
            if command.pool is not None:
                pools = read_noted(read_candidate_pool, command.pool)
                stored = grade_stored(
                    pools,
                    checker,
                    command.grading.extract,
                    progress=lambda done: progress("grade", done, len(pools)),
                )
            samples = stored.traces if stored else read_table(command.traces or "-", Trace)
            read = read_table(command.problems, Problem) if command.problems else None
            problems = stored.problems if stored else read
            scores = scorer_tables(None, stored.scores) if stored else {}
            scores |= _scores(command, problems, samples, progress)
            total = len({facts.parent for facts in facts_in(samples)})
            candidates = judged_candidates(
                samples,
                checker,
                least=max(self.sizes, default=None),
                progress=lambda done: progress("compare answers", done, total),
            )
            failures = dict(checker.failures)
        if stored:
            candidates = replace(candidates, dropped={**stored.dropped, **candidates.dropped})
        result = evaluate_best_of_n(
            candidates,
            scores,
            rules=self.rule,
            sizes=list(self.sizes) or None,
            draws=self.subsets,
            bootstrap=self.bootstrap,
            seed=command.seed,
        )
        verdicts = {"stated": stored.verdicts, "differing": stored.differing} if stored else None
        command.write(best_of_n_section(result), answers_not_compared=failures, verdicts_of_the_file=verdicts)
        _show_left_out(result, stored)


def _scores(
    command: Evaluate, problems: Sequence[Problem] | None, traces: Sequence[Trace], progress: Progress
) -> dict[str, StoredScores]:
    """Scores by scorer; scores of checkpoints are stored and reused."""
    tables: dict[str, StoredScores] = {}
    paths = named(command.sources)
    with_traces = {facts.parent for facts in facts_in(traces)}
    command.check_training(paths, (problem for problem in problems or () if problem.id in with_traces))
    for name, path in paths.items():
        if names_files(path):
            tables |= scorer_tables(name, read_scores(path))
            continue
        if problems is None:
            raise ScoreError(
                f"{name}={path} is not a file; a checkpoint needs --problems to score the traces"
            )
        items, store = pair(problems, traces), command.folder() / "scores"
        scores = score_once(name, path, items, store, loading=command.loading, progress=progress)
        tables[name] = StoredScores(open_table(name, StepScores, records=scores))
    return tables


def _show_left_out(result: BestOfNCurves, stored: StoredPools | None) -> None:
    for reason, count in result.dropped.items():
        note(f"left out: {count} {reason}")
    for quantity, reason in result.unknown.items():
        note(f"unknown: {quantity}; {reason}")
    for name, counts in result.scorers.items():
        if counts.unscored or counts.foreign:
            note(f"{name}: {counts.unscored} candidates unscored, {counts.foreign} scores of other traces")
    if stored and stored.differing:
        note(f"{stored.differing} of {stored.verdicts} stated verdicts differ from the grading here")
