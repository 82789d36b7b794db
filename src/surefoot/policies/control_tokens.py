"""Text that a model would read as a special token or as the marker between steps.

Problems and steps are written by others. In them such text is broken by a space (``<|im_end|>`` becomes
``< |im_end|>``) and so read as the text it is, in training and in scoring alike: it opens no turn, ends none,
and is not taken for the end of a step.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

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
