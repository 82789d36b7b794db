"""Gold runs, runs with one injected fault, and correct variants of gold runs, in BFCL and in the shop."""

from __future__ import annotations

import json
import random
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.figures import Figures, figure
from benchmarks.worlds.bfcl import BFCL, read_bfcl
from benchmarks.worlds.shop import Shop, generate_tasks, judge_steps
from surefoot import run_sync
from surefoot.labelling import ExpertLabeller, StateReplayVerifier, ToolCallVerifier, VerifierLabeller
from surefoot.protocols import ProblemTrace, RestorableEnvironment
from surefoot.records import Message, Problem, ToolCall, Trace
from surefoot.segment import cut_trace
from surefoot.stats import bootstrap_totals

TRIES = 40
"""Places and replacements that are tried for one fault."""
HEADLINE = "replay_in_order_rules"
FLOORS = ("last_wrong_iff_failed", "last_wrong", "random_step")

World = Callable[[], RestorableEnvironment]
Defaults = Mapping[str, Mapping[str, Any]]
"""Defaults of the optional arguments of each tool."""
Turns = list[list[ToolCall]]


@dataclass(frozen=True, kw_only=True)
class Played:
    """A run, the state at its end, and which of its steps is wrong."""

    item: ProblemTrace
    end: object
    fault: int | None = None

    @property
    def solved(self) -> bool:
        return self.item.trace.outcome is True


def play(
    make: World,
    task: Problem,
    turns: Turns,
    *,
    claim: tuple[int, str] | None = None,
    fault: int | None = None,
) -> Played:
    """Make the calls; ``claim`` is a turn and what its text quotes in place of the last result."""
    world = make()
    messages = list(world.reset(task))
    for number, calls in enumerate(turns):
        text = "Done."
        for place, call in enumerate(calls):
            named = call.model_copy(update={"id": f"call-{number}-{place}"})
            observation = world.step(named)
            messages.append(Message(role="assistant", tool_calls=(named,)))
            messages.append(Message(role="tool", tool_call_id=named.id, content=observation.text))
            text = f"Done. The last result was: {observation.text[:80]}"
        if claim is not None and claim[0] == number:
            text = f"Done. The last result was: {claim[1]}"
        messages.append(Message(role="assistant", content=text))
        answer = world.step(text)
        if not answer.done:
            messages.append(Message(role="user", content=answer.text))
    end = world.state()
    trace = Trace(problem_id=task.id, messages=tuple(messages), tools=world.tools, outcome=world.outcome())
    return Played(item=ProblemTrace(problem=task, trace=cut_trace(trace)), end=end, fault=fault)


def gold_turns(task: Problem) -> Turns:
    calls = (
        ToolCall(name=item["name"], arguments=json.dumps(item["arguments"]))
        for item in task.meta["gold_actions"]
    )
    numbers = task.meta.get("gold_turns", [len(task.meta["gold_actions"])])
    return [[next(calls) for _ in range(number)] for number in numbers]


def results(run: Played) -> list[str]:
    return [message.content or "" for message in run.item.trace.messages if message.role == "tool"]


def calls_with_results(run: Played) -> Counter[tuple[str, str, str]]:
    calls = [call for message in run.item.trace.messages for call in message.tool_calls]
    return Counter(
        (call.name, call.arguments, result) for call, result in zip(calls, results(run), strict=True)
    )


