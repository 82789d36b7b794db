"""``surefoot guard hook``: a tool policy as a hook of Claude Code, asked before each tool call.

Claude Code starts the command for each call, with the event as JSON on standard input, and reads the answer
as JSON (https://code.claude.com/docs/en/hooks, event ``PreToolUse``). Status 2 blocks the call; so does every
failure here. Other statuses would let it pass, and ``onFailure`` in the printed settings closes that, too.

The module imports little, because the call waits for it: the recorded session is read only if a rule looks at
what happened before.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

from surefoot.errors import GuardError, SurefootError
from surefoot.labelling.verifiers.tool_policy import (
    CallHistory,
    ToolPolicy,
    call_results,
    judge_call,
    overall,
    packaged_policy,
)
from surefoot.messages import canonical_arguments, normal_name, parse_arguments
from surefoot.records import Message, ToolCall

Decision = Literal["allow", "deny", "ask", "none"]
"""none: no rule objects, and Claude Code's own permissions decide."""

SECONDS: Final = 8
"""The check is given up after so many seconds, before Claude Code's own limit in the settings."""
_MOST_BYTES: Final = 2**24
_BLOCKED = 2
"""Exit status that blocks a call; the reason is on standard error."""
_NOBODY: Final = frozenset({"bypassPermissions", "dontAsk"})
"""Modes without a person who is asked."""
_LOOKS_BACK = re.compile(r"\b(?:calls|user|last_user|latest|attempts|turn)\b")
"""What a rule names to read the run before the call."""


@dataclass(frozen=True, kw_only=True)
class HookAnswer:
    """What the hook answers."""

    decision: Decision
    reason: str = ""

    def text(self) -> str:
        """Standard output; empty without an opinion."""
        if self.decision == "none":
            return ""
        fields = {
            "hookEventName": "PreToolUse",
            "permissionDecision": self.decision,
            "permissionDecisionReason": self.reason,
        }
        return json.dumps({"hookSpecificOutput": fields})


def read_policy(name: str) -> ToolPolicy:
    """The packaged policies that ``name`` lists, or the policy in a file; raises ``LabelError``."""
    if (policy := packaged_policy(name)) is None:  # first: the agent may write a file of this name
        from surefoot.labelling.specification import read_tool_policy

        return read_tool_policy(name)
    return policy


def check_event(policy: ToolPolicy, event: Mapping[str, Any]) -> HookAnswer:
    """What ``policy`` says of the call of a ``PreToolUse`` event.

    The run before the call is read from ``transcript_path`` if a rule for the tool looks back. ``allow``
    skips the person's confirmation, so it is for ``read_only`` tools alone; other calls that no rule objects
    to are left to Claude Code's permissions. An undecidable rule asks. A mode without a person
    denies instead of asking. Raises ``GuardError`` for another event, and whatever reading the run raises.
    """
    name, arguments = event.get("tool_name"), event.get("tool_input")
    if event.get("hook_event_name") != "PreToolUse":
        raise GuardError(f"this hook is for PreToolUse, not {str(event.get('hook_event_name'))[:100]!r}")
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise GuardError("the event has no 'tool_name' with an object as 'tool_input'")
    identity = event.get("tool_use_id")
    call = ToolCall(
        id=identity if isinstance(identity, str) else None,
        name=name,
        arguments=canonical_arguments(json.dumps(arguments)),
    )
    rules = [rule for _, rule in policy.rules_for(name)]
    looks_back = any(_LOOKS_BACK.search(rule.require) for rule in rules)
    messages = _before(call, _session(event.get("transcript_path"))) if looks_back else ()
    user = [message.content or "" for message in messages if message.role == "user"]
    outcomes = judge_call(policy, call, CallHistory(call_results(messages)), user)
    # the prefix tells rules of a policy from other rules, and a hook has no others
    unprefixed = [replace(judged, reason=judged.reason.removeprefix("policy: ")) for judged in outcomes]
    outcome, reason = overall(unprefixed)
    if outcome == "violated":
        return HookAnswer(decision="deny", reason=reason)
    if outcome != "satisfied" and event.get("permission_mode") in _NOBODY:
        return HookAnswer(
            decision="deny", reason=f"a person must agree, and this mode asks no person: {reason}"
        )
    if outcome != "satisfied":
        return HookAnswer(decision="ask", reason=f"{reason}; agreeing is for exactly this call, once")
    reads = normal_name(name) in map(normal_name, policy.read_only)
    return HookAnswer(decision="allow", reason="it only reads") if reads else HookAnswer(decision="none")


