"""Rewards and advantages of turns, for engines that roll out several turns: verl, SkyRL, verifiers, prime-rl.

Written against the types of verl 0.9.1 (``response_mask``), SkyRL 0.3 (``GeneratorOutput``), verifiers 0.4
(``Trace``) and prime-rl 0.8. None is a dependency of this package. Every function asks for one number for
each turn, so that no turn gets 0 because its reward was forgotten. prime-rl trains on
``Trace.nodes[].advantages``, which only an ``Algorithm`` of its orchestrator fills; rewards that are left
anywhere else in a trace do not reach its loss.

Turns that a server recorded (:class:`RecordedTurn`) become the samples of these engines. Only tokens that the
server reported are given on: text is never encoded again, since its tokens need not be the sampled ones.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import ScoreError
from surefoot.rl.advantage import Estimator
from surefoot.rl.credit import CreditRule, with_rewards
from surefoot.rl.sample import TURN_REWARDS, FloatArray, Sample

TOKEN_REWARDS: Final = "token_rewards"
"""Key of ``reward_extra_info`` under which a manager stores rewards [T], as JSON: verl averages numbers and
ignores text."""


def turn_numbers(mask: Sequence[int], turns: int) -> NDArray[np.int64]:
    """The turn of each token [T], counted from 0; -1 at the environment's tokens.

    ``mask`` [T] is 1 at the policy's tokens and 0 at the environment's, as verl's ``response_mask``
    and SkyRL's ``loss_masks``: a turn is a run of ones. Raises ``ScoreError`` if there are not so many
    ``turns``, even if two are adjacent.
    """
    written = np.asarray(mask, dtype=bool)
    begins = written & ~np.append(False, written[:-1])
    if (runs := int(begins.sum())) != turns:
        raise ScoreError(f"{turns} values for the {runs} turns of the mask: give one for each")
    return np.where(written, np.cumsum(begins) - 1, -1)


def at_turn_ends(mask: Sequence[int], values: Sequence[float | None]) -> FloatArray:
    """``values`` [K] at the last token of each turn (:func:`turn_numbers`), 0 elsewhere [T].

    Raises ``ScoreError`` if the numbers of turns and values differ, or for a value that is unknown.
    """
    numbers = turn_numbers(mask, len(values))
    if None in values:
        raise ScoreError(
            "the reward of a turn is unknown: give it one that is never better than a failed turn's"
        )
    placed = np.zeros(len(numbers))
    placed[(numbers >= 0) & (np.append(numbers[1:], -1) < 0)] = values
    return placed


def verl_turn_rewards(mask: Sequence[int], rewards: Sequence[float | None]) -> dict[str, str]:
    """``reward_extra_info`` of a verl agent loop's output, from ``response_mask`` [T] and rewards of turns
    [K]. An agent loop made by :func:`surefoot.rl.engines.dense_agent_loop` puts them at their tokens."""
    return {TOKEN_REWARDS: json.dumps(at_turn_ends(mask, rewards).tolist())}


def skyrl_turn_rewards(
    output: Mapping[str, Any], rewards: Sequence[Sequence[float | None]]
) -> dict[str, Any]:
    """SkyRL's ``GeneratorOutput`` with ``rewards`` per token, from turn rewards [K] of each episode."""
    return {
        **output,
        "rewards": [
            at_turn_ends(mask, values).tolist()
            for mask, values in zip(output["loss_masks"], rewards, strict=True)
        ],
    }


@dataclass(frozen=True, kw_only=True)
class RecordedTurn:
    """One turn of an episode."""

    prompt: Sequence[Mapping[str, Any]]
    """The conversation before it, as messages in OpenAI's shape."""
    completion: Mapping[str, Any]
    """The message."""
    reward: float | None
    """``None`` = unknown."""
    truncated: bool = False
    """Whether it ends for want of tokens."""
    prompt_ids: Sequence[int] = ()
    """Tokens of the prompt; empty if unknown, as the others."""
    completion_ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    """log π of each of ``completion_ids``."""

    def require_tokens(self) -> None:
        """Raises ``ScoreError`` where the tokens are unknown, or other in number than their
        log-probabilities."""
        if not (self.prompt_ids and self.completion_ids):
            raise ScoreError(
                "a turn was recorded without the token ids of its prompt and its message: let vLLM answer, "
                "with --dialect vllm"
            )
        if self.logprobs and len(self.logprobs) != len(self.completion_ids):
            raise ScoreError(f"{len(self.logprobs)} log-probabilities for {len(self.completion_ids)} tokens")


