"""Advantage estimators: what is taken off the returns. One file each, chosen by the tag ``kind``."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import BaseModel, Field

from surefoot.rl.advantage.estimator import Credited, Estimator
from surefoot.rl.advantage.gae import Gae
from surefoot.rl.advantage.group import Group
from surefoot.rl.advantage.leave_one_out import LeaveOneOut
from surefoot.rl.advantage.plain import Plain

__all__ = ["ADVANTAGES", "Advantage", "Credited", "Estimator", "Gae", "Group", "LeaveOneOut", "Plain"]

Advantage: TypeAlias = Annotated[Group | LeaveOneOut | Gae | Plain, Field(discriminator="kind")]
"""Any estimator, as a configuration has it."""

ADVANTAGES: dict[str, type[BaseModel]] = {
    kind.model_fields["kind"].default: kind for kind in (Group, LeaveOneOut, Gae, Plain)
}
"""Estimators by tag."""
