"""Consensus of several sources: the published filter, votes by step, the report, the command."""

from __future__ import annotations

import gzip
import json
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from weakref import ref

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from surefoot.cli.label.command import Label
from surefoot.cli.parser import SettingsCommand
from surefoot.errors import LabelError, SurefootError
from surefoot.io import read_records, write_records
from surefoot.labelling.consensus import Consensus, ConsensusSettings
from surefoot.protocols import ProblemTrace
from surefoot.records import Evidence, Problem, Step, StepLabel, Trace, Usage

DATA = Path(__file__).parents[2] / "../shared/data"
PROBLEM = Problem(text="How many?")
AFTER = "after the first error"


def item(steps, sample=0):
    spans = tuple(Step(start=at, end=at + 1) for at in range(steps))
    trace = Trace(problem_id=PROBLEM.id, text="s" * steps or "s", steps=spans, sample=sample)
    return ProblemTrace(problem=PROBLEM, trace=trace)


def row(labelled, values, kind="correctness", tokens=0):
    return [
        StepLabel(
            trace_id=labelled.trace.id,
            step=step,
            kind=kind,
            value=value,
            reason="did not say" if value is None else None,
            source="test",
            evidence=Evidence(usage=Usage(completion_tokens=tokens)),
        )
        for step, value in enumerate(values)
    ]


FIRST = ConsensusSettings()
UNANIMOUS = ConsensusSettings(rule="weighted", margin=1.0)


def weighted(margin=0.0, **weights):
    return ConsensusSettings(rule="weighted", weights=weights, margin=margin)


def combine(items, rows, rule):
    consensus = Consensus(rows, rule)
    labels = [
        consensus.combine(one, {name: rows[name][number] for name in rows})
        for number, one in enumerate(items)
    ]
    return SimpleNamespace(labels=labels, report=consensus.report())


def combined(rule, *, good_above=0.0, neutral="drop", **sources):
    """One trace; each source is its list of correctness labels, or of values if it is called ``mc``."""
    steps = len(next(iter(sources.values())))
    one = item(steps)
    rows = {
        name: [row(one, values, "value" if name == "mc" else "correctness")]
        for name, values in sources.items()
    }
    return combine([one], rows, rule.model_copy(update={"good_above": good_above, "neutral": neutral}))


def values(result):
    (labels,) = result.labels
    return [label.value for label in labels]


def reasons(result):
    (labels,) = result.labels
    return [label.reason for label in labels]


def with_error(steps, error):
    """Labels of a source that finds its first error at ``error`` (``None`` = none) and then is silent."""
    if error is None:
        return [1.0] * steps
    return [1.0] * error + [-1.0] + [None] * (steps - error - 1)