def step_at(turns: Turns, turn: int, place: int) -> int:
    """Number of the step of a call, or of the text that ends the turn: each is one step."""
    return sum(len(calls) + 1 for calls in turns[:turn]) + place


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Makes faulty runs and correct variants of one task."""

    make: World
    task: Problem
    turns: Turns
    gold: Played
    foreign: Sequence[ToolCall]
    """Calls of other tasks that this one declares and does not make."""
    defaults: Defaults
    correct: Callable[[ProblemTrace], bool]
    """Whether the world has nothing against a variant."""
    rng: random.Random

    def made(self) -> Iterator[tuple[str, Played]]:
        for kind, make in {**KINDS, **VARIANTS}.items():
            for _ in range(TRIES):
                run = make(self)
                if run is not None:
                    yield kind, run
                    break

    def _place(self, least: int = 1) -> tuple[int, int] | None:
        """A turn with so many calls, and one of these."""
        turns = [number for number, calls in enumerate(self.turns) if len(calls) >= least]
        if not turns:
            return None
        turn = self.rng.choice(turns)
        return turn, self.rng.randrange(len(self.turns[turn]) - least + 1)

    def _with(self, turn: int, calls: list[ToolCall], place: int) -> Played:
        changed = [*self.turns[:turn], calls, *self.turns[turn + 1 :]]
        return play(self.make, self.task, changed, fault=step_at(self.turns, turn, place))

    def _differs(self, run: Played) -> bool:
        return not run.solved or sorted(results(run)) != sorted(results(self.gold))

    def wrong_argument(self) -> Played | None:
        if (at := self._place()) is None:
            return None
        turn, place = at
        calls = list(self.turns[turn])
        arguments = json.loads(calls[place].arguments)
        if not arguments:
            return None
        name = self.rng.choice(sorted(arguments))
        arguments[name] = self._other(arguments[name])
        calls[place] = calls[place].model_copy(update={"arguments": json.dumps(arguments)})
        run = self._with(turn, calls, place)
        return run if arguments[name] is not None and self._differs(run) else None

    def _other(self, value: Any) -> Any:
        """Another value of the type; of a text, one that other calls of the task give, if there is one."""
        if isinstance(value, bool):
            return not value
        if isinstance(value, int | float):
            return value + self.rng.choice((1, 10, -1))
        if isinstance(value, list):
            return [self._other(item) for item in value] if value else None
        if not isinstance(value, str):
            return None
        given = {
            other
            for calls in self.turns
            for call in calls
            for other in json.loads(call.arguments).values()
            if isinstance(other, str) and other != value
        }
        return self.rng.choice(sorted(given)) if given else f"{value}x"

    def wrong_order(self) -> Played | None:
        if (at := self._place(2)) is None:
            return None
        turn, place = at
        calls = list(self.turns[turn])
        calls[place], calls[place + 1] = calls[place + 1], calls[place]
        run = self._with(turn, calls, place)
        return run if self._differs(run) else None

    def missing_call(self) -> Played | None:
        if (at := self._place()) is None:
            return None
        turn, place = at
        calls = list(self.turns[turn])
        left_out = calls.pop(place)
        if place < len(calls) and calls[place] == left_out:
            return None  # leaving out the second of two equal calls is the same
        return self._with(turn, calls, place)

    def repeated_call(self) -> Played | None:
        if (at := self._place()) is None:
            return None
        turn, place = at
        calls = list(self.turns[turn])
        if calls[place] in calls[place + 1 : place + 2]:
            return None
        calls.insert(place + 1, calls[place])
        return self._with(turn, calls, place + 1)

    def wrong_tool(self) -> Played | None:
        if (at := self._place()) is None or not self.foreign:
            return None
        turn, place = at
        calls = list(self.turns[turn])
        calls[place] = self.rng.choice(self.foreign)
        return self._with(turn, calls, place)

    def hallucinated_observation(self) -> Played | None:
        if (at := self._place()) is None:
            return None
        turn = at[0]
        last = sum(len(calls) for calls in self.turns[: turn + 1]) - 1
        quoted = results(self.gold)[last][:80]
        if not re.search(r"\d", quoted):
            return None
        claimed = re.sub(r"\d+", lambda _: str(self.rng.randrange(10_000, 99_999)), quoted)
        fault = step_at(self.turns, turn, len(self.turns[turn]))
        return play(self.make, self.task, self.turns, claim=(turn, claimed), fault=fault)

    def early_stop(self) -> Played | None:
        last = len(self.turns) - 1
        if not self.turns[last]:
            return None
        kept = self.turns[last][: self.rng.randrange(len(self.turns[last]))]
        return self._with(last, kept, len(kept))

    def damaging_call(self) -> Played | None:
        if (at := self._place()) is None or not self.foreign:
            return None
        turn, place = at
        calls = list(self.turns[turn])
        calls.insert(place, self.rng.choice(self.foreign))
        run = self._with(turn, calls, place)
        return None if run.solved else run

    def _same(self, run: Played) -> bool:
        """Whether every gold call has its gold result, the end is the gold one, and the world agrees."""
        missing = calls_with_results(self.gold) - calls_with_results(run)
        return run.solved and not missing and self.correct(run.item)

    def swapped_calls(self) -> Played | None:
        return self._moved(1)

    def moved_call(self) -> Played | None:
        return self._moved(2)

    def _moved(self, least: int) -> Played | None:
        if (at := self._place(least + 1)) is None:
            return None
        turn, place = at
        calls = list(self.turns[turn])
        latest = place + 1 if least == 1 else len(calls) - 1
        calls.insert(place, calls.pop(self.rng.randint(place + least, latest)))
        run = self._with(turn, calls, place)
        return run if calls != self.turns[turn] and self._same(run) else None

    def read_again(self) -> Played | None:
        if (at := self._place(2)) is None:
            return None
        turn, place = at
        calls = list(self.turns[turn])
        if self._without(turn, place) != self.gold.end:
            return None
        later = self.rng.randint(place + 2, len(calls))
        calls.insert(later, calls[place])
        run = self._with(turn, calls, later)
        return run if calls[later - 1] != calls[place] and self._same(run) else None

    def _without(self, turn: int, place: int) -> object:
        calls = [*self.turns[turn][:place], *self.turns[turn][place + 1 :]]
        return self._with(turn, calls, place).end

    def default_argument(self) -> Played | None:
        if (at := self._place()) is None:
            return None
        turn, place = at
        calls = list(self.turns[turn])
        call, arguments = calls[place], json.loads(calls[place].arguments)
        defaults = self.defaults.get(call.name, {})
        optional = [name for name, value in defaults.items() if arguments.get(name, value) == value]
        if not optional:
            return None
        name = self.rng.choice(sorted(optional))
        if name in arguments:
            del arguments[name]
        else:
            arguments[name] = defaults[name]
        calls[place] = call.model_copy(update={"arguments": json.dumps(arguments)})
        run = self._with(turn, calls, place)
        return run if run.solved and results(run) == results(self.gold) else None


Kinds = Mapping[str, Callable[[Changes], Played | None]]
KINDS: Kinds = {
    "wrong-argument": Changes.wrong_argument,
    "wrong-order": Changes.wrong_order,
    "missing-call": Changes.missing_call,
    "repeated-call": Changes.repeated_call,
    "wrong-tool": Changes.wrong_tool,
    "hallucinated-observation": Changes.hallucinated_observation,
    "early-stop": Changes.early_stop,
    "damaging-call": Changes.damaging_call,
}
VARIANTS: Kinds = {
    "swapped-calls": Changes.swapped_calls,
    "moved-call": Changes.moved_call,
    "read-again": Changes.read_again,
    "default-argument": Changes.default_argument,
}


def make_runs(
    make: World,
    tasks: Sequence[Problem],
    seed: int,
    *,
    defaults: Defaults = MappingProxyType({}),
    correct: Callable[[ProblemTrace], bool] = lambda _: True,
) -> tuple[list[Played], dict[str, list[Played]], int]:
    """Gold runs, faulty runs and variants by kind, and how many tasks' gold calls miss their own end."""
    golds, made, broken = [], {kind: [] for kind in (*KINDS, *VARIANTS)}, 0
    turns_of = {task.id: gold_turns(task) for task in tasks}
    everything = sorted(
        {(call.name, call.arguments) for turns in turns_of.values() for calls in turns for call in calls}
    )
    for task in tasks:
        turns = turns_of[task.id]
        gold = play(make, task, turns)
        if not gold.solved:
            broken += 1
            continue
        golds.append(gold)
        declared = {tool.name for tool in gold.item.trace.tools}
        called = {call.name for calls in turns for call in calls}
        foreign = [
            ToolCall(name=name, arguments=arguments)
            for name, arguments in everything
            if name in declared - called
        ]
        rng = random.Random(f"{seed} {task.id}")
        changes = Changes(
            make=make,
            task=task,
            turns=turns,
            gold=gold,
            foreign=foreign,
            defaults=defaults,
            correct=correct,
            rng=rng,
        )
        for kind, run in changes.made():
            made[kind].append(run)
    return golds, made, broken


