"""Choosing one of several runs of an agent, next to the choices that read no content.

Whatever chooses is compared with five rules that cost nothing: a random run, the shortest, the one with
fewest steps, with fewest failed calls, and whose last call succeeded. On 445 runs of Terminal-Bench the
shortest run reaches most of what a judge with a tournament does, so no choice is called better unless the
interval of its difference to the best of these rules lies above zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

import numpy as np

from surefoot.evaluation.measures import Measured
from surefoot.evaluation.verdict import Conclusion, chosen
from surefoot.failures import result_failed
from surefoot.records import Trace
from surefoot.stats.bootstrap import FloatArray, bootstrap_difference, bootstrap_mean
from surefoot.stats.intervals import Interval

FreeRule = Literal["shortest", "fewest_steps", "fewest_failures", "last_call"]

RANDOM: Final = "random"
ORACLE: Final = "oracle"


def is_agent_run(trace: Trace) -> bool:
    """Whether the trace calls tools."""
    return any(message.tool_calls for message in trace.messages)


def _characters(trace: Trace) -> float:
    return sum(
        len(message.content or "")
        + len(message.readable_reasoning)
        + sum(len(call.arguments) for call in message.tool_calls)
        for message in trace.messages
        if message.role in ("assistant", "tool")  # which the run added
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

    costs: Mapping[str, Sequence[float]]
    """By rule: a number for each run; the lowest is chosen, and equal ones share the choice."""
    correct: Sequence[bool]
    """An unknown outcome is ``False``."""


def task_runs(traces: Sequence[Trace], scores: Mapping[str, Sequence[float | None]]) -> TaskRuns:
    """The runs of one task; ``scores`` has other choices by name, of which the highest is chosen.

    An unscored run is chosen after all scored ones.
    """
    costs: dict[str, Sequence[float]] = {name: list(map(rule, traces)) for name, rule in FREE_RULES.items()}
    costs |= {
        name: [np.inf if value is None else -value for value in values] for name, values in scores.items()
    }
    return TaskRuns(costs=costs, correct=[trace.outcome is True for trace in traces])


def compare_choices(
    tasks: Sequence[TaskRuns],
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
    if not tasks:
        raise ValueError("'tasks' is empty; give the runs of at least one task")
    named = [name for name in tasks[0].costs if name not in free_rules]
    shares = {name: _solved(tasks, name) for name in (*named, *free_rules)}
    shares[RANDOM] = np.array([np.mean(task.correct) for task in tasks])
    free = max((RANDOM, *free_rules), key=lambda name: shares[name].mean())
    shares[ORACLE] = np.array([float(any(task.correct)) for task in tasks])

    def less(name: str, other: str) -> Interval:
        rng = np.random.default_rng(seed)
        return bootstrap_difference(shares[name], shares[other], draws=draws, rng=rng)

    return Measured(
        tasks=len(tasks),
        runs=sum(len(task.correct) for task in tasks),
        best_free=free,
        choices=[
            Measured(
                name=name,
                solved=bootstrap_mean(values, draws=draws, rng=np.random.default_rng(seed)),
                over_random=less(name, RANDOM),
                over_free=less(name, free) if name in named else None,
            )
            for name, values in shares.items()
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


def _solved(tasks: Sequence[TaskRuns], name: str) -> FloatArray:
    """[tasks]: the chance that the chosen run succeeded, if ties are broken at random."""
    shares = []
    for task in tasks:
        costs = np.array(task.costs[name], dtype=float)
        shares.append(np.array(task.correct, dtype=float)[costs == costs.min()].mean())
    return np.array(shares)
