"""Choosing one of several runs of an agent, next to the choices that read no content.

Whatever chooses is compared with five rules that cost nothing: a random run, the shortest, the one with
fewest steps, with fewest failed calls, and whose last call succeeded. On 445 runs of Terminal-Bench the
shortest run reaches most of what a judge with a tournament does, so no choice is called better unless the
interval of its difference to the best of these rules lies above zero.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surefoot.evaluation.columns import StepLayout, TraceFacts
from surefoot.evaluation.measures import Measured
from surefoot.evaluation.verdict import Conclusion, chosen
from surefoot.failures import result_failed
from surefoot.io.tables import Facts
from surefoot.records import Trace
from surefoot.stats.bootstrap import FloatArray, bootstrap_totals

FreeRule = Literal["shortest", "fewest_steps", "fewest_failures", "last_call"]

RANDOM: Final = "random"
ORACLE: Final = "oracle"


def _characters(trace: Trace) -> float:
    """Of what the run added: all but instructions and the user's messages."""
    return sum(
        len(message.content or "")
        + len(message.readable_reasoning)
        + sum(len(call.arguments) for call in message.tool_calls)
        for message in trace.messages
        if message.role in ("assistant", "tool")
    )


def _failed(trace: Trace) -> list[bool]:
    return [bool(result_failed(message)) for message in trace.messages if message.role == "tool"]


FREE_RULES: Final[Mapping[FreeRule, Callable[[Trace], float]]] = MappingProxyType(
    {
        "shortest": _characters,
        "fewest_steps": lambda trace: sum(message.role == "assistant" for message in trace.messages),
        "fewest_failures": lambda trace: sum(_failed(trace)),
        "last_call": lambda trace: float(_failed(trace)[-1:] != [False]),
    }
)
"""What a rule minimises: characters of what agent and tools wrote, messages of the agent, failed calls, or
whether the last answered call failed (a run without one counts as failed)."""


@dataclass(frozen=True, kw_only=True)
class TaskRuns:
    """The runs of one task, without their contents."""

    costs: Mapping[str, ArrayLike]
    """By rule: a number for each run; the lowest is chosen, and equal ones share the choice."""
    correct: ArrayLike
    """An unknown outcome is ``False``."""


class RuleChances:
    """By rule the chance that the chosen run of a task succeeded, if ties are broken at random."""

    def __init__(self, tasks: Iterable[TaskRuns] = ()) -> None:
        self.runs = 0
        self.of: dict[str, array[float]] = {}
        for task in tasks:
            self.add(task)

    def __len__(self) -> int:
        return len(self.of.get(RANDOM, ()))

    def add(self, task: TaskRuns) -> None:
        """Add a task; each has the same rules."""
        correct = np.asarray(task.correct, dtype=float)
        self.runs += len(correct)
        for name, values in task.costs.items():
            costs = np.asarray(values, dtype=float)
            self._add(name, float(correct[costs == costs.min()].mean()))
        self._add(RANDOM, float(correct.mean()))
        self._add(ORACLE, float(correct.max()))

    def _add(self, name: str, share: float) -> None:
        self.of.setdefault(name, array("d")).append(share)


class RunTable:
    """The traces of a file, without their contents."""

    def __init__(self, traces: Iterable[TraceFacts]) -> None:
        self.answers: list[str | None] = []
        outcomes, costs = array("b"), array("d")
        self.numbers, self.starts = array("q"), array("q")
        """Number and position of each trace's line."""

        def facts() -> Iterator[Facts]:
            for trace in traces:
                record = trace.record
                self.answers.append(trace.answer)
                outcomes.append(-1 if trace.outcome is None else trace.outcome)
                costs.extend(_NO_RUN if record is None else (rule(record) for rule in FREE_RULES.values()))
                costs.append(trace.characters if record is None else _of_solution(record))
                costs.append(record is not None and any(message.tool_calls for message in record.messages))
                self.numbers.append(trace.number)
                self.starts.append(trace.start)
                yield Facts(trace.id, trace.problem_id, trace.steps)

        self.layout = StepLayout(facts())
        self.outcomes = np.frombuffer(outcomes, dtype=np.int8)
        """[traces]: 1 correct, 0 wrong, -1 unknown."""
        *free, self.characters, is_run = np.frombuffer(costs).reshape(-1, len(FREE_RULES) + 2).T
        self.free: dict[str, FloatArray] = dict(zip(FREE_RULES, free, strict=True))
        """By rule what it minimises, [traces]."""
        self.is_run = is_run > 0
        """[traces]: whether it calls tools."""

    def groups(self) -> list[NDArray[np.intp]]:
        """The traces of each problem, in the order of their first ones."""
        order = np.argsort(self.layout.problem, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(self.layout.problem[order])) + 1)


_NO_RUN: Final = (0.0, 0.0, 0.0, 1.0)
"""What the free rules say of a text."""


def _of_solution(trace: Trace) -> int:
    """Characters of a solution."""
    return len(trace.text or "") + sum(
        len(message.content or "") for message in trace.messages if message.role == "assistant"
    )


def compare_choices(
    tasks: Iterable[TaskRuns] | RuleChances,
    *,
    free_rules: Sequence[str] = (*FREE_RULES,),
    draws: int = 10_000,
    seed: int = 0,
) -> Measured:
    """Compare every rule on ``tasks``, paired by task, with 95 % intervals over tasks.

    Of ``choices`` the share of the tasks whose chosen run succeeded (``solved``), its difference from a
    random run, and for those that read the runs the one from ``best_free``, the best of ``free_rules`` on
    these tasks. Raises ``ValueError`` without tasks.
    """
    chances = tasks if isinstance(tasks, RuleChances) else RuleChances(tasks)
    if not chances:
        raise ValueError("'tasks' is empty; give the runs of at least one task")
    named = [name for name in chances.of if name not in (*free_rules, RANDOM, ORACLE)]
    shares = {name: np.frombuffer(chances.of[name]) for name in (*named, *free_rules, RANDOM, ORACLE)}
    free = max((RANDOM, *free_rules), key=lambda name: shares[name].mean())

    free_of = dict.fromkeys(named, free)
    pairs = [(name, RANDOM) for name in shares] + list(free_of.items())
    columns = [*shares.values(), *(shares[name] - shares[other] for name, other in pairs)]
    means = bootstrap_totals(
        [np.stack(columns, axis=1)],
        lambda totals: totals[:, 0] / len(chances),
        draws=draws,
        rng=np.random.default_rng(seed),
    )
    solved = dict(zip(shares, means, strict=False))
    less = dict(zip(pairs, means[len(shares) :], strict=True))
    return Measured(
        tasks=len(chances),
        runs=chances.runs,
        best_free=free,
        choices=[
            Measured(
                name=name,
                solved=solved[name],
                over_random=less[name, RANDOM],
                over_free=less[name, free] if name in named else None,
            )
            for name in shares
        ],
    )


def choice_verdict(result: Measured, name: str) -> Conclusion:
    """Whether a choice is better than the best that reads nothing, or one that reads nothing than a random
    run."""
    rows = {choice.name: choice for choice in result.choices}
    over_random, over_free = rows[name].over_random, rows[name].over_free
    rivals = [RANDOM] if over_free is None else [RANDOM, result.best_free]
    free = {rival: rows[rival].solved for rival in rivals}
    return chosen(rows[name].solved, free, over_free or over_random, "", result.tasks)
