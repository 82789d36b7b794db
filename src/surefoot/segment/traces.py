"""A trace's typed parts and steps, its blocks in reading order, and a copy without hidden reasoning."""

from __future__ import annotations

import operator
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, starmap
from typing import Any, Final, Literal

from surefoot.errors import SegmentError
from surefoot.failures import result_failed
from surefoot.messages import call_arguments
from surefoot.protocols import Segmenter
from surefoot.records import (
    Attachment,
    Message,
    Reasoning,
    Step,
    StepKind,
    StepPart,
    ToolCall,
    Trace,
    trusted_copy,
)
from surefoot.segment.segmenters import BlankLine, Line, Thoughts, code_spans, segmenter, segmenter_name
from surefoot.segment.spans import VISIBLE, Span

Granularity = Literal["part", "message"]
"""Steps of a chat trace: ``part``, one or more for the reasoning, the content and each call of an assistant
message; ``message``, one for the whole message (PRM800K's and AgentProcessBench's unit)."""

BlockKind = Literal[StepKind, "instruction", "observation", "between", "note"]
"""Kind of a step, or: ``instruction``, what system or user say; ``observation``, what a tool returned;
``between``, text outside the steps; ``note``, what a reader should know of a part that cannot be shown."""

_TAG = re.compile(r"</?think>")
_ANSWER = re.compile(r"\\boxed\b|####|\banswer\b[^\n]{0,40}?(?:\bis\b|:)", re.IGNORECASE)
_PLAN = re.compile(r"[\s#*_<]*plan\b[ \t]*(?:[:>*_\n]|$)", re.IGNORECASE)


def reasoning_spans(text: str) -> list[Span]:
    """Spans of visible reasoning: from ``<think>`` to after ``</think>`` and the white space behind it.

    A closing tag without an opening one ends reasoning that began with the text, as where the prompt opened
    it; an opening tag without a closing one runs to the end of the text. Tags inside reasoning are text.
    """
    spans: list[Span] = []
    begin: int | None = None
    for match in _TAG.finditer(text):
        if match.group() == "<think>":
            begin = match.start() if begin is None else begin
        elif begin is not None or not spans:
            following = VISIBLE.search(text, match.end())
            spans.append((begin or 0, following.start() if following else len(text)))
            begin = None
    return spans if begin is None else [*spans, (begin, len(text))]


@dataclass(frozen=True, kw_only=True)
class Channels:
    """A text's visible reasoning and its answer, as spans of it without tags and white space between them."""

    text: str
    reasoning_spans: tuple[Span, ...]
    answer_spans: tuple[Span, ...]

    @property
    def reasoning(self) -> str:
        """The reasoning; a blank line separates its parts."""
        return _BETWEEN.join(self.text[start:end] for start, end in self.reasoning_spans)

    @property
    def answer(self) -> str:
        """All that is not reasoning."""
        return "".join(self.text[start:end] for start, end in self.answer_spans)

    def place(self, start: int, end: int) -> tuple[int, int, bool] | None:
        """A span of the text as a span of its answer, or else of its reasoning, and whether it is the latter.

        ``None`` if it contains nothing of either.
        """
        for spans, gap in ((self.answer_spans, 0), (self.reasoning_spans, len(_BETWEEN))):
            ends, offset = [], 0
            for first, last in spans:
                if max(first, start) < min(last, end):
                    ends += [offset + max(first, start) - first, offset + min(last, end) - first]
                offset += last - first + gap
            if ends:
                return ends[0], ends[-1], spans is self.reasoning_spans
        return None


_BETWEEN = "\n\n"


