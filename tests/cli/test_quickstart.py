"""The quickstart: ordinary commands, which can be copied, interrupted and run again."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import click
import pytest
from command_line import good, refused

from surefoot import cli
from surefoot.cli import app
from surefoot.io import read_records
from surefoot.lab import POLICY, generate_problems
from surefoot.records import Problem, Trace

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (POLICY / "config.json").exists(),
        reason="the lab's language models are not in this tree (benchmarks/common/lab_models.py makes them)",
    ),
]

QUICKSTART = ("quickstart", "--out", "run", "--train-problems", 6, "--test-problems", 6, "--samples", 4)
REAL = Path(cli.__file__).with_name("real")
MADE = {
    *("train-traces.jsonl", "train-labels.jsonl", "test-traces.jsonl", "scores.jsonl", "lab-scores.jsonl"),
    *("equations.jsonl", "truth.jsonl", "errors/runs.html", "chosen.jsonl"),
}


@pytest.fixture(scope="module", autouse=True)
def same_times():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run, and what it printed."""
    folder = tmp_path_factory.mktemp("quickstart")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return folder, good(*QUICKSTART)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a run but what says when and where it was made."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "manifest.json" not in path.name and path.name not in ("timings.json", ".lock")
    }


def made_here(_: str, names: list[str]) -> set[str]:
    """What is not among the shipped files."""
    return set(names) - {path.name for path in REAL.iterdir()}


def commands(folder: Path) -> list[list[str]]:
    lines = (folder / "run" / "commands.sh").read_text().splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("surefoot ")]


def test_the_last_headline_is_what_a_model_gains_over_one_sample_and_a_vote(finished):
    folder, ended = finished
    screen = json.loads((folder / "run" / "best-of-n.json").read_text())["first_screen"]
    last = " ".join(ended.out.rpartition("run/audit.html")[2].split())
    assert last.startswith(screen["sentence"])
    assert "(one sample) to " in screen["sentence"] or "keeps" in screen["sentence"]
    names = {one["name"] for one in screen["rivals"]}
    assert {"one sample", "majority voting", "fewest steps", "prm", "lab"} <= names
    assert "run/best-of-n.html" in ended.out
    assert "not tested:" not in ended.err
    assert contents(folder / "run").keys() >= MADE | {"audit.html", "prm/model.safetensors"}


def test_before_training_it_shows_what_a_published_model_and_rules_find_miss_and_alarm(finished):
    folder, ended = finished
    preview = ended.out.partition("run/real/runs.html")
    solutions, _, runs = preview[0].partition("run/real/processbench.html")
    rules = " ".join(runs[runs.index("rules finds") :].split())
    assert solutions.startswith("Qwen2.5-Math-PRM-7B finds 32 of 46 first errors")
    for title in ("It caught this (gsm8k-", "It missed this (gsm8k-", "A false alarm (gsm8k-"):
        assert runs.count(title) == 1
    assert "rules finds 2 of 5 first errors (40%) and raises no false alarm on 5 correct" in rules
    assert "It caught this (searchR1_hotpotqa:" in preview[2]
    assert "A false alarm (searchR1" not in ended.out
    examples = json.loads((folder / "run" / "real" / "processbench.json").read_text())["examples"]
    rows = [json.loads(line) for line in (REAL / "solutions.jsonl").read_text("utf-8").splitlines()]
    labels = {row["id"]: row["label"] for row in rows}
    for example in examples:
        wrong = [step["number"] - 1 for step in example["steps"] if step["wrong"]]
        rejected = [step["number"] - 1 for step in example["steps"] if step["rejected"]]
        assert wrong == ([labels[example["trace_id"]]] if labels[example["trace_id"]] >= 0 else [])
        assert (wrong == rejected) == example["caught"]
    assert "surefoot inspect FILE" in ended.err.rpartition("surefoot evaluate prm=")[2]


def test_the_printed_commands_make_the_same_files(finished, tmp_path, monkeypatch):
    folder, ended = finished
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    for name in ("train-problems.jsonl", "test-problems.jsonl"):
        (tmp_path / "run" / name).write_bytes((folder / "run" / name).read_bytes())
    shutil.copytree(folder / "run" / "real", tmp_path / "run" / "real", ignore=made_here)
    assert len(commands(folder)) == 16
    for words in commands(folder):
        assert f"surefoot {shlex.join(words)}" in ended.err
        good(*words)
    expected = contents(folder / "run")
    del expected["commands.sh"]
    assert contents(tmp_path / "run") == expected


def test_test_problems_are_in_no_training_set(finished):
    folder, _ = finished
    train, test = (
        {problem.text for problem in read_records(folder / "run" / f"{name}-problems.jsonl", Problem)}
        for name in ("train", "test")
    )
    assert (len(train), len(test)) == (6, 6)
    assert not train & test
    assert test == {problem.text for problem in generate_problems(6, seed=4_000_000)}
    assert len(list(read_records(folder / "run" / "test-traces.jsonl", Trace))) == 24


def test_a_finished_run_is_not_done_again(finished, monkeypatch):
    folder, _ = finished
    monkeypatch.chdir(folder)
    before = contents(folder / "run")
    assert good(*QUICKSTART).err.count("done already") == 16
    assert contents(folder / "run") == before
    assert "run/commands.sh has other commands" in refused(*QUICKSTART, "--seed", 1)
    (folder / "mine").mkdir(exist_ok=True)
    (folder / "mine" / "train-traces.jsonl").write_text("mine")
    assert "mine is a directory with other files in it" in refused(*QUICKSTART, "--out", "mine")
    assert (folder / "mine" / "train-traces.jsonl").read_text() == "mine"


def test_a_run_interrupted_before_each_command_gives_the_same_files(finished, tmp_path, monkeypatch):
    folder, _ = finished
    monkeypatch.chdir(tmp_path)
    started = []

    def main(words, **settings):
        started.append(words)
        if len(started) > 1:
            raise KeyboardInterrupt
        original(words, **settings)

    original = app.main
    record, record_lost = tmp_path / "run" / "scores.jsonl.manifest.json", False
    while not (tmp_path / "run" / "best-of-n.json").exists():
        started.clear()
        with monkeypatch.context() as patch:
            patch.setattr("surefoot.cli.quickstart.app.main", main)
            try:
                original(list(map(str, QUICKSTART)), standalone_mode=False)
            except click.Abort:
                if record.exists() and not record_lost:
                    record.unlink()  # as if it had been killed after its file was written
                    record_lost = True
    assert contents(tmp_path / "run") == contents(folder / "run")
