"""``surefoot select``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Literal, Self, cast

from pydantic import model_validator

from surefoot.answers import AnswerChecker, group_equal
from surefoot.cli import options as o
from surefoot.cli.runs import ScoreFile, read_table
from surefoot.cli.settings import Command
from surefoot.cli.terminal import echo_table, note, note_count
from surefoot.errors import ScoreError, counted
from surefoot.evaluation.measures import Measured
from surefoot.evaluation.run_choice import (
    FREE_RULES,
    FreeRule,
    TaskRuns,
    choice_verdict,
    compare_choices,
    is_agent_run,
    task_runs,
)
from surefoot.evaluation.verdict import headline
from surefoot.io import write_records
from surefoot.io.tables import RecordTable
from surefoot.protocols import Candidate
from surefoot.records import StepLabel, StepScores, Trace
from surefoot.scores import TraceRule, is_scored, trace_score
from surefoot.search import SELECTORS, select_among
from surefoot.search.selection import SelectorName

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
    """File of step scores that come first: of a problem's traces those with the highest lowest score there,
    or the best verdicts, take part. For example visible tests, by `surefoot execute --scores`."""
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

    def _rule(self, traces: RecordTable[Trace]) -> SelectorName | FreeRule:
        """The rule, if none is given by the traces of the first problems."""
        runs = any(map(is_agent_run, chain.from_iterable(islice(traces.groups(), _FIRST))))
        if self.rule in FREE_RULES and not runs:
            raise ScoreError(f"{self.traces}: --rule {self.rule} is for runs of an agent, which call tools")
        if self.rule is None and self.scores is None and not runs:
            raise ScoreError("'rule' best_of_n needs --scores")
        return self.rule or ("best_of_n" if self.scores else "shortest")

    def run(self) -> None:
        scores = ScoreFile(self.scores) if self.scores else None
        among = ScoreFile(self.among) if self.among else None
        how = self.aggregate or (scores.rule if scores else "min")
        traces = read_table(self.traces, Trace)
        rule = self._rule(traces)
        free = FREE_RULES.get(cast("FreeRule", rule))
        selector = SELECTORS["best_of_n" if free else rule]
        name = rule if free or scores is None else f"{rule} by {scores.scorer}"
        name += ", among the best" if among else ""
        chosen: list[str] = []
        tasks: list[TaskRuns] = []
        solutions: list[TaskRuns] = []
        answered = scored = blank = ungraded = 0
        with AnswerChecker(self.equality) as compare:
            for group in traces.groups():
                answers = group_equal([trace.answer for trace in group], compare)
                records = scores.of(group) if scores else [None] * len(group)
                values = [trace_score(record.scores, how) if record else None for record in records]
                values = [-free(trace) for trace in group] if free else values
                pool = [
                    Candidate(answer=a, score=v, refuted=record is not None and record.refuted())
                    for record, a, v in zip(records, answers, values, strict=True)
                ]
                answered += sum(answer is not None for answer in answers)
                scored_here = sum(record is not None and is_scored(record.scores, how) for record in records)
                scored, blank = scored + scored_here, blank + (scored_here == 0)
                gate = None
                if among is not None:
                    first = among.of(group)
                    gate = [trace_score(record.scores, among.rule) if record else None for record in first]
                at = select_among(selector, pool, gate)
                chosen.append(group[at].id)
                if all(trace.outcome is None for trace in group):
                    continue
                ungraded += sum(trace.outcome is None for trace in group)
                if free or any(map(is_agent_run, group)):
                    shares_ties = rule == "best_of_n" and gate is None
                    worth = values if shares_ties else [float(number == at) for number in range(len(group))]
                    tasks.append(task_runs(group, {} if name in FREE_RULES else {name: worth}))
                else:
                    choices = {name: at, "majority": SELECTORS["majority"].select(pool), "first": 0}
                    costs: dict[str, Sequence[float]] = {
                        choice: [float(number != index) for number in range(len(group))]
                        for choice, index in choices.items()
                    }
                    costs["shortest"] = [_length(trace) for trace in group]
                    correct = [trace.outcome is True for trace in group]
                    solutions.append(TaskRuns(costs=costs, correct=correct))
        if scores is not None and not scored:
            raise ScoreError(_no_score(self.scores or "-", scores.first(), traces[0]))
        o.note_failures(compare)
        if rule in SELECTORS and rule != "best_of_n" and not answered:
            raise ScoreError(
                f"{self.traces}: no trace has an 'answer', so there is nothing to vote on; sample and import "
                "extract answers"
            )
        if scores is not None and scored < len(traces):
            fate = "counted as open" if how == "verdicts" else "chosen last"
            note(f"{counted(len(traces) - scored, 'unscored trace')}: {fate}")
        if scores is not None:
            note_count(blank, "problem", f"of {len(chosen)} without a scored trace: votes or order decided")
        out = self.out if self.out == "-" else Path(self.out)
        write_records(out, (trace for name in chosen for trace in traces.find(name)))
        if tasks:
            _choice_table(compare_choices(tasks), name, "tasks", "runs")
        if solutions:
            free_rules = ("majority", "first", "shortest")
            _choice_table(compare_choices(solutions, free_rules=free_rules), name, "problems", "solutions")
        note_count(ungraded, "trace", "without an outcome, unlike others of the problem: counted as wrong")
        if not tasks and not solutions:
            note("no trace has an outcome: no accuracy to report")


def _no_score(path: str, first: StepScores | StepLabel, trace: Trace) -> str:
    if isinstance(first, StepLabel):
        return f"{path}: no label has a value of these traces; the first is {first}"
    if all(score is None for score in first.scores):
        return f"{path}: no trace has a score; first, {first.trace_id}: {first.unscored_reason}"
    return (
        f"{path}: no score is of these traces; its first 'trace_id' is {first.trace_id!r}, and the first "
        f"trace's id {trace.id!r}; give the scores that surefoot score made of this file"
    )


def _length(trace: Trace) -> int:
    """Characters of a solution."""
    return len(trace.text or "") + sum(
        len(message.content or "") for message in trace.messages if message.role == "assistant"
    )


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
