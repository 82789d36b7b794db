"""Rows of one's own: solutions or chat messages in JSON Lines, CSV, Parquet or a data set, in any columns.

A row has a solution (``text``, ``response`` …), a list of solutions or of steps, or chat messages, and with
it the problem; rows without a column of solutions are problems alone. Columns that are not named are guessed
by their names and content, and the guess is shown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from surefoot.errors import RecordError
from surefoot.formats._imports import (
    IMPORT_KEY,
    ImportContext,
    ImportedTrace,
    check_assistant,
    raw_rows,
    row_note,
    rows_to_write,
    task_of,
    tools,
)
from surefoot.formats._results import TraceResults
from surefoot.formats._rows import joined_trace, write_rows
from surefoot.records import Message, Problem, Trace

NAME = "rows"

_GUESSES: Mapping[str, tuple[str, ...]] = {
    "messages": (
        "messages", "conversation", "conversations", "chat", "dialogue", "trajectory", "turns", "history",
    ),
    "steps": ("steps", "solution_steps", "model_solution_steps"),
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
}  # fmt: skip
"""Column names by what they hold, the first that a row has counts."""

_TURNS = {"from": "role", "value": "content"}
"""ShareGPT's names of a message's fields."""


def read_own_rows(path: Path | str, context: ImportContext) -> Iterator[ImportedTrace]:
    """Traces of the rows of ``path``; a row that has none is counted with its reason."""
    columns = _Columns(context)
    return context.rows(raw_rows(path, context.settings), columns.traces)


def write_own_rows(original: Path, path: Path, results: Mapping[str, TraceResults]) -> int:
    """Copy the rows of ``original`` with labels and scores in a new column ``surefoot``, one object a trace.

    Written as JSON Lines or a JSON array, by the ending, whatever the original was. Returns the number of
    traces written. Raises ``RecordError`` if a trace is of another file.
    """
    by_row: dict[int, list[TraceResults]] = {}
    for found in results.values():
        by_row.setdefault(found.trace.meta[IMPORT_KEY]["row"], []).append(found)

    def rows() -> Iterator[dict[str, Any]]:
        for row, found in rows_to_write(original, by_row):
            own = [
                {"trace": one.trace.id, "score": one.summary, "of": one.explanation, "steps": one.steps}
                for one in found
            ]
            if isinstance(row, Mapping):
                yield {**row, "surefoot": own} if own else dict(row)

    write_rows(path, rows())
    return len(results)


class _Columns:
    """Where a file has what: as the settings say, else guessed, each from the first row that has it."""

    def __init__(self, context: ImportContext) -> None:
        self._context = context
        self._named: dict[str, str] | None = None
        self._known: set[str] = set()
        """Columns that some row has filled."""
        self._uncompared = False
        """Whether it was said that answers are not texts."""

    def traces(self, number: int, row: Any) -> Iterator[ImportedTrace]:
        """The traces of one row. Raises ``RecordError`` for a row without any."""
        if not isinstance(row, Mapping):
            raise RecordError(f"a row is an object with named fields, not {row!r:.40}")
        filled = {name for name, value in row.items() if value is not None}
        if self._named is None or not filled <= self._known:
            self._named = self._guess(row)
            self._known |= filled
        values = {what: _plain(_at(row, column)) for what, column in self._named.items()}
        source = {IMPORT_KEY: row_note(NAME, number, row)}
        fields: dict[str, Any] = {"policy": _text(values.get("policy")), "meta": source}
        fields["outcome"] = _truth(values.get("outcome"))
        messages = _messages(values.get("messages"))
        if messages is not None:
            yield self._chat(messages, values, fields)
            return
        steps, texts = values.get("steps"), values.get("text")
        if isinstance(steps, list) and steps and all(isinstance(step, str) for step in steps):
            problem = self._problem(values, None)
            trace = joined_trace(problem, steps, "\n\n", **fields) if problem else None
            if trace is None:
                raise RecordError(f"steps without a problem: {self._advice(row, 'problem')}")
            yield ImportedTrace(problem=problem, trace=self._identified(trace, values, 0))
            return
        said = [self._solution(text) for text in (texts if isinstance(texts, list) else [texts])]
        problem = self._problem(values, None)
        if problem and "text" not in self._named:
            yield ImportedTrace(problem=problem, trace=None)
            return
        if not any(text and text.strip() for text in said):
            raise RecordError(f"no solution: {self._advice(row, 'text')}")
        if problem is None and values.get("problem_id") is None:
            raise RecordError(f"no problem: {self._advice(row, 'problem')}")
        given = values.get("outcome")
        outcomes = given if isinstance(given, list) and len(given) == len(said) else [given] * len(said)
        for sample, (text, outcome) in enumerate(zip(said, outcomes, strict=True)):
            # An empty solution among others is kept: it is one of the samples, and a wrong one.
            trace = Trace(
                problem_id=problem.id if problem else str(values["problem_id"]),
                text=text or "",
                sample=sample,
                error=None if text is not None else "the file has no solution here",
                **{
                    **fields,
                    "outcome": _truth(outcome),
                    "meta": {IMPORT_KEY: {**source[IMPORT_KEY], "sample": sample}},
                },
            )
            yield ImportedTrace(problem=problem, trace=self._identified(trace, values, len(said) - 1))

    def _solution(self, value: Any) -> str | None:
        if isinstance(value, Mapping):
            column, names = (self._named or {})["text"], ", ".join(map(str, value))
            raise RecordError(
                f"a solution is a text, and column '{column}' has objects with {names}; name one of these, "
                f"as --text-field {column}.{next(iter(value), 'NAME')}"
            )
        return _text(value)

    def _chat(self, rows: list[Any], values: Mapping[str, Any], fields: dict[str, Any]) -> ImportedTrace:
        rows = [
            {_TURNS.get(k, k): v for k, v in row.items()} if isinstance(row, Mapping) else row for row in rows
        ]
        messages = self._context.messages(rows)
        # TRL's conversational rows: the prompt's messages, then the completion's
        before = _messages(values.get("problem"))
        if before is not None:
            messages = (*self._context.messages(before), *messages)
        check_assistant(messages)
        problem = self._problem(values, messages)
        trace = Trace(
            problem_id=problem.id if problem else str(values["problem_id"]),
            messages=messages,
            tools=tools(_listed(values.get("tools"))),
            **fields,
        )
        return ImportedTrace(problem=problem, trace=self._identified(trace, values, 0))

    def _problem(self, values: Mapping[str, Any], messages: tuple[Message, ...] | None) -> Problem | None:
        given, name = values.get("problem"), _text(values.get("problem_id"))
        asked = _messages(given)
        if asked is not None:
            given = task_of(self._context.messages(asked))
        text = _text(given)
        if not text and messages is not None:
            text = task_of(messages)
        if not text:
            return None
        return Problem(id=name or "", text=text, answer=self._answer(values.get("answer")))

    def _answer(self, value: Any) -> str | None:
        """A reference to compare with: a text or number, or the only one of a list."""
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if not isinstance(value, Mapping | list):
            return _text(value)
        if not self._uncompared:
            self._uncompared = True
            column, inside = (self._named or {})["answer"], isinstance(value, Mapping)
            below = f"; --answer-field {column}.NAME names one of {', '.join(value)}" if inside else ""
            self._context.say(
                f"column '{column}' holds {'objects' if inside else 'lists'}, which are no reference "
                f"answers: nothing is graded by it{below}"
            )
        return None

    def _identified(self, trace: Trace, values: Mapping[str, Any], others: int) -> Trace:
        """The trace with the row's id; with a number behind it where the row has several traces."""
        name = _text(values.get("id"))
        if not name:
            return trace
        return trace.model_copy(update={"id": f"{name}-{trace.sample}" if others else name})

    def _guess(self, row: Mapping[str, Any]) -> dict[str, str]:
        """What is named, or was guessed before, and what this row has besides."""
        known = self._named
        named = dict(known or self._given(row))
        taken = set(named.values())
        by_name = {name.lower(): name for name in reversed(list(row))}
        for what, names in _GUESSES.items():
            # messages come before all other forms of a solution
            if what in named or (known and "messages" in known and what in ("text", "steps")):
                continue
            for name in (by_name[name] for name in names if name in by_name):
                fits = what != "messages" or _messages(_plain(row[name])) is not None
                if name not in taken and row[name] is not None and fits:
                    named[what] = name
                    taken.add(name)
                    break
        if not {"messages", "text", "steps"} & named.keys():
            chats = [name for name in row if name not in taken and _messages(_plain(row[name])) is not None]
            named |= {"messages": chats[0]} if len(chats) == 1 else {}
        chat = known is None and _messages(_plain(_at(row, named.get("text", "")))) is not None
        if chat and "messages" not in named:
            named["messages"] = named.pop("text")
        if known is None and "id" in named and not {"problem_id", "text", "messages"} & named.keys():
            named["problem_id"] = named.pop("id")
        if "messages" in named and known is None:
            named = {what: name for what, name in named.items() if what not in ("text", "steps")}
        new = {what: name for what, name in named.items() if known is None or known.get(what) != name}
        shown = ", ".join(f"{what} = {name}" for what, name in new.items())
        if shown or known is None:
            self._context.say(f"columns: {shown or 'none known'}")
        return named

    def _given(self, row: Mapping[str, Any]) -> dict[str, str]:
        """The columns that the settings name. Raises ``RecordError`` for one that the row does not have."""
        named = {
            name.removesuffix("_field"): value
            for name, value in self._context.settings
            if name.endswith("_field") and value is not None
        }
        for what, column in named.items():
            if _at(row, column) is None and column.partition(".")[0] not in row:
                option = f"--{what.replace('_', '-')}-field"
                raise RecordError(f"{option} {column}: there is no such column; there are {', '.join(row)}")
        return named

    def _advice(self, row: Mapping[str, Any], what: str) -> str:
        named = (self._named or {}).get(what)
        if named is not None:
            return f"column '{named}' is empty; name another with --{what}-field"
        if what == "text":
            what = "text-field or --messages"
        columns = ", ".join(f"'{name}'" for name in row)
        return f"name its column with --{what}-field; the columns are {columns}"


