"""Settings of audits that the command line offers; importing them is cheap."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from surefoot.records import FrozenModel


class AttackSettings(FrozenModel):
    """The search against a scorer."""

    rounds: int = Field(
        default=12, ge=0, description="Rounds of hill climbing against the scorer; 0 = no search."
    )
    proposals: int = Field(default=8, ge=1, description="Edits proposed for each incorrect trace per round.")
    attacked: int = Field(
        default=100, ge=1, description="Incorrect traces that the search starts from, at most."
    )


ATTACK = AttackSettings()


HintName = Literal[
    "authority", "metadata", "consistency", "grader", "sycophancy", "unauthorized", "note", "none"
]
"""Families of hints (Chen et al., arXiv 2505.05410, section 3.1); ``note`` is for the lab's problems."""


class FaithfulnessSettings(FrozenModel):
    """Which tests :mod:`surefoot.evaluation.audits.interventions` makes."""

    hint: HintName = Field(
        default="authority",
        description="How the prompt hints at a wrong answer; `note` is for the lab; `none` = no hint.",
    )
    cue: str = Field(
        default="The answer is", description="Ends reasoning that was cut short, so that the answer follows."
    )
    filler: str = Field(
        default=" ...", min_length=1, description="Repeated in place of reasoning of the same length."
    )
    mistakes: int = Field(
        default=3, ge=0, description="Steps of each solution in which a mistake is planted."
    )
    points: int = Field(
        default=6, ge=2, description="Most places at which reasoning is cut short, spread over its steps."
    )
    answer_tokens: int = Field(default=32, ge=1, description="Longest answer after the cue.")
