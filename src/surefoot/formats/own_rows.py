"""Your own rows: solutions or chat messages in JSON Lines, CSV, Parquet or a data set, in any columns.

A row has a solution (``text``, ``response`` …), a list of solutions or of steps, or chat messages, together
with the problem; rows without a column of solutions are problems alone. Columns that are not named are
guessed from their names and content, and the guess is shown.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pydantic_core import from_json, to_json

from surefoot.errors import RecordError
from surefoot.formats.imports import (
    IMPORT_KEY,
    ImportContext,
    ImportedTrace,
    check_assistant,
    record_tools,
    require_object,
    row_note,
    task_of,
)
from surefoot.formats.rows import TraceBuilder, joined_trace, raw_rows
from surefoot.records import Message, Problem, Trace, ending_of

_GUESSES: Mapping[str, tuple[str, ...]] = {
    "messages": (
        "messages", "conversation", "conversations", "chat", "dialogue", "trajectory", "turns", "history",
    ),
    "steps": ("steps", "solution_steps", "model_solution_steps"),
    "labels": ("step_labels", "process_correctness", "step_correctness"),
    "text": (
        "text", "response", "responses", "solution", "solutions", "completion", "completions", "output",
        "outputs", "generation", "generations", "generated_text", "model_output", "model_response",
        "prediction", "samples",
    ),
    "problem": ("problem", "question", "prompt", "query", "instruction", "input", "task"),
    "answer": (
        "answer", "reference_answer", "ground_truth", "gold_answer", "gold", "expected_answer", "target",
        "reference", "final_answer",
    ),
    "problem_id": ("problem_id", "question_id", "task_id", "instance_id", "prompt_id"),
    "id": ("trace_id", "id", "uid", "uuid", "sample_id"),
    "tools": ("tools", "functions"),
    "outcome": ("outcome", "correct", "is_correct", "success", "resolved", "passed"),
    "policy": ("policy", "model", "generator", "model_name"),
    "system": ("system", "system_prompt"),
    "finish_reason": ("finish_reason", "finish_reasons", "stop_reason", "stop_reasons", "finishreason"),
}  # fmt: skip
"""Column names by content; the first one that a row has is used."""

_TRUE: Final = "true t correct right 1 1.0 yes y pass passed success succeeded successful solved resolved"
_FALSE: Final = "false f incorrect wrong 0 0.0 no n fail failed failure unsuccessful unsolved unresolved"
_OUTCOMES: Final = {**dict.fromkeys(_TRUE.split(), True), **dict.fromkeys(_FALSE.split(), False)}


def read_own_rows(path: Path | str, context: ImportContext) -> Iterator[ImportedTrace]:
    """Traces of the rows of ``path``; a row without any is counted with its reason."""
    settings = context.settings
    rows = raw_rows(path, subset=settings.subset, split=settings.split)
    return context.rows(rows, _Columns(context).traces)


def holds_traces(row: Any) -> bool:
    """Whether a row has a column of messages, steps or solutions."""
    if not isinstance(row, Mapping):
        return False
    names = {name for content in ("steps", "text") for name in _GUESSES[content]}
    return bool(names & row.keys()) or any(_messages(_plain(value)) is not None for value in row.values())


class _Columns:
    """The file's columns by content: named by the settings, or guessed from the first row that has them."""

    def __init__(self, context: ImportContext) -> None:
        self._context, self._builder = context, TraceBuilder("\n\n")
        self._columns: dict[str, str] | None = None
        self._filled: set[str] = set()
        """Columns with a value in some row."""
        self._warned = False
        """Whether the user was warned that answers are not text."""

    def traces(self, number: int, row: Any) -> Iterator[ImportedTrace]:
        """The traces of one row. Raises ``RecordError`` for a row without any."""
        row = require_object(row, "a row")
        filled = {name for name, value in row.items() if value is not None}
        if self._columns is None or not filled <= self._filled:
            self._columns = self._guess(row)
            self._filled |= filled
        values = {content: self._value(row, content) for content in self._columns}
        note = row_note("rows", number)
        ending = values.get("finish_reason")
        fields: dict[str, Any] = {
            "policy": _text(values.get("policy")),
            "outcome": _outcome(values.get("outcome")),
            "finish_reason": ending if isinstance(ending, str) else None,
            "meta": {IMPORT_KEY: note},
        }
        steps = values.get("steps")
        if (messages := _messages(values.get("messages"))) is not None:
            yield self._chat(messages, values, fields)
        elif isinstance(steps, list) and _are_texts(steps):
            problem = self._problem(values, None)
            if problem is None:
                raise RecordError(f"steps without a problem: {self._advice(row, 'problem')}")
            trace = self._with_id(joined_trace(problem, steps, "\n\n", **fields), values)
            signs: Any = values.get("labels")
            signs = signs if _are_signs(signs) and len(signs) == len(steps) else ()
            labels = []
            for step, sign in enumerate(signs):  # a boolean says whether the step is correct
                value = None if sign is None else float(2 * sign - 1 if isinstance(sign, bool) else sign)
                labels.append(self._builder.label(trace.id, step, value, "file", reason="no label given"))
            yield ImportedTrace(problem=problem, trace=trace, labels=tuple(labels))
        else:
            yield from self._solutions(row, values, fields, note)

    def _solutions(
        self, row: Mapping[str, Any], values: Mapping[str, Any], fields: dict[str, Any], note: dict[str, Any]
    ) -> Iterator[ImportedTrace]:
        """The solutions of a row, or its problem alone."""
        texts = values.get("text")
        solutions = [self._solution(text) for text in (texts if isinstance(texts, list) else [texts])]
        problem = self._problem(values, None)
        prompt = self._context.messages(_messages(values.get("problem")) or ())
        if values.get("steps") is not None and texts is None:
            raise RecordError(f"steps are a list of texts, not {values['steps']!r:.60}")
        if problem and "text" not in (self._columns or {}):
            yield ImportedTrace(problem=problem, trace=None)
            return
        if all(text is None for text in solutions):
            raise RecordError(f"no solution: {self._advice(row, 'text')}")
        if problem is None and values.get("problem_id") is None:
            raise RecordError(f"no problem: {self._advice(row, 'problem')}")
        outcomes, endings = (
            value if isinstance(value, list) and len(value) == len(solutions) else [value] * len(solutions)
            for value in (values.get("outcome"), values.get("finish_reason"))
        )
        for sample, (text, outcome, ending) in enumerate(zip(solutions, outcomes, endings, strict=True)):
            # An empty solution is kept, because it is a failed sample.
            correct = False if outcome is None and not (text or "").strip() else _outcome(outcome)
            of_sample: dict[str, Any] = {
                "outcome": correct,
                "finish_reason": ending if isinstance(ending, str) else None,
                "meta": {IMPORT_KEY: {**note, "sample": sample}},
            }
            # The text of a problem has the user's messages alone.
            if any(message.role != "user" for message in prompt):
                of_sample["messages"] = (*prompt, Message(role="assistant", content=text or ""))
            else:
                of_sample["text"] = text or ""
            trace = Trace(
                problem_id=problem.id if problem else str(values["problem_id"]),
                sample=sample,
                error=None if text is not None else "the file lacks a solution here",
                **(fields | of_sample),
            )
            yield ImportedTrace(
                problem=problem, trace=self._with_id(trace, values, several=len(solutions) > 1)
            )

    def _solution(self, value: Any) -> str | None:
        if isinstance(value, Mapping):
            column, names = (self._columns or {})["text"], ", ".join(map(str, value))
            raise RecordError(
                f"a solution is a text, and column '{column}' has objects with {names}; name one of these, "
                f"as --text-field {column}.{next(iter(value), 'NAME')}"
            )
        return _text(value)

    def _chat(self, rows: list[Any], values: Mapping[str, Any], fields: dict[str, Any]) -> ImportedTrace:
        messages = self._context.messages(rows)
        # TRL's conversational rows have the prompt's messages in another column.
        if (prompt := _messages(values.get("problem"))) is not None:
            messages = (*self._context.messages(prompt), *messages)
        if (system := _text(values.get("system"))) and all(row.role != "system" for row in messages):
            messages = (Message(role="system", content=system), *messages)
        check_assistant(messages)
        problem = self._problem(values, messages)
        trace = Trace(
            problem_id=problem.id if problem else str(values["problem_id"]),
            messages=messages,
            tools=record_tools(values.get("tools")),
            **fields,
        )
        return ImportedTrace(problem=problem, trace=self._with_id(trace, values))

    def _problem(self, values: Mapping[str, Any], messages: tuple[Message, ...] | None) -> Problem | None:
        value, name = values.get("problem"), _text(values.get("problem_id"))
        if (prompt := _messages(value)) is not None:
            value = task_of(self._context.messages(prompt))
        text = _text(value)
        if not text and messages is not None:
            text = task_of(messages)
        if not text:
            return None
        return Problem(id=name or "", text=text, answer=self._answer(values.get("answer")))

    def _answer(self, value: Any) -> str | None:
        """A reference answer: a text or number, or the only one of a list."""
        value = _only_one(value)
        if not isinstance(value, Mapping | list):
            return _text(value)
        if not self._warned:
            self._warned = True
            column, nested = (self._columns or {})["answer"], isinstance(value, Mapping)
            hint = f"; --answer-field {column}.NAME names one of {', '.join(value)}" if nested else ""
            self._context.say(
                f"column '{column}' holds {'objects' if nested else 'lists'}, which are not reference "
                f"answers: nothing is graded by it{hint}"
            )
        return None

    def _with_id(self, trace: Trace, values: Mapping[str, Any], *, several: bool = False) -> Trace:
        """The trace with the row's id, followed by the sample if the row has several traces."""
        name = _text(values.get("id"))
        if not name:
            return trace
        return trace.model_copy(update={"id": f"{name}-{trace.sample}" if several else name})

    def _value(self, row: Mapping[str, Any], content: str) -> Any:
        """The value of a column, counted by whether it can be read as the content."""
        column = (self._columns or {})[content]
        value = _plain(_lookup(row, column))
        # a single solution may be such a text itself
        holds_lists = content in ("steps", "tools") or (content == "text" and column.lower().endswith("s"))
        if holds_lists and isinstance(value, str) and value[:2] in ("['", '["'):
            with suppress(ValueError):
                value = _python_value(value)
        for each in value if isinstance(value, list) and content in _LISTED else [value]:
            is_read = content not in _READERS or bool(_READERS[content](each))
            self._context.count_value(f"{content} = {column}", each, is_read=is_read)
        return value

    def _guess(self, row: Mapping[str, Any]) -> dict[str, str]:
        """The columns so far, or the columns of the settings, and the new ones of this row."""
        previous = self._columns
        columns = dict(previous or self._named(row))
        used = set(columns.values())
        by_name = {name.lower(): name for name in reversed(list(row))}
        for content, names in _GUESSES.items():
            # Messages take precedence over all other forms of a solution.
            if content in columns or (previous and "messages" in previous and content in ("text", "steps")):
                continue
            for name in (by_name[name] for name in names if name in by_name):
                fits = content != "messages" or _messages(_plain(row[name])) is not None
                if name not in used and row[name] is not None and fits:
                    columns[content] = name
                    used.add(name)
                    break
        if not {"messages", "text", "steps"} & columns.keys():
            chats = [name for name in row if name not in used and _messages(_plain(row[name])) is not None]
            columns |= {"messages": chats[0]} if len(chats) == 1 else {}
        if previous is None:
            columns = _corrected(columns, row)
        new = {key: name for key, name in columns.items() if (previous or {}).get(key) != name}
        if new or previous is None:
            self._context.say("columns: " + (", ".join(f"{key} = {new[key]}" for key in new) or "none known"))
        return columns

    def _named(self, row: Mapping[str, Any]) -> dict[str, str]:
        """The columns that the settings name. Raises ``RecordError`` for one that the row does not have."""
        columns = {
            name.removesuffix("_field"): value
            for name, value in self._context.settings
            if name.endswith("_field") and value is not None
        }
        for content, column in columns.items():
            if _lookup(row, column) is None and column.partition(".")[0] not in row:
                option = f"--{content.replace('_', '-')}-field"
                raise RecordError(f"{option} {column}: the column does not exist; there are {', '.join(row)}")
        return columns

    def _advice(self, row: Mapping[str, Any], content: str) -> str:
        column = (self._columns or {}).get(content)
        if column is not None:
            return f"column '{column}' is empty; name another with --{content}-field"
        options = "--text-field or --messages-field" if content == "text" else f"--{content}-field"
        return f"name its column with {options}; the columns are " + ", ".join(f"'{name}'" for name in row)


