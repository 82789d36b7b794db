"""Scores as coloured cells: ten colours that also differ in brightness, and always the number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from surefoot.errors import ScoreError
from surefoot.records import StepScores
from surefoot.scores import AGGREGATORS, aggregate

BUCKETS: Final = 10


def strip(scores: Sequence[float | None], first_error: int | None = None) -> list[dict[str, Any]]:
    """Cells of a strip, one per step: score, colour class 0 (low) to 9 (high), whether the first error.

    Scores that are not probabilities (one is below 0 or above 1) are coloured over [-1, 1].
    """
    numbers = [score for score in scores if score is not None]
    signed = any(score < 0 or score > 1 for score in numbers)
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
    """The step scores aggregated by every rule; ``None`` where a rule does not apply."""
    values: dict[str, float | None] = {}
    for how in AGGREGATORS:
        try:
            values[how] = aggregate(scores, how)
        except ScoreError:
            values[how] = None
    return values


def scorer_strips(scores: Sequence[StepScores], first_error: int | None) -> list[dict[str, Any]]:
    """One strip per scorer, with its aggregated scores."""
    return [
        {
            "scorer": record.scorer,
            "cells": strip(record.scores, first_error),
            "aggregates": aggregates(record.scores),
            "unscored_reason": record.unscored_reason,
        }
        for record in scores
    ]


def _bucket(share: float) -> int:
    if share != share:
        return 0
    return min(BUCKETS - 1, max(0, int(share * BUCKETS)))
