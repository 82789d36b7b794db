"""A tool policy: rules in CEL over the calls of a run, each satisfied, violated or undecidable.

CEL is the Common Expression Language (https://cel.dev). Expressions are free of side effects and always end.
"""

from __future__ import annotations

import json
import math
import posixpath
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, cached_property, lru_cache
from importlib import import_module
from itertools import chain, takewhile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from surefoot.errors import LabelError
from surefoot.extras import need
from surefoot.failures import result_failed
from surefoot.messages import (
    MAX_DEPTH,
    call_arguments,
    json_depth,
    normal_name,
    parse_arguments,
    strict_decoder,
)
from surefoot.records import FrozenModel, Message, Problem, Tool, ToolCall

if TYPE_CHECKING:
    import cel

MAX_EXPRESSION: Final = 2000
"""Characters of an expression; the parser of the language ends the process for a deep one of 20,000."""
MAX_EVALUATION: Final = 1_000_000
"""Bound on the number of values that an expression reads, to the power of its nested loops. The rules for the
calls of one message may read as many together."""
_COPIES: Final = 50
"""Values that are copied in the time in which one is read."""
_RESULTS: Final = strict_decoder()
_COMMANDS: Final = {"bash", "cmd", "code", "command", "commands", "keystrokes", "script"}
"""Names of arguments that hold commands or code."""

Outcome = Literal["satisfied", "violated", "undecidable", "approval"]
"""approval: a person must agree to exactly this call."""


@dataclass(frozen=True, kw_only=True)
class CallResult:
    """A call of a run, with the message that answers it."""

    message: int
    """Index of the assistant's message."""
    number: int
    """Index among that message's calls."""
    call: ToolCall
    result: Message | None
    """``None``: the call has not been answered, for example because it is pending."""
    turn: int = 0
    """Messages of the user before it."""

    @cached_property
    def succeeded(self) -> bool:
        """Whether the call was answered and nothing says that it failed."""
        return self.result is not None and not result_failed(self.result)

    @cached_property
    def arguments(self) -> dict[str, Any] | None:
        """The arguments with numbers as policies see them; ``None`` if they are unreadable."""
        try:
            arguments = parse_arguments(self.call.arguments, exact=True)
            return {name: _as_cel(value) for name, value in arguments.items()}
        except ValueError:
            return None

    @cached_property
    def value(self) -> Any:
        """The JSON object or list at the start of the result, since text after it may not be the tool's own;
        else the result as JSON or text. A JSON text with a name twice is text."""
        text = ((self.result.content or "") if self.result is not None else "").strip()
        try:
            value, end = _RESULTS.raw_decode(text)
            is_json = isinstance(value, dict | list) or end == len(text)
            return _as_cel(value) if is_json and json_depth(value) <= MAX_DEPTH else text
        except (ValueError, OverflowError, RecursionError):
            return text

    @cached_property
    def event(self) -> tuple[dict[str, Any], int]:
        """The call as expressions see it, without its result, and how many values it has."""
        event = {"name": self.call.name, "args": self.arguments, "turn": self.turn}
        event |= {"answered": self.result is not None, "ok": self.succeeded}
        return event, _size(event)

    @cached_property
    def argument_texts(self) -> dict[str, str]:
        """Each argument as a text that is equal for equal values."""
        return {name: json_text(value) for name, value in (self.arguments or {}).items()}


def call_results(messages: Sequence[Message], begin: int = 0, turn: int = 0) -> Iterator[CallResult]:
    """Every call in order, with its result: the tool message after it with the same id or at the same
    index. An id that occurs twice among a message's calls or their results identifies nothing.

    With ``begin``, those from this message on, before which the user has written ``turn`` messages.
    """
    for index in range(begin, len(messages)):
        message = messages[index]
        turn += message.role == "user"
        if not message.tool_calls:
            continue
        following = map(messages.__getitem__, range(index + 1, len(messages)))
        results = list(takewhile(lambda reply: reply.role == "tool", following))
        by_id = _unique({}, ((reply.tool_call_id, reply) for reply in results))
        calls = _unique({}, ((call.id, call) for call in message.tool_calls))
        for number, call in enumerate(message.tool_calls):
            result = by_id.get(call.id) if call.id is not None and calls[call.id] else None
            if result is None and number < len(results):
                at_index = results[number]
                result = at_index if None in (at_index.tool_call_id, call.id) else None
            yield CallResult(message=index, number=number, call=call, result=result, turn=turn)


