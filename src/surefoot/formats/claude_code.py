"""Sessions of Claude Code: files under ``~/.claude/projects``, and streams (``--output-format stream-json``).

A row is an event. An assistant's event holds one content block, and blocks with one ``message.id`` are one
message. In a stream the events of a subagent name its call (``parent_tool_use_id``); in a session they are
marked ``isSidechain`` and lie in the same file or in ``SESSION/subagents/agent-ID.jsonl``. The format of
sessions is not documented; this reader follows files of the versions 1.0 to 2.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from surefoot.errors import RecordError
from surefoot.formats.imports import ImportContext, ImportedTrace, row_note, run_of
from surefoot.formats.rows import session_rows

_OTHER_EVENTS: Final = {
    "ai-title", "attachment", "custom-title", "file-history-snapshot", "last-prompt", "mode",
    "permission-mode", "progress", "queue-operation", "result", "summary", "system",
}  # fmt: skip
"""Events without a message that a file can begin with."""
_SESSION_FIELDS: Final = {"leafUuid", "parentUuid", "sessionId", "session_id", "snapshot"}
_SYNTHETIC: Final = "<synthetic>"
"""Model of the messages that the program writes in the model's place, such as reports of API errors."""


def is_claude_code(row: Mapping[str, Any]) -> bool:
    """Whether a row is an event of a session or a stream."""
    kind = row.get("type")
    if not isinstance(kind, str) or not row.keys() & _SESSION_FIELDS or "messages" in row:
        return False
    return kind in _OTHER_EVENTS or (
        kind in ("user", "assistant") and isinstance(row.get("message"), Mapping)
    )


def read_claude_code(path: Path | str, context: ImportContext) -> Iterator[ImportedTrace]:
    """One trace for the session, and one for each subagent in its file.

    The summary of a compaction is a message of the user. Left out and counted are events without a message,
    events that a resumed session repeats, and what the user took back: of several prompts that answer one
    message, the last one counts.
    """

    def build(number: int, rows: Sequence[Mapping[str, Any]]) -> Iterator[ImportedTrace]:
        note = row_note("claude-code", number)
        events = _kept(rows, context)
        names = (row.get("sessionId") or row.get("session_id") for row in rows)
        name = str(next(filter(None, names), ""))
        threads: dict[str, list[Mapping[str, Any]]] = {}
        threads_of: dict[Any, str] = {}
        for event in events:
            thread = threads_of[event.get("uuid")] = _thread(event, threads_of)
            threads.setdefault(thread, []).append(event)
        result = next((row for row in rows if row.get("type") == "result"), None)
        streamed = "session_id" in rows[-1] and "sessionId" not in rows[-1]
        if not threads:
            raise RecordError("a session without a message of the user or the assistant")
        for thread in sorted(threads, key=bool):  # the session itself first
            if not any(event["type"] == "assistant" for event in threads[thread]):
                context.report.left_out["prompts that no message answers"] += len(threads[thread])
                continue
            of_thread = note if not thread else note | {"subagent": thread}
            error = None if thread else _error(result, streamed=streamed)
            thread_id = f"{name}-{thread}" if thread else name
            yield _trace(threads[thread], context, of_thread, id=thread_id, error=error)

    return context.rows(session_rows(path), build)


def _thread(event: Mapping[str, Any], threads_of: Mapping[Any, str]) -> str:
    """The subagent of an event, or nothing for the session itself."""
    if call := event.get("parent_tool_use_id"):
        return str(call)
    if not event.get("isSidechain"):
        return ""
    return str(event.get("agentId") or threads_of.get(event.get("parentUuid")) or event.get("uuid"))


def _kept(rows: Sequence[Mapping[str, Any]], context: ImportContext) -> list[Mapping[str, Any]]:
    """The events with a message, in the order of the file; all others are counted.

    The order of the file is the conversation. The chain of ``parentUuid`` is not: parallel calls branch it,
    reports of progress fork it, and parents can be missing.
    """
    events: list[Mapping[str, Any]] = []
    seen: dict[Any, Any] = {}
    anchors: dict[Any, Any] = {}
    parents: dict[Any, Any] = {}
    for row in rows:
        name, parent = row.get("uuid"), row.get("parentUuid") or row.get("logicalParentUuid")
        event = _with_prompt(row)
        message, kind = event.get("message"), event.get("type")
        comes_again = name is not None and seen.setdefault(name, row) is not row
        if comes_again and seen[name].get("message") == message:
            context.report.left_out["events that come again"] += 1
            continue
        if kind not in ("user", "assistant") or not isinstance(message, Mapping):
            anchors[name] = anchors.get(parent)
            subtype = row.get("subtype") or (row.get("attachment") or {}).get("type")
            if kind != "result":
                context.report.left_out[f"events {kind}{f'/{subtype}' if subtype else ''}"] += 1
        elif message.get("model") == _SYNTHETIC:
            anchors[name] = anchors.get(parent)
            context.report.left_out["messages that the program wrote in the model's place"] += 1
        else:
            parents[name] = anchors.get(parent)
            anchors[name] = name
            events.append(event)
            if row.get("toolUseResult", row.get("tool_use_result")) is not None:
                context.report.left_out["copies of results (toolUseResult)"] += 1
    if taken_back := _taken_back(events, parents):
        context.report.left_out["messages that the user took back"] += len(taken_back)
    return [event for event in events if event.get("uuid") not in taken_back]


