"""Trajectories of SWE-agent (arXiv 2405.15793): ``.traj``, one object with ``trajectory`` and ``history``.

A turn of the trajectory is a thought, a command or edit, and what came back. Its call is the model's own
where the history has it, as in runs with function calling; else ``bash`` with the command line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from surefoot.errors import RecordError
from surefoot.formats._imports import (
    IMPORT_KEY,
    ImportContext,
    ImportedTrace,
    check_assistant,
    check_origin,
    raw_rows,
    task_of,
)
from surefoot.formats._results import TraceResults
from surefoot.formats._rows import write_rows
from surefoot.io.atomic import write_json
from surefoot.records import Problem, Trace, Usage, content_id

NAME: Final = "swe-agent"
_OWN = "surefoot"


def is_swe_agent(row: Mapping[str, Any]) -> bool:
    """Whether a row is a ``.traj`` file, or the attempts of one."""
    attempts = row.get("attempts")
    if isinstance(attempts, list) and attempts and isinstance(attempts[0], Mapping):
        row = attempts[0]
    turns = row.get("trajectory")
    if not isinstance(turns, list) or not {"history", "info"} & row.keys():
        return False
    return not turns or (isinstance(turns[0], Mapping) and {"action", "observation"} <= turns[0].keys())


def read_swe_agent(path: Path | str, context: ImportContext) -> Iterator[ImportedTrace]:
    """One trace per run; of a run with several attempts one for each, as samples of the problem.

    Demonstrations are left out, and so is the replay configuration, which can hold a key.
    """
    return context.rows(
        raw_rows(path),
        lambda number, row: [
            _trace(f"{number}/{sample}", sample, one, row, context)
            for sample, one in enumerate(_attempts(row))
        ],
    )


def write_swe_agent(original: Path, path: Path, results: Mapping[str, TraceResults]) -> int:
    """Copy the runs of ``original`` with labels and scores in ``surefoot`` of each turn that has any.

    Returns the number of runs changed. Raises ``RecordError`` if one is of another file.
    """
    numbered = [(number, row) for number, row in raw_rows(original) if not isinstance(row, ValueError)]
    runs = {f"{number}/{n}": one for number, row in numbered for n, one in enumerate(_attempts(row))}
    for place, found in results.items():
        run = runs.get(place, {})
        check_origin(original, f"run {place}", run.get("trajectory"), found)
        _annotate(run, found)
    rows = [row for _, row in numbered]
    if len(rows) == 1 and path.suffix in (".json", ".traj"):
        write_json(path, rows[0])
    else:
        write_rows(path, rows)
    return len(results)


def _attempts(row: Any) -> list[Any]:
    """Those of a run; what stands beside them is a copy of the best."""
    if not isinstance(row, dict):
        return []
    attempts = row.get("attempts")
    return attempts if isinstance(attempts, list) and attempts else [row]


def _trace(
    place: str, sample: int, run: Any, row: Mapping[str, Any], context: ImportContext
) -> ImportedTrace:
    if not isinstance(run, Mapping) or not isinstance(run.get("trajectory"), list):
        raise RecordError("a run of SWE-agent has its turns in 'trajectory'")
    history = [one for one in run.get("history") or () if not one.get("is_demo")]
    asked = _before_first_turn(history)
    rows, at = list(asked), cast("list[int | None]", [None] * len(asked))
    for number, (turn, said) in enumerate(_with_history(run["trajectory"], history)):
        made = _messages(number, turn, said)
        rows += made
        at += [number] * len(made)
    messages = context.messages(rows)
    check_assistant(messages)
    if len(messages) != len(at):
        raise RecordError("a message of 'history' holds the results of several calls, which no turn has")
    info = run.get("info") or {}
    stats = info.get("model_stats") or {}
    config = _config(run.get("replay_config"))
    problem = Problem(text=_stated(config) or task_of(messages), source=NAME)
    trace = Trace(
        problem_id=problem.id,
        messages=messages,
        sample=sample,
        policy=((config.get("agent") or {}).get("model") or {}).get("name"),
        finish_reason=info.get("exit_status"),
        usage=Usage(
            prompt_tokens=int(stats.get("tokens_sent") or 0),
            completion_tokens=int(stats.get("tokens_received") or 0),
            calls=int(stats.get("api_calls") or 0),
        ),
        meta={
            IMPORT_KEY: {
                "format": NAME,
                "run": place,
                "turns": at,
                "hash": content_id(run["trajectory"]),
            },
            "swe_agent": {
                "instance": (config.get("problem_statement") or {}).get("id") or run.get("environment"),
                "submission": info.get("submission"),
                "best_attempt": (row.get("info") or {}).get("best_attempt_idx"),
            },
        },
    )
    return ImportedTrace(problem=problem, trace=trace)


def _config(said: Any) -> Mapping[str, Any]:
    """The replay configuration, which is an object or its text."""
    try:
        config = json.loads(said) if isinstance(said, str) else said
    except ValueError:
        config = None
    return config if isinstance(config, Mapping) else {}


def _stated(config: Mapping[str, Any]) -> str | None:
    text = (config.get("problem_statement") or {}).get("text")
    return text if isinstance(text, str) and text.strip() else None


def _before_first_turn(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    asked: list[dict[str, Any]] = []
    for one in history:
        if one.get("role") == "assistant":
            break
        asked.append({"role": one.get("role") or "user", "content": one.get("content")})
    return asked


def _with_history(
    turns: Sequence[Mapping[str, Any]], history: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Each turn with the message of the history that made it, if there is one: the last has none."""
    said = [one for one in history if one.get("role") == "assistant"]
    at = 0
    for turn in turns:
        key = (turn.get("action"), turn.get("thought"))
        found = next((n for n in range(at, min(at + 3, len(said))) if _key(said[n]) == key), None)
        at = at if found is None else found + 1
        yield turn, {} if found is None else said[found]


def _key(said: Mapping[str, Any]) -> tuple[Any, Any]:
    return said.get("action"), said.get("thought")


def _messages(number: int, turn: Mapping[str, Any], said: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the model thought and did, and what came back."""
    calls = said.get("tool_calls") or [
        {
            "id": f"turn-{number}",
            "name": "bash",
            "arguments": json.dumps({"command": line}, ensure_ascii=False),
        }
        for line in [turn.get("action")]
        if line
    ]
    own: dict[str, Any] = {
        "role": "assistant",
        "content": turn.get("thought") or (None if calls else turn.get("response")),
        "tool_calls": calls,
    }
    if blocks := said.get("thinking_blocks"):
        text = "\n".join(str(one.get("thinking") or "") for one in blocks)
        shown = bool(text.strip())
        own["reasoning"] = {"text": text * shown, "visibility": "visible" if shown else "withheld"}
    back: dict[str, Any] = {"role": "user", "content": turn.get("observation")}
    if calls:
        back |= {"role": "tool", "tool_call_id": calls[-1].get("id")}
    return [own, back] if turn.get("observation") is not None else [own]


def _annotate(run: dict[str, Any], results: TraceResults) -> None:
    at = results.trace.meta[IMPORT_KEY]["turns"]
    for step in results.steps:
        run["trajectory"][at[step["message"]]].setdefault(_OWN, []).append(step)
    run[_OWN] = {"score": results.summary, "of": results.explanation}