@dataclass(kw_only=True)
class _Row:
    """Turns whose prompts go on from each other token by token; lists [T], from the first message on."""

    prompt_ids: list[int]
    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] | None = field(default_factory=list)
    """``None`` if a turn has none."""
    rewards: list[float | None] = field(default_factory=list)
    """One a turn, [K]."""
    truncated: bool = False


def _rows(turns: Sequence[RecordedTurn]) -> list[_Row]:
    rows: list[_Row] = []
    for turn in turns:
        turn.require_tokens()
        contents = [row["content"] for row in turn.prompt if isinstance(row.get("content"), list)]
        if any(part.get("type") == "image_url" for parts in contents for part in parts):
            raise ScoreError("a turn's prompt shows an image, which a sample of tokens lacks: leave it out")
        prompt, completion = list(turn.prompt_ids), list(turn.completion_ids)
        context = rows[-1].prompt_ids + rows[-1].ids if rows else []
        if not rows or len(prompt) <= len(context) or prompt[: len(context)] != context:
            rows.append(_Row(prompt_ids=prompt))
            context = prompt
        row, between = rows[-1], prompt[len(context) :]
        row.ids += between + completion
        row.mask += [0] * len(between) + [1] * len(completion)
        complete = row.logprobs is not None and turn.logprobs
        row.logprobs = [*(row.logprobs or ()), *[0.0] * len(between), *turn.logprobs] if complete else None
        row.rewards.append(turn.reward)
        row.truncated = turn.truncated
    return rows


def verl_rows(turns: Sequence[RecordedTurn]) -> list[dict[str, Any]]:
    """An episode in few samples, as fields of verl's ``AgentLoopOutput``: a turn extends the last one if its
    prompt starts with all tokens so far, whose mask is 0 between messages.

    It does not if a template drops earlier reasoning or the client edited the history; a new
    sample begins there, so that no turn is lost and none is counted twice. Raises ``ScoreError`` for turns
    without token ids or reward, or with an image, and where no token stands between two messages.
    """
    return [
        {
            "prompt_ids": row.prompt_ids,
            "response_ids": row.ids,
            "response_mask": row.mask,
            "response_logprobs": row.logprobs,
            "reward_score": float(at_turn_ends(row.mask, row.rewards).sum()),
            "num_turns": len(row.rewards),
            "extra_fields": {"reward_extra_info": verl_turn_rewards(row.mask, row.rewards)},
        }
        for row in _rows(turns)
    ]


def skyrl_rows(turns: Sequence[RecordedTurn]) -> dict[str, Any]:
    """SkyRL's ``GeneratorOutput`` of one episode, a sample for each of :func:`verl_rows`."""
    rows = _rows(turns)
    logprobs = [row.logprobs for row in rows]
    return {
        "prompt_token_ids": [row.prompt_ids for row in rows],
        "response_ids": [row.ids for row in rows],
        "rewards": [at_turn_ends(row.mask, row.rewards).tolist() for row in rows],
        "loss_masks": [row.mask for row in rows],
        "stop_reasons": ["length" if row.truncated else "stop" for row in rows],
        "rollout_metrics": None,
        "rollout_logprobs": None if None in logprobs else logprobs,
    }


def verifiers_trace(
    turns: Sequence[RecordedTurn], *, name: str, task: str, outcome: bool | None = None
) -> dict[str, Any]:
    """A record of verifiers' ``Trace`` with ``info["turn_rewards"]``, null where unknown, as
    :func:`surefoot.rl.engines.turn_credit_algorithm` reads it.

    ``rewards``, whose sum prime-rl's own algorithms compare, hold the ``outcome`` if it is known, else the
    mean over the turns, an unknown one as 0: more turns earn no more. Null if nothing is known.

    A turn whose prompt continues the turn before is in the same branch, any other begins a new branch. The
    tokens of a prompt are at the message that answers it: which of them belong to which message was not
    recorded. ``task`` names the problem.
    """
    nodes: list[dict[str, Any]] = []
    parent: int | None = None
    seen: list[Mapping[str, Any]] = []
    context: list[int] = []
    for turn in turns:
        if turn.prompt_ids or turn.completion_ids:
            turn.require_tokens()
        prompt_ids = list(turn.prompt_ids)
        continues = prompt_ids[: len(context)] == context and (not context or len(prompt_ids) > len(context))
        if not continues or (not context and list(turn.prompt[: len(seen)]) != seen):
            parent, seen, context = None, [], []
        for message in turn.prompt[len(seen) :]:
            nodes.append({"parent": parent, "message": _verifiers_message(message)})
            parent = len(nodes) - 1
        between, completion_ids = prompt_ids[len(context) :], list(turn.completion_ids)
        nodes.append(
            {
                "parent": parent,
                "message": _verifiers_message(turn.completion),
                "sampled": True,
                "token_ids": between + completion_ids,
                "mask": [False] * len(between) + [True] * len(completion_ids),
                "logprobs": list(turn.logprobs),
            }
        )
        parent, seen = len(nodes) - 1, [*turn.prompt, turn.completion]
        context = prompt_ids + completion_ids
    rewarded = [turn.reward for turn in turns if turn.reward is not None]
    mean = math.fsum(rewarded) / len(turns) if rewarded else None
    total = mean if outcome is None else float(outcome)
    return {
        "id": name,
        "task": {"type": "Task", "data": {"idx": 0, "name": task, "prompt": None}},
        "agent": {"config": {}},
        "nodes": nodes,
        "rewards": {"turns" if outcome is None else "outcome": total if total is None else {"score": total}},
        "info": {TURN_REWARDS: [turn.reward for turn in turns]},
        "is_completed": True,
        "ok": True,
        "stop_condition": "max_output_tokens" if turns[-1].truncated else None,
    }


