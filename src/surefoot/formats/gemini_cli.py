"""Sessions of Gemini CLI: ``~/.gemini/tmp/*/chats/session-*.jsonl``, before 2026 one object in ``.json``.

After a line with the session's data, each line is a message, a change of the data (``$set``) or a rewind
(``$rewindTo``). A message that is written again replaces the earlier one of its id. Calls are in the
model's message together with their results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from surefoot.errors import RecordError
from surefoot.formats.imports import ChatRows, ImportContext, ImportedTrace, reader_of_runs, run_of
from surefoot.formats.rows import session_rows
from surefoot.records import as_json

_ADDED: Final = "<session_context>"
"""Beginning of the message that the program adds in the user's name before the first one."""
_FAILED: Final = {"success": False, "error": True, "cancelled": True}
"""Whether a call failed, by its ``status``; others are not finished."""


def _session(rows: Sequence[Mapping[str, Any]], context: ImportContext) -> dict[str, Any]:
    """The session's data, with its messages after all changes."""
    session: dict[str, Any] = {}
    messages: dict[Any, Mapping[str, Any]] = {}
    for row in rows:
        data = row.get("$set") or ({} if "id" in row else row)
        if "$rewindTo" in row:
            names = list(messages)
            start = names.index(row["$rewindTo"]) if row["$rewindTo"] in messages else 0
            context.report.left_out["messages that the user took back"] += len(names) - start
            messages = {name: messages[name] for name in names[:start]}
        elif isinstance(data.get("messages"), list):
            messages = {message.get("id"): message for message in data["messages"]}
        elif "id" in row:
            messages[row["id"]] = row
        session |= data
    return {**session, "messages": list(messages.values())}


@reader_of_runs("gemini-cli", session_rows)
def read_gemini_cli(
    rows: Sequence[Mapping[str, Any]], note: Mapping[str, Any], context: ImportContext
) -> ImportedTrace:
    """One trace per file; what the program reports to the user, and what a rewind removed, is counted."""
    session = _session(rows, context)
    chat, usage, prompts = ChatRows(), list[Mapping[str, Any]](), list[str]()
    model, error = None, None
    calls = {call.get("id") for row in session["messages"] for call in row.get("toolCalls") or ()}
    for row in session["messages"]:
        kind = row.get("type")
        if kind == "user":
            parts = _content(row.get("content"), calls)
            chat.say("user", parts)
            text = "".join(str(part.get("text") or "") for part in parts)
            prompts += [text] if not usage and not text.startswith(_ADDED) else []
        elif kind in ("gemini", "model"):
            _add_answer(chat, row)
            usage.append(row.get("tokens") or {})
            model, error = model or row.get("model"), None
        else:
            context.report.left_out[f"messages {kind}"] += 1
            error = str(row.get("content")) if kind == "error" else error
    if not chat.rows:
        raise RecordError("a session without messages")
    if session.get("kind") == "subagent":
        note = {**note, "subagent": str(session.get("sessionId"))}
    return run_of(
        chat.rows,
        context,
        note,
        task="\n\n".join(filter(None, prompts)),
        id=str(session.get("sessionId") or ""),
        policy=model,
        error=error,
        usage=usage,
        calls=len(usage),
    )


def _add_answer(chat: ChatRows, row: Mapping[str, Any]) -> None:
    for thought in row.get("thoughts") or ():
        text = ": ".join(str(thought[key]) for key in ("subject", "description") if thought.get(key))
        chat.part({"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]})
    calls = row.get("toolCalls") or ()
    for part in _content(row.get("content"), {call.get("id") for call in calls}):
        chat.part(part)
    for call in calls:
        chat.call(str(call.get("name")), call.get("args") or {}, str(call.get("id")))
    for call in calls:
        if call.get("status") in _FAILED:
            chat.result(str(call.get("id")), _result(call.get("result")), _FAILED[call["status"]])


def _content(content: Any, calls: set[Any]) -> list[dict[str, Any]]:
    """Parts of a message, without the calls and results that ``toolCalls`` has, too."""
    parts: list[dict[str, Any]] = []
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str) or part is None:
            part = {"text": part or ""}
        inner = part.get("functionCall") or part.get("functionResponse")
        media = part.get("inlineData") or part.get("fileData")
        if isinstance(media, Mapping):
            parts.append({"type": "file", "url": media.get("fileUri"), **media})
        elif isinstance(inner, Mapping) and inner.get("id") in calls:
            continue
        elif isinstance(part.get("text"), str):
            parts += [{"type": "reasoning" if part.get("thought") else "text", "text": part["text"]}]
        else:
            parts.append({"type": "text", "text": as_json(part)})
    return [part for part in parts if part.get("text") != ""]


def _result(result: Any) -> Any:
    """The result of a call: the text of its function response, or all of it as JSON."""
    texts = []
    for part in result if isinstance(result, list) else [result]:
        response = part.get("functionResponse", {}).get("response") if isinstance(part, Mapping) else part
        response = part if response is None else response
        if isinstance(response, Mapping) and len(response) == 1:
            response = next(iter(response.values()))
        texts.append(response if isinstance(response, str) else as_json(response))
    return "\n".join(texts)
