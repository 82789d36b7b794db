"""``surefoot evaluate --as processbench`` and ``prmbench`` on files, with a tiny random model."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from command_line import good, refused

from benchmarks.worlds.digits.world import ExactLabeller
from surefoot.formats import read_processbench, write_processbench
from surefoot.io import write_records
from surefoot.io.runs import Journal
from surefoot.protocols import LabelledTrace
from surefoot.records import StepLabel, StepScores

PRMBENCH_CLASSES = (
    *("redundency", "circular", "counterfactual", "step_contradiction", "domain_inconsistency"),
    *("confidence", "missing_condition", "deception", "multi_solutions"),
)
FEW = "--draws=20"


@pytest.fixture(scope="module")
def prm(tmp_path_factory, lab_base) -> Path:
    import torch

    from surefoot.models.card import CheckpointCard
    from surefoot.models.kinds.classifier import RewardModel

    model = RewardModel.initialise(lab_base, CheckpointCard(kind="prm", label_source="test", base="tiny"))
    torch.manual_seed(1)
    torch.nn.init.normal_(model.head.weight)
    folder = tmp_path_factory.mktemp("models") / "prm"
    model.save(folder)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory, lab_items) -> Path:
    """Two ProcessBench files of lab solutions, half of them with an error, and a PRMBench file."""
    folder = tmp_path_factory.mktemp("data")
    labels = asyncio.run(ExactLabeller(after_error="unlabelled").label(lab_items))
    items = [
        LabelledTrace(problem=item.problem, trace=item.trace, labels=tuple(found))
        for item, found in zip(lab_items, labels, strict=True)
    ]
    write_processbench(items[:6], folder / "gsm8k.json", neutral="good")
    write_processbench(items[6:], folder / "math.jsonl", neutral="good")
    rows = [
        {
            "original_question": item.problem.text,
            "modified_question": item.problem.text,
            "original_process": ["a", "b"],
            "modified_process": ["a", "b"],
            "error_steps": [] if kind == "multi_solutions" else [2],
            "idx": f"p{number}",
            "classification": kind,
        }
        for number, item in enumerate(lab_items[:4])
        for kind in PRMBENCH_CLASSES
    ]
    (folder / "prmbench.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def traces(data: Path):
    return [item.trace for name in ("gsm8k.json", "math.jsonl") for item in read_processbench(data / name)]


def test_processbench_side_by_side_and_again_without_scoring(data, prm, tmp_path):
    found = [item for name in ("gsm8k.json", "math.jsonl") for item in read_processbench(data / name)]
    write_records(tmp_path / "truth.jsonl", [label for item in found for label in item.labels])
    command = (
        *("evaluate", "--as=processbench", f"mine={prm}", f"judge={tmp_path / 'truth.jsonl'}"),
        *("--data", data / "gsm8k.json", "--data", data / "math.jsonl", "--out", tmp_path / "out", FEW),
    )
    ended = good(*command, "--tables")
    assert "12 traces" in ended.out
    assert "optimistic" in ended.out
    result = json.loads((tmp_path / "out/processbench.json").read_text())
    mine = {score["rule"]: score for score in result["scores"] if score["system"] == "mine"}
    [judge] = [score for score in result["scores"] if score["system"] == "judge"]
    assert set(mine) == {"split", "gsm8k", "0.5"}
    assert judge["average_f1"] == {
        "value": 1.0,
        "low": 1.0,
        "high": 1.0,
        "undefined": judge["average_f1"]["undefined"],
    }
    assert judge["subsets"]["gsm8k"]["unparsed"] == 0
    assert result["inputs"]["data"] == [str(data / "gsm8k.json"), str(data / "math.jsonl")]
    assert (tmp_path / "out/processbench.html").read_text().startswith("<!DOCTYPE html>")
    stored = list(tmp_path.glob("out/scores/mine/pieces/scores.journal"))
    assert stored
    kept = [path.stat().st_mtime_ns for path in stored]
    good(*command, "--force")
    assert kept == [path.stat().st_mtime_ns for path in stored]
    assert json.loads((tmp_path / "out/processbench.json").read_text()) == result
    # a killed run: what is missing is scored, and the result is the same
    stored[0].unlink()
    good(*command, "--force")
    assert json.loads((tmp_path / "out/processbench.json").read_text()) == result


def test_kept_scores_of_other_traces_are_refused(data, prm, tmp_path):
    good(
        "evaluate",
        "--as=processbench:threshold=0.5",
        prm,
        "--data",
        data / "gsm8k.json",
        "--out",
        tmp_path,
        FEW,
    )
    said = refused(
        "evaluate",
        "--as=processbench:threshold=0.5",
        prm,
        "--data",
        data / "math.jsonl",
        "--out",
        tmp_path,
        FEW,
        "--force",
    )
    assert "holds another run" in said
    assert "items" in said


def test_stored_scores_need_no_model_and_partial_files_leave_traces_out(data, tmp_path):
    records = [
        StepScores(trace_id=trace.id, scorer="x", scores=(0.9,) * len(trace.steps))
        for trace in traces(data)[:9]
    ]
    write_records(tmp_path / "s.jsonl", records)
    command = (
        *("evaluate", tmp_path / "s.jsonl", "--data", data / "gsm8k.json"),
        *("--data", data / "math.jsonl", "--out", tmp_path / "out", FEW),
    )
    measure = "--as=processbench:threshold=0.5"
    assert "9 traces" in good(*command, measure, "--tables").out
    assert "12 traces" in good(*command, f"{measure},missing=wrong", "--tables", "--force").out
    result = json.loads((tmp_path / "out/processbench.json").read_text())
    assert sum(part["unparsed"] for part in result["scores"][0]["subsets"].values()) == 3


def test_a_neutral_verdict_is_what_the_option_says(data, tmp_path):
    labels = [
        StepLabel(trace_id=trace.id, step=step, kind="correctness", value=0.0, source="judge")
        for trace in traces(data)
        for step in range(len(trace.steps))
    ]
    write_records(tmp_path / "j.jsonl", labels)
    command = (
        *("evaluate", tmp_path / "j.jsonl", "--data", data / "gsm8k.json"),
        *("--out", tmp_path / "out", FEW),
    )
    expected = {"good": (1.0, 0), "bad": (0.0, 0), "drop": (0.0, 6)}
    for neutral, (accuracy, unparsed) in expected.items():
        good(*command, f"--as=processbench:neutral={neutral}", "--force")
        part = json.loads((tmp_path / "out/processbench.json").read_text())["scores"][0]["subsets"]["gsm8k"]
        assert (part["acc_correct"]["value"], part["unparsed"]) == (accuracy, unparsed)


def test_prmbench(data, prm, tmp_path):
    words = ("--data", data / "prmbench.jsonl", "--out", tmp_path, FEW, "--tables")
    ended = good("evaluate", "--as=prmbench", f"mine={prm}", *words)
    assert "36 traces; 0 left out" in ended.out
    result = json.loads((tmp_path / "prmbench.json").read_text())
    assert [score["rule"] for score in result["scores"]] == ["0.5", "split"]
    assert result["classes"] == dict.fromkeys(PRMBENCH_CLASSES, 4)
    records = Journal(tmp_path / "scores/mine/pieces/scores.journal", StepScores).read()
    write_records(tmp_path / "stored.jsonl", records)
    stored, words = f"mine={tmp_path / 'stored.jsonl'}", ("--data", data / "prmbench.jsonl", FEW)
    good("evaluate", "--as=prmbench", stored, *words, "--out", tmp_path / "again")
    again = json.loads((tmp_path / "again/prmbench.json").read_text())
    assert again["scores"][0]["flags"]["groups"] == result["scores"][0]["flags"]["groups"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("threshold=olympiad", "threshold 'olympiad': give a number or one of split, gsm8k"),
        ("missing=maybe", "'processbench:missing=maybe': missing is 'maybe'; choose leave-out or wrong"),
        ("neutral=so-so", "'processbench:neutral=so-so': neutral is 'so-so'; choose good, bad or drop"),
    ],
)
def test_wrong_options_are_one_sentence(data, tmp_path, words, said):
    base = ("evaluate", "x=nowhere", "--data", data / "gsm8k.json", "--out", tmp_path)
    assert refused(*base, f"--as=processbench:{words}").startswith(said)


def test_the_lab_has_no_labels_before_label_makes_them(data, tmp_path):
    words = (
        "evaluate",
        data / "gsm8k.json",
        "--as=labels",
        "--traces",
        data / "gsm8k.json",
        "--out",
        tmp_path,
    )
    assert "verify:rules=lab` makes the lab's labels" in refused(*words, "--labels=lab")
