"""Sessions of Codex: rollouts under ``~/.codex/sessions``.

A rollout has two logs in one file: ``response_item`` is what the model reads and writes, in the items of
OpenAI's Responses API, and ``event_msg`` is what the screen shows. The first is read; the second adds the
exit codes of commands, what the user typed, and rollbacks. Before September 2025 items lacked an envelope;
since 2026 a script (``exec``) makes calls, whose ends are events ``item_completed`` without its id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from surefoot.failures import fields_failed
from surefoot.formats.imports import ChatRows, ImportContext, ImportedTrace, reader_of_runs, run_of
from surefoot.formats.rows import session_rows

_ADDED: Final = (
    "# AGENTS.md", "<environment_context", "<permissions", "<skill", "<turn_aborted", "<user_instructions",
    "<user_shell_command",
)  # fmt: skip
"""Beginnings of messages that Codex adds in the user's name."""
_ENDS: Final = ("exec_command_end", "mcp_tool_call_end", "patch_apply_end")
"""Events that say how a call ended."""
_HEADERS: Final = {"Script failed\n": True, "Script completed\n": False}
"""Whether a script failed, by the beginning of its output: since 2026 one script of ``exec`` makes calls."""


def is_codex(row: Mapping[str, Any]) -> bool:
    """Whether a row is a line of a rollout."""
    if isinstance(row.get("payload"), Mapping):
        return row.get("type") in ("session_meta", "response_item", "turn_context", "event_msg", "compacted")
    return row.keys() - {"git"} == {"id", "timestamp", "instructions"}


@reader_of_runs("codex", session_rows)
def read_codex(
    rows: Sequence[Mapping[str, Any]], note: dict[str, Any], context: ImportContext
) -> ImportedTrace:
    """One trace per file. Turns that the user rolled back are left out and counted.

    The summary of a compaction is a message of the user, and the history that replaces the earlier one is
    left out. A subagent's file begins with a copy of the session that started it, which is left out, too.
    """
    session = _Session(context)
    for row in rows:
        session.add(row)
    return session.trace(note if session.agent is None else note | {"subagent": session.agent})


