"""``surefoot select``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, Self, cast

import numpy as np
from pydantic import model_validator

from surefoot import search
from surefoot.answers import AnswerChecker, group_equal
from surefoot.cli import options as o
from surefoot.cli.runs import read_table
from surefoot.cli.settings import Command
from surefoot.cli.terminal import echo_table, note
from surefoot.errors import ScoreError
from surefoot.evaluation.best_of_n import sizes_up_to
from surefoot.io import write_records
from surefoot.io.tables import RecordTable
from surefoot.protocols import Candidate
from surefoot.records import StepScores, Trace
from surefoot.scores import TraceRule, is_scored, trace_score
from surefoot.search import SELECTORS, select_among, selection_curve
from surefoot.search.selection import SelectorName
from surefoot.stats.bootstrap import bootstrap_difference, bootstrap_mean


class Select(Command):
    """Choose one trace per problem, and report how often it is correct for each number of samples N.

    The chosen traces are written. If all traces of a problem have an outcome, a table on standard error shows
    the unbiased accuracy for 1, 2, 4 … samples with 95 % intervals over problems.

    Example: `surefoot select traces.jsonl --scores scores.jsonl --out chosen.jsonl`
    """

    traces: o.TracesArgument
    scores: Annotated[str | None, o.INPUT] = None
    """File of step scores; majority needs none."""
    rule: SelectorName = "best_of_n"
    """The best-scored trace; one with the most frequent answer; one with the answer whose scores add up to
    most, among all, the best-scored 10 % or 90 % of the traces; with the highest mean score times root of its
    votes (agreement)."""
    among: Annotated[str | None, o.INPUT] = None
    """File of step scores that come first: of a problem's traces those with the highest lowest score there,
    or the best verdicts, take part. For example visible tests, by `surefoot execute --scores`."""
    aggregate: TraceRule | None = None
    """How step scores become one number; if not given, `verdicts` for a verifier's (any refuted step loses,
    then more confirmed ones win), and min for others."""
    equality: Literal["math", "numeric", "exact"] = "math"
    """How answers are compared."""
    out: o.Out = "-"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.scores is None and self.rule != "majority":
            raise ValueError(f"'rule' {self.rule} needs --scores")
        return self

    def run(self) -> None:
        scores, how = _table_of_one(self.scores)
        among, how_among = _table_of_one(self.among)
        how = self.aggregate or how
        traces = read_table(self.traces, Trace)
        selector = SELECTORS[self.rule]
        chosen: list[str] = []
        graded: list[search.Pool] = []
        answered = scored = blank = 0
        with AnswerChecker(self.equality) as compare:
            for group in traces.groups():
                answers = group_equal([trace.answer for trace in group], compare)
                records = _records(group, scores)
                values = [trace_score(record.scores, how) if record else None for record in records]
                pool = [
                    Candidate(answer=a, score=v, refuted=record is not None and record.refuted())
                    for record, a, v in zip(records, answers, values, strict=True)
                ]
                answered += sum(answer is not None for answer in answers)
                scored_here = sum(record is not None and is_scored(record.scores, how) for record in records)
                scored, blank = scored + scored_here, blank + (scored_here == 0)
                gate = None
                if among is not None:
                    first = _records(group, among)
                    gate = [trace_score(record.scores, how_among) if record else None for record in first]
                chosen.append(group[select_among(selector, pool, gate)].id)
                if any(trace.outcome is not None for trace in group):
                    correct = np.array([trace.outcome is True for trace in group], dtype=bool)
                    graded.append(
                        search.Pool(
                            answers=answers,
                            correct=correct,
                            scores=np.array(values, dtype=float),
                            gate=None if gate is None else np.array(gate, dtype=float),
                        )
                    )
        if scores is not None and not scored:
            raise ScoreError(_no_score(self.scores or "-", scores[0], traces[0]))
        o.note_failures(compare)
        if self.rule != "best_of_n" and not answered:
            raise ScoreError(
                f"{self.traces}: no trace has an 'answer', so there is nothing to vote on; sample and import "
                "extract answers"
            )
        if scores is not None and scored < len(traces):
            fate = "count as open" if how == "verdicts" else "chosen last"
            note(f"{len(traces) - scored} traces are unscored and {fate}")
        if scores is not None and blank:
            note(f"{blank} of {len(chosen)} problems lack a scored trace: votes or order decided")
        out = self.out if self.out == "-" else Path(self.out)
        write_records(out, (trace for name in chosen for trace in traces.find(name)), record=Trace)
        _table(graded, self.rule)


def _table_of_one(path: str | None) -> tuple[RecordTable[StepScores] | None, TraceRule]:
    """The scores of a file, which must be of one scorer, and the rule that fits them."""
    if path is None:
        return None, "min"
    table = read_table(path, StepScores)
    scorers, kinds = set(), set()
    for record in table:
        scorers.add(record.scorer)
        if any(score is not None for score in record.scores):
            kinds.add(record.are_verdicts)
    if len(scorers) > 1:
        names = ", ".join(sorted(scorers)[:3])
        raise ScoreError(f"{path}: scores of {len(scorers)} scorers ({names}); give one's")
    return table, "verdicts" if kinds == {True} else "min"


def _records(group: Sequence[Trace], scores: RecordTable[StepScores] | None) -> list[StepScores | None]:
    """The latest record of each trace, if it has one."""
    rows = scores.find_many(trace.id for trace in group) if scores is not None else {}
    return [rows[trace.id][-1] if trace.id in rows else None for trace in group]


def _no_score(path: str, first: StepScores, trace: Trace) -> str:
    if all(score is None for score in first.scores):
        return f"{path}: no trace has a score; first, {first.trace_id}: {first.unscored_reason}"
    return (
        f"{path}: no score is of these traces; its first 'trace_id' is {first.trace_id!r}, and the first "
        f"trace's id {trace.id!r}; give the scores that surefoot score made of this file"
    )


def _table(graded: Sequence[search.Pool], rule: str) -> None:
    """Accuracy against N, over the problems with outcomes; a trace of unknown outcome counts as wrong."""
    if not graded:
        note("no trace has an outcome: no accuracy to report")
        return
    sizes = sizes_up_to(min(len(pool.correct) for pool in graded))
    methods: list[search.Method] = ["pass", "majority", cast("search.Method", rule)]
    plain = [replace(pool, gate=None) for pool in graded]
    curves = [
        selection_curve(pools, method, sizes, rng=np.random.default_rng(0))
        for method, pools in zip(methods, (plain, plain, graded), strict=True)
    ]
    lead = bootstrap_difference(curves[1][:, -1], curves[2][:, -1], rng=np.random.default_rng(0))
    if lead.low > 0:
        shares = f"{curves[1][:, -1].mean():.1%} of the problems against {curves[2][:, -1].mean():.1%}"
        note(f"majority voting is better here: it solves {shares}; use --rule=majority")
    rows = []
    for column, size in enumerate(sizes):
        estimates = [bootstrap_mean(curve[:, column], rng=np.random.default_rng(0)) for curve in curves]
        rows.append([str(size), *(f"{estimate:.1%}" for estimate in estimates)])
    title = f"{len(graded)} problems, accuracy with 95 % interval"
    gated = any(pool.gate is not None for pool in graded)
    name = f"{rule}, among the best" if gated else rule
    echo_table(title, ("N", "pass@N", "majority", name), rows, err=True)