def channels_of(text: str, *, inside: bool | None = None) -> Channels:
    """Reasoning, which stands between ``<think>`` and ``</think>``, and answer of a text.

    ``inside`` says whether the text begins within reasoning, which the prompt opened; ``None`` = if a closing
    tag without an opening one says so. Tags inside reasoning are text.
    """
    tags = list(_TAG.finditer(text)) if "think>" in text else []
    if inside is None:
        inside = bool(tags) and tags[0].group() == "</think>"
    spans: tuple[list[Span], list[Span]] = ([], [])  # of the answer, of the reasoning
    begin = 0
    for tag in tags:
        opens = tag.group() == "<think>"
        if not (opens and inside):
            trim = begin > 0 or inside
            spans[inside].append(_without_space(text, begin, tag.start(), start=trim, end=inside))
            begin, inside = tag.end(), opens
    trim = begin > 0 or inside
    spans[inside].append(_without_space(text, begin, len(text), start=trim, end=inside))
    answer = [span for span in spans[False] if span[0] < span[1]]
    if answer and tags and not text[slice(*answer[0])].strip():
        answer = answer[1:]
    reasoning = tuple(span for span in spans[True] if span[0] < span[1])
    return Channels(text=text, reasoning_spans=reasoning, answer_spans=tuple(answer))


def _without_space(text: str, first: int, last: int, *, start: bool, end: bool) -> Span:
    """A span without white space at its start, at its end, or both."""
    part = text[first:last]
    return (
        first + (len(part) - len(part.lstrip()) if start else 0),
        last - (len(part) - len(part.rstrip()) if end and part.strip() else 0),
    )


class ChannelReader:
    """Divides a text that is being written as :func:`channels_of` does, in time linear in the text.

    ``inside`` says whether it begins within reasoning.
    """

    def __init__(self, *, inside: bool) -> None:
        self._inside = self._trims = inside
        self._tag = ""
        """The end of the text, which may be the beginning of a tag."""
        self._space: list[str] = []
        """White space that counts only if the span continues."""
        self._span_open = self._has_reasoning = self._has_answer = False

    def add(self, new: str) -> tuple[str, str]:
        """The next parts of reasoning and answer that nothing can change any more."""
        text, reasoning, answer, begin = self._tag + new, list[str](), list[str](), 0
        for tag in _TAG.finditer(text):
            opens = tag.group() == "<think>"
            if opens and self._inside:
                continue
            self._add(text[begin : tag.start()], reasoning, answer)
            self._space, self._trims, self._span_open = [], True, False
            begin, self._inside = tag.end(), opens
        tags = ("</think>",) if self._inside else ("<think>", "</think>")
        end = len(text) - max(partial_end(text[begin:], tag) for tag in tags)
        self._add(text[begin:end], reasoning, answer)
        self._tag = text[end:]
        return "".join(reasoning), "".join(answer)

    def _add(self, part: str, reasoning: list[str], answer: list[str]) -> None:
        """Add the next part of the open span."""
        if self._trims:
            part = part.lstrip()
        if not part:
            return
        self._trims = False
        visible = part.rstrip()
        if not visible and (self._inside or not self._has_answer):
            self._space.append(part)
        elif self._inside:
            gap = [_BETWEEN] if self._has_reasoning and not self._span_open else []
            reasoning += [*gap, *self._space, visible]
            self._space, self._span_open, self._has_reasoning = [part[len(visible) :]], True, True
        else:
            answer += [*self._space, part]
            self._space, self._has_answer = [], True


def partial_end(text: str, whole: str) -> int:
    """Characters at the end of ``text`` that may be the beginning of ``whole``, and are not all of it."""
    at = text.find(whole[0], max(0, len(text) - len(whole) + 1))
    while at >= 0 and not whole.startswith(text[at:]):
        at = text.find(whole[0], at + 1)
    return 0 if at < 0 else len(text) - at


