"""Whether a coding agent's call edits files or runs a command, by the usual names of tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic_core import from_json

from surefoot.records import ToolCall

_SHELLS: Final = {
    "bash", "container.exec", "exec_command", "execute_bash", "execute_command", "execute_ipython_cell",
    "local_shell", "run", "run_command", "run_ipython", "run_shell_command", "run_terminal_cmd", "shell",
    "terminal",
}  # fmt: skip
_COMMANDS: Final = ("command", "cmd", "code", "script")
"""Arguments that hold what a shell runs; a tool called ``run`` may do something else."""
_EDITORS: Final = {"file_editor", "str_replace_based_edit_tool", "str_replace_editor", "text_editor"}
"""Tools with an argument ``command`` that names the operation."""
_EDITS: Final = {
    "append", "apply_patch", "create", "create_file", "delete_file", "edit", "edit_file", "insert",
    "insert_edit_into_file", "multi_edit", "multiedit", "replace_in_file", "search_replace", "str_replace",
    "write", "write_file", "write_to_file",
}  # fmt: skip
_PLACES: Final = (
    "file", "file_name", "file_path", "filename", "filepath", "input", "line", "patch", "path", "replace",
    "replacement_text", "target_file",
)  # fmt: skip
"""Arguments that say where; a tool called ``create`` may create something else."""


def action_kind(call: ToolCall) -> Literal["edit", "command", "tool_call"]:
    """``edit`` for a call that changes files, ``command`` for what a shell or interpreter runs, else neither.

    A line of ``bash`` that begins with an edit of SWE-agent's (``edit 3:4``, ``create a.py``) is an edit.
    Other commands may also change files; they stay commands, as the agent named them.
    """
    name = call.name.lower()
    if name in _SHELLS:
        arguments = _arguments(call)
        line = next((arguments[key] for key in _COMMANDS if arguments.get(key)), None)
        if line is None:
            return "tool_call"
        words = line.split(maxsplit=2)[:2] if name == "bash" and isinstance(line, str) else []
        return "edit" if words and _is_edit(words[0], words[1:]) else "command"
    if name in _EDITORS:
        return "tool_call" if _arguments(call).get("command") == "view" else "edit"
    return "edit" if name in _EDITS and any(key in _arguments(call) for key in _PLACES) else "tool_call"


def _is_edit(word: str, rest: list[str]) -> bool:
    return word in ("append", "apply_patch", "create", "edit", "insert") or (
        word in _EDITORS and rest != ["view"]
    )


def _arguments(call: ToolCall) -> Mapping[str, Any]:
    try:
        arguments = from_json(call.arguments)
    except ValueError:
        return {}
    return arguments if isinstance(arguments, Mapping) else {}
