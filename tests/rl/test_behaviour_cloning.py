"""Behaviour cloning: what is learned of given traces, and runs that are killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.worlds.digits.world import (
    Difficulty,
    ExactLabeller,
    generate_problems,
    parse_problem,
    worked_solution,
)
from surefoot.answers import AnswerChecker, Grader
from surefoot.errors import TrainingError
from surefoot.io import Run
from surefoot.models.lora import Lora
from surefoot.records import Problem, Trace
from surefoot.rl.config import RoundsConfig
from surefoot.rl.rollouts import Task
from surefoot.rl.rounds import RoundRow, clone
from surefoot.segment import Line, segment_trace
from surefoot.training.config import SFTConfig
from surefoot.training.sft import Demonstration, demonstrate

PROBLEMS = generate_problems(12, seed=5, difficulty=Difficulty(min_operations=2, max_operations=4))
CONFIG = RoundsConfig(
    max_tokens=24, training=SFTConfig(epochs=1, batch_size=2, learning_rate=1e-2, checkpoint_every=1)
)


def trace_of(problem: Problem, text: str) -> Trace:
    trace = Trace(problem_id=problem.id, text=text, policy="hand", finish_reason="stop")
    return segment_trace(trace, Line())


def given_traces(count: int) -> list[Demonstration]:
    return [
        demonstrate(trace_of(problem, worked_solution(parse_problem(problem.text))))
        for problem in PROBLEMS[:count]
    ]


def run(base: Path, out: Path, shown: list[Demonstration], progress=lambda *_: None) -> list[RoundRow]:
    held_out = generate_problems(4, seed=9, difficulty=Difficulty(min_operations=2, max_operations=3))
    with (
        AnswerChecker("exact") as checker,
        Run.open(out, command="imitate", config=CONFIG.model_dump(mode="json")) as opened,
    ):
        task = Task(
            problems=PROBLEMS,
            held_out=held_out,
            segmenter=Line(),
            grader=Grader(checker=checker, styles=("phrase",)),
            gold=ExactLabeller(),
        )
        return clone(opened, base, task, CONFIG, progress, shown)


def test_a_run_clones_every_step_and_end_of_the_traces(lab_base, tmp_path) -> None:
    shown = given_traces(5)
    rows = run(lab_base, tmp_path, shown)
    assert [row.round for row in rows] == [0, 1]
    assert [row.sampled for row in rows] == [0, 0]
    assert rows[1].learned == 5
    assert rows[1].decisions == sum(len(one.trace.steps) + 1 for one in shown)
    assert all(row.evaluation is not None and row.evaluation.problems == 4 for row in rows)
    curves = [json.loads(line) for line in (tmp_path / "curves.jsonl").read_text().splitlines()]
    assert [row["accuracy_value"] for row in curves] == [
        row.evaluation.accuracy.value for row in rows if row.evaluation
    ]
    assert run(lab_base, tmp_path, shown) == rows


@pytest.mark.slow
def test_a_run_that_is_killed_anywhere_comes_to_the_same_weights(lab_base, tmp_path) -> None:
    shown = given_traces(8)
    whole = run(lab_base, tmp_path / "whole", shown)

    class KilledError(Exception):
        pass

    places = [("round 1: train", 1), ("round 1: train", 3), ("round 1: evaluate", 1)]

    def kill(stage: str, done: int, _total: int) -> None:
        if places and (stage, done) == places[0]:
            places.pop(0)
            raise KilledError

    for _ in range(3):
        with pytest.raises(KilledError):
            run(lab_base, tmp_path / "killed", shown, progress=kill)
    assert run(lab_base, tmp_path / "killed", shown) == whole
    for name in ("round-1/model.safetensors", "curves.jsonl"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_what_cannot_be_run_is_refused(lab_base, tmp_path) -> None:
    with pytest.raises(TrainingError, match="nothing to imitate"):
        run(lab_base, tmp_path, [])
    with pytest.raises(ValueError, match="adapter on an adapter"):
        RoundsConfig(start="last", training=SFTConfig(lora=Lora(rank=2)))
    with AnswerChecker("exact") as checker:
        grader = Grader(checker=checker, styles=("phrase",))
        with pytest.raises(TrainingError, match="12 problems are both held out and trained on"):
            Task(problems=PROBLEMS, held_out=PROBLEMS, segmenter=Line(), grader=grader)
        with pytest.raises(TrainingError, match="'problems' is empty"):
            Task(problems=(), segmenter=Line(), grader=grader)
