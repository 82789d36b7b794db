"""Agent Trajectory Interchange Format (ATIF 1.x, as defined by the PyPI package ``atif``).

A trajectory is a list of turns of system, user and agent; an agent's turn holds its reasoning, its calls and
their results. Embedded trajectories of subagents are separate traces. An object around a trajectory can hold
its reward and task. Converted trajectories have ``tool_name``, and results without the ids of calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from surefoot.errors import RecordError
from surefoot.failures import FLAG_NAMES, fields_failed
from surefoot.formats.imports import ChatRows, ImportContext, ImportedTrace, row_note, run_of
from surefoot.formats.rows import raw_rows
from surefoot.formats.run_folders import result_of, with_result
from surefoot.records import as_json, reported_count

_RETURN_CODE: Final = re.compile(r'\{\s*"returncode"\s*:\s*(-?\d{1,10})\s*[,}]')
_ROLES: Final = {"system": "system", "user": "user", "agent": "assistant"}


def is_atif(row: Mapping[str, Any]) -> bool:
    """Whether a row is a trajectory, or holds one next to its reward."""
    inner = row.get("trajectory")
    row = inner if isinstance(inner, Mapping) else row
    named = str(row.get("schema_version", "")).upper().startswith("ATIF")
    return named or ("agent" in row and {"source"} <= row["steps"][0].keys())


def read_atif(path: Path | str, context: ImportContext) -> Iterator[ImportedTrace]:
    """One trace per trajectory, without the turns that were copied from another one for context.

    The task and the reward of a wrapper belong to the trajectory in it, not to its subagents.
    """

    def build(number: int, row: Any) -> Iterator[ImportedTrace]:
        note = row_note("atif", number)
        wrapped = isinstance(row, Mapping) and isinstance(row.get("trajectory"), Mapping)
        for where, trajectory in _trajectories(str(number), row["trajectory"] if wrapped else row):
            is_main = where == str(number)
            own_note = {**note, "trajectory": where, **({} if is_main else {"subagent": where})}
            imported = _trace(trajectory, own_note, context)
            yield with_result(imported, result_of(row) if wrapped and is_main else None, context)

    return context.rows(raw_rows(path), build)


def _trajectories(place: str, row: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """A trajectory and those embedded in it, each with its place."""
    if not isinstance(row, dict) or not isinstance(row.get("steps"), list):
        raise RecordError("a trajectory is an object with 'schema_version', 'agent' and 'steps'")
    yield place, row
    for number, embedded in enumerate(row.get("subagent_trajectories") or ()):
        yield from _trajectories(f"{place}.{number}", embedded)


def _trace(row: Mapping[str, Any], note: dict[str, Any], context: ImportContext) -> ImportedTrace:
    agent = row.get("agent") or {}
    extra = row.get("extra") or {}
    return run_of(
        _messages(row["steps"], context),
        context,
        note,
        source=agent.get("name"),
        id=str(row.get("trajectory_id") or row.get("session_id") or ""),
        tools=agent.get("tool_definitions"),
        policy=agent.get("model_name") or agent.get("name"),
        usage=[turn.get("metrics") or {} for turn in row["steps"]],
        outcome=extra.get("outcome") if isinstance(extra.get("outcome"), bool) else None,
    )


def _messages(turns: Sequence[Mapping[str, Any]], context: ImportContext) -> list[dict[str, Any]]:
    """The messages of all turns; reasoning that the next turns of one message repeat counts once."""
    chat, reasoning = ChatRows(), None
    for number, turn in enumerate(turns):
        if turn.get("is_copied_context"):
            context.report.left_out["turns copied from another trajectory"] += 1
            continue
        message = _turn_message(number, turn)
        text = turn.get("reasoning_content")
        if text and text == reasoning:
            context.report.left_out["reasoning that the turn before has, too"] += 1
            del message["reasoning"]
        reasoning = text or (reasoning if turn.get("source") == "agent" else None)
        chat.add(message)
        _add_results(chat, message.get("tool_calls") or [], turn)
    return chat.rows


def _turn_message(number: int, turn: Mapping[str, Any]) -> dict[str, Any]:
    """The text and calls of a turn."""
    message: dict[str, Any] = {
        "role": _ROLES.get(turn.get("source", ""), "user"), "content": turn.get("message")
    }  # fmt: skip
    if turn.get("source") != "agent":
        return message
    extra = (turn.get("metrics") or {}).get("extra") or {}
    tokens = reported_count(extra["reasoning_tokens"]) if "reasoning_tokens" in extra else 0
    message["tool_calls"] = [
        {
            "id": call.get("tool_call_id") or f"{turn.get('step_id', number)}.{index}",
            "name": call.get("function_name") or call.get("tool_name"),
            # as text, so that the message has the record's shape and need not be read in parts
            "arguments": as_json(call.get("arguments") or {}),
        }
        for index, call in enumerate(turn.get("tool_calls") or ())
    ]
    if (text := turn.get("reasoning_content")) or tokens:
        visibility = "visible" if text else "withheld"
        message["reasoning"] = {"text": text or "", "visibility": visibility, "tokens": tokens}
    return message


def _add_results(chat: ChatRows, calls: Sequence[Mapping[str, Any]], turn: Mapping[str, Any]) -> None:
    """Add the results of a turn; those that name no call are in the order of the calls.

    What is left without a call is a note of the harness, as a message of the user.
    """
    results = (turn.get("observation") or {}).get("results") or ()
    answered = {result.get("source_call_id") for result in results}
    waiting = [call["id"] for call in calls if call["id"] not in answered]
    for result in results:
        call_id = result.get("source_call_id") or (waiting.pop(0) if waiting else None)
        content, extra = result.get("content"), result.get("extra") or {}
        if content is None and (references := result.get("subagent_trajectory_ref")) is not None:
            content = json.dumps({"subagent_trajectory_ref": references})
        if len(results) == 1:
            extra = (turn.get("extra") or {}) | extra
        if call_id is None and calls:
            chat.say("user", content)
        else:
            flags = {name: extra[name] for name in FLAG_NAMES & extra.keys()}
            failed = fields_failed(flags) if flags else None
            chat.result(call_id, content, _return_code_failed(content) if failed is None else failed)


def _return_code_failed(content: Any) -> bool | None:
    """Whether a result in JSON begins with a return code, and it is not 0."""
    code = _RETURN_CODE.match(content) if isinstance(content, str) else None
    return None if code is None else int(code[1]) != 0
