"""Outputs of batches (OpenAI's batch API, ``vllm run-batch``): chat completions, completions, responses.

A row is ``{"custom_id", "response": {"status_code", "body"}, "error"}``. The prompts are in the batch's
input, whose rows have the same ``custom_id``. A row may also be a body alone (a saved response).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from surefoot.errors import RecordError
from surefoot.formats.imports import (
    IMPORT_KEY,
    ImportContext,
    ImportedTrace,
    record_tools,
    reported_usage,
    require_object,
    row_note,
    task_of,
    with_reasoning_tokens,
)
from surefoot.formats.rows import raw_rows
from surefoot.records import Problem, Trace, Usage, reported_count


def is_batch_output(row: Mapping[str, Any]) -> bool:
    """Whether a row is a result of a batch, or a saved response."""
    is_body = ("choices" in row and "usage" in row) or row.get("object") in ("response", "chat.completion")
    return is_body or ("custom_id" in row and ("response" in row or "error" in row))


def read_batch_output(path: Path | str, context: ImportContext) -> Iterator[ImportedTrace]:
    """One trace per choice; with ``settings.requests`` each has its prompt as the problem."""
    requests = _requests(context.settings.requests)
    return context.rows(raw_rows(path), lambda number, row: _traces(number, row, requests, context))


def _requests(path: str | None) -> dict[str, Mapping[str, Any]]:
    if path is None:
        return {}
    rows = [row for _, row in raw_rows(path) if isinstance(row, Mapping)]
    requests = {str(row["custom_id"]): row.get("body") or {} for row in rows if "custom_id" in row}
    if not requests:
        raise RecordError(f"--requests {path}: no row has a 'custom_id'; give the input of the batch")
    return requests


def _body(row: Any) -> dict[str, Any]:
    """The response's body. Raises ``RecordError`` for a failed request, with the server's message."""
    row = require_object(row, "a row")
    response = row.get("response")
    body = response.get("body") if isinstance(response, Mapping) and "body" in response else response or row
    error = row.get("error") or (body.get("error") if isinstance(body, Mapping) else None)
    if error or not isinstance(body, dict):
        message = error.get("message") if isinstance(error, Mapping) else error
        raise RecordError(f"the request failed: {message or 'no body'}")
    if "choices" not in body and "output" not in body:
        raise RecordError(f"no 'choices' and no 'output' in the body; it has {', '.join(body)}")
    return body


def _traces(
    number: int, row: Any, requests: Mapping[str, Mapping[str, Any]], context: ImportContext
) -> Iterator[ImportedTrace]:
    body = _body(row)
    name = str(row.get("custom_id") or body.get("id") or number)
    request = requests.get(name, {})
    prompt = context.messages(request.get("messages") or _response_input(request))
    text = request.get("prompt") if isinstance(request.get("prompt"), str) else None
    problem = Problem(id=name, text=text or task_of(prompt)) if text or prompt else None
    usage = body.get("usage") or {}
    details = usage.get("completion_tokens_details") or usage.get("output_tokens_details") or {}
    shared: dict[str, Any] = {"problem_id": name, "policy": body.get("model")}
    tools = record_tools(request.get("tools") or body.get("tools"))
    choices = body.get("choices")
    if choices is None:
        choices = [{"messages": body["output"], "finish_reason": _ending(body)}]
    for index, choice in enumerate(choices):
        fields = shared | {
            "sample": index,
            "finish_reason": choice.get("finish_reason"),
            "usage": reported_usage(usage, calls=1) if index == 0 else Usage(),
            "meta": {IMPORT_KEY: {**row_note("batch", number), "choice": index}},
        }
        if "text" in choice and "message" not in choice:
            yield ImportedTrace(problem=problem, trace=Trace(text=choice["text"], **fields))
            continue
        answer = choice.get("messages") or [choice.get("message") or {}]
        tokens = reported_count(details.get("reasoning_tokens")) if len(choices) == 1 else None
        reply = with_reasoning_tokens(context.messages(answer), tokens)
        messages = (*prompt, *reply)
        yield ImportedTrace(problem=problem, trace=Trace(messages=messages, tools=tools, **fields))


def _ending(response: Mapping[str, Any]) -> str | None:
    """Why a response of the Responses API ended: the limit or filter that cut it off, else its status."""
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, Mapping) else None
    return reason or response.get("status")


def _response_input(request: Mapping[str, Any]) -> list[Any]:
    """The messages and items of a request of OpenAI's Responses API."""
    text, items = request.get("instructions"), request.get("input") or []
    head = [{"role": "system", "content": text}] if text else []
    return [*head, *([{"role": "user", "content": items}] if isinstance(items, str) else items)]
