"""The monitor's view: what a guard's scorer sees of a run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from surefoot.guard.records import Channel
from surefoot.records import Message, Trace
from surefoot.segment import reasoning_spans, segment_trace


def monitor_view(messages: Sequence[Message], sees: Collection[Channel]) -> tuple[Message, ...]:
    """The messages without the channels that are not in ``sees``.

    Reasoning goes from its field and, as ``<think>`` blocks, from assistants' contents; a tool's message
    keeps only the id of its call. No message or call is removed or added, so each has its place as before.
    """
    return tuple(message.model_copy(update=_hidden(message, sees)) for message in messages)


def _hidden(message: Message, sees: Collection[Channel]) -> dict[str, Any]:
    """The fields that change."""
    if message.role == "tool":
        hides = "results" not in sees
        return {"content": "", "name": None, "attachments": (), "error": None} if hides else {}
    if message.role != "assistant" or "reasoning" in sees:
        return {}
    content = message.content
    while content and (spans := reasoning_spans(content)):  # the rest can be a block again
        content = "".join(
            content[end:start]
            for (_, end), (start, _) in zip([(0, 0), *spans], [*spans, (len(content), 0)], strict=True)
        )
    return {"reasoning": None, "content": content or None}


def viewed_trace(trace: Trace, sees: Collection[Channel]) -> Trace:
    """A recorded run as a guard's scorer would see it, with the steps that a guard cuts."""
    view = {"messages": monitor_view(trace.messages, sees), "steps": ()}
    return segment_trace(trace.model_copy(update=view))


def call_steps(trace: Trace) -> dict[tuple[int, int], int]:
    """The step of each call, by the numbers of its message and of the call there."""
    steps = {}
    for number, step in enumerate(trace.steps):
        if step.message is not None and step.part in ("tool_call", "message"):
            calls = trace.messages[step.message].tool_calls
            for call in range(len(calls)) if step.call is None else (step.call,):
                steps[step.message, call] = number
    return steps
