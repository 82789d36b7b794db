"""Episodes: which tokens learn, from which context, and a loop that learns from them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from benchmarks.worlds.digits.checkpoints import build_tokenizer
from benchmarks.worlds.lock import LOCK_TEMPLATE, Lock, LockProgress, lock_problems
from surefoot.answers import AnswerChecker, Grader
from surefoot.errors import TrainingError
from surefoot.models.engine.causal import load_causal
from surefoot.policies import IN_PROCESS
from surefoot.policies.prompts import render_chat
from surefoot.protocols import Completion, SampleRequest, SampleResult, Sampling
from surefoot.records import Usage
from surefoot.rl.advantage import Group, Reinforce
from surefoot.rl.config import RLConfig
from surefoot.rl.credit import AnchorState, Credit, TurnDifference
from surefoot.rl.learners import Actor
from surefoot.rl.log import Guards, RLLog
from surefoot.rl.loop import Judges, train_policy, training_samples
from surefoot.rl.rollouts import RolloutBatch, Task, roll_out
from surefoot.segment import Line

TASK = Task(
    problems=lock_problems(1),
    segmenter=Line(),
    grader=Grader(checker=AnswerChecker("exact")),
    environment=Lock,
    max_turns=6,
)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    made = build_tokenizer()
    made.chat_template = LOCK_TEMPLATE
    return made


class Written:
    """Writes one text a turn, the same in each turn of a sample; a text of None fails."""

    name = "written"

    def __init__(self, tokenizer: PreTrainedTokenizerFast, *texts: str | None) -> None:
        self.tokenizer, self.texts = tokenizer, texts

    def capabilities(self):
        return IN_PROCESS

    async def sample(self, requests: list[SampleRequest]) -> list[SampleResult]:
        return [self._one(self.texts[request.first]) for request in requests]

    def _one(self, text: str | None) -> SampleResult:
        if text is None:
            return SampleResult(completions=(), usage=Usage(), error="policy: down")
        ids = tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        completion = Completion(text=text, finish_reason="length", tokens=len(ids), token_ids=ids)
        return SampleResult(completions=(completion,), usage=Usage())


def _episodes(tokenizer: PreTrainedTokenizerFast, *texts: str | None) -> RolloutBatch:
    return asyncio.run(
        roll_out(
            Written(tokenizer, *texts),
            TASK.problems,
            tokenizer,
            TASK,
            n=len(texts),
            seed=0,
            sampling=Sampling(max_tokens=2),
        )
    )


class Reporting(Written):
    """A server that reports what it read: other tokens than the tokenizer here would make of it."""

    def _one(self, text: str | None) -> SampleResult:
        return replace(super()._one(text), prompt_token_ids=(7, 7, 7))


@pytest.mark.parametrize("by_server", [True, False])
def test_a_server_reports_the_tokens_that_it_read(
    tokenizer: PreTrainedTokenizerFast, by_server: bool
) -> None:
    def play(policy: Written) -> RolloutBatch:
        sampling = Sampling(max_tokens=2)
        return asyncio.run(
            roll_out(
                policy, TASK.problems, tokenizer, TASK, n=1, seed=0, sampling=sampling, by_server=by_server
            )
        )

    ((rollout,),) = play(Reporting(tokenizer, "4")).groups
    assert rollout.contexts == ((7, 7, 7),) * 4
    if by_server:
        with pytest.raises(TrainingError, match="does not say which tokens it read"):
            play(Written(tokenizer, "4"))


def test_only_what_the_policy_wrote_is_in_the_response(tokenizer: PreTrainedTokenizerFast) -> None:
    ((opened, stuck),) = _episodes(tokenizer, "4", "3").groups
    assert (opened.trace.outcome, stuck.trace.outcome) == (True, False)
    assert tokenizer.decode(opened.ids) == "4444"
    assert (opened.ends, opened.states) == ((0, 1, 2, 3), ("0", "1", "2", "3"))
    assert stuck.states == ("0", "1", "1", "1", "1", "1")
    assert tokenizer.decode(opened.contexts[2]) == "<s>Now 0\n4\nNow 1\n4\nNow 2\n"
    for turn, context in zip(opened.turns(), opened.contexts, strict=True):
        assert (turn.prompt_ids, tokenizer.decode(turn.ids), turn.ends) == (context, "4", (0,))
    whole = tokenizer(render_chat(tokenizer, opened.trace.messages), add_special_tokens=False)["input_ids"]
    last = opened.turns()[-1]
    assert tuple(whole)[: len(last.prompt_ids) + 1] == last.prompt_ids + last.ids


def test_a_failed_request_leaves_no_half_episode(tokenizer: PreTrainedTokenizerFast) -> None:
    batch = _episodes(tokenizer, "4", None)
    assert ([len(group) for group in batch.groups], batch.failed, batch.error) == ([1], 1, "policy: down")


def _config(credit: Credit, **changes: object) -> RLConfig:
    given = {
        "credit": credit,
        "advantage": Group(scale=False),
        "updates": 8,
        "problems": 4,
        "samples": 8,
        "max_tokens": 1,
        "learning_rate": 1e-2,
        "warmup": 0,
        "evaluate_every": 8,
        "evaluation_samples": 8,
        "checkpoint_every": 8,
        "guards": Guards(stop_on=()),
    }
    return RLConfig.model_validate(given | changes)


def test_turns_have_the_advantages_of_their_states(tokenizer: PreTrainedTokenizerFast) -> None:
    groups = _episodes(tokenizer, "4", "3").groups
    ((opened, stuck),) = training_samples(groups, Judges(), _config(AnchorState()))
    discounted = 0.95 ** np.arange(3, -1, -1)
    # state 0: two turns, mean half; state 1: one turn of the first and five of the second
    assert opened.advantages == pytest.approx(
        [0.5 + discounted[0] / 2, 0.5 + discounted[1] * 5 / 6, 0.5, 0.5]
    )
    assert stuck.advantages == pytest.approx([-0.5 - discounted[0] / 2] + [-0.5 - discounted[1] / 6] * 5)
    parts = [turn.advantages.tolist() for turn in stuck.turns()]
    assert parts == [[value] for value in stuck.advantages]


def test_turns_read_one_by_one_are_the_episode_with_its_observations_masked(
    lab_base: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Log-probabilities and gradient, against one pass over the whole conversation."""
    model, _ = load_causal(lab_base)
    ((opened, _),) = _episodes(tokenizer, "4", "3").groups
    weights = torch.tensor([1.0, -2.0, 0.5, 3.0])
    by_turn = Actor(model).read(opened.turns())[0]
    (by_turn * weights).sum().backward()
    gradient = model.get_input_embeddings().weight.grad.clone()
    model.zero_grad()
    whole = torch.tensor([opened.turns()[-1].prompt_ids + opened.turns()[-1].ids])
    logprobs = model(whole).logits.log_softmax(-1)
    places = [len(context) for context in opened.contexts]
    masked = torch.stack([logprobs[0, place - 1, whole[0, place]] for place in places])
    (masked * weights).sum().backward()
    torch.testing.assert_close(by_turn, masked, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gradient, model.get_input_embeddings().weight.grad, atol=1e-5, rtol=1e-4)


