"""Does a tool call fit the tools that were offered: known name, arguments as its JSON schema says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import jsonschema_rs

from surefoot.errors import SchemaError
from surefoot.records import Tool, ToolCall

MOST_NODES: Final = 10_000
"""Values in a schema, each reference replaced by what it refers to: what one look at an argument may cost."""
_QUOTED: Final = 200
"""Characters of a validator's message that a reason holds."""


def call_error(tools: Sequence[Tool], call: ToolCall) -> str | None:
    """Why ``call`` fits none of ``tools``; ``None`` = it does.

    A tool without a schema takes any JSON object. Patterns are matched in linear time, nothing is fetched.
    Raises ``SchemaError`` for a schema that cannot be used.
    """
    tool = next((one for one in tools if one.name == call.name), None)
    if tool is None:
        known = ", ".join(one.name for one in tools) or "none"
        return f"there is no tool {call.name!r}; the tools are: {known}"[: 2 * _QUOTED]
    try:
        arguments = json.loads(call.arguments, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        return f"the arguments are not JSON: {str(error)[:_QUOTED]}"
    if not isinstance(arguments, dict):
        return "the arguments are no JSON object"
    try:
        found = next(iter(_validator(tool.parameters or "{}").iter_errors(arguments)), None)
    except ValueError as error:  # deeper than the validator goes
        return f"the arguments cannot be read: {str(error)[:_QUOTED]}"
    if found is None:
        return None
    where = ".".join(str(part) for part in found.instance_path)
    return f"{where + ': ' if where else ''}{found.message[:_QUOTED]}"


@lru_cache(maxsize=256)
def _validator(schema: str) -> jsonschema_rs.Validator:
    try:
        parsed = json.loads(schema)
        if not isinstance(parsed, dict):
            raise SchemaError("the schema of a tool's parameters must be a JSON object")
        if _nodes(parsed, parsed, (), {}) > MOST_NODES:
            raise SchemaError(f"the schema has more than {MOST_NODES} parts; make it smaller")
        # the engine of plain regular expressions knows no backtracking, so no pattern takes long
        return jsonschema_rs.validator_for(
            parsed, retriever=_refuse, pattern_options=jsonschema_rs.RegexOptions()
        )
    except (ValueError, RecursionError) as error:  # jsonschema_rs.ValidationError is a ValueError
        raise SchemaError(f"the schema of a tool's parameters is unusable: {str(error)[:_QUOTED]}") from error


def _refuse(what: str) -> Any:
    raise ValueError(f"{what[:_QUOTED]} is not allowed here")


def _nodes(root: Any, value: Any, within: tuple[str, ...], sizes: dict[str, int]) -> int:
    """Values in ``value`` with its references followed. Raises ``SchemaError`` for a reference that leads to
    itself, whose cost depends on the arguments, or out of the schema."""
    if isinstance(value, list):
        return 1 + sum(_nodes(root, one, within, sizes) for one in value)
    if not isinstance(value, dict):
        return 1
    if value.keys() & {"$dynamicRef", "$recursiveRef"}:
        raise SchemaError("the schema has dynamic references; write them out")
    total = 1 + sum(_nodes(root, one, within, sizes) for name, one in value.items() if name != "$defs")
    target = value.get("$ref")
    if not isinstance(target, str):
        return total
    if target in within:
        raise SchemaError(f"the schema refers to itself at {target[:_QUOTED]!r}; bound its depth")
    if target not in sizes:
        sizes[target] = _nodes(root, _pointed(root, target), (*within, target), sizes)
    return total + sizes[target]


def _pointed(root: Any, pointer: str) -> Any:
    """What a reference such as ``#/$defs/Name`` refers to. Raises ``SchemaError`` if it leads elsewhere."""
    found = root
    head, *parts = pointer.split("/")
    if head != "#":
        raise SchemaError(f"the schema refers to {pointer[:_QUOTED]!r}; only '#/…' is followed")
    for part in parts:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdigit() and int(key) < len(found):
            found = found[int(key)]
        else:
            raise SchemaError(f"the schema refers to {pointer[:_QUOTED]!r}, which it does not have")
    return found