def segment_trace(
    trace: Trace, segmenter: Segmenter | None = None, granularity: Granularity = "part"
) -> Trace:
    """Copy of ``trace`` (same ``id``) with its steps filled in, in place of any it had.

    A step never crosses a part. Reasoning is cut into thoughts (:class:`Thoughts`). Of the rest, a text is
    cut at blank lines, or at line ends if there are none; the content of an assistant message is one
    step, and each of its calls is one. ``segmenter`` cuts texts, contents and reasoning instead. With
    ``granularity="message"`` each assistant message is one step and ``segmenter`` is not used on messages.
    The messages of other roles are observations or instructions, not steps; encrypted and withheld reasoning
    is not cut into steps.

    Raises:
        SegmentError: the spans do not tile the text.
    """
    steps, name = _steps(trace, segmenter, granularity)
    return trusted_copy(trace, {"steps": tuple(starmap(Step.trusted, steps)), "granularity": name})


def cut_trace(trace: Trace, name: str | None = None, granularity: Granularity = "part") -> Trace:
    """:func:`segment_trace` for traces of any origin: by the segmenter called ``name``, or as fits the trace.

    Without a name, the content of a chat's only answer is cut as a text would be: such a chat is a solution,
    not an agent's run. Raises ``SegmentError`` for an unknown name.
    """
    return segment_trace(trace, _fitting(trace, name, granularity), granularity)


class CutTrace(Trace):
    """A trace that is only counted and written: its steps are the arguments of :meth:`Step.trusted`.

    Building the records of its steps would take longer than all else.
    """

    @classmethod
    def of(cls, trace: Trace, name: str | None = None, granularity: Granularity = "part") -> Trace:
        """What is written as :func:`cut_trace` of ``trace``."""
        steps, by = _steps(trace, _fitting(trace, name, granularity), granularity)
        return trusted_copy(trace, {"steps": steps, "granularity": by}, cls)

    def model_dump_json(self, **_: Any) -> str:
        """The JSON of the trace."""
        text = self.__pydantic_serializer__.to_json(self, exclude={"steps"}).decode()
        steps: Any = self.steps
        rows = [
            f'{{"start":{start},"end":{end},"message":{"null" if message is None else message},'
            f'"part":"{part}","call":{"null" if call is None else call},"kind":"{kind}"}}'
            for start, end, kind, message, part, call in steps
        ]
        # quotes in strings are escaped, so this is the field
        return text.replace(_AFTER_STEPS, f',"steps":[{",".join(rows)}]{_AFTER_STEPS}', 1)


_AFTER_STEPS = ',"granularity":'


def _steps(trace: Trace, segmenter: Segmenter | None, granularity: Granularity) -> tuple[list[_Step], str]:
    """The arguments of :meth:`Step.trusted` for each step, and how they were cut."""
    if trace.text is not None:
        return _text_steps(trace, segmenter), segmenter_name(segmenter or _default(trace.text))
    if granularity == "message":
        return _whole_messages(trace), "message"
    steps = [step for number in range(len(trace.messages)) for step in _parts(trace, number, segmenter)]
    return steps, "part" if segmenter is None else f"part, {segmenter_name(segmenter)}"


def _fitting(trace: Trace, name: str | None, granularity: Granularity) -> Segmenter | None:
    """See :func:`cut_trace`; ``None`` = the one of :func:`segment_trace`."""
    if name:
        return segmenter(name)
    answers = [message for message in trace.messages if message.role == "assistant"]
    if len(answers) == 1 and not answers[0].tool_calls and granularity == "part":
        return _default(answers[0].content or "")
    return None


def _default(text: str) -> Segmenter:
    return BlankLine() if "\n\n" in text.strip() else Line()


_Step = tuple[int, int, StepKind, int | None, StepPart, int | None]


def _text_steps(trace: Trace, segmenter: Segmenter | None) -> list[_Step]:
    text = trace.text or ""
    steps = _cut(text, segmenter or _default(text), segmenter or Thoughts(), trace.id)
    if steps and steps[-1][2] == "thought" and not trace.cut_off:
        last = text[steps[-1][0] :]
        if steps[0][2] == "reasoning" or _ANSWER.search(last):
            steps[-1] = _of_kind(steps[-1], "final_answer")
    return steps


