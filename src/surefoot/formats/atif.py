"""Agent Trajectory Interchange Format (ATIF 1.x, as defined by the PyPI package ``atif``).

A trajectory is a list of turns of system, user and agent; an agent's turn holds its reasoning, its calls and
their results. Embedded trajectories of subagents are separate traces.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from surefoot.errors import RecordError
from surefoot.formats.imports import (
    IMPORT_KEY,
    ImportContext,
    ImportedTrace,
    record_tools,
    reported_usage,
    row_note,
    task_of,
)
from surefoot.formats.rows import raw_rows
from surefoot.records import Problem, Trace, reported_count

_ROLES: Final = {"system": "system", "user": "user", "agent": "assistant"}


def is_atif(row: Mapping[str, Any]) -> bool:
    """Whether a row is a trajectory."""
    if str(row.get("schema_version", "")).startswith("ATIF"):
        return True
    steps = row.get("steps")
    if "agent" not in row or not isinstance(steps, list) or not steps:
        return False
    return isinstance(steps[0], Mapping) and "source" in steps[0]


def read_atif(path: Path | str, context: ImportContext) -> Iterator[ImportedTrace]:
    """One trace per trajectory, without the turns that were copied from another one for context."""

    def build(number: int, row: Any) -> Iterator[ImportedTrace]:
        for where, trajectory in _trajectories(str(number), row):
            note = {**row_note("atif", number, row), "trajectory": where}
            yield _trace(trajectory, note, context)

    return context.rows(raw_rows(path), build)


def _has_steps(row: Any) -> bool:
    return isinstance(row, dict) and isinstance(row.get("steps"), list)


def _trajectories(place: str, row: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """A trajectory and those embedded in it, each with its place."""
    if not _has_steps(row):
        raise RecordError("a trajectory is an object with 'schema_version', 'agent' and 'steps'")
    yield place, row
    for number, embedded in enumerate(row.get("subagent_trajectories") or ()):
        yield from _trajectories(f"{place}.{number}", embedded)


def _trace(row: Mapping[str, Any], note: dict[str, Any], context: ImportContext) -> ImportedTrace:
    turns = (turn for turn in row["steps"] if not turn.get("is_copied_context"))
    messages = context.chat(message for turn in turns for message in _turn_messages(turn))
    agent = row.get("agent") or {}
    extra = row.get("extra") or {}
    problem = Problem(text=task_of(messages), source=agent.get("name"))
    metrics = [turn.get("metrics") or {} for turn in row["steps"]]
    name = row.get("trajectory_id") or row.get("session_id")
    trace = Trace(
        id=str(name) if name else "",
        problem_id=problem.id,
        messages=messages,
        tools=record_tools(agent.get("tool_definitions")),
        policy=agent.get("model_name") or agent.get("name"),
        usage=reported_usage(*metrics),
        outcome=extra.get("outcome") if isinstance(extra.get("outcome"), bool) else None,
        meta={IMPORT_KEY: note},
    )
    return ImportedTrace(problem=problem, trace=trace)


def _turn_messages(turn: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The messages of one turn: its text and calls, then their results."""
    role = _ROLES.get(turn.get("source", ""), "user")
    message: dict[str, Any] = {"role": role, "content": turn.get("message")}
    reasoning_tokens = reported_count(
        ((turn.get("metrics") or {}).get("extra") or {}).get("reasoning_tokens")
    )
    if turn.get("source") == "agent":
        message["tool_calls"] = [
            {
                "id": call.get("tool_call_id"),
                "name": call.get("function_name"),
                "arguments": call.get("arguments"),
            }
            for call in turn.get("tool_calls") or ()
        ]
        text = turn.get("reasoning_content")
        if text or reasoning_tokens:
            visibility = "visible" if text else "withheld"
            message["reasoning"] = {"text": text or "", "visibility": visibility, "tokens": reasoning_tokens}
    results = [
        {"role": "tool", "tool_call_id": result.get("source_call_id"), "content": _result_content(result)}
        for result in (turn.get("observation") or {}).get("results", ())
    ]
    return [message, *results]


def _result_content(result: Mapping[str, Any]) -> Any:
    if result.get("content") is not None:
        return result["content"]
    references = result.get("subagent_trajectory_ref")
    return None if references is None else json.dumps({"subagent_trajectory_ref": references})