ERRORS = [None, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("mc", ERRORS)
@pytest.mark.parametrize("judge", ERRORS)
def test_the_published_filter_keeps_a_trace_only_if_both_find_the_same_first_error(mc, judge):
    hard = [max(value or 0.0, 0.0) for value in with_error(5, mc)]  # Monte Carlo goes on after an error
    result = combined(FIRST, mc=hard, judge=with_error(5, judge))
    if mc == judge:
        assert values(result) == with_error(5, mc)
        assert set(reasons(result)) <= {None, AFTER}
        assert (result.report.kept_traces, result.report.dropped_traces) == (1, {})
    else:
        assert values(result) == [None] * 5
        assert result.report.kept_traces == 0
        assert sum(result.report.dropped_traces.values()) == 1


def test_monte_carlo_without_an_error_and_a_judge_with_one_drops_the_trace():
    result = combined(FIRST, mc=[0.5] * 6, judge=with_error(6, 4))
    assert result.report.dropped_traces == {"an error for judge, none for mc": 1}
    assert result.report.unlabelled_steps == {"an error for judge, none for mc": 6}
    assert {label.evidence.message for label in result.labels[0]} == {"first error: judge 5, mc none"}


def test_the_reasons_say_how_the_sources_differ():
    drops = [
        ({"a": [1, -1, None], "b": [-1, None, None]}, "first errors differ, earliest for b"),
        ({"a": [1, None, -1], "b": [1, 1, 1]}, "first error unknown to a (label without a value)"),
        ({"a": [1, 0, -1], "b": [1, 1, 1]}, "first error unknown to a (neutral)"),
        ({"a": [-1, 1, 1], "b": [1, 1, 1], "c": [-1, 1, 1]}, "an error for a, c, none for b"),
    ]
    for sources, reason in drops:
        assert combined(FIRST, **sources).report.dropped_traces == {reason: 1}


def test_what_counts_as_good_is_said_in_the_call():
    sources = {"mc": [0.3, 0.0], "judge": [1, 0]}
    assert values(combined(FIRST, neutral="bad", **sources)) == [1, -1]
    assert values(combined(FIRST, neutral="good", **sources)) == [None, None]
    assert values(combined(FIRST, neutral="bad", good_above=0.5, **sources)) == [None, None]
    silent = combined(UNANIMOUS, good_above=None, **sources)
    assert silent.labels[0][0].evidence.message.endswith("no vote: mc")


def test_unanimous_steps_need_every_source():
    result = combined(UNANIMOUS, a=[1, -1, 1, None], b=[1, -1, -1, 1], c=[1, -1, 1, 1])
    assert values(result) == [1, -1, None, None]
    assert reasons(result)[2:] == ["lead below the margin"] * 2
    assert result.labels[0][3].evidence.message == "good: b, c; no vote: a"
    agreed, _, split, _ = result.labels[0]
    assert (agreed.kind, agreed.source) == ("correctness", "consensus")
    assert (agreed.evidence.successes, agreed.evidence.trials) == (3, 3)
    assert agreed.evidence.message == "good: a, b, c"
    assert split.evidence.message == "good: a, c; bad: b"
    assert (split.evidence.successes, split.evidence.trials) == (None, None)


def test_weights_decide_and_ties_do_not():
    votes = {"a": [1, 1, 1, None], "b": [-1, 1, None, None], "c": [-1, -1, -1, None]}
    assert values(combined(weighted(), **votes)) == [-1, 1, None, None]
    assert reasons(combined(weighted(), **votes))[2:] == ["tie", "no source has a label for the step"]
    assert values(combined(weighted(a=3), **votes)) == [1, 1, 1, None]
    far = combined(weighted(0.5, a=3), **votes)
    assert values(far) == [None, 1, None, None]  # leads: 1/5, 3/5, 2/5
    assert reasons(far)[0] == "lead below the margin"
    assert far.labels[0][1].evidence.message == "good: a, b; bad: c"
    assert (far.labels[0][1].evidence.successes, far.labels[0][1].evidence.trials) == (2, 3)


@pytest.mark.parametrize("order", list(permutations("abc")))
def test_a_tie_of_decimal_weights_is_a_tie_in_any_order(order):
    votes = {"a": [1], "b": [1], "c": [-1]}
    rule = weighted(a=0.1, b=0.2, c=0.3)
    assert reasons(combined(rule, **{name: votes[name] for name in order})) == ["tie"]


RULES = [FIRST, UNANIMOUS, weighted(), weighted(margin=0.4)]
VALUE = st.sampled_from([1.0, -1.0, 0.0, None])
SOURCES = st.integers(1, 6).flatmap(
    lambda steps: st.lists(st.lists(VALUE, min_size=steps, max_size=steps), min_size=2, max_size=4)
)


def plain(result):
    return [[label.model_dump(exclude={"created"}) for label in labels] for labels in result.labels]


RULE = st.sampled_from([*RULES, weighted(source0=2, source1=0.5)])


@settings(deadline=None)
@given(rows=SOURCES, rule=RULE, order=st.randoms(use_true_random=False))
def test_the_order_of_the_sources_changes_nothing(rows, rule, order):
    sources = {f"source{at}": values for at, values in enumerate(rows)}
    shuffled = dict(order.sample(list(sources.items()), len(sources)))
    one, other = combined(rule, **sources), combined(rule, **shuffled)
    assert plain(one) == plain(other)
    assert one.report == other.report


@settings(deadline=None)
@given(rows=SOURCES, rule=st.sampled_from(RULES))
def test_what_was_combined_agrees_with_itself_and_with_its_sources(rows, rule):
    once = values(combined(rule, **{f"source{at}": row for at, row in enumerate(rows)}))
    assert values(combined(rule, a=once, b=once)) == once
    if rule == FIRST and any(value is not None for value in once):
        again = {"kept": once} | {f"source{at}": row for at, row in enumerate(rows)}
        assert values(combined(rule, **again)) == once


@settings(deadline=None)
@given(rows=SOURCES)
def test_unanimous_steps_are_those_that_lead_by_everything(rows):
    sources = {f"source{at}": row for at, row in enumerate(rows)}
    unanimous, leading = (values(combined(rule, **sources)) for rule in (UNANIMOUS, weighted()))
    assert all(a in (None, b) for a, b in zip(unanimous, leading, strict=True))
    alike = [set(votes) for votes in zip(*rows, strict=True)]
    assert unanimous == [vote.pop() if vote in ({1.0}, {-1.0}) else None for vote in alike]
    first = values(combined(FIRST, **sources))
    assert all(a in (None, b) for a, b in zip(first, unanimous, strict=True))


@settings(deadline=None)
@given(rows=SOURCES, rule=RULE)
def test_the_report_accounts_for_every_trace_and_step(rows, rule):
    result = combined(rule, **{f"source{at}": row for at, row in enumerate(rows)})
    report, found = result.report, values(result)
    assert report.good_steps == found.count(1.0)
    assert report.bad_steps == found.count(-1.0)
    assert sum(report.unlabelled_steps.values()) == found.count(None)
    assert report.kept_traces + sum(report.dropped_traces.values()) == report.traces == 1
    assert report.kept_traces == any(value is not None for value in found)


def test_the_summary_lists_the_frequent_reasons_and_counts_the_others():
    items = [item(1, sample) for sample in range(9)]
    names = [f"s{n}" for n in range(8)]
    rows = {
        name: [row(one, [1 if n > at else -1]) for n, one in enumerate(items)]
        for at, name in enumerate(names)
    }
    report = combine(items, rows, FIRST).report
    lines = report.summary().splitlines()
    assert lines[0] == (
        "first-error of s0, s1, s2, s3, s4, s5, s6, s7: 2 of 9 traces kept; of 9 steps 1 good, 1 bad, "
        "7 without consensus"
    )
    assert len(report.dropped_traces) == 7
    assert "  1 traces dropped: 1 other reasons" in lines


def test_a_trace_without_steps_is_dropped():
    report = combine([item(0)], {"a": [[]], "b": [[]]}, UNANIMOUS).report
    assert (report.kept_traces, report.dropped_traces) == (0, {"no steps": 1})


def test_what_does_not_fit_is_refused():
    one, other = item(2), item(2, sample=1)
    good = [row(one, [1, 1])]
    with pytest.raises(LabelError, match="at least two sources, not 1"):
        combine([one], {"a": good}, UNANIMOUS)
    with pytest.raises(LabelError, match=f"source 'b': .* given for trace {one.trace.id}"):
        combine([one], {"a": good, "b": [row(other, [1])]}, UNANIMOUS)
    with pytest.raises(LabelError, match="label of step 3 of"):
        combine([one], {"a": good, "b": [row(one, [1, 1, 1])]}, UNANIMOUS)
    with pytest.raises(LabelError, match="a weight is given for 'c', which is none of a, b"):
        combined(weighted(c=1), a=[1], b=[1])
    for weight in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValidationError, match="the weight of 'a' is"):
            weighted(a=weight)
    for margin in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValidationError, match="margin"):
            weighted(margin=margin)


