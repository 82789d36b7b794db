"""The page of held tool calls: who may look, who may decide, and what is shown of hostile text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from annotation_site import Room, open_room
from held_calls import held_call


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    found = open_room(tmp_path)
    yield found
    found.db.close()


def hold(room: Room) -> int:
    number = room.db.held_calls.hold(held_call(arguments='{"order": "<script>"}'), most=9)
    assert number is not None
    return number


def test_an_administrator_decides(room: Room) -> None:
    number = hold(room)
    admin = room.browser("admin")
    page = admin.get("/held").text
    assert "policy: look at the order first" in page
    assert "&lt;b&gt;now" in page
    assert "<script>" not in page.replace("<script src", "")
    admin.send("/held", f"/held/{number}", decision="deny", comment="ask first")
    [review] = room.db.held_calls.reviews([number]).values()
    assert (review.approved, review.comment) == (False, "ask first")
    assert "No calls that are waiting" in admin.get("/held").text
    assert "ask first" in admin.get("/held?state=denied").text
    twin = admin.get("/held.json?state=all").json()
    assert twin["counts"] == {"waiting": 0, "approved": 0, "denied": 1}
    assert twin["calls"][0]["calls"][0]["name"] == "refund"
    assert room.db.projects.audit_log()[0].action == "held call denied"


def test_annotators_see_and_decide_nothing(room: Room) -> None:
    number = hold(room)
    ann = room.browser("ann")
    assert ann.get("/held").status_code == 403
    assert ann.client.post(f"/held/{number}", data={"decision": "approve"}).status_code == 403
    assert room.db.held_calls.reviews([number]) == {}