Wrong = list[list[float]]
"""Chance that each step of each run is called wrong first; 1 - sum = that none is."""


def sources(make: World, runs: Sequence[Played], golds: Sequence[Played]) -> dict[str, tuple[Wrong, float]]:
    """First steps called wrong by source, and milliseconds a step."""
    items = [run.item for run in runs]
    steps = max(sum(len(item.trace.steps) for item in items), 1)
    rules, replay = ToolCallVerifier(), StateReplayVerifier(environment=make)
    in_order = StateReplayVerifier(environment=make, order="gold")
    experts = {gold.item.problem.id: [gold.item.trace] for gold in golds}
    labellers = {
        "rules": VerifierLabeller(verifiers=(rules,)),
        "replay": VerifierLabeller(verifiers=(replay,)),
        "replay_in_order": VerifierLabeller(verifiers=(in_order,)),
        "replay_rules": VerifierLabeller(verifiers=(replay, rules)),
        HEADLINE: VerifierLabeller(verifiers=(in_order, rules)),
        "expert": ExpertLabeller(experts=experts, match="tool-call", disagreement="wrong"),
    }
    found: dict[str, tuple[Wrong, float]] = {}
    for name, labeller in labellers.items():
        started = time.perf_counter()
        labels = run_sync(labeller.label(items))
        first = [next((at for at, item in enumerate(row) if item.value == -1), None) for row in labels]
        called = [
            [float(at == step) for step in range(len(row))] for at, row in zip(first, labels, strict=True)
        ]
        found[name] = (called, 1000 * (time.perf_counter() - started) / steps)
    lengths = [len(item.trace.steps) for item in items]
    last = [[0.0] * (length - 1) + [1.0] for length in lengths]
    failed = [[item * (not run.solved) for item in row] for row, run in zip(last, runs, strict=True)]
    even = [[1 / length] * length for length in lengths]
    return found | {name: (called, 0.0) for name, called in zip(FLOORS, (failed, last, even), strict=True)}


