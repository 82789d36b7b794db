"""Expert iteration: what is kept of a policy's own solutions, what is counted, and runs that are killed."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import zip_longest
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.worlds.digits.checkpoints import POLICY
from benchmarks.worlds.digits.world import Difficulty, ExactLabeller, generate_problems
from surefoot.answers import AnswerChecker, Grader
from surefoot.errors import ScoreError, TrainingError
from surefoot.io import Run
from surefoot.io.runs import Journal
from surefoot.models.kinds.derived import LabelScorer
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, StepScores, Trace
from surefoot.rl.config import RoundsConfig
from surefoot.rl.rollouts import Task
from surefoot.rl.rounds import ProblemData, RoundRow, iterate, select_solutions
from surefoot.rl.sample import Sample
from surefoot.segment import Line, segment_trace
from surefoot.training.config import SFTConfig

EASY = Difficulty(min_operations=6, max_operations=6)
PROBLEMS = generate_problems(4, seed=3, difficulty=EASY)
CHECKED = LabelScorer(ExactLabeller(after_error="wrong"), name="exact")


def solution(text: str, number: int = 0, **more: object) -> Trace:
    fields = {"problem_id": "p", "outcome": True, "finish_reason": "stop", "sample": number} | more
    return segment_trace(Trace(text=text, **fields), Line())


def judged(traces: list[Trace], *scores: tuple[float | None, ...]) -> list[Sample]:
    """Solutions with the scores of their steps, by default none."""
    rows = zip_longest(traces, scores)
    return [
        Sample(
            item=ProblemTrace(problem=Problem(text="p"), trace=trace),
            tokens=max(1, len(trace.steps)),
            ends=tuple(range(max(1, len(trace.steps)))),
            scores=row or (),
        )
        for trace, row in rows
    ]


def test_complete_right_answers_are_kept_in_the_order_drawn_and_all_else_is_counted() -> None:
    traces = [
        solution("a\nb\n", 0),
        solution("a\nwrong\n", 1, outcome=False),
        solution("a\nb", 2),
        solution("c\n", 3, outcome=None),
        solution("d\n", 4, finish_reason="length"),
        solution("", 5),
        solution("", 6, error="policy: down"),
        solution("e\n", 7),
        solution("f\n", 8),
    ]
    kept, dropped = select_solutions(judged(traces), most=2)
    assert [trace.sample for trace in kept] == [0, 7]
    assert dropped == {
        "wrong answers": 1,
        "duplicate solutions": 1,
        "solutions whose answer could not be judged": 1,
        "solutions truncated at max_tokens": 1,
        "empty samples": 1,
        "failed samples": 1,
        "good solutions beyond the limit": 1,
    }


def test_every_step_must_reach_the_threshold_and_the_best_worst_step_goes_first() -> None:
    traces = [solution(f"{n}\nx\n", n) for n in range(5)]
    # and none of the last
    samples = judged(traces, (0.6, 0.9), (0.9, 0.5), (0.4999, 1.0), (None, 1.0))
    kept, dropped = select_solutions(samples, most=5, threshold=0.5)
    assert [trace.sample for trace in kept] == [0, 1]
    assert dropped == {
        "correct answers with a step below the threshold": 1,
        "correct answers with an unscored step": 2,
    }
    kept, _ = select_solutions(judged(traces, (0.6, 0.9), (0.9, 0.7)), most=1, threshold=0.5)
    assert [trace.sample for trace in kept] == [1]
    with pytest.raises(ScoreError, match="'scores' has 1 values for 2 steps"):
        judged(traces, (0.6,))


OUTCOMES = st.tuples(st.sampled_from([True, False, None]), st.sampled_from("abc"), st.floats(0, 1))


@given(st.lists(OUTCOMES), st.integers(1, 4), st.floats(0, 1))
def test_what_is_kept_passes_and_with_what_is_dropped_makes_all(drawn, most, threshold) -> None:
    traces = [solution(text, n, outcome=outcome) for n, (outcome, text, _) in enumerate(drawn)]
    samples = judged(traces, *((score,) for *_, score in drawn))
    scores = {sample.trace.id: sample.scores for sample in samples}
    kept, dropped = select_solutions(samples, most=most, threshold=threshold)
    assert len(kept) + dropped.total() == len(traces)
    assert all(trace.outcome and scores[trace.id][0] >= threshold for trace in kept)
    assert len({trace.text for trace in kept}) == len(kept) <= most
    possible = {trace.text for trace in traces if trace.outcome and scores[trace.id][0] >= threshold}
    assert len(kept) == min(most, len(possible))


# Runs


CONFIG = RoundsConfig(
    rounds=2,
    samples=6,
    keep_solutions=2,
    max_tokens=72,
    training=SFTConfig(epochs=1, batch_size=2, learning_rate=1e-4, checkpoint_every=1),
)


def run(
    out: Path,
    config: RoundsConfig = CONFIG,
    progress=lambda *_: None,
    *,
    problems=PROBLEMS,
    scorer=None,
) -> list[RoundRow]:
    with (
        AnswerChecker("exact") as checker,
        Run.open(out, command="imitate", config=config.model_dump(mode="json")) as opened,
    ):
        task = Task(
            problems=problems,
            held_out=generate_problems(5, seed=4, difficulty=EASY, exclude=PROBLEMS),
            segmenter=Line(),
            grader=Grader(checker=checker, styles=("phrase",)),
            gold=ExactLabeller(),
            scorer=scorer,
        )
        return iterate(opened, POLICY, task, config, progress)


def collected(out: Path, number: int) -> list[ProblemData]:
    return list(Journal(out / "pieces" / f"collected-{number}.journal", ProblemData).read())


@pytest.fixture(scope="module")
def by_steps(tmp_path_factory) -> tuple[Path, list[RoundRow]]:
    out = tmp_path_factory.mktemp("by-steps")
    return out, run(out, CONFIG.model_copy(update={"threshold": 0.5}), scorer=CHECKED)


def wrong_steps(one: ProblemData) -> list[bool]:
    problem = next(problem for problem in PROBLEMS if problem.id == one.problem_id)
    items = [ProblemTrace(problem=problem, trace=shown.trace) for shown in one.demonstrations]
    rows = asyncio.run(ExactLabeller().label(items))
    return [any(label.value == -1 for label in row) for row in rows]


def test_only_solutions_that_pass_are_learned_and_the_rest_is_counted(by_steps) -> None:
    out, rows = by_steps
    for number in (1, 2):
        found = collected(out, number)
        assert [one.problem_id for one in found] == [problem.id for problem in PROBLEMS]
        assert not any(flag for one in found for flag in wrong_steps(one))
        assert all(shown.trace.outcome and shown.end for one in found for shown in one.demonstrations)
        assert all(len(one.traces) == 6 and len(one.demonstrations) <= 2 for one in found)
        row = rows[number]
        assert row.learned > 1
        assert row.learned == sum(len(one.demonstrations) for one in found)
        assert row.learned + sum(row.dropped.values()) == row.sampled == 24
        assert row.samples == row.evaluation.samples == 24 * number
    assert rows[0].evaluation.samples == 0
    assert rows[1].evaluation.problems == 5


@pytest.mark.slow
def test_by_the_answer_alone_lucky_solutions_are_learned_too(tmp_path) -> None:
    """On multiplications, which forget a wrong digit more often than not."""
    lucky = generate_problems(
        6, seed=8, difficulty=Difficulty(min_operations=6, max_operations=6, operations="+*")
    )
    config = CONFIG.model_copy(update={"rounds": 1, "samples": 16, "keep_solutions": 16, "temperature": 1.5})
    run(tmp_path, config, problems=lucky)
    shown = [(one, shown.trace) for one in collected(tmp_path, 1) for shown in one.demonstrations]
    by_id = {problem.id: problem for problem in lucky}
    items = [ProblemTrace(problem=by_id[one.problem_id], trace=trace) for one, trace in shown]
    labels = asyncio.run(ExactLabeller().label(items))
    assert Counter(any(label.value == -1 for label in row) for row in labels)[True] > 0


@pytest.mark.slow
def test_a_run_that_is_killed_anywhere_comes_to_the_same_weights(by_steps, tmp_path) -> None:
    whole, rows = by_steps

    class KilledError(Exception):
        pass

    places = [("round 1: sample", 1), ("round 1: train", 2), ("round 2: train", 1), ("round 2: evaluate", 0)]

    def kill(stage: str, done: int, _total: int) -> None:
        if places and (stage, done) == places[0]:
            places.pop(0)
            raise KilledError

    config = CONFIG.model_copy(update={"threshold": 0.5})
    for _ in range(4):
        with pytest.raises(KilledError):
            run(tmp_path, config, kill, scorer=CHECKED)
    assert run(tmp_path, config, scorer=CHECKED) == rows
    for name in ("round-1/model.safetensors", "round-2/model.safetensors", "curves.jsonl"):
        assert (tmp_path / name).read_bytes() == (whole / name).read_bytes()


def test_what_cannot_be_run_is_refused(tmp_path) -> None:
    with pytest.raises(TrainingError, match="one needs the other"):
        run(tmp_path / "a", scorer=CHECKED)
    with pytest.raises(TrainingError, match="one needs the other"):
        run(tmp_path / "b", CONFIG.model_copy(update={"threshold": 0.5}))
    with pytest.raises(TrainingError, match="2 problems have no 'answer', first q"):
        run(tmp_path / "c", problems=[Problem(id="q", text="x"), Problem(text="y"), *PROBLEMS])
    with pytest.raises(TrainingError, match="raise the temperature"):
        run(tmp_path / "d", CONFIG.model_copy(update={"temperature": 0.0, "samples": 2}))


def test_a_round_without_a_good_solution_says_why(tmp_path) -> None:
    class Strict:
        def score_traces(self, items):
            return [
                StepScores(trace_id=item.trace.id, scorer="strict", scores=(0.1,) * len(item.trace.steps))
                for item in items
            ]

    config = CONFIG.model_copy(update={"threshold": 0.5, "samples": 2})
    with pytest.raises(TrainingError, match=r"has nothing to learn: .*with a step below the threshold"):
        run(tmp_path, config, scorer=Strict())