def _verifiers_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message in OpenAI's shape, its tool calls with name and arguments at the top."""
    calls = [
        {"id": call["id"], **{key: call["function"][key] for key in ("name", "arguments")}}
        for call in message.get("tool_calls") or ()
    ]
    return {**message, "tool_calls": calls} if calls else dict(message)


def set_turn_rewards(trace: Any, rewards: Sequence[float | None]) -> None:
    """Store the reward of each turn of a verifiers ``Trace``; call it in a task's reward or finalize hook.

    Raises ``ScoreError`` if the numbers of turns and rewards differ; nothing is changed then.
    """
    turns = len(_turns(trace))
    if len(rewards) != turns:
        raise ScoreError(
            f"{len(rewards)} rewards for {turns} turns of trace {trace.id}: give one for each, None where "
            "it is unknown"
        )
    trace.info[TURN_REWARDS] = [None if reward is None else float(reward) for reward in rewards]


def turn_credit_algorithm(*, credit: CreditRule, advantage: Estimator) -> type:
    """A class of prime-rl's ``Algorithm``: turns are credited by a rule, and an estimator subtracts the
    baseline.

    The traces of one agent in a rollout group are compared. Scores of turns are ``info["turn_rewards"]``
    (:func:`set_turn_rewards`), the outcome is the trace's total reward. An unknown reward counts as the
    group's worst, a trace without any, or with a component that was not scored, as wrong. Every token of a
    turn gets the turn's advantage. Register the class in ``ALGORITHM_CLASSES`` of
    ``prime_rl.orchestrator.algo`` under the name of your configuration.

    Raises ``ScoreError``, when a group is scored, for a trace without turn rewards where the rule reads them,
    and whatever the rule raises.
    """
    from prime_rl.orchestrator.algo import Algorithm, assign_advantages
    from prime_rl.orchestrator.algo.base import iter_trainable_traces

    class TurnCredit(Algorithm):  # type: ignore[misc]
        async def score_group(self, episodes: list[Any]) -> None:
            traces_of_agent = defaultdict(list)
            for _, trace in iter_trainable_traces(episodes):
                traces_of_agent[trace.agent.name].append(trace)
            groups = list(traces_of_agent.values())
            samples = [[_sample(trace, scored="scores" in credit.needs) for trace in g] for g in groups]
            advantages = advantage.advantages(with_rewards(samples, credit))
            for group, of_group in zip(groups, advantages, strict=True):
                for trace, advantages_k in zip(group, of_group, strict=True):
                    turns = zip(_turns(trace), advantages_k.tolist(), strict=True)
                    assign_advantages(trace, [value for node, value in turns for _ in range(sum(node.mask))])

    return TurnCredit


def _turns(trace: Any) -> list[Any]:
    return [node for node in trace.nodes if node.sampled]


def _sample(trace: Any, *, scored: bool) -> Sample:
    """A trace whose turns count as one token each."""
    turns = len(_turns(trace))
    scores = trace.info.get(TURN_REWARDS, [])
    if scored and len(scores) != turns:
        raise ScoreError(
            f"trace {trace.id} has {len(scores)} turn rewards for {turns} turns: call set_turn_rewards"
        )
    all_scored = bool(trace.rewards) and None not in trace.rewards.values()
    return Sample(
        tokens=turns,
        ends=tuple(range(turns)),
        scores=tuple(scores) or (None,) * turns,
        outcome=trace.reward if all_scored else None,
    )
