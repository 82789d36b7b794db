"""Answers that the gateway chose at random for people to label, with the chance of being chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from sqlalchemy import Index, func, insert, select

from surefoot.server.records import GatewayRecord, GoldResult
from surefoot.server.store.engine import Repository
from surefoot.server.store.labels import Labels
from surefoot.server.store.queue import Items
from surefoot.server.store.requests import gateway_requests
from surefoot.server.store.schema import Mark, ProjectId, table
from surefoot.server.store.traces import Traces
from surefoot.stats.prediction_powered import CorrectedMean, prediction_powered_mean

_MOST_PREDICTED = 20_000


@dataclass(frozen=True, kw_only=True)
class GoldSample:
    """An answer in the annotation queue of a project."""

    id: Annotated[int, Mark.KEY]
    project_id: ProjectId
    request_id: str
    trace_id: str
    steps: int
    proxy: float
    """The answer's score."""
    chance: float
    """The chance with which it was chosen; its weight is the inverse."""
    created: datetime


gold_samples = table("gold_samples", GoldSample, Index(None, "project_id", "id"))


@dataclass(frozen=True, kw_only=True)
class GoldState:
    """How far people have got."""

    waiting: int
    labelled: int
    last_label: datetime | None


class GoldSamples(Repository):
    """Repository of random samples of answers."""

    def add(self, project_id: int, record: GatewayRecord, chance: float) -> bool:
        """Put a request's answer into the project's queue; ``False`` for one without text or score.

        Raises ``StoreError``.
        """
        chosen = next((candidate for candidate in record.candidates if candidate.chosen), None)
        solution, proxy = (chosen.solution(), chosen.score) if chosen else (None, None)
        if record.problem is None or solution is None or proxy is None or not 0 <= proxy <= 1:
            return False
        trace, scores = solution
        traces = Traces(self._connections)
        traces.add_problems(project_id, [record.problem])
        traces.add_traces(project_id, [trace])
        if scores is not None:
            traces.add_scores(project_id, [scores])
        Items(self._connections).add_solutions(project_id, [trace.id])
        row = {"project_id": project_id, "request_id": record.request_id, "trace_id": trace.id}
        row |= {"steps": len(trace.steps), "proxy": proxy, "chance": chance, "created": record.created}
        return bool(self._change(insert(gold_samples).values(row)))

    def results(self, project_id: int, limit: int = 10_000) -> list[GoldResult]:
        """The latest samples whose first error people found, or all of whose steps they labelled."""
        s = gold_samples.c
        query = select(gold_samples).where(s.project_id == project_id).order_by(s.id.desc()).limit(limit)
        samples = self._rows(GoldSample, query)[::-1]
        labels = Labels(self._connections).of_traces(project_id, {sample.trace_id for sample in samples})
        results = []
        for sample in samples:
            rows = [row.record for row in labels.get(sample.trace_id, ()) if row.item_id is not None]
            values = {row.step: row.value for row in rows if row.value is not None}
            wrong = any(value < 0 for value in values.values())
            if wrong or len(values) >= sample.steps:
                result = GoldResult(
                    sample=sample.id,
                    request_id=sample.request_id,
                    proxy=sample.proxy,
                    right=not wrong,
                    weight=1 / sample.chance,
                    labelled=max(row.created for row in rows),
                )
                results.append(result)
        return results

    def state(self, project_id: int) -> GoldState:
        """Numbers of samples, and the time of the last label."""
        results = self.results(project_id)
        query = select(func.count()).where(gold_samples.c.project_id == project_id)
        last = max((result.labelled for result in results), default=None)
        waiting = self._all(query)[0][0] - len(results)
        return GoldState(waiting=waiting, labelled=len(results), last_label=last)

    def estimate(self, project_id: int) -> CorrectedMean:
        """Share of right answers since the first sample, from the scores of all and people's labels of some.

        Raises ``LabelError`` for fewer than two labelled answers.
        """
        results = {result.request_id: result for result in self.results(project_id)}
        g = gateway_requests.c
        start = select(func.min(gold_samples.c.created)).where(gold_samples.c.project_id == project_id)
        query = (
            select(g.request_id, g.score)
            .where(g.score.is_not(None), g.created >= start.scalar_subquery())
            .order_by(g.created.desc())
            .limit(_MOST_PREDICTED)
        )
        scores: dict[str, float] = {row.request_id: row.score for row in self._all(query)}
        scores |= {name: result.proxy for name, result in results.items()}
        gold = [float(results[name].right) if name in results else math.nan for name in scores]
        weights = [results[name].weight if name in results else 1.0 for name in scores]
        return prediction_powered_mean(list(scores.values()), gold, list(scores), weights=weights, rate=True)
