"""Rewards and advantages of turns, for engines that roll out several turns: verl, SkyRL, verifiers.

Written against the types of verl 0.9.1 (``response_mask``), SkyRL 0.3 (``GeneratorOutput``) and verifiers 0.4
(``Trace``). None is a dependency of this package. Every function asks for one number for each turn, so that
no turn gets 0 because its reward was forgotten.

TRL does not support them: its reward functions return one number per completion.

Turns that a server recorded (:class:`RecordedTurn`) become the samples of these engines. Only tokens that the
server reported are given on: text is never encoded again, since its tokens need not be the sampled ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from surefoot.errors import ScoreError
from surefoot.rl.advantage import Estimator
from surefoot.rl.credit import CreditRule, FloatArray, ScoredRollout
from surefoot.rl.engines.verl import TOKEN_REWARDS


def episode(
    *, scores: Sequence[float | None] = (), outcome: float | None = None, states: Sequence[str] = ()
) -> ScoredRollout:
    """An episode of K turns, of which an engine knows scores [K] or states [K], and the outcome.

    Raises ``ScoreError`` if there are neither, or if their numbers differ.
    """
    turns = len(scores) or len(states)
    if not turns:
        raise ScoreError("an episode needs 'scores' or 'states': one for each of its turns")
    return ScoredRollout(
        tokens=turns,
        ends=tuple(range(turns)),
        scores=tuple(scores),
        outcome=outcome,
        states=tuple(states),
    )


def turn_advantages(
    groups: Sequence[Sequence[ScoredRollout]], *, credit: CreditRule, advantage: Estimator
) -> list[list[FloatArray]]:
    """Advantage of each turn [K] of every :func:`episode` of every group (the episodes of one problem).

    Each turn counts once where an estimator takes means over tokens. Raises what the rule raises.
    """
    rewarded = [
        [replace(rollout, rewards=streams) for rollout, streams in zip(group, rewards, strict=True)]
        for group, rewards in zip(groups, credit.credit(groups), strict=True)
    ]
    return advantage.advantages(rewarded)


def at_turn_ends(mask: Sequence[int], values: Sequence[float]) -> FloatArray:
    """``values`` [K] at the last token of each turn, 0 elsewhere [T].

    ``mask`` [T] is 1 at the policy's tokens and 0 at the environment's, as verl's ``response_mask``
    and SkyRL's ``loss_masks``: a turn is a run of ones. Raises ``ScoreError`` if the numbers of turns and
    values differ, even if two turns are adjacent.
    """
    mask_t = np.asarray(mask, dtype=bool)
    ends = np.flatnonzero(mask_t & ~np.append(mask_t[1:], False))
    if len(ends) != len(values):
        raise ScoreError(f"{len(values)} values for the {len(ends)} turns of the mask: give one for each")
    placed = np.zeros(len(mask_t))
    placed[ends] = values
    return placed


def verl_turn_rewards(mask: Sequence[int], rewards: Sequence[float]) -> dict[str, str]:
    """``reward_extra_info`` of a verl agent loop's output, from ``response_mask`` [T] and rewards of turns
    [K]. An agent loop made by :func:`surefoot.rl.engines.dense_agent_loop` puts them at their tokens."""
    return {TOKEN_REWARDS: json.dumps(at_turn_ends(mask, rewards).tolist())}


def skyrl_turn_rewards(output: Mapping[str, Any], rewards: Sequence[Sequence[float]]) -> dict[str, Any]:
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
    reward: float
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
class TokenRow:
    """Turns whose prompts go on from each other token by token, as one training sample."""

    prompt_ids: list[int]
    response_ids: list[int] = field(default_factory=list)
    """From the first message on, [T]."""
    mask: list[int] = field(default_factory=list)
    """1 at the tokens of messages, 0 at those between them [T]."""
    logprobs: list[float] | None = field(default_factory=list)
    """[T], 0 where ``mask`` is 0; ``None`` if a turn has none."""
    rewards: list[float] = field(default_factory=list)
    """One a turn, [K]."""
    truncated: bool = False
    """Whether the last turn is."""


def token_rows(turns: Sequence[RecordedTurn]) -> list[TokenRow]:
    """An episode in few rows: a turn extends the last row if its prompt starts with that row's tokens.

    It does not if a template drops earlier reasoning or the client edited the history; a new
    row begins there, so that no turn is lost and none is counted twice. Raises ``ScoreError`` for turns
    without token ids, and where no token stands between two messages.
    """
    rows: list[TokenRow] = []
    for turn in turns:
        turn.require_tokens()
        prompt, completion = list(turn.prompt_ids), list(turn.completion_ids)
        context = rows[-1].prompt_ids + rows[-1].response_ids if rows else []
        if not rows or len(prompt) <= len(context) or prompt[: len(context)] != context:
            rows.append(TokenRow(prompt_ids=prompt))
            context = prompt
        row, between = rows[-1], prompt[len(context) :]
        row.response_ids += between + completion
        row.mask += [0] * len(between) + [1] * len(completion)
        if row.logprobs is not None and turn.logprobs:
            row.logprobs += [0.0] * len(between) + list(turn.logprobs)
        else:
            row.logprobs = None
        row.rewards.append(turn.reward)
        row.truncated = turn.truncated
    return rows


def verl_rows(turns: Sequence[RecordedTurn]) -> list[dict[str, Any]]:
    """Fields of verl's ``AgentLoopOutput``, one for each row of :func:`token_rows`."""
    return [
        {
            "prompt_ids": row.prompt_ids,
            "response_ids": row.response_ids,
            "response_mask": row.mask,
            "response_logprobs": row.logprobs,
            "reward_score": sum(row.rewards),
            "num_turns": len(row.rewards),
            "extra_fields": {"reward_extra_info": verl_turn_rewards(row.mask, row.rewards)},
        }
        for row in token_rows(turns)
    ]


def skyrl_rows(turns: Sequence[RecordedTurn]) -> dict[str, Any]:
    """SkyRL's ``GeneratorOutput`` of one episode, a sample for each row of :func:`token_rows`."""
    rows = token_rows(turns)
    logprobs = [row.logprobs for row in rows if row.logprobs is not None]
    return {
        "prompt_token_ids": [row.prompt_ids for row in rows],
        "response_ids": [row.response_ids for row in rows],
        "rewards": [at_turn_ends(row.mask, row.rewards).tolist() for row in rows],
        "loss_masks": [row.mask for row in rows],
        "stop_reasons": ["length" if row.truncated else "stop" for row in rows],
        "rollout_metrics": None,
        "rollout_logprobs": logprobs if len(logprobs) == len(rows) else None,
    }


def verifiers_trace(turns: Sequence[RecordedTurn], *, name: str, task: str) -> dict[str, Any]:
    """A record of verifiers' ``Trace`` with ``info["turn_rewards"]``, as
    :func:`surefoot.rl.engines.turn_credit_algorithm` reads it.

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
    return {
        "id": name,
        "task": {"type": "Task", "data": {"idx": 0, "name": task, "prompt": None}},
        "agent": {"config": {}},
        "nodes": nodes,
        "rewards": {"turns": {"score": sum(turn.reward for turn in turns)}},
        "info": {"turn_rewards": [turn.reward for turn in turns]},
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
