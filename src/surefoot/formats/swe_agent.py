"""Trajectories of SWE-agent (arXiv 2405.15793), and of mini-swe-agent, versions 1 and 2.

``.traj`` is one object with ``trajectory`` and ``history``. A turn of the trajectory is a thought, a command
or edit, and its observation. Its call is the model's own if the history has it, as in runs with function
calling; otherwise it is ``bash`` with the command line.

``.traj.json`` of mini-swe-agent is one object with ``info`` and ``messages``. A model without function
calling writes its command in a block of the text: that is a call of ``bash``, and the user's message after it
is the result. The last message, of role ``exit``, repeats the submission.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from surefoot.errors import RecordError
from surefoot.failures import fields_failed
from surefoot.formats.account import parsed
from surefoot.formats.imports import ChatRows, ImportContext, ImportedTrace, reader_of_runs, row_note, run_of
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


_NAME: Final = "mini-swe-agent"
_COMMAND: Final = re.compile(
    r"```(?:bash|mswea_bash_command)\s*\n(.*?)\n?```|<mswea_bash_command>(.*?)</mswea_bash_command>",
    re.DOTALL,
)
_RETURN_CODE: Final = re.compile(r"<returncode>(-?\d{1,10})</returncode>")


def is_mini_swe_agent(row: Mapping[str, Any]) -> bool:
    """Whether a row is a run."""
    named = str(row.get("trajectory_format")).startswith(_NAME) or "mini_version" in row["info"]
    return named and isinstance(row["messages"], list) and isinstance(row["info"], Mapping)


@reader_of_runs(_NAME)
def read_mini_swe_agent(
    row: Mapping[str, Any], note: Mapping[str, Any], context: ImportContext
) -> ImportedTrace:
    """One trace per run."""
    info = row.get("info") or {}
    stats, model = info.get("model_stats") or {}, ((info.get("config") or {}).get("model") or {})
    responses = [(message.get("extra") or {}).get("response") or message for message in row["messages"]]
    return run_of(
        _rows(row["messages"]),
        context,
        note,
        task_id=row.get("instance_id"),
        policy=model.get("model_name"),
        finish_reason=info.get("exit_status") or None,
        usage=[response["usage"] for response in responses if isinstance(response.get("usage"), Mapping)],
        calls=reported_count(stats.get("api_calls")),
        meta={"mini_swe_agent": {"submission": info.get("submission")}},
    )


def _rows(messages: list[Any]) -> list[dict[str, Any]]:
    chat, open_calls = ChatRows(), list[str]()
    for number, message in enumerate(messages):
        extra, role = message.get("extra") or {}, message.get("role")
        if role == "exit":  # the submission, or what ended the run
            continue
        if message.get("object") == "response":
            for item in message.get("output") or ():
                parts = item.get("content") or () if item.get("type") == "message" else [item]
                for part in parts:
                    chat.part(part)
        elif role == "assistant":
            row = {name: value for name, value in message.items() if name != "extra"}
            open_calls = []
            if not message.get("tool_calls") and (command := _command(message, extra)) is not None:
                open_calls = [f"command-{number}"]
                row["tool_calls"] = [{"id": open_calls[0], "name": "bash", "arguments": {"command": command}}]
            chat.add(row)
        elif message.get("type") == "function_call_output":
            chat.result(message.get("call_id"), message.get("output"), fields_failed(extra))
        elif role == "tool" or (open_calls and "interrupt_type" not in extra):
            code = _RETURN_CODE.search(str(message.get("content"))[:1000])
            failed = fields_failed(extra) if "returncode" in extra else code and int(code[1]) != 0
            call_id = message.get("tool_call_id") or open_calls.pop(0)
            chat.result(call_id, message.get("content"), failed)
        else:
            chat.say(str(role), message.get("content"))
    return chat.rows


def _command(message: Mapping[str, Any], extra: Mapping[str, Any]) -> str | None:
    """The command of a message without calls; several blocks, or none, are an error of format."""
    actions = extra.get("actions")
    if isinstance(actions, list) and len(actions) == 1 and isinstance(actions[0], Mapping):
        return str(actions[0].get("command"))
    content = message.get("content")
    blocks = _COMMAND.findall(content) if isinstance(content, str) and actions is None else []
    return "".join(blocks[0]).strip() if len(blocks) == 1 else None
