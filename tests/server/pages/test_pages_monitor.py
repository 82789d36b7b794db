"""The page of the gateway's monitor: no gateway, a reference to come, no change, and a named change."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from annotation_site import Room, open_room
from browsing import enter, served
from monitored_requests import request_of
from real_browser import chromium

from surefoot.server import ChangeChart, MonitorSettings, create_pages_app
from surefoot.server.pages.render import FOLDER


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    found = open_room(tmp_path)
    yield found
    found.db.close()


def test_without_a_gateway_the_page_says_what_to_do(room: Room) -> None:
    admin = room.browser("admin")
    assert admin.json("/monitor")["state"] is None
    assert "--policy" in admin.get("/monitor").text
    assert room.browser("ann").get("/monitor").status_code == 403


def test_drift_with_intervals_and_alarms(room: Room) -> None:
    monitor = ChangeChart(MonitorSettings(reference=100, run_length=1000))
    room.app = create_pages_app(room.db, gateway_monitor=monitor)
    admin = room.browser("admin")
    assert "become the reference" in admin.get("/monitor").text
    for number in range(130):
        monitor.add(request_of(number, 0.8))
    state = admin.json("/monitor")["state"]
    assert (state["fitted"], state["change"]["alarm"]) == (True, False)
    assert {len(curve["values"]) for curve in state["curves"].values()} == {31}
    both = state["signals"]["score"]
    assert both["reference"]["low"] < both["latest"]["value"] < both["reference"]["high"]
    assert "No change since the reference" in admin.get("/monitor").text
    for number in range(60):
        monitor.add(request_of(number, 0.2))
    state, page = admin.json("/monitor")["state"], admin.get("/monitor").text
    assert "score" in state["change"]["signals"]
    assert state["signals"]["score"]["latest"]["high"] < state["signals"]["score"]["reference"]["low"]
    assert "Something changed" in page
    assert min(state["curves"]["Score of the answer"]["values"]) < 0.3  # no peak is thinned away


def test_curves_and_lists_are_live(room: Room) -> None:
    monitor = ChangeChart(MonitorSettings(reference=60))
    for number in range(70):
        monitor.add(request_of(number, 0.8))
    app = create_pages_app(room.db, gateway_monitor=monitor)
    with served(app) as address, chromium() as browser:
        page = enter(browser, address, "admin")
        page.goto(f"{address}/monitor")
        page.wait_for_selector("#curves canvas")
        assert page.locator("#curves canvas").count() == 2
        errors: list[object] = []
        page.on("pageerror", lambda error: errors.append(error))
        page.route("**/monitor.json", lambda route: route.fulfill(body="<!DOCTYPE html>"))
        with page.expect_response("**/monitor.json"):
            page.reload()
        page.wait_for_load_state("networkidle")
        assert not errors, "an answer that is not JSON is passed over"
        assert page.locator("#curves canvas").count() == 0
        page.clock.install()
        page.goto(f"{address}/requests")
        assert "No request yet" in page.content()
        room.db.gateway.write_all([request_of(1, 0.5)])
        page.clock.run_for(6000)
        page.wait_for_selector("tr[data-row]")


def test_vendored_libraries_are_the_published_files() -> None:
    """SHA-256 of the files in npm's htmx.org 4.0.1 and uplot 1.6.32."""
    hashes = {
        "htmx-4.0.1.min.js": "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130",
        "uplot-1.6.32.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
        "uplot-1.6.32.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    }
    folder = FOLDER / "static" / "vendor"
    for name, digest in hashes.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    assert {path.name for path in folder.iterdir()} == {*hashes, "htmx-LICENSE.txt", "uplot-LICENSE.txt"}
