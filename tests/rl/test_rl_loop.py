"""The loop of reinforcement learning on a tiny random policy."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from benchmarks.worlds.digits.world import Difficulty, ExactLabeller, generate_problems
from surefoot.answers import AnswerChecker, Grade, Grader
from surefoot.errors import TrainingError
from surefoot.io import read_records
from surefoot.models.engine.causal import load_causal
from surefoot.models.lora import Lora, add_adapter
from surefoot.policies.devices import Loading
from surefoot.policies.transformers import TransformersPolicy
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, StepScores
from surefoot.rl.advantage import Gae, Group, LeaveOneOut, Reinforce
from surefoot.rl.config import KL, PRESETS, Objective, RLConfig
from surefoot.rl.credit import Effective, Outcome, Summed
from surefoot.rl.log import Guards, RLLog, SampleRow
from surefoot.rl.loop import train_policy
from surefoot.rl.rollouts import Task
from surefoot.segment import Line

SMALL = Difficulty(min_operations=1, max_operations=2)


class Constant:
    """Every step is worth the same."""

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        return [
            StepScores(trace_id=item.trace.id, scorer="constant", scores=(0.7,) * len(item.trace.steps))
            for item in items
        ]


class LikesSevens:
    """A step is the better the more sevens it has."""

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        return [
            StepScores(
                trace_id=item.trace.id,
                scorer="sevens",
                scores=tuple(
                    min(1.0, item.trace.step_text(step).count("7") / 4)
                    for step in range(len(item.trace.steps))
                ),
            )
            for item in items
        ]


class Silent:
    """Gives no step a score."""

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        return [
            StepScores(
                trace_id=item.trace.id,
                scorer="silent",
                scores=(None,) * len(item.trace.steps),
                unscored_reason="of a test",
            )
            for item in items
        ]


@dataclass
class Rising:
    """Calls the first so many answers wrong, and all others right; the other way round unless ``rises``."""

    wrong: int
    rises: bool = True

    def grade(self, texts: Sequence[str], _golds: Sequence[str | None], problem: str = "") -> list[Grade]:
        self.wrong -= len(texts)
        return [Grade(answer="7", outcome=(self.wrong < 0) == self.rises)] * len(texts)


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with AnswerChecker("exact") as checker:
        yield Grader(checker=checker, styles=("phrase",))


@pytest.fixture
def task(grader: Grader) -> Task:
    held_out = generate_problems(4, seed=99, difficulty=SMALL)
    return Task(
        problems=generate_problems(6, seed=1, difficulty=SMALL, exclude=held_out),
        held_out=held_out,
        segmenter=Line(),
        grader=grader,
        scorer=LikesSevens(),
        gold=ExactLabeller(after_error="step"),
        aggregation="mean",
    )


def settings(**changes: object) -> RLConfig:
    given = {
        "credit": Summed(),
        "advantage": LeaveOneOut(),
        "updates": 3,
        "problems": 2,
        "samples": 3,
        "max_tokens": 12,
        "learning_rate": 1e-2,
        "warmup": 0,
        "evaluate_every": 2,
        "checkpoint_every": 1,
        "guards": Guards(stop_on=()),
    }
    return RLConfig.model_validate(given | changes)


def run(base: Path, task: Task, config: RLConfig, directory: Path) -> tuple[RLLog, dict[str, torch.Tensor]]:
    model, tokenizer = load_causal(base)
    log = train_policy(model, tokenizer, task, config, directory)
    return log, {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


@pytest.mark.slow
def test_a_policy_learns_what_the_reward_asks_for(lab_base: Path, task: Task, tmp_path: Path) -> None:
    log, _ = run(lab_base, task, settings(updates=12, samples=16, problems=4), tmp_path)
    rewards = [row.reward for row in log.updates if row.reward is not None]
    assert np.mean(rewards[-3:]) > 2 * np.mean(rewards[:3])


def test_equal_rewards_change_nothing(lab_base: Path, task: Task, tmp_path: Path) -> None:
    flat = Task(**{**vars(task), "scorer": Constant()})
    before = load_causal(lab_base)[0].state_dict()
    log, after = run(lab_base, flat, settings(credit=Summed(), advantage=Group()), tmp_path)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert [row.loss for row in log.updates] == [None] * 3


def test_what_is_written(lab_base: Path, task: Task, tmp_path: Path) -> None:
    log, weights = run(lab_base, task, settings(), tmp_path)
    assert [row.update for row in log.evaluations] == [0, 2, 3]
    assert [row.samples for row in log.updates] == [6, 12, 18]
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "curves.jsonl").read_text().splitlines()]
    assert sorted(kinds) == ["evaluation"] * 3 + ["update"] * 3
    samples = [
        row
        for number in (1, 2, 3)
        for row in list(read_records(tmp_path / "samples" / f"{number:06d}.jsonl", SampleRow))
    ]
    assert len(samples) == 12
    assert all(len(row.scores) == len(row.advantages) == len(row.trace.steps) for row in samples)
    assert not (tmp_path / "checkpoint.safetensors").exists()
    assert run(lab_base, task, settings(), tmp_path)[0] == log  # it is finished
    assert json.loads((tmp_path / "rl.json").read_text())["config"]["credit"]["rule"] == "summed"
    again = TransformersPolicy.from_pretrained(tmp_path / "policy")
    assert all(torch.equal(weights[name], tensor) for name, tensor in again.model.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"epochs": 2, "minibatches": 2},
        {"credit": PRESETS["prime"]["credit"], "advantage": PRESETS["prime"]["advantage"]},
        {"advantage": Gae()},
        {"objective": Objective(kl=KL(coefficient=0.1))},
    ],
    ids=["plain", "several steps", "prime", "gae", "kl"],
)
def test_a_run_that_is_killed_goes_on_along_the_same_curve(
    lab_base: Path, task: Task, tmp_path: Path, changes: dict[str, object]
) -> None:
    config = settings(**changes)
    whole, expected = run(lab_base, task, config, tmp_path / "whole")

    class Killed(BaseException):
        pass

    def kill(done: int, _total: int, _row: object) -> None:
        if done == 2:
            raise Killed

    model, tokenizer = load_causal(lab_base)
    with pytest.raises(Killed):
        train_policy(model, tokenizer, task, config, tmp_path / "killed", progress=kill)
    log, weights = run(lab_base, task, config, tmp_path / "killed")
    seconds = {"updates": {"__all__": {"seconds"}}}
    assert log.model_dump(exclude=seconds) == whole.model_dump(exclude=seconds)
    assert all(torch.equal(expected[name], weights[name]) for name in expected)


def test_a_checkpoint_some_rounds_old_gives_the_same_curve(
    lab_base: Path, task: Task, tmp_path: Path
) -> None:
    config = settings(checkpoint_every=2)
    whole, expected = run(lab_base, task, config, tmp_path / "whole")
    model, tokenizer = load_causal(lab_base)

    def kill(done: int, _total: int, _row: object) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_policy(model, tokenizer, task, config, tmp_path / "killed", progress=kill)
    log, weights = run(lab_base, task, config, tmp_path / "killed")
    assert [row.loss for row in log.updates] == [row.loss for row in whole.updates]
    assert all(torch.equal(expected[name], weights[name]) for name in expected)


@pytest.mark.parametrize(
    "changes",
    [
        {"credit": Outcome(), "advantage": Group()},
        {"credit": Effective(), "advantage": Reinforce()},
        {"objective": Objective(kl=KL(where="reward"))},
        {"accuracy_band": (0.0, 1.0)},
        {"gradient_checkpointing": True, "microbatch_tokens": 64},
    ],
    ids=["group", "effective", "kl reward", "band", "passes"],
)
def test_settings_run(lab_base: Path, task: Task, tmp_path: Path, changes: dict[str, object]) -> None:
    log, _ = run(lab_base, task, settings(updates=2, **changes), tmp_path)
    assert len(log.updates) == 2


def test_passes_do_not_change_the_update(lab_base: Path, task: Task, tmp_path: Path) -> None:
    _, one = run(lab_base, task, settings(updates=1), tmp_path / "one")
    _, many = run(lab_base, task, settings(updates=1, microbatch_tokens=40), tmp_path / "many")
    for name, tensor in one.items():
        torch.testing.assert_close(many[name], tensor, atol=2e-4, rtol=0)


@pytest.mark.slow
def test_no_more_samples_are_decoded_together_than_wanted(lab_base: Path, task: Task, tmp_path: Path) -> None:
    _, expected = run(lab_base, task, settings(updates=1), tmp_path / "all")
    model, tokenizer = load_causal(lab_base)
    rows: list[int] = []
    model.register_forward_pre_hook(
        lambda _model, _args, given: rows.append(len(given["input_ids"])), with_kwargs=True
    )
    train_policy(model, tokenizer, task, settings(updates=1, batch_size=2), tmp_path / "two")
    assert max(rows) == 2  # a round draws 6, an evaluation 4
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], atol=2e-4, rtol=0)


def test_an_adapter_is_trained_alone(lab_base: Path, task: Task, tmp_path: Path) -> None:
    config = settings(lora=Lora(rank=2), objective=Objective(kl=KL(coefficient=0.1)))
    base = load_causal(lab_base)[0].state_dict()
    log, weights = run(lab_base, task, config, tmp_path)
    plain = {
        name.replace(".base_layer", ""): tensor for name, tensor in weights.items() if "lora" not in name
    }
    assert all(torch.equal(base[name], plain[name]) for name in base)
    assert any(tensor.any() for name, tensor in weights.items() if "lora_B" in name)
    assert log.updates[0].kl == pytest.approx(0, abs=1e-6)
    assert (log.updates[-1].kl or 0) > 1e-6
    assert (tmp_path / "policy" / "adapter_model.safetensors").exists()


def test_a_guard_ends_the_run(lab_base: Path, task: Task, tmp_path: Path) -> None:
    """Held-out answers are right before training alone: the fall lasts for two evaluations at update 2."""
    falling = Rising(wrong=len(task.held_out), rises=False)
    ungraded = Task(**{**vars(task), "grader": falling, "scorer": None})
    config = settings(updates=9, credit=Outcome(), evaluate_every=1, guards=Guards(stop_on=("gold",)))
    log, _ = run(lab_base, ungraded, config, tmp_path)
    assert [row.update for row in log.evaluations] == [0, 1, 2]
    assert len(log.updates) == 2
    assert "alarm 'gold' at update 2" in (log.stopped or "")


def test_the_policy_of_the_best_evaluation_is_kept(lab_base: Path, task: Task, tmp_path: Path) -> None:
    rising = Task(**{**vars(task), "grader": Rising(wrong=len(task.held_out))})
    log, weights = run(lab_base, rising, settings(samples=8), tmp_path)
    assert log.best is log.evaluations[1]  # after two updates of three; the third is no better
    best = TransformersPolicy.from_pretrained(tmp_path / "best").model.state_dict()
    _, expected = run(lab_base, task, settings(samples=8, updates=2), tmp_path / "two")
    assert all(torch.equal(expected[name], tensor) for name, tensor in best.items())
    assert any(not torch.equal(weights[name], tensor) for name, tensor in best.items())


def test_fewer_rollouts_than_minibatches_are_learned_from(lab_base: Path, task: Task, tmp_path: Path) -> None:
    config = settings(updates=1, minibatches=50, objective=Objective(kl=KL()))
    log, _ = run(lab_base, task, config, tmp_path)
    assert log.updates[0].loss is not None


def test_rollouts_without_a_reward_are_counted(lab_base: Path, task: Task, tmp_path: Path) -> None:
    log, _ = run(lab_base, Task(**{**vars(task), "scorer": Silent()}), settings(updates=1), tmp_path)
    assert (log.updates[0].dropped, log.updates[0].reward) == (6, None)


def test_no_problem_comes_twice_in_a_round(lab_base: Path, task: Task, tmp_path: Path) -> None:
    run(lab_base, task, settings(updates=3, problems=4, keep_samples=4, samples=2), tmp_path)
    for number in (1, 2, 3):
        rows = list(read_records(tmp_path / "samples" / f"{number:06d}.jsonl", SampleRow))
        assert len({row.problem.id for row in rows}) == 4
    with pytest.raises(TrainingError, match="is 7 per round, but there are only 6"):
        task.check(settings(problems=7))


def test_a_finished_run_of_other_settings_is_not_taken_for_this_one(
    lab_base: Path, task: Task, tmp_path: Path
) -> None:
    log, _ = run(lab_base, task, settings(updates=1), tmp_path)
    assert run(lab_base, task, settings(updates=1, microbatch_tokens=64), tmp_path)[0] == log
    with pytest.raises(TrainingError, match=r"other settings \(learning_rate, updates\)"):
        run(lab_base, task, settings(updates=2, learning_rate=1e-3), tmp_path)


def test_weights_in_which_small_steps_vanish_are_not_trained(
    lab_base: Path, task: Task, tmp_path: Path
) -> None:
    short, tokenizer = load_causal(lab_base, Loading(dtype="bfloat16"))
    with pytest.raises(TrainingError, match=r"the policy are bfloat16.*'bf16'"):
        train_policy(short, tokenizer, task, settings(), tmp_path / "whole")
    train_policy(short, tokenizer, task, settings(lora=Lora(rank=2), updates=1), tmp_path / "adapter")
    types = {parameter.requires_grad: parameter.dtype for parameter in short.parameters()}
    assert types == {True: torch.float32, False: torch.bfloat16}


def test_bf16_holds_for_rollouts_and_evaluations_too(lab_base: Path, task: Task, tmp_path: Path) -> None:
    model, tokenizer = load_causal(lab_base)
    decoded: Counter[torch.dtype] = Counter()

    def note(_layer: object, _inputs: object, logits: torch.Tensor) -> None:
        if logits.shape[1] == 1:  # the next token of each row
            decoded[logits.dtype] += 1

    model.get_output_embeddings().register_forward_hook(note)
    train_policy(model, tokenizer, task, settings(updates=1, bf16=True), tmp_path)
    assert list(decoded) == [torch.bfloat16]
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_a_policy_with_an_adapter_is_refused(lab_base: Path, task: Task, tmp_path: Path) -> None:
    model, tokenizer = load_causal(lab_base)
    add_adapter(model, Lora(rank=2), seed=0)
    with pytest.raises(TrainingError, match="carries an adapter: merge it"):
        train_policy(model, tokenizer, task, settings(), tmp_path)


def test_deepspeed_is_refused(
    lab_base: Path, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(TrainingError, match="DeepSpeed is not supported"):
        run(lab_base, task, settings(), tmp_path)


def test_groups_outside_the_band_are_left_out_and_counted(lab_base: Path, task: Task, tmp_path: Path) -> None:
    log, _ = run(lab_base, task, settings(updates=1, accuracy_band=(0.4, 0.6)), tmp_path)
    assert log.updates[0].filtered == 6  # a random policy is never right
    assert log.updates[0].loss is None


def test_what_is_missing_is_named(task: Task, tmp_path: Path, lab_base: Path) -> None:
    bare = Task(**{**vars(task), "scorer": None})
    with pytest.raises(TrainingError, match="'summed' needs step scores"):
        run(lab_base, bare, settings(), tmp_path)
    with pytest.raises(TrainingError, match="both held out and trained on"):
        Task(**{**vars(task), "problems": task.held_out})
    unknown = Task(**{**vars(task), "problems": [Problem(text="Start with 7. Add 3.")]})
    with pytest.raises(TrainingError, match="no 'answer'"):
        unknown.check(settings(credit=Outcome()))
    with pytest.raises(TrainingError, match="'held_out' is empty"):
        Task(**{**vars(task), "held_out": []}).check(settings())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": 1}, "'samples' must be 2 or more"),
        ({"accuracy_band": (0.8, 0.2)}, "the lower first"),
        (
            {"objective": {"kl": {"where": "reward"}}, "advantage": {"kind": "group"}},
            "coefficient would cancel",
        ),
        ({"credit": {"rule": "best"}}, "does not match any of the expected tags"),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        settings(**changes)


def test_problems_come_in_turn(lab_base: Path, task: Task, tmp_path: Path) -> None:
    run(lab_base, task, settings(updates=3, keep_samples=2), tmp_path)
    seen = [
        row.problem.id
        for number in (1, 2, 3)
        for row in list(read_records(tmp_path / "samples" / f"{number:06d}.jsonl", SampleRow))
    ]
    assert sorted(seen) == sorted(problem.id for problem in task.problems)
