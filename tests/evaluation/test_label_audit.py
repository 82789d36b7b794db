"""The label audit: every label and step accounted for, and the numbers that the definitions give."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import tracemalloc
from itertools import product
from pathlib import Path
from weakref import finalize

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.worlds.digits.world import ExactLabeller
from surefoot.cli import app
from surefoot.errors import LabelError, SurefootError
from surefoot.evaluation.columns import StepLayout
from surefoot.evaluation.labels import audit_labels, confusion, label_section, label_set, label_sets
from surefoot.evaluation.report import Origin, Report, first_screen_of, to_json
from surefoot.io import write_records
from surefoot.io.tables import Facts
from surefoot.labels import LabelRule, first_error
from surefoot.records import Evidence, Step, StepLabel, Trace, Usage


def trace_of(steps, name, problem="p"):
    text = "x\n" * steps
    spans = tuple(Step(start=2 * i, end=2 * i + 2) for i in range(steps))
    return Trace(id=name, problem_id=problem, text=text, steps=spans)


def label(trace, step, value, kind="correctness", source="s", **evidence):
    reason = None if value is not None else "not sure"
    return StepLabel(
        trace_id=trace,
        step=step,
        kind=kind,
        value=value,
        reason=reason,
        source=source,
        evidence=Evidence(**evidence),
    )


def rows(table, **kwargs):
    """Labels of traces t0, t1 …: one list of values a trace."""
    return [
        label(f"t{number}", step, value, **kwargs)
        for number, values in enumerate(table)
        for step, value in enumerate(values)
    ]


def traces_like(table, problems=None):
    return [
        trace_of(len(values), f"t{n}", problems[n] if problems else f"p{n}") for n, values in enumerate(table)
    ]


def totals(parts):
    return confusion(
        **{name: sum(getattr(c, name) for c in parts.values()) for name in ("tp", "fp", "fn", "tn")}
    )


RULE = LabelRule(neutral="good")
TRUTH = [[1, 1, -1, -1, -1], [1, 1, 1], [1, -1], [1, -1, 1], [1, 1], [-1, 1]]
CLAIM = [[1, 1, -1, 1, -1], [1, 1, 1], [-1, 1], [1, 1, -1], [1, -1], [1, 1]]


@pytest.fixture
def known():
    return audit_labels(traces_like(TRUTH), {"claim": rows(CLAIM)}, truth=rows(TRUTH), draws=50)


def test_bad_steps_found(known):
    found = known.sources[0].against_truth
    assert found.confusion == confusion(tp=2, fp=3, fn=4, tn=8)
    assert found.precision.value == pytest.approx(2 / 5)
    assert found.recall.value == pytest.approx(2 / 6)
    assert found.f1.value == pytest.approx(4 / 11)
    assert found.precision.low <= found.precision.value <= found.precision.high


def test_bad_steps_by_position(known):
    found = known.sources[0].against_truth
    assert found.by_step[0] == confusion(fp=1, fn=1, tn=4)
    assert found.by_step[1] == confusion(tp=0, fp=1, fn=2, tn=3)
    assert found.by_step[4] == confusion(tp=1)
    # steps 0 of 5, 0 of 3, 0 of 2: first fifth; 1 of 2: third; 1 of 3: second; 2 of 3: fourth
    assert found.by_fifth[0] == found.by_step[0]
    assert found.by_fifth[1] == confusion(tn=2, fn=1)
    assert found.by_fifth[2] == confusion(tp=1, fn=1, fp=1, tn=1)
    for by in (found.by_step, found.by_fifth):
        assert totals(by) == found.confusion


def test_first_errors(known):
    first = known.sources[0].against_truth.first_error
    assert (first.exact, first.none_on_both) == (1, 1)
    assert (first.early, first.late, first.missed, first.false_alarm) == (1, 1, 1, 1)
    assert first.accuracy.value == pytest.approx(2 / 6)
    assert (first.accuracy_on_wrong, first.accuracy_on_right) == (1 / 4, 1 / 2)
    assert first.f1 == pytest.approx(1 / 3)
    assert (first.traces, first.dropped) == (6, 0)


@pytest.mark.parametrize(
    ("claim", "fact", "kind"),
    [
        ([-1, 1, 1], [1, 1, -1], "early"),
        ([1, 1, -1], [1, -1, 1], "late"),
        ([1, 1, 1], [1, -1, 1], "missed"),
        ([1, -1, 1], [1, 1, 1], "false_alarm"),
        ([1, -1, None], [1, -1, 1], "exact"),
        ([1, None, -1], [1, -1, 1], "dropped"),
    ],
)
def test_one_kind_of_first_error_each(claim, fact, kind):
    audit = audit_labels(traces_like([claim]), {"c": rows([claim])}, truth=rows([fact]), draws=2)
    first = audit.sources[0].against_truth.first_error
    kinds = ("exact", "none_on_both", "early", "late", "missed", "false_alarm", "dropped")
    assert {name: getattr(first, name) for name in kinds if getattr(first, name)} == {kind: 1}


def test_agreement_with_the_truth_is_a_pair_like_any_other(known):
    (pair,) = known.pairs
    assert (pair.first, pair.second) == ("claim", "truth")
    assert pair.steps.raw == pytest.approx(known.sources[0].against_truth.confusion.accuracy)
    assert pair.first_error.raw == pytest.approx(2 / 6)
    assert pair.kappa.value == pytest.approx(pair.steps.kappa)
    assert known.overall is None
    assert known.truth is not None
    assert known.truth.against_truth is None


VALUES = st.sampled_from([-1.0, 0.0, 1.0, None])


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=6), min_size=1, max_size=5),
    st.sampled_from(["good", "bad", "drop"]),
)
def test_the_totals_are_counts_of_pairs_of_labels(table, neutral):
    meaning = {1.0: True, 0.0: {"good": True, "bad": False, "drop": None}[neutral], -1.0: False, None: None}
    claim, fact = ([[pair[side] for pair in row] for row in table] for side in (0, 1))
    read = [[[meaning[v] for v in row] for row in rows_] for rows_ in (claim, fact)]
    audit = audit_labels(
        traces_like(claim),
        {"claim": rows(claim)},
        truth=rows(fact),
        reading=LabelRule(neutral=neutral),
        draws=2,
    )
    found = audit.sources[0].against_truth
    pairs = [pair for rows_ in zip(*read, strict=True) for pair in zip(*rows_, strict=True)]
    tp, fp, fn, tn = (pairs.count(pair) for pair in product((False, True), repeat=2))
    bad = found.confusion
    assert (bad.tp, bad.fp, bad.fn, bad.tn, bad.steps) == (tp, fp, fn, tn, tp + fp + fn + tn)
    assert bad.precision == pytest.approx(tp / (tp + fp) if tp + fp else math.nan, nan_ok=True)
    assert bad.recall == pytest.approx(tp / (tp + fn) if tp + fn else math.nan, nan_ok=True)
    assert bad.f1 == pytest.approx(2 * tp / (2 * tp + fp + fn) if tp + fp + fn else math.nan, nan_ok=True)
    assert bad.accuracy == pytest.approx((tp + tn) / bad.steps if bad.steps else math.nan, nan_ok=True)
    assert totals(found.by_fifth) == bad
    firsts = [(first_error(a), first_error(b)) for a, b in zip(*read, strict=True)]
    equal = [a == b for a, b in firsts if a is not None and b is not None]
    assert found.first_error.traces == len(equal) == len(firsts) - found.first_error.dropped
    accuracy = sum(equal) / len(equal) if equal else math.nan
    assert found.first_error.accuracy.value == pytest.approx(accuracy, nan_ok=True)
    counts = audit.sources[0].counts
    assert counts.used + sum(counts.unread.values()) == counts.labels == counts.steps
    json.dumps(to_json(audit), allow_nan=False)


def test_every_label_and_step_is_accounted_for():
    traces = [trace_of(3, "t0"), trace_of(2, "t1"), trace_of(1, "t2"), trace_of(0, "empty")]
    labels = [
        label("t0", 0, 0.0),
        label("t0", 0, -1.0),
        label("t0", 0, None),  # the one before it can be read, so it counts
        label("t0", 1, None),
        label("t0", 9, 1.0),
        label("gone", 0, 1.0),
        label("t1", 0, 0.5, kind="advantage"),
        label("t1", 1, 0.0),
        label("t1", 1, 0.25, kind="value"),
    ]
    audit = audit_labels(traces, {"s": labels}, reading=LabelRule(neutral="drop", good_above=0.25))
    assert (audit.traces, audit.steps, audit.traces_without_steps) == (3, 6, 1)
    counts = audit.sources[0].counts
    assert counts.labels == 9
    assert (counts.unknown_traces, counts.unknown_steps) == (1, 1)
    assert counts.unread == {"not sure": 2, "neutral": 2, "label of kind 'advantage'": 1}
    assert (counts.used, counts.superseded) == (2, 0)
    assert counts.kinds == {"correctness": 5, "advantage": 1, "value": 1}
    assert (counts.steps_without_label, counts.traces_without_label) == (2, 1)
    found = label_set("s", labels, traces[:2], LabelRule(neutral="good", good_above=0.25))
    assert list(found.good) == [
        [False, None, None],
        [None, False],
    ]


def test_the_last_label_of_a_step_counts_and_the_others_are_superseded():
    labels = [label("t0", 0, 1.0), label("t0", 0, -1.0), label("t0", 0, None)]
    found = label_set("s", labels, [trace_of(1, "t0")])
    assert list(found.good) == [[False]]
    assert (found.counts.used, found.counts.superseded) == (1, 1)
    assert found.counts.unread == {"not sure": 1}


def test_cost_counts_every_label_of_known_traces():
    usage = Usage(prompt_tokens=10, completion_tokens=20, verifier_tokens=7, calls=1)
    labels = [
        label("t0", 0, 1.0, usage=usage),
        label("t0", 0, -1.0, usage=usage),  # superseding costs too
        label("t0", 1, None, usage=usage),
        label("t1", 0, 1.0),
        label("gone", 0, 1.0, usage=usage),
    ]
    cost = label_set("s", labels, [trace_of(2, "t0"), trace_of(1, "t1"), trace_of(1, "t2")]).cost
    assert (cost.policy_tokens, cost.verifier_tokens, cost.calls) == (90, 21, 3)
    assert cost.policy_tokens_per_label == 45
    assert cost.verifier_tokens_per_label == 10.5
    assert cost.policy_tokens_per_trace == 45


def test_value_labels_are_cut_and_calibrated():
    values, truth = [[0.0, 0.5], [0.5, 1.0]], [[-1, 1], [-1, 1]]
    hard, half = (
        audit_labels(
            traces_like(values),
            {"mc": rows(values, kind="value")},
            truth=rows(truth),
            reading=LabelRule(neutral="good", good_above=above),
            draws=10,
        )
        .sources[0]
        .against_truth
        for above in (0, 0.5)
    )
    assert hard.confusion == confusion(tp=1, fn=1, tn=2)
    assert half.confusion == confusion(tp=2, fp=1, tn=1)
    assert hard.soft == half.soft  # the numbers themselves do not depend on the cut
    assert hard.soft.auc == pytest.approx(3.5 / 4)
    assert math.isnan(hard.soft.auc_within_position)  # no position has both kinds of steps
    assert hard.soft.calibration.brier == pytest.approx((0 + 0.25 + 0.25 + 0) / 4)


def test_correctness_labels_have_no_soft_values(known):
    assert known.sources[0].against_truth.soft is None


def test_intervals_resample_problems_not_traces():
    problems = ["same"] * len(TRUTH)
    one = audit_labels(traces_like(TRUTH, problems), {"c": rows(CLAIM)}, truth=rows(TRUTH), draws=50)
    many = audit_labels(traces_like(TRUTH), {"c": rows(CLAIM)}, truth=rows(TRUTH), draws=50)
    narrow, wide = (audit.sources[0].against_truth.first_error.accuracy for audit in (one, many))
    assert (one.problems, many.problems) == (1, 6)
    assert narrow.low == narrow.value == narrow.high  # one problem: nothing is known of the spread
    assert wide.low < wide.value < wide.high
    assert one.pairs[0].kappa.low == one.pairs[0].kappa.high < many.pairs[0].kappa.high


def test_without_truth_there_is_agreement_and_cost_alone():
    audit = audit_labels(traces_like(TRUTH), {"a": rows(TRUTH), "b": rows(CLAIM), "c": rows(CLAIM)}, draws=20)
    assert audit.truth is None
    assert all(source.against_truth is None for source in audit.sources)
    assert [(p.first, p.second) for p in audit.pairs] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert audit.pairs[2].steps.raw == audit.pairs[2].steps.kappa == 1.0
    assert audit.overall.steps.raters == 3
    assert audit.overall.alpha.value == pytest.approx(audit.overall.steps.alpha)
    assert audit.overall.alpha.low < audit.overall.alpha.value < audit.overall.alpha.high


def test_equal_input_gives_equal_output(tmp_path):
    def once(name):
        audit = audit_labels(
            traces_like(TRUTH),
            {"a <b>": rows(CLAIM), "v": rows([[0.5, 0.0]], kind="value")},
            truth=rows(TRUTH),
            draws=20,
            seed=3,
        )
        section = label_section(audit)
        Report("Labels", first_screen_of([section], Origin())).section(section).write(tmp_path / name)
        return json.dumps(to_json(audit)), (tmp_path / name).read_text(encoding="utf-8")

    first, second = once("1.html"), once("2.html")
    assert first == second
    page = first[1]
    assert "a &lt;b&gt;" in page
    assert "a <b>" not in page
    assert page.count("<svg") == 1
    assert "http" not in page.replace("http://www.w3.org", "").replace("<meta http-equiv=", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sources": {}}, "'sources' is empty"),
        ({"sources": {"truth": rows(TRUTH)}}, "a source is called 'truth'"),
        ({"sources": {"a": [label("gone", 0, 1.0)]}}, r"a: none of its 1 labels .*first gone"),
        ({"sources": {"a": rows(TRUTH)}, "truth": []}, "truth: none of its 0 labels"),
    ],
)
def test_what_cannot_be_audited_is_refused(arguments, message):
    with pytest.raises(LabelError, match=message):
        audit_labels(traces_like(TRUTH), **arguments)


def test_a_trace_that_occurs_twice_is_refused():
    with pytest.raises(LabelError, match="1 trace ids occur twice, first t0"):
        audit_labels([trace_of(1, "t0"), trace_of(1, "t0")], {"a": rows([[1]])})


def test_raters_of_one_file_are_told_apart():
    labels = [*rows([[1, 1]], rater="ann"), *rows([[1, -1]], rater="bob")]
    audit = audit_labels(
        traces_like([[1, 1]]),
        {"people": labels},
        by_rater=True,
        draws=5,
    )
    assert [source.name for source in audit.sources] == ["people/ann", "people/bob"]
    assert audit.overall.steps.raw == 0.5
    with pytest.raises(LabelError, match=r"step 0 of trace t0 lacks 'evidence.rater'"):
        audit_labels(traces_like([[1, 1]]), {"people": rows([[1]])}, by_rater=True)


# The command


@pytest.fixture
def files(tmp_path, lab_items, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_records(Path("traces.jsonl"), [item.trace for item in lab_items])
    for name in ("wrong", "step", "unlabelled"):
        found = asyncio.run(ExactLabeller(after_error=name, source=name).label(lab_items))
        write_records(Path(f"{name}.jsonl.gz"), [x for row in found for x in row])
    return tmp_path


def run(*words, settings=""):
    return CliRunner().invoke(app, ["evaluate", f"--as=labels{settings}", *words], env={"COLUMNS": "200"})


COMMON = ("--traces", "traces.jsonl", "--out", "audit", "--draws", "20", "--tables")


def test_the_command_audits_against_true_labels(files):
    ended = run("one=wrong.jsonl.gz", "step.jsonl.gz", *COMMON, "--labels=unlabelled.jsonl.gz")
    assert ended.exit_code == 0, ended.output
    assert "1.000 [1.000, 1.000]" in ended.output
    found = json.loads((files / "audit/labels.json").read_text(encoding="utf-8"))
    assert found["inputs"]["sources"] == ["one=wrong.jsonl.gz", "step=step.jsonl.gz"]
    assert [source["name"] for source in found["sources"]] == ["one", "step"]
    assert [source["against_truth"]["first_error"]["accuracy"]["value"] for source in found["sources"]] == [
        1,
        1,
    ]
    assert found["truth"]["counts"]["unread"]["after the first error"] > 0
    assert (files / "audit/labels.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_true_labels_after_the_first_error_count_as_they_are(files):
    words = ("wrong.jsonl.gz", *COMMON)
    assert run(*words, "--labels=step.jsonl.gz").exit_code == 0
    later = json.loads((files / "audit/labels.json").read_text(encoding="utf-8"))
    assert later["truth"]["counts"]["unread"] == {}
    assert later["sources"][0]["against_truth"]["precision"]["value"] < 1  # right steps after a wrong one
    assert run(*words, "--force", "--labels=wrong.jsonl.gz").exit_code == 0
    later = json.loads((files / "audit/labels.json").read_text(encoding="utf-8"))
    assert later["sources"][0]["against_truth"]["precision"]["value"] == 1


def test_the_command_without_truth_prints_agreement(files):
    ended = run("wrong.jsonl.gz", "step.jsonl.gz", *COMMON)
    assert ended.exit_code == 0, ended.output
    assert "pairs, steps" in ended.output
    assert "against truth" not in ended.output
    found = json.loads((files / "audit/labels.json").read_text(encoding="utf-8"))
    assert found["truth"] is None
    assert found["pairs"][0]["first"] == "wrong"


def test_a_file_of_true_labels_and_a_cut(files, lab_items):
    values = [
        label(item.trace.id, step, 0.5, kind="value")
        for item in lab_items
        for step in range(len(item.trace.steps))
    ]
    write_records(files / "mc.jsonl", values)
    ended = run("mc.jsonl", *COMMON, "--labels=step.jsonl.gz", settings=":good-above=0.4")
    assert ended.exit_code == 0, ended.output
    found = json.loads((files / "audit/labels.json").read_text(encoding="utf-8"))
    (source,) = found["sources"]
    assert source["reading"]["good_above"] == 0.4
    assert found["truth"]["reading"]["good_above"] == 0.4
    assert source["against_truth"]["recall"]["value"] == 0
    assert source["against_truth"]["precision"]["value"] is None  # 0/0


@pytest.mark.parametrize(
    ("words", "settings", "message"),
    [
        (("step.jsonl.gz", "step.jsonl.gz"), "", "two sources are called 'step'; give NAME=FILE"),
        (("=step.jsonl.gz",), "", "give NAME=FILE, or FILE alone"),
        (("step.jsonl.gz",), ":neutral=maybe", "choose good, bad or drop"),
        (("step.jsonl.gz",), ":binning=fine", "choose equal-mass or equal-width"),
        (("step.jsonl.gz",), ":good-above=x", "good-above: Input should be a valid number"),
        (("step.jsonl.gz",), ":good-above=1.5", "good-above: Input should be less than or equal to 1"),
        (("step.jsonl.gz",), ":by-rater=true", "lacks 'evidence.rater'"),
    ],
)
def test_the_command_names_what_is_wrong(files, words, settings, message):
    ended = run(*words, *COMMON, settings=settings)
    assert isinstance(ended.exception, SurefootError)
    with pytest.raises(SurefootError, match=message):
        raise ended.exception
    assert not (files / "audit").exists()


JUDGES = Path(__file__).parents[2] / "../shared/data/agent/apb_human_vs_judges.jsonl.gz"


@pytest.mark.skipif(not JUDGES.exists(), reason="AgentProcessBench sample is not here")
def test_real_judges_beside_people_on_agent_runs():
    with gzip.open(JUDGES, "rt", encoding="utf-8") as file:
        records = [json.loads(line) for line in file][:200]
    traces, people, judges = [], [], []
    for number, record in enumerate(records):
        places = list(record["human_step_labels"])
        traces.append(trace_of(len(places), f"t{number}", f"{record['dataset']}-{record['query_index']}"))
        for step, place in enumerate(places):
            people.append(label(f"t{number}", step, float(record["human_step_labels"][place])))
            for name, judge in record["judges"].items():
                value = judge["step_labels"].get(place)
                if value is not None:
                    judges.append(label(f"t{number}", step, float(value), rater=name))
    names = sorted({x.evidence.rater for x in judges})[:3]
    chosen = [x for x in judges if x.evidence.rater in names]
    audit = audit_labels(traces, {"judge": chosen}, truth=people, by_rater=True, draws=20)
    for source in audit.sources:
        name = source.name.removeprefix("judge/")
        right = total = 0
        for record in records:
            said = record["judges"].get(name, {}).get("step_labels", {})
            for place, fact in record["human_step_labels"].items():
                if said.get(place) is not None:
                    total += 1
                    right += (said[place] >= 0) == (fact >= 0)
        assert source.counts.used == total
        assert source.against_truth.confusion.accuracy == pytest.approx(right / total)


def test_labels_are_read_one_after_another_and_not_kept():
    count, steps = 500, 20
    alive = most = 0

    def gone():
        nonlocal alive
        alive -= 1

    def labels():
        nonlocal alive, most
        for number in range(count):
            for step in range(steps):
                one = label(f"t{number}", step, (number + step) % 9 / 8, kind="value", interval=(0.2, 0.8))
                finalize(one, gone)
                alive += 1
                most = max(most, alive)
                yield one

    traces = [trace_of(steps, f"t{number}", f"p{number // 2}") for number in range(count)]
    audit = audit_labels(traces, {"a": labels(), "b": labels()}, truth=labels(), draws=5)
    assert audit.sources[1].counts.used == count * steps
    assert audit.sources[0].against_truth.soft.calibration.steps == count * steps
    assert most <= 66 < count * steps / 4  # a block of 64 becomes columns at once


def test_a_label_takes_a_few_bytes():
    layout = StepLayout(Facts(f"t{number}", f"p{number}", size=16) for number in range(1000))
    labels = (label(f"t{number}", step, (-1.0) ** step) for number in range(1000) for step in range(16))
    tracemalloc.start()
    [found] = label_sets("a", labels, layout)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.counts.used == 16_000
    assert size < 12 * 16_000 + 20_000  # 10 bytes a step, and what does not grow
