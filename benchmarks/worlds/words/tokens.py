"""The tokenizer of the lab: a token is a word, a digit or a sign, and common phrases are one token."""

from __future__ import annotations

import random
import re
from functools import cache
from typing import TYPE_CHECKING, Final

from benchmarks.worlds.digits.checkpoints import SPECIAL, word_level_tokenizer
from surefoot.lab import Setting, draw_problem, worked_solution
from surefoot.lab.problems import NAMES

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

NO: Final = " No, "
"""Takes a wrong line back, in the texts of a trunk; the corrected line follows."""
_PHRASES: Final = (
    *(" more than", " fewer than", " times as many as", " as many as", "How many", "I think it is"),
    *("There are left", "In all there are", "Answer:"),
)
_GLUE: Final = rf"(?: (?={'|'.join(NAMES)}|[0-9]|(?![\s\S])))?"
"""A space before a name or digit (or at the end, where one may follow) belongs to the token before it, so
that names and digits have one form.

A name and its verb are one token: what comes next in an earlier sentence then follows the same token, which
small models learn to copy several times sooner than what comes after two.
"""
_PIECE: Final = "|".join(
    (
        f"(?:{'|'.join(NAMES)}) (?:has|counts){_GLUE}",
        *NAMES,
        "[0-9]",
        NO,
        "'s ",
        *(f" ?{phrase.strip()}{_GLUE}" for phrase in _PHRASES),
        " [-+*/=] ",
        "\\n",
        f"[.?]{_GLUE}",
        f" ?[A-Za-z]+{_GLUE}",
    )
)
_PATTERN: Final = re.compile(_PIECE)


@cache
def vocabulary() -> dict[str, int]:
    """Every token with its number: special ones, then pieces in the order of the alphabet."""
    pieces = {*"0123456789\n", NO, "'s "}
    for held_out in (False, True):
        rng = random.Random(0)
        setting = Setting(held_out=held_out, opinion=0.5, distractor=0.5)
        for _ in range(6000):
            problem = draw_problem(rng, setting)
            pieces.update(_PATTERN.findall(f"{problem.text}\n{worked_solution(problem.record())}"))
    return {piece: number for number, piece in enumerate((*SPECIAL, *sorted(pieces)))}


def encode(text: str) -> list[int]:
    """Token ids of a text, without begin and end marks. Raises ``KeyError`` for an unknown word."""
    numbers = vocabulary()
    return [numbers[piece] for piece in _PATTERN.findall(text)]


def decode(ids: list[int]) -> str:
    """The text of ids, up to the first special one."""
    pieces = list(vocabulary())
    end = next((at for at, token in enumerate(ids) if token < len(SPECIAL)), len(ids))
    return "".join(pieces[token] for token in ids[:end])


def build_words_tokenizer() -> PreTrainedTokenizerFast:
    """The same as a fast tokenizer of transformers.

    Its models have seen no word but these, so it says that text with another one is not for them.
    """
    return word_level_tokenizer(vocabulary(), _PIECE, closed_vocabulary=True)
