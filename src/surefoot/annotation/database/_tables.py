"""The tables. A change here needs a migration: a test compares the two.

Rows of a project carry ``project_id``, and foreign keys to problems, traces and items include it, so that the
database itself refuses a label of one project on an item of another. ``payload`` columns hold records as
pydantic writes them; what is asked for in queries has a column of its own beside it.
"""

from __future__ import annotations

from surefoot.annotation.database._columns import METADATA
from surefoot.annotation.database._tables_accounts import (
    api_keys,
    audit_log,
    members,
    projects,
    sessions,
    user_roles,
    users,
)
from surefoot.annotation.database._tables_gateway import counters, gateway_candidates, gateway_requests
from surefoot.annotation.database._tables_labels import (
    adjudications,
    assignments,
    choices,
    labels,
    remarks,
    submissions,
)
from surefoot.annotation.database._tables_records import (
    item_traces,
    items,
    priorities,
    problems,
    step_scores,
    traces,
)

__all__ = [
    "METADATA",
    "adjudications",
    "api_keys",
    "assignments",
    "audit_log",
    "choices",
    "counters",
    "gateway_candidates",
    "gateway_requests",
    "item_traces",
    "items",
    "labels",
    "members",
    "priorities",
    "problems",
    "projects",
    "remarks",
    "sessions",
    "step_scores",
    "submissions",
    "traces",
    "user_roles",
    "users",
]
