"""Trajectories of OpenHands (arXiv 2407.16741): lists of events, alone or in rows of an evaluation.

Both kinds of events are read: actions and observations that name themselves (``action``, ``observation``),
and those of the later SDK (``kind``). Events that say nothing of the process, such as changes of the agent's
state, stay in the file alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

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
from surefoot.io.atomic import write_json
from surefoot.io.limits import FileLimits, RowSize
from surefoot.records import Problem, Trace, Usage, as_json, content_id

NAME: Final = "openhands"
_OWN = "surefoot"
_LISTS = ("history", "trajectory", "events")
"""Fields of a row that holds a list of events."""
_SILENT: Final = {
    "agent_state_changed", "change_agent_state", "condensation", "condensation_request", "condense",
    "loop_detection", "loop_recovery", "null", "pause", "push", "recall", "resume", "send_pr", "start",
    "stop",
}  # fmt: skip
"""Actions and observations that are no part of the process."""
_ANSWERS: Final = {"ObservationEvent", "UserRejectObservation", "AgentErrorEvent"}


def is_openhands(row: Mapping[str, Any]) -> bool:
    """Whether a row is an event, or holds a list of them."""
    return _is_event(row) or _events_of(row) is not None


def _is_event(row: Any) -> bool:
    if not isinstance(row, Mapping):
        return False
    named = ("action" in row and "args" in row) or ("observation" in row and "extras" in row)
    return named or {"kind", "source", "timestamp"} <= row.keys()


def _events_of(row: Any) -> list[Any] | None:
    """The events of a row; earlier evaluations have pairs of an action and its observation."""
    if not isinstance(row, Mapping):
        return None
    for name in _LISTS:
        events = row.get(name)
        if isinstance(events, list) and events:
            flat = [one for event in events for one in (event if isinstance(event, list) else [event])]
            if flat and _is_event(flat[0]):
                return flat
    return None


def read_openhands(path: Path | str, context: ImportContext) -> Iterator[ImportedTrace]:
    """One trace per run: of a file of events the whole, of an evaluation each row.

    Calls are the model's own where an event has its response; else they have the name and the arguments of
    the action, and the trace has no tools, since their schemas are of other names. The commands of a user are
    the user's messages.
    """
    return context.rows(_runs(raw_rows(path)), lambda number, run: [_trace(number, run, context)])


def write_openhands(original: Path, path: Path, results: Mapping[str, TraceResults]) -> int:
    """Copy the events of ``original`` with labels and scores in ``surefoot`` of each that has any.

    Returns the number of runs changed. Raises ``RecordError`` if one is of another file.
    """
    numbered = list(raw_rows(original))
    runs = {str(number): _events_of(run) for number, run in _runs(numbered)}
    for place, found in results.items():
        events = runs.get(place)
        check_origin(original, f"run {place}", events, found)
        _annotate(events or [], found)
    rows = [row for _, row in numbered if not isinstance(row, ValueError)]
    if path.suffix == ".json":
        write_json(path, rows if _is_event(rows[0]) or len(rows) > 1 else rows[0])
    else:
        write_rows(path, rows)
    return len(results)


def _runs(rows: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """Rows that hold runs; the events of a file of events are one."""
    first, events, size = 0, [], RowSize(FileLimits.from_environment())
    for number, row in rows:
        if not _is_event(row):
            yield number, row
            continue
        size.add(len(as_json(row)))
        first = first or number
        events.append(row)
    if events:
        yield first, {"events": events}


def _trace(number: int, row: Any, context: ImportContext) -> ImportedTrace:
    events = _events_of(row)
    if events is None:
        raise RecordError("a run of OpenHands has its events in 'history', 'trajectory' or 'events'")
    run = _Conversation()
    for at, event in enumerate(events):
        if isinstance(event, Mapping):
            run.add(at, event)
    messages = context.messages(run.messages)
    check_assistant(messages)
    if len(messages) != len(run.at):
        raise RecordError("a message holds the results of several calls, which no event does")
    metadata, instance = row.get("metadata") or {}, row.get("instance") or {}
    spent = (row.get("metrics") or {}).get("accumulated_token_usage") or {}
    stated = instance.get("problem_statement") or row.get("instruction")
    problem = Problem(text=stated if isinstance(stated, str) else task_of(messages), source=NAME)
    trace = Trace(
        problem_id=problem.id,
        messages=messages,
        tools=() if run.named_by_action else tools(run.tools),
        outcome=_resolved(row),
        policy=(metadata.get("llm_config") or {}).get("model") or run.model,
        error=None if row.get("error") is None else str(row["error"]),
        usage=Usage(
            prompt_tokens=int(spent.get("prompt_tokens") or 0),
            completion_tokens=int(spent.get("completion_tokens") or 0),
        ),
        meta={
            IMPORT_KEY: {"format": NAME, "run": str(number), "events": run.at, "hash": content_id(events)},
            "openhands": {"instance": row.get("instance_id"), "test_result": row.get("test_result")},
        },
    )
    return ImportedTrace(problem=problem, trace=trace)


def _resolved(row: Mapping[str, Any]) -> bool | None:
    """What the tests of SWE-bench said, in the report of an evaluation."""
    result = row.get("test_result")
    places = (row.get("report"), result, result.get("report") if isinstance(result, Mapping) else None)
    said = (place.get("resolved") for place in places if isinstance(place, Mapping))
    return next((one for one in said if isinstance(one, bool)), None)


@dataclass
class _Conversation:
    """The messages of a run, and for each the indices of the events that it came of: one, or one a call."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    at: list[list[int]] = field(default_factory=list)
    tools: list[Any] = field(default_factory=list)
    model: str | None = None
    named_by_action: bool = False
    """Whether a call has the name of its action, which no schema of a tool is of."""
    _calls: dict[Any, Any] = field(default_factory=dict)
    """Ids of calls without an answer, by themselves and by the id of their event."""
    _response: Any = None
    """Id of the response of the assistant's latest message: its other calls are that message's, too."""
    _place: int = 0
    """Index of that message."""

    def add(self, at: int, event: Mapping[str, Any]) -> None:
        """Append what ``event`` says."""
        if "kind" in event:
            self._add_kind(at, event)
        elif "action" in event:
            self._add_action(at, event)
        elif "observation" in event and event["observation"] not in _SILENT:
            failed = event["observation"] in ("error", "user_rejected") or event.get("success") is False
            failed |= _exited_badly(event.get("extras") or {})
            asked = (event.get("tool_call_metadata") or {}).get("tool_call_id")
            self._answer(at, event.get("content"), failed, asked, event.get("cause"))

    def _add_action(self, at: int, event: Mapping[str, Any]) -> None:
        kind, args = event["action"], event.get("args") or {}
        if kind in _SILENT:
            return
        if kind == "system":
            self.tools += args.get("tools") or ()
            self._say(at, "system", args.get("content"))
        elif event.get("source") == "user":
            said = args.get("content") if kind == "message" else f"{kind}: {as_json(args)}"
            self._say(at, "user", _with_images(said, args.get("image_urls")))
        elif kind == "message":
            self._say(at, "assistant", _with_images(args.get("content"), args.get("image_urls")))
        elif kind in ("finish", "reject"):
            outputs = args.get("outputs") or {}
            said = (
                args.get("thought"),
                args.get("final_thought"),
                outputs.get("content"),
                outputs.get("reason"),
            )
            self._say(at, "assistant", "\n\n".join(filter(None, said)) or event.get("message"))
        else:
            self._call_of_action(at, event, kind, args)

    def _call_of_action(self, at: int, event: Mapping[str, Any], kind: str, args: Mapping[str, Any]) -> None:
        noted = event.get("tool_call_metadata") or {}
        response = noted.get("model_response") or {}
        said = ((response.get("choices") or [{}])[0]).get("message") or {}
        self.model = self.model or response.get("model")
        name = noted.get("tool_call_id") or f"event-{event.get('id', at)}"
        own = [one for one in said.get("tool_calls") or () if one.get("id") == name]
        thought = args.get("thought") if kind != "think" else None
        given = {key: value for key, value in args.items() if value is not None and key != "thought"}
        call = own[0] if own else {"id": name, "name": noted.get("function_name") or kind}
        if not own:
            self.named_by_action = True
            call["arguments"] = as_json(dict(args) if kind == "think" else given)
        content = thought or said.get("content")
        self._call(at, event, call, content, _reasoning(said), response.get("id"))

    def _add_kind(self, at: int, event: Mapping[str, Any]) -> None:
        kind = event["kind"]
        if kind == "SystemPromptEvent":
            self.tools += event.get("tools") or ()
            self._say(at, "system", (event.get("system_prompt") or {}).get("text"))
        elif kind == "MessageEvent":
            said = event.get("llm_message") or {}
            content = _parts(said.get("content"), event.get("extended_content"))
            self._say(at, said.get("role") or "user", content, _reasoning(said))
        elif kind == "ActionEvent":
            self._act(at, event)
        elif kind in _ANSWERS:
            seen = event.get("observation") or {}
            if seen.get("kind") == "FinishObservation":
                return  # it repeats the message
            said = (
                seen.get("content"),
                seen.get("output"),
                event.get("error"),
                event.get("rejection_reason"),
            )
            content = _parts(next(filter(None, said), ""), event.get("extended_content"))
            failed = bool(seen.get("is_error") or seen.get("error")) or _exited_badly(seen)
            failed |= kind != "ObservationEvent"
            self._answer(at, content, failed, event.get("tool_call_id"), event.get("action_id"))

    def _act(self, at: int, event: Mapping[str, Any]) -> None:
        action, name = event.get("action") or {}, event.get("tool_call_id")
        thought = "\n".join(str(one.get("text") or "") for one in event.get("thought") or ())
        if event.get("tool_name") == "finish":
            said = "\n\n".join(filter(None, (thought, action.get("message"))))
            self._say(at, "assistant", said, _reasoning(event))
            return
        call = event.get("tool_call") or {"id": name, "name": event.get("tool_name"), "arguments": action}
        self._call(at, event, call, thought or None, _reasoning(event), event.get("llm_response_id"))

    def _say(self, at: int, role: str, content: Any, reasoning: dict[str, Any] | None = None) -> None:
        said = {"role": role, "content": content}
        if reasoning and role == "assistant":
            said["reasoning"] = reasoning
        self.messages.append(said)
        self.at.append([at])
        if role != "tool":
            self._response = None

    def _call(
        self,
        at: int,
        event: Mapping[str, Any],
        call: Mapping[str, Any],
        content: Any,
        reasoning: dict[str, Any] | None,
        response: Any,
    ) -> None:
        if response is not None and response == self._response:
            self.messages[self._place]["tool_calls"].append(call)
            self.at[self._place].append(at)
        else:
            self._say(at, "assistant", content, reasoning)
            self.messages[-1]["tool_calls"] = [call]
            self._response, self._place = response, len(self.messages) - 1
        self._calls[call["id"]] = call["id"]
        if "id" in event:
            self._calls["event", event["id"]] = call["id"]

    def _answer(self, at: int, content: Any, failed: bool, call: Any, cause: Any) -> None:
        """What came back: a tool's message if it answers a call that has no answer yet, else the user's."""
        name = call if call in self._calls else self._calls.get(("event", cause))
        if self._calls.pop(name, None) is None:
            self._say(at, "user", content)
            return
        self._say(at, "tool", content)
        self.messages[-1] |= {"tool_call_id": name, "error": failed}


