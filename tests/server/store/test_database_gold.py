"""Random samples of answers: their labels, weights, and estimates that are corrected for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from surefoot.errors import LabelError
from surefoot.records import Problem, StepScores, Trace
from surefoot.segment import Line, segment_trace
from surefoot.server import GatewayCandidate, GatewayRecord, LabelInput


@dataclass
class Samples:
    """Answers to be sampled, and how people label them."""

    lab: object

    def record(self, number: int, score: float | None) -> GatewayRecord:
        problem = Problem(text=f"question {number}")
        trace = segment_trace(Trace(problem_id=problem.id, text=f"step {number}\nAnswer: 1\n"), Line())
        scores = StepScores(trace_id=trace.id, scorer="s", scores=(score or 0.0,) * 2)
        return GatewayRecord(
            request_id=f"r{number}",
            created=self.lab.db.gold._connections.clock(),
            endpoint="/v1/chat/completions",
            model="m",
            strategy="best-of-n:n=2",
            policy="p",
            status=200,
            latency_ms=1,
            problem=problem,
            candidates=(GatewayCandidate(trace=trace, chosen=True, score=score, scores=scores),),
        )

    def label(self, wrong: set[str]) -> None:
        """Label all that is in the queue; texts in ``wrong`` have a wrong first step."""
        lab = self.lab
        person = lab.people[0].user_id
        while (item := lab.next()) is not None:
            view = lab.db.labels.item(lab.id, item, person)
            bad = view.trace.text.partition("\n")[0] in wrong
            labels = [LabelInput(step=0, value=-1)] if bad else None
            labels = labels or [LabelInput(step=n, value=1) for n in range(len(view.trace.steps))]
            lab.db.labels.submit(lab.id, item, person, labels, f"k{item}", finish=True)


def test_samples_are_labelled_and_weighted(lab):
    samples = Samples(lab)
    lab.set(annotators=1)
    records = [samples.record(number, score) for number, score in enumerate([0.9, 0.8, 0.2, 0.7])]
    lab.db.gateway.write_all(records)
    assert [lab.db.gold.add(lab.id, one, 0.25) for one in records[:3]] == [True] * 3
    assert not lab.db.gold.add(lab.id, samples.record(9, None), 0.25)
    assert lab.db.gold.results(lab.id) == []
    with pytest.raises(LabelError, match="gold labels of 0 problems"):
        lab.db.gold.estimate(lab.id)
    samples.label({"step 2"})
    results = lab.db.gold.results(lab.id)
    assert [(one.request_id, one.proxy, one.right, one.weight) for one in results] == [
        ("r0", 0.9, True, 4.0),
        ("r1", 0.8, True, 4.0),
        ("r2", 0.2, False, 4.0),
    ]


def test_the_estimate_is_corrected_for_the_chances(lab):
    """Doubtful answers are chosen five times as often; the weights undo it."""
    samples, rng = Samples(lab), np.random.default_rng(0)
    lab.set(annotators=1)
    right = rng.random(60) < 0.75
    scores = np.where(right, 0.9, 0.3)
    scores = np.where(rng.random(60) < 0.1, 1.2 - scores, scores)
    records = [samples.record(number, float(score)) for number, score in enumerate(scores)]
    lab.db.gateway.write_all(records)
    for record, score in zip(records, scores, strict=True):
        chance = 1.0 if score < 0.5 else 0.2
        if rng.random() < chance:
            lab.db.gold.add(lab.id, record, chance)
    samples.label({f"step {number}" for number in np.flatnonzero(~right)})
    estimate = lab.db.gold.estimate(lab.id)
    assert estimate.corrected.includes(right.mean())
    results = lab.db.gold.results(lab.id)
    naive = np.mean([one.right for one in results])
    assert abs(estimate.corrected.value - right.mean()) < abs(naive - right.mean())
    assert abs(estimate.corrected.value - right.mean()) < 0.12
