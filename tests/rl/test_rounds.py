"""Rounds that get worse: which policy is the result. The collector is rigged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.worlds.digits.checkpoints import POLICY
from benchmarks.worlds.digits.world import Difficulty, generate_problems, parse_problem, worked_solution
from surefoot.answers import AnswerChecker, Grader
from surefoot.io import Run
from surefoot.io.runs import Journal
from surefoot.records import Problem, Trace
from surefoot.rl.config import RoundsConfig
from surefoot.rl.log import EvaluationRow
from surefoot.rl.rollouts import Task
from surefoot.rl.rounds import ProblemData, RoundRow, Rounds, best_round
from surefoot.segment import Line, segment_trace
from surefoot.stats.intervals import Interval
from surefoot.training.config import SFTConfig
from surefoot.training.sft import demonstrate

EASY = Difficulty(min_operations=4, max_operations=4)
PROBLEMS = generate_problems(16, seed=3, difficulty=EASY)
CONFIG = RoundsConfig(
    rounds=3,
    samples=1,
    temperature=0.0,
    max_tokens=72,
    training=SFTConfig(epochs=3, batch_size=2, learning_rate=2e-4, warmup=0.0),
)


class Worsening(Rounds):
    """Worked solutions in the first round, and from then on the advice to answer 0 at once."""

    async def collect(self, policy, problems: Sequence[Problem], seed: int):
        def learned(problem: Problem) -> Trace:
            text = worked_solution(parse_problem(problem.text)) if seed == 1_000_003 else "The answer is 0."
            return segment_trace(Trace(problem_id=problem.id, text=text, finish_reason="stop"), Line())

        return [
            ProblemData(
                problem_id=problem.id,
                traces=(learned(problem),),
                demonstrations=(demonstrate(learned(problem)),),
            )
            for problem in problems
        ]


def run(out: Path, policy: Path, *, held_out: int = 16, **changes) -> list[RoundRow]:
    config = CONFIG.model_copy(update=changes)
    with (
        AnswerChecker("exact") as checker,
        Run.open(out, command="rounds", config=config.model_dump(mode="json")) as opened,
    ):
        task = Task(
            problems=PROBLEMS,
            held_out=generate_problems(held_out, seed=4, difficulty=EASY, exclude=PROBLEMS),
            segmenter=Line(),
            grader=Grader(checker=checker, styles=("phrase",)),
        )
        return Worsening(opened, policy, task, config, lambda *_: None).run_all()


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_the_best_round_is_the_result(tmp_path) -> None:
    rows = run(tmp_path, POLICY, rounds=2)
    accuracies = [row.evaluation.accuracy.value for row in rows]
    assert accuracies[2] < accuracies[1] - 0.3
    assert (len(rows), best_round(rows).round) == (3, 1)
    assert weights(tmp_path / "policy") == weights(tmp_path / "round-1") != weights(tmp_path / "round-2")
    assert run(tmp_path, POLICY, rounds=2) == rows, "a finished run says the same"


def test_without_held_out_problems_the_last_round_is_the_result(lab_base, tmp_path) -> None:
    rows = run(tmp_path, lab_base, held_out=0, rounds=2)
    assert best_round(rows).round == 2
    assert weights(tmp_path / "policy") == weights(tmp_path / "round-2")


def evaluation(number: int, accuracy: float, half: float = 0.05) -> EvaluationRow:
    interval = Interval(value=accuracy, low=accuracy - half, high=accuracy + half)
    return EvaluationRow(update=number, samples=0, accuracy=interval, problems=100)


def evaluations(*accuracies: float) -> list[EvaluationRow]:
    return [evaluation(number, accuracy) for number, accuracy in enumerate(accuracies)]


def test_rounds_take_their_problems_in_turn(lab_base, tmp_path) -> None:
    run(tmp_path, lab_base, held_out=0, rounds=2, problems=9, start="last")
    assert (tmp_path / "policy" / "model.safetensors").exists()
    taken = [
        [
            one.problem_id
            for one in Journal(tmp_path / "pieces" / f"collected-{n}.journal", ProblemData).read()
        ]
        for n in (1, 2)
    ]
    assert [len(set(part)) for part in taken] == [9, 9]
    assert len({*taken[0], *taken[1]}) == 16


def test_the_first_of_equally_good_rounds_is_the_best_and_the_start_is_none_of_them() -> None:
    rows = [RoundRow(round=n, evaluation=one) for n, one in enumerate(evaluations(0.9, 0.5, 0.7, 0.7))]
    assert best_round(rows).round == 2
    assert best_round(rows[:1]).round == 0
