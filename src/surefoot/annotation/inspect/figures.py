"""How scores look: a colour of ten, which also differs in brightness, and always the number beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from surefoot.errors import ScoreError
from surefoot.records import StepScores
from surefoot.scores import AGGREGATORS, aggregate

BUCKETS: Final = 10
_SHOWN: Final = 20_000


def strip(scores: Sequence[float | None], first_error: int | None = None) -> list[dict[str, Any]]:
    """Cells of a colour strip, one a step: score, colour class 0 (low) to 9 (high), whether the first error.

    Scores that are no probabilities (one lies below 0 or above 1) are coloured over [-1, 1].
    """
    known = [score for score in scores if score is not None]
    signed = any(score < 0 or score > 1 for score in known)
    return [
        {
            "step": step,
            "score": score,
            "bucket": None if score is None else _bucket((score + 1) / 2 if signed else score),
            "first_error": step == first_error,
        }
        for step, score in enumerate(scores)
    ]


def aggregates(scores: Sequence[float | None]) -> dict[str, float | None]:
    """The step scores reduced by every rule; ``None`` where a rule does not apply."""
    found: dict[str, float | None] = {}
    for how in AGGREGATORS:
        try:
            found[how] = aggregate(scores, how)
        except ScoreError:
            found[how] = None
    return found


def scorer_strips(found: Sequence[StepScores], first_error: int | None) -> list[dict[str, Any]]:
    """One strip a scorer, with its scores reduced."""
    return [
        {
            "scorer": one.scorer,
            "cells": strip(one.scores, first_error),
            "aggregates": aggregates(one.scores),
            "unscored_reason": one.unscored_reason,
        }
        for one in found
    ]


def figure(value: float | None, digits: int = 2) -> str:
    """A number for people; an em dash for none."""
    return "—" if value is None else f"{value:.{digits}f}".replace("-", "−")


def hard_text(value: float | None) -> str:
    """A number of any size, short."""
    return "—" if value is None else f"{value:.4g}".replace("-", "−")


def axis_text(value: float) -> str:
    """A number beside an axis: three digits, thousands as k; at most eight characters."""
    if 10_000 <= abs(value) < 1_000_000:
        return f"{value / 1000:.4g}k".replace("-", "−")
    text = f"{value:.3g}"
    if "e" in text or len(text.lstrip("-")) > 7:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        text = f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return text.replace("-", "−")


def bounded(text: str | None, most: int = _SHOWN) -> str:
    """``text`` cut after ``most`` characters, saying so."""
    if text is None:
        return ""
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most} characters more)"


def _bucket(share: float) -> int:
    if share != share:
        return 0
    return min(BUCKETS - 1, max(0, int(share * BUCKETS)))