def _session(path: Any) -> Sequence[Message]:
    """The messages of the recorded session. Raises ``GuardError``, or ``RecordError`` of the reader."""
    if not isinstance(path, str) or not Path(path).expanduser().is_file():
        raise GuardError("a rule reads the run before the call, and its transcript cannot be read")
    from surefoot.formats.claude_code import read_claude_code
    from surefoot.formats.imports import ImportContext, ImportSettings
    from surefoot.io.files import ReadReport

    messages: Sequence[Message] = ()
    context = ImportContext(settings=ImportSettings(), report=ReadReport())
    for imported in read_claude_code(Path(path).expanduser(), context):
        if imported.trace is not None and "subagent" not in imported.trace.meta.get("import", {}):
            messages = imported.trace.messages
    lost = [reason for _, reason in context.report.bad if "without a message" not in reason]
    if lost:
        raise GuardError(f"a rule reads the run before the call, and its transcript is damaged: {lost[0]}")
    return messages  # the first call of a session may come before its first message is written


def _before(call: ToolCall, messages: Sequence[Message]) -> Sequence[Message]:
    """The messages before the call, which the transcript may hold already; parallel calls stay."""
    if call.id is None:
        return messages
    for index, message in enumerate(messages):
        parallel = tuple(other for other in message.tool_calls if other.id != call.id)
        if len(parallel) < len(message.tool_calls):
            message = message.model_copy(update={"tool_calls": parallel})
            return (*messages[:index], message, *messages[index + 1 :])
    return messages


def settings_text(policy: str) -> str:
    """The block of Claude Code's settings that sets the hook up."""
    name = policy if packaged_policy(policy) is not None else str(Path(policy).resolve())
    # -P: the folder that the agent works in, where it may write surefoot.py, is not searched for modules
    command = shlex.join([sys.executable, "-P", "-m", "surefoot", "guard", "hook", name])
    hook = {"type": "command", "command": command, "timeout": SECONDS + 2, "onFailure": "block"}
    return json.dumps({"hooks": {"PreToolUse": [{"matcher": "*", "hooks": [hook]}]}}, indent=2)


def run_hook(policy: str, event: BinaryIO) -> tuple[str, int]:
    """The answer to an event, and the exit status. With 2, which blocks the call, it is the reason."""
    try:
        if len(text := event.read(_MOST_BYTES + 1)) > _MOST_BYTES:
            raise GuardError(f"the event has more than {_MOST_BYTES} bytes")
        return check_event(read_policy(policy), parse_arguments(text.decode("utf-8"))).text(), 0
    except (SurefootError, ValueError, OSError) as error:
        reason = re.sub(r"\[Errno \d+\] ", "", " ".join(str(error).split()))[:500]
    except Exception as error:  # whatever fails, the call is not made; the text may be secret
        reason = type(error).__name__
    return f"surefoot guard: this call could not be checked: {reason}", _BLOCKED


def main(policy: str) -> int:
    """Answer the event on standard input, or print the settings in a terminal; returns the exit status."""
    if sys.stdin.isatty():
        read_policy(policy)
        print(settings_text(policy))
        return 0

    def late(*_: Any) -> None:
        raise TimeoutError(f"it took more than {SECONDS} s")

    with suppress(AttributeError):  # on Windows only the limit in the settings holds
        signal.signal(signal.SIGALRM, late)
        signal.alarm(SECONDS)
    text, status = run_hook(policy, sys.stdin.buffer)
    with suppress(AttributeError):
        signal.alarm(0)
    print(text, end="", file=sys.stderr if status else sys.stdout)
    return status
