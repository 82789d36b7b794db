"""The transfer matrix of scorers that know one domain each."""

from __future__ import annotations

import math

import pytest
from toy_scorers import Toy, exact, lab_material

from surefoot.errors import ScoreError
from surefoot.evaluation.audits import AuditedScorer, Case, audit_transfer, labelled_cases
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, StepLabel, Trace
from surefoot.segment import Line, segment_trace


def rhymes(count=40):
    """Another domain: a step is good if it says so; every other trace has a bad one."""
    items, labels = [], []
    for number in range(count):
        problem = Problem(text=f"Rhyme {number}")
        words = ["good\n", "bad\n" if number % 2 else "good\n", "good\n"]
        trace = segment_trace(Trace(problem_id=problem.id, text="".join(words)), Line())
        items.append(ProblemTrace(problem=problem, trace=trace))
        labels += [
            StepLabel(
                trace_id=trace.id,
                step=step,
                kind="correctness",
                value=1.0 if word == "good\n" else -1.0,
                source="poet",
            )
            for step, word in enumerate(words)
        ]
    return labelled_cases(items, labels)


def cell_of(audit, train, test):
    [cell] = [cell for cell in audit.cells if (cell.train, cell.test) == (train, test)]
    return cell


def reads_rhymes(problem, trace):
    if not problem.text.startswith("Rhyme"):
        return [0.5] * len(trace.steps)
    return [float("good" in trace.step_text(n)) for n in range(len(trace.steps))]


def reads_lab(problem, trace):
    return [0.5] * len(trace.steps) if problem.text.startswith("Rhyme") else exact(problem, trace)


SETS = {"lab": lab_material(40), "rhymes": rhymes()}
SUBJECTS = {
    "lab": AuditedScorer(name="lab", scorer=Toy(reads_lab), rule="min"),
    "rhymes": AuditedScorer(name="rhymes", scorer=Toy(reads_rhymes), rule="min"),
}


def first_only(cases):
    """Labels up to the first error, as human labels are: the lab judges later lines by themselves."""
    cut = [case.good.index(False) + 1 if False in case.good else len(case.good) for case in cases]
    return [
        Case(item=case.item, good=(*case.good[:at], *[None] * (len(case.good) - at)))
        for case, at in zip(cases, cut, strict=True)
    ]


def test_each_knows_its_own_domain_only():
    audit = audit_transfer(SUBJECTS, SETS | {"lab": first_only(SETS["lab"])}, draws=100)
    for name in SETS:
        assert cell_of(audit, name, name).auc.value == 1
        assert cell_of(audit, name, name).f1.value == 1
        other = next(test for test in SETS if test != name)
        assert cell_of(audit, name, other).auc.value == 0.5
        # a constant is on one side of any threshold: right on all wrong traces' … or on none
        assert cell_of(audit, name, other).f1.value < 0.7
    assert len(audit.cells) == 4


def test_thresholds_are_fitted_on_problems_that_are_not_reported():
    audit = audit_transfer(SUBJECTS, SETS, draws=20)
    for name, cases in SETS.items():
        assert 0 < audit.tuned[name] < len(cases)
        assert audit.tuned[name] + cell_of(audit, "lab", name).traces == len(cases)
    given = audit_transfer(SUBJECTS, SETS, threshold=0.4, draws=20)
    assert set(given.tuned.values()) == {0}
    assert cell_of(given, "lab", "lab").traces == len(SETS["lab"])
    assert cell_of(given, "lab", "rhymes").threshold == 0.4


def test_a_scorer_without_a_set_of_its_own_has_no_f1():
    audit = audit_transfer({"law": SUBJECTS["lab"]}, {"lab": first_only(SETS["lab"])}, draws=20)
    cell = cell_of(audit, "law", "lab")
    assert cell.threshold is None
    assert math.isnan(cell.f1.value)
    assert cell.auc.value == 1


def test_what_cannot_be_compared_is_an_error():
    with pytest.raises(ScoreError, match="at least one scorer"):
        audit_transfer({}, SETS)
    blank = [Case(item=case.item, good=(None,) * len(case.good)) for case in SETS["lab"]]
    with pytest.raises(ScoreError, match="'lab': none of 80 traces has"):
        audit_transfer(SUBJECTS, {"lab": blank})
