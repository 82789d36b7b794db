"""``surefoot train``: losses, held-out problems, adapters and pairs from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from surefoot.cli import app
from surefoot.cli.runs import is_held_out, labelled
from surefoot.cli.train import TrainPRM
from surefoot.errors import RunError
from surefoot.models.loading import load_prm
from surefoot.records import Problem, Record, StepLabel, StepPair, Trace
from surefoot.training.config import TrainingConfig


def write(path: Path, rows: list[Record]) -> str:
    path.write_text("".join(row.model_dump_json() + "\n" for row in rows))
    return str(path)


@pytest.fixture
def files(lab_items, tmp_path) -> dict[str, str]:
    labels = [
        StepLabel(
            trace_id=item.trace.id,
            step=step,
            kind="correctness",
            value=1.0 if item.trace.outcome else -float(step > 0),
            source="test",
        )
        for item in lab_items
        for step in range(len(item.trace.steps))
    ]
    pairs = [
        StepPair(
            problem_id=item.problem.id,
            prefix="",
            better=item.trace.step_text(0),
            worse=item.trace.step_text(1),
            better_value=0.9,
            worse_value=0.1,
            source="test",
        )
        for item in lab_items
    ]
    return {
        "problems": write(tmp_path / "problems.jsonl", [item.problem for item in lab_items]),
        "traces": write(tmp_path / "traces.jsonl", [item.trace for item in lab_items]),
        "labels": write(tmp_path / "labels.jsonl", labels),
        "pairs": write(tmp_path / "pairs.jsonl", pairs),
    }


def call(base: Path, files: dict[str, str], *given: str, kind: str = "prm", names: str) -> None:
    paths = []
    for name in names.split():
        paths += [files[name]] if name == "traces" else [f"--{name}", files[name]]
    short = ["--base", str(base), "--epochs", "2", "--head-epochs", "0"]
    CliRunner().invoke(app, ["train", kind, *paths, *short, *given], catch_exceptions=False)


def test_classes_with_a_marker_an_adapter_and_held_out_problems(lab_base, lab_items, files, tmp_path):
    pytest.importorskip("peft")
    out = tmp_path / "prm"
    options = "--loss classes --neutral bad --marker <extra_0> --lora 2 --lora-target q_proj --validation 0.4"
    more = "--patience 5 --evaluate-every 1 --set gradient_accumulation_steps=2 --batch-size 4"
    call(lab_base, files, *options.split(), *more.split(), "--out", str(out), names="problems traces labels")
    card = json.loads((out / "surefoot.json").read_text())
    assert (card["head"], card["neutral"], card["encoding"]["marker"]) == ("classes", "bad", "<extra_0>")
    assert json.loads((out / "adapter_config.json").read_text())["r"] == 2
    log = json.loads((out / "training.json").read_text())
    assert [one["update"] for one in log["validation"]] == list(range(1, len(log["losses"]) + 1))
    assert all(None not in record.scores for record in load_prm(out).score_traces(lab_items))
    trust = load_prm(out).card.trust
    assert trust is not None
    assert trust.problems == len({p.id for p in held_out_of(lab_items, 0.4)})
    words = [
        "score",
        "-m",
        str(out),
        "--problem",
        "Start with 7. Add 3.",
        "--solution",
        "7 + 3 = 0\nAnswer: 0",
    ]
    ended = CliRunner().invoke(app, words, catch_exceptions=False)
    assert f"first score below {trust.threshold:.6g}" in ended.output
    assert (
        f"threshold {trust.threshold:.3g} from {trust.problems} held-out problems"
        in load_prm(out).card.summary
    )


def held_out_of(items, share: float) -> list[Problem]:
    return [item.problem for item in items if is_held_out(item.problem.id, share)]


def test_a_tenth_of_many_problems_is_held_out_without_being_asked_for(tmp_path):
    def split(count: int) -> tuple[int, int | None]:
        problems = [Problem(text=f"p{number}") for number in range(count)]
        traces = [Trace(problem_id=problem.id, text="x") for problem in problems]
        command = TrainPRM(
            traces="t", labels="l", problems="p", base="lab", out=tmp_path, training=TrainingConfig()
        )
        training, held_out = command.split(labelled(problems, traces, []))
        return len(training), held_out and len(held_out)

    assert split(199) == (199, None)
    training, held_out = split(400)
    assert training + held_out == 400
    assert 20 <= held_out <= 60


def test_pairs(lab_base, files, tmp_path):
    call(lab_base, files, "--loss", "pairwise", "--out", str(tmp_path / "prm"), names="problems pairs")
    log = json.loads((tmp_path / "prm" / "training.json").read_text())
    assert log["losses"][0] == pytest.approx(0.693147, rel=1e-4)
    assert log["config"]["loss"] == "pairwise"


def test_an_orm_by_tokens(lab_base, files, tmp_path):
    given = ("--microbatch-tokens", "200", "--validation", "0.4", "--out", str(tmp_path / "orm"))
    call(lab_base, files, *given, kind="orm", names="problems traces")
    assert json.loads((tmp_path / "orm" / "training.json").read_text())["validation"]


@pytest.mark.parametrize(
    ("names", "given", "message"),
    [
        ("problems pairs", "", "go together"),
        ("problems traces labels", "--loss pairwise", "go together"),
        ("problems traces", "", "--labels"),
        ("problems traces labels", "--loss hinge", "--loss"),
        ("problems traces labels", "--lora 2 --freeze-trunk", "choose one"),
        ("problems traces labels", "--validation 0.0001", "nothing on one side"),
    ],
)
def test_what_does_not_go_together_is_refused(lab_base, files, tmp_path, names, given, message):
    with pytest.raises(RunError, match=message):
        call(lab_base, files, *given.split(), "--out", str(tmp_path / "prm"), names=names)
