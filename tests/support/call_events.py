"""Calls of a run with their results, as a tool policy reads them."""

from __future__ import annotations

import json
from typing import Any

from surefoot.labelling import CallResult
from surefoot.records import Message, ToolCall


def event(name: str, result: Any = None, *, turn: int = 1, **arguments: Any) -> CallResult:
    """A call, answered by ``result`` unless that is ``None``."""
    text = result if isinstance(result, str) else json.dumps(result)
    answer = None if result is None else Message(role="tool", content=text)
    call = ToolCall(name=name, arguments=json.dumps(arguments))
    return CallResult(message=0, number=0, call=call, result=answer, turn=turn)
