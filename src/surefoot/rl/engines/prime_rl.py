"""prime-rl: turn rewards in the traces of verifiers, and an algorithm that trains on their advantages.

Written against prime-rl 0.8 and the traces of verifiers 0.4 (``verifiers.v1``), neither of which is a
dependency of this package. prime-rl trains on ``Trace.nodes[].advantages``, which only an ``Algorithm`` of
its orchestrator fills; rewards that are left anywhere else in a trace do not reach its loss.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from surefoot.errors import ScoreError
from surefoot.rl.advantage import Estimator
from surefoot.rl.credit import CreditRule, ScoredRollout
from surefoot.rl.engines.turns import episode, turn_advantages

TURN_REWARDS: Final = "turn_rewards"
"""Key of ``Trace.info``: one reward, or ``None`` where it is unknown, for each message that the policy
sampled, in the order of ``Trace.nodes``."""


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
            rollouts = [[_rollout(trace, scored="scores" in credit.needs) for trace in g] for g in groups]
            advantages = turn_advantages(rollouts, credit=credit, advantage=advantage)
            for group, of_group in zip(groups, advantages, strict=True):
                for trace, advantages_k in zip(group, of_group, strict=True):
                    turns = zip(_turns(trace), advantages_k.tolist(), strict=True)
                    assign_advantages(trace, [value for node, value in turns for _ in range(sum(node.mask))])

    return TurnCredit


def _turns(trace: Any) -> list[Any]:
    return [node for node in trace.nodes if node.sampled]


def _rollout(trace: Any, *, scored: bool) -> ScoredRollout:
    turns = len(_turns(trace))
    scores = trace.info.get(TURN_REWARDS, [])
    if scored and len(scores) != turns:
        raise ScoreError(
            f"trace {trace.id} has {len(scores)} turn rewards for {turns} turns: call set_turn_rewards"
        )
    all_scored = bool(trace.rewards) and None not in trace.rewards.values()
    return episode(scores=scores or [None] * turns, outcome=trace.reward if all_scored else None)
