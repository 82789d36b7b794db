"""DAgger: what an expert is asked, what becomes of its replies, and runs that are killed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from surefoot.answers import AnswerChecker, Grader
from surefoot.errors import TrainingError
from surefoot.io import Run
from surefoot.io.runs import Journal
from surefoot.lab.solver import NoisySolver
from surefoot.lab.world import Difficulty, ExactLabeller, generate_problems, parse_problem, worked_solution
from surefoot.models.lora import Lora
from surefoot.policies.episodes import sample_traces
from surefoot.policies.scripted import ScriptedPolicy
from surefoot.protocols import ProblemTrace, SampleRequest, Sampling
from surefoot.records import Problem, Trace
from surefoot.rl.config import ImitationConfig, RoundsConfig
from surefoot.rl.imitation import Expert, imitate, relabel
from surefoot.rl.rollouts import Task
from surefoot.rl.rounds import ProblemData, RoundRow
from surefoot.segment import Line, segment_trace
from surefoot.training.config import SFTConfig
from surefoot.training.sft import Demonstration, demonstrate

EXACT = NoisySolver(error_rate=0.0, name="exact")
END = None
PROBLEMS = generate_problems(12, seed=5, difficulty=Difficulty(min_operations=2, max_operations=4))


def relabelled(expert: Expert, items: list[ProblemTrace], **settings):
    return asyncio.run(relabel(expert, items, segmenter=Line(), **settings))


def decisions(shown: tuple[Demonstration, ...]) -> list[tuple[str, str | None]]:
    """What is learned, as (state, decision)."""
    found: list[tuple[str, str | None]] = []
    for one in shown:
        found += [(one.trace.prefix(step), one.trace.step_text(step)) for step in one.steps]
        if one.end:
            found.append((one.trace.text, END))
    return found


def expert_in(problem: Problem, prefix: str) -> str | None:
    """The exact solver's next line after ``prefix``."""
    [result] = asyncio.run(EXACT.sample([SampleRequest(prompt=problem.text + "\n", prefix=prefix)]))
    return next(iter(result.completions[0].text.splitlines(keepends=True)), END)


def rollouts(seed: int, rate: float, max_tokens: int = 96) -> list[ProblemTrace]:
    with AnswerChecker("exact") as checker:
        groups = asyncio.run(
            sample_traces(
                NoisySolver(error_rate=rate),
                PROBLEMS,
                n=2,
                seed=seed,
                segmenter=Line(),
                grader=Grader(checker=checker, styles=("phrase",)),
                sampling=Sampling(max_tokens=max_tokens),
            )
        )
    return [
        ProblemTrace(problem=problem, trace=trace)
        for problem, group in zip(PROBLEMS, groups, strict=True)
        for trace in group
    ]


@pytest.mark.parametrize("stop", [(), ("\n",)])
@pytest.mark.parametrize("max_tokens", [96, 17])
def test_every_state_that_was_visited_is_relabelled_once_by_the_expert(stop, max_tokens) -> None:
    expert = Expert(policy=EXACT, sampling=Sampling(stop=stop))
    items = rollouts(1, 0.4, max_tokens)
    for item, found in zip(items, relabelled(expert, items, after="all"), strict=True):
        trace = item.trace
        states = [trace.prefix(step) for step in range(len(trace.steps))]
        if trace.finish_reason == "stop":
            states.append(trace.text)
        expected = {(state, expert_in(item.problem, state)) for state in states}
        learned = decisions(found.demonstrations)
        # the end after an expert's own answer belongs to that step: it is no state of the policy's
        own = [one for one in learned if one[1] is not END or one[0] in states]
        assert len(own) == len(set(own)) == found.states == len(states)
        assert set(own) == expected
        assert not found.dropped


@pytest.mark.parametrize("stop", [(), ("\n",)])
def test_until_the_first_error_no_later_state_is_looked_at(stop) -> None:
    expert = Expert(policy=EXACT, sampling=Sampling(stop=stop))
    items = rollouts(2, 0.4)
    labels = asyncio.run(ExactLabeller(after_error="step").label(items))
    wrong = 0
    for item, row, found in zip(items, labels, relabelled(expert, items), strict=True):
        first = next((label.step for label in row if label.value == -1), None)
        steps = len(item.trace.steps)
        assert found.states == (steps + 1 if first is None else first + 1)
        assert found.agreed == (steps + 1 if first is None else first)
        [shown] = found.demonstrations
        assert shown.steps == tuple(range(steps if first is None else first + 1))
        if first is None:
            assert shown.trace == item.trace
        else:
            wrong += 1
            assert shown.trace.text == item.trace.prefix(first) + expert_in(
                item.problem, item.trace.prefix(first)
            )
            assert shown.trace.policy == "exact"
    assert 5 < wrong < len(items)


