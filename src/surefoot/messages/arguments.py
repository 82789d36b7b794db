"""Arguments of tool calls: the one reader of their JSON, and their check against a tool's schema."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

from surefoot.errors import SchemaError

if TYPE_CHECKING:
    import jsonschema_rs

    from surefoot.records import Tool, ToolCall

MAX_DEPTH: Final = 32
"""Levels of nested arguments."""
_REMEMBERED_NAME: Final = 200
"""Characters of a name whose normal form is remembered."""
_EXACT: Final = 2**53
"""Integers up to here are exact in every JSON reader (RFC 7493)."""
MAX_SCHEMA_NODES: Final = 10_000
"""Values in a schema after resolving references: a bound on the cost of one validation."""
_MAX_QUOTED: Final = 200
"""Characters of a validator's message that an error quotes."""


def parse_arguments(text: str, *, exact: bool = False) -> dict[str, Any]:
    """The arguments of a call, read as every JSON reader reads them.

    Raises ``ValueError`` for anything but an object, names that occur twice (also if they differ only in
    Unicode form, case, spaces or invisible characters), NaN and infinity, characters that are not Unicode,
    and more than ``MAX_DEPTH`` levels; with ``exact`` also for integers beyond 2^53, which a reader may
    round (a guard must know the released value). A text without characters is an object without arguments.
    """
    try:
        value = _DECODERS[exact].decode(text if text.strip() else "{}")
        if "\\u" in text or not text.isascii():
            json.dumps(value, ensure_ascii=False).encode()
        if text.count("{") + text.count("[") > MAX_DEPTH and json_depth(value) > MAX_DEPTH:
            raise RecursionError
    except RecursionError as error:
        raise ValueError(f"deeper than {MAX_DEPTH} levels") from error
    except UnicodeEncodeError as error:
        raise ValueError("a character is half of a surrogate pair") from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - a text is the argument
    return value


def call_arguments(call: ToolCall) -> dict[str, Any] | None:
    """The arguments of a call; ``None`` if :func:`parse_arguments` refuses them."""
    try:
        return parse_arguments(call.arguments)
    except ValueError:
        return None


def canonical_arguments(text: str) -> str:
    """The one serialization of exact arguments, names in order. Raises as :func:`parse_arguments`."""
    return json.dumps(parse_arguments(text, exact=True), ensure_ascii=False, sort_keys=True)


def normal_name(name: str) -> str:
    """A tool's name without differences of Unicode form, case, spaces and invisible characters."""
    return _normal(name) if len(name) <= _REMEMBERED_NAME else _normal.__wrapped__(name)


@lru_cache(maxsize=1024)
def _normal(name: str) -> str:
    text = unicodedata.normalize("NFKC", name).casefold()
    return "".join(
        character
        for character in text
        if not character.isspace() and unicodedata.category(character) not in ("Cf", "Cc", "Mn")
    )