@dataclass
class _Session:
    context: ImportContext
    chat: ChatRows = field(default_factory=ChatRows)
    name: str = ""
    agent: str | None = None
    model: str | None = None
    error: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    _first_ordinal: int = 0
    _turns: list[int] = field(default_factory=list)
    """Indices of the rows with which the user's turns begin."""
    _failed: dict[Any, bool] = field(default_factory=dict)
    """Whether calls failed, by their ids, as the events say."""
    _prompts: list[str] = field(default_factory=list)
    _last_call: Any = None

    def add(self, row: Mapping[str, Any]) -> None:
        """Add the content of a line."""
        kind, payload = row.get("type"), row.get("payload")
        if isinstance(ordinal := row.get("ordinal"), int) and 0 < ordinal < self._first_ordinal:
            self.context.report.left_out["events of the session that started a subagent"] += 1
        elif isinstance(payload, Mapping):
            self._add_line(kind, payload)
        elif kind is None and "instructions" in row:
            self._add_line("session_meta", row)
        else:
            self._add_item(row)

    def _add_line(self, kind: object, payload: Mapping[str, Any]) -> None:
        if kind == "response_item":
            self._add_item(payload)
        elif kind == "event_msg":
            self._add_event(payload)
        elif kind == "session_meta" and not self.name:  # a fork has its parent's, too
            self.name = str(payload.get("id") or "")
            source = payload.get("source")
            if payload.get("thread_source") == "subagent" or (
                isinstance(source, Mapping) and "subagent" in source
            ):
                self.agent = str(payload.get("agent_nickname") or payload.get("agent_role") or self.name)
            self._first_ordinal = payload.get("subagent_history_start_ordinal") or 0
            text = payload.get("base_instructions") or payload.get("instructions")
            self.chat.say("system", text.get("text") if isinstance(text, Mapping) else text)
        elif kind == "turn_context":
            self.model = payload.get("model") or self.model
        elif kind == "compacted":
            self.chat.say("user", payload.get("message"))
            history = payload.get("replacement_history") or ()
            self.context.report.left_out["messages that a compaction repeats"] += len(history)
        else:
            self.context.report.left_out[f"events {kind}"] += 1

    def _add_item(self, item: Mapping[str, Any]) -> None:
        kind = item.get("type") or "message"
        call_id = item.get("call_id") or item.get("id") or f"{kind}-{len(self.chat.rows)}"
        self._last_call = call_id if kind.endswith("_call") else self._last_call
        content = item.get("content")
        if kind == "message" and item.get("role") == "assistant":
            self.error = None  # it went on
            for part in content if isinstance(content, list) else [{"type": "text", "text": content or ""}]:
                self.chat.part(part)
        elif kind == "message":
            role = str(item.get("role"))
            if role == "user" and not _text(content).startswith(_ADDED):
                self._turns.append(len(self.chat.rows))
            self.chat.say(role, content)
        elif kind == "reasoning":
            self.chat.part(item)
        elif kind == "function_call":
            self.chat.call(str(item.get("name")), item.get("arguments"), call_id)
        elif kind == "custom_tool_call":
            self.chat.call(str(item.get("name")), {"input": item.get("input")}, call_id)
        elif kind in ("local_shell_call", "web_search_call", "tool_search_call"):
            self.chat.call(kind.removesuffix("_call"), item.get("action") or item.get("arguments"), call_id)
        elif kind.endswith("_output"):
            output = item.get("output", item.get("tools"))
            failed = None
            if isinstance(output, Mapping):
                failed, output = fields_failed(output), output.get("content")
            text = _text(output)
            failed = next((end for head, end in _HEADERS.items() if text.startswith(head)), failed)
            self.chat.result(item.get("call_id"), output, failed)
        else:
            self.context.report.left_out[f"items {kind}"] += 1

    def _add_event(self, event: Mapping[str, Any]) -> None:
        kind = event.get("type")
        if kind in _ENDS and (failed := fields_failed(event)) is not None:
            self._failed[event.get("call_id")] = failed
        elif kind == "item_completed" and isinstance(item := event.get("item"), Mapping):
            self._add_completed(item)
        elif kind == "user_message":
            self._prompts.append(str(event.get("message") or ""))
        elif kind == "thread_rolled_back":
            self._roll_back(event.get("num_turns") or 0)
        elif kind == "token_count":
            self.usage = (event.get("info") or {}).get("total_token_usage") or self.usage
        elif kind in ("error", "stream_error", "turn_aborted"):
            self.error = str(event.get("message") or event.get("reason"))
        else:
            self.context.report.left_out[f"events {kind}"] += 1

    def _add_completed(self, item: Mapping[str, Any]) -> None:
        """Of what the screen shows: the user's words, and the ends of the calls that the last script made."""
        kind, call = item.get("type"), item.get("call_id") or self._last_call
        if kind == "UserMessage":
            self._prompts.append(_text(item.get("content")))
        elif kind in ("CommandExecution", "McpToolCall", "FileChange", "DynamicToolCall"):
            names = ("exit_code", "status", "error")
            failed = fields_failed({name: item[name] for name in names if item.get(name) is not None})
            if failed is not None:
                self._failed[call] = failed or self._failed.get(call, False)
        else:
            self.context.report.left_out[f"items completed {kind}"] += 1

    def _roll_back(self, turns: int) -> None:
        if turns > 0 and self._turns:
            first = self._turns[-min(turns, len(self._turns))]
            self.context.report.left_out["messages that the user took back"] += len(self.chat.rows) - first
            self.chat.cut(first)
            del self._turns[-turns:]
            del self._prompts[-turns:]

    def trace(self, note: Mapping[str, Any]) -> ImportedTrace:
        """The run."""
        for row in self.chat.rows:
            if row["role"] == "tool" and row["tool_call_id"] in self._failed:
                row["error"] = self._failed[row["tool_call_id"]] or bool(row["error"])
        prompts = [_text(self.chat.rows[index]["content"]) for index in self._turns[:1]]
        return run_of(
            self.chat.rows,
            self.context,
            note,
            task=next(filter(None, (*self._prompts[:1], *prompts)), None),
            id=self.name,
            policy=self.model,
            error=self.error,
            usage=[self.usage],
        )


def _text(content: Any) -> str:
    """The text of a message's content."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return str(content or "")
