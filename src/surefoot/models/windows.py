"""A long run in windows that fit a model's context: each has the task and continues from a later step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from surefoot.models.encoding import EncodedTrace
from surefoot.protocols import ProblemTrace
from surefoot.records import Trace

Encode = Callable[[Sequence[ProblemTrace]], list[EncodedTrace]]
_CHARACTERS_PER_TOKEN = 8
"""More than most texts have. A window of texts with more ends earlier than it could."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """What a model reads of a run at once."""

    item: ProblemTrace
    """The task, and the run from step ``start`` on."""
    encoded: EncodedTrace
    start: int
    read: range
    """Steps of the whole run that are read here and in no window before."""
    left_out: int
    """Messages, or steps of a text, between the task and the window."""


def windows_of(encode: Encode, item: ProblemTrace, whole: EncodedTrace, limit: int) -> list[Window]:
    """Cover all steps of a run, which is ``whole`` as far as it fits; one window if all of it does.

    The next window begins in the middle of the one before, so that about half a context stands before each of
    its new steps; it begins with a whole message of the agent. ``limit`` is the context, in tokens. A step
    that is longer than the context gets a window without a position for it, as a step has that the tokenizer
    drops. Raises what ``encode`` raises.
    """
    count, start, done = len(item.trace.steps), 0, 0
    if _fitting(whole) == count:
        return [Window(item=item, encoded=whole, start=0, read=range(count), left_out=0)]
    windows: list[Window] = []
    while done < count:
        piece = _from(item, start, _CHARACTERS_PER_TOKEN * limit)
        [encoded] = encode([piece])
        end = start + _fitting(encoded)
        latest = _message_start(item.trace, done)
        if end <= done and start < latest:
            middle = _message_start(item.trace, (start + done + 1) // 2)
            start = middle if middle > start else latest
            continue
        end = max(end, done + 1)
        left_out = _left_out(item.trace, start)
        windows.append(
            Window(item=piece, encoded=encoded, start=start, read=range(done, end), left_out=left_out)
        )
        middle = _message_start(item.trace, (start + end) // 2)
        done = end
        start = max(start, middle)
    return windows


def _fitting(encoded: EncodedTrace) -> int:
    """Steps, from the first on, that lie within the context. A refused trace lies within: no other helps."""
    if encoded.refused or encoded.truncated_steps == encoded.dropped:
        return len(encoded.positions)
    return max((at for at, position in enumerate(encoded.positions) if position is not None), default=-1) + 1


def _message_start(trace: Trace, step: int) -> int:
    """The first step of the message that a step belongs to; of a text, the step itself."""
    step = min(step, len(trace.steps) - 1)
    message = trace.steps[step].message
    while message is not None and step and trace.steps[step - 1].message == message:
        step -= 1
    return step


def _task(trace: Trace) -> int:
    """Messages before the agent's first."""
    return next((at for at, message in enumerate(trace.messages) if message.role == "assistant"), 0)


def _left_out(trace: Trace, start: int) -> int:
    if trace.text is not None or not start:
        return start
    return (trace.steps[start].message or 0) - _task(trace)


def _from(item: ProblemTrace, start: int, characters: int) -> ProblemTrace:
    """The task, and the run from a step on, for about so many characters."""
    trace = item.trace
    steps, size = list(trace.steps[start:]), 0
    if trace.text is not None:
        begin = steps[0].start if start else 0
        visible = [step for step in steps if step.start - begin < characters]
        text = trace.text[begin : visible[-1].end if len(visible) < len(steps) else None]
        moved = [
            step.model_copy(update={"start": step.start - begin, "end": step.end - begin}) for step in visible
        ]
        update = {"text": text, "steps": tuple(moved)}
        return replace(item, trace=trace.model_copy(update=update))
    task, first = _task(trace), (steps[0].message or 0) if start else _task(trace)
    last = first
    for number, message in enumerate(trace.messages[first:], first):
        size += len(message.content or "") + sum(len(call.arguments) for call in message.tool_calls)
        last = number
        if size > characters:
            break
    moved = [
        step.model_copy(update={"message": (step.message or 0) - first + task})
        for step in steps
        if (step.message or 0) <= last
    ]
    messages = trace.messages[:task] + trace.messages[first : last + 1]
    update = {"messages": messages, "steps": tuple(moved)}
    return replace(item, trace=trace.model_copy(update=update))
