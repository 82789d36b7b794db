"""API keys: until when they are valid, what they may do, and how much. On SQLite and PostgreSQL alike."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from conftest import Clock
from gateway_server import ask, lines, served

from surefoot.errors import ExpiredKeyError, NotFoundError, StoreError
from surefoot.policies.scripted import ScriptedPolicy
from surefoot.records import Usage
from surefoot.server import Database, GatewayRecord, expiry_of, open_database
from surefoot.server.gateway.records import KeyUse

NOON = datetime(2026, 12, 30, 12, tzinfo=UTC)


def test_a_key_is_valid_until_it_expires(db: Database, clock: Clock) -> None:
    text, key = db.keys.create("guest", "client", expires=clock() + timedelta(hours=1))
    forever, _ = db.keys.create("old", "client")
    assert db.keys.authenticate(text) == key == db.keys.list()[0]
    clock.forward(3599)
    assert db.keys.authenticate(text) == key
    clock.forward(1)
    with pytest.raises(ExpiredKeyError, match=r"'guest' expired at 2031-05-04T13:00\+00:00"):
        db.keys.authenticate(text)
    assert db.keys.authenticate(f"{text}x") is None  # only who has the key learns more
    assert db.keys.authenticate(forever) is not None
    db.keys.revoke(key.id)
    assert db.keys.authenticate(text) is None
    with pytest.raises(StoreError, match="past"):
        db.keys.create("late", "client", expires=clock())


@pytest.mark.parametrize(
    ("text", "expires"),
    [
        ("12h", NOON + timedelta(hours=12)),
        ("30d", NOON + timedelta(days=30)),
        ("2w", NOON + timedelta(weeks=2)),
        ("2026-12-31", datetime(2027, 1, 1, tzinfo=UTC)),
    ],
)
def test_an_expiry_is_a_period_or_a_last_day(text: str, expires: datetime) -> None:
    assert expiry_of(text, NOON) == expires


@pytest.mark.parametrize("text", ["", "0d", "30", "d", "-1d", "999999d", "2026-13-01", "9999-12-31", "never"])
def test_other_expiries_are_refused(text: str) -> None:
    with pytest.raises(StoreError, match="'expires'"):
        expiry_of(text, NOON)


def test_scopes_are_some_of_the_role(db: Database) -> None:
    text, key = db.keys.create("both", "client", scopes=["score", "chat", "score"])
    assert key.scopes == ("chat", "score")
    assert db.keys.authenticate(text) == db.keys.get(key.id) == key
    assert db.keys.create("all", "client")[1].scopes is None
    for role, scopes, message in (
        ("client", ["monitor"], "no scope 'monitor'; choose from chat, score"),
        ("viewer", ["label"], "no scope 'label'"),
        ("admin", ["everything"], "no scope 'everything'"),
        ("admin", [], "empty"),
    ):
        with pytest.raises(StoreError, match=message):
            db.keys.create("x", role, scopes=scopes)


def record(name: str, key: int | None, created: datetime, **more: object) -> GatewayRecord:
    return GatewayRecord(
        request_id=name,
        created=created,
        endpoint="e",
        model="m",
        strategy="s",
        status=more.pop("status", 200),
        latency_ms=1,
        key_id=key,
        usage=Usage(prompt_tokens=1, completion_tokens=2, verifier_tokens=4),
        **more,
    )


def test_use_is_counted_with_the_record_once(db: Database, clock: Clock) -> None:
    now = clock()
    mine, other = (db.keys.create(name, "client")[1].id for name in ("mine", "other"))
    assert db.keys.usage(mine) == KeyUse(key_id=mine, created=now, requests=0)
    uses = [KeyUse(key_id=mine, created=now, tokens=10), KeyUse(key_id=other, created=now, requests=2)]
    db.gateway.write_all(
        [record("a", mine, now), record("b", mine, now), record("c", None, now), record("a", mine, now)], uses
    )
    db.gateway.write_all([record("b", mine, now)])  # written already
    db.gateway.write_all([record("d", mine, now, status=502)])  # what it cost comes apart
    used = db.keys.usage(mine)
    assert (used.requests, used.tokens) == (3, 24)
    size = sum(len(one.model_dump_json()) for one in (db.gateway.get(name) for name in "abd"))
    assert used.stored_bytes == size
    assert db.keys.usages() == {mine: used, other: KeyUse(key_id=other, created=now, requests=2)}
    clock.forward(24 * 3600)
    tomorrow = db.keys.usage(mine)
    assert (tomorrow.requests, tomorrow.tokens, tomorrow.stored_bytes) == (0, 0, size)
    assert db.gateway.prune(clock(), most=3) == 3
    assert db.gateway.prune(clock(), most=3) == 1
    assert db.keys.usage(mine).stored_bytes == 0


def test_two_writers_of_one_day_add_up(db: Database, url: str) -> None:
    keys = [db.keys.create(str(number), "client")[1].id for number in range(3)]
    with open_database(url) as other, ThreadPoolExecutor(4) as threads:
        for number in range(40):
            uses = [KeyUse(key_id=key, created=NOON, tokens=1) for key in keys[:: 1 if number % 2 else -1]]
            threads.submit((other if number % 3 else db).gateway.write_all, [], uses)
    with open_database(url, clock=lambda: NOON) as today:
        used = [today.keys.usage(key) for key in keys]
    assert [(one.requests, one.tokens) for one in used] == [(40, 40)] * 3


def test_limits_change_one_by_one(db: Database, clock: Clock) -> None:
    _, key = db.keys.create("x", "client", daily_requests=5, daily_tokens=6, max_stored_bytes=7, rate_limit=8)
    assert db.keys.change(key.id) == key
    changed = db.keys.change(key.id, daily_tokens=None, scopes=["score"], rate_limit=9)
    assert changed == replace(key, daily_tokens=None, scopes=("score",), rate_limit=9)
    for limits in ({"daily_requests": 0}, {"expires": clock()}, {"scopes": ["read"]}, {"rate_limit": -1}):
        with pytest.raises(StoreError):
            db.keys.change(key.id, **limits)
    with pytest.raises(NotFoundError):
        db.keys.change(77, rate_limit=1)
    assert db.keys.get(key.id) == changed


def test_a_key_keeps_to_its_quotas(url: str) -> None:
    with open_database(url) as db, served(ScriptedPolicy(lines), db=db) as found:
        key, row = db.keys.create("alice", "client", daily_requests=2, daily_tokens=10_000)
        body = {"model": "scripted", "messages": [{"role": "user", "content": "x"}], "max_tokens": 50}

        def status() -> int:
            headers = {"Authorization": f"Bearer {key}"}
            return int(ask(f"{found.url}/chat/completions", json.dumps(body).encode(), headers)[0])

        assert [status() for _ in range(3)] == [200, 200, 429]
        assert db.keys.usage(row.id).requests == 2
        db.keys.change(row.id, daily_requests=None)
        assert status() == 200