def _of_kind(step: _Step, kind: StepKind) -> _Step:
    return (*step[:2], kind, *step[3:])


def _cut(
    text: str, segmenter: Segmenter, for_reasoning: Segmenter, trace_id: str, message: int | None = None
) -> list[_Step]:
    """Steps that tile ``text``, none across the border of reasoning. Raises ``SegmentError``."""
    steps: list[_Step] = []
    plans = "plan" in text.lower()
    for start, inner, end, reasoning in _pieces(text):
        # The tags belong to the first and the last step of their part.
        cutter = for_reasoning if reasoning else segmenter
        part = text[inner[0] : inner[1]]
        spans, code = _tiles(part, cutter, trace_id), code_spans(part, cutter)
        starts = [start, *(inner[0] + first for first, _ in spans[1:])]
        kind: StepKind = "reasoning" if reasoning else "thought"
        for (first, _), begin, last in zip(spans, starts, [*starts[1:], end], strict=True):
            if (plans or code) and not reasoning:
                kind = "code" if _lies_in(code, part, first) else _kind(text[begin:last])
            steps.append((begin, last, kind, message, "content", None))
    return steps


def _lies_in(spans: Sequence[Span], text: str, first: int) -> bool:
    """Whether the first visible character from ``first`` on lies in one of the sorted ``spans``."""
    visible = VISIBLE.search(text, first) if spans else None
    if visible is None:
        return False
    at = bisect_right(spans, (visible.start(), len(text))) - 1
    return at >= 0 and visible.start() < spans[at][1]


def _pieces(text: str) -> list[tuple[int, Span, int, bool]]:
    """Reasoning and the rest, in order: begin, span without tags, end, and whether it is reasoning.

    They tile ``text``. Reasoning without a visible character belongs to what follows it, or at the end to
    what comes before, as does white space before reasoning; a text of tags has no steps.
    """
    if "think>" not in text:
        return [(0, (0, len(text)), len(text), False)] if text.strip() else []
    pieces: list[tuple[int, Span, int, bool]] = []
    done = visible = 0
    for start, end in reasoning_spans(text):
        inside = _inside(text, start, end)
        if text[visible:start].strip():
            pieces.append((done, (visible, start), start, False))
            done = start
        if text[slice(*inside)].strip():
            pieces.append((done, inside, end, True))
            done = end
        visible = end
    if text[visible:].strip():
        pieces.append((done, (visible, len(text)), len(text), False))
    elif pieces and text[done:].strip():
        pieces[-1] = (*pieces[-1][:2], len(text), pieces[-1][3])
    return pieces


def _inside(text: str, start: int, end: int) -> Span:
    """A span of reasoning without its tags."""
    opening = _TAG.match(text, VISIBLE.search(text, start).start())  # type: ignore[union-attr]
    first = opening.end() if opening and opening.group() == "<think>" else start
    last = text.rfind("</think>", first, end)
    closed = last >= 0 and not text[last + len("</think>") : end].strip()
    return first, last if closed else end


def _tiles(text: str, segmenter: Segmenter, trace_id: str) -> Sequence[Span]:
    """Spans of one part. Raises ``SegmentError`` unless they tile it."""
    spans = segmenter.segment(text)
    starts, ends = zip(*spans, strict=True) if spans else ((), ())
    tiles = starts == (0, *ends)[:-1] and all(map(operator.le, starts, ends))
    if not tiles or (ends[-1] != len(text) if spans else bool(text.strip())):
        raise SegmentError(f"{segmenter!r} returned spans that do not tile the text of trace {trace_id}")
    integers = {*map(type, starts), *map(type, ends)} <= {int}
    return spans if integers else [(int(start), int(end)) for start, end in spans]


def _kind(text: str) -> StepKind:
    return "plan" if _PLAN.match(text) else "thought"


