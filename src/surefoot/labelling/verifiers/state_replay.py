"""Label each call of an agent run by its effect on the state, by replaying the run next to a gold run.

The goal is the gold run's final state. A call that brings a part of the state closer to it was needed; a call
that moves a part away from it is damage, whatever else the run did.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

from pydantic import JsonValue

from surefoot.errors import LabelError
from surefoot.formats.tau_bench import GOLD_KEY
from surefoot.labelling.verifiers.tool_policy import CallResult, call_results
from surefoot.messages import call_arguments
from surefoot.policies.episodes import Episode, play
from surefoot.protocols import (
    RUN_CHANNELS,
    Environment,
    Observation,
    Policy,
    ProblemTrace,
    RestorableEnvironment,
    Sampling,
    Verdict,
)
from surefoot.records import Evidence, Message, Step, StepLabel, ToolCall, Trace, Usage, content_id
from surefoot.stats.intervals import wilson_interval

TURNS_KEY: Final = "gold_turns"
"""Key of ``Problem.meta``: how many of the gold calls each turn of the user has."""
OTHER_RESULT = "the recorded result differs from the environment's"
_TRIES = 2
"""Tries of a gold call: some tools fail at random."""


@dataclass(frozen=True, kw_only=True)
class StateReplayVerifier:
    """A :class:`surefoot.protocols.StepVerifier` for runs in an environment whose state can be replayed.

    The gold calls are in ``meta["gold_actions"]`` of the problem, or of the trace (tau-bench). Where the
    problem's ``meta["gold_turns"]`` says how many of them each turn of the user has, the state at the end of
    each turn is compared with the gold run's; otherwise the whole run is one turn. A call is

    - *needed* (+1): it brings a part of the state to its value at the end of the gold turn, or the gold run
      has the same call, or one that changes the state in the same way, or reads the same result;
    - *repairs* (+1): the same for a part that an earlier call had damaged;
    - *harmless* (0): nothing changes;
    - *wrong argument* (-1): it changes something else or fails, and the gold run calls that tool with other
      arguments;
    - *wrong order* (-1), only with ``order="gold"``: a gold call before an earlier one that it does not
      commute with: from the present state, the rest of the gold run has another result or another end if
      this call is made first. It is harmless if it fails and the run repeats it later;
    - *damaging* (-1): it moves a part of the state away from the end of the gold turn.

    The text that ends a turn is right (+1) in the final state of the gold turn, and wrong in any other state;
    with ``order="gold"`` it is also wrong while a gold call of the turn is missing and no other call has had
    its effect. Other texts are unknown.
    From the first result on that differs from the recorded one, all steps are unknown. A step of several
    calls has the lowest verdict.
    """

    reads = frozenset({"text", "calls", "observations"})
    environment: Callable[[], Environment]
    """Creates an environment."""
    order: Literal["any", "gold"] = "any"
    name: str = "state-replay"

    def verify(self, items: Sequence[ProblemTrace]) -> list[list[Verdict]]:
        """One list per item, one verdict per step.

        Raises ``LabelError`` if the state of the environment cannot be compared, or if the gold calls fail or
        do not solve the task.
        """
        return [self._verify(item) for item in items]

    def _verify(self, item: ProblemTrace) -> list[Verdict]:
        gold = gold_calls(item)
        if gold is None:
            missing = f"neither problem nor trace has meta[{GOLD_KEY!r}]"
            return [Verdict(value=None, reason=missing)] * len(item.trace.steps)
        turns = _gold_turns(item, gold)
        replay = _Replay(restorable(self.environment(), "compared"), item, turns, self.order)
        verdicts = replay.run()
        nothing = Verdict(value=None, reason="no call, and not the end of the run")
        return step_verdicts(item.trace, verdicts, nothing)


def gold_calls(item: ProblemTrace) -> tuple[ToolCall, ...] | None:
    """The calls that solve the task; ``None`` = not known. Raises ``LabelError`` for invalid ones."""
    actions = item.problem.meta.get(GOLD_KEY, item.trace.meta.get(GOLD_KEY))
    if actions is None:
        return None
    try:
        return tuple(
            ToolCall(name=action["name"], arguments=json.dumps(action.get("arguments") or {}))
            for action in actions
        )
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise LabelError(
            f"problem {item.problem.id}: {GOLD_KEY!r} needs a list of objects with 'name' and 'arguments'"
        ) from error


def _gold_turns(item: ProblemTrace, gold: tuple[ToolCall, ...]) -> list[tuple[ToolCall, ...]]:
    numbers = item.problem.meta.get(TURNS_KEY)
    if numbers is None:
        return [gold]
    if not (
        isinstance(numbers, list)
        and all(isinstance(number, int) and number >= 0 for number in numbers)
        and sum(numbers) == len(gold)
    ):
        raise LabelError(
            f"problem {item.problem.id}: {TURNS_KEY!r} needs the number of gold calls of each turn, "
            f"{len(gold)} in all"
        )
    calls = iter(gold)
    return [tuple(islice(calls, number)) for number in numbers]


def restorable(environment: Environment, action: str) -> RestorableEnvironment:
    """The environment, if its state can be ``action`` (compared, restored). Raises ``LabelError``."""
    if not isinstance(environment, RestorableEnvironment):
        raise LabelError(
            f"the state of environment {environment.name!r} cannot be {action}: it lacks 'state', "
            "'snapshot' or 'restore'. Label its runs by rules (verify:rules=tool-calls) or a judge"
        )
    return environment


def step_verdicts(
    trace: Trace, verdicts: Mapping[tuple[int, int | None], Verdict], nothing: Verdict
) -> list[Verdict]:
    """One verdict per step, from verdicts by message and call (``None``: a message without calls).

    A step of several calls has the lowest; ``nothing`` is the verdict on any other step.
    """

    def of_step(step: Step) -> Verdict:
        if step.message is None or step.part == "reasoning":
            return nothing
        if step.call is not None:
            return verdicts[step.message, step.call]
        calls = range(len(trace.messages[step.message].tool_calls))
        if not calls:
            return verdicts.get((step.message, None), nothing)
        if step.part != "message":
            return nothing
        of_calls = [verdicts[step.message, number] for number in calls]
        decided = [verdict for verdict in of_calls if verdict.value is not None]
        return min(decided, key=lambda verdict: verdict.value or 0, default=of_calls[0])

    return [of_step(step) for step in trace.steps]


State = dict[str, JsonValue]
"""The parts of a state, each with its path."""


class _GoldCall(NamedTuple):
    turn: int
    call: ToolCall
    result: str
    effect: State
    """The parts of the state that it changes, with their new values."""


class _Replay:
    def __init__(
        self,
        environment: RestorableEnvironment,
        item: ProblemTrace,
        turns: Sequence[Sequence[ToolCall]],
        order: Literal["any", "gold"],
    ) -> None:
        self.environment, self.item, self.order = environment, item, order
        environment.reset(item.problem, item.trace.seed or 0)
        self.gold: list[_GoldCall] = []
        """Gold calls that are still missing in the run."""
        self.ends: list[State] = []
        """The state at the end of each gold turn."""
        state = _leaves(environment.state())
        for turn, calls in enumerate(turns):
            for call in calls:
                observation, previous = self._try(call), state
                if observation.error:
                    raise LabelError(
                        f"gold call {call} of problem {item.problem.id} fails: {observation.text[:200]}"
                    )
                state = _leaves(environment.state())
                self.gold.append(_GoldCall(turn, call, observation.text, _effect(previous, state)))
            self.ends.append(state)
        if environment.outcome() is False:
            raise LabelError(f"the gold calls of problem {item.problem.id} do not solve it")
        self.tools = {gold.call.name for gold in self.gold}
        environment.reset(item.problem, item.trace.seed or 0)
        self.later: deque[ToolCall] = deque()
        """Calls that follow in the run."""
        self.turn = 0
        self.now = _leaves(environment.state())
        self.damaged: set[str] = set()

    def _try(self, call: ToolCall) -> Observation:
        for _ in range(_TRIES):
            observation = self.environment.step(call)
            if not observation.error:
                break
        return observation

    def run(self) -> dict[tuple[int, int | None], Verdict]:
        """Verdicts by message and call; ``None`` for a message without calls."""
        other = Verdict(value=None, reason=OTHER_RESULT)
        verdicts: dict[tuple[int, int | None], Verdict] = {}
        calls: dict[int, list[CallResult]] = {}
        for result in call_results(self.item.trace.messages):
            calls.setdefault(result.message, []).append(result)
            self.later.append(result.call)
        differs = False
        for number, message in enumerate(self.item.trace.messages):
            if message.role != "assistant":
                continue
            for result in calls.get(number, ()):
                self.later.popleft()
                verdict, as_recorded = self._call(result)
                differs |= not as_recorded
                verdicts[number, result.number] = other if differs else verdict
            if not message.tool_calls:
                verdict = self._text(message)
                verdicts[number, None] = other if differs else verdict
        return verdicts

    def _text(self, message: Message) -> Verdict:
        done = self.environment.step(message.content or "").done
        if not done and len(self.ends) == 1:
            return Verdict(value=None, reason="a text before the end: the state does not tell")
        wrong, end = self._wrong(self.now), "run" if done else "turn"
        missing = [gold.call.name for gold in self.gold if gold.turn <= self.turn and self.order == "gold"]
        self.turn = min(self.turn + 1, len(self.ends) - 1)
        if wrong:
            return Verdict(value=-1, reason=f"ends too early: {_named(wrong)} not as at the gold {end}'s end")
        if missing:
            return Verdict(value=-1, reason=f"ends too early: the gold {end} calls {missing[0]} before")
        return Verdict(value=1, reason=f"ends in the gold {end}'s end state")

    def _call(self, result: CallResult) -> tuple[Verdict, bool]:
        """The verdict, and whether the result is the recorded one."""
        match = next((at for at, gold in enumerate(self.gold) if _equal(gold.call, result.call)), None)
        too_early = self._too_early(match) if match is not None and self.order == "gold" else ""
        observation = self.environment.step(result.call)
        recorded = result.result is None or same_result(result.result.content or "", observation.text)
        previous, self.now = self.now, _leaves(self.environment.state())
        effect = _effect(previous, self.now)
        if not effect and observation.error:
            return self._judge_failure(result.call, observation, match, too_early), recorded
        return self._judge(result.call, observation, previous, effect, match, too_early), recorded

    def _judge_failure(
        self, call: ToolCall, observation: Observation, match: int | None, too_early: str
    ) -> Verdict:
        if too_early and not any(_equal(later, call) for later in self.later):
            return Verdict(value=-1, reason=too_early)
        if match is None and call.name in self.tools:
            return Verdict(value=-1, reason=f"wrong argument: {observation.text[:200]}")
        return Verdict(value=0, reason="harmless: it fails, and nothing changes")

    def _judge(
        self,
        call: ToolCall,
        observation: Observation,
        previous: State,
        effect: State,
        match: int | None,
        too_early: str,
    ) -> Verdict:
        wrong_before, wrong = self._wrong(previous), self._wrong(self.now)
        fixed, damaged = effect.keys() & wrong_before - wrong, effect.keys() & wrong
        if match is None:  # another call may have the same effect, or give the same information
            match = next(
                (
                    at
                    for at, gold in enumerate(self.gold)
                    if gold.turn <= self.turn
                    and gold.effect == effect
                    and (effect or gold.result == observation.text)
                ),
                None,
            )
        if match is not None:
            self.gold.pop(match)
            self.damaged -= fixed
            if too_early:
                return Verdict(value=-1, reason=too_early)
            return Verdict(value=1, reason="needed: the gold run does it")
        if not effect:
            return Verdict(value=0, reason="harmless: nothing changes")
        if damaged:
            self.damaged |= damaged
            other_arguments = any(gold.call.name == call.name for gold in self.gold)
            what = "wrong argument" if other_arguments else "damaging"
            return Verdict(value=-1, reason=f"{what}: {_named(damaged)} not as in the gold run")
        repairs = bool(fixed & self.damaged)
        self.damaged -= fixed
        self.gold = [gold for gold in self.gold if not self._has_effect(gold, effect)]
        return Verdict(value=1, reason=f"{'repairs' if repairs else 'needed'}: {_named(fixed)}")

    def _has_effect(self, gold: _GoldCall, latest: State) -> bool:
        """Whether the latest change completes what a gold call does that is missing so far."""
        return (
            gold.turn <= self.turn
            and bool(gold.effect.keys() & latest.keys())
            and all(self.now.get(at, _NONE) == value for at, value in gold.effect.items())
        )

    def _too_early(self, match: int) -> str:
        """Why a gold call comes too early, if it does."""
        gold, later = self.gold[match], self.gold[match + 1 :]
        # a call that an earlier turn left out was wrong there, and is not reported a second time
        missing = [other for other in self.gold[:match] if self.turn <= other.turn <= gold.turn]
        if not missing:
            return ""
        in_order = self._played([*missing, gold, *later])
        if self._played([gold, *missing, *later]) == in_order:
            return ""
        # the last of the missing calls over which it cannot be moved
        position = len(missing) - 1
        while position and self._played([*missing[:position], gold, *missing[position:], *later]) == in_order:
            position -= 1
        return f"wrong order: the gold run calls {missing[position].call.name} before"

    def _played(self, calls: Sequence[_GoldCall]) -> tuple[dict[int, str], State]:
        """The result of each call, and the end state, if these calls are made now; nothing remains of it."""
        snapshot = self.environment.snapshot()
        results = {id(gold): self._try(gold.call).text for gold in calls}
        end = _leaves(self.environment.state())
        self.environment.restore(snapshot)
        return results, end

    def _wrong(self, state: State) -> set[str]:
        return set(_effect(state, self.ends[self.turn]))


_NONE = "\0absent"


def _effect(before: State, after: State) -> State:
    return {
        at: after.get(at, _NONE)
        for at in before.keys() | after.keys()
        if before.get(at, _NONE) != after.get(at, _NONE)
    }


def _leaves(state: JsonValue) -> State:
    """The parts of a state, each with its path. An empty object or list is a part."""
    leaves: State = {}
    pending: list[tuple[str, JsonValue]] = [("", state)]
    while pending:
        path, value = pending.pop()
        inner: Any = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        )
        if inner:
            pending += [(f"{path}/{key}", part) for key, part in inner]
        else:
            leaves[path] = value
    return leaves


def same_result(recorded: str, text: str) -> bool:
    """Whether two results of a call say the same: equal texts, or equal as JSON."""
    if recorded == text:
        return True
    try:
        return bool(json.loads(recorded) == json.loads(text))
    except (ValueError, RecursionError):
        return False


def _equal(gold: ToolCall, call: ToolCall) -> bool:
    arguments = call_arguments(gold)
    return gold.name == call.name and arguments is not None and arguments == call_arguments(call)


def _named(paths: set[str]) -> str:
    names = ", ".join(sorted(paths)[:3])
    return (names + (f" and {len(paths) - 3} more" if len(paths) > 3 else ""))[:300]


@dataclass(frozen=True, kw_only=True)
class RunMonteCarloLabeller:
    """A :class:`surefoot.protocols.Labeller` of kind ``value`` for runs in a restorable environment.

    The run is replayed. From the state after each assistant message and the results of its calls, ``policy``
    plays ``rollouts`` episodes; the environment says which succeed. The share that does is AgentPRM's
    *promise* (arXiv 2511.08325); its *progress*, the change by a step, is the advantage
    (:func:`surefoot.labelling.advantage_labels`). All steps of a message share its value. A
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
