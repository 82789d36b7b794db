"""From labels or scores of steps to one reward for each turn of a run, and to the files of RL engines.

A turn is one message of the agent, the last answer included; it has one step or several (reasoning, text,
calls). Scores and rewards are numbers from 0 (failed) to 1 (right). A turn that cannot be judged has the
reward ``None``: it is unknown, and where an engine needs a number it is 0, as if it had failed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

from surefoot.errors import ScoreError
from surefoot.policies.openai_requests import openai_message
from surefoot.records import Trace
from surefoot.rl.sample import TURN_REWARDS

TurnRule = Literal["lowest", "last", "mean", "first-error"]
"""How the scores of a turn's steps become its reward.

lowest: the lowest score; unknown if a step is unscored, unless another has failed (a score of 0).
last: the score of the last step. mean: their mean, unknown if a step is unscored. first-error: 1 for each
turn before the one with the first score below ½, 0 there, and unknown after it and after an unscored step.
"""

Engine = Literal["jsonl", "trl", "verl", "skyrl", "prime-rl"]


def turn_messages(trace: Trace) -> list[int]:
    """Indices of the messages that are turns. Raises ``ScoreError`` for a text, which has no turns."""
    if not trace.messages:
        raise ScoreError(f"trace {trace.id} is a text, not a run: its reward is one number (surefoot score)")
    return [index for index, message in enumerate(trace.messages) if message.role == "assistant"]


def turn_rewards(
    trace: Trace, scores: Sequence[float | None], rule: TurnRule = "lowest"
) -> list[float | None]:
    """One reward for each turn of ``trace`` from the ``scores`` of its steps, by ``rule``.

    Raises ``ScoreError`` for a text, another number of scores than steps, a score outside [0, 1], or an
    unknown rule.
    """
    if rule not in get_args(TurnRule):
        raise ScoreError(f"unknown rule {rule!r}; use one of {', '.join(get_args(TurnRule))}")
    if len(scores) != len(trace.steps):
        raise ScoreError(f"{len(scores)} scores for the {len(trace.steps)} steps of trace {trace.id}")
    _require_unit(trace, scores, "score")
    by_turn: dict[int, list[float | None]] = {index: [] for index in turn_messages(trace)}
    for step, score in zip(trace.steps, scores, strict=True):
        if step.message in by_turn:
            by_turn[step.message].append(score)
    turns = list(by_turn.values())
    return _first_error(turns) if rule == "first-error" else [_reward(turn, rule) for turn in turns]


def is_signed(lowest: float, highest: float) -> bool:
    """Whether scores in this range go from -1 to 1, or else from 0 to 1: a signed score s is (1 + s) / 2.

    Raises ``ScoreError`` for scores on neither scale.
    """
    if lowest < -1 or highest > 1:
        raise ScoreError(
            f"scores from {lowest:g} to {highest:g}, but rewards go from 0 (failed) to 1 (right): give "
            "probabilities, or signed scores from -1 to 1"
        )
    return lowest < 0


def _require_unit(trace: Trace, values: Sequence[float | None], what: str) -> None:
    for value in values:
        if value is not None and not 0 <= value <= 1:
            raise ScoreError(
                f"trace {trace.id} has the {what} {value:g}: give numbers from 0 (failed) to 1 (right), None "
                "where it is unknown; a signed score s from -1 to 1 is (1 + s) / 2"
            )


def _reward(scores: Sequence[float | None], rule: TurnRule) -> float | None:
    finite = [score for score in scores if score is not None]
    if not finite or (rule == "last" and scores[-1] is None):
        return None
    if rule == "last":
        return finite[-1]
    if len(finite) < len(scores) and (rule == "mean" or min(finite) > 0):
        return None
    return min(finite) if rule == "lowest" else math.fsum(finite) / len(finite)


def _first_error(turns: Sequence[Sequence[float | None]]) -> list[float | None]:
    rewards: list[float | None] = [None] * len(turns)
    for number, scores in enumerate(turns):
        if any(score is not None and score < 0.5 for score in scores):
            rewards[number] = 0.0
            break
        if not scores or None in scores:
            break
        rewards[number] = 1.0
    return rewards


def reward_row(trace: Trace, rewards: Sequence[float | None], engine: Engine) -> dict[str, Any]:
    """A run with the rewards of its turns as one object of JSON, as an engine's own code finds them.

    ``jsonl``: ids, outcome, the index of each turn's message, and its reward or null. ``prime-rl``: a
    verifiers ``Trace`` with ``info["turn_rewards"]``, null where unknown, which
    :func:`surefoot.rl.engines.turn_credit_algorithm` reads; its ``rewards``, which prime-rl's other
    algorithms read, hold the outcome where it is known, else the mean of the turns. The others have the
    conversation before the first turn as ``prompt`` and the rest as ``completion``, and a number for every
    turn: an unknown reward is 0, never better than a failed turn's. ``trl``: columns ``turn_rewards`` and
    ``reward``, their mean, null if none is known, which TRL leaves out of its group; ``verl``:
    ``extra_info``; ``skyrl``: ``env_extras``. :func:`surefoot.rl.engines.verl_turn_rewards` and
    ``skyrl_turn_rewards`` put the numbers at the tokens of their turns.

    Raises ``ScoreError`` for a reward outside [0, 1], or another number of rewards than turns.
    """
    turns = turn_messages(trace)
    if len(rewards) != len(turns):
        raise ScoreError(f"{len(rewards)} rewards for the {len(turns)} turns of trace {trace.id}")
    _require_unit(trace, rewards, "reward")
    row: dict[str, Any] = {"trace_id": trace.id, "problem_id": trace.problem_id}
    if engine == "jsonl":
        return {**row, "outcome": trace.outcome, "turns": turns, TURN_REWARDS: list(rewards)}
    numbers = [0.0 if reward is None else reward for reward in rewards]
    has_rewards = rewards.count(None) < len(rewards)
    mean = math.fsum(numbers) / len(numbers) if has_rewards else None
    messages = [openai_message(message) for message in trace.messages]
    if engine == "prime-rl":
        from surefoot.rl.engines.turns import RecordedTurn, verifiers_trace  # slow: it imports torch

        recorded = [
            RecordedTurn(prompt=messages[:turn], completion=messages[turn], reward=reward)
            for turn, reward in zip(turns, rewards, strict=True)
        ]
        if not recorded:
            return {"info": {TURN_REWARDS: []}}
        return verifiers_trace(recorded, name=trace.id, task=trace.problem_id, outcome=trace.outcome)
    begin = turns[0] if turns else len(messages)
    run = {"prompt": messages[:begin], "completion": messages[begin:]}
    row[TURN_REWARDS] = numbers
    if engine == "trl":
        return {**run, **row, "reward": mean}
    return {**run, "extra_info" if engine == "verl" else "env_extras": row}