def _distinct(same: Callable[[str], str], pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names: dict[str, str] = {}
    for name, _ in pairs:
        key = same(name)
        if key in names:
            raise ValueError(f"the names {names[key][:100]!r} and {name[:100]!r} are the same")
        names[key] = name
    return dict(pairs)


def _refuse_number(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"{text[:30]} is beyond the numbers of JSON readers")
    return value


def _exact(text: str) -> int:
    if len(text) > 17 or abs(value := int(text)) > _EXACT:
        raise ValueError(f"{text[:30]} is beyond 2^53; write it as a string")
    return value


def strict_decoder(
    parse_int: Callable[[str], int] = int, *, same: Callable[[str], str] = normal_name
) -> json.JSONDecoder:
    """Reads JSON without NaN, infinity and repeated names: those with an equal value of ``same``."""
    return json.JSONDecoder(
        object_pairs_hook=partial(_distinct, same),
        parse_constant=_refuse_number,
        parse_float=_finite,
        parse_int=parse_int,
    )


_DECODERS: Final = (strict_decoder(), strict_decoder(_exact))
"""By whether integers must be exact."""


def json_depth(value: Any) -> int:
    """Levels of nesting; Python's own limit of recursion is far above ``MAX_DEPTH``."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if items is None else 1 + max(map(json_depth, items), default=0)


def call_error(tools: Sequence[Tool], call: ToolCall) -> str | None:
    """Why ``call`` matches none of ``tools``: an unknown name, or arguments that violate the JSON schema.

    Returns ``None`` for a valid call. A tool without a schema accepts any JSON object. Patterns match in
    linear time, and nothing is fetched. Raises ``SchemaError`` for an unusable schema.
    """
    tool = next((tool for tool in tools if tool.name == call.name), None)
    if tool is None:
        names = ", ".join(tool.name for tool in tools) or "none"
        return f"tool {call.name!r} does not exist; the tools are: {names}"[: 2 * _MAX_QUOTED]
    try:
        arguments = parse_arguments(call.arguments)
        violation = next(iter(_validator(tool.parameters or "{}").iter_errors(arguments)), None)
    except ValueError as error:
        return f"the arguments cannot be read: {str(error)[:_MAX_QUOTED]}"
    if violation is None:
        return None
    where = ".".join(str(part) for part in violation.instance_path)
    return f"{where + ': ' if where else ''}{violation.message[:_MAX_QUOTED]}"


@lru_cache(maxsize=256)
def _validator(schema: str) -> jsonschema_rs.Validator:
    import jsonschema_rs  # here, because every import of the records loads this module

    try:
        parsed = json.loads(schema)
        if not isinstance(parsed, dict):
            raise SchemaError("the schema of a tool's parameters must be a JSON object")
        if _count_nodes(parsed, parsed, (), {}) > MAX_SCHEMA_NODES:
            raise SchemaError(f"the schema has more than {MAX_SCHEMA_NODES} parts; make it smaller")
        # Regular expressions without backtracking, so that no pattern takes long.
        return jsonschema_rs.validator_for(
            parsed, retriever=_refuse, pattern_options=jsonschema_rs.RegexOptions()
        )
    except (ValueError, RecursionError) as error:  # jsonschema_rs.ValidationError is a ValueError
        message = str(error)[:_MAX_QUOTED]
        raise SchemaError(f"the schema of a tool's parameters is unusable: {message}") from error


def _refuse(name: str) -> Any:
    raise ValueError(f"{name[:_MAX_QUOTED]} is not allowed here")


def _count_nodes(root: Any, value: Any, parents: tuple[str, ...], sizes: dict[str, int]) -> int:
    """Values in ``value`` with its references resolved.

    Raises ``SchemaError`` for a recursive reference, whose cost would depend on the arguments, and for a
    reference that leaves the schema.
    """
    if isinstance(value, list):
        return 1 + sum(_count_nodes(root, item, parents, sizes) for item in value)
    if not isinstance(value, dict):
        return 1
    if value.keys() & {"$dynamicRef", "$recursiveRef"}:
        raise SchemaError("the schema has dynamic references; write them out")
    inner = (item for name, item in value.items() if name != "$defs")
    total = 1 + sum(_count_nodes(root, item, parents, sizes) for item in inner)
    target = value.get("$ref")
    if not isinstance(target, str):
        return total
    if target in parents:
        raise SchemaError(f"the schema refers to itself at {target[:_MAX_QUOTED]!r}; bound its depth")
    if target not in sizes:
        sizes[target] = _count_nodes(root, _resolve(root, target), (*parents, target), sizes)
    return total + sizes[target]


def _resolve(root: Any, pointer: str) -> Any:
    """The value at a JSON pointer such as ``#/$defs/Name``. Other references raise ``SchemaError``."""
    value = root
    head, *parts = pointer.split("/")
    if head != "#":
        raise SchemaError(f"the schema refers to {pointer[:_MAX_QUOTED]!r}; only '#/…' is followed")
    for part in parts:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            raise SchemaError(f"the schema refers to {pointer[:_MAX_QUOTED]!r}, which it does not have")
    return value
