"""The candidates of a problem: the votes, and which candidate each selector chooses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import Response

from surefoot.answers import AnswerChecker, group_equal
from surefoot.protocols import Candidate
from surefoot.records import Trace
from surefoot.scores import AGGREGATORS
from surefoot.search.selection import SELECTORS
from surefoot.server.pages.access import ReaderPlace, pages_of
from surefoot.server.pages.forms import query_of
from surefoot.server.pages.render import next_page, show, twin
from surefoot.server.pages.score_strip import aggregates, strip
from surefoot.server.store.database import Database

router = APIRouter()

_MOST = 256
"""Candidates of a problem that are compared; the page says if there are more."""


@twin(router, "/projects/{project_id:number}/problems")
def problem_list(request: Request, place: ReaderPlace) -> Response:
    """Problems by id, each with a link to its candidates."""
    db, limit = place.db, pages_of(request).settings.rows
    fields = query_of(request)
    text, last_id = fields.optional("text", most=500), fields.id("after") or ""
    problems = db.traces.problems(place.id, after=last_id, limit=limit + 1, text=text)
    query = urlencode({"text": text} if text else {})
    data = {
        "text": text,
        "problems": [
            {
                "id": problem.id,
                "link": f"/projects/{place.id}/problem?{urlencode({'id': problem.id})}",
                "text": problem.text[:400],
                "answer": problem.answer,
                "source": problem.source,
            }
            for problem in problems[:limit]
        ],
        "next": next_page(query, after=problems[limit - 1].id) if len(problems) > limit else None,
    }
    return show(request, place, "problems.html", data, extra={"query": query})


@twin(router, "/projects/{project_id:number}/problem")
def problem_page(request: Request, place: ReaderPlace) -> Response:
    """All candidates of a problem, and what each selector does with them."""
    db = place.db
    problem = db.traces.problem(place.id, query_of(request).required_id("id"))
    rows = db.traces.find(place.id, problem_id=problem.id, limit=_MOST + 1)
    traces = [row.trace for row in rows[:_MOST]]
    scores = _scores(db, place.id, traces)
    with AnswerChecker("exact") as checker:
        answers = group_equal([trace.answer for trace in traces], checker)
    values = {name: [aggregates(row) for row in of] for name, of in scores.items()}
    data = {
        "problem": problem,
        "candidates": [
            {
                "id": trace.id,
                "link": f"/projects/{place.id}/trace?{urlencode({'id': trace.id})}",
                "policy": trace.policy,
                "sample": trace.sample,
                "answer": answers[index],
                "outcome": trace.outcome,
                "scorers": [
                    {"scorer": name, "cells": strip(of[index]), "aggregates": values[name][index]}
                    for name, of in scores.items()
                    if of[index]
                ],
            }
            for index, trace in enumerate(traces)
        ],
        "left_out": len(rows) > _MOST,
        "votes": votes(traces, answers, values),
        "choices": choices(traces, answers, values),
    }
    extra = {"query": urlencode({"id": problem.id}), "rules": AGGREGATORS}
    return show(request, place, "problem.html", data, extra=extra)


Values = Mapping[str, Sequence[Mapping[str, float | None]]]
"""By scorer, then candidate, then aggregation."""


def votes(traces: Sequence[Trace], answers: Sequence[str | None], values: Values) -> list[dict[str, Any]]:
    """One row per answer, most votes first: its votes, its outcome, and the sum of its scores by each rule,
    ``None`` if none of them has a score.

    Candidates without an answer have neither vote nor row.
    """
    rows = []
    for answer in dict.fromkeys(answer for answer in answers if answer is not None):
        who = [index for index, other in enumerate(answers) if other == answer]
        weights = [
            {
                "scorer": scorer,
                "sums": {how: _sum([rows[index][how] for index in who]) for how in AGGREGATORS},
                "unscored": sum(not rows[index] or rows[index]["mean"] is None for index in who),
            }
            for scorer, rows in values.items()
        ]
        outcomes = {traces[index].outcome for index in who}
        outcome = outcomes.pop() if len(outcomes) == 1 else None
        rows.append({"answer": answer, "votes": len(who), "outcome": outcome, "weights": weights})
    return sorted(rows, key=lambda row: -row["votes"])


def _sum(scores: Sequence[float | None]) -> float | None:
    """Sum of the known scores; ``None`` if all are missing."""
    numbers = [score for score in scores if score is not None]
    return math.fsum(numbers) if numbers else None


def choices(traces: Sequence[Trace], answers: Sequence[str | None], values: Values) -> list[dict[str, Any]]:
    """The candidate that each selector chooses: the majority, and the others by scorer and aggregation."""
    if not traces:
        return []
    plain = [Candidate(answer=answer, score=None) for answer in answers]
    chosen = [_chosen("majority", None, None, plain, traces)]
    for scorer, rows in values.items():
        for how in AGGREGATORS:
            if all(row[how] is None for row in rows):
                continue
            scored = [
                Candidate(answer=answer, score=row[how]) for answer, row in zip(answers, rows, strict=True)
            ]
            for method in ("weighted_vote", "best_of_n"):
                chosen.append(_chosen(method, scorer, how, scored, traces))
    return chosen


def _chosen(
    method: str, scorer: str | None, how: str | None, candidates: Sequence[Candidate], traces: Sequence[Trace]
) -> dict[str, Any]:
    index = SELECTORS[method].select(candidates)
    return {
        "method": method,
        "scorer": scorer,
        "aggregation": how,
        "candidate": index,
        "trace_id": traces[index].id,
        "answer": candidates[index].answer,
        "outcome": traces[index].outcome,
        "unscored": sum(candidate.score is None for candidate in candidates) if scorer else 0,
    }


def _scores(
    db: Database, project_id: int, traces: Sequence[Trace]
) -> dict[str, list[tuple[float | None, ...]]]:
    """By scorer, the step scores of each trace; empty where it has none."""
    by_scorer: dict[str, list[tuple[float | None, ...]]] = {}
    scores = db.traces.scores_of(project_id, (trace.id for trace in traces))
    for index, trace in enumerate(traces):
        for score in scores[trace.id]:
            by_scorer.setdefault(score.scorer, [()] * len(traces))[index] = score.scores
    return dict(sorted(by_scorer.items()))
