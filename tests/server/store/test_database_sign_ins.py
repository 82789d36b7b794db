"""Attempts to sign in are counted in the database, whoever makes them and at whatever moment."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from conftest import CHEAP, Clock
from sqlalchemy import func, select

from surefoot.server import Database, open_database
from surefoot.server.store.accounts import sign_in_attempts
from surefoot.server.store.users import Bound


def rows(db: Database) -> int:
    with db.sign_ins._connections.read() as connection:
        return connection.scalar(select(func.count()).select_from(sign_in_attempts)) or 0


def test_attempts_are_forgotten_in_time(db: Database, clock: Clock) -> None:
    a, b = (Bound(key=key, most=2, seconds=60) for key in "ab")
    assert [db.sign_ins.start(a) for _ in range(2)] == [0, 0]
    clock.forward(20)
    assert db.sign_ins.start(a) == 40
    assert db.sign_ins.start(b) == 0
    clock.forward(41)
    assert db.sign_ins.start(a) == 0
    db.sign_ins.forget(a)
    assert [db.sign_ins.start(a) for _ in range(3)] == [0, 0, 60]


def test_an_attempt_that_one_bound_refuses_counts_under_none(db: Database) -> None:
    narrow, wide = Bound(key="pair", most=1, seconds=60), Bound(key="account", most=3, seconds=600)
    assert db.sign_ins.start(narrow, wide) == 0
    assert [db.sign_ins.start(narrow, wide) for _ in range(5)] == [60] * 5
    assert [db.sign_ins.start(wide) for _ in range(3)] == [0, 0, 600]


def test_old_rows_are_deleted_and_no_name_is_stored(db: Database, clock: Clock) -> None:
    for number in range(20):
        db.sign_ins.start(Bound(key=f"pair 10.0.0.{number} ann\ud800", most=5, seconds=60))
    assert rows(db) == 20
    with db.sign_ins._connections.read() as connection:
        assert "ann" not in str(connection.execute(select(sign_in_attempts)).all())
    clock.forward(61)
    db.sign_ins.start(Bound(key="other", most=5, seconds=60))
    assert rows(db) == 1


def test_attempts_at_the_same_moment_see_each_other(db: Database, url: str, clock: Clock) -> None:
    bound = Bound(key="pair", most=5, seconds=60)
    with (
        open_database(url, clock=clock, password_cost=CHEAP) as other,
        ThreadPoolExecutor(8) as threads,
    ):
        waits = list(threads.map(lambda n: (db, other)[n % 2].sign_ins.start(bound), range(40)))
    assert sum(wait == 0 for wait in waits) == 5


def test_all_processes_sign_with_one_key_that_stays(url: str) -> None:
    with open_database(url) as one, open_database(url) as other, ThreadPoolExecutor(8) as threads:
        keys = set(threads.map(lambda n: (one, other)[n % 2].sign_ins.signing_key(), range(16)))
    with open_database(url, clock=lambda: Clock().at + timedelta(days=400)) as later:
        assert {later.sign_ins.signing_key()} == keys
    assert len(keys.pop()) >= 64
