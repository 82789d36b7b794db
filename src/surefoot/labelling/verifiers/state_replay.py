"""What each call of an agent's run did to the state: the run is replayed, and compared with a gold run.

The gold run's end is the state to reach. A call that brings a part of the state nearer to it was needed, one
that takes a part away from it is damage, whatever else the run did.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

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

TURNS_KEY: Final = "gold_turns"
"""Key of ``Problem.meta``: how many of the gold calls each turn of the user has."""
OTHER_RESULT = "the run's record of a result is not what the environment answers"
_TRIES = 2
"""Of a gold call: a tool that fails the first time is no part of a gold run."""


@dataclass(frozen=True, kw_only=True)
class StateReplayVerifier:
    """A :class:`surefoot.protocols.StepVerifier` of runs in an environment, by replaying the state.

    The gold calls are in ``meta["gold_actions"]`` of the problem, or of the trace (tau-bench). Where the
    problem's ``meta["gold_turns"]`` says how many of them each turn of the user has, a turn is compared with
    the gold run's state at its own end; elsewhere there is one turn. A call is

    - *needed* (+1): it brings a part of the state to what it is at the end of the gold turn, or the gold run
      makes it, or learns what it learns;
    - *repairs* (+1): the same, of a part that an earlier call had damaged;
    - *harmless* (0): nothing changes;
    - *wrong argument* (-1): it changes something else or fails, and the gold run calls that tool otherwise;
    - *wrong order* (-1), with ``order="gold"`` alone: a gold call before an earlier one of the gold run; if
      it fails and the run makes it again, it is harmless: that is how one learns what comes first;
    - *damaging* (-1): it takes a part of the state away from the gold turn's end, or changes it to neither.

    The text that ends a turn is right (+1) in the gold turn's end state, and wrong elsewhere; with
    ``order="gold"`` also while a gold call of the turn was not made. Other texts are unknown. From
    the first result on that is recorded otherwise than the environment answers, all is unknown: the record is
    false, or the environment is not the run's. A step of several calls has the lowest verdict.
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
        turns = _gold_turns(item, gold)
        replay = _Replay(restorable(make(), "compared"), item, turns, self.order)
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


def _gold_turns(item: ProblemTrace, gold: tuple[ToolCall, ...]) -> list[tuple[ToolCall, ...]]:
    numbers = item.problem.meta.get(TURNS_KEY)
    if numbers is None:
        return [gold]
    if not (
        isinstance(numbers, list)
        and all(isinstance(one, int) and one >= 0 for one in numbers)
        and sum(numbers) == len(gold)
    ):
        raise LabelError(
            f"problem {item.problem.id}: {TURNS_KEY!r} needs the number of gold calls of each turn, "
            f"{len(gold)} in all"
        )
    calls = iter(gold)
    return [tuple(islice(calls, number)) for number in numbers]


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


