"""Values of an agent's steps by Monte Carlo: the state after each step is restored and played to the end.

The share of rollouts that succeed is AgentPRM's *promise* (arXiv 2511.08325). Its *progress*, the change by a
step, is the advantage (:func:`surefoot.labelling.advantage_labels`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from surefoot.labelling.verifiers.state_replay import OTHER_RESULT, restorable, same_result
from surefoot.labelling.verifiers.tool_policy import call_results
from surefoot.policies.episodes import Episode, play
from surefoot.protocols import RUN_CHANNELS, Environment, Policy, ProblemTrace, Sampling
from surefoot.records import Evidence, Message, StepLabel, Usage, content_id
from surefoot.stats.intervals import wilson_interval


@dataclass(frozen=True, kw_only=True)
class RunMonteCarloLabeller:
    """A :class:`surefoot.protocols.Labeller` of kind ``value`` for runs in a restorable environment.

    The run is replayed. From the state after each assistant message and the results of its calls, ``policy``
    plays ``rollouts`` episodes; the environment says which succeed. All steps of a message share its value. A
    message that ends the run has the run's outcome. Beginnings that several runs of a problem share are
    rolled out once. From the first result on that differs from the recorded one, the values are unknown.
    Evidence: successes, trials, Wilson interval, cost.
    """

    reads = RUN_CHANNELS
    policy: Policy
    environment: Callable[[], Environment]
    rollouts: int = 8
    sampling: Sampling = field(default_factory=Sampling)
    max_turns: int = 30
    seed: int = 0

    async def label(self, items: Sequence[ProblemTrace]) -> list[list[StepLabel]]:
        """One list per item, one label per step.

        Raises ``LabelError`` if the state of the environment cannot be restored.
        """
        states: dict[str, _State] = {}
        keys = [self._replay(item, states) for item in items]
        await play(
            self.policy,
            [episode for state in states.values() for episode in state.episodes],
            sampling=self.sampling,
            max_turns=self.max_turns,
        )
        charged: set[str] = set()
        return [
            [self._label(item, step, item_keys, states, charged) for step in range(len(item.trace.steps))]
            for item, item_keys in zip(items, keys, strict=True)
        ]

    def _replay(self, item: ProblemTrace, states: dict[str, _State]) -> dict[int, str]:
        """By message: the key of the state after it in ``states``, or the reason why there is none."""
        environment = restorable(self.environment(), "restored")
        environment.reset(item.problem, item.trace.seed or 0)
        messages, keys = item.trace.messages, dict[int, str]()
        recorded = {(result.message, result.number): result.result for result in call_results(messages)}
        done = differs = False
        for number, message in enumerate(messages):
            if message.role != "assistant":
                continue
            observations = [environment.step(call) for call in message.tool_calls]
            for at, observation in enumerate(observations):
                result = recorded[number, at]
                differs |= result is None or not same_result(result.content or "", observation.text)
            if not observations:
                observations = [environment.step(message.content or "")]
            done |= any(observation.done for observation in observations)
            end = number + 1
            while end < len(messages) and messages[end].role != "assistant":
                end += 1
            if differs:
                keys[number] = OTHER_RESULT
                continue
            prefix = messages[:end]
            key = content_id("point", item.problem.id, list(map(_visible, prefix)))
            keys[number] = key
            if key in states:
                continue
            state = states[key] = _State()
            if done:
                state.outcome = environment.outcome()
                continue
            snapshot = environment.snapshot()
            for sample in range(self.rollouts):
                copy = restorable(self.environment(), "restored")
                copy.reset(item.problem, item.trace.seed or 0)
                copy.restore(snapshot)
                state.episodes.append(
                    Episode(
                        problem=item.problem,
                        environment=copy,
                        messages=list(prefix),
                        seed=int(content_id("rollouts", self.seed, key)[:7], 16),
                        sample=sample,
                    )
                )
        return keys

    def _label(
        self,
        item: ProblemTrace,
        step: int,
        keys: dict[int, str],
        states: dict[str, _State],
        charged: set[str],
    ) -> StepLabel:
        message = item.trace.steps[step].message
        key = "a text, not a run in an environment" if message is None else keys[message]
        state = states.get(key)
        reason = key if state is None else state.reason
        usage = Usage()
        if state is not None and key not in charged:
            charged.add(key)
            usage = sum((episode.usage for episode in state.episodes), Usage())
        outcomes = state.outcomes if state is not None else []
        return StepLabel(
            trace_id=item.trace.id,
            step=step,
            kind="value",
            value=None if reason is not None else sum(outcomes) / len(outcomes),
            reason=reason,
            source="monte-carlo-restored",
            evidence=Evidence(
                successes=sum(outcomes),
                trials=len(outcomes),
                interval=wilson_interval(sum(outcomes), len(outcomes)).bounds if outcomes else None,
                usage=usage,
                rater=self.policy.name,
            ),
        )


@dataclass(kw_only=True)
class _State:
    """A state of a run, and the rollouts from it."""

    episodes: list[Episode] = field(default_factory=list)
    outcome: bool | None = None
    """Outcome of the run, if it ends here."""

    @property
    def outcomes(self) -> list[bool]:
        """Outcomes of the rollouts that can be judged, or of the run."""
        rollouts = [episode.environment.outcome() for episode in self.episodes if episode.error is None]
        return [outcome for outcome in rollouts or [self.outcome] if outcome is not None]

    @property
    def reason(self) -> str | None:
        """Why outcomes are missing."""
        if self.outcomes:
            return None
        errors = (episode.error for episode in self.episodes if episode.error is not None)
        return next(errors, "the environment cannot tell the outcome")


def _visible(message: Message) -> list[object]:
    calls = [(call.id, call.name, call.arguments) for call in message.tool_calls]
    return [message.role, message.content, calls, message.readable_reasoning]
