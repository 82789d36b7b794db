"""Pools of scored candidates, as published for best-of-N: many solutions of one problem with stored scores.

Two forms, detected row by row. A pool of search-and-learn has ``candidates``, each with ``text`` and one
score per step (``step_scores``). Qwen2.5-Math's evaluation has ``response`` and ``pred_score``, one logit of
an outcome reward model for each whole response.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from surefoot.errors import RecordError
from surefoot.formats.rows import FileRow, joined_trace, read_rows
from surefoot.io.files import ReadReport
from surefoot.records import Problem, Step, StepScores, Trace

_BLANK_LINE = "\n\n"


@dataclass(frozen=True, kw_only=True)
class CandidatePool:
    """Candidates of one problem with a score for every step; traces and scores have the same order."""

    problem: Problem
    traces: tuple[Trace, ...]
    """Without answer and outcome; the file's own verdict, if any, is ``meta["correct"]``."""
    scores: tuple[StepScores, ...]
    dropped: Mapping[str, int]
    """Candidates left out, by reason."""


class _PoolRow(FileRow):
    """Either form; the fields are checked when the form has been detected."""


class _Candidate(FileRow):
    text: str
    step_scores: list[float]
    n_steps_split: int | None = None
    correct: bool | None = None
    generator: str | None = None
    search: str | None = None


class _StepPool(FileRow):
    problem: str
    answer: str
    candidates: list[_Candidate]
    unique_id: str | None = None
    level: str | int | None = None
    subject: str | None = None


class _OutcomePool(FileRow):
    question: str
    gt: str
    response: list[str]
    pred_score: list[list[float]]
    score: list[bool] | None = None
    level: str | int | None = None


def read_candidate_pool(path: Path | str, *, report: ReadReport | None = None) -> Iterator[CandidatePool]:
    """One pool per row, either form.

    A text with step scores is cut at blank lines; it is left out, and counted, if the numbers of steps and
    scores then differ. A whole response is one step, and its logit becomes a score by the logistic function,
    which keeps the order. A trace's ``sample`` is its position in the row.
    """
    return read_rows(path, _PoolRow, lambda _, row: _pool(row), report)


def _pool(row: _PoolRow) -> CandidatePool:
    fields = row.model_extra or {}
    if "candidates" in fields:
        return _step_pool(_StepPool.model_validate(fields))
    if "pred_score" in fields:
        return _outcome_pool(_OutcomePool.model_validate(fields))
    raise RecordError("neither field 'candidates' nor 'pred_score': not a pool of scored candidates")


def _step_pool(row: _StepPool) -> CandidatePool:
    meta = row.model_dump(include={"unique_id", "level", "subject"}, exclude_none=True)
    problem = Problem(text=row.problem, answer=row.answer, source="candidate-pool", meta=meta)
    traces, scores, dropped = [], [], 0
    for sample, candidate in enumerate(row.candidates):
        parts = candidate.text.split(_BLANK_LINE)
        if {len(parts), candidate.n_steps_split or len(parts)} != {len(candidate.step_scores)}:
            dropped += 1
            continue
        meta = candidate.model_dump(include={"correct", "search"}, exclude_none=True)
        policy = candidate.generator
        trace = joined_trace(problem, parts, _BLANK_LINE, policy=policy, sample=sample, meta=meta)
        traces.append(trace)
        scores.append(StepScores(trace_id=trace.id, scorer="stored PRM", scores=tuple(candidate.step_scores)))
    reason = "not as many steps, cut at blank lines, as scores"
    return CandidatePool(
        problem=problem,
        traces=tuple(traces),
        scores=tuple(scores),
        dropped={reason: dropped} if dropped else {},
    )


def _outcome_pool(row: _OutcomePool) -> CandidatePool:
    verdicts: list[bool] | list[None] = row.score or [None] * len(row.response)
    for name, values in (("pred_score", row.pred_score), ("score", verdicts)):
        if len(values) != len(row.response):
            raise RecordError(
                f"field '{name}': {len(values)} entries for {len(row.response)} in field 'response'"
            )
    if any(len(logits) != 1 for logits in row.pred_score):
        raise RecordError("field 'pred_score': give one logit for each response")
    meta = row.model_dump(include={"level"}, exclude_none=True)
    problem = Problem(text=row.question, answer=row.gt, source="candidate-pool", meta=meta)
    traces = tuple(
        Trace(
            problem_id=problem.id,
            text=text,
            steps=(Step(start=0, end=len(text)),),
            sample=sample,
            meta={} if correct is None else {"correct": correct},
        )
        for sample, (text, correct) in enumerate(zip(row.response, verdicts, strict=True))
    )
    scores = tuple(
        StepScores(trace_id=trace.id, scorer="stored ORM", scores=(_logistic(logit),))
        for trace, [logit] in zip(traces, row.pred_score, strict=True)
    )
    return CandidatePool(problem=problem, traces=traces, scores=scores, dropped={})


def _logistic(logit: float) -> float:
    """1 / (1 + exp(-logit)), without overflow."""
    return (1 + math.tanh(logit / 2)) / 2
