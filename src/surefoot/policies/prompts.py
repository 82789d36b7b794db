"""From a problem to the tokens of a prompt: format, control tokens, chat template.

Problems and steps are written by others. Text in them that a model would read as a special token, or as the
marker between steps, is broken by a space (``<|im_end|>`` becomes ``< |im_end|>``) and so read as the text it
is, in training and in scoring alike: it opens no turn, ends none, and is not taken for the end of a step.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pydantic_core import from_json

from surefoot.errors import PolicyError, SurefootError
from surefoot.messages import call_arguments
from surefoot.printable import quoted
from surefoot.records import Message, Problem, Reasoning, Tool, ToolCall
from surefoot.segment.spans import Span

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_CHAT_TEMPLATES = (
    r"<(?=[|｜])",  # ChatML, Llama 3, Qwen, Phi, GLM, DeepSeek
    r"<(?=/?(?:s|bos|eos|pad|unk|mask|start_of_turn|end_of_turn|start_of_image|end_of_image"
    r"|think|tool_call|tool_response|tools)>)",  # Llama 2, Gemma, Qwen
    r"<(?=</?SYS>>)",
    r"\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|CALL_ID|ARGS|THINK"
    r"|IMG|PREFIX|MIDDLE|SUFFIX)\])",  # Mistral
)
"""Where a control token of a common chat template begins. Servers read these inside a message as well."""


class ControlTokens:
    """Text that is not allowed: ``special`` tokens, and ``markers`` that are not part of a word.

    With ``chat_templates`` the control tokens of common chat templates (``<|im_end|>``, ``[/INST]`` ...) too,
    for a text whose reader's tokenizer is not known. A token of one visible character cannot be broken and
    stays; so does a marker of white space alone.
    """

    def __init__(
        self, special: Iterable[str] = (), markers: Iterable[str] = (), *, chat_templates: bool = False
    ) -> None:
        heads: dict[str, list[str]] = defaultdict(list)
        for token in special:
            first = len(token) - len(token.lstrip()) + 1
            if len(token) > first:
                heads[re.escape(token[:first])].append(re.escape(token[first:]))
        for marker in filter(lambda text: len(text) > 1, map(str.strip, markers)):
            left_edge = r"(?<!\w)" if re.match(r"\w", marker) else ""
            right_edge = r"(?!\w)" if re.search(r"\w\Z", marker) else ""
            heads[left_edge + re.escape(marker[0])].append(re.escape(marker[1:]) + right_edge)
        # Only the part up to the first visible character is matched, so that tokens may overlap.
        pieces = [f"{head}(?={'|'.join(sorted(tails))})" for head, tails in sorted(heads.items())]
        pieces.extend(_CHAT_TEMPLATES if chat_templates else ())
        self._pattern = re.compile("|".join(pieces) or r"(?!)")

    def broken(self, text: str) -> str:
        """``text`` with a space after the first visible character of each."""
        return self._pattern.sub(lambda match: f"{match[0]} ", text)

    def broken_with_spans(self, text: str, spans: Sequence[Span]) -> tuple[str, list[Span]]:
        """The same, and where ``spans`` of ``text`` are then; spans that touch still do."""
        added = [match.end() for match in self._pattern.finditer(text)]
        if not added:
            return text, list(spans)
        return self.broken(text), [
            (start + bisect_left(added, start), end + bisect_left(added, end)) for start, end in spans
        ]


def control_tokens(tokenizer: PreTrainedTokenizerBase, markers: Iterable[str] = ()) -> ControlTokens:
    """The special tokens that ``tokenizer`` lists, and ``markers``."""
    return _cached(special_tokens(tokenizer), tuple(markers), False)


def break_control_tokens(text: str, special: Collection[str] = ()) -> str:
    """``text`` with each control token broken, for a text shown to a model as material.

    Control tokens of common chat templates are known; ``special`` are further ones, say all of a tokenizer
    (:func:`special_tokens`).
    """
    return _cached(frozenset(special), (), True).broken(text)


def special_tokens(tokenizer: PreTrainedTokenizerBase | None) -> frozenset[str]:
    """Texts that ``tokenizer`` reads as special tokens wherever they stand; none without a tokenizer."""
    if tokenizer is None:
        return frozenset()
    added = tokenizer.added_tokens_decoder.values()
    return frozenset(map(str, [*tokenizer.all_special_tokens, *(token for token in added if token.special)]))


@lru_cache(maxsize=32)
def _cached(special: frozenset[str], markers: tuple[str, ...], chat_templates: bool) -> ControlTokens:
    return ControlTokens(special, markers, chat_templates=chat_templates)


@dataclass(frozen=True, kw_only=True)
class PromptFormat:
    """``{problem}`` in ``template`` is replaced by the problem's text.

    With ``chat`` the result is a user message (after ``system``, if there is one) for the chat template;
    without it the text goes to the model as it stands.
    """

    template: str = "{problem}\n"
    """Prompt; `{problem}` is replaced by the problem's text."""
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


