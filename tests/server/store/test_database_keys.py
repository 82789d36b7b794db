"""API keys: until when they are valid, what they may do, and how much. On SQLite and PostgreSQL alike."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from conftest import Clock

from surefoot.errors import ExpiredKeyError, StoreError
from surefoot.records import Usage
from surefoot.server import Database, GatewayRecord, open_database


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


def test_a_key_is_recalled_for_a_second_and_until_it_is_revoked(db: Database, clock: Clock) -> None:
    text, key = db.keys.create("alice's", "client", expires=clock() + timedelta(hours=1))
    _, spare = db.keys.create("spare", "client")
    assert db.keys.recall(text) is None  # only once it was authenticated
    assert db.keys.authenticate(text) == key
    assert db.keys.recall(text) == key
    assert db.keys.recall(f"{text}x") is None
    db.keys.revoke(spare.id)
    assert db.keys.recall(text) is None  # any key may have been the one
    assert db.keys.authenticate(text) == db.keys.recall(text) == key
    with open_database(db._connections.engine.url.render_as_string(hide_password=False)) as other:
        other.keys.revoke(key.id)  # as another process does
    clock.forward(0.9)
    assert db.keys.recall(text) is not None
    clock.forward(0.1)
    assert db.keys.recall(text) is None
    assert db.keys.authenticate(text) is None
    text, _ = db.keys.create("guest", "client", expires=clock() + timedelta(hours=1))
    assert db.keys.authenticate(text) is not None
    clock.forward(3600)
    assert db.keys.recall(text) is None


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


def test_old_requests_are_pruned_in_pieces(db: Database, clock: Clock) -> None:
    now = clock()
    mine = db.keys.create("mine", "client")[1].id
    names = ("a", "b", "c", "a")
    db.gateway.write_all([record(name, mine, now) for name in names])
    db.gateway.write_all([record("b", mine, now)])  # written already
    db.gateway.write_all([record("d", mine, now, status=502)])
    clock.forward(24 * 3600)
    assert db.gateway.prune(clock(), most=3) == 3
    assert db.gateway.prune(clock(), most=3) == 1
    assert db.gateway.prune(clock(), most=3) == 0


def test_limits_are_stored_and_checked(db: Database, clock: Clock) -> None:
    soon = clock() + timedelta(days=5)
    _, key = db.keys.create("x", "client", expires=soon, rate_limit=8)
    assert (key.expires, key.rate_limit) == (soon, 8)
    assert key in db.keys.list()
    for limits in ({"rate_limit": 0}, {"expires": clock()}, {"rate_limit": -1}):
        with pytest.raises(StoreError):
            db.keys.create("y", "client", **limits)
    for role in ("annotator", "king"):
        with pytest.raises(StoreError, match="choose from client, viewer, admin"):
            db.keys.create("y", role)
