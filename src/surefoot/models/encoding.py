"""Problem and trace → token ids and the position where each step's score is read.

Training and scoring both build their tokens here, and nowhere else. A run that is longer than a model's
context is read in windows: each has the task and continues from a later step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from surefoot.errors import ScoreError
from surefoot.models.conversation import LocatedSteps, locate_steps
from surefoot.policies.prompts import ControlTokens, PromptFormat, control_tokens, render_chat, unknown_tokens
from surefoot.protocols import ProblemTrace
from surefoot.records import FrozenModel, Message, Problem, Trace
from surefoot.segment import token_positions

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Encoding(FrozenModel):
    """How a checkpoint reads its input; stored in ``surefoot.json``."""

    template: str = "{problem}\n"
    """Text (or user message, with ``chat``) that comes before the solution."""
    chat: bool = False
    """Send the prompt as a user message through the chat template."""
    system: str | None = None
    """System message; needs `chat`."""
    max_length: int = Field(default=2048, ge=8)
    """Tokens; a longer trace is cut and its later steps stay unscored, without `windows`."""
    windows: bool = Field(default=False, exclude_if=lambda windows: not windows)
    """Read a longer trace in windows, each with the task and the latest steps, in training and whenever the
    model scores."""
    marker: str | None = Field(default=None, min_length=1, exclude_if=lambda value: value is None)
    """Text inserted after each step, whose last token is the read-out position; without it a step is read at
    its own last visible token. One token of the tokenizer serves best, e.g. ``<extra_0>``."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._format()  # raises ValueError
        return self

    def within(self, limit: int) -> Encoding:
        """The same with at most ``limit`` tokens."""
        return self.model_copy(update={"max_length": min(self.max_length, limit)})

    def prompt(self, problem: Problem) -> str | tuple[Message, ...]:
        """The rendered problem, as a policy with the same format would see it."""
        return self._format().render(problem)

    def _format(self) -> PromptFormat:
        return PromptFormat(template=self.template, chat=self.chat, system=self.system)


_CHARACTERS_PER_TOKEN = 16
"""A text with more for each token of the context is not tokenized, which would take seconds."""


@dataclass(frozen=True, kw_only=True)
class EncodedTrace:
    """Token ids of one trace, at most ``max_length``, with a read-out position per step."""

    ids: tuple[int, ...]
    positions: tuple[int | None, ...]
    """Index into ``ids`` of each step's last visible token, or of its marker; ``None`` = cut off, or without
    a token."""
    starts: tuple[int, ...] = ()
    """Index of each step's first token: the one after the step before it where the two touch, so that the
    steps of a text tile it, otherwise (a tool's message lies between) the step's first token. Beyond ``ids``
    for a step that is cut off; empty where a family does not say."""
    written: tuple[tuple[int, int], ...] = ()
    """Tokens [first, end) that each step was written with, a token in the step that it begins in: white space
    after a step's last word is the step's own. A chat template's opening of a message belongs to no step.
    Beyond ``ids`` for a step that is cut off; empty where a family does not say."""
    dropped: int = 0
    """Steps without a token: the tokenizer drops all of their text. Also those that ``unknown`` is about."""
    unknown: str | None = None
    """Why a step and those after it lack a position: a word outside a closed vocabulary."""
    images: tuple[bytes, ...] = ()
    """Files of the images in the tokens, of a family that reads images."""
    refused: str | None = None
    """Why the model cannot read this trace at all; there are then no tokens and no positions."""

    @classmethod
    def unreadable(cls, item: ProblemTrace, reason: str) -> Self:
        """A trace that the model cannot read."""
        n = len(item.trace.steps)
        return cls(ids=(), positions=(None,) * n, starts=(0,) * n, written=((0, 0),) * n, refused=reason)

    @property
    def truncated_steps(self) -> int:
        """Steps without a position: beyond ``max_length``, or dropped by the tokenizer."""
        return sum(position is None for position in self.positions)

    def unscored_reason(self, limit: int) -> str | None:
        """Why steps are unscored in a context of ``limit`` tokens; ``None`` if all are scored."""
        if self.refused:
            return self.refused
        beyond, reasons = self.truncated_steps - self.dropped, []
        if beyond:
            reasons.append(f"{beyond} steps lie beyond the model's context of {limit} tokens")
        if self.dropped:
            empty = "steps are empty: the tokenizer drops all of their text"
            reasons.append(self.unknown or f"{self.dropped} {empty}")
        return "; ".join(reasons) or None


