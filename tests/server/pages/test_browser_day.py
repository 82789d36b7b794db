"""The annotator's day in a real browser: Debian's Chromium through Playwright."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

from annotation_site import Room, open_room
from browsing import enter, served
from command_line import run
from playwright.sync_api import Browser, Page, sync_playwright

from surefoot.records import StepLabel

CHROMIUM = shutil.which("chromium")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the path"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def room(tmp_path: Path) -> Room:
    found = open_room(tmp_path)
    found.db.projects.update(
        found.project,
        1,
        instructions="# Fractions\n\nJudge **each step** as if it stood in a textbook.\n\n"
        "* A slip of the pen is wrong.\n* Repeating the problem is neutral.\n\n<b>No HTML here.</b>",
    )
    return found


@pytest.fixture
def address(room: Room) -> Iterator[str]:
    with served(room.app) as found:
        yield found
    room.db.close()


def begin(page: Page) -> None:
    """From the page after signing in to the first item."""
    page.get_by_role("link", name="labelling").first.click()
    page.wait_for_url("**/items/*")


def press(page: Page, key: str, then: str) -> None:
    """Press a key on the page and wait until it shows ``then`` in its announcement."""
    page.keyboard.press(key)
    page.wait_for_selector(f'#work[data-announce^="{then}"]')


def on(page: Page) -> None:
    """Enter: the next item."""
    before = page.url
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: url != before)


def labelled(room: Room, name: str) -> list[tuple[int | None, int, float | None]]:
    """What stands in the store for one person: (item, step, value)."""
    return [
        (label.item_id, label.record.step, label.record.value)
        for label in room.db.export.stored(room.project)
        if label.user_id == room.ids[name] and not label.retracted
    ]


def test_day(room: Room, address: str, browser: Browser, tmp_path: Path) -> None:
    ann = enter(browser, address, "ann")
    begin(ann)
    assert ann.evaluate("document.activeElement.id") == "current"
    assert ann.locator("math mfrac").first.is_visible()
    assert "frac" in str(ann.locator(".formula").first.get_attribute("title"))
    press(ann, "3", "Step 2 of 3")
    assert ann.locator("#live").inner_text() in ("", "Step 2 of 3")
    press(ann, "1", "Item finished")
    press(ann, "u", "Step 2 of 3")
    press(ann, "+", "Step 3 of 3")
    ann.keyboard.press("f")
    ann.wait_for_selector(".step.current .comment:has-text('flagged')")
    ann.keyboard.press("c")
    ann.keyboard.type("1 2 3 are keys, and text here")
    ann.keyboard.press("Escape")
    press(ann, "2", "Item finished")
    on(ann)
    assert "<script>" in ann.locator(".step.current").inner_text()
    assert "owned" not in ann.title()
    press(ann, "0", "Step 2 of 3")
    press(ann, "-", "Item finished")
    on(ann)
    assert "capital of France" in ann.locator(".step.current .kv").first.inner_text()
    press(ann, "3", "Step 2 of 2")
    press(ann, "3", "Item finished")
    on(ann)
    assert "Nothing to label" in ann.content()
    assert labelled(room, "ann") == [
        (1, 0, 1.0), (1, 1, 1.0), (1, 2, 0.0), (2, 0, 0.0), (2, 1, -1.0), (3, 0, 1.0), (3, 1, 1.0),
    ]  # fmt: skip
    stored = room.db.export.stored(room.project)
    assert all(label.milliseconds is not None and label.milliseconds > 0 for label in stored)

    ben = enter(browser, address, "ben", viewport={"width": 375, "height": 700})
    begin(ben)
    assert ben.evaluate("document.documentElement.scrollWidth") <= 375
    assert "flagged" not in ben.content()  # blind to ann
    press(ben, "3", "Step 2 of 3")
    press(ben, "3", "Step 3 of 3")
    press(ben, "3", "Item finished")
    on(ben)
    press(ben, "3", "Step 2 of 3")
    press(ben, "1", "Item finished")
    on(ben)
    press(ben, "3", "Step 2 of 2")
    press(ben, "3", "Item finished")

    judge = enter(browser, address, "admin")
    judge.goto(f"{address}/projects/{room.project}/adjudicate")
    assert "Open: 2" in judge.content()
    judge.keyboard.press("Enter")
    judge.wait_for_url("**disagreement=1*")
    first = judge.url
    judge.keyboard.press("3")
    judge.wait_for_selector("text=Decided")
    assert judge.url.partition("#")[0] == first
    judge.goto(f"{address}/projects/{room.project}/agreement")
    assert "Krippendorff" in judge.content()

    judge.goto(f"{address}/projects/{room.project}/files")
    for name, link in (("labels", "Labels, settled"), ("traces", "Traces")):
        with judge.expect_download() as waiting:
            judge.locator("#main").get_by_role("link", name=link, exact=True).click()
        waiting.value.save_as(tmp_path / f"{name}.jsonl")
    rows = [
        StepLabel.model_validate_json(line) for line in (tmp_path / "labels.jsonl").read_text().splitlines()
    ]
    settled = [row for row in rows if row.source == "human:adjudicated"]
    assert [(row.step, row.value) for row in settled] == [(2, 1.0)]
    audit = run(
        "evaluate", "labels", f"people={tmp_path / 'labels.jsonl'}", "--traces", tmp_path / "traces.jsonl",
        "--out", tmp_path / "audit",
    )  # fmt: skip
    assert audit.status == 0, audit.err
    found = json.loads((tmp_path / "audit" / "labels.json").read_text())
    assert "people" in json.dumps(found)


def test_a_flag_ends_nothing(room: Room, address: str, browser: Browser) -> None:
    """The step stays, and the time until the flag counts."""
    page = enter(browser, address, "ann")
    page.goto(f"{address}/projects/{room.project}/annotate")
    page.keyboard.press("c")
    page.keyboard.type("This is odd.")
    page.keyboard.press("Escape")
    page.wait_for_timeout(600)
    page.keyboard.press("f")
    page.wait_for_selector(".comment:has-text('This is odd.')")
    assert page.locator("#comment").input_value() == ""
    press(page, "1", "Item finished")
    (mine,) = room.db.assignments.of_user(room.project, room.ids["ann"])
    assert mine.milliseconds is not None
    assert mine.milliseconds >= 600


def test_flags_are_resolved_by_keyboard(room: Room, address: str, browser: Browser) -> None:
    for text in ("first", "second"):
        room.db.comments.add(room.project, 1, room.ids["ann"], "flag", text, step=0)
    page = enter(browser, address, "admin")
    page.goto(f"{address}/projects/{room.project}/flags")
    page.keyboard.press("r")
    page.wait_for_selector("text=first", state="detached")
    assert page.locator(".tabs .count").inner_text().startswith("1")
    page.get_by_role("button", name="Resolve the flag on item 1, step 1").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("text=No open flag or comment")
    page.keyboard.press("f")
    page.wait_for_selector("text=second")


def test_lost_answer(room: Room, address: str, browser: Browser) -> None:
    """The network fails after the server took the label: the page sends it again, and there is one."""
    page = enter(browser, address, "ann")
    begin(page)
    lost: list[str] = []

    def lose_first(route: Any) -> None:
        if lost:
            route.continue_()
        else:
            lost.append(route.request.post_data)
            route.fetch(max_redirects=0)
            route.abort()

    page.wait_for_load_state("networkidle")
    page.route("**/label", lose_first)
    press(page, "3", "Step 2 of 3")
    assert len(lost) == 1
    assert labelled(room, "ann") == [(1, 0, 1.0)]


def test_without_script(room: Room, address: str, browser: Browser) -> None:
    page = enter(browser, address, "ann", java_script_enabled=False)
    begin(page)
    page.get_by_role("button", name="+1 good").click()
    page.wait_for_selector(".step.good")
    page.get_by_role("button", name="Undo").click()
    page.wait_for_selector("text=0 of 3")
    page.get_by_role("button", name="−1 wrong").click()
    page.wait_for_selector("text=Finished")
    assert labelled(room, "ann") == [(1, 0, -1.0)]
