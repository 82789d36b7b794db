"""``surefoot imitate``, of an expert's traces and of own solutions: from files to policies."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from command_line import good, refused

from benchmarks.worlds.digits import POLICY
from benchmarks.worlds.digits.world import Difficulty, ExactLabeller, generate_problems
from surefoot.io import read_records, write_records
from surefoot.records import Trace

READING = ("--extract", "phrase", "--equality", "exact", "--max-tokens", 72)
VERIFIER = "benchmarks.worlds.digits:DigitVerifier"


@pytest.fixture(autouse=True, scope="module")
def same_times():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        yield


@pytest.fixture(scope="module")
def files(tmp_path_factory, lab_items) -> Path:
    folder = tmp_path_factory.mktemp("imitate")
    write_records(folder / "p.jsonl", [item.problem for item in lab_items])
    write_records(folder / "t.jsonl", [item.trace for item in lab_items])
    exact = asyncio.run(ExactLabeller().label(lab_items))
    write_records(folder / "l.jsonl", [label for row in exact for label in row])
    known = [item.problem for item in lab_items]
    held_out = generate_problems(
        4, seed=9, difficulty=Difficulty(min_operations=2, max_operations=3), exclude=known
    )
    write_records(folder / "test.jsonl", held_out)
    return folder


def imitate(files: Path, lab_base: Path, out: Path, *more: object):
    words = (
        "imitate",
        files / "p.jsonl",
        "--policy",
        lab_base,
        "--out",
        out,
        "--batch-size",
        4,
    )
    return good(*words, *READING, *more)


def curves(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "curves.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_traces_are_cloned_into_a_policy_that_samples(files, lab_base, lab_items, tmp_path) -> None:
    out = tmp_path / "run"
    more = ("--traces", files / "t.jsonl", "--epochs", 40, "--learning-rate", 5e-3)
    ended = imitate(files, lab_base, out, *more)
    assert "6 traces left out: wrong outcome" in ended.err
    right = [item for item in lab_items if item.trace.outcome]
    assert curves(out)[1]["decisions"] == sum(len(item.trace.steps) + 1 for item in right)
    assert f"policy: {out / 'policy'}, of round 1, the last: give --held-out" in ended.err
    samples = tmp_path / "s.jsonl"
    words = ("--policy", out / "policy", "--n", 1, "--temperature", 0, "--out", samples)
    good("sample", files / "p.jsonl", *words, *READING)
    written = {trace.problem_id: trace.text for trace in read_records(samples, Trace)}
    assert sum(written[item.problem.id] == item.trace.text for item in right) >= 5
    again = imitate(files, lab_base, out, *more)
    assert again.err.splitlines()[-2:] == ended.err.splitlines()[-2:]
    assert "learning_rate" in refused(
        *("imitate", files / "p.jsonl", "--policy", lab_base, "--out", out),
        *("--batch-size", 4, "--traces", files / "t.jsonl", "--epochs", 40, *READING),
    )


def test_of_labelled_traces_the_good_steps_alone_are_cloned(files, lab_base, lab_items, tmp_path) -> None:
    imitate(files, lab_base, tmp_path, "--traces", files / "t.jsonl", "--labels", files / "l.jsonl")
    labels = asyncio.run(ExactLabeller().label(lab_items))
    steps = sum(label.value == 1 for row in labels for label in row)
    ends = sum(row[-1].value == 1 for row in labels)
    assert curves(tmp_path)[1]["decisions"] == steps + ends


@pytest.mark.slow
def test_the_round_is_evaluated_on_held_out_problems(files, lab_base, tmp_path) -> None:
    held_out = ("--held-out", files / "test.jsonl", "--gold", VERIFIER)
    ended = imitate(files, lab_base, tmp_path, "--traces", files / "t.jsonl", *held_out)
    assert [row["round"] for row in curves(tmp_path)] == [0, 1]
    assert ended.err.count("accuracy") == 2
    assert "the best on 4 held-out problems; they chose it, so measure it on others" in ended.err


@pytest.mark.slow
def test_a_policy_learns_from_its_own_good_solutions(tmp_path) -> None:
    problems = generate_problems(6, seed=3, difficulty=Difficulty(min_operations=6, max_operations=6))
    write_records(tmp_path / "p.jsonl", problems)
    out = tmp_path / "run"
    words = (
        "imitate",
        tmp_path / "p.jsonl",
        "--policy",
        POLICY,
        "--rounds",
        1,
        "--samples",
        4,
        "--out",
        out,
    )
    ended = good(*words, "--verifier", VERIFIER, *READING)
    [_, row] = curves(out)
    assert row["learned"] + sum(row["dropped"].values()) == row["sampled"] == 24
    assert "left out:" in ended.err
    assert "hidden reasoning: not graded" in ended.err
    reads = json.loads((out / "done" / "channels.json").read_text())["data"]["reads"]
    assert reads["outcome"] == ["answer"]
    assert (out / "round-1" / "model.safetensors").is_file()
    error = refused(*words[:-1], tmp_path / "none", "--verifier", "equations", *READING)
    assert "nothing to learn" in error


def test_commands_that_make_no_sense_are_refused(files, tmp_path) -> None:
    base = (files / "p.jsonl", "--policy", POLICY, "--out", tmp_path / "x")
    assert "give one of them" in refused("imitate", *base, "--prm", "x", "--verifier", VERIFIER)
    assert "raise the temperature" in refused("imitate", *base, "--temperature", 0)
    assert "--threshold is of --labels" in refused("imitate", *base, "--threshold", 0.9)
    held = ("--held-out", files / "p.jsonl", "--traces", files / "t.jsonl")
    assert "--labels are of an expert's --traces" in refused("imitate", *base, "--labels", files / "l.jsonl")
    for own in (("--prm", "x"), ("--verifier", VERIFIER), ("--round-problems", 4), ("--samples", 3)):
        assert f"{own[0]} is for the policy's own solutions" in refused("imitate", *base, *held[2:], *own)
    assert "both held out and trained on" in refused("imitate", *base, *held)
