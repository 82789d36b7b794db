"""Names of accounts: what is refused when an account is made."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from annotation_site import open_room
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from surefoot.cli import app
from surefoot.errors import ConflictError, StoreError
from surefoot.server import Database
from surefoot.server.store.accounts import checked_user_name, folded_name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("ann\u200b", "U+200B (ZERO WIDTH SPACE)"),
        ("an\u200dn", "U+200D (ZERO WIDTH JOINER)"),
        ("\u202enna", "U+202E (RIGHT-TO-LEFT OVERRIDE)"),
        ("an\u00adn", "U+00AD (SOFT HYPHEN)"),
        ("ann\n", "U+000A"),
        ("\ue000nn", "U+E000"),
        ("ann ", "single spaces"),
        (" ann", "single spaces"),
        ("ann  lee", "single spaces"),
        ("", "is empty"),
        ("\ufdfa" * 20, "360 characters"),
    ],
)
def test_names_with_invisible_characters_are_refused(name: str, reason: str) -> None:
    with pytest.raises(StoreError) as refused:
        checked_user_name(name)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    "name", ["ann", "José", "Łukasz O'Neil", "Анна", "Ελένη", "王 Wang", "たなかタロウ", "김 Kim", "علي"]
)
def test_names_of_all_scripts_are_names(name: str) -> None:
    assert checked_user_name(name) == name


@pytest.mark.parametrize(
    ("name", "normal"),
    [
        ("\uff41nn", "ann"),
        ("\U0001d41ann", "ann"),
        ("o\ufb01", "ofi"),
        ("ann\u00a0lee", "ann lee"),
        ("e\u0301", "é"),
    ],
)
def test_names_are_normalised(name: str, normal: str) -> None:
    assert checked_user_name(name).casefold() == normal


@pytest.mark.parametrize(
    ("name", "existing"),
    [("Ann", "ann"), ("STRASSE", "straße"), ("\uff41da", "ADA"), ("ann", "ann"), ("ΣΊΣΥΦΟΣ", "σίσυφος")],
)
def test_names_of_the_same_letters_are_taken(db: Database, name: str, existing: str) -> None:
    user = db.users.create(existing)
    with pytest.raises(ConflictError, match="taken; choose another"):
        db.users.create(name)
    assert db.users.by_name(name) == user


def test_names_that_differ_are_different_accounts(db: Database) -> None:
    names = ["ann", "anna", "ben", "José", "Jose", "annotator 2", "annotator 3", "Анна", "Иван", "王", "玉"]
    for name in names:
        db.users.create(name)
    assert {user.name for user in db.users.list()} == set(names)


@given(st.text(min_size=1, max_size=30))
def test_any_text_is_a_name_or_is_refused_plainly(text: str) -> None:
    try:
        name = checked_user_name(text)
    except StoreError:
        return
    assert unicodedata.normalize("NFKC", name) == name
    assert {folded_name(same) for same in (name, name.upper(), name.casefold())} == {folded_name(name)}


def test_a_database_keeps_to_the_rule(db: Database) -> None:
    db.users.create("ann")
    for name in ("Ann", "ann\u200b", "ann"):
        with pytest.raises(StoreError):
            db.users.create(name)
    assert [user.name for user in db.users.list()] == ["ann"]


def test_the_page_of_accounts_keeps_to_the_rule(tmp_path: Path) -> None:
    room = open_room(tmp_path)
    admin = room.browser("admin")
    for name, status, reason in (
        ("a\u200bnn", 400, "which is invisible"),
        ("ANN", 409, "&#39;ann&#39; is taken"),
    ):
        answer = admin.send("/people", name=name, role="annotator")
        assert answer.status_code == status
        assert reason in answer.text
    room.db.close()


def test_the_command_keeps_to_the_rule(tmp_path: Path) -> None:
    arguments = ["serve", "users", "add", "--database", str(tmp_path / "a.db")]
    assert CliRunner().invoke(app, [*arguments, "ann"]).exit_code == 0
    refused = CliRunner().invoke(app, [*arguments, "Ann"])
    assert refused.exit_code != 0
    assert isinstance(refused.exception, ConflictError)