@dataclass(frozen=True, kw_only=True)
class ChatSupport:
    """What of a conversation a chat template writes, found by rendering an example.

    What a template drops is written into the message's content instead, in the form of the Hermes and Qwen
    templates, so that no two different conversations look alike to a model.
    """

    calls: bool = True
    """Several tool calls of one message, each with name and arguments."""
    results: bool = True
    """Messages of role ``tool``."""
    reasoning: bool = True
    """``reasoning_content`` of every assistant message, not of the last one only."""
    think_tags: bool = True
    """``<think>`` inside the content of every assistant message; else the tags are written in brackets."""
    tools: bool = True
    """The tools' schemas."""


_EXAMPLE_TOOL = Tool(name="qtoolq", description="qaboutq", parameters='{"type": "object", "properties": {}}')


def chat_support(tokenizer: PreTrainedTokenizerBase) -> ChatSupport:
    """What ``tokenizer``'s chat template shows; examined once per template."""
    template = str(tokenizer.chat_template)
    cached = _SUPPORT.get(tokenizer)
    if cached is None or cached[0] != template:
        _SUPPORT[tokenizer] = cached = (template, _examine(tokenizer))
    return cached[1]


_SUPPORT: WeakKeyDictionary[PreTrainedTokenizerBase, tuple[str, ChatSupport]] = WeakKeyDictionary()


def _examine(tokenizer: PreTrainedTokenizerBase) -> ChatSupport:
    user = Message(role="user", content="quserq")
    calls = tuple(
        ToolCall(id=f"call{n:05}", name=f"qname{n}q", arguments=f'{{"k": "qarg{n}q"}}') for n in (1, 2)
    )
    called = Message(role="assistant", tool_calls=calls)
    results = tuple(Message(role="tool", content=f"qresult{n}q", tool_call_id=f"call{n:05}") for n in (1, 2))
    done = Message(role="assistant", content="qdoneq")

    def shows(words: Sequence[str], messages: Sequence[Message], support: ChatSupport, **more: Any) -> bool:
        try:
            text = str(tokenizer.apply_chat_template(chat_rows(messages, support), tokenize=False, **more))
        except Exception:  # templates raise anything for unsupported messages
            return False
        return all(word in text for word in words)

    support = ChatSupport(calls=False, reasoning=False, think_tags=False, tools=False)
    # Results after calls written as text: some templates take messages of role tool only after real calls.
    in_call = shows(
        ["qname1q", "qarg1q", "qname2q", "qarg2q", "qresult1q", "qresult2q", "qdoneq"],
        (user, called, *results, done),
        replace(support, calls=True),
    )
    apart = in_call or shows(["qresult1q", "qdoneq"], (user, called, results[0], done), support)
    support = replace(support, calls=in_call, results=apart)
    thinking = [
        message
        for n in (1, 2)
        for message in (
            Message(role="user", content=f"quser{n}q"),
            Message(role="assistant", content=f"qsaid{n}q", reasoning=Reasoning(text=f"qthought{n}q")),
        )
    ]
    words = [f"{word}{n}q" for word in ("qsaid", "qthought") for n in (1, 2)]
    return replace(
        support,
        reasoning=shows(words, thinking, replace(support, reasoning=True)),
        think_tags=shows(words, thinking, replace(support, think_tags=True)),
        tools=shows(
            ["qtoolq", "quserq"],
            (user,),
            support,
            tools=[openai_tool(_EXAMPLE_TOOL)],
            add_generation_prompt=True,
        ),
    )


def render_chat(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    *,
    tools: Sequence[Tool] = (),
    generation: bool = True,
    error: type[SurefootError] = PolicyError,
) -> str:
    """``messages`` as the tokenizer's chat template writes them.

    With ``generation`` the text ends with the opening of the assistant's next message. Reasoning, calls and
    tool results that the template does not render are put into the contents (:class:`ChatSupport`). ``tools``
    are described where the template can.

    Raises:
        SurefootError: ``error``, if the tokenizer lacks a chat template, the template refuses the
            conversation, or a message has attachments, which only servers are sent.
    """
    if not tokenizer.chat_template:
        raise error(
            "the tokenizer lacks a chat template; use a prompt format without chat, or set a template"
        )
    held = next((attachment for message in messages for attachment in message.attachments), None)
    if held is not None:
        raise error(f"policy: a message holds an attachment ({held.kind}), and this model reads text only")
    needed = any(m.tool_calls or m.role == "tool" or _tagged(m) for m in messages) or bool(tools)
    support = chat_support(tokenizer) if needed else ChatSupport()
    schemas = [openai_tool(tool) for tool in tools] if tools and support.tools else None
    rows = chat_rows(messages, support)
    from jinja2 import TemplateError  # slow to import, and commands import this module before --help

    try:
        return str(
            tokenizer.apply_chat_template(
                rows, tools=schemas, tokenize=False, add_generation_prompt=generation
            )
        )
    except TemplateError as refused:
        raise error(f"the chat template refuses these messages: {refused}") from refused


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


