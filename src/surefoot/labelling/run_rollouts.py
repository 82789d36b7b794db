"""Values of an agent's steps by Monte Carlo: the environment is put back after each step, and played to its
end.

The share of rollouts that succeed is AgentPRM's *promise* (arXiv 2511.08325); its *progress*, what a step
adds to it, is the advantage (:func:`surefoot.labelling.advantage_labels`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from surefoot.labelling.verifiers.state_replay import OTHER_RESULT, restorable
from surefoot.policies.episodes import Episode, play
from surefoot.protocols import Environment, Policy, ProblemTrace, Sampling
from surefoot.records import Evidence, Message, StepLabel, Usage, content_id
from surefoot.stats.intervals import wilson_interval

_SOURCE = "monte-carlo-restored"


@dataclass(frozen=True, kw_only=True)
class RunMonteCarloLabeller:
    """A :class:`surefoot.protocols.Labeller` of runs in an environment that can be put back; kind ``value``.

    The run is replayed. After each assistant message and the results of its calls the state is kept, and
    ``policy`` goes on from there ``rollouts`` times; the environment says which succeed. All steps of a
    message share its value. A message that ends the run has the run's outcome. Messages that several runs of
    a problem begin with are rolled out once. From the first result on that is recorded otherwise than the
    environment answers, the values are unknown. Evidence: successes, trials, Wilson interval, cost.
    """

    policy: Policy
    environment: Callable[[], Environment]
    rollouts: int = 8
    sampling: Sampling = field(default_factory=Sampling)
    max_turns: int = 30
    seed: int = 0

    async def label(self, items: Sequence[ProblemTrace]) -> list[list[StepLabel]]:
        """One list per item, one label per step.

        Raises ``LabelError`` for an environment that cannot be put back.
        """
        points: dict[str, _Point] = {}
        keys = [self._replayed(item, points) for item in items]
        await play(
            self.policy,
            [episode for point in points.values() for episode in point.episodes],
            sampling=self.sampling,
            max_turns=self.max_turns,
        )
        charged: set[str] = set()
        return [
            [self._label(item, step, of_item, points, charged) for step in range(len(item.trace.steps))]
            for item, of_item in zip(items, keys, strict=True)
        ]

    def _replayed(self, item: ProblemTrace, points: dict[str, _Point]) -> dict[int, str]:
        """By message: the key of the point after it, or why there is none. New points are added to
        ``points``."""
        environment = restorable(self.environment(), "put back")
        environment.reset(item.problem, item.trace.seed or 0)
        messages, after = item.trace.messages, dict[int, str]()
        done = false = False
        for number, message in enumerate(messages):
            if message.role != "assistant":
                continue
            observed = [environment.step(call) for call in message.tool_calls]
            results = messages[number + 1 : number + 1 + len(observed)]
            false |= [one.text for one in observed] != [one.content or "" for one in results]
            if not observed:
                observed = [environment.step(message.content or "")]
            done |= any(one.done for one in observed)
            end = number + 1 + len(message.tool_calls)
            while end < len(messages) and messages[end].role != "assistant":
                end += 1
            if false:
                after[number] = OTHER_RESULT
                continue
            prefix = messages[:end]
            key = content_id("point", item.problem.id, [_shown(one) for one in prefix])
            after[number] = key
            if key in points:
                continue
            point = points[key] = _Point()
            if done:
                point.outcome = environment.outcome()
                continue
            snapshot = environment.snapshot()
            for sample in range(self.rollouts):
                copy = restorable(self.environment(), "put back")
                copy.reset(item.problem, item.trace.seed or 0)
                copy.restore(snapshot)
                seed = int(content_id("rollouts", self.seed, key)[:7], 16)
                point.episodes.append(
                    Episode(
                        problem=item.problem,
                        environment=copy,
                        messages=list(prefix),
                        seed=seed,
                        sample=sample,
                    )
                )
        return after

    def _label(
        self,
        item: ProblemTrace,
        step: int,
        after: dict[int, str],
        points: dict[str, _Point],
        charged: set[str],
    ) -> StepLabel:
        message = item.trace.steps[step].message
        key = "a text, no run in an environment" if message is None else after[message]
        point = points.get(key)
        reason = key if point is None else point.reason
        usage = Usage()
        if point is not None and key not in charged:
            charged.add(key)
            usage = point.usage
        outcomes = point.outcomes if point is not None else []
        return StepLabel(
            trace_id=item.trace.id,
            step=step,
            kind="value",
            value=None if reason is not None else sum(outcomes) / len(outcomes),
            reason=reason,
            source=_SOURCE,
            evidence=Evidence(
                successes=sum(outcomes),
                trials=len(outcomes),
                interval=wilson_interval(sum(outcomes), len(outcomes)).bounds if outcomes else None,
                usage=usage,
                rater=self.policy.name,
            ),
        )


@dataclass(kw_only=True)
class _Point:
    """A state of a run, and what follows from it."""

    episodes: list[Episode] = field(default_factory=list)
    outcome: bool | None = None
    """Of the run itself, where it ends here."""

    @property
    def outcomes(self) -> list[bool]:
        """Of the rollouts that can be judged, or of the end."""
        found = [one.environment.outcome() for one in self.episodes if one.error is None] or [self.outcome]
        return [one for one in found if one is not None]

    @property
    def usage(self) -> Usage:
        """Of all rollouts."""
        total = Usage()
        for one in self.episodes:
            total += one.usage
        return total

    @property
    def reason(self) -> str | None:
        """Why there is no value."""
        if self.outcomes:
            return None
        errors = [one.error for one in self.episodes if one.error is not None]
        return errors[0] if errors else "the environment cannot tell the outcome"


def _shown(message: Message) -> list[object]:
    """What the policy sees of a message."""
    calls = [(call.id, call.name, call.arguments) for call in message.tool_calls]
    return [message.role, message.content, calls, message.readable_reasoning]
