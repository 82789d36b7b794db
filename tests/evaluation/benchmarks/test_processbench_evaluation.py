import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.errors import LabelError, ScoreError
from surefoot.evaluation.benchmarks import processbench_f1
from surefoot.evaluation.benchmarks.solutions import (
    BenchmarkCase,
    evaluate_processbench,
    position_f1,
    processbench_cases,
    processbench_section,
)
from surefoot.evaluation.report import Origin, Report, first_screen_of, to_json, worked_examples
from surefoot.evaluation.splits import half_of, judged, ranked
from surefoot.evaluation.step_scores import labelled_system, scored_system
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.records import Problem, Step, StepLabel, StepScores, Trace

STEPS = 4


def trace(number, *, generator="g", outcome=None, steps=STEPS):
    return Trace(
        id=f"t{number}",
        problem_id=f"p{number // 2}",
        text="x" * steps,
        steps=tuple(Step(start=at, end=at + 1) for at in range(steps)),
        policy=generator,
        outcome=outcome,
    )


def with_problem(trace):
    return ProblemTrace(problem=Problem(id=trace.problem_id, text="?"), trace=trace)


def cases_of(labels, subset="gsm8k", first=0):
    return [
        BenchmarkCase(
            item=with_problem(trace(first + n, generator=f"g{n % 3}", outcome=label < 0)),
            subset=subset,
            problem=f"p{(first + n) // 2}",
            good=tuple(step != label for step in range(STEPS)),
        )
        for n, label in enumerate(labels)
    ]


def scores_of(cases, rows, scorer="s"):
    return scored_system(
        scorer,
        [
            StepScores(
                trace_id=case.item.trace.id,
                scorer=scorer,
                scores=tuple(row),
                unscored_reason="cut" if None in row else None,
            )
            for case, row in zip(cases, rows, strict=True)
            if row
        ],
        [case.item.trace for case in cases],
    )


def oracle(label, good=0.9, bad=0.1):
    return [bad if step == label else good for step in range(STEPS)]


def judge(cases, verdicts, name="judge"):
    labels = [
        StepLabel(
            trace_id=case.item.trace.id,
            step=step,
            kind="correctness",
            value=value,
            reason=None if value is not None else "no vote",
            source="judge",
        )
        for case, row in zip(cases, verdicts, strict=True)
        for step, value in enumerate(row)
    ]
    return labelled_system(name, labels, [case.item.trace for case in cases])


ROW = st.lists(st.one_of(st.none(), st.sampled_from([0.1, 0.3, 0.5, 0.7])), min_size=STEPS, max_size=STEPS)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(-1, STEPS - 1), ROW), min_size=2, max_size=14))
def test_a_fixed_threshold_gives_the_metric_itself(rows):
    cases = cases_of([label for label, _ in rows])
    scores = [row for _, row in rows]
    [found] = evaluate_processbench(cases, [scores_of(cases, scores)], rules=[0.5], draws=20).scores
    plain = processbench_f1(scores, [case.label for case in cases], 0.5)
    part = found.subsets["gsm8k"]
    for ours, theirs in ((part.acc_error, plain.acc_error), (part.acc_correct, plain.acc_correct)):
        assert ours.value == pytest.approx(theirs, nan_ok=True)
    assert part.f1.value == pytest.approx(plain.f1, nan_ok=True)
    assert found.average_f1.value == pytest.approx(plain.f1, nan_ok=True)
    assert (part.errors, part.corrects) == (plain.errors, plain.corrects)
    assert (part.unparsed, found.partial) == (plain.unscored, plain.partial)
    # where an erroneous trace is judged wrong it is early, late, missed or unparsed
    hits = round(part.acc_error.value * part.errors) if part.errors else 0
    wrong = sum(row != [None] * STEPS for (label, _), row in zip(rows, scores, strict=True) if label >= 0)
    assert hits + part.early + part.late + part.missed == wrong


def test_published_closed_form():
    # accuracies of 50 and 90 give 64.29
    labels = [0] * 10 + [-1] * 10
    rows = [oracle(0)] * 5 + [oracle(-1)] * 5 + [oracle(-1)] * 9 + [oracle(2)]
    cases = cases_of(labels)
    [found] = evaluate_processbench(cases, [scores_of(cases, rows)], rules=[0.5], draws=200).scores
    part = found.subsets["gsm8k"]
    assert (part.acc_error.value, part.acc_correct.value) == (0.5, 0.9)
    assert 100 * part.f1.value == pytest.approx(64.29, abs=0.005)
    assert part.f1.low < part.f1.value < part.f1.high
    assert (part.missed, part.early, part.late) == (5, 0, 0)


