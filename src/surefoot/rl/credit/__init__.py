"""Credit rules: which rewards each token's return is made of. One file each, chosen by the tag ``rule``."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import BaseModel, Field

from surefoot.rl.credit.clip_delta import ClipDelta
from surefoot.rl.credit.effective import Effective
from surefoot.rl.credit.implicit import Implicit
from surefoot.rl.credit.min_form import MinForm
from surefoot.rl.credit.mixed import Mixed
from surefoot.rl.credit.outcome import Outcome
from surefoot.rl.credit.rule import CreditRule, Need, RewardStream, ScoredRollout
from surefoot.rl.credit.summed import Summed

__all__ = [
    "CREDITS",
    "ClipDelta",
    "Credit",
    "CreditRule",
    "Effective",
    "Implicit",
    "MinForm",
    "Mixed",
    "Need",
    "Outcome",
    "RewardStream",
    "ScoredRollout",
    "Summed",
]

Credit: TypeAlias = Annotated[
    Outcome | Summed | MinForm | ClipDelta | Effective | Implicit | Mixed, Field(discriminator="rule")
]
"""Any rule, as a field of the settings."""

CREDITS: dict[str, type[BaseModel]] = {
    kind.model_fields["rule"].default: kind
    for kind in (Outcome, Summed, MinForm, ClipDelta, Effective, Implicit, Mixed)
}
"""Rules by their tag."""
