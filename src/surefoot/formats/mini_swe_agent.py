"""Runs of mini-swe-agent, versions 1 and 2: ``.traj.json``, one object with ``info`` and ``messages``.

A model without function calling writes its command in a block of the text: that is a call of ``bash``, and
the user's message after it is the result. The last message, of role ``exit``, repeats the submission.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from surefoot.failures import fields_failed
from surefoot.formats.imports import ChatRows, ImportContext, ImportedTrace, reader_of_runs, run_of
from surefoot.records import reported_count

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
