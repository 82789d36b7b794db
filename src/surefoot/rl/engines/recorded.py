"""Turns that a server recorded, in the shapes that engines train on: verl, SkyRL, verifiers.

Only tokens that the server reported are given on: text is never encoded again, since its tokens need not be
the sampled ones. Rewards are one per turn (:mod:`surefoot.rl.engines.turns`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from surefoot.errors import ScoreError
from surefoot.rl.engines.turns import at_turn_ends, set_verifiers_turns, verl_turn_rewards


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


@dataclass(frozen=True, kw_only=True)
class TokenRow:
    """Turns whose prompts go on from each other token by token, as one training sample."""

    prompt_ids: list[int]
    response_ids: list[int]
    """From the first message on, [T]."""
    mask: list[int]
    """1 at the tokens of messages, 0 at those between them [T]."""
    logprobs: list[float] | None
    """[T], 0 where ``mask`` is 0; ``None`` if a turn has none."""
    rewards: list[float]
    """One a turn, [K]."""
    truncated: bool
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
        last = rows[-1] if rows else None
        context = last.prompt_ids + last.response_ids if last is not None else []
        if last is not None and len(prompt) > len(context) and prompt[: len(context)] == context:
            between = prompt[len(context) :]
            logprobs = None
            if last.logprobs is not None and turn.logprobs:
                logprobs = [*last.logprobs, *([0.0] * len(between)), *turn.logprobs]
            rows[-1] = TokenRow(
                prompt_ids=last.prompt_ids,
                response_ids=[*last.response_ids, *between, *completion],
                mask=[*last.mask, *([0] * len(between)), *([1] * len(completion))],
                logprobs=logprobs,
                rewards=[*last.rewards, turn.reward],
                truncated=turn.truncated,
            )
        else:
            rows.append(
                TokenRow(
                    prompt_ids=prompt,
                    response_ids=completion,
                    mask=[1] * len(completion),
                    logprobs=list(turn.logprobs) or None,
                    rewards=[turn.reward],
                    truncated=turn.truncated,
                )
            )
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


def verifiers_state(turns: Sequence[RecordedTurn], *, name: str) -> dict[str, Any]:
    """A verifiers ``State`` with its ``trajectory``; tokens are ``None`` where they are unknown.

    ``name`` becomes the ``trajectory_id``.
    """
    state: dict[str, Any] = {
        "prompt": list(turns[0].prompt),
        "completion": [*turns[-1].prompt[len(turns[0].prompt) :], turns[-1].completion],
        "trajectory": [_trajectory_step(turn, name) for turn in turns],
        "reward": sum(turn.reward for turn in turns),
        "is_truncated": turns[-1].truncated,
    }
    set_verifiers_turns(state, rewards=[turn.reward for turn in turns])
    return state


def _trajectory_step(turn: RecordedTurn, name: str) -> dict[str, Any]:
    tokens = None
    if turn.prompt_ids and turn.completion_ids:
        turn.require_tokens()
        tokens = {
            "prompt_ids": list(turn.prompt_ids),
            "prompt_mask": [0] * len(turn.prompt_ids),
            "completion_ids": list(turn.completion_ids),
            "completion_mask": [1] * len(turn.completion_ids),
            "completion_logprobs": list(turn.logprobs),
            "overlong_prompt": False,
            "is_truncated": turn.truncated,
            "routed_experts": None,
        }
    return {
        "prompt": list(turn.prompt),
        "completion": [turn.completion],
        "response": None,
        "tokens": tokens,
        "reward": None,
        "advantage": None,
        "is_truncated": turn.truncated,
        "trajectory_id": name,
        "extras": {},
    }