def encode_traces(
    tokenizer: PreTrainedTokenizerBase, encoding: Encoding, items: Sequence[ProblemTrace]
) -> list[EncodedTrace]:
    """Encode traces in order.

    In the problem and the trace, special tokens of the tokenizer and the encoding's marker are broken by a
    space (:mod:`surefoot.policies.prompts`). Refused with a reason are an agent's run with images or files,
    with a step that the chat template hides, or where there is no template; a trace that is much too long for
    the context, before it is tokenized; and one whose problem has a word outside a closed vocabulary.

    Raises:
        ScoreError: a tokenizer without offsets, or, for ``chat``, without chat template; a trace without
            steps.
    """
    if not tokenizer.is_fast:
        raise ScoreError("this tokenizer lacks character offsets; use its fast version (tokenizer.json)")
    reserved = control_tokens(tokenizer, [encoding.marker] if encoding.marker else ())
    encoded: dict[int, EncodedTrace] = {}
    located: dict[int, LocatedSteps] = {}
    for number, item in enumerate(items):
        where = _locate(tokenizer, encoding, item, reserved)
        if isinstance(where, str):
            encoded[number] = EncodedTrace.unreadable(item, where)
        else:
            located[number] = _mark(where, encoding.marker) if encoding.marker else where
    for rendered in (False, True):
        group = [number for number, where in located.items() if where.rendered == rendered]
        if not group:
            continue
        texts = [located[number].text for number in group]
        # A chat template writes the special tokens itself; a second beginning of text would be read too.
        batch = tokenizer(texts, add_special_tokens=not rendered, return_offsets_mapping=True)
        for number, ids, offsets in zip(group, batch["input_ids"], batch["offset_mapping"], strict=True):
            where = located[number]
            from_on, unknown = unknown_tokens(tokenizer, ids, where.text) or (len(where.text), None)
            if unknown and from_on < where.spans[0][0]:
                encoded[number] = EncodedTrace.unreadable(items[number], unknown)
                continue
            readable = [span for span in where.spans if span[1] <= from_on]
            read = token_positions(where.text, offsets, readable, whole=True)
            read += [None] * (len(where.spans) - len(readable))
            positions = [at if at is not None and at < encoding.max_length else None for at in read]
            encoded[number] = EncodedTrace(
                ids=tuple(ids[: encoding.max_length]),
                positions=tuple(positions),
                dropped=read.count(None),
                unknown=unknown and f"from step {len(readable) + 1} on: {unknown}",
                starts=_first_tokens(offsets, where.spans, positions),
                written=_written_tokens(offsets, where.written),
            )
    return [encoded[number] for number in range(len(items))]


def too_long(item: ProblemTrace, limit: int) -> str | None:
    """Why a problem and its trace cannot fit a context of ``limit`` tokens, seen from their characters."""
    size = len(item.problem.text) + len(item.trace.text or "")
    size += sum(len(message.content or "") for message in item.trace.messages)
    if size <= _CHARACTERS_PER_TOKEN * limit:
        return None
    return f"the text has {size} characters, too many for the model's context of {limit} tokens"


def _mark(where: LocatedSteps, marker: str) -> LocatedSteps:
    """The text with ``marker`` after every step, which then ends with its marker."""
    pieces, spans, done = [], [], 0
    for number, (start, end) in enumerate(where.spans):
        pieces += [where.text[done:end], marker]
        spans.append((start + number * len(marker), end + (number + 1) * len(marker)))
        done = end
    text = "".join([*pieces, where.text[done:]])
    return LocatedSteps(text=text, spans=spans, written=spans, rendered=where.rendered)


def _locate(
    tokenizer: PreTrainedTokenizerBase, encoding: Encoding, item: ProblemTrace, reserved: ControlTokens
) -> LocatedSteps | str:
    """What the model reads, or why it cannot. Raises ``ScoreError``."""
    if not item.trace.steps:
        raise ScoreError(
            f"trace {item.trace.id} lacks steps; segment it first (surefoot.segment.segment_trace)"
        )
    if reason := too_long(item, encoding.max_length):
        return reason
    if item.trace.text is None:
        if not tokenizer.chat_template:
            return "the trace is a conversation, and the model's tokenizer lacks a chat template"
        try:
            return locate_steps(tokenizer, item.trace, reserved)
        except ScoreError as error:
            return str(error)
    question = item.problem.model_copy(update={"text": reserved.broken(item.problem.text)})
    text, steps = reserved.broken_with_spans(
        item.trace.text, [(step.start, step.end) for step in item.trace.steps]
    )
    prompt = encoding.prompt(question)
    prefix = prompt if isinstance(prompt, str) else render_chat(tokenizer, prompt, error=ScoreError)
    spans = [(len(prefix) + start, len(prefix) + end) for start, end in steps]
    return LocatedSteps(text=prefix + text, spans=spans, written=spans, rendered=encoding.chat)


def _first_tokens(
    offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]], positions: Sequence[int | None]
) -> tuple[int, ...]:
    """First token of each step; see :class:`EncodedTrace`."""
    ends = [end for _, end in offsets]
    starts: list[int] = []
    for step, (start, _) in enumerate(spans):
        previous = positions[step - 1] if step and spans[step - 1][1] == start else None
        if previous is None:
            # ends of special tokens are 0, so they are not in order: a plain search
            previous = next((at for at, end in enumerate(ends) if end > start), len(ends)) - 1
        starts.append(previous + 1)
    return tuple(starts)


def _written_tokens(
    offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]
) -> tuple[tuple[int, int], ...]:
    """Tokens that begin in each span; special tokens without characters belong to no span."""
    filled = [at for at, (start, end) in enumerate(offsets) if end > start]
    begins = [offsets[at][0] for at in filled]
    bounds = [*filled, filled[-1] + 1 if filled else 0]
    return tuple(
        (bounds[bisect_left(begins, first)], bounds[bisect_left(begins, end)]) for first, end in spans
    )


Encode = Callable[[Sequence[ProblemTrace]], list[EncodedTrace]]
_WINDOW_CHARACTERS = 8
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
    that is longer, or that the tokenizer drops, lacks a position in its window. Raises as ``encode`` does.
    """
    count, start, done = len(item.trace.steps), 0, 0
    if _fitting(whole) == count:
        return [Window(item=item, encoded=whole, start=0, read=range(count), left_out=0)]
    windows: list[Window] = []
    while done < count:
        piece = _from(item, start, _WINDOW_CHARACTERS * limit)
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
    if encoded.refused or encoded.unknown or encoded.truncated_steps == encoded.dropped:
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
