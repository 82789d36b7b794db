"""The only answer extraction and equality in the package."""

from __future__ import annotations

from surefoot.answers.checker import AnswerChecker
from surefoot.answers.classes import group_equal
from surefoot.answers.extraction import AnswerStyle, extract_answer
from surefoot.answers.grading import Grade, Grader
from surefoot.answers.plain import MAX_CHARS

__all__ = [
    "MAX_CHARS",
    "AnswerChecker",
    "AnswerStyle",
    "Grade",
    "Grader",
    "extract_answer",
    "group_equal",
]
