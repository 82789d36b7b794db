"""From a problem to the tokens of a prompt: format, control tokens, chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from surefoot.errors import PolicyError, SurefootError
from surefoot.records import Message, Problem, ToolCall

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_COMMON = (
    r"<(?=[|｜])"  # ChatML, Llama 3, Qwen, Phi, GLM, DeepSeek
    r"|<(?=/?(?:s|bos|eos|pad|unk|mask|start_of_turn|end_of_turn|start_of_image|end_of_image"
    r"|think|tool_call|tool_response|tools)>)"  # Llama 2, Gemma, Qwen
    r"|<(?=</?SYS>>)"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|CALL_ID|ARGS|THINK"
    r"|IMG|PREFIX|MIDDLE|SUFFIX)\])"  # Mistral
)
"""Where a control token of a common chat template begins. Servers read these inside a message as well."""


@dataclass(frozen=True, kw_only=True)
class PromptFormat:
    """``{problem}`` in ``template`` is replaced by the problem's text.

    With ``chat`` the result is a user message (after ``system``, if there is one) for the chat template;
    without it the text goes to the model as it stands.
    """

    template: str = "{problem}\n"
    """Prompt; `{problem}` stands for the problem's text."""
    chat: bool = False
    """Send the prompt as a user message through the chat template."""
    system: str | None = None
    """System message; needs `chat`."""

    def __post_init__(self) -> None:
        if "{problem}" not in self.template:
            raise ValueError("the prompt template must contain '{problem}'")
        if self.system is not None and not self.chat:
            raise ValueError("'system' needs 'chat'; put it into the template otherwise")

    def render(self, problem: Problem) -> str | tuple[Message, ...]:
        """The prompt for ``problem``."""
        text = self.template.replace("{problem}", problem.text)
        if not self.chat:
            return text
        system = (Message(role="system", content=self.system),) if self.system is not None else ()
        return (*system, Message(role="user", content=text))


def render_chat(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    *,
    generation: bool = True,
    error: type[SurefootError] = PolicyError,
) -> str:
    """``messages`` as the tokenizer's chat template writes them.

    With ``generation`` the text ends with the opening of the assistant's next message. Raises ``error`` if
    the tokenizer has no chat template.
    """
    if not tokenizer.chat_template:
        raise error("the tokenizer has no chat template; use a prompt format without chat, or set a template")
    rows = chat_rows(messages)
    return str(tokenizer.apply_chat_template(rows, tokenize=False, add_generation_prompt=generation))


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase,
    prompt: str | Sequence[Message],
    prefix: str = "",
    *,
    error: type[SurefootError] = PolicyError,
) -> tuple[int, ...]:
    """Token ids of a prompt and the beginning of its completion; raises like :func:`render_chat`."""
    if isinstance(prompt, str):
        return tuple(tokenizer(prompt + prefix)["input_ids"])
    # The template writes the special tokens itself: a second beginning of text would be read too.
    text = render_chat(tokenizer, prompt, error=error) + prefix
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def chat_rows(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages in the shape that chat templates read.

    ``content`` is always a string, empty where a message has only tool calls: templates add it to text
    (``'...' + message['content']``), which fails for ``None`` and for a missing key. The keys ``tool_calls``
    and ``tool_call_id`` are left out where a message has none, since templates ask for their presence
    (Llama 3.1: ``'tool_calls' in message``). A call's arguments are an object where their text is one,
    because templates write them with ``tojson``; other text stays as the model wrote it.
    """
    return [_row(message) for message in messages]


def break_control_tokens(text: str, special: Collection[str] = ()) -> str:
    """``text`` with a space after the first character of each control token, which is then read as text.

    For text shown to a model as material: it must not open a turn, end one, or stand for a special token.
    Control tokens of common chat templates (``<|im_end|>``, ``[/INST]`` ...) are known; ``special`` are
    further ones, say all of a tokenizer (:func:`special_tokens`). A token of one character cannot be broken
    and stays.
    """
    return _pattern(frozenset(special)).sub(lambda match: f"{match[0]} ", text)


def special_tokens(tokenizer: PreTrainedTokenizerBase | None) -> frozenset[str]:
    """Texts that ``tokenizer`` reads as special tokens wherever they stand; none without a tokenizer."""
    if tokenizer is None:
        return frozenset()
    added = tokenizer.added_tokens_decoder.values()
    return frozenset(map(str, [*tokenizer.all_special_tokens, *(token for token in added if token.special)]))


def _row(message: Message) -> dict[str, Any]:
    row: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if message.tool_calls:
        row["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        row["tool_call_id"] = message.tool_call_id
    return row


def _call(call: ToolCall) -> dict[str, Any]:
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        arguments = None
    function = {"name": call.name, "arguments": arguments if isinstance(arguments, dict) else call.arguments}
    return {"type": "function", "function": function} | ({"id": call.id} if call.id else {})


@lru_cache(maxsize=32)
def _pattern(special: frozenset[str]) -> re.Pattern[str]:
    """Matches the part of a token up to its first visible character."""
    pieces = [_COMMON]
    for token in sorted(special):
        first = len(token) - len(token.lstrip()) + 1
        if len(token) > first:
            pieces.append(f"{re.escape(token[:first])}(?={re.escape(token[first:])})")
    return re.compile("|".join(pieces))
