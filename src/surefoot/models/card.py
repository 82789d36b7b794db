"""``surefoot.json``: what a checkpoint is, how it reads and what its scores mean."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from surefoot.errors import CheckpointError
from surefoot.models.encoding import Encoding
from surefoot.records import LabelKind
from surefoot.scores import Aggregator

CARD = "surefoot.json"
CALIBRATION = "calibration.json"
"""Beside the card, where scores were calibrated (:mod:`surefoot.models.kinds.calibrated`)."""

SERVER = "server"
"""Family of scores that come from a server, which does not say what they mean."""

Head = Literal["logit", "linear", "classes"]
"""logit: one output, score = its sigmoid; linear: one output that is the score itself, not bounded; classes:
three outputs (bad, neutral, good), score = chance of good, or of good or neutral."""


class CheckpointCard(BaseModel):
    """``surefoot.json``; for a published checkpoint, the same facts as its family knows them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    family: str = "surefoot"
    """``surefoot`` for checkpoints trained here, else the published family's name."""
    kind: Literal["prm", "orm"]
    encoding: Encoding = Encoding()
    aggregation: Aggregator = "min"
    """How step scores become one number unless the caller says otherwise."""
    score_means: LabelKind | Literal["outcome"] = "value"
    label_source: str
    base: str
    """Name of the trunk that training started from."""
    frozen_trunk: bool = False
    head: Head = Field(default="logit", exclude_if=lambda value: value == "logit")
    neutral: Literal["good", "bad"] = Field(default="good", exclude_if=lambda value: value == "good")
    """Whether a ``classes`` head counts the chance of "neutral" to the score (Lightman et al., arXiv
    2305.20050, report both); no other head knows the class."""


def read_card(directory: Path) -> CheckpointCard:
    """The card of a checkpoint. Raises ``CheckpointError`` if it is absent or broken."""
    try:
        return CheckpointCard.model_validate_json((directory / CARD).read_bytes())
    except OSError as error:
        raise CheckpointError(f"{directory} is no surefoot checkpoint: {CARD} is missing") from error
    except ValidationError as error:
        raise CheckpointError(f"{directory / CARD}: {error}") from error