def _exited_badly(seen: Mapping[str, Any]) -> bool:
    """Whether a command ended with an exit code that is not 0; -1 is that of one that goes on."""
    code = (seen.get("metadata") or {}).get("exit_code", seen.get("exit_code"))
    return code not in (None, 0, -1)


def _reasoning(said: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the model reasoned: the text, else a summary, else that there was some."""
    blocks = said.get("thinking_blocks") or ()
    item = said.get("responses_reasoning_item") or {}
    text = said.get("reasoning_content") or "\n".join(filter(None, (one.get("thinking") for one in blocks)))
    if text:
        return {"text": text, "visibility": "visible"}
    if summary := "\n".join(item.get("summary") or ()):
        return {"text": summary, "visibility": "summarised"}
    return {"visibility": "withheld"} if blocks or item else None


def _parts(content: Any, more: Any) -> Any:
    """Content in parts that every reader knows: an image can have several addresses."""
    if not isinstance(content, list):
        return content
    parts: list[Any] = []
    for part in [*content, *(more or ())]:
        if part.get("type") == "image":
            parts += [{"type": "image_url", "image_url": {"url": url}} for url in part["image_urls"]]
        else:
            parts.append({"type": "text", "text": part.get("text") or ""})
    return parts


def _with_images(content: Any, urls: Sequence[str] | None) -> Any:
    if not urls:
        return content
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"type": "text", "text": content or ""}, *images]


def _annotate(events: Sequence[Any], results: TraceResults) -> None:
    at = results.trace.meta[IMPORT_KEY]["events"]
    for step in results.steps:
        of_message = at[step["message"]]
        place = of_message[step["call"]] if step.get("call") is not None else of_message[0]
        events[place].setdefault(_OWN, []).append(step)
