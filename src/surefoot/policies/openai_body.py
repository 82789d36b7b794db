"""What is asked of an OpenAI-compatible server: a sample request as the body of a call."""

from __future__ import annotations

from typing import Any, Literal

from surefoot.protocols import SampleRequest
from surefoot.records import Message

Mode = Literal["chat", "completions"]
"""Endpoint: ``/chat/completions`` or ``/completions``."""
Dialect = Literal["openai", "vllm"]

_NEUTRAL = {
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""What vLLM otherwise takes from the model's ``generation_config.json``: tokens would then be drawn by rules
that :class:`Sampling` does not tell of, and not as :class:`TransformersPolicy` draws them."""


def body_of(request: SampleRequest, *, model: str, mode: Mode, dialect: Dialect) -> dict[str, Any]:
    """The fields of a call, without those that the user adds."""
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": model,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "seed": request.seed,
    }
    if isinstance(request.prompt, str) and mode == "completions":
        body["prompt"] = request.prompt + request.prefix
    else:
        prompt = request.prompt
        messages = (Message(role="user", content=prompt),) if isinstance(prompt, str) else prompt
        body["messages"] = [openai_message(message) for message in messages]
        if request.prefix:
            body["messages"].append({"role": "assistant", "content": request.prefix})
            body |= {"continue_final_message": True, "add_generation_prompt": False}
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if dialect == "vllm":
        body |= {"n": request.n, "include_stop_str_in_output": True, "return_token_ids": True, **_NEUTRAL}
    return body


def openai_message(message: Message) -> dict[str, Any]:
    """A message in the OpenAI shape."""
    sent: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        sent["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        sent["tool_call_id"] = message.tool_call_id
    return sent
