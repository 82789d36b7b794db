"""Every queue and limit of a server is a row of the table in docs/security.md."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

from surefoot.concurrency import Shares
from surefoot.guard.records import GuardSettings
from surefoot.server.gateway.access import MOST_BUCKETS, Buckets
from surefoot.server.gateway.settings import ServerLimits, ToolGuard

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "surefoot"
WAITING = {"ThreadPoolExecutor", "ProcessPoolExecutor", "FairQueue", "Shares", "Semaphore", "Buckets"}
"""Classes behind which requests wait, or by which they are refused."""
TEXTS = {
    "protocol",
    "threshold",
    "fail",
    "on_schema",
    "on_rule",
    "after_resamples",
    "monitor_sees",
    "enabled",
}
"""Settings of the guard that bound nothing."""
PLACES = {
    "access.READERS": ("_readers",),
    "openai.CONCURRENCY": ("window",),
    "upstream.SCORING_TURNS": ("_scoring", "_threads"),
    "gateway.TEXT_TURNS": ("_texts", "_threads"),
    "checker.MOST_THREADS": ("_turns", "_threads"),
    "request_log.WRITERS": ("_thread",),
    "request_log.MOST_NOTED": ("_noted",),
    "gateway.GUARD_TURNS": ("_turns",),
    "guard.WORKERS": ("_threads",),
    "conversations.MOST_BYTES": ("_bytes",),
}
"""By the row of their bound: attributes of such objects."""
MODULES = {
    **{name: f"surefoot.server.gateway.{name}" for name in ("access", "gateway", "request_log", "upstream")},
    **{name: f"surefoot.policies.{name}" for name in ("http_client", "openai", "openai_responses")},
    **{name: f"surefoot.guard.{name}" for name in ("conversations", "guard")},
    "checker": "surefoot.answers.checker",
}
SETTINGS = {"server.limits": ServerLimits, "gateway.guard": ToolGuard}
ALSO = {"Buckets": {"_rates", "_sign_ins"}, "Shares": {"shares"}, "FairQueue": {"turns"}}
"""Sites whose rows have the name of a setting or of the class's own constant."""


def sites() -> Iterator[tuple[str, str, str]]:
    """Module, attribute and class of each such object of a server."""
    paths = [*(SOURCE / "server").rglob("*.py"), *(SOURCE / "guard").rglob("*.py")]
    paths += [SOURCE / "policies" / "openai.py", SOURCE / "answers" / "checker.py", SOURCE / "batching.py"]
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                made = {_name(call.func) for call in ast.walk(node.value) if isinstance(call, ast.Call)}
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for kind in made & WAITING:
                    names = [part for target in targets for part in getattr(target, "elts", [target])]
                    yield path.stem, _name(names[-1]), kind


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


class Row(NamedTuple):
    """A line of the documentation's table."""

    name: str
    bounds: str
    default: str
    owner: str
    share: str
    beyond: str


TABLE = (ROOT / "docs" / "security.md").read_text().partition("| name | bounds |")[2].splitlines()[2:]
ROWS = [Row(*(cell.strip(" `") for cell in line.strip("|").split("|"))) for line in TABLE if line]


def test_every_place_where_requests_wait_or_are_refused_is_a_row() -> None:
    names = {row.name for row in ROWS}
    assert {name for name in PLACES if "." in name} <= names
    found = {(module, name) for module, name, kind in sites() if name not in ALSO.get(kind, ())}
    assert found == {(row.split(".")[0], place) for row, places in PLACES.items() for place in places}


def test_every_limit_that_can_be_set_is_a_row() -> None:
    names = {row.name for row in ROWS}
    limits = {f"server.limits.{name}" for name in ServerLimits.model_fields}
    guard = {
        f"gateway.guard.{name}" for name in {*GuardSettings.model_fields, *ToolGuard.model_fields} - TEXTS
    }
    assert limits | guard <= names
    assert len(names) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_has_its_value_an_owner_and_a_share(row: Row) -> None:
    assert row.owner in {"request", "client", "key", "address", "key or address", "conversation", "server"}
    assert row.share
    assert row.beyond
    group, field = row.name.rsplit(".", 1)
    if group in SETTINGS:
        value = SETTINGS[group].model_fields[field].default
    else:
        value = getattr(import_module(MODULES[group]), field)
    assert row.default == ("none" if value is None else f"{value:,}".removesuffix(".0"))


@pytest.mark.parametrize("others", [1, 3, 11])
def test_one_owner_fills_what_is_free_and_leaves_each_other_an_equal_part(others: int) -> None:
    shares, taken = Shares(12), 0
    while shares.has_room("flood"):
        shares.add("flood")
        taken += 1
    assert taken == 12
    for other in map(str, range(others)):
        own = 0
        while shares.has_room(other):
            shares.add(other)
            own += 1
        assert own >= 12 // (others + 1)
    assert shares.total <= sum(12 // owners for owners in range(1, others + 2))
    shares.add("flood", -12)
    assert "flood" not in shares.by_owner


def test_rates_of_owners_are_not_forgotten_for_new_ones_that_come() -> None:
    buckets = Buckets()
    assert [buckets.take("busy", 1) > 0 for _ in range(2)] == [False, True]
    for number in range(MOST_BUCKETS):
        buckets.take(str(number), 1)
        if number % 1000 == 0:
            assert buckets.take("busy", 1) > 0
    assert len(buckets._buckets) == MOST_BUCKETS


def test_the_wall_clock_only_dates_records_and_what_is_stored() -> None:
    paths = [*(SOURCE / "server").rglob("*.py"), *(SOURCE / "guard").rglob("*.py"), SOURCE / "concurrency.py"]
    clocks = {"time.time", "time.time_ns", "datetime.now"}
    calls = {
        path.stem
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in clocks
    }
    assert calls == {"records", "request_log", "people", "engine"}