def _whole_messages(trace: Trace) -> list[_Step]:
    return [
        (0, len(message.content or ""), "message", number, "message", None)
        for number, message in enumerate(trace.messages)
        if message.role == "assistant"
    ]


def _parts(trace: Trace, number: int, segmenter: Segmenter | None) -> list[_Step]:
    """Steps of one message: its reasoning, its content, its calls."""
    message = trace.messages[number]
    if message.role != "assistant":
        return []
    steps: list[_Step] = []
    if message.readable_reasoning:
        spans = _tiles(message.readable_reasoning, segmenter or Thoughts(), trace.id)
        steps += [(start, end, "reasoning", number, "reasoning", None) for start, end in spans]
    steps += _cut(message.content or "", segmenter or _Whole(), segmenter or Thoughts(), trace.id, number)
    if steps and steps[-1][2] == "thought":
        steps[-1] = _of_kind(steps[-1], _text_kind(trace, number))
    for index, call in enumerate(message.tool_calls):
        steps.append((0, len(call.arguments), action_kind(call), number, "tool_call", index))
    return steps


def _text_kind(trace: Trace, number: int) -> StepKind:
    """Kind of the text of an assistant message, by what comes before and after it."""
    messages, later = trace.messages, range(number + 1, len(trace.messages))
    if not messages[number].tool_calls and (not later or messages[number + 1].role == "user"):
        goes_on = any(messages[index].role == "assistant" for index in later)
        return "reply" if goes_on else "thought" if trace.cut_off else "final_answer"
    return "recovery" if number > 0 and result_failed(messages[number - 1]) else "thought"


@dataclass(frozen=True)
class _Whole:
    """The whole text is one step."""

    def segment(self, text: str) -> list[Span]:
        return [(0, len(text))] if text.strip() else []


@dataclass(frozen=True, kw_only=True)
class Block:
    """A stretch of a trace in reading order: a step, or what stands before, between and after the steps."""

    kind: BlockKind
    text: str
    """Original text, without ``calls``; a whole message's reasoning and content."""
    calls: tuple[ToolCall, ...] = ()
    step: int | None = None
    message: int | None = None
    role: str | None = None
    attachment: Attachment | None = None
    """The attachment, where the text is a note in its place."""

    def __str__(self) -> str:
        """Text and calls, each call on a separate line."""
        return "\n".join(filter(None, (self.text, *map(str, self.calls))))


def trace_blocks(trace: Trace) -> Iterator[Block]:
    """All of a trace in reading order, each character of text, content and shown reasoning once.

    Where something is known to be missing (withheld or encrypted reasoning, an image) a note says so. White
    space outside the steps is left out.
    """
    if trace.text is not None:
        yield from _reasoning_note(trace.reasoning, None, None)
        if trace.reasoning and trace.reasoning.visibility == "summarised":
            yield Block(kind="between", text=trace.reasoning.text)
        yield from _spans(trace, trace.text, list(enumerate(trace.steps)), None)
        return
    by_message: dict[int | None, list[tuple[int, Step]]] = {}
    for index, step in enumerate(trace.steps):
        by_message.setdefault(step.message, []).append((index, step))
    for number, message in enumerate(trace.messages):
        yield from _message_blocks(trace, number, message, by_message.get(number, []))


