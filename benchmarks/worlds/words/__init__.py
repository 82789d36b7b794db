"""Word problems in English with exact truth of every step; see README.md."""

from benchmarks.worlds.words.problems import (
    Quantity,
    Setting,
    WordProblem,
    draw_problem,
    draw_problems,
    read_problem,
)
from benchmarks.worlds.words.truth import StepTruth, WordVerifier, judge_steps, slips

__all__ = [
    "Quantity",
    "Setting",
    "StepTruth",
    "WordProblem",
    "WordVerifier",
    "draw_problem",
    "draw_problems",
    "judge_steps",
    "read_problem",
    "slips",
]