def test_traces_are_combined_one_after_another_with_the_same_report():
    items = [item(2, sample=sample) for sample in range(30)]
    rows = {
        name: [row(one, [1, -1 if (number + at) % shift else 1]) for number, one in enumerate(items)]
        for at, (name, shift) in enumerate((("a", 2), ("b", 3)))
    }
    whole = combine(items, rows, UNANIMOUS)
    combiner = Consensus(["b", "a"], UNANIMOUS)
    before = []
    for number, one in enumerate(items):
        labels = combiner.combine(one, {name: rows[name][number] for name in rows})
        expected = [label.model_copy(update={"created": None}) for label in whole.labels[number]]
        assert [label.model_copy(update={"created": None}) for label in labels] == expected
        before += [ref(label) for label in labels]
        del labels
    assert combiner.report() == whole.report
    assert not any(label() for label in before)


@pytest.fixture
def run(tmp_path):
    """The command on the files of two traces; gives the labels and standard error."""
    app = SettingsCommand("label", Label)
    items = [item(3), item(3, sample=1)]
    write_records(tmp_path / "problems.jsonl", [PROBLEM])
    write_records(tmp_path / "traces.jsonl", [one.trace for one in items])
    mc, judge = ([0.5, 0.0, 0.0], [1.0, 1.0, 1.0]), ([1, -1, None], [1, 1, -1])
    stray = row(item(1, sample=7), [1])
    for name, kind, both in (("mc", "value", mc), ("judge", "correctness", judge)):
        labels = [label for one, found in zip(items, both, strict=True) for label in row(one, found, kind)]
        write_records(tmp_path / f"{name}.jsonl", labels + stray)

    def invoke(method="consensus", sources=("mc", "judge")):
        paths = {name: str(tmp_path / name) for name in ("traces", "problems", "out")}
        words = [f"{paths['traces']}.jsonl", method, "--problems", f"{paths['problems']}.jsonl"]
        words += [f"--labels={name}={tmp_path / name}.jsonl" for name in sources]
        words += ["--out", f"{paths['out']}.jsonl", "--force"]
        result = CliRunner().invoke(app, words)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.stderr
        labels = list(read_records(tmp_path / "out.jsonl", StepLabel))
        return labels, result.stderr

    return invoke