def _with_prompt(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The event; a prompt that waited for the end of a turn is in an attachment."""
    attachment = row.get("attachment")
    if not isinstance(attachment, Mapping) or attachment.get("type") != "queued_command":
        return row
    return {**row, "type": "user", "message": {"role": "user", "content": attachment.get("prompt")}}


def _taken_back(events: Sequence[Mapping[str, Any]], parents: Mapping[Any, Any]) -> set[Any]:
    """Ids of answered prompts that a later prompt replaced, and of all that followed them."""
    prompts: dict[Any, list[Any]] = {}
    for event in events:
        parent = parents.get(event.get("uuid"))
        if parent is not None and _is_prompt(event):
            prompts.setdefault(parent, []).append(event["uuid"])
    replaced = {name for names in prompts.values() for name in names[:-1]}
    below: dict[Any, Any] = {}
    answered: set[Any] = set()
    for event in events if replaced else ():
        name = event.get("uuid")
        root = name if name in replaced else below.get(parents.get(name))
        if root is not None:
            below[name] = root
            if event["type"] == "assistant":
                answered.add(root)
    return {name for name, root in below.items() if root in answered}


def _is_prompt(event: Mapping[str, Any]) -> bool:
    """Whether the user wrote it: not results, and not what the program added."""
    content = event["message"].get("content")
    if event["type"] != "user" or event.get("isMeta") or event.get("isCompactSummary"):
        return False
    return isinstance(content, str) or not any(
        block.get("type") == "tool_result" for block in _blocks(content)
    )


def _blocks(content: Any) -> list[Mapping[str, Any]]:
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    return [block for block in blocks if isinstance(block, Mapping)]


def _trace(
    events: Sequence[Mapping[str, Any]], context: ImportContext, note: Mapping[str, Any], **fields: Any
) -> ImportedTrace:
    answers = [event["message"] for event in events if event["type"] == "assistant"]
    usage = {row.get("id") or number: row.get("usage") or {} for number, row in enumerate(answers)}
    prompts = []
    for event in takewhile(lambda event: event["type"] != "assistant", events):
        texts = [
            str(block["text"]) for block in _blocks(event["message"].get("content")) if block.get("text")
        ]
        prompts += texts if _is_prompt(event) else []
    return run_of(
        _rows(events, context),
        context,
        note,
        task="\n\n".join(prompts),
        policy=next((row["model"] for row in answers if row.get("model")), None),
        finish_reason=answers[-1].get("stop_reason"),
        usage=usage.values(),
        calls=len(usage),
        **fields,
    )


def _rows(events: Sequence[Mapping[str, Any]], context: ImportContext) -> list[dict[str, Any]]:
    """A row for each message. A call that is written again before its result replaces the earlier one."""
    rows: list[dict[str, Any]] = []
    answer: dict[str, Any] = {}
    answer_id: Any = None
    open_calls: dict[Any, dict[str, Any]] = {}
    for event in events:
        message = event["message"]
        blocks = [_block(block) for block in _blocks(message.get("content"))]
        if event["type"] == "user":
            for block in blocks:
                open_calls.pop(block.get("tool_use_id"), None)
            rows.append({"role": "user", "content": blocks})
            continue
        if not answer or message.get("id") is None or message.get("id") != answer_id:
            answer, answer_id = {"role": "assistant", "content": []}, message.get("id")
            rows.append(answer)
        for block in blocks:
            if block.get("type") == "tool_use" and block.get("id") is not None:
                if (earlier := open_calls.get(block["id"])) is not None:
                    parts = earlier["content"]
                    parts[:] = [part for part in parts if part.get("id") != block["id"]]
                    context.report.left_out["calls that the model wrote again"] += 1
                open_calls[block["id"]] = answer
            answer["content"].append(block)
    return [row for row in rows if row["content"]]


def _block(block: Mapping[str, Any]) -> dict[str, Any]:
    """A content block; results without a flag did not fail, and hidden thinking is its signature."""
    if block.get("type") == "tool_result":
        return {**block, "is_error": bool(block.get("is_error"))}
    if block.get("type") == "thinking" and not block.get("thinking") and block.get("signature"):
        return {"type": "redacted_thinking", "data": block["signature"]}
    return dict(block)


def _error(result: Mapping[str, Any] | None, *, streamed: bool) -> str | None:
    """Why a stream did not end normally."""
    if result is None:
        return "the stream ends before its result" if streamed else None
    if result.get("is_error") or result.get("subtype") != "success":
        return f"{result.get('subtype')}: {result.get('result') or result.get('errors') or ''}".rstrip(": ")
    return None
