"""Trajectories of SWE-agent (arXiv 2405.15793): ``.traj``, one object with ``trajectory`` and ``history``.

A turn of the trajectory is a thought, a command or edit, and its observation. Its call is the model's own if
the history has it, as in runs with function calling; otherwise it is ``bash`` with the command line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from surefoot.errors import RecordError
from surefoot.formats.account import parsed
from surefoot.formats.imports import ImportContext, ImportedTrace, row_note, run_of
from surefoot.formats.rows import raw_rows
from surefoot.records import reported_count


def is_swe_agent(row: Mapping[str, Any]) -> bool:
    """Whether a row is a ``.traj`` file, or a run with several attempts."""
    row = row["attempts"][0] if row.get("attempts") else row
    turns = row["trajectory"]
    is_run = isinstance(turns, list) and bool({"history", "info"} & row.keys())
    return is_run and (not turns or {"action", "observation"} <= turns[0].keys())


def read_swe_agent(path: Path | str, context: ImportContext) -> Iterator[ImportedTrace]:
    """One trace per run; the attempts of a run are samples of one problem.

    Demonstrations are left out, and so is the replay configuration, which can contain a key.
    """

    def build(number: int, row: Any) -> Iterator[ImportedTrace]:
        note = row_note("swe-agent", number)
        # the fields next to attempts are a copy of the best one
        attempts = row.get("attempts") if isinstance(row, Mapping) else None
        for sample, run in enumerate(attempts if isinstance(attempts, list) and attempts else [row]):
            yield _trace({**note, "sample": sample}, run, row, context)

    return context.rows(raw_rows(path), build)


def _trace(note: dict[str, Any], run: Any, row: Mapping[str, Any], context: ImportContext) -> ImportedTrace:
    if not isinstance(run, Mapping) or not isinstance(run.get("trajectory"), list):
        raise RecordError("a run of SWE-agent has its turns in 'trajectory'")
    history = [message for message in run.get("history") or () if not message.get("is_demo")]
    prompt = takewhile(lambda message: message.get("role") != "assistant", history)
    rows = [{"role": message.get("role") or "user", "content": message.get("content")} for message in prompt]
    for number, (turn, message) in enumerate(_with_history(run["trajectory"], history)):
        rows += _turn_messages(number, turn, message)
    info = run.get("info") or {}
    stats = info.get("model_stats") or {}
    config = parsed(run.get("replay_config"))
    config = config if isinstance(config, Mapping) else {}
    statement = config.get("problem_statement") or {}
    task = statement.get("text")
    return run_of(
        rows,
        context,
        note,
        task=task if isinstance(task, str) and task.strip() else None,
        sample=note["sample"],
        policy=((config.get("agent") or {}).get("model") or {}).get("name"),
        finish_reason=info.get("exit_status"),
        usage=[stats],
        calls=reported_count(stats.get("api_calls")),
        meta={
            "swe_agent": {
                "instance": statement.get("id") or run.get("environment"),
                "submission": info.get("submission"),
                "best_attempt": (row.get("info") or {}).get("best_attempt_idx"),
            },
        },
    )


def _with_history(
    turns: Sequence[Mapping[str, Any]], history: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Each turn with its message of the history, if it has one; the last turn has none."""
    messages = [message for message in history if message.get("role") == "assistant"]
    start = 0
    for turn in turns:
        window = range(start, min(start + 3, len(messages)))
        index = next((index for index in window if _key(messages[index]) == _key(turn)), None)
        start = start if index is None else index + 1
        yield turn, {} if index is None else messages[index]


def _key(message: Mapping[str, Any]) -> tuple[Any, Any]:
    return message.get("action"), message.get("thought")


def _turn_messages(number: int, turn: Mapping[str, Any], message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The model's message of a turn, and its observation."""
    calls = message.get("tool_calls")
    if not calls and (line := turn.get("action")):
        arguments = json.dumps({"command": line}, ensure_ascii=False)
        calls = [{"id": f"turn-{number}", "name": "bash", "arguments": arguments}]
    answer: dict[str, Any] = {
        "role": "assistant",
        "content": turn.get("thought") or (None if calls else turn.get("response")),
        "tool_calls": calls or [],
        "thinking_blocks": message.get("thinking_blocks"),
    }
    if turn.get("observation") is None:
        return [answer]
    observation: dict[str, Any] = {"role": "user", "content": turn["observation"]}
    if calls:
        observation |= {"role": "tool", "tool_call_id": calls[-1].get("id")}
    return [answer, observation]
