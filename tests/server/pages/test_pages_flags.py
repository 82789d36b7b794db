"""Flags and comments of annotators: administrators see and resolve them, nobody else does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from annotation_site import SCRIPT, Room, open_room
from inspection_site import open_inspection

PAGE = "/projects/1/flags"


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    found = open_room(tmp_path)
    yield found
    found.db.close()


def flag(room: Room, name: str, text: str, kind: str = "flag") -> str:
    """Send a comment on the first step of somebody's present item, through the page; the item's address."""
    person = room.browser(name)
    item = str(person.get("/projects/1/annotate").headers["location"])
    form = {**person.fields(item, f"{item}/label"), "kind": kind, "comment": text}
    assert person.client.post(f"{item}/comment", data=form).status_code == 303
    return item


def test_a_flag_reaches_the_administrator_and_is_resolved(room: Room) -> None:
    item = flag(room, "ann", "The problem lacks a unit.")
    flag(room, "ben", "Nice step.", kind="comment")
    admin = room.browser("admin")
    data = admin.json(PAGE)
    first, second = data["comments"]
    pseudonyms = {m.user_id: m.pseudonym for m in room.db.projects.members(1)}
    assert (first["kind"], first["by"]) == ("flag", pseudonyms[room.ids["ann"]])
    assert (second["kind"], second["by"]) == ("comment", pseudonyms[room.ids["ben"]])
    assert f"/projects/1/items/{first['item_id']}" == item
    assert first["step"] == 0
    assert first["trace"] == room.db.items.get(1, first["item_id"]).trace_id
    page = admin.get(PAGE).text
    assert "The problem lacks a unit." in page
    assert 'Flags <span class="count">1<' in admin.get("/projects/1/adjudicate").text
    answer = admin.send(PAGE, f"{PAGE}/{first['id']}")
    assert (answer.status_code, answer.headers["location"]) == (303, PAGE)
    assert [one["id"] for one in admin.json(PAGE)["comments"]] == [second["id"]]
    assert [one["id"] for one in admin.json(f"{PAGE}?all=1")["comments"]] == [first["id"], second["id"]]
    assert 'class="count"' not in admin.get(PAGE).text
    assert "comment resolved" in [e["action"] for e in admin.json("/projects/1/settings")["audit"]]
    when = room.db.comments.list(1, resolved=True)[0].resolved
    twice = {"csrf": admin.fields(PAGE, "/sign-out")["csrf"]}
    assert admin.client.post(f"{PAGE}/{first['id']}", data=twice).status_code == 303
    assert room.db.comments.list(1, resolved=True)[0].resolved == when


def test_positions_are_checked(room: Room) -> None:
    for wrong in ("?after=x", "?after=-1", "?after=²", "?after=" + "9" * 30):
        assert room.browser("admin").get(PAGE + wrong).status_code == 400, wrong


def test_a_long_list_goes_on(room: Room) -> None:
    flag(room, "ann", "first")
    for number in range(60):
        room.db.comments.add(1, 1, room.ids["ann"], "flag", f"more {number}")
    admin = room.browser("admin")
    seen, query = [], "?all=1"
    while query:
        data = admin.json(PAGE + query)
        seen += [one["text"] for one in data["comments"]]
        query = data["next"]
    assert seen == ["first", *(f"more {number}" for number in range(60))]
    assert 'rel="next"' in admin.get(PAGE).text


def test_only_administrators_of_the_project_see_them(room: Room) -> None:
    flag(room, "ann", "secret of ann")
    room.db.projects.set_member(1, room.ids["eve"], "viewer")
    for name, status in (("ann", 403), ("ben", 403), ("eve", 403)):
        person = room.browser(name)
        csrf = person.fields("/projects", "/sign-out")["csrf"]
        assert person.get(PAGE).status_code == status
        assert person.get(f"{PAGE}.json").status_code == status
        assert person.client.post(f"{PAGE}/1", data={"csrf": csrf}).status_code == status
        assert "/flags" not in person.get("/projects/1").text
    room.db.projects.set_member(1, room.ids["eve"], "viewer", active=False)
    stranger = room.browser("eve")
    assert stranger.get(PAGE).status_code == 404
    csrf = stranger.fields("/projects", "/sign-out")["csrf"]
    assert stranger.client.post(f"{PAGE}/1", data={"csrf": csrf}).status_code == 404
    assert room.browser().get(PAGE).status_code == 303
    assert room.db.comments.open_flags(1) == 1


def test_a_comment_of_another_project_does_not_exist(room: Room) -> None:
    flag(room, "ann", "here")
    other = room.db.projects.create("Other").id
    room.db.projects.set_member(other, room.ids["eve"], "admin")
    eve = room.browser("eve")
    page = f"/projects/{other}/flags"
    assert eve.json(page)["comments"] == []
    csrf = eve.fields("/projects", "/sign-out")["csrf"]
    assert eve.client.post(f"{page}/1", data={"csrf": csrf}).status_code == 404
    assert eve.client.post(f"{page}/999", data={"csrf": csrf}).status_code == 404
    assert room.db.comments.open_flags(1) == 1


def test_the_form_wants_its_secret(room: Room) -> None:
    flag(room, "ann", "here")
    admin = room.browser("admin")
    for csrf in (
        {},
        {"csrf": ""},
        {"csrf": "guess"},
        {"csrf": room.browser("admin").fields(PAGE, "/1")["csrf"]},
    ):
        assert admin.client.post(f"{PAGE}/1", data=csrf).status_code == 403
    assert room.db.comments.open_flags(1) == 1


@pytest.mark.parametrize("text", [SCRIPT, '"><img src=x onerror=alert(1)>', "{{ 7*7 }} $\\text{<b>x</b>}$"])
def test_a_comment_is_shown_as_text(room: Room, text: str) -> None:
    flag(room, "ann", text)
    admin = room.browser("admin")
    page = admin.get(PAGE).text
    assert SCRIPT not in page
    assert "<img" not in page
    assert "<b>x" not in page
    assert admin.json(PAGE)["comments"][0]["text"] == text


def test_links_lead_to_pages_that_are_there(tmp_path: Path) -> None:
    found = open_inspection(tmp_path)
    room = found.room
    flag(room, "ann", "Is this so?")
    admin = room.browser("admin")
    page = admin.get(PAGE).text
    trace = room.db.items.get(1, 1).trace_id
    assert f'href="/projects/1/run?id={trace}#step-1"' in page
    assert admin.get(f"/projects/1/run?id={trace}").status_code == 200
    for name, values in (("ann", (1, 1, 1)), ("ben", (1, 0, 1))):
        person = room.browser(name)
        item = str(person.get("/projects/1/annotate").headers["location"])
        for value in values:
            person.send(item, f"{item}/label", value=str(value))
    assert "Is this so?" in admin.get(f"/projects/1/run?id={trace}&disagreement=1").text
    found.db.close()