def measure(
    world: str, make: World, tasks: Sequence[Problem], *, seed: int, draws: int, **settings: Any
) -> Figures:
    """All figures; see the top of this file, and :func:`make_runs` for ``settings``."""
    golds, made, broken = make_runs(make, tasks, seed, **settings)
    groups = {gold.item.problem.id: at for at, gold in enumerate(golds)}
    of_gold = sources(make, golds, golds)
    of_kind = {kind: sources(make, runs, golds) for kind, runs in made.items()}
    figures, detected = [], {}
    for name in of_gold:
        counts = np.zeros((len(golds), 2 + 3 * len(made)))
        counts[:, 0] = 1
        counts[:, 1] = [sum(row) for row in of_gold[name][0]]
        for at, (kind, runs) in enumerate(made.items()):
            for run, called in zip(runs, of_kind[kind][name][0], strict=True):
                row = counts[groups[run.item.problem.id], 2 + 3 * at : 5 + 3 * at]
                row += (1, sum(called), called[run.fault or 0])
        alarms, found, placed, variant_alarms, *by_kind = bootstrap_totals(
            [counts], rates, draws=draws, rng=np.random.default_rng(0)
        )
        detected[name] = found
        figures += [figure(f"detected_{name}", 100 * found), figure(f"placed_{name}", 100 * placed)]
        figures.append(figure(f"gold_alarms_{name}", 100 * alarms))
        figures.append(figure(f"variant_alarms_{name}", 100 * variant_alarms))
        for at, kind in enumerate(made):
            if not made[kind]:
                continue
            if kind in VARIANTS:
                figures.append(figure(f"variant_alarms_{kind}_{name}", 100 * by_kind[2 * at]))
                continue
            figures.append(figure(f"detected_{kind}_{name}", 100 * by_kind[2 * at]))
            figures.append(figure(f"placed_{kind}_{name}", 100 * by_kind[2 * at + 1]))
        if of_gold[name][1]:
            figures.append(figure(f"ms_{name}", of_gold[name][1], "ms a step"))
    for kind, runs in made.items():
        if runs and kind in KINDS:
            share = 100 * sum(not run.solved for run in runs) / len(runs)
            figures.append(figure(f"changes_end_{kind}", share, "%"))
        figures.append(figure(f"runs_{kind}", len(runs), "runs"))
    floor = detected["last_wrong_iff_failed"].value
    best = detected[HEADLINE]
    headline = figure(f"fault_detection_{world}", 100 * best, ratio=best.value / floor)
    unusable = figure("gold_calls_that_fail", broken, f"of {len(tasks)} tasks")
    return [headline, unusable, *figures]


