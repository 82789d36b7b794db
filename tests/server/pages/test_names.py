"""Names of accounts: what is refused when an account is made."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from annotation_site import PASSWORD, open_room
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from surefoot.cli import app
from surefoot.errors import ConflictError, StoreError
from surefoot.server import Database
from surefoot.server.store.names import checked_user_name, refuse_look_alikes

CYRILLIC_A = "\u0430"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (f"{CYRILLIC_A}nn", "mixes letters of Cyrillic and Latin"),
        ("\u0391nn", "mixes letters of Greek and Latin"),
        ("ann\u200b", "U+200B (ZERO WIDTH SPACE)"),
        ("an\u200dn", "U+200D (ZERO WIDTH JOINER)"),
        ("\u202enna", "U+202E (RIGHT-TO-LEFT OVERRIDE)"),
        ("an\u00adn", "U+00AD (SOFT HYPHEN)"),
        ("ann\ufe0f", "U+FE0F (VARIATION SELECTOR-16)"),
        ("ann\u3164", "U+3164 (HANGUL FILLER)"),
        ("ann\n", "U+000A"),
        ("\ue000nn", "U+E000"),
        ("\uff41nn", "write 'ann'"),
        ("\U0001d41ann", "write 'ann'"),
        ("o\ufb01", "write 'ofi'"),
        ("ann ", "single spaces"),
        (" ann", "single spaces"),
        ("ann  lee", "single spaces"),
        ("ann\u00a0lee", "single spaces"),
        ("", "is empty"),
    ],
)
def test_names_that_cannot_be_told_apart_are_refused(name: str, reason: str) -> None:
    with pytest.raises(StoreError) as refused:
        checked_user_name(name)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    "name", ["ann", "José", "Łukasz O'Neil", "Анна", "Ελένη", "王 Wang", "たなかタロウ", "김 Kim", "علي"]
)
def test_names_of_all_scripts_are_names(name: str) -> None:
    assert checked_user_name(name) == name


@pytest.mark.parametrize(
    ("name", "existing"),
    [
        ("Ann", "ann"),
        ("STRASSE", "straße"),
        ("\u0430\u0440\u0435", "ape"),  # all of it Cyrillic
        ("paypaI", "paypal"),
        ("paypa1", "paypal"),
        ("b0b", "bob"),
        ("kern", "kem"),
        ("ada", "ad\u0430"),  # one from before such names were refused
        ("ada", "a\u200bda"),
        ("ada", "\uff41da"),
        ("ann", "ann"),
    ],
)
def test_names_that_look_alike_are_refused(name: str, existing: str) -> None:
    for one, other in ((name, existing), (existing, name)):
        with pytest.raises(ConflictError, match="taken; choose another"):
            refuse_look_alikes(one, ["somebody", other])


def test_names_that_differ_are_no_look_alikes() -> None:
    names = ["ann", "anna", "ben", "José", "Jose", "annotator 2", "annotator 3", "Анна", "Иван", "王", "玉"]
    for name in names:
        refuse_look_alikes(name, [other for other in names if other != name])


@given(st.text(min_size=1, max_size=30))
def test_any_text_is_a_name_or_is_refused_plainly(text: str) -> None:
    try:
        name = checked_user_name(text)
    except StoreError:
        return
    assert unicodedata.normalize("NFKC", name) == name
    for same in (name, name.upper(), name.casefold()):
        with pytest.raises(ConflictError):
            refuse_look_alikes(same, [name])


def test_a_database_keeps_to_the_rule(db: Database) -> None:
    db.users.create("ann", PASSWORD)
    for name in ("Ann", "аnn", "ann\u200b", "ann"):
        with pytest.raises(StoreError):
            db.users.create(name, PASSWORD)
    assert [user.name for user in db.users.list()] == ["ann"]


def test_the_page_of_accounts_keeps_to_the_rule(tmp_path: Path) -> None:
    room = open_room(tmp_path)
    admin = room.browser("admin")
    for name, status, reason in (
        (f"{CYRILLIC_A}nn", 400, "mixes letters of Cyrillic and Latin"),
        ("ANN", 409, "looks like &#39;ann&#39;"),
    ):
        answer = admin.send("/people", name=name, password=PASSWORD, role="annotator")
        assert answer.status_code == status
        assert reason in answer.text
    room.db.close()


def test_the_command_keeps_to_the_rule(tmp_path: Path) -> None:
    arguments = ["serve", "users", "add", "--database", str(tmp_path / "a.db")]
    assert CliRunner().invoke(app, [*arguments, "ann"]).exit_code == 0
    refused = CliRunner().invoke(app, [*arguments, "Ann"])
    assert refused.exit_code != 0
    assert isinstance(refused.exception, ConflictError)
