"""The audits on published data: figures known from elsewhere, and what the edits do to real texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.readers.fover import read_fover_scores
from surefoot.evaluation import StoredScores
from surefoot.evaluation.audits import (
    EDITS,
    AuditedScorer,
    audit_clean,
    audit_over_optimisation,
    labelled_cases,
)
from surefoot.formats import ImportContext, ImportSettings, import_traces, read_processbench
from surefoot.io import ReadReport
from surefoot.protocols import ProblemTrace

DATA = Path(__file__).parents[3] / "../shared/data"
SCORES = DATA / "calib/fover_processbench_scores.jsonl.gz"
SETS = {"gsm8k": DATA / "processbench/gsm8k.json.gz", "math": DATA / "processbench/math.fixed.json.gz"}
POOL = DATA / "bon/math500_prm_scored_pool.jsonl.gz"

pytestmark = pytest.mark.skipif(not SCORES.exists(), reason="published data are not there")


@pytest.fixture(scope="module")
def records():
    return list(read_fover_scores(SCORES))


@pytest.fixture(scope="module")
def cases(records):
    ids = {record.trace_id for record in records}
    found = {}
    for name, path in SETS.items():
        rows = [row for row in read_processbench(path) if row.trace.id in ids]
        items = [ProblemTrace(problem=row.problem, trace=row.trace) for row in rows]
        found[name] = labelled_cases(items, [label for row in rows for label in row.labels])
    return found


def stored(records, name):
    mine = StoredScores([record for record in records if record.scorer == name])
    return AuditedScorer(name=name, scorer=mine, rule="min", stored=True, partial=True)


def test_right_answers_with_a_wrong_step_are_the_rationalised_ones(records, cases):
    both = cases["gsm8k"] + cases["math"]
    found = audit_clean(stored(records, "Qwen2.5-Math-PRM-7B"), both, draws=50)
    assert {name: group.traces for name, group in found.groups.items()} == {
        "right": 227,
        "rationalised": 28,
        "wrong": 245,
    }
    assert (found.unscored, found.ungrouped) == (0, 0)
    assert 0.5 < found.right_over_rationalised.value < found.right_over_wrong.value


def test_edits_of_real_solutions_leave_the_other_steps_alone(cases):
    for case in cases["math"][:60]:
        trace = case.item.trace
        assert trace.text is not None
        for edit in EDITS:
            for place in list(edit.places(trace))[:3]:
                found = edit.at(trace, place)
                for at, origin in enumerate(found.origin):
                    if origin is not None:
                        assert found.trace.step_text(at) == trace.step_text(origin)


def test_gold_of_the_pool_stays_under_its_ceiling():
    context = ImportContext(settings=ImportSettings(), report=ReadReport())
    imported = list(import_traces(POOL, "candidate-pool", context))
    items = [
        ProblemTrace(
            problem=item.problem,
            trace=item.trace.model_copy(update={"outcome": item.trace.meta["correct"]}),
        )
        for item in imported
    ]
    scores = StoredScores([item.scores for item in imported])
    found = audit_over_optimisation(
        AuditedScorer(name="pool", scorer=scores, rule="last", stored=True), items, draws=200
    )
    assert found.problems + found.too_small == 250
    assert all(point.gold.value <= point.ceiling + 1e-9 for point in found.points)
    proxy = [point.proxy.value for point in found.points]
    assert proxy == sorted(proxy)
    assert found.peak < found.points[-1].n  # by the last step alone, more candidates stop helping
