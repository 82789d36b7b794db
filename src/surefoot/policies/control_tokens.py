"""Text shown to a model as material: it must not open a turn, end one, or stand for any special token."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from typing import TYPE_CHECKING

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


def break_control_tokens(text: str, special: Collection[str] = ()) -> str:
    """``text`` with a space after the first character of each control token, which is then read as text.

    Those of common chat templates (``<|im_end|>``, ``[/INST]`` ...) are known; ``special`` are further ones,
    say all of a tokenizer (:func:`special_tokens`). One of a single character cannot be broken and stays.
    """
    return _pattern(frozenset(special)).sub(lambda found: f"{found[0]} ", text)


def special_tokens(tokenizer: PreTrainedTokenizerBase | None) -> frozenset[str]:
    """Texts that ``tokenizer`` reads as special tokens wherever they stand; none without a tokenizer."""
    if tokenizer is None:
        return frozenset()
    added = tokenizer.added_tokens_decoder.values()
    return frozenset(map(str, [*tokenizer.all_special_tokens, *(token for token in added if token.special)]))


@lru_cache(maxsize=32)
def _pattern(special: frozenset[str]) -> re.Pattern[str]:
    """Finds the part of a token up to its first visible character."""
    pieces = [_COMMON]
    for token in sorted(special):
        cut = len(token) - len(token.lstrip()) + 1
        if len(token) > cut:
            pieces.append(f"{re.escape(token[:cut])}(?={re.escape(token[cut:])})")
    return re.compile("|".join(pieces))
