from __future__ import annotations

import gzip
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score

from benchmarks.readers.agent_judgements import read_judges, read_people
from surefoot.errors import LabelError
from surefoot.evaluation.benchmarks.runs import (
    MISSING,
    AgentRun,
    RunTruth,
    agent_layout,
    agent_runs,
    agent_section,
    baselines,
    cross_fit,
    evaluate_agent_steps,
    first_errors,
)
from surefoot.evaluation.measures import Measured
from surefoot.evaluation.report import Report, Table
from surefoot.evaluation.splits import half_of
from surefoot.evaluation.step_scores import open_systems
from surefoot.formats import read_agent_processbench
from surefoot.io import write_records
from surefoot.records import StepLabel, StepScores

DATA = Path(__file__).parents[2] / "../shared/data/agent"
SIGNS = {"-": -1, "0": 0, "+": 1, "?": None}
IN_HALF = [[f"p{n}" for n in range(40) if half_of(f"p{n}") == half] for half in (0, 1)]


def run(
    name: str, signs: str, *, problem: str = "", outcome: bool | None = None, subset: str = "s"
) -> AgentRun:
    marks = tuple(SIGNS[sign] for sign in signs)
    return AgentRun(trace_id=name, problem_id=problem or name, subset=subset, signs=marks, outcome=outcome)


def truth_of(*runs: AgentRun) -> RunTruth:
    return RunTruth(
        layout=agent_layout(runs),
        signs=signs("".join("?-0+"[2 + s if s is not None else 0] for one in runs for s in one.signs)),
        subset=np.array([["s", "t"].index(one.subset) for one in runs]),
        failed=np.array([-1 if one.outcome is None else not one.outcome for one in runs], dtype=np.int8),
    )


def signs(text: str) -> np.ndarray:
    known = [SIGNS[sign] for sign in text]
    return np.array([MISSING if sign is None else sign for sign in known], dtype=np.int8)


def judged(tmp_path: Path, runs: Sequence[AgentRun], predicted: Sequence[str], **settings: Any) -> Measured:
    """The evaluation of a judge whose labels are ``predicted``; an empty text is a run without labels."""
    labels = [
        StepLabel(
            trace_id=one.trace_id,
            step=step,
            kind="correctness",
            value=SIGNS[sign],
            reason="unread" if sign == "?" else None,
            source="judge",
        )
        for one, text in zip(runs, predicted, strict=True)
        for step, sign in enumerate(text)
    ]
    write_records(tmp_path / "judge.jsonl", labels)
    layout = agent_layout(runs)
    systems = open_systems({"judge": str(tmp_path / "judge.jsonl")}, [], tmp_path, layout=layout)
    return evaluate_agent_steps(runs, systems, draws=50, **settings)


def test_first_errors():
    layout = truth_of(run("a", "++--"), run("b", "+0+"), run("c", "+?-"), run("d", "-?")).layout
    found = first_errors(signs("++--+0++?--?"), layout)
    np.testing.assert_array_equal(found, [2, -1, math.nan, 0])


def test_accuracies_by_hand(tmp_path: Path):
    """Ten labelled steps in four runs; what is missing is wrong, and neutral is neither good nor bad."""
    runs = [run("a", "++-"), run("b", "+0+"), run("c", "+?+"), run("d", "++")]
    result = judged(tmp_path, runs, ["+--", "+++", "+?-", ""])
    (score,) = [one for one in result.scores if one.kind == "labels"]
    found = score.subsets["s"]
    assert found.step.value == pytest.approx((2 + 2 + 1 + 0) / 10)
    assert found.first_error.value == pytest.approx(1 / 3)  # b; c's truth is open; d is not predicted
    assert found.lenient_first_error == pytest.approx(2 / 3)  # d has no error, so silence is right
    assert (found.missing_steps, found.missing_runs) == (3, 1)
    assert (result.unlabelled_steps, result.outcome_unknown, result.steps) == (1, 4, {"s": 11})
    assert score.monitoring.false_alarms.value == pytest.approx(2 / 4)


def test_macro_f1_is_that_of_scikit_learn_over_steps_that_are_not_neutral(tmp_path: Path):
    rng = np.random.default_rng(3)
    truth = ["".join(rng.choice(list("+0-?"), 9)) for _ in range(12)]
    guess = ["".join(rng.choice(list("+0-?"), 9)) for _ in range(12)]
    runs = [run(str(number), text) for number, text in enumerate(truth)]
    (score,) = [one for one in judged(tmp_path, runs, guess).scores if one.kind == "labels"]
    pairs = [pair for pair in zip("".join(truth), "".join(guess), strict=True) if pair[0] in "+-"]
    expected = f1_score(*zip(*pairs, strict=True), labels=["+", "-"], average="macro")
    assert score.subsets["s"].macro_f1.value == pytest.approx(expected)


