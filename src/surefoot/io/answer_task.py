"""Task of the bounded process behind ``answers``: reads two answers with math-verify and compares them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def load_comparison() -> Callable[[dict[str, str]], bool]:
    """Import math-verify; returns what compares the ``answer`` with the ``reference`` of one question."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    def read(text: str) -> list[Any]:
        # No time limits of its own anywhere below: they rest on SIGALRM, and the parent holds the clock.
        latex = text if "$" in text else f"${text}$"
        found: list[Any] = parse(latex, extraction_config=[LatexExtractionConfig()], parsing_timeout=None)
        if all(isinstance(item, str) for item in found):
            # "2**10" is no LaTeX. This reader takes digits and arithmetic operators alone.
            found = parse(text, extraction_config=[ExprExtractionConfig()], parsing_timeout=None) or found
        return found

    def compare(pair: dict[str, str]) -> bool:
        gold, target = read(pair["reference"]), read(pair["answer"])
        return bool(verify(gold, target, timeout_seconds=None, raise_on_error=True))

    # Fills the parser's tables, so that the first pair is not charged for them.
    compare({"answer": "x+1", "reference": "1+x"})
    return compare
