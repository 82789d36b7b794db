"""Calls against the schemas of their tools, hostile schemas among them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from surefoot.errors import SchemaError
from surefoot.messages import call_error
from surefoot.records import Tool, ToolCall

REFUND = Tool(
    name="refund",
    parameters=json.dumps(
        {
            "type": "object",
            "properties": {"order": {"$ref": "#/$defs/order"}, "amount": {"type": "number", "maximum": 100}},
            "required": ["order"],
            "additionalProperties": False,
            "$defs": {"order": {"type": "string", "pattern": "^W[0-9]+$"}},
        }
    ),
)


def fits(arguments: str, schema: Any = None) -> str | None:
    tool = REFUND if schema is None else Tool(name="refund", parameters=json.dumps(schema))
    return call_error((tool,), ToolCall(name="refund", arguments=arguments))


def test_a_call_that_fits() -> None:
    assert fits('{"order": "W7", "amount": 3.5}') is None
    assert call_error((Tool(name="ping"),), ToolCall(name="ping", arguments="{}")) is None


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("{", "cannot be read: Expecting"),
        ("[1]", "not a JSON object"),
        ('{"order": NaN}', "NaN is not a JSON number"),
        ("[" * 100_000, "deeper than 32 levels"),
        ('{"order": 1e400}', "1e400 is beyond the numbers of JSON readers"),
        ('{"order": "W7", "order": "W8"}', "the names 'order' and 'order' are the same"),
        ("{}", '"order" is a required property'),
        ('{"order": "7"}', "order: "),
        ('{"order": "W7", "amount": 101}', "amount: 101"),
        ('{"order": "W7", "to": "me"}', "'to' was unexpected"),
        ('{"a":' * 400 + "1" + "}" * 400, "deeper than 32 levels"),
    ],
)
def test_what_does_not_fit_is_named(arguments: str, reason: str) -> None:
    found = fits(arguments)
    assert found is not None
    assert reason in found
    assert len(found) < 500


def test_an_unknown_tool_is_named_with_those_there_are() -> None:
    assert call_error((REFUND,), ToolCall(name="drop")) == "tool 'drop' does not exist; the tools are: refund"


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"$ref": "http://127.0.0.1:9/s.json"}, "only '#/"),
        ({"$ref": "#/$defs/none"}, "does not have"),
        ({"$ref": "#"}, "refers to itself"),
        ({"properties": {"a": {"anyOf": [{"$ref": "#"}] * 20}}}, "refers to itself"),
        ({"$dynamicRef": "#x"}, "dynamic"),
        ({"type": "dict"}, "unusable"),
        ({"properties": {"a": {"pattern": r"(a)\1"}}}, "unusable"),
        ([], "must be a JSON object"),
        (
            {
                "$ref": "#/$defs/0",
                "$defs": {
                    **{str(at): {"anyOf": [{"$ref": f"#/$defs/{at + 1}"}] * 20} for at in range(9)},
                    "9": {"type": "string"},
                },
            },
            "more than 10000 parts",
        ),
    ],
)
def test_schemas_that_cost_without_bound_or_lead_elsewhere_are_refused(schema: Any, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        fits("{}", schema)


def test_a_pattern_knows_no_backtracking() -> None:
    assert fits(json.dumps({"a": "a" * 100_000 + "!"}), {"properties": {"a": {"pattern": "^(a+)+$"}}})