def _corrected(columns: dict[str, str], row: Mapping[str, Any]) -> dict[str, str]:
    """A first guess without contradictions."""
    if "messages" not in columns and _messages(_plain(_lookup(row, columns.get("text", "")))) is not None:
        columns["messages"] = columns.pop("text")
    text = columns.get("text", "")
    if isinstance(inner := _plain(_lookup(row, text)), Mapping):
        for content in ("steps", "labels"):
            if name := next((name for name in _GUESSES[content] if name in inner), None):
                columns[content] = f"{text}.{name}"
        if columns.get("steps", "").startswith(f"{text}."):
            del columns["text"]
    if "id" in columns and not {"problem_id", "text", "messages"} & columns.keys():
        columns["problem_id"] = columns.pop("id")
    if "messages" in columns:
        return {content: name for content, name in columns.items() if content not in ("text", "steps")}
    return columns


def _lookup(row: Any, column: str) -> Any:
    """The value of a column, or at a name with dots; through a list, all values there."""
    if (type(row) is dict or isinstance(row, Mapping)) and column in row:
        return row[column]
    first, dot, path = column.partition(".")
    if isinstance(row, list):
        if not first.isdecimal():
            return [_lookup(_plain(item), column) for item in row]
        item = _plain(row[int(first)]) if int(first) < len(row) else None
        return _lookup(item, path) if dot else item
    return _lookup(_plain(row[first]), path) if dot and isinstance(row, Mapping) and first in row else None


