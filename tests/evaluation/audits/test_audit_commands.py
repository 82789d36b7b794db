"""``surefoot audit`` on files: tables, JSON and a page that needs nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import good, refused
from hypothesis import given
from hypothesis import strategies as st
from toy_scorers import Toy, constant, exact, lab_material, length, outcome

from surefoot.cli.audit import Audit, subset
from surefoot.formats import write_processbench
from surefoot.io import write_records
from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import Encoding
from surefoot.models.kinds.classifier import RewardModel
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem, StepLabel, Trace
from surefoot.segment import Line, segment_trace

QUICK = ("--draws=40", "--seed=1")


@pytest.fixture(scope="module")
def files(tmp_path_factory, lab_base) -> Path:
    """Problems, traces, labels, stored scores of toys, and a random checkpoint."""
    folder = tmp_path_factory.mktemp("audit")
    cases = lab_material(12, wrong=(False, True, True))
    cases = [case for number, case in enumerate(cases) if number % 3 < 2] + cases[2::3]
    items = [case.item for case in cases]
    traces = [
        item.trace.model_copy(update={"id": f"t{number}", "policy": "hand"})
        for number, item in enumerate(items)
    ]
    problems = {item.problem.id: item.problem for item in items}
    write_records(folder / "p.jsonl", list(problems.values()))
    write_records(folder / "t.jsonl", traces)
    labels = [
        [
            StepLabel(trace_id=t.id, step=n, kind="correctness", value=1.0 if ok else -1.0, source="hand")
            for n, ok in enumerate(case.good)
        ]
        for t, case in zip(traces, cases, strict=True)
    ]
    write_records(folder / "l.jsonl", [label for row in labels for label in row])
    write_processbench(
        [
            LabelledTrace(problem=item.problem, trace=t, labels=tuple(row))
            for item, t, row in zip(items, traces, labels, strict=True)
        ],
        folder / "pb.json",
        neutral="good",
    )
    scored = [type(items[0])(problem=i.problem, trace=t) for i, t in zip(items, traces, strict=True)]
    for rule in (exact, outcome, constant, length):
        write_records(folder / f"{rule.__name__}.jsonl", Toy(rule).score_traces(scored))
    card = CheckpointCard(kind="prm", label_source="test", base="tiny", encoding=Encoding(max_length=100))
    RewardModel.initialise(lab_base, card).save(folder / "prm")
    return folder


def data(files):
    """Options for the problems, their traces and exact labels."""
    return ("--problems", files / "p.jsonl", "--traces", files / "t.jsonl", "--labels", files / "l.jsonl")


def sums(folder):
    """Problems whose equations can be computed again with other numbers."""
    problems, traces, labels = [], [], []
    for number in range(20, 26):
        problem = Problem(text=f"Start with {number}. Add 7.", answer=str(number + 7))
        text = f"{number} + 7 = {number + 7}\nAnswer: {number + 7}\n"
        trace = Trace(problem_id=problem.id, text=text, answer=problem.answer)
        problems.append(problem)
        traces.append(segment_trace(trace, Line()))
        labels += [
            StepLabel(trace_id=trace.id, step=step, kind="correctness", value=1.0, source="hand")
            for step in range(2)
        ]
    written = {"problems": problems, "traces": traces, "labels": labels}
    for name, records in written.items():
        write_records(folder / f"sums-{name}.jsonl", records)
    return [word for name in written for word in (f"--{name}", folder / f"sums-{name}.jsonl")]


def result(out: Path):
    html = (out / "audit.html").read_text()
    assert "<svg" in html
    assert "src=" not in html
    return json.loads((out / "audit.json").read_text())


def subjects_of(found):
    """What the verdicts of a report are tests of."""
    return {verdict["tested"] for verdict in found["first_screen"]["verdicts"]}


def test_gaming_edits(files, tmp_path):
    test = "gaming:per-problem=2"
    words = (f"a={files / 'prm'}", *data(files), "--limit=4", *QUICK, "--out", tmp_path, "--tables")
    ended = good("audit", "--test", test, *words)
    found = result(tmp_path)
    assert "Verifier gaming" in ended.out
    [gaming] = found["gaming"]
    assert gaming["scorer"] == "a"
    assert gaming["rule"] == "min"
    assert len(gaming["effects"]) == 4 + 2 * 7
    assert found["inputs"]["test"] == [test]
    assert subjects_of(found) == {"edits that raise a score"}
    assert found["inputs"]["scorers"] == [f"a={files / 'prm'}"]
    assert gaming["usage"]["verifier_tokens"] > 0


def test_outcome_tells_stored_scorers_apart_side_by_side(files, tmp_path):
    scorers = [f"{name}={files / name}.jsonl" for name in ("exact", "outcome")]
    good("audit", "--test=outcome", *scorers, *data(files), *QUICK, "--out", tmp_path)
    by_name = {audit["scorer"]: audit for audit in result(tmp_path)["outcome"]}
    assert by_name["outcome"]["lowest_last"]["wrong answer"]["share"]["value"] == 1
    assert by_name["exact"]["around_error"]["wrong answer"]["drop"]["value"] == 1
    assert by_name["exact"]["without_controls"]
    live = tmp_path / "live"
    good("audit", "--test=outcome", files / "prm", *data(files), *QUICK, "--limit=4", "--out", live)
    [audit] = result(live)["outcome"]
    assert audit["scorer"] == "prm"
    assert list(audit["controls"]) == ["whole", "last step only", "shuffled steps"]


def test_clean_from_labels_and_from_processbench(files, tmp_path):
    rules = ("--aggregate", "outcome=last,min")
    scorers = [f"{name}={files / name}.jsonl" for name in ("exact", "outcome")]
    found = []
    for number, source in enumerate((data(files), ("--processbench", files / "pb.json"))):
        out = tmp_path / str(number)
        good("audit", "--test=clean", *scorers, *source, *rules, *QUICK, "--out", out)
        found.append(result(out)["clean"])
    assert found[0] == found[1]
    by_name = {audit["scorer"]: audit for audit in found[0]}
    assert by_name["exact"]["right_over_rationalised"]["value"] == 1
    assert by_name["outcome"]["right_over_rationalised"]["value"] == 0.5
    assert (by_name["exact"]["rule"], by_name["outcome"]["rule"]) == ("min", "last")
    given = tmp_path / "given"
    good("audit", "--test=clean", files / "prm", *data(files), *QUICK, "--out", given)
    [live] = result(given)["clean"]
    live, stored = (
        {name: group["traces"] for name, group in audit["groups"].items()} for audit in (live, found[0][0])
    )
    assert live == stored


def test_problems_are_drawn_from_the_whole_file(files):
    about = {
        "problems": str(files / "p.jsonl"),
        "traces": str(files / "t.jsonl"),
        "labels": str(files / "l.jsonl"),
    }
    audits = [Audit(verifier=("equations",), out=files, limit=4, seed=seed, **about) for seed in (0, 0, 1)]
    chosen = [{case.problem_id for case in audit.cases} for audit in audits]
    assert [len(ids) for ids in chosen] == [4, 4, 4]
    assert chosen[0] == chosen[1] != chosen[2]


@given(
    rows=st.lists(st.integers(), unique=True, max_size=30),
    limit=st.none() | st.integers(1, 40),
    seed=st.integers(0, 99),
)
def test_a_limit_draws_rows_and_keeps_their_order(rows, limit, seed):
    found = subset(rows, limit, seed)
    assert found == [row for row in rows if row in set(found)]
    assert len(found) == (len(rows) if limit is None else min(limit, len(rows)))
    assert found == subset(rows, limit, seed)


def test_over_optimisation_of_stored_scores(files, tmp_path):
    good(
        *("audit", "--test=over-optimisation:largest=3", f"exact={files / 'exact.jsonl'}"),
        *("--problems", files / "p.jsonl", "--traces", files / "t.jsonl", *QUICK, "--out", tmp_path),
    )
    [audit] = result(tmp_path)["over_optimisation"]
    assert [point["n"] for point in audit["points"]] == [1, 2, 3]
    assert audit["points"][-1]["kl"] == pytest.approx(np.log(3) - 2 / 3)


def test_all_runs_what_can_be_run_and_says_what_cannot(files, tmp_path):
    tests = ("--test", "gaming,outcome:per-problem=2,clean,over-optimisation:largest=3")
    good("audit", *tests, files / "prm", *data(files), "--limit=4", *QUICK, "--out", tmp_path)
    found = result(tmp_path)
    assert "left_out" not in found
    assert {"gaming", "outcome", "clean", "over_optimisation"} <= set(found)
    stored = tmp_path / "stored"
    ended = good("audit", f"e={files / 'exact.jsonl'}", *data(files), *QUICK, "--out", stored)
    assert "gaming left out: there are only stored scores" in ended.err
    found = result(stored)
    assert list(found["left_out"]) == ["gaming"]
    assert "outcome leakage" in subjects_of(found)
    assert "edits that raise a score" not in subjects_of(found)


def test_settings_reach_the_tests(files, tmp_path):
    tests = "gaming:tolerance=0.2,must-fall=0,per-problem=1,argument:must-fall=0,granularity"
    about = (*data(files), "--limit=6", "--threshold=0.9", "--partial", *QUICK, "--out", tmp_path)
    good("audit", files / "prm", "--test", tests, *about)
    about = (*sums(tmp_path), "--threshold=0.9", "--partial", *QUICK, "--out", tmp_path / "twins")
    good("audit", files / "prm", "--test=twins:tolerance=0.3,must-fall=0", *about)
    every = (*data(files), "--threshold=0.9", "--partial", *QUICK, "--out", tmp_path / "all")
    good("audit", files / "prm", "--test=clean", *every)
    found = result(tmp_path)
    found |= {name: result(tmp_path / at)[name] for name, at in (("clean", "all"), ("twins", "twins"))}
    assert (found["gaming"][0]["tolerance"], found["twins"][0]["tolerance"]) == (0.2, 0.3)
    for name in ("gaming", "twins", "argument", "clean", "granularity"):
        assert found[name][0]["threshold"] == 0.9
    for name in ("gaming", "twins", "argument"):
        [audit] = found[name]
        falls = [effect for effect in audit["effects"] if effect["must"] == "fall" and effect["traces"]]
        assert {effect["verdict"] for effect in falls} == {"passes"}
    used = [e for e in found["gaming"][0]["effects"] if (e["change"], e["on"]) == ("filler", "right")]
    assert [e["traces"] + e["not_applicable"] + e["unscored"] for e in used] == [6]


def test_equal_runs_leave_equal_files(files, tmp_path):
    for name in ("one", "two"):
        scorer = f"length={files / 'length.jsonl'}"
        good("audit", "--test=clean", scorer, *data(files), *QUICK, "--out", tmp_path / name)
    one, two = ((tmp_path / name / "audit.html").read_text() for name in ("one", "two"))
    assert one.replace(str(tmp_path / "one"), "") == two.replace(str(tmp_path / "two"), "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("outcome {exact} -o x", "--test outcome: give --problems and --traces"),
        ("outcome {exact} {exact} {data} -o x", "two sources"),
        ("outcome ={exact} {data} -o x", "give NAME=FILE"),
        ("outcome {data} -o x", "or --verifier"),
        ("gaming {exact} {data} --labels {l} -o x", "give a checkpoint"),
        ("gaming {prm} {data} --labels lab -o x", "verify:rules=lab` makes the lab's labels"),
        ("clean {exact} --problems {p} --labels {l} -o x", "give --problems and --traces"),
        ("clean {exact} --aggregate mid -o x", "choose from min"),
        ("clean {exact} {data} --aggregate b=min -o x", "no scorer has this name"),
        ("outcome {p} {data} -o x", "a StepScores needs 'trace_id'"),
        ("outcome {exact} --processbench b {data} -o x", "or --processbench"),
        ("outcom {exact} {data} -o x", "unknown test 'outcom'; did you mean 'outcome'?"),
        ("gaming:toleranc=1 {exact} {data} -o x", "setting of gaming 'toleranc'; did you mean 'tolerance'?"),
        ("gaming:tolerance=-1 {exact} {data} -o x", "tolerance: Input should be greater than or equal to 0"),
        ("faithfulness --problems {p} -o x", "give --policy and --problems"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(files, words, message):
    names = {name: files / f"{name}.jsonl" for name in ("exact", "p", "l")} | {"prm": files / "prm"}
    about = f"--problems {files / 'p.jsonl'} --traces {files / 't.jsonl'}"
    assert message in refused("audit", "--test", *words.format(**names, data=about).split())


def test_traces_without_stored_scores_are_left_out_and_counted(files, tmp_path):
    lines = (files / "exact.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "some.jsonl").write_text("".join(lines[:-2]))
    scorer = f"e={tmp_path / 'some.jsonl'}"
    ended = good("audit", "--test=outcome", scorer, *data(files), *QUICK, "--out", tmp_path)
    assert "2 traces left out: not in every file of scores" in ended.err
