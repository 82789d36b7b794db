"""The page of held tool calls: who may look, who may decide, and what is shown of hostile text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from annotation_site import Room, audited, open_room
from held_calls import held_call
from inspection_site import add_request


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    found = open_room(tmp_path)
    yield found
    found.db.close()


def hold(room: Room) -> int:
    number = room.db.held_calls.hold(held_call(arguments='{"order": "<script>"}'), most=9)
    assert number is not None
    return number


def test_an_administrator_decides(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    number = hold(room)
    admin = room.browser("admin")
    assert 'name="decision"' not in admin.get("/held").text
    page = admin.get(f"/held/{number}").text
    assert "policy: look at the order first" in page
    assert "&lt;b&gt;now" in page
    assert "<script>" not in page.replace("<script src", "")
    admin.send(f"/held/{number}", decision="deny", comment="ask first")
    [review] = room.db.held_calls.reviews([number]).values()
    assert (review.approved, review.comment) == (False, "ask first")
    assert "No calls that are waiting" in admin.get("/held").text
    [denied] = admin.json("/held?state=denied")["calls"]
    assert (denied["title"], denied["comment"]) == ("refund: Refund W1, <b>now</b>.", "ask first")
    assert "ask first" in admin.get(f"/held/{number}").text
    twin = admin.get("/held.json?state=all").json()
    assert twin["counts"] == {"waiting": 0, "approved": 0, "delivered": 0, "denied": 1, "abandoned": 0}
    assert twin["calls"][0]["calls"][0]["call"]["name"] == "refund"
    logged = audited(caplog)[-1]
    assert (logged["action"], logged["held"], logged["user"]) == ("held call denied", number, "admin")


def test_the_call_that_waits_longest_is_on_top(room: Room) -> None:
    numbers = [room.db.held_calls.hold(held_call(), most=99) for _ in range(27)]
    admin = room.browser("admin")
    first = admin.json("/held")
    assert [call["id"] for call in first["calls"]] == numbers[:25]
    assert [call["id"] for call in admin.json(f"/held.json{first['next']}")["calls"]] == numbers[25:]
    assert [call["id"] for call in admin.json("/held?state=all")["calls"]] == numbers[:1:-1]


def test_annotators_see_and_decide_nothing(room: Room) -> None:
    number = hold(room)
    ann = room.browser("ann")
    assert ann.get("/held").status_code == 403
    assert ann.client.post(f"/held/{number}", data={"decision": "approve"}).status_code == 403
    assert room.db.held_calls.reviews([number]) == {}


def test_every_page_says_how_many_calls_wait(room: Room) -> None:
    admin = room.browser("admin")
    count = '<span class="count">2<span class="visually-hidden"> waiting</span></span>'
    for page in ("/projects", "/projects/1", "/requests", "/people", "/held", "/nowhere"):
        assert " waiting</span>" not in admin.get(page).text
    hold(room)
    hold(room)
    for page in ("/projects", "/projects/1", "/requests", "/people", "/held", "/nowhere"):
        assert count in admin.get(page).text, page
    assert count not in room.browser("ann").get("/projects").text


def test_denying_is_as_prominent_as_approving(room: Room) -> None:
    number = hold(room)
    buttons = re.findall(r'<button name="decision"[^>]*>', room.browser("admin").get(f"/held/{number}").text)
    assert [re.sub(r"wrong|good|deny|approve|Deny|Approve", "", button) for button in buttons] == [
        f'<button name="decision" value="" class="sign " aria-label=" call {number}">'
    ] * 2


def test_a_call_whose_client_has_disconnected_says_so_and_cannot_be_approved(room: Room) -> None:
    number = hold(room)
    admin = room.browser("admin")
    form = admin.fields(f"/held/{number}")
    room.db.held_calls.abandon(number)
    answer = admin.client.post(f"/held/{number}", data={**form, "decision": "approve"})
    assert answer.status_code == 409
    assert "its client has disconnected" in answer.text
    assert "now" in admin.get("/held?state=abandoned").text
    page = admin.get(f"/held/{number}").text
    assert "The client disconnected before a decision" in page
    assert 'name="decision"' not in page
    assert "No calls that are waiting" in admin.get("/held").text


def test_a_request_that_was_abandoned_shows_its_held_call(room: Room) -> None:
    number = hold(room)
    room.db.held_calls.abandon(number)
    about = {"status": 499, "error": "the client disconnected", "candidates": ()}
    add_request(room.db, "chatcmpl-held", **about)
    add_request(room.db, "chatcmpl-hel", **about)
    page = room.browser("admin").get("/request?id=chatcmpl-held").text
    assert "<b>→ <code>refund</code></b>" in page
    assert f"Call {number} was abandoned" in page
    assert "candidate" not in page.split("<main")[1]
    other = room.browser("admin").get("/request?id=chatcmpl-hel").text
    assert "The answer was not recorded" in other
    assert "refund" not in other