def _message_blocks(
    trace: Trace, number: int, message: Message, steps: list[tuple[int, Step]]
) -> Iterator[Block]:
    yield from _reasoning_note(message.reasoning, number, message.role)
    # between the steps of a text they would be cut out of it, so they stand before it
    inside = (
        [] if steps else sorted((each for each in message.attachments if each.at), key=lambda each: each.at)
    )
    yield from (_attached(each, number, message) for each in message.attachments if each not in inside)
    if steps and steps[0][1].part == "message":
        index, step = steps[0]
        yield Block(
            kind=step.kind,
            text="\n".join(filter(None, (message.readable_reasoning, message.content))),
            calls=message.tool_calls,
            step=index,
            message=number,
            role=message.role,
        )
        return
    parts = {part: [pair for pair in steps if pair[1].part == part] for part in ("reasoning", "content")}
    if message.readable_reasoning:
        yield from _spans(trace, message.readable_reasoning, parts["reasoning"], number)
    content, start = message.content or "", 0
    for attachment in inside:
        yield from _spans(trace, content[start : attachment.at], (), number)
        yield _attached(attachment, number, message)
        start = attachment.at
    yield from _spans(trace, content[start:], parts["content"], number)
    of_call = {step.call: index for index, step in steps if step.part == "tool_call"}
    for number_of_call, call in enumerate(message.tool_calls):
        yield Block(
            kind=trace.steps[of_call[number_of_call]].kind if number_of_call in of_call else "between",
            text="",
            calls=(call,),
            step=of_call.get(number_of_call),
            message=number,
            role=message.role,
        )


def _attached(attachment: Attachment, number: int, message: Message) -> Block:
    # never its address, which may be an internal one: judges are shown this text
    text = f"{attachment.kind}: {attachment.name or attachment.media_type or 'no name'}"
    return Block(kind="note", text=text, message=number, role=message.role, attachment=attachment)


def _reasoning_note(reasoning: Reasoning | None, message: int | None, role: str | None) -> Iterator[Block]:
    if reasoning is not None and reasoning.visibility != "visible":
        yield Block(kind="note", text=str(reasoning), message=message, role=role)


def _spans(
    trace: Trace, text: str, steps: Sequence[tuple[int, Step]], message: int | None
) -> Iterator[Block]:
    """The steps of one text, and what stands before, between and after them unless it is white space."""
    role = None if message is None else trace.messages[message].role
    outside: BlockKind = (
        "between" if role in (None, "assistant") else "observation" if role == "tool" else "instruction"
    )
    end = 0
    for index, step in steps:
        if text[end : step.start].strip():
            yield Block(kind=outside, text=text[end : step.start], message=message, role=role)
        yield Block(kind=step.kind, text=text[step.start : step.end], step=index, message=message, role=role)
        end = step.end
    if text[end:].strip():
        yield Block(kind=outside, text=text[end:], message=message, role=role)


_SHELLS: Final = {
    "bash", "container.exec", "exec_command", "execute_bash", "execute_command", "execute_ipython_cell",
    "local_shell", "run", "run_command", "run_ipython", "run_shell_command", "run_terminal_cmd", "shell",
    "terminal",
}  # fmt: skip
_COMMANDS: Final = ("command", "cmd", "code", "script")
"""Arguments that hold what a shell runs; a tool called ``run`` may do something else."""
_EDITORS: Final = {"file_editor", "str_replace_based_edit_tool", "str_replace_editor", "text_editor"}
"""Tools with an argument ``command`` that names the operation."""
_EDITS: Final = {
    "append", "apply_patch", "create", "create_file", "delete_file", "edit", "edit_file", "insert",
    "insert_edit_into_file", "multi_edit", "multiedit", "replace_in_file", "search_replace", "str_replace",
    "write", "write_file", "write_to_file",
}  # fmt: skip
_PLACES: Final = (
    "file", "file_name", "file_path", "filename", "filepath", "input", "line", "patch", "path", "replace",
    "replacement_text", "target_file",
)  # fmt: skip
"""Arguments that say where; a tool called ``create`` may create something else."""