def test_always_no_error_is_zero_and_one_class_is_undefined():
    cases = cases_of([0, 1, -1, -1])
    silent = scores_of(cases, [oracle(-1)] * 4)
    [found] = evaluate_processbench(cases, [silent], rules=[0.5], draws=20).scores
    assert found.average_f1.value == 0
    [found] = evaluate_processbench(cases[:2], [scores_of(cases[:2], [oracle(-1)] * 2)], rules=[0.5]).scores
    assert math.isnan(found.average_f1.value)
    assert found.average_f1.undefined == 1000


def test_the_mean_is_over_subsets_whatever_their_size():
    cases = cases_of([0, -1]) + cases_of([0, -1] * 10, subset="math", first=10)
    rows = [oracle(0), oracle(-1)] + [oracle(-1)] * 20
    found = evaluate_processbench(cases, [scores_of(cases, rows)], rules=[0.5], draws=20)
    assert found.subsets == {"gsm8k": 2, "math": 20}
    assert [part.f1.value for part in found.scores[0].subsets.values()] == [1.0, 0.0]
    assert found.scores[0].average_f1.value == 0.5


def test_thresholds_come_from_elsewhere_and_say_so():
    cases = cases_of([0, -1] * 10) + cases_of([0, -1] * 10, subset="math", first=40)
    # gsm8k needs a cut above 0.4 and below 0.9, math one above 0.1 and below 0.3
    rows = [oracle(c.label, 0.9, 0.4) if c.subset == "gsm8k" else oracle(c.label, 0.3, 0.1) for c in cases]
    found = evaluate_processbench(cases, [scores_of(cases, rows)], rules=["gsm8k", "split"], draws=20)
    by_gsm8k, by_half = found.scores
    assert by_gsm8k.fitted_on == "subset gsm8k"
    assert by_gsm8k.thresholds == {"all": pytest.approx(0.65)}
    assert [part.f1.value for part in by_gsm8k.subsets.values()] == [1.0, 0.0]
    assert set(by_half.thresholds) == {"half 0", "half 1"}
    assert {half_of(case.item.trace.problem_id) for case in cases} == {0, 1}


def test_judges_predict_directly_and_an_open_prediction_is_wrong():
    cases = cases_of([1, 1, -1, -1, 0])
    verdicts = [
        [1, -1, None, None],  # found
        [None, -1, None, None],  # a step before it is open
        [1, 0, 1, 1],  # neutral is good: none reported
        [None] * STEPS,  # unparsed
        [1, -1, 1, 1],  # late
    ]
    [found] = evaluate_processbench(cases, [judge(cases, verdicts)], rules=[0.5], draws=20).scores
    part = found.subsets["gsm8k"]
    assert (found.rule, found.thresholds) == ("as labelled", {})
    assert (part.acc_error.value, part.acc_correct.value) == (pytest.approx(1 / 3), 0.5)
    assert (part.unparsed, part.late, part.early, part.missed) == (2, 1, 0, 0)


def test_traces_without_record_are_left_out_of_all_or_wrong():
    cases = cases_of([0, -1, 0, -1])
    whole = scores_of(cases, [oracle(c.label) for c in cases], "whole")
    half = scores_of(cases, [oracle(0), oracle(-1), None, None], "half")
    found = evaluate_processbench(cases, [whole, half], rules=[0.5], draws=20)
    assert (found.traces, found.left_out) == (2, 2)
    assert [s.average_f1.value for s in found.scores] == [1.0, 1.0]
    assert [s.traces_without_record for s in found.systems] == [0, 2]
    found = evaluate_processbench(cases, [whole, half], rules=[0.5], missing="wrong", draws=20)
    assert (found.traces, found.left_out) == (4, 0)
    assert [s.average_f1.value for s in found.scores] == [1.0, 0.5]


def test_differences_are_paired():
    rng = np.random.default_rng(0)
    cases = cases_of([0, -1] * 60)
    rows = [oracle(c.label) if rng.random() < 0.7 else oracle(3) for c in cases]
    better = [
        oracle(c.label) if n % 20 < 2 else row for n, (c, row) in enumerate(zip(cases, rows, strict=True))
    ]
    found = evaluate_processbench(
        cases, [scores_of(cases, rows, "a"), scores_of(cases, better, "b")], rules=[0.5]
    )
    first, second = found.scores
    gap = second.difference
    assert first.difference is None
    assert gap.value == pytest.approx(second.average_f1.value - first.average_f1.value)
    unpaired = first.average_f1.high - first.average_f1.low
    assert gap.high - gap.low < unpaired / 2


