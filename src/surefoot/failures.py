"""Whether the result of a tool call says that the call failed: first from its structure, then from its text.

Three answers: ``True`` failed, ``False`` succeeded, ``None`` nothing says. Servers, agents and protocols name
the same fact in many ways: ``is_error`` (Anthropic), ``isError`` (MCP), ``status`` (LangChain, Bedrock),
``returncode`` and ``exit_code`` (shells), ``ok`` and ``success`` (APIs), HTTP codes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from surefoot.records import Message

FLAG_NAMES: Final = {
    "error", "exit_code", "isError", "is_error", "ok", "returncode", "status", "success",
    "tool_result_is_error",
}  # fmt: skip
"""Fields next to a result's content, in the message, that :func:`fields_failed` reads."""
_FAILED_FLAGS: Final = ("iserror", "toolresultiserror", "error", "failed")
_CODES: Final = ("returncode", "exitcode", "exitstatus")
_SUCCESS_FLAGS: Final = ("ok", "success", "succeeded", "successful")
_REASONS: Final = ("error", "errors", "errormessage", "errorcode", "errortype", "exception")
_HTTP_CODES: Final = ("statuscode", "httpstatus", "httpcode", "status")
_FAILED_WORDS: Final = re.compile(
    r"(?:error\w*|exception|fail\w*|rejected|declined|denied|refused|forbidden|unauthori[sz]ed"
    r"|not[ _]?found|invalid|aborted|crashed|time[d-]?[ _-]?out)(?![a-z])",
    re.IGNORECASE,
)
_SUCCEEDED_WORDS: Final = {"success", "successful", "succeeded", "ok", "done", "completed", "complete"}
_NOTHING: Final = {"", "none", "null", "no error", "no errors", "false", "0", "ok"}
_EXPLAINING: Final = {
    "code", "data", "description", "detail", "details", "hint", "id", "message", "msg", "output", "path",
    "reason", "requestid", "result", "timestamp", "title", "tool", "traceback", "type",
}  # fmt: skip
"""Fields that may stand next to a failed ``status`` which is the call's: next to others it may be the status
of a looked-up object, such as a failed payment."""
_WRAPPERS: Final = ("metadata", "result", "response", "toolresult", "extra")
_MAX_JSON: Final = 1_000_000
"""Characters of a result that are parsed as JSON."""
_HEAD, _TAIL, _LINES, _SHORT = 2_000, 1_000, 5, 3
"""Characters at the beginning and the end of a text that can say how the call ended; lines of the beginning,
and of a text that is short enough for one complaint to be all that it says."""


def result_failed(message: Message) -> bool | None:
    """What a tool's message says of its call: by its flag, else by its content."""
    if message.role != "tool":
        return None
    return text_failed(message.content or "") if message.error is None else message.error


def fields_failed(fields: Mapping[str, Any]) -> bool | None:
    """What the fields around a result say: flags first, then exit codes, reasons and the status."""
    named = {re.sub(r"[\W_]", "", name).lower(): value for name, value in fields.items() if name}
    for name in _FAILED_FLAGS:
        if (flag := _flag(named.get(name))) is not None:
            return flag
    for name in _CODES:
        if (code := _integer(named.get(name))) is not None:
            return code != 0
    for name in _SUCCESS_FLAGS:
        if (flag := _flag(named.get(name))) is not None:
            return not flag
    if any(_is_reason(named.get(name)) for name in _REASONS):
        return True
    kind = named.get("type")
    if isinstance(kind, str) and re.match(r"(?:tool[-_])?(?:error|execution-denied)(?![a-z])", kind):
        return True
    for name in _HTTP_CODES:
        if (code := _integer(named.get(name))) is not None and 200 <= code < 600:
            return code >= 400
    if isinstance(status := named.get("status"), str):
        if _FAILED_WORDS.match(status):
            return True
        if status.lower() in _SUCCEEDED_WORDS:
            return False
    inner = (named[name] for name in _WRAPPERS if isinstance(named.get(name), Mapping))
    return next((failed for failed in map(_object_failed, inner) if failed is not None), None)


