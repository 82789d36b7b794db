"""Trajectories of OpenHands (arXiv 2407.16741): lists of events, alone or in rows of an evaluation.

Both generations of events are read: events named ``action`` or ``observation``, and events of
the later SDK with a ``kind``. Events without information about the process, such as changes of the agent's
state, are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from surefoot.errors import RecordError
from surefoot.failures import fields_failed
from surefoot.formats.imports import ImportContext, ImportedTrace, reader_of_runs, run_of
from surefoot.formats.rows import Row, raw_rows
from surefoot.io.files import FileLimits, RowSize
from surefoot.records import as_json

_SKIPPED: Final = {
    "agent_state_changed", "change_agent_state", "condensation", "condensation_request", "condense",
    "loop_detection", "loop_recovery", "null", "pause", "push", "recall", "resume", "send_pr", "start",
    "stop",
}  # fmt: skip
"""Actions and observations without information about the process."""
_RESULT_KINDS: Final = {"ObservationEvent", "UserRejectObservation", "AgentErrorEvent"}


def is_openhands(row: Mapping[str, Any]) -> bool:
    """Whether a row is an event, or holds a list of them."""
    return _is_event(row) or _events_of(row) is not None


def _is_event(row: Any) -> bool:
    if not isinstance(row, Mapping):
        return False
    first_generation = ("action" in row and "args" in row) or ("observation" in row and "extras" in row)
    return first_generation or {"kind", "source", "timestamp"} <= row.keys()


def _events_of(row: Any) -> list[Any] | None:
    """The events of a row; early evaluations have pairs of an action and its observation."""
    if not isinstance(row, Mapping):
        return None
    for name in ("history", "trajectory", "events"):
        events = row.get(name)
        if isinstance(events, list) and events:
            flat = [part for event in events for part in (event if isinstance(event, list) else [event])]
            if flat and _is_event(flat[0]):
                return flat
    return None


def _runs(path: Path | str) -> Iterator[Row]:
    """The content of each run of a file, with the number of its first row; rows that are events form one."""
    first, events, size = 0, [], RowSize(FileLimits.from_environment())
    for number, row in raw_rows(path):
        if not _is_event(row):
            yield number, row
            continue
        size.add(len(as_json(row)))
        first = first or number
        events.append(row)
    if events:
        yield first, {"events": events}


@reader_of_runs("openhands", _runs)
def read_openhands(row: Any, note: dict[str, Any], context: ImportContext) -> ImportedTrace:
    """One trace per run: a file of events is one run, and so is each row of an evaluation.

    Calls are the model's own if an event has its response; otherwise they have the name and arguments of the
    action, and the trace lists no tools, because the schemas belong to other names. A user's commands are
    user messages.
    """
    events = _events_of(row)
    if events is None:
        raise RecordError("a run of OpenHands has its events in 'history', 'trajectory' or 'events'")
    chat = _Chat()
    for index, event in enumerate(events):
        if isinstance(event, Mapping):
            chat.add(index, event)
    metadata, instance = row.get("metadata") or {}, row.get("instance") or {}
    statement = instance.get("problem_statement") or row.get("instruction")
    return run_of(
        chat.messages,
        context,
        note,
        task=statement if isinstance(statement, str) else None,
        meta={"openhands": {"instance": row.get("instance_id"), "test_result": row.get("test_result")}},
        tools=() if chat.named_by_action else chat.tools,
        outcome=_resolved(row),
        policy=(metadata.get("llm_config") or {}).get("model") or chat.model,
        error=None if row.get("error") is None else str(row["error"]),
        usage=[(row.get("metrics") or {}).get("accumulated_token_usage") or {}],
    )


def _resolved(row: Mapping[str, Any]) -> bool | None:
    """Whether SWE-bench's tests passed, from the report of an evaluation."""
    result = row.get("test_result")
    reports = (row.get("report"), result, result.get("report") if isinstance(result, Mapping) else None)
    values = (report.get("resolved") for report in reports if isinstance(report, Mapping))
    return next((value for value in values if isinstance(value, bool)), None)