def test_cases_come_from_labels_and_open_ones_are_refused():
    def item(number, values):
        made = trace(number, steps=len(values))
        labels = tuple(
            StepLabel(
                trace_id=made.id,
                step=step,
                kind="correctness",
                value=value,
                reason=None if value is not None else "?",
                source="x",
            )
            for step, value in enumerate(values)
        )
        return LabelledTrace(problem=Problem(text="q"), trace=made, labels=labels)

    found = processbench_cases({"a": [item(0, [1, -1, None])], "b": [item(1, [1, 0])]})
    assert [(case.subset, case.label) for case in found] == [("a", 1), ("b", -1)]
    with pytest.raises(LabelError, match="t0: a step without a correctness label"):
        processbench_cases({"a": [item(0, [1, None, -1])]})
    with pytest.raises(LabelError, match="t0 occurs twice"):
        processbench_cases({"a": [item(0, [1])], "b": [item(0, [1])]})


def test_nothing_to_evaluate_is_refused():
    cases = cases_of([0, -1])
    with pytest.raises(LabelError, match="at least one trace"):
        evaluate_processbench([], [])
    alone = scores_of(cases, [oracle(0), None], "a"), scores_of(cases, [None, oracle(-1)], "b")
    with pytest.raises(ScoreError, match="no trace has a record of every source"):
        evaluate_processbench(cases, alone, rules=[0.5])


def test_json_has_null_for_nan_and_the_report_is_offline(tmp_path):
    cases = cases_of([0, -1, 1, -1])
    systems = [
        scores_of(cases, [oracle(c.label) for c in cases]),
        judge(cases, [[1] * STEPS] * 4, "<b>judge"),
    ]
    found = evaluate_processbench(cases, systems, rules=[0.5], draws=20)
    json.dumps(to_json(found), allow_nan=False)
    errors = cases_of([0, 1])
    [alone] = evaluate_processbench(
        errors, [scores_of(errors, [oracle(0)] * 2)], rules=[0.5], draws=20
    ).scores
    [subset] = to_json(alone)["subsets"].values()
    assert subset["acc_correct"]["value"] is None
    section = processbench_section(found)
    Report("p", first_screen_of([section], Origin())).section(section).write(tmp_path / "p.html")
    page = (tmp_path / "p.html").read_text()
    assert "<b>judge" not in page
    assert page.count("<svg") == 1
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_the_same_seed_gives_the_same_intervals():
    cases = cases_of([0, -1, 1, -1, 2, -1])
    system = scores_of(cases, [oracle(at) for at in (0, -1, 3, 2, 2, -1)])
    first, again = (evaluate_processbench(cases, [system], rules=[0.5], draws=50, seed=3) for _ in range(2))
    assert to_json(first) == to_json(again)


def test_the_position_baseline_is_the_best_predictor_that_does_not_read():
    labels = [0, 0, 1, 2, -1, -1, -1]
    errors, corrects = [label for label in labels if label >= 0], 3
    best = 0.0
    for chance in np.linspace(0, 1, 2001):  # of "no error"; otherwise step 0, the most frequent
        found, cleared = (1 - chance) * errors.count(0) / len(errors), chance * corrects / corrects
        best = max(best, 2 * found * cleared / (found + cleared) if found + cleared else 0.0)
    assert position_f1(labels) == pytest.approx(best, abs=1e-6)
    assert math.isnan(position_f1([-1, -1]))


def test_the_report_ranks_systems_and_shows_what_the_first_one_caught_and_missed():
    cases = cases_of([1, 1, -1, 0])
    good = scores_of(cases, [[0.9, 0.1, 0.9, 0.9], [0.9, 0.9, 0.1, 0.9], [0.9] * 4, [0.1] * 4], "good")
    bad = scores_of(cases, [[0.1] * 4] * 4, "bad")
    result = evaluate_processbench(cases, [bad, good], rules=[0.5], draws=20)
    section = processbench_section(result)
    assert list(section.verdicts) == ["good", "bad"]
    [reads] = section.verdicts["good"]
    assert reads.null == pytest.approx(result.position_f1["gsm8k"])
    lead = ranked(result.scores, lambda score: score.average_f1.value)[0]
    errors = [(case.item, case.label, case.subset) for case in cases]
    caught, missed = worked_examples(judged(lead, [bad, good], errors))
    assert (caught.caught, missed.caught, missed.trace_id) == (True, False, "t1")
    assert missed.note == "Step 2 is the first error; it rejects step 3 first."
    assert [step.rejected for step in missed.steps] == ["", "", "first score below 0.5", ""]