def runs_commands(call: ToolCall) -> bool:
    """Whether a call runs commands or code. A failure or a repetition of one does not suggest a fault: on
    Terminal-Bench it is as frequent in runs that succeed as in others."""
    return not _COMMANDS.isdisjoint(call_arguments(call) or ())


class CallHistory:
    """Calls in order, and by tool. With a ``base`` it continues from there and leaves the base as it is."""

    def __init__(self, calls: Iterable[CallResult] = (), *, base: CallHistory | None = None) -> None:
        self._base = base
        self._calls: list[CallResult] = []
        self._by_name: dict[str, list[CallResult]] = {}
        for call in calls:
            self.add(call)

    def add(self, call: CallResult) -> None:
        """Add the next call."""
        self._calls.append(call)
        self._by_name.setdefault(normal_name(call.call.name), []).append(call)

    def __iter__(self) -> Iterator[CallResult]:
        return chain(self._base or (), self._calls)

    def newest(self, name: str) -> Iterator[CallResult]:
        """The calls of a tool, the last first."""
        calls = reversed(self._by_name.get(normal_name(name), ()))
        return chain(calls, self._base.newest(name)) if self._base is not None else calls


def _unique(values: dict[str, Any], pairs: Iterator[tuple[str | None, Any]]) -> dict[str, Any]:
    """Values by id; ``None`` where an id occurs twice."""
    for key, value in pairs:
        if key is not None:
            values[key] = None if key in values else value
    return values


