"""Results and scores of BFCL's multi-turn categories, as `bfcl-eval` writes them.

A result file (``result/MODEL/…/BFCL_v4_multi_turn_base_result.json``) has one run a line. Whether it is
correct says the score file at the same place under ``score``, which lists the failed ones; without it the
outcome is unknown. A score file alone gives its failed runs, without the tools' results.
Problems have the ids, texts and source of the benchmark's own tasks, in which the gold calls are.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from surefoot.errors import RecordError
from surefoot.formats.imports import ImportContext, ImportedTrace, ImportSettings, row_note, run_on
from surefoot.formats.rows import raw_rows
from surefoot.io import ReadReport
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem, as_json

_HEADER: Final = {"accuracy", "correct_count", "total_count"}


def read_bfcl_results(path: Path | str, *, report: ReadReport | None = None) -> Iterator[LabelledTrace]:
    """One trace per run, without labels. Runs of a single turn are rejected: they lack the user's message."""
    failed = _failed_ids(Path(path))
    context = ImportContext(settings=ImportSettings(), report=report or ReadReport())

    def build(number: int, row: Any) -> list[ImportedTrace]:
        if isinstance(row, Mapping) and row.keys() >= _HEADER:
            return []
        if not isinstance(row, Mapping) or "multi_turn" not in str(row.get("id")):
            raise RecordError("only runs of BFCL's multi-turn categories can be read")
        turns = _logged(row) if "inference_log" in row else _scored(row)
        messages = context.chat([message for _, turn in turns for message in turn])
        outcome = False if "valid" in row else None if failed is None else row["id"] not in failed
        text = "\n\n".join("\n".join(texts) for texts, _ in turns)
        problem = Problem(id=row["id"], text=text, source="bfcl")
        note = row_note("bfcl", number)
        more = {"bfcl_error": row.get("error")}
        return [run_on(problem, messages, note, outcome=outcome, policy=row.get("model_name"), meta=more)]

    for item in context.rows(raw_rows(path), build):
        yield LabelledTrace(problem=item.problem, trace=item.trace, labels=())


def _failed_ids(path: Path) -> set[str] | None:
    """Ids of the failed runs in the score file of a result file; ``None`` = there is none."""
    if not path.name.endswith("_result.json") or "result" not in path.parts:
        return None
    folders = list(path.parts[:-1])
    folders[len(folders) - 1 - folders[::-1].index("result")] = "score"
    scores = Path(*folders, path.name.replace("_result.json", "_score.json"))
    if not scores.is_file():
        return None
    return {str(row["id"]) for _, row in raw_rows(scores) if isinstance(row, Mapping) and "id" in row}


_Turn = tuple[list[str], list[dict[str, Any]]]
"""What the user says, and the messages of the turn."""


def _logged(row: Mapping[str, Any]) -> list[_Turn]:
    turns: list[_Turn] = []
    for entry in row["inference_log"]:
        if isinstance(entry, Mapping) and "begin_of_turn_query" in entry:
            steps = [step for name, step in entry.items() if name.startswith("step_")]
            messages = [
                message
                for number, step in enumerate(steps)
                for message in _step(step, f"{len(turns)}-{number}")
            ]
            turns.append(_turn(entry["begin_of_turn_query"], messages))
    return turns


def _scored(row: Mapping[str, Any]) -> list[_Turn]:
    queries = row["prompt"]["question"]
    decoded = row.get("model_result_decoded") or [[] for _ in queries]
    return [
        _turn(query, [_assistant(calls, f"{turn}-{number}") for number, calls in enumerate(steps)])
        for turn, (query, steps) in enumerate(zip(queries, decoded, strict=False))
    ]


def _turn(query: Any, messages: list[dict[str, Any]]) -> _Turn:
    texts = [str(message["content"]) for message in query]
    return texts, [*({"role": "user", "content": text} for text in texts), *messages]


def _step(entries: Any, name: str) -> list[dict[str, Any]]:
    """The agent's message of a step, and the tools' results."""
    reply: dict[str, Any] = next((entry for entry in entries if entry.get("role") == "assistant"), {})
    decoded: dict[str, Any] = next((entry for entry in entries if entry.get("model_response_decoded")), {})
    message = _assistant(decoded.get("model_response_decoded") or (), name)
    if not message["tool_calls"]:
        message["content"] = reply["content"] if isinstance(reply.get("content"), str) else ""
    if reply.get("reasoning_content"):
        message["reasoning_content"] = reply["reasoning_content"]
    results = [entry["content"] for entry in entries if entry.get("role") == "tool"]
    return [
        message,
        *(
            {"role": "tool", "tool_call_id": f"{name}-{index}", "content": result}
            for index, result in enumerate(results)
        ),
    ]


def _assistant(calls: Any, name: str) -> dict[str, Any]:
    tool_calls = [
        {"id": f"{name}-{index}", "function": _call(text)} for index, text in enumerate(filter(None, calls))
    ]
    return {"role": "assistant", "content": None, "tool_calls": tool_calls}


def _call(text: str) -> dict[str, str]:
    """A call that is written as Python: parsed, never evaluated."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise TypeError("not a call with named arguments")
        arguments = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise RecordError(f"the call {text[:100]!r} cannot be read: {error}") from error
    return {"name": call.func.id, "arguments": as_json(arguments)}