def test_an_expert_that_writes_on_is_asked_once_a_correction() -> None:
    problem = PROBLEMS[0]
    lines = worked_solution(parse_problem(problem.text)).splitlines(keepends=True)
    right = ProblemTrace(problem=problem, trace=trace_of(problem, "".join(lines)))
    wrong = ProblemTrace(problem=problem, trace=trace_of(problem, "".join(["Now 0\n", *lines[1:]])))
    found = relabelled(Expert(policy=EXACT), [right, wrong], after="all")
    assert found[0].usage.calls == 1
    assert found[1].usage.calls == 1 + sum(one.trace != wrong.trace for one in found[1].demonstrations)


def trace_of(problem: Problem, text: str, **more: object) -> Trace:
    trace = Trace(problem_id=problem.id, text=text, policy="hand", finish_reason="stop", **more)
    return segment_trace(trace, Line())


PROBLEM = Problem(text="p", answer="1")
ITEM = ProblemTrace(problem=PROBLEM, trace=trace_of(PROBLEM, "one 1\ntwo 2\nend\n"))


def scripted(*replies: str, **more: object) -> Expert:
    """Says the k-th text when asked after k lines."""
    policy = ScriptedPolicy(lambda request, _: replies[request.prefix.count("\n")], **more)
    return Expert(policy=policy, sampling=Sampling(max_tokens=4, stop=("\n",)))


def test_other_words_are_an_error() -> None:
    expert = scripted("uno 1\n", "dos 2\n", "tres 3\n", "")
    assert [d for _, d in decisions(relabelled(expert, [ITEM])[0].demonstrations)] == ["uno 1\n"]


def test_an_expert_may_end_where_the_policy_goes_on() -> None:
    [found] = relabelled(scripted("one 1\n", "", "end\n", ""), [ITEM])
    assert decisions(found.demonstrations) == [("", "one 1\n"), ("one 1\n", END)]
    [found] = relabelled(scripted("one 1\n", "", "end\n", ""), [ITEM], after="all")
    assert decisions(found.demonstrations)[2:] == [("one 1\ntwo 2\n", "end\n"), ("one 1\ntwo 2\nend\n", END)]
    assert found.states == 4


def test_failures_and_steps_that_are_cut_off_are_counted_and_end_the_relabelling() -> None:
    failing = scripted("one 1\n", "", fail=lambda request: "down" if request.prefix else None)
    [found] = relabelled(failing, [ITEM], after="all")
    assert decisions(found.demonstrations) == [("", "one 1\n")]
    assert found.dropped == {"states in which the expert failed": 1}
    [found] = relabelled(scripted("one 1\n", "a b c d e f\n"), [ITEM], after="all")
    assert decisions(found.demonstrations) == [("", "one 1\n")]
    assert found.dropped == {"truncated steps of the expert": 1}
    [found] = relabelled(scripted(" "), [ITEM])
    assert not found.demonstrations
    assert found.dropped == {"problems for which the expert wrote nothing": 1}


def test_chats_are_refused() -> None:
    from surefoot.records import Message

    trace = Trace(problem_id=PROBLEM.id, messages=(Message(role="assistant", content="x"),))
    with pytest.raises(TrainingError, match="is a chat"):
        relabelled(scripted("x"), [ProblemTrace(problem=PROBLEM, trace=trace)])


def test_the_usage_is_the_experts_as_verifier_tokens() -> None:
    found = relabelled(Expert(policy=EXACT), rollouts(3, 0.5)[:2], after="all")
    assert all(one.usage.verifier_tokens == one.usage.tokens > 0 for one in found)


# Runs


CONFIG = ImitationConfig(
    rounds=2,
    max_tokens=24,
    training=SFTConfig(epochs=1, batch_size=4, learning_rate=1e-2, checkpoint_every=1),
)


def run(
    base: Path, out: Path, config: ImitationConfig = CONFIG, progress=lambda *_: None, **who
) -> list[RoundRow]:
    held_out = generate_problems(4, seed=9, difficulty=Difficulty(min_operations=2, max_operations=3))
    who = who or {"expert": Expert(policy=EXACT)}
    with (
        AnswerChecker("exact") as checker,
        Run.open(out, command="imitate", config=config.model_dump(mode="json")) as opened,
    ):
        task = Task(
            problems=PROBLEMS,
            held_out=held_out,
            segmenter=Line(),
            grader=Grader(checker=checker, styles=("phrase",)),
            gold=ExactLabeller(),
        )
        return imitate(opened, base, task, config, progress, **who)