def _run(base: Path, directory: Path, config: RLConfig, **changes: object) -> RLLog:
    model, tokenizer = load_causal(base)
    tokenizer.chat_template = LOCK_TEMPLATE
    given = {
        "problems": lock_problems(8),
        "held_out": lock_problems(4, first=8),
        "segmenter": None,
        "grader": None,
        "environment": Lock,
        "max_turns": 6,
    }
    return train_policy(model, tokenizer, Task(**(given | changes)), config, directory)


def test_the_loop_learns_to_open_locks(lab_base: Path, tmp_path: Path) -> None:
    log = _run(lab_base, tmp_path / "run", _config(AnchorState()))
    assert log.evaluations[-1].accuracy.value > log.evaluations[0].accuracy.value + 0.3
    assert log.updates[-1].samples == 8 * 32
    assert log.updates[0].shape.steps > 4


@pytest.mark.parametrize(
    "changes",
    [
        {"epochs": 2, "minibatches": 2},
        {"objective": {"kl": {"coefficient": 0.01, "where": "reward"}}},
        {"objective": {"kl": {"coefficient": 0.01}}},
    ],
)
def test_settings_that_read_tokens_again(lab_base: Path, tmp_path: Path, changes: dict[str, object]) -> None:
    config = _config(TurnDifference(start=0.0), **{"updates": 1, "advantage": Reinforce(), **changes})
    log = _run(lab_base, tmp_path / "run", config, scorer=LockProgress())
    assert np.isfinite(log.updates[0].loss)


def test_refusals(lab_base: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="give an 'environment'"):
        _run(lab_base, tmp_path / "a", _config(AnchorState()), environment=None)
    with pytest.raises(TrainingError, match="single responses, not episodes"):
        _run(lab_base, tmp_path / "b", _config(AnchorState(), advantage={"kind": "gae"}))