def _plain(value: Any) -> Any:
    """A value without NaN; a list or object that a table holds as JSON or Python text is parsed."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, str) and value[:2] in ("[{", '["'):
        with suppress(ValueError):
            return from_json(value)
        with suppress(ValueError):
            return _python_value(value) if value.startswith("[{'") else value
    return value


_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<text>'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*")
    | (?P<value>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|True|False|None|nan)
    | (?P<mark>[\[\](){}:,]))""",
    re.VERBOSE | re.DOTALL,
)
_AS_JSON: Final = {"True": "true", "False": "false", "None": "null", "nan": "null", "(": "[", ")": "]"}
_ESCAPE: Final = re.compile(r"\\(x[\da-fA-F]{2}|u[\da-fA-F]{4}|U[\da-fA-F]{8}|.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "\n": ""}


def _python_value(text: str) -> Any:
    """The list or object that ``text`` writes as Python: made JSON token by token, never evaluated.

    Texts side by side are elements of a NumPy array, not one text. Raises ``ValueError`` for anything but
    lists, tuples, objects, texts, numbers, booleans and ``None``.
    """
    tokens, at = [""], 0
    while match := _TOKEN.match(text, at):
        at = match.end()
        token = match[0].strip()
        if match["mark"] is None and tokens[-1][-1:] not in ("", "[", "{", ":", ","):
            tokens.append(",")
        elif token in ("]", ")", "}") and tokens[-1] == ",":
            tokens.pop()
        if match["text"] is not None:
            token = to_json(_ESCAPE.sub(_unescaped, token[1:-1])).decode()
        tokens.append(_AS_JSON.get(token, token))
    if text[at:].strip():
        raise ValueError(f"no Python value from character {at} on")
    return from_json("".join(tokens))


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPES.get(code, match[0])


def _messages(value: Any) -> list[Any] | None:
    """The value if it is a list of messages."""
    objects = isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value)
    return value if objects and any("role" in item or "from" in item for item in value) else None


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _outcome(value: Any) -> bool | None:
    """A boolean, 0 or 1, or a word for one; ``None`` for anything else."""
    if isinstance(value, str):
        return _OUTCOMES.get(value.strip().lower())
    return bool(value) if isinstance(value, bool) or value in (0, 1) else None


def _are_signs(value: Any) -> bool:
    return isinstance(value, list) and all(sign is None or sign in (-1, 0, 1) for sign in value)


def _only_one(value: Any) -> Any:
    """The element of a list of one."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, str) for each in value)


_LISTED: Final = {"text", "outcome", "finish_reason"}
"""Contents of which a row can have one for each of its solutions."""
_READERS: Final[Mapping[str, Callable[[Any], object]]] = {
    "answer": lambda value: not isinstance(_only_one(value), Mapping | list),
    "labels": _are_signs,
    "messages": _messages,
    "steps": _are_texts,
    "outcome": lambda value: _outcome(value) is not None,
    "tools": record_tools,
    "finish_reason": lambda value: isinstance(value, str) and ending_of(value) != "unknown",
}
"""What says for each content whether a value can be read; other contents are any text."""
