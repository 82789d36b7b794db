"""PRM against ORM against majority vote on the same stored samples, with the step-level truth beside it."""

from __future__ import annotations

from surefoot.quickstart.comparison.comparing import compare
from surefoot.quickstart.comparison.curves import READINGS, ScoredTraces, accuracy_curves
from surefoot.quickstart.comparison.summary import Curve, StepQuality, Summary

__all__ = [
    "READINGS",
    "Curve",
    "ScoredTraces",
    "StepQuality",
    "Summary",
    "accuracy_curves",
    "compare",
]
