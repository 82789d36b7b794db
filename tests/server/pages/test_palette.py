"""The palette: pages, runs, reports and the keys of a page, by keyboard and for a screen reader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from annotation_site import Room, open_room
from browsing import enter, served
from real_browser import chromium

from surefoot.server import PageSettings

if TYPE_CHECKING:
    from playwright.sync_api import Page

AUDIT = Path(__file__).parents[2] / "support/page_audit.js"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Room, Page, str]]:
    folder = tmp_path_factory.mktemp("palette")
    (folder / "out").mkdir()
    (folder / "out" / "bench.html").write_text("<!doctype html><title>bench</title><h1>bench</h1>")
    (folder / "out" / "bench.json").write_text(
        json.dumps({"first_screen": {"sentence": "prm finds half of the errors.", "verdicts": []}})
    )
    room = open_room(folder, settings=PageSettings(reports=(folder / "out",)))
    with served(room.app) as address, chromium() as browser:
        yield room, enter(browser, address, "admin"), address
    room.db.close()


def options(page: Page) -> list[str]:
    return page.locator(".palette [role=option]").all_inner_texts()


def test_a_run_a_report_and_a_page_are_reached_by_what_they_are_called(shown: tuple[Room, Page, str]) -> None:
    room, page, address = shown
    for typed, ending in (
        ("capital of", f"/projects/{room.project}/run?id="),
        ("half of the errors", "/report?id=out%2Fbench.html"),
        ("held", "/held"),
        ("setti", f"/projects/{room.project}/settings"),
    ):
        page.goto(f"{address}/projects/{room.project}")
        page.keyboard.press("Control+k")
        page.keyboard.type(typed)
        page.wait_for_selector(f".palette li:has-text('{typed}')")
        page.keyboard.press("Enter")
        page.wait_for_url(lambda url, ending=ending: ending in url)


def test_a_run_is_found_by_its_id(shown: tuple[Room, Page, str]) -> None:
    room, page, address = shown
    run = room.db.items.get(room.project, 1).trace_id
    page.goto(f"{address}/monitor")
    page.get_by_role("button", name="Go to").click()
    page.keyboard.type(run)
    page.wait_for_selector(f".palette li:has-text('run {run}')")
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: f"run?id={run}" in url)


def test_the_keys_of_a_page_are_listed_and_work(shown: tuple[Room, Page, str]) -> None:
    room, page, address = shown
    page.goto(f"{address}/projects/{room.project}/runs")
    page.keyboard.press("?")
    assert any(one.startswith("Filter") and "/ or f" in one for one in options(page))
    page.keyboard.type("filter")
    page.wait_for_function("document.querySelectorAll('.palette li').length === 1")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "text"
    assert page.locator(".palette").count() == 0


def test_a_screen_reader_is_told_which_result_is_chosen(shown: tuple[Room, Page, str]) -> None:
    room, page, address = shown
    page.goto(f"{address}/projects/{room.project}")
    page.keyboard.press("Control+k")
    field, chosen = page.get_by_role("combobox"), page.locator('.palette [aria-selected="true"]')
    for key, number in (("ArrowDown", 1), ("ArrowDown", 2), ("ArrowUp", 1)):
        page.keyboard.press(key)
        assert field.get_attribute("aria-activedescendant") == chosen.get_attribute("id") == f"hit-{number}"
    assert page.evaluate("document.activeElement.getAttribute('role')") == "combobox"
    assert page.evaluate(AUDIT.read_text()) == []
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")  # from the first to the last
    assert chosen.get_attribute("id") == f"hit-{len(options(page)) - 1}"
    page.keyboard.press("Escape")
    page.wait_for_selector(".palette", state="detached")


def test_what_is_typed_is_text(shown: tuple[Room, Page, str]) -> None:
    room, page, address = shown
    page.goto(f"{address}/projects/{room.project}")
    page.keyboard.press("Control+k")
    page.keyboard.type('outcome:x "<b>')
    page.wait_for_selector(".palette p:has-text('0 results')")
    page.keyboard.press("Enter")
    assert page.url == f"{address}/projects/{room.project}"
