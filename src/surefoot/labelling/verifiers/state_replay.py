"""What each call of an agent's run did to the state: the run is replayed, and compared with a gold run.

The gold run's end is the state to reach. A call that brings a part of the state nearer to it was needed, one
that takes a part away from it is damage, whatever else the run did.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import JsonValue

from surefoot.errors import LabelError
from surefoot.formats.tau_bench import GOLD_KEY
from surefoot.labelling.verifiers.tool_calls import CallResult, call_arguments, call_results
from surefoot.policies.loading import ENVIRONMENTS, load_environment
from surefoot.protocols import (
    Environment,
    Observation,
    ProblemTrace,
    RestorableEnvironment,
    Verdict,
)
from surefoot.records import Message, Problem, ToolCall, Trace

OTHER_RESULT = "the run's record of a result is not what the environment answers"
_TRIES = 2
"""Of a gold call: a tool that fails the first time is no part of a gold run."""


@dataclass(frozen=True, kw_only=True)
class StateReplayVerifier:
    """A :class:`surefoot.protocols.StepVerifier` of runs in an environment, by replaying the state.

    The gold calls are in ``meta["gold_actions"]`` of the problem, or of the trace (tau-bench). A call is

    - *needed* (+1): it brings a part of the state to what it is at the gold run's end, or the gold run makes
      it, or learns what it learns;
    - *repairs* (+1): the same, of a part that an earlier call had damaged;
    - *harmless* (0): nothing changes;
    - *wrong argument* (-1): it changes something else or fails, and the gold run calls that tool otherwise;
    - *wrong order* (-1), with ``order="gold"`` alone: a gold call before an earlier one of the gold run;
    - *damaging* (-1): it takes a part of the state away from the gold run's end, or changes it to neither.

    The text that ends the run is right (+1) in the gold run's end state, and wrong elsewhere; other texts are
    unknown. From the first result on that is recorded otherwise than the environment answers, all is unknown:
    the record is false, or the environment is not the run's. A step of several calls has the lowest verdict.
    """

    environment: Callable[[], Environment] | None = None
    """Makes an environment; ``None`` = the package's own that is called as the problem's ``source``."""
    order: Literal["any", "gold"] = "any"
    name: str = "state-replay"

    def verify(self, items: Sequence[ProblemTrace]) -> list[list[Verdict]]:
        """One list per item, one verdict per step.

        Raises ``LabelError`` for an environment whose state cannot be compared, and where the gold calls fail
        or do not solve the task; ``PolicyError`` for an unknown environment.
        """
        return [self._verify(item) for item in items]

    def _verify(self, item: ProblemTrace) -> list[Verdict]:
        gold = gold_calls(item)
        if gold is None:
            missing = f"neither problem nor trace has meta[{GOLD_KEY!r}]"
            return [Verdict(value=None, reason=missing)] * len(item.trace.steps)
        make = self.environment or _known_environment(item.problem)
        replay = _Replay(restorable(make(), "compared"), item, gold, self.order)
        verdicts = replay.run()
        return [_of_step(item.trace, step, verdicts) for step in range(len(item.trace.steps))]


def _known_environment(problem: Problem) -> Callable[[], Environment]:
    # a record may name one of the package's own, and no class to import and call
    if problem.source is None or problem.source not in ENVIRONMENTS:
        raise LabelError(
            f"problem {problem.id}: no environment is called as its 'source'; say which one its runs are of "
            "(--environment, 'environment')"
        )
    return load_environment(problem.source)


def gold_calls(item: ProblemTrace) -> tuple[ToolCall, ...] | None:
    """The calls that solve the task; ``None`` = not known. Raises ``LabelError`` where they are no calls."""
    actions = item.problem.meta.get(GOLD_KEY, item.trace.meta.get(GOLD_KEY))
    if actions is None:
        return None
    try:
        return tuple(
            ToolCall(name=one["name"], arguments=json.dumps(one.get("arguments") or {})) for one in actions
        )
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise LabelError(
            f"problem {item.problem.id}: {GOLD_KEY!r} needs a list of objects with 'name' and 'arguments'"
        ) from error


def restorable(environment: Environment, wanted: str) -> RestorableEnvironment:
    """The environment, if its state can be ``wanted`` (compared, put back). Raises ``LabelError``."""
    if not isinstance(environment, RestorableEnvironment):
        raise LabelError(
            f"the state of environment {environment.name!r} cannot be {wanted}: it has no 'state', "
            "'snapshot' and 'restore'. Label its runs by rules (--verifier tool-calls) or a judge"
        )
    return environment


def _of_step(trace: Trace, index: int, verdicts: Mapping[tuple[int, int | None], Verdict]) -> Verdict:
    step = trace.steps[index]
    nothing = Verdict(value=None, reason="no call, and not the end of the run")
    if step.message is None or step.part == "reasoning":
        return nothing
    if step.call is not None:
        return verdicts[step.message, step.call]
    calls = range(len(trace.messages[step.message].tool_calls))
    if not calls:
        return verdicts.get((step.message, None), nothing)
    known = [one for one in (verdicts[step.message, place] for place in calls) if one.value is not None]
    if step.part != "message":
        return nothing
    return min(known, key=lambda one: one.value or 0, default=verdicts[step.message, 0])


class _Replay:
    def __init__(
        self,
        environment: RestorableEnvironment,
        item: ProblemTrace,
        gold: Sequence[ToolCall],
        order: Literal["any", "gold"],
    ) -> None:
        self.environment, self.item, self.order = environment, item, order
        environment.reset(item.problem, item.trace.seed or 0)
        self.gold = [(call, self._gold_step(call).text) for call in gold]
        """Gold calls that the run has not made yet, with their results."""
        if environment.outcome() is False:
            raise LabelError(f"the gold calls of problem {item.problem.id} do not solve it")
        self.tools = {call.name for call in gold}
        self.end = _leaves(environment.state())
        environment.reset(item.problem, item.trace.seed or 0)
        self.now = _leaves(environment.state())
        self.damaged: set[str] = set()

    def _gold_step(self, call: ToolCall) -> Observation:
        for _ in range(_TRIES):
            observation = self.environment.step(call)
            if not observation.error:
                return observation
        raise LabelError(
            f"gold call {call} of problem {self.item.problem.id} fails: {observation.text[:200]}"
        )

    def run(self) -> dict[tuple[int, int | None], Verdict]:
        """Verdicts by message and call; ``None`` for a message without calls."""
        verdicts: dict[tuple[int, int | None], Verdict] = {}
        calls: dict[int, list[CallResult]] = {}
        for one in call_results(self.item.trace.messages):
            calls.setdefault(one.message, []).append(one)
        false = False
        for number, message in enumerate(self.item.trace.messages):
            if message.role != "assistant":
                continue
            for one in calls.get(number, ()):
                verdict, as_recorded = self._call(one)
                false |= not as_recorded
                verdicts[number, one.place] = Verdict(value=None, reason=OTHER_RESULT) if false else verdict
            if not message.tool_calls:
                verdict = self._text(message)
                verdicts[number, None] = Verdict(value=None, reason=OTHER_RESULT) if false else verdict
        return verdicts

    def _text(self, message: Message) -> Verdict:
        if not self.environment.step(message.content or "").done:
            return Verdict(value=None, reason="a text on the way: the state does not say")
        wrong = self._wrong(self.now)
        if not wrong:
            return Verdict(value=1, reason="ends in the gold run's end state")
        return Verdict(value=-1, reason=f"ends too early: {_named(wrong)} not as at the gold run's end")

    def _call(self, one: CallResult) -> tuple[Verdict, bool]:
        """The verdict, and whether the result is the recorded one."""
        observation = self.environment.step(one.call)
        recorded = one.result is None or (one.result.content or "") == observation.text
        before, self.now = self.now, _leaves(self.environment.state())
        return self._judged(one.call, observation, before), recorded

    def _judged(self, call: ToolCall, observation: Observation, before: dict[str, JsonValue]) -> Verdict:
        changed = {at for at in before.keys() | self.now.keys() if before.get(at) != self.now.get(at)}
        wrong_before, wrong = self._wrong(before), self._wrong(self.now)
        fixed, spoilt = changed & wrong_before - wrong, changed & wrong
        place = next((at for at, (gold, _) in enumerate(self.gold) if _equal(gold, call)), None)
        if observation.error and not changed:
            if place is None and call.name in self.tools:
                return Verdict(value=-1, reason=f"wrong argument: {observation.text[:200]}")
            return Verdict(value=0, reason="harmless: it fails, and nothing changes")
        if place is None and not changed:  # the same may be learned in another way
            place = next((at for at, (_, text) in enumerate(self.gold) if text == observation.text), None)
        otherwise = any(gold.name == call.name for gold, _ in self.gold)
        if place is not None:
            self.gold.pop(place)
            self.damaged -= fixed
            if place and self.order == "gold":
                first = self.gold[0][0].name
                return Verdict(value=-1, reason=f"wrong order: the gold run calls {first} before")
            return Verdict(value=1, reason="needed: the gold run does it")
        if not changed:
            return Verdict(value=0, reason="harmless: nothing changes")
        if spoilt:
            self.damaged |= spoilt
            what = "wrong argument" if otherwise else "damaging"
            return Verdict(value=-1, reason=f"{what}: {_named(spoilt)} not as at the gold run's end")
        repairs = bool(fixed & self.damaged)
        self.damaged -= fixed
        return Verdict(value=1, reason=f"{'repairs' if repairs else 'needed'}: {_named(fixed)}")

    def _wrong(self, state: dict[str, JsonValue]) -> set[str]:
        return {
            at for at in state.keys() | self.end.keys() if state.get(at, _NONE) != self.end.get(at, _NONE)
        }


_NONE = "\0absent"


def _leaves(state: JsonValue) -> dict[str, JsonValue]:
    """The parts of a state, each with its path. An empty object or list is a part."""
    leaves: dict[str, JsonValue] = {}
    pending: list[tuple[str, JsonValue]] = [("", state)]
    while pending:
        path, value = pending.pop()
        inner: Any = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        )
        if inner:
            pending += [(f"{path}/{key}", one) for key, one in inner]
        else:
            leaves[path] = value
    return leaves


def _equal(gold: ToolCall, call: ToolCall) -> bool:
    return gold.name == call.name and call_arguments(gold) == call_arguments(call)


def _named(paths: set[str]) -> str:
    shown = ", ".join(sorted(paths)[:3])
    return (shown + (f" and {len(paths) - 3} more" if len(paths) > 3 else ""))[:300]
