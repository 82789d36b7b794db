"""``surefoot select``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import model_validator

from surefoot.answers import AnswerChecker, group_equal
from surefoot.cli import options as o
from surefoot.cli.runs import read_step_scores, read_table
from surefoot.cli.settings import Command
from surefoot.cli.terminal import echo_table, note, note_count
from surefoot.errors import ScoreError, counted
from surefoot.evaluation.columns import TraceFacts, read_traces, trace_facts, trace_file
from surefoot.evaluation.measures import Measured
from surefoot.evaluation.run_choice import (
    FREE_RULES,
    FreeRule,
    RuleChances,
    RunTable,
    TaskRuns,
    choice_verdict,
    compare_choices,
)
from surefoot.evaluation.verdict import headline
from surefoot.io import ReadReport, write_records
from surefoot.protocols import Candidate
from surefoot.records import Trace
from surefoot.scores import TraceRule, is_scored, trace_score
from surefoot.search import SELECTORS, select_among
from surefoot.search.selection import SelectorName

_AMONG: Final = ", among the best"
_AMONG_BEST: Final = f"majority{_AMONG}"
_FIRST = 20
"""Problems whose traces show whether a file holds runs of an agent."""


class Select(Command):
    """Choose one trace per problem, and report how often it is correct.

    The chosen traces are written. If some have an outcome, a table on standard error shows the accuracy of
    the written choice next to majority, the first, the shortest and a random sample, with 95 % intervals over
    problems; `evaluate --as best-of-n` draws it against the number of samples.

    For runs of an agent the table shows what the choice is worth next to the choices that read nothing: the
    shortest run, fewest steps, fewest failures, last call succeeded, and a random run. The choice is called
    better only if the interval of its difference to the best of them lies above zero.

    Example: `surefoot select traces.jsonl --scores scores.jsonl --out chosen.jsonl`

    Example/ --rule shortest --out chosen.jsonl`
    """

    traces: o.TracesArgument
    scores: Annotated[str | None, o.INPUT] = None
    """File of step scores or labels; majority and the rules for agent runs need none."""
    rule: SelectorName | FreeRule | None = None
    """The best-scored trace; one with the most frequent answer; one with the answer whose scores add up to
    most, among all, the best-scored 10 % or 90 % of the traces; with the highest mean score times root of its
    votes (agreement). For agent runs also: fewest characters (`shortest`), steps or failures, last call
    succeeded. If not given: `best_of_n` with `--scores`, `shortest` for agent runs."""
    among: Annotated[str | None, o.INPUT] = None
    """File of step scores that come first: of a problem's traces those with the highest lowest score there
    take part, or of a verifier's labels those without a refuted step. For example visible tests, by
    `surefoot execute --scores`, or equations, by `surefoot label verify:rules=equations`."""
    aggregate: TraceRule | None = None
    """How step scores become one number; if not given, `verdicts` for a verifier's (any refuted step loses,
    then more confirmed ones win), and min for others."""
    equality: Literal["math", "exact"] = "math"
    """How answers are compared."""
    out: o.Out = "-"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.scores is None and self.rule in SELECTORS and self.rule != "majority":
            raise ValueError(f"'rule' {self.rule} needs --scores")
        return self

    def _rule(self, runs: RunTable, groups: Sequence[NDArray[np.intp]]) -> SelectorName | FreeRule:
        """The rule, if none is given by the traces of the first problems."""
        is_run = any(runs.is_run[group].any() for group in groups[:_FIRST])
        if self.rule in FREE_RULES and not is_run:
            raise ScoreError(f"{self.traces}: --rule {self.rule} is for runs of an agent, which call tools")
        if self.rule is None and self.scores is None and not is_run:
            raise ScoreError("'rule' best_of_n needs --scores")
        return self.rule or ("best_of_n" if self.scores else "shortest")

    def run(self) -> None:
        runs, read = _read_runs(self.traces)
        groups = runs.groups()
        rule = self._rule(runs, groups)
        scores = _Scores(self.scores, runs, self.aggregate)
        among = _Scores(self.among, runs, None)
        free = runs.free.get(rule)
        selector = SELECTORS[cast("SelectorName", "best_of_n" if free is not None else rule)]
        name = rule if free is not None or scores.source is None else f"{rule} by {scores.source.scorer}"
        name += _AMONG if among.source else ""
        chosen: list[int] = []
        tasks, solutions = RuleChances(), RuleChances()
        answered = scored = blank = ungraded = 0
        with AnswerChecker(self.equality) as compare:
            for group in groups:
                members = group.tolist()
                answers = group_equal([runs.answers[at] for at in members], compare)
                values, scored_here = scores.of(members)
                values = values if free is None else (-free[group]).tolist()
                pool = [
                    Candidate(answer=answer, score=value, refuted=scores.refutes(at))
                    for at, answer, value in zip(members, answers, values, strict=True)
                ]
                answered += sum(answer is not None for answer in answers)
                scored, blank = scored + scored_here, blank + (scored_here == 0)
                gate = among.gate(members)
                at = select_among(selector, pool, gate)
                chosen.append(members[at])
                outcomes = runs.outcomes[group]
                if (outcomes < 0).all():
                    continue
                ungraded += int((outcomes < 0).sum())
                correct = outcomes == 1
                index = np.arange(len(members))
                if free is not None or runs.is_run[group].any():
                    costs: dict[str, ArrayLike] = {of: cost[group] for of, cost in runs.free.items()}
                    if name not in FREE_RULES:
                        shares_ties = rule == "best_of_n" and gate is None
                        keys = [np.inf if value is None else -value for value in values]  # unscored last
                        costs[name] = keys if shares_ties else index != at
                    tasks.add(TaskRuns(costs=costs, correct=correct))
                else:
                    majority = SELECTORS["majority"]
                    choices = {name: at, "majority": majority.select(pool), "first": 0}
                    if gate is not None:
                        choices[_AMONG_BEST] = select_among(majority, pool, gate)
                    costs = {choice: index != place for choice, place in choices.items()}
                    costs["shortest"] = runs.characters[group]
                    solutions.add(TaskRuns(costs=costs, correct=correct))
        if scores.source is not None and not scored:
            first = next(iter(runs.layout.numbers))
            raise ScoreError(
                f"{self.scores}: {scores.source.first}; the first trace's id is {first!r}; give the scores "
                "that surefoot score made of this file"
            )
        o.note_failures(compare)
        if rule in SELECTORS and rule != "best_of_n" and not answered:
            raise ScoreError(
                f"{self.traces}: no trace has an 'answer', so there is nothing to vote on; sample and import "
                "extract answers"
            )
        if scores.source is not None and scored < runs.layout.traces:
            fate = "counted as open" if scores.how == "verdicts" else "chosen last"
            note(f"{counted(runs.layout.traces - scored, 'unscored trace')}: {fate}")
        if scores.source is not None:
            note_count(blank, "problem", f"of {len(chosen)} without a scored trace: votes or order decided")
        write_records(self.out if self.out == "-" else Path(self.out), read(chosen))
        if tasks:
            _choice_table(compare_choices(tasks), name, "tasks", "runs")
        if solutions:
            free_rules = ["majority", "first", "shortest"]
            if among.source and name != _AMONG_BEST:
                free_rules.append(_AMONG_BEST)
            _choice_table(compare_choices(solutions, free_rules=free_rules), name, "problems", "solutions")
        note_count(ungraded, "trace", "without an outcome, unlike others of the problem: counted as wrong")
        if not tasks and not solutions:
            note("no trace has an outcome: no accuracy to report")


def _read_runs(path: str) -> tuple[RunTable, Callable[[Iterable[int]], Iterable[Trace]]]:
    """The traces of a file, and a function that reads some of them by number."""
    file, report = trace_file(path), ReadReport()
    if file is not None:
        runs = RunTable(trace_facts(file, report))
        if runs.layout.traces and not report.bad_count and not runs.layout.repeated:
            return runs, partial(read_traces, file, runs.numbers, runs.starts)
    records = read_table(path, Trace)
    return RunTable(map(TraceFacts.of, records)), partial(map, records.__getitem__)


class _Scores:
    """Scores of traces by a file, if one is given."""

    def __init__(self, path: str | None, runs: RunTable, how: TraceRule | None) -> None:
        self.source = read_step_scores(path, runs.layout) if path else None
        self.how: TraceRule = how or (self.source.rule if self.source else "min")

    def of(self, traces: Sequence[int]) -> tuple[list[float | None], int]:
        """The value of each trace, and how many are scored."""
        rows = [self.source.of(at) if self.source else None for at in traces]
        values = [None if row is None else trace_score(row, self.how) for row in rows]
        return values, sum(row is not None and is_scored(row, self.how) for row in rows)

    def gate(self, traces: Sequence[int]) -> list[float | None] | None:
        """What a problem's traces have to come first by: their values, or whether no step is refuted."""
        if self.source is None:
            return None
        values, _ = self.of(traces)
        if self.how != "verdicts":
            return values
        # more confirmed steps are no reason: they would favour long solutions
        return [None if value is None else float(value > 0) for value in values]

    def refutes(self, trace: int) -> bool:
        """Whether a check found a step of the trace wrong."""
        return self.source is not None and bool(self.source.refuted[trace])


def _choice_table(result: Measured, name: str, tasks: str, runs: str) -> None:
    """What the choice that was written is worth, next to those that read nothing."""
    note(headline(name, [choice_verdict(result, name)]))
    rows = [
        [
            choice.name,
            f"{choice.solved:.1%}",
            f"{100 * choice.over_random:+.1f}",
            "" if choice.over_free is None else f"{100 * choice.over_free:+.1f}",
        ]
        for choice in result.choices
    ]
    title = f"{result.tasks} {tasks}, {result.runs} {runs}: share of {tasks} solved, differences in points"
    headers = ("choice", "solved", "minus random", f"minus {result.best_free}")
    echo_table(title, headers, rows, err=True)
