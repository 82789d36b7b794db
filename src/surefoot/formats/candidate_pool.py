"""Pools of scored candidates, as published for best-of-N: many solutions of one problem with their scores.

Two forms, detected row by row. A pool of search-and-learn has ``candidates``, each with ``text`` and one
score per step (``step_scores``). Qwen2.5-Math's evaluation has ``response`` and ``pred_score``, one logit of
an outcome reward model for each whole response.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from surefoot.errors import RecordError
from surefoot.formats.imports import ImportContext, ImportedTrace, require_object
from surefoot.formats.rows import FileRow, joined_trace, raw_rows
from surefoot.records import Problem, Step, StepScores, Trace
from surefoot.stats.regression import sigmoid

_BLANK_LINE = "\n\n"


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


def is_candidate_pool(row: Mapping[str, Any]) -> bool:
    """Whether a row is a pool of either form."""
    return {"response", "pred_score"} <= row.keys() or "step_scores" in row["candidates"][0]


def read_candidate_pool(path: Path | str, context: ImportContext) -> Iterator[ImportedTrace]:
    """Candidates with their scores, either form; the file's own verdict, if any, is ``meta["correct"]``.

    A text with step scores is cut at blank lines; it is left out, and counted, if the numbers of steps and
    scores then differ. A whole response is one step, and its logit becomes a score by the logistic function,
    which keeps the order. A trace's ``sample`` is its position in the row.
    """
    return context.rows(raw_rows(path), lambda _, row: _pool(require_object(row, "a row"), context))


def _pool(row: Mapping[str, Any], context: ImportContext) -> Sequence[ImportedTrace]:
    if "candidates" in row:
        return _step_pool(_StepPool.model_validate(row), context)
    if "pred_score" in row:
        return _outcome_pool(_OutcomePool.model_validate(row))
    raise RecordError("neither field 'candidates' nor 'pred_score': not a pool of scored candidates")


def _step_pool(row: _StepPool, context: ImportContext) -> list[ImportedTrace]:
    meta = row.model_dump(include={"unique_id", "level", "subject"}, exclude_none=True)
    problem = Problem(text=row.problem, answer=row.answer, source="candidate-pool", meta=meta)
    imported = []
    for sample, candidate in enumerate(row.candidates):
        parts = candidate.text.split(_BLANK_LINE)
        if {len(parts), candidate.n_steps_split or len(parts)} != {len(candidate.step_scores)}:
            context.report.left_out["candidates with not as many steps, cut at blank lines, as scores"] += 1
            continue
        meta = candidate.model_dump(include={"correct", "search"}, exclude_none=True)
        policy = candidate.generator
        trace = joined_trace(problem, parts, _BLANK_LINE, policy=policy, sample=sample, meta=meta)
        imported.append(_scored(problem, trace, "stored PRM", candidate.step_scores))
    return imported


def _outcome_pool(row: _OutcomePool) -> list[ImportedTrace]:
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
    imported = []
    for sample, (text, correct) in enumerate(zip(row.response, verdicts, strict=True)):
        trace = Trace(
            problem_id=problem.id,
            text=text,
            steps=(Step(start=0, end=len(text)),),
            sample=sample,
            meta={} if correct is None else {"correct": correct},
        )
        imported.append(_scored(problem, trace, "stored ORM", [float(sigmoid(row.pred_score[sample][0]))]))
    return imported


def _scored(problem: Problem, trace: Trace, scorer: str, scores: Sequence[float]) -> ImportedTrace:
    record = StepScores(trace_id=trace.id, scorer=scorer, scores=tuple(scores))
    return ImportedTrace(problem=problem, trace=trace, scores=record)
