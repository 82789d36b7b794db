"""API keys: until when they are valid, what they may do, and how much. On SQLite and PostgreSQL alike."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from conftest import Clock

from surefoot.errors import ExpiredKeyError, StoreError
from surefoot.records import Usage
from surefoot.server import Database, GatewayRecord, expiry_of, open_database

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


def test_a_key_is_recalled_for_a_second_and_until_it_or_its_user_changes(db: Database, clock: Clock) -> None:
    user = db.users.create("alice")
    text, key = db.keys.create("alice's", "client", user_id=user.id, expires=clock() + timedelta(hours=1))
    assert db.keys.recall(text) is None  # only once it was authenticated
    assert db.keys.authenticate(text) == key
    assert db.keys.recall(text) == key
    assert db.keys.recall(f"{text}x") is None
    db.users.set_active(user.id, False)
    assert db.keys.recall(text) is None
    assert db.keys.authenticate(text) is None
    db.users.set_active(user.id, True)
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
        ("client", ["monitor"], "does not include the scope 'monitor'; choose from chat, score"),
        ("viewer", ["label"], "does not include the scope 'label'"),
        ("admin", ["everything"], "does not include the scope 'everything'"),
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
    _, key = db.keys.create("x", "client", expires=soon, rate_limit=8, scopes=["score"])
    assert (key.expires, key.rate_limit, key.scopes) == (soon, 8, ("score",))
    assert db.keys.get(key.id) == key
    for limits in ({"rate_limit": 0}, {"expires": clock()}, {"scopes": ["pages"]}, {"rate_limit": -1}):
        with pytest.raises(StoreError):
            db.keys.create("y", "client", **limits)
