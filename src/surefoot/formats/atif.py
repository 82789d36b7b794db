"""Agent Trajectory Interchange Format (ATIF, version 1.x, as the PyPI package ``atif`` defines it).

A trajectory is a list of turns of system, user and agent; an agent's turn holds its reasoning, calls and what
came back. Subagents' trajectories, embedded in their parent's, are traces of their own.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from surefoot.errors import RecordError
from surefoot.formats._imports import (
    IMPORT_KEY,
    ImportContext,
    ImportedTrace,
    check_assistant,
    check_origin,
    raw_rows,
    task_of,
    tools,
)
from surefoot.formats._results import TraceResults
from surefoot.formats._rows import write_rows
from surefoot.records import Problem, Trace, Usage, content_id

NAME = "atif"

_ROLES = {"system": "system", "user": "user", "agent": "assistant"}
_OWN = "surefoot"
"""Key in ``extra``, which the format leaves to its users."""


def read_atif(path: Path | str, context: ImportContext) -> Iterator[ImportedTrace]:
    """One trace per trajectory; steps that were copied from another one for context are left out."""

    def build(number: int, row: Any) -> Iterator[ImportedTrace]:
        for place, trajectory in _trajectories(str(number), row):
            yield _trace(place, trajectory, context)

    return context.rows(raw_rows(path), build)


def write_atif(original: Path, path: Path, results: Mapping[str, TraceResults]) -> int:
    """Copy the trajectories of ``original`` with labels and scores in ``extra`` of each of their steps.

    Returns the number of trajectories changed. Raises ``RecordError`` if one is of another file.
    """
    changed, rows = 0, []
    for number, row in raw_rows(original):
        if isinstance(row, ValueError):
            continue
        row = copy.deepcopy(row)
        for place, trajectory in _trajectories(str(number), row) if _has_steps(row) else ():
            if found := results.get(place):
                check_origin(original, f"trajectory {place}", trajectory["steps"], found)
                _annotate(trajectory, found)
                changed += 1
        rows.append(row)
    if len(rows) == 1 and path.suffix == ".json":
        from surefoot.io.atomic import write_json

        write_json(path, rows[0])
    else:
        write_rows(path, rows)
    return changed


def _has_steps(row: Any) -> bool:
    return isinstance(row, dict) and isinstance(row.get("steps"), list)


def _trajectories(place: str, row: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """A trajectory and those embedded in it, each with its place."""
    if not _has_steps(row):
        raise RecordError("a trajectory is an object with 'schema_version', 'agent' and 'steps'")
    yield place, row
    for number, below in enumerate(row.get("subagent_trajectories") or ()):
        yield from _trajectories(f"{place}.{number}", below)


def _trace(place: str, row: Mapping[str, Any], context: ImportContext) -> ImportedTrace:
    messages: list[Mapping[str, Any]] = []
    at: list[int] = []
    for number, turn in enumerate(row["steps"]):
        if not turn.get("is_copied_context"):
            made = _messages(turn)
            messages += made
            at += [number] * len(made)
    chat = context.messages(messages)
    check_assistant(chat)
    agent = row.get("agent") or {}
    extra = row.get("extra") or {}
    problem = Problem(text=task_of(chat), source=agent.get("name"))
    metrics = [turn.get("metrics") or {} for turn in row["steps"]]
    name = row.get("trajectory_id") or row.get("session_id")
    trace = Trace(
        id=str(name) if name else "",
        problem_id=problem.id,
        messages=chat,
        tools=tools(agent.get("tool_definitions")),
        policy=agent.get("model_name") or agent.get("name"),
        usage=Usage(
            prompt_tokens=sum(int(one.get("prompt_tokens") or 0) for one in metrics),
            completion_tokens=sum(int(one.get("completion_tokens") or 0) for one in metrics),
        ),
        outcome=extra.get("outcome") if isinstance(extra.get("outcome"), bool) else None,
        meta={
            IMPORT_KEY: {"format": NAME, "trajectory": place, "turns": at, "hash": content_id(row["steps"])}
        },
    )
    return ImportedTrace(problem=problem, trace=trace)


def _messages(turn: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The messages of one turn: what was said, then what came back."""
    reasoned = ((turn.get("metrics") or {}).get("extra") or {}).get("reasoning_tokens")
    said: dict[str, Any] = {
        "role": _ROLES.get(turn.get("source", ""), "user"),
        "content": turn.get("message"),
    }
    if turn.get("source") == "agent":
        said["tool_calls"] = [
            {
                "id": call.get("tool_call_id"),
                "name": call.get("function_name"),
                "arguments": call.get("arguments"),
            }
            for call in turn.get("tool_calls") or ()
        ]
        shown = turn.get("reasoning_content")
        if shown or reasoned:
            visibility = "visible" if shown else "withheld"
            said["reasoning"] = {"text": shown or "", "visibility": visibility, "tokens": reasoned}
    back = [
        {"role": "tool", "tool_call_id": one.get("source_call_id"), "content": _observed(one)}
        for one in (turn.get("observation") or {}).get("results", ())
    ]
    return [said, *back]


def _observed(result: Mapping[str, Any]) -> Any:
    if result.get("content") is not None:
        return result["content"]
    references = result.get("subagent_trajectory_ref")
    return None if references is None else json.dumps({"subagent_trajectory_ref": references})


def _annotate(row: dict[str, Any], results: TraceResults) -> None:
    turns = results.trace.meta[IMPORT_KEY]["turns"]
    for step in results.steps:
        turn = row["steps"][turns[step["message"]]]
        turn["extra"] = turn.get("extra") or {}
        turn["extra"].setdefault(_OWN, []).append(step)
    row["extra"] = {**(row.get("extra") or {}), _OWN: {"score": results.summary, "of": results.explanation}}