def test_rules_leave_good_steps_unknown(tmp_path: Path):
    """What they say nothing of is good, in the runs that they have labelled."""
    runs = [run("a", "+-"), run("b", "0+"), run("c", "++")]
    score = judged(tmp_path, runs, ["?-", "??", ""], unknown="good").scores[-1]
    assert score.rule == "as labelled, unknown is good"
    assert score.subsets["s"].step.value == pytest.approx((2 + 1 + 0) / 6)
    assert score.subsets["s"].first_error.value == pytest.approx(2 / 3)
    assert score.subsets["s"].missing_runs == 1


def test_baselines_by_hand():
    runs = [
        run("a", "+--", problem=IN_HALF[0][0], outcome=False),
        run("b", "+-", problem=IN_HALF[1][0], outcome=True),
        run("c", "+", problem=IN_HALF[1][1], outcome=None),
    ]
    made = {one.system: one for one in baselines(truth_of(*runs))}
    expected = {
        "all good": "++++++",
        "last step wrong": "++-+--",
        "wrong from step k on": "+--+-+",
        "last step wrong iff the run failed": "++-+++",
    }
    for name, text in expected.items():
        np.testing.assert_array_equal(made[name].predicted, signs(text), err_msg=name)
    assert [one.system for one in made.values() if one.uses_outcome] == [
        "last step wrong iff the run failed",
        "wrong from step k on iff the run failed",
    ]


def test_numbers_are_fitted_on_the_other_half_of_the_own_subset():
    """Half 0 is all good and half 1 all wrong, so each is given what is best for the other."""
    good = [run(f"g{n}", "++", problem=IN_HALF[0][n]) for n in range(3)]
    wrong = [run(f"w{n}", "--", problem=IN_HALF[1][n]) for n in range(3)]
    other = [
        run("t0", "--", problem=IN_HALF[0][5], subset="t"),
        run("t1", "--", problem=IN_HALF[1][5], subset="t"),
    ]
    truth = truth_of(*good, *wrong, *other)
    options = [signs("+" * 16), signs("-" * 16)]
    fit = cross_fit(truth, options)
    assert fit is not None
    predicted, chosen = fit
    assert chosen.tolist() == [[1, 0], [1, 1]]
    np.testing.assert_array_equal(predicted, signs("------++++++----"))
    assert cross_fit(truth_of(*good), [signs("+" * 6)]) is None
    assert [one.rule for one in baselines(truth_of(*good))] == ["fixed"] * 3


def test_thresholds_of_scores(tmp_path: Path):
    runs = [run(f"r{n}", "+-", problem=IN_HALF[n % 2][n], outcome=False) for n in range(8)]
    runs += [run("other", "+", subset="t")]
    scores = [StepScores(trace_id=one.trace_id, scorer="s", scores=(0.9, 0.2)) for one in runs[:8]]
    write_records(tmp_path / "s.jsonl", scores)
    layout = agent_layout(runs)
    systems = open_systems({"s": str(tmp_path / "s.jsonl")}, [], tmp_path, layout=layout)
    result = evaluate_agent_steps(runs, systems, rules=[0.1, 0.5], draws=20)
    none, right = (one for one in result.scores if one.kind == "scores")
    assert (none.subsets["s"].step.value, right.subsets["s"].step.value) == (0.5, 1.0)
    assert right.subsets["s"].first_error.value == 1.0
    assert right.monitoring.lead_time.value == 0.0
    # of subset t it has no record, so neither that nor the whole is judged
    assert set(right.subsets) == {"s"}
    assert set(result.scores[0].subsets) == {"s", "t", "all"}
    with pytest.raises(LabelError, match="give threshold=NUMBER"):
        evaluate_agent_steps(runs, systems, draws=20)
    split = evaluate_agent_steps(runs[:8], open_again(tmp_path, runs[:8]), draws=20).scores[-1]
    assert split.subsets["s"].first_error.value == 1.0
    assert set(split.thresholds) == {"s, half 0", "s, half 1"}