def text_failed(text: str) -> bool | None:
    """What a result's text says: a JSON object by its fields, other text by how it begins and ends."""
    text = text.strip()
    if text[:1] in ("{", "[") and len(text) <= _MAX_JSON:
        try:
            value, _ = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, list) and len(value) == 1:  # one part of a message's content
            value = value[0]
        if isinstance(value, Mapping):
            part = value.get("text") if value.get("type") == "text" else None
            return text_failed(part) if isinstance(part, str) else _object_failed(value)
    lines = [line.strip() for line in (*text[:_HEAD].split("\n")[:_LINES], *text[-_TAIL:].split("\n")[-2:])]
    for line in lines:
        if match := _EXIT_CODE.match(line):
            return int(match[1]) != 0
    if _FAILED_BEGINNING.match(text):
        return True
    if "Traceback (most recent call last)" in text and _RAISED.match(lines[-1]):
        return True
    short = text.count("\n") < _SHORT and len(text) <= _HEAD
    return True if short and (_HTTP.match(text) or _COMPLAINT.match(lines[-1])) else None


_EXIT_CODE: Final = re.compile(
    r"(?:<(?:returncode|exit_code)>|[\[(]?(?:(?:the |shell )?(?:command|process|script|program) )?"
    r"(?:(?:failed|finished|completed|ended) with )?(?:exit(?:ed with)?|return)[ _]?(?:code|status)"
    r"(?: is| was)?[:=]? ?)(-?\d{1,10})(?![\w.,]\w)",
    re.IGNORECASE,
)
"""A line of a harness that states how a command ended: ``Exit code 1``, ``[exit code: 0]``."""
_FAILED_BEGINNING: Final = re.compile(
    r"""<(?:\w+_)?error>|traceback\ \(most\ recent\ call\ last\)|(?-i:spawn\ \S+\ E[A-Z]{3,}\b|E[A-Z]{3,}:\s)
    |\{?['"]?(?:(?:[\w.]*(?:error|exception)|fail(?:ed|ure)?|fatal)(?:\[\w+\])?['"]?
       (?::(?!\s*(?:(?:none|null|false|0)\b|''|""|\[\]|\{\}|no\ errors?[^\w\n]*(?:\n|$)))
       |!|\.?$|\s+(?:while|during|in|at|when|from|to)\b
       |\s+\w+ing\b(?!\s+(?:is|are|was)\b)))
    |(?:file|directory|path|tool|user|order|account|string\ to\ replace)\ (?:does\ not\ exist|not\ found)\b
    |(?:\w+\ requested\ )?permissions?\ (?:denied|to)\b|access\ denied\b|not\ found\.?$|no\ such\ \w+
    |(?:unknown|invalid)\ (?:tool|function|argument|url|parameter)\b
    |(?:command|request|script)\ (?:failed|timed\ out)|unable\ to\b|could\ not\b|cannot\ \w+
    |timed?[ -]?out\b""",
    re.IGNORECASE | re.VERBOSE,
)
_HTTP: Final = re.compile(r"(?:http(?:/[\d.]+)?\s+)?[45]\d\d\s+[A-Z][a-z]+", re.IGNORECASE)
_COMPLAINT: Final = re.compile(
    r"""[\w./+-]+:\s(?:[^:]{1,80}:\s){0,3}
       (?:(?:fatal\ |syntax\ )?error|fatal|cannot\ |no\ such\ file|(?:command\ )?not\ found
         |permission\ denied)
    |(?!.*\b(?:no|0|without)\ error)(?:[\w'-]+\ ){1,7}(?:error|failed|failure)\.?$""",
    re.IGNORECASE | re.VERBOSE,
)
"""A last line in which a program says why it ended: ``git: command not found``, ``DNS resolution error``."""
_RAISED: Final = re.compile(r"[\w.]*(?:Error|Exception|Interrupt|Exit)\b(?::|$)")


def _object_failed(value: Mapping[str, Any]) -> bool | None:
    """What a result that is an object says: its ``status`` counts only among fields that explain it."""
    names = {re.sub(r"[\W_]", "", str(name)).lower() for name in value}
    if names - _EXPLAINING - {"status", "statuscode", "success", "ok", *_REASONS}:
        status = value.get("status")
        failed = isinstance(status, str) and _FAILED_WORDS.match(status)
        value = {name: field for name, field in value.items() if not (failed and name == "status")}
    return fields_failed(value)


def _is_reason(value: object) -> bool:
    """Whether a field such as ``error`` says that there was one; a number may be a measured error."""
    if isinstance(value, str):
        return value.strip().lower().rstrip(".") not in _NOTHING
    return isinstance(value, Mapping | list) and bool(value)


def _flag(value: object) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.lower())
    return value if isinstance(value, bool) else None


def _integer(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,10}", value.strip()):
        return int(value)
    return value if isinstance(value, int) else None