def given_traces(count: int) -> list[Demonstration]:
    return [
        demonstrate(trace_of(problem, worked_solution(parse_problem(problem.text))))
        for problem in PROBLEMS[:count]
    ]


@pytest.mark.slow
def test_a_run_clones_first_then_learns_from_all_that_was_said(lab_base, tmp_path) -> None:
    rows = run(lab_base, tmp_path, demonstrations=given_traces(5), expert=Expert(policy=EXACT))
    assert [row.round for row in rows] == [0, 1, 2, 3]
    assert [row.sampled for row in rows] == [0, 0, 12, 12]
    assert rows[1].learned == 5
    assert rows[1].decisions < rows[2].decisions < rows[3].decisions
    assert all(row.evaluation.problems == 4 for row in rows)
    assert rows[3].evaluation.samples == rows[3].samples == 24
    assert rows[3].usage.verifier_tokens > 0 < rows[3].usage.completion_tokens
    curves = [json.loads(line) for line in (tmp_path / "curves.jsonl").read_text().splitlines()]
    assert [row["accuracy_value"] for row in curves] == [row.evaluation.accuracy.value for row in rows]
    again = run(lab_base, tmp_path, demonstrations=given_traces(5), expert=Expert(policy=EXACT))
    assert again == rows


@pytest.mark.slow
def test_a_run_that_is_killed_anywhere_comes_to_the_same_weights(lab_base, tmp_path) -> None:
    whole = run(lab_base, tmp_path / "whole")

    class KilledError(Exception):
        pass

    places = [("round 1: sample", 1), ("round 1: train", 2), ("round 1: evaluate", 1), ("round 2: train", 1)]

    def kill(stage: str, done: int, _total: int) -> None:
        if places and (stage, done) == places[0]:
            places.pop(0)
            raise KilledError

    for _ in range(4):
        with pytest.raises(KilledError):
            run(lab_base, tmp_path / "killed", progress=kill)
    assert run(lab_base, tmp_path / "killed") == whole
    for name in ("round-1/model.safetensors", "round-2/model.safetensors", "curves.jsonl"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_rounds_take_their_problems_in_turn(lab_base, tmp_path) -> None:
    config = CONFIG.model_copy(update={"problems": 7, "start": "last", "data": "last"})
    run(lab_base, tmp_path, config)
    assert (tmp_path / "policy" / "model.safetensors").exists()
    taken = [
        [
            one.problem_id
            for one in Journal(tmp_path / "pieces" / f"collected-{n}.journal", ProblemData).read()
        ]
        for n in (1, 2)
    ]
    assert [len(set(part)) for part in taken] == [7, 7]
    assert len({*taken[0], *taken[1]}) == 12


def test_at_beta_one_all_solutions_are_the_experts(lab_base, tmp_path) -> None:
    rows = run(lab_base, tmp_path, CONFIG.model_copy(update={"rounds": 1, "beta": 1.0, "max_tokens": 96}))
    collected = list(Journal(tmp_path / "pieces" / "collected-1.journal", ProblemData).read())
    assert {trace.policy for one in collected for trace in one.traces} == {"exact"}
    assert all(trace.outcome for one in collected for trace in one.traces)
    assert rows[1].dropped == {}


def test_what_cannot_be_run_is_refused(lab_base, tmp_path) -> None:
    with pytest.raises(TrainingError, match="nothing to imitate"):
        run(lab_base, tmp_path / "a", demonstrations=())
    broken = Expert(policy=ScriptedPolicy(lambda *_: "", fail=lambda _: "down"))
    with pytest.raises(TrainingError, match="nothing to learn: 12 states in which the expert failed"):
        run(lab_base, tmp_path / "b", expert=broken)
    with pytest.raises(ValueError, match="adapter on an adapter"):
        RoundsConfig(start="last", training=SFTConfig(lora=Lora(rank=2)))
    with AnswerChecker("exact") as checker:
        grader = Grader(checker=checker, styles=("phrase",))
        with pytest.raises(TrainingError, match="12 problems are both held out and trained on"):
            Task(problems=PROBLEMS, held_out=PROBLEMS, segmenter=Line(), grader=grader)
        with pytest.raises(TrainingError, match="'problems' is empty"):
            Task(problems=(), segmenter=Line(), grader=grader)
