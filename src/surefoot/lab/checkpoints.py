"""The shipped models of the lab, and their tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_SHIPPED = Path(__file__).parent / "shipped"

POLICY = _SHIPPED / "policy"
"""A small Llama that learned from pupils' solutions, and makes their mistakes; ``--policy lab``."""

PRM = _SHIPPED / "prm"
"""A reward model that started from the policy and learned from exact labels of its steps;
``load_prm("lab")``."""

ORM = _SHIPPED / "orm"
"""The same of outcomes."""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer of these models: a token is a word, a digit or a sign, and common phrases are one token.

    ``<s>`` goes before every text, and text of the lab round-trips. Models with it refuse other text.
    """
    from transformers import PreTrainedTokenizerFast

    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(POLICY)
    return tokenizer
