"""What the readers of logs and rows share: settings, messages, notes of origin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import Field

from surefoot.errors import RecordError
from surefoot.formats.account import fields_summary
from surefoot.formats.rows import Row, build_rows, raw_rows
from surefoot.io.files import ReadReport
from surefoot.messages import StoreAttachment, read_messages, tool_fields
from surefoot.records import (
    ALREADY_READ,
    FrozenModel,
    Message,
    Problem,
    Reasoning,
    StepLabel,
    StepScores,
    Tool,
    Trace,
    Usage,
    reported_count,
)

IMPORT_KEY: Final = "import"
"""``Trace.meta`` entry with the format that a trace came from, and its place in the file."""
NO_TASK: Final = "(the file does not contain the task)"
"""Text of the problem of a run whose file lacks it, such as a stream of events."""

_SHOWN, _NAMED = 20, 3
"""Reasons for files without a run that are printed, and files that are named for each."""

_EXAMPLES: Final = 3
"""Values that are shown of those that cannot be read."""

ROW_ERRORS = (RecordError, ValueError, AttributeError, LookupError, TypeError, ArithmeticError)
"""Errors that a malformed field of another program's row can raise; they reject that row alone."""


class ImportSettings(FrozenModel):
    """Columns of a table by their content; all others are guessed, and the guess is shown.

    A name with dots goes down: ``response.text``. Logs and batch outputs have fixed fields.
    """

    text_field: str | None = Field(default=None, description="Column of the solution, or of several.")
    problem_field: str | None = Field(default=None, description="Column of the problem's text.")
    answer_field: str | None = Field(default=None, description="Column of the reference answer.")
    id_field: str | None = Field(default=None, description="Column of the trace's id.")
    problem_id_field: str | None = Field(default=None, description="Column of the problem's id.")
    messages_field: str | None = Field(default=None, description="Column of chat messages.")
    steps_field: str | None = Field(default=None, description="Column of steps, as a list of texts.")
    tools_field: str | None = Field(default=None, description="Column of the tools' schemas.")
    outcome_field: str | None = Field(default=None, description="Column that says whether it is correct.")
    policy_field: str | None = Field(default=None, description="Column of the model's name.")
    subset: str | None = Field(default=None, description="Configuration of a data set of `datasets`.")
    split: str = Field(default="train", description="Split of a data set of `datasets`.")
    requests: str | None = Field(
        default=None, description="Batch input file with the prompts of a batch output."
    )


@dataclass(frozen=True, kw_only=True)
class ImportedTrace:
    """A problem and a trace of it, as the file has them; one of the two may be missing."""

    problem: Problem | None
    trace: Trace | None
    labels: tuple[StepLabel, ...] = ()
    scores: StepScores | None = None


LogReader = Callable[[Path | str, "ImportContext"], Iterator[ImportedTrace]]


@dataclass
class ColumnCount:
    """Values of a column that were read and that were not, with examples of these."""

    read: int = 0
    unread: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, value: Any, *, is_read: bool) -> None:
        """Count a value."""
        self.read, self.unread = self.read + is_read, self.unread + (not is_read)
        if not is_read and len(self.examples) < _EXAMPLES and (text := f"{value!r:.60}") not in self.examples:
            self.examples.append(text)

    def __str__(self) -> str:
        unread = f", {self.unread:,} not, such as {', '.join(self.examples)}" if self.unread else ""
        return f"{self.read:,} values read{unread}"


