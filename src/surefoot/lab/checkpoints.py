"""The shipped models of the lab."""

from __future__ import annotations

from pathlib import Path

_SHIPPED = Path(__file__).parent / "shipped"

POLICY = _SHIPPED / "policy"
"""A small Llama that learned from pupils' solutions, and makes their mistakes; ``--policy lab``."""

PRM = _SHIPPED / "prm"
"""A reward model that started from the policy and learned from exact labels of its steps;
``load_prm("lab")``."""

ORM = _SHIPPED / "orm"
"""The same of outcomes."""