def rates(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Alarms at gold runs; detection, position and alarms at variants, means over kinds; detection and
    position by kind. [n, 1, C] to [n, K]."""
    summed = totals.sum(axis=1)
    with np.errstate(invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a kind that no drawn task has
        alarms = summed[:, 1:2] / summed[:, :1]
        kinds = summed[:, 2:].reshape(len(summed), -1, 3)
        by_kind = kinds[:, :, 1:] / kinds[:, :, :1]
        faults = np.nanmean(by_kind[:, : len(KINDS)], axis=1)
        variants = np.nanmean(by_kind[:, len(KINDS) :, :1], axis=1)
    return np.concatenate([alarms, faults, variants, by_kind.reshape(len(summed), -1)], axis=1)


def bfcl_figures(quick: bool) -> Figures:
    """The figures on ``multi_turn_base``; on each tenth task with ``quick``. Raises ``MissingExtraError``."""
    tasks = list(read_bfcl())
    documents = resources.files("bfcl_eval").joinpath("data/multi_turn_func_doc").iterdir()
    tools = [json.loads(line) for document in documents for line in document.read_text().splitlines()]
    defaults = {
        tool["name"]: {
            name: described["default"]
            for name, described in tool["parameters"]["properties"].items()
            if "default" in described and name not in tool["parameters"]["required"]
        }
        for tool in tools
    }
    return measure(
        "bfcl",
        BFCL,
        tasks[::10] if quick else tasks,
        seed=0,
        draws=100 if quick else 1000,
        defaults=defaults,
    )


class EndState(Shop):
    """The shop where only its state at the end counts: gold runs do not report to the customer."""

    def outcome(self) -> bool:
        """Whether all is done and nothing else is changed."""
        return self.steps_left() == 0


def shop_figures(quick: bool) -> Figures:
    """The figures in the shop, on fewer tasks with ``quick``."""
    tasks = generate_tasks(60 if quick else 430, seed=9000)
    tasks = [task for task in tasks if task.meta["shop"]["times_out"] is None]
    draws = 100 if quick else 1000
    figures = measure("shop", EndState, tasks, seed=0, draws=draws, correct=no_call_is_wrong)
    return [{**row, "name": row["name"].removesuffix("_shop") + "_shop"} for row in figures]


def no_call_is_wrong(item: ProblemTrace) -> bool:
    calls = (step for step in range(len(item.trace.steps)) if item.trace.calls_of(step))
    truths = judge_steps(item)
    return all(truths[step].value >= 0 for step in calls)