@dataclass(kw_only=True)
class ImportContext:
    """Settings, report and callbacks of one import."""

    settings: ImportSettings
    report: ReadReport
    keep: StoreAttachment | None = None
    say: Callable[[str], None] = lambda _: None
    """Shows which columns were guessed."""
    problems: dict[str, Problem] = field(default_factory=dict)
    """The problems, by id, whose text depends on the run that is read first."""
    columns: dict[str, ColumnCount] = field(default_factory=dict)
    """What was read of each column of own rows."""
    failed: list[str] | None = None
    """Collects why files of several could not be read to their end; ``None`` = the first of them raises."""
    no_runs: list[str] = field(default_factory=list)
    """Files of a folder without messages or solutions, such as settings."""
    second_forms: list[str] = field(default_factory=list)
    """Files with a run that was read from another file."""
    doubts: list[str] = field(default_factory=list)
    """Rewards that were not used, or on which the places that state them disagree."""

    def rows(
        self, rows: Iterable[Row], build: Callable[[int, Any], Iterable[ImportedTrace]]
    ) -> Iterator[ImportedTrace]:
        """The items that ``build`` makes of each row; a row that it rejects is counted with its reason."""
        return build_rows(rows, build, self.report, "", ROW_ERRORS)

    def count_value(self, column: str, value: Any, *, is_read: bool) -> None:
        """Count a value of a column."""
        if value is not None:
            self.columns.setdefault(column, ColumnCount()).add(value, is_read=is_read)

    def account(self) -> Iterator[str]:
        """What the import read of each column, and left unread: lines, files, parts of runs, fields."""
        if self.report.bad_count:
            yield self.report.summary()
        for name, column in self.columns.items():
            yield f"column {name}: {column}"
        if left_out := self.report.left_out.most_common():
            yield "left out: " + ", ".join(f"{count:,} {what}" for what, count in left_out)
        counted = {name.rpartition(" = ")[2] for name in self.columns}
        fields = {name: count for name, count in self.report.fields.items() if name not in counted}
        if fields:
            yield f"fields that no record holds: {fields_summary(fields)}"
        kinds = {
            "files that could not be read": self.failed,
            "files without a run, such as settings": self.no_runs,
            "second forms of runs that were read": self.second_forms,
            "rewards in doubt": self.doubts,
        }
        for what, texts in kinds.items():
            if texts:
                yield f"{what}: {len(texts):,}" + "".join(f"\n  {text}" for text in _grouped(texts))

    def messages(self, rows: Iterable[Mapping[str, Any]]) -> tuple[Message, ...]:
        """Messages in any dialect; parts of unknown types are counted as left out."""
        fields = read_messages(rows, self.keep, self.report.leave_out)
        return tuple(Message.model_validate(each, context=ALREADY_READ) for each in fields)

    def chat(self, rows: Iterable[Mapping[str, Any]]) -> tuple[Message, ...]:
        """:meth:`messages` of a whole conversation. Raises ``RecordError`` without an assistant message."""
        messages = self.messages(rows)
        check_assistant(messages)
        return messages


def reader_of_runs(
    name: str, rows: Callable[[Path | str], Iterable[Row]] = raw_rows
) -> Callable[[Callable[[Any, dict[str, Any], ImportContext], ImportedTrace]], LogReader]:
    """Makes a reader of a format with one run a row of a function of the row, its note and the context."""

    def made(build: Callable[[Any, dict[str, Any], ImportContext], ImportedTrace]) -> LogReader:
        def read(path: Path | str, context: ImportContext) -> Iterator[ImportedTrace]:
            return context.rows(rows(path), lambda number, row: [build(row, row_note(name, number), context)])

        return read

    return made


def _grouped(texts: Sequence[str]) -> Iterator[str]:
    """``NAME: reason`` texts, those with one reason together; the first of many."""
    by_reason: dict[str, list[str]] = {}
    for text in texts:
        name, _, reason = text.partition(": ")
        by_reason.setdefault(reason, []).append(name)
    for reason, names in list(by_reason.items())[:_SHOWN]:
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        yield f"{', '.join(names[:_NAMED])}{more}: {reason}"
    if len(by_reason) > _SHOWN:
        yield f"and {len(by_reason) - _SHOWN} more reasons"


class ChatRows:
    """Messages of a run whose file has them in pieces: consecutive parts of the model form one message."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._answer: dict[str, Any] | None = None

    def say(self, role: str, content: Any) -> None:
        """Add a message of ``role``, unless it is empty."""
        if content:
            self.add({"role": role, "content": content})

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a whole message."""
        self.rows.append(dict(row))
        self._answer = None

    def cut(self, length: int) -> None:
        """Keep the first ``length`` messages."""
        del self.rows[length:]
        self._answer = None

    def part(self, part: Mapping[str, Any]) -> None:
        """Add a part of the model's message: text, reasoning or a call."""
        if self._answer is None:
            self._answer = {"role": "assistant", "content": []}
            self.rows.append(self._answer)
        self._answer["content"].append(part)

    def call(self, name: str, arguments: Any, call_id: str) -> None:
        """Add a call of the model."""
        self.part({"type": "tool_use", "id": call_id, "name": name, "input": arguments})

    def result(self, call_id: Any, content: Any, failed: bool | None = None) -> None:
        """Add the result of a call."""
        self.add({"role": "tool", "tool_call_id": call_id, "content": content, "error": failed})