class _GoldCall(NamedTuple):
    turn: int
    call: ToolCall
    result: str


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
        """Gold calls that the run has not made yet."""
        self.ends: list[dict[str, JsonValue]] = []
        """The state at the end of each gold turn."""
        for turn, calls in enumerate(turns):
            self.gold += [_GoldCall(turn, call, self._gold_step(call).text) for call in calls]
            self.ends.append(_leaves(environment.state()))
        if environment.outcome() is False:
            raise LabelError(f"the gold calls of problem {item.problem.id} do not solve it")
        self.tools = {one.call.name for one in self.gold}
        environment.reset(item.problem, item.trace.seed or 0)
        self.later: deque[ToolCall] = deque()
        """Calls that the run is still to make."""
        self.turn = 0
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
            self.later.append(one.call)
        false = False
        for number, message in enumerate(self.item.trace.messages):
            if message.role != "assistant":
                continue
            for one in calls.get(number, ()):
                self.later.popleft()
                verdict, as_recorded = self._call(one)
                false |= not as_recorded
                verdicts[number, one.place] = Verdict(value=None, reason=OTHER_RESULT) if false else verdict
            if not message.tool_calls:
                verdict = self._text(message)
                verdicts[number, None] = Verdict(value=None, reason=OTHER_RESULT) if false else verdict
        return verdicts

    def _text(self, message: Message) -> Verdict:
        done = self.environment.step(message.content or "").done
        if not done and len(self.ends) == 1:
            return Verdict(value=None, reason="a text on the way: the state does not say")
        wrong, end = self._wrong(self.now), "run" if done else "turn"
        missing = [one.call.name for one in self.gold if one.turn <= self.turn and self.order == "gold"]
        self.turn = min(self.turn + 1, len(self.ends) - 1)
        if wrong:
            return Verdict(value=-1, reason=f"ends too early: {_named(wrong)} not as at the gold {end}'s end")
        if missing:
            return Verdict(value=-1, reason=f"ends too early: the gold {end} calls {missing[0]} before")
        return Verdict(value=1, reason=f"ends in the gold {end}'s end state")

    def _call(self, one: CallResult) -> tuple[Verdict, bool]:
        """The verdict, and whether the result is the recorded one."""
        observation = self.environment.step(one.call)
        recorded = one.result is None or (one.result.content or "") == observation.text
        before, self.now = self.now, _leaves(self.environment.state())
        again = any(_equal(later, one.call) for later in self.later)
        return self._judged(one.call, observation, before, again=again), recorded

    def _judged(
        self, call: ToolCall, observation: Observation, before: dict[str, JsonValue], *, again: bool
    ) -> Verdict:
        changed = {at for at in before.keys() | self.now.keys() if before.get(at) != self.now.get(at)}
        wrong_before, wrong = self._wrong(before), self._wrong(self.now)
        fixed, spoilt = changed & wrong_before - wrong, changed & wrong
        place = next((at for at, one in enumerate(self.gold) if _equal(one.call, call)), None)
        if observation.error and not changed:
            too_early = self._made_too_early(place)
            if too_early and not again:
                return Verdict(value=-1, reason=too_early)
            if place is None and call.name in self.tools:
                return Verdict(value=-1, reason=f"wrong argument: {observation.text[:200]}")
            return Verdict(value=0, reason="harmless: it fails, and nothing changes")
        if place is None and not changed:  # the same may be learned in another way
            place = next((at for at, one in enumerate(self.gold) if one.result == observation.text), None)
        otherwise = any(one.call.name == call.name for one in self.gold)
        if place is not None:
            too_early = self._made_too_early(place)
            self.gold.pop(place)
            self.damaged -= fixed
            if too_early:
                return Verdict(value=-1, reason=too_early)
            return Verdict(value=1, reason="needed: the gold run does it")
        if not changed:
            return Verdict(value=0, reason="harmless: nothing changes")
        if spoilt:
            self.damaged |= spoilt
            what = "wrong argument" if otherwise else "damaging"
            return Verdict(value=-1, reason=f"{what}: {_named(spoilt)} not as the gold run has them")
        repairs = bool(fixed & self.damaged)
        self.damaged -= fixed
        return Verdict(value=1, reason=f"{'repairs' if repairs else 'needed'}: {_named(fixed)}")

    def _made_too_early(self, place: int | None) -> str:
        """Why a gold call comes too early, if it does and that matters."""
        if place is None or self.order == "any":
            return ""
        turn = self.gold[place].turn
        # what an earlier turn left out was wrong there, and is not told again
        before = [one.call.name for one in self.gold[:place] if self.turn <= one.turn <= turn]
        return f"wrong order: the gold run calls {before[0]} before" if before else ""

    def _wrong(self, state: dict[str, JsonValue]) -> set[str]:
        """Parts that are not as at the end of the gold turn."""
        end = self.ends[self.turn]
        return {at for at in state.keys() | end.keys() if state.get(at, _NONE) != end.get(at, _NONE)}


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
