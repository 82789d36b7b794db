"""Tool calls that wait for a person."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from surefoot.guard import GuardDecision
from surefoot.guard.records import CallVerdict, StageVerdict
from surefoot.records import Message, ToolCall, now
from surefoot.server import HeldCall


def held_call(created: datetime | None = None, arguments: str = '{"order": "W1"}', **more: Any) -> HeldCall:
    """A refund that a rule found wrong."""
    call = ToolCall(id="c1", name="refund", arguments=arguments)
    reason = "policy: look at the order first"
    stages = (
        StageVerdict(stage="schema", checker="schema", finding="pass", latency_ms=0.1),
        StageVerdict(stage="rule", checker="tool-calls", finding="fail", reason=reason, latency_ms=0.4),
    )
    verdict = CallVerdict(call=call, action="hold", reason=reason, stages=stages)
    values = {
        "request_id": "chatcmpl-held",
        "created": created or now(),
        "run": (Message(role="user", content="Refund W1, <b>now</b>."),),
        "reply": Message(role="assistant", tool_calls=(call,)),
        "decision": GuardDecision(action="hold", reason=reason, calls=(verdict,), latency_ms=0.6),
        **more,
    }
    return HeldCall(**values)