MAX_UNKNOWN = 0.15
"""Largest share of unknown tokens in a text that a model may be given."""


def unknown_tokens(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], text: str = ""
) -> tuple[int, str] | None:
    """From which character on a model with ``tokenizer`` cannot read the text of ``ids``, and why.

    A tokenizer of few words turns all others into one token, so that the model reads nothing of them. That
    token may replace a word or a whole sentence, so one long sentence counts as little as one word. Too many
    give -1. One with ``closed_vocabulary`` allows none in ``text``, the beginning that ``ids`` must read.
    """
    unknown = tokenizer.unk_token_id
    if unknown is None or unknown in (tokenizer.eos_token_id, tokenizer.bos_token_id) or not ids:
        return None
    name = f"the tokenizer of {tokenizer.name_or_path or 'the model'}, which has {len(tokenizer)} tokens"
    if unknown in ids and tokenizer.init_kwargs.get("closed_vocabulary") is True:
        read = tokenizer(text, return_offsets_mapping=True)
        for token, (start, end) in zip(read["input_ids"], read["offset_mapping"], strict=True):
            if token == unknown:
                return start, f"{quoted(text[start:end].strip(), 40)!r} is unknown to {name}"
    share = ids.count(unknown) / len(ids)
    if share <= MAX_UNKNOWN:
        return None
    why = f"{share:.0%} of the tokens are unknown to {name} (limit {MAX_UNKNOWN:.0%})"
    return -1, f"{why}; choose a model that was trained on such text"


def chat_rows(messages: Sequence[Message], support: ChatSupport = ChatSupport()) -> list[dict[str, Any]]:
    """Messages in the shape that chat templates read.

    ``content`` is always a string, empty where a message has only tool calls: templates add it to text
    (``'...' + message['content']``), which fails for ``None`` and for a missing key. The keys ``tool_calls``,
    ``tool_call_id`` and ``reasoning_content`` are left out where a message has none, since templates ask for
    their presence (Llama 3.1: ``'tool_calls' in message``). A call's arguments are an object where their text
    is one, because templates write them with ``tojson``; other text stays as the model wrote it.
    """
    rows = []
    for message in messages:
        role = "user" if message.role == "tool" and not support.results else message.role
        row: dict[str, Any] = {"role": role, "content": "".join(shown_content(message, support))}
        if support.reasoning and role == "assistant" and message.readable_reasoning:
            row["reasoning_content"] = message.readable_reasoning
        if support.calls and message.tool_calls:
            row["tool_calls"] = [_call(call) for call in message.tool_calls]
        if role == "tool":
            about = {"tool_call_id": message.tool_call_id, "name": message.name}
            row |= {key: value for key, value in about.items() if value is not None}
        rows.append(row)
    return rows


def shown_content(message: Message, support: ChatSupport) -> tuple[str, str, str]:
    """Content of a message's row in three pieces: reasoning, the message's own content, calls.

    A piece is empty where the message has none or the template writes it. The content is as long as the
    original: positions in it stay.
    """
    content = message.content or ""
    if message.role == "tool" and not support.results:
        return "<tool_response>\n", content, "\n</tool_response>"
    if message.role != "assistant":
        return "", content, ""
    tags = ("<think>", "</think>") if support.think_tags else ("[think]", "[/think]")
    for tag, written in zip(("<think>", "</think>"), tags, strict=True):
        content = content.replace(tag, written)
    reasoning, calls = "", ""
    if message.readable_reasoning and not support.reasoning:
        reasoning = f"{tags[0]}\n{message.readable_reasoning}\n{tags[1]}\n\n"
    if message.tool_calls and not support.calls:
        calls = "\n".join(call_text(call) for call in message.tool_calls)
        calls = f"\n{calls}" if content else calls
    return reasoning, content, calls


def call_text(call: ToolCall) -> str:
    """A call where the template writes none: the form of the Hermes and Qwen templates."""
    name = json.dumps(call.name, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {call.arguments}}}\n</tool_call>'


def _tagged(message: Message) -> bool:
    return message.role == "assistant" and (
        bool(message.readable_reasoning) or "think>" in (message.content or "")
    )


def openai_tool(tool: Tool) -> dict[str, Any]:
    """A tool in OpenAI's format; if its schema is not a JSON object, the tool is declared without
    arguments."""
    parameters = _object(tool.parameters or "")
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    function = {"name": tool.name, "description": tool.description or "", "parameters": parameters}
    return {"type": "function", "function": function}


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = call_arguments(call)
    function = {"name": call.name, "arguments": call.arguments if arguments is None else arguments}
    return {"type": "function", "function": function} | ({"id": call.id} if call.id else {})


def _object(text: str) -> dict[str, Any] | None:
    """The JSON object that ``text`` is; ``None`` for anything else a model may have written."""
    try:
        value = from_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
