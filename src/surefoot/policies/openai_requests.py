"""Requests to an OpenAI-compatible server as JSON bodies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal

from surefoot.images import is_inline
from surefoot.policies.openai_responses import Mode
from surefoot.protocols import SampleRequest
from surefoot.records import Attachment, Message

Dialect = Literal["openai", "vllm"]
PATHS: Final[dict[Mode, str]] = {"chat": "/chat/completions", "completions": "/completions"}

_NEUTRAL = {
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""vLLM otherwise takes these from the model's ``generation_config.json``. Tokens would then be sampled by
rules that :class:`Sampling` does not mention, unlike in :class:`TransformersPolicy`."""


def body_of(request: SampleRequest, *, model: str, mode: Mode, dialect: Dialect) -> dict[str, Any]:
    """The fields of a request, without the user's ``extra_body``."""
    sampling, prompt = request.sampling, request.prompt
    if mode == "chat" and isinstance(prompt, str):
        prompt = (Message(role="user", content=prompt),)
    body: dict[str, Any] = {
        "model": model,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "seed": request.seed,
        **prompt_fields(prompt, request.prefix),
    }
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if dialect == "vllm" or request.n > 1:
        body["n"] = request.n
    if dialect == "vllm":
        body |= {"include_stop_str_in_output": True, "return_token_ids": True, **_NEUTRAL}
    if request.logprobs or request.alternatives:
        most = request.alternatives  # with 0 only the sampled token's
        body |= {"logprobs": most} if "prompt" in body else {"logprobs": True, "top_logprobs": most}
    return body


def prompt_fields(prompt: str | Sequence[Message], prefix: str = "") -> dict[str, Any]:
    """A prompt and the beginning of its answer: a text for ``/completions``, or messages for the chat."""
    if isinstance(prompt, str):
        return {"prompt": prompt + prefix}
    messages = _with_result_images(openai_message(message) for message in prompt)
    if not prefix:
        return {"messages": messages}
    messages.append({"role": "assistant", "content": prefix})
    return {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}


def openai_message(message: Message, shows: Callable[[Attachment], bool] = is_inline) -> dict[str, Any]:
    """A message in OpenAI's format, with the attachments that ``shows`` accepts as image parts."""
    sent: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.attachments:
        sent["content"] = _content_parts(message, shows)
    if message.readable_reasoning:
        # Reasoning models' chat templates read this field; other servers ignore it.
        sent["reasoning_content"] = message.readable_reasoning
    if message.tool_calls:
        sent["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        sent["tool_call_id"] = message.tool_call_id
    return sent


def _with_result_images(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, with images of tools' results in a user's message behind the results: OpenAI's format and
    many servers allow a tool's message text alone, and others drop the image."""
    sent: list[dict[str, Any]] = []
    behind: list[dict[str, Any]] = []
    for row in rows:
        if behind and row["role"] != "tool":
            sent.append({"role": "user", "content": behind})
            behind = []
        if row["role"] == "tool" and isinstance(row["content"], list):
            images = [part for part in row["content"] if part["type"] == "image_url"]
            title = {"type": "text", "text": f"Images of the result {row.get('tool_call_id', '')}:"}
            behind += [title, *images] if images else []
            text = "".join(part.get("text", "[image: in the next user message]") for part in row["content"])
            row = {**row, "content": text}
        sent.append(row)
    return [*sent, {"role": "user", "content": behind}] if behind else sent


def _content_parts(message: Message, shows: Callable[[Attachment], bool]) -> list[dict[str, Any]]:
    content, done = message.content or "", 0
    parts: list[dict[str, Any]] = []
    for attachment in message.attachments:
        if content[done : attachment.at]:
            parts.append({"type": "text", "text": content[done : attachment.at]})
            done = attachment.at
        # An address would be opened by the server: a path or host inside its network, or the user's disk.
        if shows(attachment):
            detail = {"detail": attachment.detail} if attachment.detail else {}
            parts.append({"type": "image_url", "image_url": {"url": attachment.uri, **detail}})
        else:
            parts.append({"type": "text", "text": f"[{attachment.kind}: {attachment.name or 'not sent'}]"})
    return [*parts, {"type": "text", "text": content[done:]}] if content[done:] else parts