def _at(row: Any, column: str) -> Any:
    """A column, or what a name with dots leads to; through a list, all that it leads to."""
    if isinstance(row, Mapping) and column in row:
        return row[column]
    first, dot, rest = column.partition(".")
    if isinstance(row, list):
        if not first.isdecimal():
            return [_at(_plain(one), column) for one in row]
        inner = _plain(row[int(first)]) if int(first) < len(row) else None
        return _at(inner, rest) if dot else inner
    return _at(_plain(row[first]), rest) if dot and isinstance(row, Mapping) and first in row else None


def _plain(value: Any) -> Any:
    """A value; a list or object that a table holds as JSON text is read."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, str) and value[:2] in ("[{", '["'):
        try:
            return from_json(value)
        except ValueError:
            return value
    return value


def _messages(value: Any) -> list[Any] | None:
    """The value if it is a list of messages."""
    objects = isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value)
    return value if objects and any("role" in one or "from" in one for one in value) else None


def _listed(value: Any) -> list[Any] | None:
    return value if isinstance(value, list) else None


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _truth(value: Any) -> bool | None:
    """An outcome: a truth value, 0 or 1, or a word for one; ``None`` for anything else."""
    if isinstance(value, str):
        return {"true": True, "correct": True, "1": True, "false": False, "incorrect": False, "0": False}.get(
            value.strip().lower()
        )
    return bool(value) if isinstance(value, bool) or value in (0, 1) else None
