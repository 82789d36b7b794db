"""Words of the dialects in which messages are written: one table for all readers.

Dialects: OpenAI's chat completions and Responses, vLLM, SGLang, OpenRouter and LiteLLM, Ollama, Anthropic,
Bedrock's Converse, Google's Gemini, Mistral, Vercel's AI SDK (model and UI messages), LangChain, the GenAI
conventions of OpenTelemetry, OpenInference, Inspect, AgentDojo, smolagents, ShareGPT with its function form,
and mini-swe-agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeVar

PartKind = Literal["text", "reasoning", "call", "result", "both", "media", "mark"]
"""Kinds of parts of a message; ``both`` is a call together with its result, ``mark`` is a separator."""

T = TypeVar("T", bound=str)


def _by_word(table: Mapping[T, str]) -> dict[str, T]:
    return {word: name for name, words in table.items() for word in words.split()}


ROLES: Final = _by_word(
    {
        "system": "system",
        "developer": "developer",
        "user": "user human",
        "assistant": "assistant gpt ai model chatbot bot tool-call tool_call function_call",
        "tool": "tool function observation tool-response tool_response environment exit",
    }
)
"""Roles by their name in small letters, without LangChain's endings ``Message`` and ``MessageChunk``."""
CALL_ROLES: Final = {"function_call", "tool-call", "tool_call"}
"""Roles of messages whose text is a call in JSON."""

_PARTS: Final[Mapping[PartKind, str]] = {
    "text": "text text-plain input_text output_text summary_text reasoning_text refusal "
    "guardContent citationsContent",
    "reasoning": "reasoning thinking redacted_thinking reasoning.text reasoning.summary "
    "reasoning.encrypted reasoningContent thought",
    "call": "tool_use toolUse tool_call tool-call function_call functionCall function "
    "server_tool_use mcp_tool_use custom_tool_call executableCode invalid_tool_call",
    "result": "tool_result toolResult tool-result tool_call_response function_call_output "
    "functionResponse custom_tool_call_output codeExecutionResult tool-error",
    "both": "dynamic-tool tool-invocation",
    "media": "image image_url input_image image-url audio audio_url input_audio video video_url file "
    "input_file document document_url inlineData inline_data fileData file_data blob uri media",
    "mark": "step-start cachePoint",
}
PART_KINDS: Final = _by_word(_PARTS)
"""Kinds of parts by their ``type``, or in a dialect without types by the field that holds them."""

TEXTS: Final = ("text", "content", "thinking", "reasoning", "value", "refusal", "reasoningText")
"""Fields of a part's text, which may be a text, an object with one, or a list of such parts."""
CONTENTS: Final = ("content", "parts", "contents", "value", "text", "message")
"""Fields of a message's content."""
WRAPPERS: Final = ("message", "content", "kwargs", "data", "message_content", "tool_call", "toolInvocation")
"""Fields around a whole message, part or call: OpenInference, LangChain, the AI SDK."""
CALLS: Final = ("tool_calls", "toolCalls", "invalid_tool_calls", "function_call")
"""Fields of a message's calls."""
CALL_BODIES: Final = ("function", "custom", "tool_call", "toolInvocation")
"""Fields of a call around its name and arguments."""
NAMES: Final = ("name", "toolName", "tool_name", "function_name", "function")
CALL_IDS: Final = ("call_id", "callId", "toolCallId", "toolUseId", "tool_call_id", "id")
RESULT_IDS: Final = ("tool_call_id", "tool_use_id", "toolCallId", "toolUseId", "call_id", "callId", "id")
OWN_CALLS: Final = {"executableCode"}
"""Calls of a provider's own tools: without names, and with their fields as the arguments."""
ARGUMENTS: Final = ("arguments", "input", "args", "parameters", "rawInput", "action")
OUTPUTS: Final = ("output", "outputs", "result", "results", "response", "errorText")
"""Fields of a result's content, in a result or in the call itself."""
FAILED_STATES: Final = ("output-error", "output-denied")
OUTPUT_TYPES: Final = {"json", "content", "text", "error-text", "error-json", "execution-denied"}
"""States of the AI SDK's calls, and types of its outputs."""
SCHEMAS: Final = ("parameters", "input_schema", "inputSchema", "args_schema", "params")
"""Fields of a tool's JSON schema."""

MEDIA_BODIES: Final = ("image_url", "source", "file", "input_audio", "image", "audio")
"""Fields of an attachment around its address, or of the address itself."""
REFERENCES: Final = ("url", "uri", "fileUri", "file_uri", "path", "file_id")
ADDRESSES: Final = (*REFERENCES[:-1], "file_data", "file_id", "data", "content", "bytes", "base64")
"""Fields of an attachment's address or bytes; with one of ``REFERENCES`` it embeds none."""
MEDIA_TYPES: Final = ("media_type", "mime_type", "mimeType", "mediaType")

REASONING: Final = ("reasoning_content", "reasoning", "thinking")
"""Fields of a message's reasoning as text; ``REASONING_PARTS`` are lists of parts."""
REASONING_PARTS: Final = ("reasoning_details", "thinking_blocks")

NO_CONTENT: Final = frozenset(
    {
        "additional_kwargs", "annotations", "audio", "example", "function_call", "id", "index", "lc",
        "logprobs", "metadata", "model", "object", "provider_specific_fields", "response_metadata", "source",
        "status", "tool_call", "type", "usage_metadata", "weight",
    }
)  # fmt: skip
"""Fields of a message without information about the process, or which other fields of the record hold."""