def action_kind(call: ToolCall) -> Literal["edit", "command", "tool_call"]:
    """``edit`` for a call that changes files, ``command`` for what a shell or interpreter runs, else neither.

    A line of ``bash`` that begins with an edit of SWE-agent's (``edit 3:4``, ``create a.py``) is an edit.
    Other commands may also change files; they stay commands, as the agent named them.
    """
    name = call.name.lower()
    keys = _COMMANDS if name in _SHELLS else _PLACES if name in _EDITS else ()
    if name not in _EDITORS and not any(f'"{key}"' in call.arguments for key in keys):
        return "tool_call"  # as most: not worth parsing
    arguments = call_arguments(call) or {}
    if name in _SHELLS:
        line = next((arguments[key] for key in _COMMANDS if arguments.get(key)), None)
        if line is None:
            return "tool_call"
        words = line.split(maxsplit=2)[:2] if name == "bash" and isinstance(line, str) else []
        return "edit" if words and _is_edit(words[0], words[1:]) else "command"
    if name in _EDITORS:
        return "tool_call" if arguments.get("command") == "view" else "edit"
    return "edit" if name in _EDITS and any(key in arguments for key in _PLACES) else "tool_call"


def _is_edit(word: str, rest: list[str]) -> bool:
    return word in ("append", "apply_patch", "create", "edit", "insert") or (
        word in _EDITORS and rest != ["view"]
    )


@dataclass(frozen=True, kw_only=True)
class VisibleTrace:
    """What is left of a trace, under the same id."""

    trace: Trace
    steps: tuple[int, ...]
    """Number in the whole trace of each step that is left."""


def visible_part(trace: Trace, *, opened: bool = False) -> VisibleTrace:
    """The trace without fields of reasoning and without what stands between ``<think>`` and ``</think>``.

    Steps of reasoning are left out, the others keep their texts. With ``opened`` the prompt began the
    reasoning: a text or message that never ends it is nothing else. A trace without reasoning is returned
    unchanged.
    """
    update: dict[str, Any]
    hidden: Mapping[int | None, Sequence[Span]]
    if trace.text is not None:
        hidden = {None: _hidden_spans(trace.text, opened)}
        update = {"text": _without(trace.text, hidden[None]), "reasoning": None}
        reasons = bool(hidden[None]) or trace.reasoning is not None
    else:
        answers = {n: row for n, row in enumerate(trace.messages) if row.role == "assistant"}
        hidden = {number: _hidden_spans(row.content or "", opened) for number, row in answers.items()}
        reasons = any(hidden.values()) or any(row.reasoning is not None for row in answers.values())
        changed = {
            number: row.model_copy(
                update={"reasoning": None, "content": row.content and _without(row.content, hidden[number])}
            )
            for number, row in answers.items()
        }
        update = {"messages": tuple(changed.get(n, row) for n, row in enumerate(trace.messages))}
    if not reasons:
        return VisibleTrace(trace=trace, steps=tuple(range(len(trace.steps))))
    steps = {
        number: _moved(step, hidden.get(step.message, ()))
        for number, step in enumerate(trace.steps)
        if not _is_hidden(step, hidden.get(step.message, ()))
    }
    visible = trace.model_copy(update=update | {"steps": tuple(steps.values())})
    return VisibleTrace(trace=visible, steps=tuple(steps))


def _hidden_spans(text: str, opened: bool) -> list[Span]:
    unclosed = opened and text and "</think>" not in text
    return [(0, len(text))] if unclosed else reasoning_spans(text)


def _without(text: str, hidden: Sequence[Span]) -> str:
    """The text between the spans."""
    borders = [(0, 0), *hidden, (len(text), len(text))]
    return "".join(text[end:start] for (_, end), (start, _) in pairwise(borders))


def _is_hidden(step: Step, hidden: Sequence[Span]) -> bool:
    inside = any(first <= step.start and step.end <= last for first, last in hidden)
    return step.part == "reasoning" or (step.part == "content" and inside)


def _moved(step: Step, hidden: Sequence[Span]) -> Step:
    if step.part == "tool_call":
        return step
    start, end = (
        at - sum(min(last, at) - first for first, last in hidden if first < at)
        for at in (step.start, step.end)
    )
    return step.model_copy(update={"start": start, "end": end})
