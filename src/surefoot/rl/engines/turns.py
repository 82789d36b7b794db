"""Rewards and advantages of turns, for engines that roll out several turns: verl, SkyRL, verifiers.

Written against the documented types of verl 0.9.1 (``response_mask``), SkyRL (``GeneratorOutput``) and
verifiers (``State["trajectory"]``, which prime-rl trains on). None is a dependency of this package. Every
function asks for one number for each turn, so that no turn gets 0 because its reward was forgotten.

TRL does not support them: its reward functions return one number per completion.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import replace
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


def over_turns(mask: Sequence[int], values: Sequence[float]) -> FloatArray:
    """``values`` [K] at every token of their turns, 0 at the environment's [T]; as :func:`at_turn_ends`."""
    at_turn_ends(mask, values)  # one value for each turn
    mask_t = np.asarray(mask, dtype=bool)
    turn_t = np.cumsum(mask_t & ~np.append(False, mask_t[:-1])) - 1
    return np.where(mask_t, np.asarray([*values, 0.0])[turn_t], 0.0)


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


def set_verifiers_turns(
    state: MutableMapping[str, Any],
    *,
    rewards: Sequence[float] | None = None,
    advantages: Sequence[float] | None = None,
) -> None:
    """Fill in ``reward`` and ``advantage`` of each step of a verifiers ``State["trajectory"]``: call it in a
    rubric, before the group is scored, which fills fields that are still ``None``.

    Raises ``ScoreError`` if the numbers of turns and values differ; nothing is changed then.
    """
    steps = state["trajectory"]
    fields = {"reward": rewards, "advantage": advantages}
    for name, values in fields.items():
        if values is not None and len(values) != len(steps):
            raise ScoreError(f"{len(values)} values of {name!r} for {len(steps)} turns: give one for each")
    for name, values in fields.items():
        for step, value in zip(steps, values or (), strict=False):
            step[name] = float(value)
