"""Advantage estimators: the baseline subtracted from returns. One file each, chosen by the tag ``kind``."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import BaseModel, Field

from surefoot.rl.advantage.estimator import Estimator
from surefoot.rl.advantage.gae import Gae
from surefoot.rl.advantage.group import Group
from surefoot.rl.advantage.leave_one_out import LeaveOneOut
from surefoot.rl.advantage.reinforce import Reinforce

__all__ = ["ADVANTAGES", "Advantage", "Estimator", "Gae", "Group", "LeaveOneOut", "Reinforce"]

Advantage: TypeAlias = Annotated[Group | LeaveOneOut | Gae | Reinforce, Field(discriminator="kind")]
"""Any estimator, as a field of the settings."""

ADVANTAGES: dict[str, type[BaseModel]] = {
    kind.model_fields["kind"].default: kind for kind in (Group, LeaveOneOut, Gae, Reinforce)
}
"""Estimators by their tag."""