def test_a_scorer_that_could_score_nothing_is_wrong_everywhere(tmp_path: Path):
    runs = [run("a", "+-", outcome=False), run("b", "+")]
    records = [
        StepScores(trace_id=one.trace_id, scorer="s", scores=[None] * len(one.signs), unscored_reason="long")
        for one in runs
    ]
    write_records(tmp_path / "s.jsonl", records)
    found = evaluate_agent_steps(runs, open_again(tmp_path, runs), rules=[0.5], draws=20).scores[-1]
    assert (found.subsets["s"].step.value, found.subsets["s"].first_error.value) == (0.0, 0.0)
    assert (found.subsets["s"].missing_runs, found.subsets["s"].lenient_first_error) == (2, 0.5)


def open_again(tmp_path: Path, runs: Sequence[AgentRun]) -> list:
    layout = agent_layout(runs)
    return open_systems({"s": str(tmp_path / "s.jsonl")}, [], tmp_path, layout=layout)


def test_runs_that_cannot_be_judged_are_named():
    with pytest.raises(LabelError, match="give at least one run"):
        evaluate_agent_steps([], [])


@pytest.fixture(scope="module")
def judgements() -> list[dict[str, Any]]:
    if not (DATA / "apb_human_vs_judges.jsonl.gz").exists():
        pytest.skip("the shared data set is not here")
    with gzip.open(DATA / "apb_human_vs_judges.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def written(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def published(judgements: list[dict[str, Any]], tmp_path_factory) -> Measured:
    people = [{**row, "judges": {}} for row in judgements]
    path = written(tmp_path_factory.mktemp("data") / "people.jsonl", people)
    hotpotqa = read_agent_processbench(DATA / "agentprocessbench_hotpotqa.jsonl.gz")
    return evaluate_agent_steps(agent_runs([*hotpotqa, *read_people(path)]), [], draws=20)


@pytest.mark.parametrize(
    ("subset", "good", "last"),
    [
        ("searchR1_hotpotqa", (67.1, 56.7), (79.8, 83.3)),
        ("bfcl_multi_turn_base", (74.0, 26.4), (74.9, 31.6)),
        ("gaia_dev", (37.6, 26.8), (47.6, 58.8)),
    ],
)
def test_baselines_of_the_published_runs(
    published: Measured, subset: str, good: tuple[float, float], last: tuple[float, float]
):
    """Counted by a script of a few lines from the files, independently of this package."""
    found = {one.system: one.subsets[subset] for one in published.scores if one.kind == "floor"}
    for name, expected in (("all good", good), ("last step wrong iff the run failed", last)):
        accuracy = found[name]
        assert (round(100 * accuracy.step.value, 1), round(100 * accuracy.first_error.value, 1)) == expected


def test_stored_judges_and_the_report(judgements: list[dict[str, Any]], tmp_path: Path):
    path = written(tmp_path / "judges.jsonl", [*judgements[:20], *judgements[-20:]])
    runs = agent_runs(read_people(path))
    layout = agent_layout(runs)
    files: dict[str, str] = {}
    for label in read_judges(path):
        file = tmp_path / f"{label.evidence.rater}.labels.jsonl"
        files[label.evidence.rater or ""] = str(file)
        with file.open("a") as stream:
            stream.write(label.model_dump_json() + "\n")
    systems = open_systems(files, [], tmp_path, layout=layout)
    result = evaluate_agent_steps(runs, systems, draws=20)
    judges = {one.system: one for one in result.scores if one.kind == "labels"}
    assert len(judges) == 20
    for name in ("GPT-5.2", "Llama-3.2-3B-Instruct"):
        own = [row["judges"][name]["step_labels"] for row in [*judgements[:20], *judgements[-20:]]]
        people = [row["human_step_labels"] for row in [*judgements[:20], *judgements[-20:]]]
        hits = sum(
            sign == said.get(at)
            for truth, said in zip(people, own, strict=True)
            for at, sign in truth.items()
        )
        found = judges[name].subsets["all"]
        assert found.step.value == pytest.approx(hits / sum(map(len, people)))
        assert found.missing_runs == sum(set(said.values()) == {None} for said in own)
    report = Report("r").section(agent_section(result, "AgentProcessBench")).write(tmp_path / "r.html")
    assert "baseline: last step wrong iff the run failed" in (tmp_path / "r.html").read_text()
    captions = [item.caption.split(":")[0] for item in report.printed if isinstance(item, Table)]
    assert captions == [
        "",
        "runs",
        "steps",
        "best floor",
        "systems",
        "systems, counts",
        "systems, usage",
        "scores",
        "scores, subsets",
        "scores, monitoring",
        "scores, first errors",
    ]