def test_the_command_writes_the_traces_that_were_kept_and_reports_the_others(run):
    labels, err = run()
    assert [label.value for label in labels] == [1, -1, None]
    assert "first-error of judge, mc: 1 of 2 traces kept" in err
    assert "1 label of mc skipped: they belong to no step of a usable trace" in err
    assert "1 of 2 traces kept" in err
    assert "1 traces dropped: an error for judge, none for mc" in err


def test_the_rules_of_the_command(run):
    assert [label.value for label in run("consensus:rule=weighted,margin=1")[0]] == [1, -1, None, 1, 1, None]
    heavy = run("consensus:rule=weighted,weights=mc=1+judge=2")[0]
    assert [label.value for label in heavy] == [1, -1, -1, 1, 1, -1]
    close = run("consensus:rule=weighted,weights=judge=2,margin=0.5")[0]
    assert [label.value for label in close] == [1, -1, None, 1, 1, None]
    high = run("consensus:rule=weighted,margin=1,good-above=0.7")[0]
    assert [label.value for label in high] == [None, -1, None, 1, 1, None]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("rule=most", "rule is 'most'; choose first-error or weighted"),
        ("margin=0.5", "weights and margin belong to rule=weighted"),
        ("rule=weighted,weights=mc", "weights.mc: Input should be a valid number"),
        ("rule=weighted,weights=mc=x", "weights.mc: Input should be a valid number"),
        ("rule=weighted,weights=m=1", "a weight is given for 'm'"),
        ("neutral=fine", "neutral is 'fine'; choose good, bad or drop"),
    ],
)
def test_the_command_refuses_what_it_does_not_know(run, settings, message):
    with pytest.raises(SurefootError, match=message):
        run(f"consensus:{settings}")


def test_sources_need_different_names(run):
    with pytest.raises(LabelError, match="two sources are called 'mc'"):
        run(sources=("mc", "mc"))
    with pytest.raises(LabelError, match="at least two sources"):
        run(sources=("mc",))


def test_judges_that_agree_are_right_more_often():
    """On 500 agent runs with human step labels, more judges that must agree mean purer and fewer labels."""
    path = DATA / "agent/apb_human_vs_judges.jsonl.gz"
    if not path.exists():
        pytest.skip("human labels beside judges are not here")
    with gzip.open(path, "rt") as lines:
        runs = [json.loads(line) for line in lines]
    judges = ["DeepSeek-V3.2", "GPT-5.2", "Kimi-K2.5"]
    items, human, rows = [], [], {name: [] for name in judges}
    for number, one in enumerate(runs):
        steps = sorted(one["human_step_labels"], key=int)
        items.append(item(len(steps), number))
        human.append([one["human_step_labels"][step] for step in steps])
        for name in judges:
            verdicts = one["judges"][name]["step_labels"]
            rows[name].append(row(items[-1], [verdicts.get(step) for step in steps]))

    def accuracy(labels):
        """Share of labels that the human shares, over steps that neither calls neutral; their number."""
        right = [
            (label.value > 0) == (truth[label.step] > 0)
            for truth, found in zip(human, labels, strict=True)
            for label in found
            if label.value and truth[label.step]
        ]
        return sum(right) / len(right), len(right)

    def agreed(names, rule):
        sources = {name: rows[name] for name in names}
        return accuracy(combine(items, sources, rule).labels)

    single = accuracy(rows[judges[0]])
    two, three = agreed(judges[:2], UNANIMOUS), agreed(judges, UNANIMOUS)
    assert [round(share, 3) for share, _ in (single, two, three)] == [0.845, 0.917, 0.931]
    assert [number for _, number in (single, two, three)] == [3309, 2553, 2269]
    assert agreed(judges, weighted()) == pytest.approx((0.870, 3656), abs=5e-4)
    assert agreed(judges, FIRST) == pytest.approx((0.966, 324), abs=5e-4)
