"""Results of tau-bench (arXiv 2406.12045) and tau2 (arXiv 2506.07982): an agent, a simulated user and tools.

A run's reward is its outcome; the task's gold actions are in ``meta["gold_actions"]`` as ``name`` and
``arguments``. The problem is what the simulated user was told, which is one for all runs of a task.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from surefoot.errors import RecordError
from surefoot.formats._imports import (
    IMPORT_KEY,
    ImportContext,
    ImportedTrace,
    check_assistant,
    check_origin,
    raw_rows,
    row_note,
    task_of,
)
from surefoot.formats._results import TraceResults
from surefoot.formats._rows import write_rows
from surefoot.io.atomic import write_json
from surefoot.records import Message, Problem, Tool, Trace, Usage, content_id

TAU: Final = "tau-bench"
TAU2: Final = "tau2"
GOLD_KEY: Final = "gold_actions"
"""Where ``Trace.meta`` has the calls that solve the task."""

_TOLD = ("reason_for_call", "known_info", "unknown_info", "task_instructions")
_OWN = "surefoot"


def is_tau_bench(row: Mapping[str, Any]) -> bool:
    """Whether a row is a run of tau-bench."""
    return "traj" in row and "reward" in row


def is_tau2(row: Mapping[str, Any]) -> bool:
    """Whether a row is tau2's results, or one simulation in a file of its own."""
    return (
        isinstance(row.get("simulations"), list)
        or {"task_id", "termination_reason", "messages"} <= row.keys()
    )


def read_tau_bench(path: Path | str, context: ImportContext) -> Iterator[ImportedTrace]:
    """One trace per run. The files have no schemas of tools."""
    return context.rows(raw_rows(path), lambda number, row: [_tau_trace(number, row, context)])


def read_tau2(path: Path | str, context: ImportContext) -> Iterator[ImportedTrace]:
    """One trace per simulation, with the agent's policy as its system message, and its tools.

    Of a simulation in a file of its own policy, tools and gold actions are not known. The calls of the user's
    own tools are the user's messages. Simulations of voice have no messages, and are refused.
    """

    def simulations() -> Iterator[tuple[int, Any]]:
        count = 0
        for number, row in raw_rows(path):
            if isinstance(row, ValueError):
                yield number, row
                continue
            for simulation in _simulations(row):
                count += 1
                yield count, (row, simulation)

    return context.rows(simulations(), lambda number, pair: [_tau2_trace(number, pair[0], pair[1], context)])


def write_tau2(original: Path, path: Path, results: Mapping[str, TraceResults]) -> int:
    """Copy the results ``original`` with labels and scores in ``surefoot`` of each simulation that has any.

    The steps there name messages as the simulation numbers them. Returns the number of simulations changed.
    Raises ``RecordError`` if one is of another file.
    """
    rows, count = [], 0
    for _, row in raw_rows(original):
        if isinstance(row, ValueError):
            continue
        for simulation in _simulations(row):
            count += 1
            if (found := results.get(str(count))) and isinstance(simulation, dict):
                check_origin(original, f"simulation {count}", simulation.get("messages"), found)
                simulation[_OWN] = _results(found)
        rows.append(row)
    if len(rows) == 1 and path.suffix == ".json":
        write_json(path, rows[0])
    else:
        write_rows(path, rows)
    return len(results)


def _tau_trace(number: int, row: Any, context: ImportContext) -> ImportedTrace:
    if not isinstance(row, Mapping) or not isinstance(row.get("traj"), list):
        raise RecordError("a run of tau-bench has its messages in 'traj'")
    task = (row.get("info") or {}).get("task") or {}
    messages = context.messages(row["traj"])
    check_assistant(messages)
    problem = Problem(text=task.get("instruction") or task_of(messages), source=TAU)
    gold = [{"name": one["name"], "arguments": one.get("kwargs") or {}} for one in task.get("actions") or ()]
    trace = Trace(
        problem_id=problem.id,
        messages=messages,
        outcome=_outcome(row.get("reward")),
        sample=int(row.get("trial") or 0),
        meta={
            IMPORT_KEY: row_note(TAU, number, row),
            GOLD_KEY: gold,
            "tau_bench": {
                "task_id": row.get("task_id"),
                "reward": row.get("reward"),
                "user_id": task.get("user_id"),
                "outputs": task.get("outputs"),
            },
        },
    )
    return ImportedTrace(problem=problem, trace=trace)