def _as_cel(value: Any) -> Any:
    """JSON with every number as a double: CEL adds no integers to doubles."""
    if isinstance(value, dict):
        return {name: _as_cel(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_as_cel(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 10**300 else math.inf if value > 0 else -math.inf
    return value


def json_text(value: Any) -> str:
    """A text that is equal for values that are equal as JSON."""
    return json.dumps(_as_cel(value), sort_keys=True)


class PolicyRule(FrozenModel):
    """What a call of one of ``tools`` requires."""

    tools: tuple[str, ...] = Field(min_length=1)
    require: str = Field(max_length=MAX_EXPRESSION)
    """A CEL expression that must be true; see :class:`ToolPolicy`."""
    reason: str = ""
    """Message for the agent; by default the expression itself."""
    otherwise: Literal["deny", "ask"] = "deny"
    """What follows if it is false: the call is denied, or a person is asked."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            _compile(self.require)
        except ValueError as error:
            raise ValueError(f"'require': {error}") from error
        return self

    @property
    def message(self) -> str:
        """Message for the agent."""
        return self.reason or f"required: {self.require}"


class ToolPolicy(FrozenModel):
    """What an agent may do with its tools, in ``Problem.meta["tool_policy"]`` or given to the verifier.

    A rule's expression reads these variables. Numbers are doubles: write ``args.amount * 2.0``.

    - ``args``: arguments of the call. A missing one, or one of another type, makes the rule undecidable.
    - ``call``: its ``name`` and ``turn`` (the number of user messages before it).
    - ``calls``: every attempt before it, in order, each with ``name``, ``args``, ``turn``, ``answered``,
      ``ok`` and ``result`` (JSON, else text; ``null`` without an answer).
    - ``user``: texts of the user's messages; ``last_user``: the last of them.

    And these functions: ``latest(tool, {arguments})`` is the result of the last answered call of a tool that
    has these arguments, ``null`` if there is none; if that call failed, the rule is violated, as it is where
    something is asked of ``null``. ``attempts(tool, {arguments})`` are all such calls, ``sum(list)`` is exact
    in decimals, ``host(url)`` and ``path(text)`` are normalized, and the rule is violated if there is none.
    The arguments of ``latest`` and ``attempts`` may be left out.
    """

    forbidden: tuple[str, ...] = ()
    """Tools that must not be called."""
    rules: tuple[PolicyRule, ...] = ()
    repeatable: tuple[str, ...] = ()
    """Tools that may be called again with the same arguments, such as one that waits for something."""
    read_only: tuple[str, ...] = ()
    """Tools that change nothing: calls of them between two equal calls do not justify the repetition."""
    tools: tuple[Tool, ...] = ()
    """The tools as they are offered. If given, the tools' names in the policy are checked."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.tools:
            self.check_tools(self.tools)
        return self

    @classmethod
    def of(cls, problem: Problem) -> ToolPolicy:
        """The policy of a problem, by default an empty one. Raises ``LabelError`` for an invalid one."""
        try:
            return cls.model_validate(problem.meta.get("tool_policy") or {})
        except ValueError as error:
            raise LabelError(f"problem {problem.id}: 'tool_policy' is not a valid policy: {error}") from error

    @classmethod
    def of_file(cls, path: str | Path) -> ToolPolicy:
        """The policy in a JSON file. Raises ``LabelError`` if it cannot be read or is invalid."""
        try:
            return cls.model_validate_json(Path(path).read_bytes())
        except (OSError, ValueError) as error:
            raise LabelError(f"{path}: not a valid tool policy: {error}") from error

    def __add__(self, other: ToolPolicy) -> ToolPolicy:
        """The rules of both, without the tools as they are offered."""
        fields = (name for name in ToolPolicy.model_fields if name != "tools")
        return ToolPolicy(**{name: getattr(self, name) + getattr(other, name) for name in fields})

    def forbids(self, name: str) -> bool:
        """Whether the tool must not be called."""
        return normal_name(name) in map(normal_name, self.forbidden)

    def rules_for(self, name: str) -> list[tuple[int, PolicyRule]]:
        """The rules for a tool, with their numbers."""
        return [
            (number, rule)
            for number, rule in enumerate(self.rules)
            if normal_name(name) in map(normal_name, rule.tools)
        ]

    def check_tools(self, tools: Sequence[Tool]) -> None:
        """Raise ``ValueError``, naming rule and field, for a tool that is not among ``tools``."""
        offered = {tool.name for tool in tools}
        named = {"forbidden": self.forbidden, "repeatable": self.repeatable, "read_only": self.read_only}
        named |= {f"rules.{number}.tools": rule.tools for number, rule in enumerate(self.rules)}
        for field, names in named.items():
            if unknown := set(names) - offered:
                tool_names = ", ".join(sorted(offered)) or "none"
                raise ValueError(
                    f"{field}: tool {sorted(unknown)[0]!r} does not exist; the tools are {tool_names}"
                )


_PACKAGED: Final = Path(__file__).parent.parent / "policies"


def packaged_policies() -> list[str]:
    """Names of the policies that come with the package: for Claude Code's tools."""
    return sorted(file.stem for file in _PACKAGED.glob("*.json"))


def packaged_policy(names: str) -> ToolPolicy | None:
    """The policies of these names, joined by ``+``, as one; ``None`` if one is unknown."""
    parts = names.split("+")
    if not set(parts) <= set(packaged_policies()):
        return None
    return sum((ToolPolicy.of_file(_PACKAGED / f"{name}.json") for name in parts), start=ToolPolicy())


@dataclass(frozen=True, kw_only=True)
class RuleOutcome:
    """What one rule says of one call."""

    outcome: Outcome
    reason: str = ""
    rule: int | None = None
    """Its number in the policy; ``None`` for another rule."""


def overall(outcomes: Sequence[RuleOutcome]) -> tuple[Outcome, str]:
    """The worst outcome with its reasons: violated, undecidable, then approval."""
    worst: tuple[Outcome, ...] = ("violated", "undecidable", "approval")
    for outcome in worst:
        if reasons := [rule.reason for rule in outcomes if rule.outcome == outcome]:
            return outcome, "; ".join(reasons)
    return "satisfied", ""


@dataclass
class ReadLimit:
    """How many values the rules may still read."""

    remaining: int = MAX_EVALUATION


def judge_call(
    policy: ToolPolicy,
    call: ToolCall,
    earlier: CallHistory,
    user: Sequence[str],
    limit: ReadLimit | None = None,
) -> Iterator[RuleOutcome]:
    """What the policy's list and rules say of a call, after ``earlier`` calls and the user's messages."""
    limit = limit or ReadLimit()
    if policy.forbids(call.name):
        yield RuleOutcome(outcome="violated", reason=f"policy: {call.name} is forbidden")
    for number, rule in policy.rules_for(call.name):
        outcome, reason = _evaluate(rule, call, earlier, user, limit)
        yield RuleOutcome(outcome=outcome, reason=f"policy: {reason}", rule=number)


def _evaluate(
    rule: PolicyRule,
    call: ToolCall,
    earlier: CallHistory,
    user: Sequence[str],
    limit: ReadLimit,
) -> tuple[Outcome, str]:
    program, depth = _compile(rule.require)
    values = _Values(rule.require, earlier, limit, most=int(MAX_EVALUATION ** (1 / max(1, depth))))
    reading: dict[str, Callable[[], Any]] = {
        "args": lambda: values.read(_as_cel(parse_arguments(call.arguments, exact=True))),
        "call": lambda: {"name": call.name, "turn": len(user)},
        "calls": lambda: values.events(earlier),
        "user": lambda: values.read(list(user)),
        "last_user": lambda: user[-1] if user else "",
    }
    try:
        variables = {name: read() for name, read in reading.items() if name in program.variables()}
        value = program.execute(_language().Context(variables=variables, functions=values.functions()))
    except Exception as error:
        if values.missing is not None:
            return "violated", f"{rule.message} ({values.missing})"
        text = f"there is no {error}" if isinstance(error, KeyError) else str(error).split(". ")[0][:200]
        value, values.failed = None, values.failed or text
    if values.refused is not None:
        return "violated", f"{rule.message} ({values.refused})"
    if values.failed is None and not isinstance(value, bool):
        values.failed = "it is neither true nor false"
    if values.failed is not None:
        return "undecidable", f"{rule.message} (undecidable: {values.failed})"
    if value:
        return "satisfied", ""
    return "approval" if rule.otherwise == "ask" else "violated", rule.message


def _size(value: Any) -> int:
    """How many values it has; a text counts once for each 100 characters, too."""
    pending, size = [value], 0
    while pending:
        part = pending.pop()
        pending += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        size += 1 + len(part) // 100 if isinstance(part, str) else 1
    return size


def _longest_list(value: Any) -> int:
    """Length of the longest list in it."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max([len(value) if isinstance(value, list) else 0, *map(_longest_list, parts)])


class _Values:
    """The functions of one evaluation, and a bound on all values that it reads.

    A function never raises, because the language logs the errors of functions: it notes one, and is null.
    """

    def __init__(self, expression: str, earlier: CallHistory, limit: ReadLimit, most: int) -> None:
        self._expression, self._earlier, self._limit, self._left = expression, earlier, limit, most
        self._copies = re.search(r"\b(?:map|filter)\b", expression) is not None
        """Whether it copies lists, which takes time quadratic in their lengths."""
        self.missing: str | None = None
        """An observation that was not made; the rule may ask for that."""
        self.refused: str | None = None
        """Why the rule is violated whatever the expression says."""
        self.failed: str | None = None
        """Why the rule is undecidable whatever the expression says."""

    def functions(self) -> dict[str, Callable[..., Any]]:
        return {
            "latest": self._latest,
            "attempts": self._attempts,
            "sum": self._sum,
            "host": self._host,
            "path": self._path,
        }

    def read(self, value: Any) -> Any:
        """``value``, whose parts are counted; ``None`` above the limit."""
        self._spend(_size(value))
        self._copy(_longest_list(value))
        return None if self.failed else value

    def events(self, events: Iterable[CallResult]) -> Any:
        """Calls as expressions see them; results are read only if the expression may ask for them."""
        with_results = "result" in self._expression
        rows = []
        for event in events:
            row, size = event.event
            self._spend(size)
            if with_results:
                row = {**row, "result": None if event.result is None else self.read(event.value)}
            rows.append(row)
            if self.failed is not None:
                break
        self._copy(len(rows))
        return None if self.failed else rows

    def _copy(self, length: int) -> None:
        if self._copies:
            self._spend(length**2 // _COPIES)

    def _spend(self, cost: int) -> None:
        self._left -= cost
        self._limit.remaining -= cost
        if self._left < 0 or self._limit.remaining < 0:
            self.failed = "it would read too many values"

    def _matching(self, name: str, arguments: Mapping[str, Any]) -> Iterator[CallResult]:
        texts = {key: json_text(value) for key, value in arguments.items()}
        for event in self._earlier.newest(name):
            self._spend(1)
            if self.failed is not None:
                return
            if texts.items() <= event.argument_texts.items():
                yield event

    def _latest(self, name: Any, arguments: Any = None) -> Any:
        if not isinstance(name, str) or not isinstance(arguments, dict | None):
            self.failed = "latest takes a tool's name and a map of arguments"
            return None
        for event in self._matching(name, arguments or {}):
            if event.result is None:
                continue
            if event.succeeded:
                return self.read(event.value)
            self.refused = f"the last {name} failed"
            return None
        self.missing = f"no {name} with these arguments has been answered"
        return None

    def _attempts(self, name: Any, arguments: Any = None) -> Any:
        if not isinstance(name, str) or not isinstance(arguments, dict | None):
            self.failed = "attempts takes a tool's name and a map of arguments"
            return []
        return self.events([*self._matching(name, arguments or {})][::-1])

    def _sum(self, values: Any) -> Any:
        if not isinstance(values, list) or not all(type(value) in (float, int) for value in values):
            self.failed = "a term of the sum is not a number"
            return None
        return float(sum((Decimal(repr(value)) for value in values), Decimal(0)))

    def _host(self, url: Any) -> Any:
        try:
            parts = urlsplit(url if isinstance(url, str) else "")
            host = (parts.hostname or "").rstrip(".")
            parts.port  # noqa: B018 - an invalid port raises
        except ValueError:
            host = ""
        # readers of addresses disagree about these characters
        strange = host and (re.search(r"[\\\s\x00-\x1f]", url) or re.search(r"[^!-~]|[@%]", parts.netloc))
        if not host or strange or parts.scheme not in ("http", "https"):
            self.refused = "it is not a plain web address"
        return host

    def _path(self, text: Any) -> Any:
        text = text if isinstance(text, str) else ""
        plain = _compatible(text)
        path = _normal_path(plain)
        # some programs read a compatible character as a slash or a dot (U+FF0F, U+2024), others do not
        same_slashes = plain.count("/") == text.count("/") and path == _compatible(_normal_path(text))
        if not text.startswith("/") or re.search(r"[%\\\x00-\x1f]", plain) or not same_slashes:
            self.refused = "it is not a plain absolute path"
            return None
        return path


def _compatible(text: str) -> str:
    return unicodedata.normalize("NFKC", text)


def _normal_path(text: str) -> str:
    return "/" + posixpath.normpath(text).lstrip("/")


_VARIABLES: Final = frozenset({"args", "call", "calls", "user", "last_user"})
_FUNCTIONS: Final = frozenset(_Values("", CallHistory(), ReadLimit(), 0).functions()) | {
    *("size", "contains", "startsWith", "endsWith", "matches", "has", "int", "double", "string", "bool"),
    *("timestamp", "duration", "getFullYear", "getMonth", "getDayOfMonth", "getDayOfWeek", "getHours"),
    *("getMinutes", "type", "dyn", "all", "exists", "exists_one", "map", "filter"),
}
_LOOPS: Final = ("all", "exists", "exists_one", "map", "filter")
_TOKENS: Final = re.compile(
    r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|\w+|&&|\|\||[<>=!]=|\S"""
)


@cache
def _language() -> ModuleType:
    """The package of the language, without its own command line, which it imports in nine tenths of the time.

    Raises ``MissingExtraError``.
    """
    need("cel", "a rule of a tool policy")
    program = "cel.cli"
    sys.modules.setdefault(program, stand_in := ModuleType(program))
    try:
        return import_module("cel")
    finally:
        if sys.modules.get(program) is stand_in:
            del sys.modules[program]


@lru_cache(maxsize=1024)
def _compile(expression: str) -> tuple[cel.Program, int]:
    """The program, and how deep its loops are nested.

    Raises ``ValueError`` for an unusable expression.
    """
    if len(expression) > MAX_EXPRESSION:
        raise ValueError(f"longer than {MAX_EXPRESSION} characters")
    try:
        program = _language().compile(expression)
    except ValueError as error:
        raise ValueError(f"not a CEL expression: {str(error).split('ERROR: ')[-1][:200]}") from error
    tokens = _TOKENS.findall(expression)
    loops = [at for at in range(len(tokens) - 3) if tokens[at] in _LOOPS and tokens[at + 1] == "("]
    bound = {tokens[at + 2] for at in loops}
    if bound & _VARIABLES:
        raise ValueError(f"a loop must not rename {sorted(bound & _VARIABLES)[0]!r}")
    if unknown := set(program.variables()) - _VARIABLES - bound:
        raise ValueError(f"unknown variable {min(unknown)!r}; there are {', '.join(sorted(_VARIABLES))}")
    named = {name for name in program.functions() if name.isidentifier() and not name.startswith("_")}
    if unknown := named - _FUNCTIONS:
        raise ValueError(f"unknown function {min(unknown)!r}")
    ends = {at: _end(tokens, at + 1) for at in loops}
    depth = max((sum(at < inner < ends[at] for at in loops) + 1 for inner in loops), default=0)
    return program, depth


def _end(tokens: Sequence[str], opening: int) -> int:
    """Index of the bracket that closes the one at ``opening``."""
    level = 0
    for at in range(opening, len(tokens)):
        level += (tokens[at] in ("(", "[", "{")) - (tokens[at] in (")", "]", "}"))
        if level == 0:
            return at
    return len(tokens)
