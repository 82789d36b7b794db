"""Arguments of calls have one reader: what JSON readers read differently is read at no site."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import surefoot
from surefoot.labelling.expert import match_key
from surefoot.labelling.verifiers.gold_calls import compare_gold_calls
from surefoot.messages import call_arguments, call_error, canonical_arguments, parse_arguments
from surefoot.policies.prompts import chat_rows
from surefoot.protocols import ProblemTrace
from surefoot.records import Message, Problem, Tool, ToolCall, Trace
from surefoot.segment import segment_trace
from surefoot.server.pages.render import call_arguments as shown_arguments

UNREADABLE = ["1e400", "NaN", '1, "a": 1', '1, "A": 1', '"\\ud800"', "[" * 40 + "]" * 40]
"""Values of the name `a` that JSON readers disagree on."""


@pytest.mark.parametrize("value", UNREADABLE)
def test_no_site_reads_what_readers_read_differently(value):
    text = f'{{"a": {value}}}'
    call = ToolCall(id="1", name="f", arguments=text)
    assert call_arguments(call) is None
    for exact in (True, False):
        with pytest.raises(ValueError, match=r"\w"):
            parse_arguments(text, exact=exact)
    assert "cannot be read" in str(call_error((Tool(name="f"),), call))
    assert shown_arguments(text) == [("", text)]
    (row,) = chat_rows([Message(role="assistant", tool_calls=(call,))])
    assert row["tool_calls"][0]["function"]["arguments"] == text
    messages = (Message(role="assistant", tool_calls=(call,)), Message(role="tool", tool_call_id="1"))
    gold = [{"name": "f", "arguments": text}]
    problem = Problem(text="?", meta={"gold_actions": gold})
    trace = segment_trace(Trace(problem_id=problem.id, messages=messages))
    compared = compare_gold_calls(ProblemTrace(problem=problem, trace=trace))
    assert compared is not None
    assert [verdict.value for verdict in compared.verdicts.values()] == [-1]
    assert match_key("tool-call", trace, 0) == (f"f {text}",)


def test_large_integers_are_read_but_not_released():
    text = '{"a": 9007199254740993}'
    assert call_arguments(ToolCall(name="f", arguments=text)) == {"a": 9007199254740993}
    with pytest.raises(ValueError, match="beyond 2\\^53"):
        canonical_arguments(text)


def test_no_other_module_reads_arguments():
    root = Path(surefoot.__file__).parent
    reading = re.compile(r"(?:json\.loads|from_json)\([^)]*arguments")
    found = [path.name for path in root.rglob("*.py") if reading.search(path.read_text("utf-8"))]
    assert found == ["mcp.py"], "which reads what the guard wrote"
