"""Opening and migrating; users, sessions, keys, projects. On SQLite and PostgreSQL alike."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError
from sqlalchemy import create_engine, inspect, text

from surefoot.errors import ConflictError, NotFoundError, StoreError
from surefoot.server import Database, Protocol, open_database
from surefoot.server.store.accounts import token_hash

HOSTILE = "'; DROP TABLE users; --<script>alert(1)</script>\"\\ % _ {x} \u202e naïve 漢字 🙂\r\n\t"
HOSTILE_NAME = "'; DROP TABLE users; --<script>alert(1)</script>\"\\ % _ {x} naïve 漢字 🙂"
"""Of an account: nothing in it is invisible."""


def engine_of(url: str):
    return create_engine(url.replace("postgresql://", "postgresql+psycopg://"))


def all_text(url: str) -> str:
    """Every row of every table that holds accounts."""
    engine = engine_of(url)
    with engine.connect() as connection:
        rows = [
            str(connection.execute(text(f"SELECT * FROM {name}")).all())  # noqa: S608
            for name in ("users", "sessions", "api_keys")
        ]
    engine.dispose()
    return "\n".join(rows)


def test_other_versions_are_refused(url: str) -> None:
    engine = engine_of(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE database_version SET version = 9999"))
    engine.dispose()
    with pytest.raises(StoreError, match="version 9999, and this surefoot uses version 8; open it with"):
        open_database(url)


def test_tables_of_another_program_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    engine = engine_of(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE users (id INTEGER)"))
    with pytest.raises(
        StoreError, match=r"theirs\.db: tables such as 'users' lack a version: .*name an empty"
    ):
        open_database(path)
    with engine.connect() as connection:
        assert inspect(connection).get_table_names() == ["users"]
    engine.dispose()


def test_two_processes_open_a_new_store_at_once(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    program = f"from surefoot.server import open_database as o; o({str(path)!r}).users.list()"
    started = [subprocess.Popen([sys.executable, "-W", "error", "-c", program]) for _ in range(2)]
    assert [process.wait(60) for process in started] == [0, 0]


def test_sqlite_waits_for_the_disk_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    with open_database(path) as opened:
        with opened._connections.read() as connection:
            asked = {
                name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
                for name in ("journal_mode", "synchronous", "foreign_keys")
            }
        assert asked == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("url", ["sqlite://", "mysql://x/y", "sqlite:///no/such/folder/x.db", "a://b://c:x"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(StoreError):
        open_database(url)


def test_users_and_links(db: Database, url: str) -> None:
    user = db.users.create(HOSTILE_NAME, "admin")
    assert db.users.get(user.id) == db.users.by_name(HOSTILE_NAME) == user
    assert user.role == "admin"
    assert user.active
    link = db.users.new_link(user.id)
    assert len(link) >= 43  # 256 bits
    assert db.users.by_link(link) == user
    for wrong in (link[:-1], link + "x", link.swapcase(), "", "\x00", "\ud800", token_hash(link)):
        assert db.users.by_link(wrong) is None
    with pytest.raises(ConflictError):
        db.users.create(HOSTILE_NAME)
    with pytest.raises(StoreError, match="not a role"):
        db.users.set_role(user.id, "root")  # type: ignore[arg-type]
    for name in ("", "a\x00b", "\udcff", "n" * 201):
        with pytest.raises(StoreError, match="name"):
            db.users.create(name)
    assert link not in all_text(url)
    assert db.users.set_role(user.id, "viewer").role == "viewer"
    assert [found.name for found in db.users.list()] == [HOSTILE_NAME]
    for number in (99, 2**70):
        with pytest.raises(NotFoundError):
            db.users.get(number)
    with pytest.raises(NotFoundError):
        db.users.new_link(99)


def test_a_link_ends_with_the_next_and_with_the_account(db: Database) -> None:
    user, other = db.users.create("robot"), db.users.create("other")
    for name in ("", "None", "robot"):
        assert db.users.by_link(name) is None  # neither has a link yet
    first, theirs = db.users.new_link(user.id), db.users.new_link(other.id)
    second = db.users.new_link(user.id)
    assert len({first, second, theirs}) == 3
    assert db.users.by_link(first) is None
    assert db.users.by_link(second) == user
    for active in (False, True):  # who is let in again needs a new link
        db.users.set_active(user.id, active)
        assert db.users.by_link(second) is None
    assert db.users.by_link(theirs) == other


def test_a_clock_that_jumps_lets_nobody_stay_longer_and_keeps_links(db: Database, clock) -> None:
    user = db.users.create("ann")
    link = db.users.new_link(user.id)
    for jump in (timedelta(days=400), timedelta(days=-400)):
        before = db.users.open_session(user.id, lifetime=timedelta(hours=1))
        clock.at += jump
        assert db.users.session(before) is None
        assert db.users.by_link(link) == user
        meanwhile = db.users.open_session(user.id, lifetime=timedelta(hours=1))
        assert db.users.session(meanwhile) is not None
        clock.at -= jump
        assert db.users.session(meanwhile) is None


def test_sessions_end(db: Database, url: str, clock) -> None:
    user = db.users.create("ann")
    token = db.users.open_session(user.id, lifetime=timedelta(hours=1))
    assert db.users.session(token) == user
    assert db.users.session(token + "x") is None
    assert token not in all_text(url)
    clock.forward(3600)
    assert db.users.session(token) is None
    tokens = [db.users.open_session(user.id) for _ in range(3)]
    assert len(set(tokens)) == 3
    db.users.end_session(tokens[0])
    assert db.users.session(tokens[0]) is None
    assert db.users.session(tokens[1]) is not None
    for change in (
        lambda: db.users.new_link(user.id),
        lambda: db.users.set_role(user.id, "viewer"),
        lambda: db.users.set_active(user.id, False),
    ):
        token = db.users.open_session(user.id)
        change()
        assert db.users.session(token) is None
    with pytest.raises(StoreError, match="not active"):
        db.users.open_session(user.id)


def test_keys_are_shown_once_and_can_be_revoked(db: Database, url: str, clock) -> None:
    project = db.projects.create("p")
    key, row = db.keys.create(HOSTILE, "client", project_id=project.id, rate_limit=60)
    assert (row.name, row.role, row.project_id, row.rate_limit) == (HOSTILE, "client", project.id, 60)
    assert key not in all_text(url)
    assert key.startswith("sf-")
    assert db.keys.authenticate(key) == row
    for wrong in (key[:-1], key + "x", "", "sf-", f"sf-{row.id}", "x\x00", "sf-\ud800-x", key.upper()):
        assert db.keys.authenticate(wrong) is None
    revoked = db.keys.revoke(row.id)
    assert revoked.revoked == clock.at
    clock.forward(5)
    assert db.keys.revoke(row.id) == revoked
    assert db.keys.authenticate(key) is None
    assert [found.id for found in db.keys.list()] == [row.id]
    with pytest.raises(NotFoundError):
        db.keys.create("x", "client", project_id=77)
    with pytest.raises(StoreError, match="rate_limit"):
        db.keys.create("x", "client", rate_limit=0)


def test_a_project_is_changed_by_one_at_a_time(db: Database) -> None:
    protocol = Protocol(show_answer=True, annotators=3, known_share=0.1, queue="uncertainty")
    made = db.projects.create(HOSTILE, instructions=HOSTILE, protocol=protocol)
    assert [db.projects.get(made.id)] == db.projects.list() == [made]
    assert (made.instructions, made.protocol, made.version) == (HOSTILE, protocol, 1)
    changed = db.projects.update(made.id, 1, instructions="new", archived=True)
    assert (changed.instructions, changed.version, changed.name) == ("new", 2, HOSTILE)
    with pytest.raises(ConflictError, match="version 2"):
        db.projects.update(made.id, 1, instructions="lost")
    assert db.projects.get(made.id) == changed
    other = db.projects.create("other")
    with pytest.raises(ConflictError):
        db.projects.update(other.id, 1, name=HOSTILE)
    assert db.projects.list() == [other]
    assert len(db.projects.list(archived=True)) == 2
    with pytest.raises(NotFoundError):
        db.projects.update(55, 1, name="x")


@pytest.mark.parametrize(
    "bad", [{"phase": 1}, {"annotators": 0}, {"known_share": 1.5}, {"values": (2,)}, {"quue": "order"}]
)
def test_a_protocol_refuses_nonsense(bad) -> None:
    with pytest.raises(ValidationError):
        Protocol(**bad)


def test_members_keep_their_pseudonym(db: Database) -> None:
    project, user = db.projects.create("p"), db.users.create("ann")
    assert db.projects.member(project.id, user.id) is None
    first = db.projects.set_member(project.id, user.id, "annotator")
    assert first.pseudonym != user.name
    db.projects.set_member(project.id, user.id, "annotator", active=False)
    assert db.projects.member(project.id, user.id) is None
    assert db.projects.list(user.id) == []
    again = db.projects.set_member(project.id, user.id, "viewer")
    assert (again.pseudonym, again.role) == (first.pseudonym, "viewer")
    assert db.projects.list(user.id) == [project]
    elsewhere = db.projects.create("q")
    assert db.projects.set_member(elsewhere.id, user.id, "annotator").pseudonym != first.pseudonym
    with pytest.raises(NotFoundError):
        db.projects.set_member(project.id, 99, "viewer")
