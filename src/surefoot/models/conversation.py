"""Positions of an agent run's steps in the text that a chat template renders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from surefoot.errors import ScoreError
from surefoot.policies.prompts import ControlTokens, chat_support, render_chat, shown_content
from surefoot.records import Step, Trace
from surefoot.segment.spans import Span
from surefoot.tree import shared_length

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True)
class LocatedSteps:
    """All that a model reads of a trace, as text, with the span of each step in it, in characters."""

    text: str
    spans: list[Span]
    """A message's first step begins where the message before it ends, each further one where the step before
    it ends; the last one ends with the message."""
    written: list[Span]
    """The same without what the template opens a message with."""
    rendered: bool
    """Whether a chat template wrote the text."""


def locate_steps(tokenizer: PreTrainedTokenizerBase, trace: Trace, reserved: ControlTokens) -> LocatedSteps:
    """Render a chat trace, with ``reserved`` text broken in all that it says, and find its steps.

    Raises:
        ScoreError: the template rewrites earlier messages, or does not show the text of a step, so that two
            different steps could look alike.
    """
    trace = _broken(trace, reserved)
    render = partial(render_chat, tokenizer, tools=trace.tools, error=ScoreError)
    rendered = render(trace.messages, generation=False)
    spans: list[Span] = []
    written: list[Span] = []
    by_message: dict[int, list[Step]] = {}
    for step in trace.steps:
        by_message.setdefault(step.message or 0, []).append(step)
    for number, steps in by_message.items():
        start = len(render(trace.messages[:number], generation=False)) if number else 0
        upto = render(trace.messages[: number + 1], generation=False)
        if not rendered.startswith(upto):
            raise ScoreError(
                f"trace {trace.id}: the chat template rewrites earlier messages, no step can be located"
            )
        opened = render(trace.messages[:number]) if number else ""
        first = len(opened) if upto.startswith(opened) and opened else start
        starts = [first]
        if steps[0].part != "message":
            finder = _Finder(tokenizer, trace, number, upto, first, render)
            starts = [finder.start(step) for step in steps]
        ends = [*starts[1:], len(upto)]
        written += zip([first, *starts[1:]], ends, strict=True)
        spans += zip([start, *starts[1:]], ends, strict=True)
    return LocatedSteps(text=rendered, spans=spans, written=written, rendered=True)


def _broken(trace: Trace, reserved: ControlTokens) -> Trace:
    """The trace with its texts broken, and its steps where they then are."""
    steps: dict[Step, Step] = {}

    def text(written: str, message: int, *parts: str) -> str:
        message_steps = [step for step in trace.steps if step.message == message and step.part in parts]
        broken, spans = reserved.broken_with_spans(
            written, [(step.start, step.end) for step in message_steps]
        )
        for step, (start, end) in zip(message_steps, spans, strict=True):
            steps[step] = step.model_copy(update={"start": start, "end": end})
        return broken

    messages = []
    for number, message in enumerate(trace.messages):
        reasoning = message.reasoning
        if reasoning is not None:
            reasoning_text = text(reasoning.text, number, "reasoning")
            reasoning = reasoning.model_copy(update={"text": reasoning_text})
        content = text(message.content, number, "content", "message") if message.content else message.content
        calls = tuple(
            call.model_copy(
                update={"name": reserved.broken(call.name), "arguments": reserved.broken(call.arguments)}
            )
            for call in message.tool_calls
        )
        update = {"content": content, "tool_calls": calls, "reasoning": reasoning}
        messages.append(message.model_copy(update=update))
    return trace.model_copy(
        update={"messages": tuple(messages), "steps": tuple(steps.get(step, step) for step in trace.steps)}
    )


class _Finder:
    """Finds the parts of one message in its rendering ``upto``, from character ``first`` on."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        trace: Trace,
        number: int,
        upto: str,
        first: int,
        render: Callable[..., str],
    ) -> None:
        self._trace, self._number, self._upto, self._render = trace, number, upto, render
        self._message = trace.messages[number]
        self._support = chat_support(tokenizer)
        self._content = shown_content(self._message, self._support)[1]
        calls = self._native_calls() if self._support.calls and self._message.tool_calls else None
        end = calls[0] if calls else len(upto)
        reasoning, content = self._message.readable_reasoning, self._content
        self._reasoning_at = self._find(reasoning, first, end) if reasoning.strip() else first
        reasoning_end = self._reasoning_at + len(reasoning.strip())
        self._content_at = self._find(content, reasoning_end, end) if content.strip() else reasoning_end
        self._calls = calls or self._written_calls(self._content_at + len(content.strip()))

    def start(self, step: Step) -> int:
        """First character of a step."""
        if step.call is not None:
            return self._calls[step.call]
        reasoning = step.part == "reasoning"
        text = self._message.readable_reasoning if reasoning else self._content
        at = self._reasoning_at if reasoning else self._content_at
        # Many templates strip a message: what stands before its first visible character is not there.
        stripped = len(text) - len(text.lstrip())
        return at + min(max(0, step.start - stripped), len(text.strip()))

    def _find(self, text: str, start: int, end: int) -> int:
        at = self._upto.find(text.strip(), start, end)
        if at < 0:
            raise self._hidden("all of the text")
        return at

    def _native_calls(self) -> list[int]:
        """Where each call that the template writes begins: where it differs from the message without it."""
        earlier = self._trace.messages[: self._number]
        calls = self._message.tool_calls
        cuts = []
        for count in range(len(calls)):
            fewer = self._message.model_copy(update={"tool_calls": calls[:count]})
            shorter = self._render((*earlier, fewer), generation=False)
            cuts.append(shared_length(shorter, self._upto))
        cuts = [max(cuts[: index + 1]) for index in range(len(cuts))]
        for index, call in enumerate(calls):
            end = cuts[index + 1] if index + 1 < len(cuts) else len(self._upto)
            # The name of a call may share its beginning with what another message would end with.
            if call.name not in self._upto[max(0, cuts[index] - len(call.name)) : end]:
                raise self._hidden(f"the call of {call.name!r}")
        return cuts

    def _written_calls(self, at: int) -> list[int]:
        """Start of each call that is written in the content."""
        starts = []
        for call in self._message.tool_calls:
            at = self._upto.find("<tool_call>", at)
            if at < 0:
                raise self._hidden(f"the call of {call.name!r}")
            starts.append(at)
            at += len(call.name) + len(call.arguments)
        return starts

    def _hidden(self, what: str) -> ScoreError:
        return ScoreError(
            f"trace {self._trace.id}: the chat template does not show {what} of message {self._number}; "
            "use another template, or granularity 'message'"
        )