def _simulations(row: Any) -> list[Any]:
    """Those of results, or the one that ``row`` is."""
    found = row.get("simulations") if isinstance(row, Mapping) else None
    return found if isinstance(found, list) else [row]


def _tau2_trace(number: int, row: Any, simulation: Any, context: ImportContext) -> ImportedTrace:
    if not isinstance(simulation, Mapping) or not simulation.get("messages"):
        raise RecordError("a simulation without 'messages' (one of voice has 'ticks'), so there is no text")
    info = row.get("info") or {}
    world = info.get("environment_info") or {}
    flat, at = _flattened(simulation["messages"])
    policy = simulation.get("policy") or world.get("policy")
    if policy and flat[0].get("role") != "system":
        flat, at = [{"role": "system", "content": policy}, *flat], [None, *at]
    messages = context.messages(flat)
    check_assistant(messages)
    task = _task(row, simulation.get("task_id"))
    criteria = task.get("evaluation_criteria") or {}
    reward = (simulation.get("reward_info") or {}).get("reward")
    problem = Problem(text=_told(task, messages), source=TAU2)
    trace = Trace(
        id=str(simulation.get("id") or ""),
        problem_id=problem.id,
        messages=messages,
        tools=tuple(_tool(name, one) for name, one in (world.get("tool_defs") or {}).items()),
        outcome=_outcome(reward),
        policy=(info.get("agent_info") or {}).get("llm"),
        seed=simulation.get("seed"),
        sample=int(simulation.get("trial") or 0),
        finish_reason=simulation.get("termination_reason"),
        usage=_usage(flat),
        meta={
            IMPORT_KEY: {
                "format": TAU2,
                "simulation": number,
                "at": at,
                "hash": content_id(simulation["messages"]),
            },
            GOLD_KEY: [
                {name: one.get(name) for name in ("name", "arguments", "requestor")}
                for one in criteria.get("actions") or ()
            ],
            "tau2": {
                "task_id": simulation.get("task_id"),
                "domain": world.get("domain_name"),
                "reward_info": simulation.get("reward_info"),
            },
        },
    )
    return ImportedTrace(problem=problem, trace=trace)


def _flattened(rows: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[int | None]]:
    """One row for each message, and the index of the simulation's message that it is of."""
    flat: list[dict[str, Any]] = []
    at: list[int | None] = []
    for number, row in enumerate(rows):
        own = [_answer(one) for one in row["tool_messages"]] if "tool_messages" in row else [_answer(row)]
        flat += own
        at += [number] * len(own)
    return flat, at


def _answer(row: Mapping[str, Any]) -> dict[str, Any]:
    """A message; a tool's names the call that it answers in ``id``."""
    return {**row, "tool_call_id": row.get("id")} if row.get("role") == "tool" else dict(row)


def _task(row: Mapping[str, Any], name: object) -> Mapping[str, Any]:
    return next((one for one in row.get("tasks") or () if one.get("id") == name), {})


def _told(task: Mapping[str, Any], messages: Sequence[Message]) -> str:
    """What the simulated user was told; else what it said first, perhaps after the agent's greeting."""
    told = (task.get("user_scenario") or {}).get("instructions")
    if isinstance(told, Mapping):
        told = "\n\n".join(str(told[name]) for name in _TOLD if told.get(name))
    said = next((one.content for one in messages if one.role == "user" and one.content), None)
    return str(told or task.get("ticket") or said or "") or task_of(messages)


def _tool(name: str, signature: Mapping[str, Any]) -> Tool:
    parameters = signature.get("params")
    return Tool(
        name=signature.get("name") or name,
        description=signature.get("doc"),
        parameters=None if parameters is None else json.dumps(parameters, ensure_ascii=False),
    )


def _usage(rows: Sequence[Mapping[str, Any]]) -> Usage:
    """Of the agent alone."""
    spent = [row.get("usage") or {} for row in rows if row.get("role") == "assistant"]
    return Usage(
        prompt_tokens=sum(int(one.get("prompt_tokens") or 0) for one in spent),
        completion_tokens=sum(int(one.get("completion_tokens") or 0) for one in spent),
    )


def _outcome(reward: object) -> bool | None:
    """A reward is 1 or a part of it; less than all is a failure."""
    return reward >= 1 if isinstance(reward, int | float) else None


def _results(found: TraceResults) -> dict[str, Any]:
    at = found.trace.meta[IMPORT_KEY]["at"]
    steps = [{**step, "message": at[step["message"]]} for step in found.steps]
    return {"trace": found.trace.id, "score": found.summary, "of": found.explanation, "steps": steps}
