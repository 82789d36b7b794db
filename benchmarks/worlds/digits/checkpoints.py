"""The stored models of the digit world, and their tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_SHIPPED = Path(__file__).parent / "shipped"

POLICY = _SHIPPED / "policy"
"""A small Llama whose training was stopped early: it knows the format and makes mistakes."""

TRUNK = _SHIPPED / "trunk"
"""A Llama trained for longer on texts of the same world: what reward models of this world start from."""

PRM = _SHIPPED / "prm"
"""A reward model trained from :data:`TRUNK`; its ``recipe.json`` has the training."""

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
PIECES = (
    *(str(digit) for digit in range(10)),
    *("Start with ", ". Add ", ". Subtract ", ". Multiply by ", ".\n", " + ", " - ", " * ", " = ", "\n"),
    *("Now ", "Answer: ", ", no, "),
)


def build_tokenizer(pieces: Sequence[str] = PIECES) -> PreTrainedTokenizerFast:
    """A word-level fast tokenizer: a token is a word with the spaces around it, so that text round-trips."""
    vocabulary = {piece: number for number, piece in enumerate((*SPECIAL, *pieces))}
    longest_first = sorted(pieces, key=len, reverse=True)
    pattern = "|".join("".join(f"\\{c}" if c in ".+*-" else c for c in piece) for piece in longest_first)
    return word_level_tokenizer(vocabulary, pattern)


def word_level_tokenizer(
    vocabulary: Mapping[str, int], pattern: str, **settings: bool
) -> PreTrainedTokenizerFast:
    """A fast tokenizer whose tokens are the matches of ``pattern``; ``<s>`` goes before every text.

    ``vocabulary`` begins with ``SPECIAL``; ``settings`` are kept in the tokenizer's configuration.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel(dict(vocabulary), unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", vocabulary["<s>"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        **settings,
    )
