"""Settings of audits that the command line offers; importing them is cheap."""

from __future__ import annotations

from pydantic import Field

from surefoot.records import FrozenModel


class GamingSettings(FrozenModel):
    """Edits of solutions, and the search against the scorer."""

    tolerance: float = Field(
        default=0.05, ge=0, description="How far a style edit may move the mean trace score."
    )
    must_fall: float = Field(
        default=0.9, ge=0, le=1, description="Share of correct traces whose score broken logic must lower."
    )
    rounds: int = Field(
        default=12, ge=0, description="Rounds of hill climbing against the scorer; 0 = no search."
    )
    proposals: int = Field(default=8, ge=1, description="Edits proposed for each incorrect trace per round.")
    versions: int = Field(
        default=64, ge=1, description="Random versions of each incorrect trace for best-of-N."
    )
    depth: int = Field(default=3, ge=1, description="Random edits in a version, at most.")
    attacked: int = Field(
        default=100, ge=1, description="Incorrect traces that the search starts from, at most."
    )


GAMING = GamingSettings()