def run_of(
    rows: Sequence[Mapping[str, Any]],
    context: ImportContext,
    note: Mapping[str, Any],
    *,
    task: str | None = None,
    task_id: str | None = None,
    **fields: Any,
) -> ImportedTrace:
    """An agent's run with ``fields`` of :func:`run_on`; without ``task``, it is the user's first message."""
    messages = context.chat(rows)
    if not task:
        first = next(message.role for message in messages if message.role not in ("system", "developer"))
        task = NO_TASK if first == "assistant" else task_of(messages)
    # a task that the file lacks is not the same problem as another one that is lacking
    task_id = task_id or (fields.get("id") if task == NO_TASK else None)
    problem = Problem(id=task_id or "", text=task, source=fields.pop("source", note["format"]))
    return run_on(problem, messages, note, **fields)


def run_on(
    problem: Problem,
    messages: Sequence[Message],
    note: Mapping[str, Any],
    *,
    tools: object = (),
    usage: Iterable[Mapping[str, Any]] = (),
    calls: int = 0,
    meta: Mapping[str, Any] | None = None,
    **fields: Any,
) -> ImportedTrace:
    """A run on ``problem``, with tools and rows of token counts as the file has them."""
    trace = Trace(
        problem_id=problem.id,
        messages=tuple(messages),
        tools=record_tools(tools),
        usage=reported_usage(*usage, calls=calls),
        meta={IMPORT_KEY: note, **(meta or {})},
        **fields,
    )
    return ImportedTrace(problem=problem, trace=trace)


def require_object(row: Any, what: str) -> Mapping[str, Any]:
    """``row``. Raises ``RecordError`` unless it is a JSON object."""
    if isinstance(row, ValueError):
        raise RecordError(f"not JSON ({row})")
    if not isinstance(row, Mapping):
        raise RecordError(f"{what} is an object, not {row!r:.40}")
    return row


def record_tools(rows: object) -> tuple[Tool, ...]:
    """Tools in any supported shape; anything but a list of objects gives none."""
    rows = rows if isinstance(rows, list | tuple) else ()
    return tuple(Tool.model_validate(tool_fields(row)) for row in rows if isinstance(row, Mapping))


def check_assistant(messages: Sequence[Message]) -> None:
    """Raise ``RecordError`` without an assistant message: there would be nothing to supervise."""
    if not any(message.role == "assistant" for message in messages):
        roles = ", ".join(dict.fromkeys(message.role for message in messages)) or "none"
        raise RecordError(f"no message is from the assistant (roles: {roles})")


def with_reasoning_tokens(messages: tuple[Message, ...], tokens: int | None) -> tuple[Message, ...]:
    """The messages of one response with its number of reasoning tokens; without any text it is withheld.

    If several messages have reasoning, the share of each is unknown, and they stay as they are.
    """
    reasoned = [message for message in messages if message.reasoning] or messages[:1]
    if not tokens or len(reasoned) != 1:
        return messages
    [message] = reasoned
    reasoning = message.reasoning or Reasoning(text="", visibility="withheld")
    fields = message.model_dump() | {"reasoning": reasoning.model_dump() | {"tokens": tokens}}
    return tuple(Message.model_validate(fields) if each is message else each for each in messages)


def reported_usage(*rows: Mapping[str, Any], calls: int = 0) -> Usage:
    """The sum of the tokens that ``rows`` report, under any of the usual names."""
    rows = tuple(filter(None, rows))

    def total(*names: str) -> int:
        return sum(reported_count(next((row[n] for n in names if row.get(n)), None)) for row in rows)

    return Usage(
        prompt_tokens=total("prompt_tokens", "input_tokens", "tokens_sent", "input"),
        completion_tokens=total("completion_tokens", "output_tokens", "tokens_received", "output"),
        calls=calls,
    )


def task_of(messages: Sequence[Message]) -> str:
    """The task of a conversation: the user messages before the first assistant message, else the system's.

    Raises ``RecordError`` if none of them has text.
    """
    prompt = []
    for message in messages:
        if message.role == "assistant":
            break
        prompt.append(message)
    for roles in (("user",), ("system", "developer")):
        texts = [message.content for message in prompt if message.role in roles and message.content]
        if any(text.strip() for text in texts):
            return "\n\n".join(texts)
    if any(message.attachments for message in prompt):
        return "(no text: see the attachments of the first message)"
    raise RecordError(
        "no message before the assistant's first one has text, so the problem is missing; name its column"
    )


def row_note(name: str, number: int) -> dict[str, Any]:
    """``Trace.meta`` note of a row: its format, and its place in the file."""
    return {"format": name, "row": number}