@dataclass
class _Chat:
    """The messages of a run."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: list[Any] = field(default_factory=list)
    model: str | None = None
    named_by_action: bool = False
    """Whether a call has the name of its action, which no tool schema describes."""
    _open_calls: dict[Any, Any] = field(default_factory=dict)
    """Ids of unanswered calls, by themselves and by the id of their event."""
    _response: Any = None
    """Id of the response behind the latest assistant message, which its further calls join."""
    _answer: dict[str, Any] = field(default_factory=dict)
    """That message."""

    def add(self, index: int, event: Mapping[str, Any]) -> None:
        """Append the content of ``event``."""
        if "kind" in event:
            self._add_kind(event)
        elif "action" in event:
            self._add_action(index, event)
        elif "observation" in event and event["observation"] not in _SKIPPED:
            failed = event["observation"] in ("error", "user_rejected")
            failed |= _failed({**(event.get("extras") or {}), "success": event.get("success")})
            call = (event.get("tool_call_metadata") or {}).get("tool_call_id")
            self._add_result(event.get("content"), failed, call, event.get("cause"))

    def _add_action(self, index: int, event: Mapping[str, Any]) -> None:
        kind, args = event["action"], event.get("args") or {}
        if kind in _SKIPPED:
            return
        if kind == "system":
            self.tools += args.get("tools") or ()
            self._add_message("system", args.get("content"))
        elif kind == "message" or event.get("source") == "user":
            role = "user" if event.get("source") == "user" else "assistant"
            text = args.get("content") if kind == "message" else f"{kind}: {as_json(args)}"
            images = _images(args.get("image_urls") or ())
            self._add_message(role, [{"type": "text", "text": text or ""}, *images] if images else text)
        elif kind in ("finish", "reject"):
            outputs = args.get("outputs") or {}
            texts = (
                *(args.get(name) for name in ("thought", "final_thought")),
                *(outputs.get(name) for name in ("content", "reason")),
            )
            self._add_message("assistant", "\n\n".join(filter(None, texts)) or event.get("message"))
        else:
            self._add_action_call(index, event, kind, args)

    def _add_action_call(
        self, index: int, event: Mapping[str, Any], kind: str, args: Mapping[str, Any]
    ) -> None:
        metadata = event.get("tool_call_metadata") or {}
        response = metadata.get("model_response") or {}
        message = ((response.get("choices") or [{}])[0]).get("message") or {}
        self.model = self.model or response.get("model")
        call_id = metadata.get("tool_call_id") or f"event-{event.get('id', index)}"
        call = next((call for call in message.get("tool_calls") or () if call.get("id") == call_id), None)
        thought = args.get("thought") if kind != "think" else None
        if call is None:
            self.named_by_action = True
            arguments = {key: value for key, value in args.items() if value is not None and key != "thought"}
            call = {
                "id": call_id,
                "name": metadata.get("function_name") or kind,
                "arguments": as_json(dict(args) if kind == "think" else arguments),
            }
        content = thought or message.get("content")
        self._add_call(event, call, content, _reasoning(message), response.get("id"))

    def _add_kind(self, event: Mapping[str, Any]) -> None:
        kind = event["kind"]
        if kind == "SystemPromptEvent":
            self.tools += event.get("tools") or ()
            self._add_message("system", (event.get("system_prompt") or {}).get("text"))
        elif kind == "MessageEvent":
            message = event.get("llm_message") or {}
            content = _content(message.get("content"), event.get("extended_content"))
            self._add_message(message.get("role") or "user", content, _reasoning(message))
        elif kind == "ActionEvent":
            self._add_action_event(event)
        elif kind in _RESULT_KINDS:
            result = event.get("observation") or {}
            if result.get("kind") == "FinishObservation":
                return  # it repeats the message
            texts = (
                *(result.get(name) for name in ("content", "output")),
                *(event.get(name) for name in ("error", "rejection_reason")),
            )
            content = _content(next(filter(None, texts), ""), event.get("extended_content"))
            failed = kind != "ObservationEvent" or _failed(result)
            self._add_result(content, failed, event.get("tool_call_id"), event.get("action_id"))

    def _add_action_event(self, event: Mapping[str, Any]) -> None:
        action, call_id = event.get("action") or {}, event.get("tool_call_id")
        thought = "\n".join(str(part.get("text") or "") for part in event.get("thought") or ())
        if event.get("tool_name") == "finish":
            text = "\n\n".join(filter(None, (thought, action.get("message"))))
            self._add_message("assistant", text, _reasoning(event))
            return
        call = event.get("tool_call") or {"id": call_id, "name": event.get("tool_name"), "arguments": action}
        self._add_call(event, call, thought or None, _reasoning(event), event.get("llm_response_id"))

    def _add_message(self, role: str, content: Any, reasoning: Mapping[str, Any] | None = None) -> None:
        more = reasoning if reasoning and role == "assistant" else {}
        self.messages.append({"role": role, "content": content, **more})
        if role != "tool":
            self._response = None

    def _add_call(
        self,
        event: Mapping[str, Any],
        call: Mapping[str, Any],
        content: Any,
        reasoning: Mapping[str, Any] | None,
        response: Any,
    ) -> None:
        if response is None or response != self._response:
            self._add_message("assistant", content, reasoning)
            self._response, self._answer = response, self.messages[-1]
        self._answer.setdefault("tool_calls", []).append(call)
        self._open_calls[call["id"]] = call["id"]
        if "id" in event:
            self._open_calls["event", event["id"]] = call["id"]

    def _add_result(self, content: Any, failed: bool, call: Any, cause: Any) -> None:
        """Add a tool message if the result answers an open call, else a user message."""
        call_id = call if call in self._open_calls else self._open_calls.get(("event", cause))
        if self._open_calls.pop(call_id, None) is None:
            self._add_message("user", content)
            return
        self._add_message("tool", content)
        self.messages[-1] |= {"tool_call_id": call_id, "error": failed}


def _failed(result: Mapping[str, Any]) -> bool:
    """Whether a result says that its call failed; -1 is the exit code of a command that still runs."""
    fields = {**result, **(result.get("metadata") or {})}
    return fields_failed({name: value for name, value in fields.items() if value != -1}) is True


def _reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a message's reasoning."""
    item = message.get("responses_reasoning_item")
    fields = {name: message.get(name) for name in ("reasoning_content", "thinking_blocks")}
    return fields | {"reasoning_details": [item] if item else None}


def _content(content: Any, extension: Any) -> Any:
    """Content as a list of OpenAI's parts; an image of OpenHands can have several addresses."""
    if not isinstance(content, list):
        return content
    parts: list[Any] = []
    for part in [*content, *(extension or ())]:
        text = {"type": "text", "text": part.get("text") or ""}
        parts += _images(part["image_urls"]) if part.get("type") == "image" else [text]
    return parts


def _images(urls: Sequence[str]) -> list[dict[str, Any]]:
    return [{"type": "image_url", "image_url": {"url": url}} for url in urls]
