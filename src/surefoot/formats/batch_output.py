"""Outputs of batches (OpenAI's batch API, ``vllm run-batch``): chat completions, completions, responses.

A row is ``{"custom_id", "response": {"status_code", "body"}, "error"}``. The prompts are in the batch's
input, whose rows have the same ``custom_id``; rows that are a body alone (a saved response) are read, too.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from surefoot.errors import RecordError
from surefoot.formats._imports import (
    IMPORT_KEY,
    ImportContext,
    ImportedTrace,
    raw_rows,
    row_note,
    rows_to_write,
    task_of,
    tools,
)
from surefoot.formats._results import TraceResults
from surefoot.formats._rows import write_rows
from surefoot.records import Problem, Trace, Usage

NAME = "batch"


def read_batch_output(path: Path | str, context: ImportContext) -> Iterator[ImportedTrace]:
    """One trace per choice; with ``settings.requests`` each with its prompt as the problem."""
    asked = _requests(context.settings.requests)
    return context.rows(raw_rows(path), lambda number, row: _traces(number, row, asked, context))


def write_batch_output(original: Path, path: Path, results: Mapping[str, TraceResults]) -> int:
    """Copy the rows of ``original`` with labels and scores in ``surefoot`` of each choice, or of the body.

    Returns the number of choices changed.
    """
    by_row: dict[int, list[TraceResults]] = {}
    for found in results.values():
        by_row.setdefault(found.trace.meta[IMPORT_KEY]["row"], []).append(found)

    def rows() -> Iterator[dict[str, Any]]:
        for row, own in rows_to_write(original, by_row):
            row = copy.deepcopy(row)
            for one in own:  # a request that failed has none, and stays as it is
                body = _body(row)
                place = (body.get("choices") or [body])[one.trace.meta[IMPORT_KEY]["choice"]]
                place["surefoot"] = {"score": one.summary, "of": one.explanation, "steps": one.steps}
            yield row

    write_rows(path, rows())
    return len(results)


def _requests(path: str | None) -> dict[str, Mapping[str, Any]]:
    if path is None:
        return {}
    rows = [row for _, row in raw_rows(path) if isinstance(row, Mapping)]
    asked = {str(row["custom_id"]): row.get("body") or {} for row in rows if "custom_id" in row}
    if not asked:
        raise RecordError(f"--requests {path}: no row has a 'custom_id'; give the input of the batch")
    return asked


def _body(row: Any) -> dict[str, Any]:
    """The response's body. Raises ``RecordError`` for a request that failed, with the server's words."""
    if not isinstance(row, dict):
        raise RecordError(f"a row is an object, not {row!r:.40}")
    response = row.get("response")
    body = response.get("body") if isinstance(response, Mapping) and "body" in response else response or row
    error = row.get("error") or (body.get("error") if isinstance(body, Mapping) else None)
    if error or not isinstance(body, dict):
        words = error.get("message") if isinstance(error, Mapping) else error
        raise RecordError(f"the request failed: {words or 'no body'}")
    if "choices" not in body and "output" not in body:
        raise RecordError(f"no 'choices' and no 'output' in the body; it has {', '.join(body)}")
    return body


def _traces(
    number: int, row: Any, asked: Mapping[str, Mapping[str, Any]], context: ImportContext
) -> Iterator[ImportedTrace]:
    body = _body(row)
    name = str(row.get("custom_id") or body.get("id") or number)
    request = asked.get(name, {})
    prompt = request.get("messages") or response_messages(request.get("input"), request.get("instructions"))
    before = context.messages(prompt)
    text = request.get("prompt") if isinstance(request.get("prompt"), str) else None
    problem = Problem(id=name, text=text or task_of(before)) if text or before else None
    usage = body.get("usage") or {}
    details = usage.get("completion_tokens_details") or usage.get("output_tokens_details") or {}
    shared: dict[str, Any] = {
        "problem_id": name,
        "policy": body.get("model"),
        "tools": tools(request.get("tools") or body.get("tools")),
    }
    choices = body.get("choices")
    if choices is None:
        choices = [{"messages": response_messages(body["output"]), "finish_reason": body.get("status")}]
    for index, choice in enumerate(choices):
        fields = shared | {
            "sample": index,
            "finish_reason": choice.get("finish_reason"),
            "usage": _usage(usage) if index == 0 else Usage(),
            "meta": {IMPORT_KEY: {**row_note(NAME, number, row), "choice": index}},
        }
        if "text" in choice and "message" not in choice:
            yield ImportedTrace(problem=problem, trace=Trace(text=choice["text"], **(fields | {"tools": ()})))
            continue
        said = choice.get("messages") or [choice.get("message") or {}]
        said = _billed(said, details.get("reasoning_tokens") if len(choices) == 1 else None)
        after = context.messages(said)
        yield ImportedTrace(problem=problem, trace=Trace(messages=(*before, *after), **fields))


def response_messages(items: Any, instructions: str | None = None) -> list[dict[str, Any]]:
    """Items of OpenAI's Responses API as chat messages, with reasoning and calls in the message beside them.

    ``items`` is a request's ``input`` (a text, too) or a response's ``output``.
    """
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    if isinstance(items, str):
        return [*messages, {"role": "user", "content": items}]
    for item in items or ():
        _add_item(messages, item)
    return messages


def _add_item(messages: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        role = item.get("role", "assistant")
        last = messages[-1] if messages and role == "assistant" else {}
        if last.get("role") == "assistant" and last.get("content") is None and "tool_calls" not in last:
            last["content"] = item.get("content")  # what the reasoning before it led to
        else:
            messages.append({"role": role, "content": item.get("content")})
    elif kind.endswith("_output"):
        output = item.get("output")
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
    elif kind == "reasoning":
        messages.append({"role": "assistant", "content": None, "reasoning": _response_reasoning(item)})
    elif kind.endswith("_call"):
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        call = {
            "id": item.get("call_id") or item.get("id"),
            "name": item.get("name") or kind,
            "arguments": "{}",
        }
        given = item.get("arguments", item.get("input", item.get("action")))
        messages[-1].setdefault("tool_calls", []).append(
            call if given is None else call | {"arguments": given}
        )


def _response_reasoning(item: Mapping[str, Any]) -> dict[str, Any]:
    def joined(parts: Iterable[Mapping[str, Any]] | None) -> str:
        return "\n\n".join(str(part.get("text", "")) for part in parts or ())

    if shown := joined(item.get("content")):
        return {"text": shown, "visibility": "visible"}
    if summary := joined(item.get("summary")):
        return {"text": summary, "visibility": "summarised"}
    if blob := item.get("encrypted_content"):
        return {"text": blob, "visibility": "encrypted"}
    return {"text": "", "visibility": "withheld"}


def _billed(messages: list[dict[str, Any]], tokens: int | None) -> list[dict[str, Any]]:
    """The messages with the number of tokens billed for reasoning; without any text it is withheld."""
    if not tokens:
        return messages
    shown = ("reasoning_content", "reasoning_details")
    if any(message.get(name) for message in messages for name in shown):
        return messages
    reasoned = [message for message in messages if message.get("reasoning")] or messages[:1]
    own = reasoned[0].get("reasoning") or {"text": "", "visibility": "withheld"}
    if len(reasoned) > 1 or not isinstance(own, Mapping):
        return messages
    return [
        {**message, "reasoning": {**own, "tokens": tokens}} if message is reasoned[0] else message
        for message in messages
    ]


def _usage(usage: Mapping[str, Any]) -> Usage:
    return Usage(
        prompt_tokens=int(usage.get("prompt_tokens") or usage.get("input_tokens") or 0),
        completion_tokens=int(usage.get("completion_tokens") or usage.get("output_tokens") or 0),
        calls=1,
    )
