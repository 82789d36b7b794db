"""The annotator's day in a real browser: Debian's Chromium through Playwright.

``SUREFOOT_SCREENSHOTS=DIR`` also writes pictures of each page there, light and dark, wide and phone width.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

import uvicorn
from annotation_room import PASSWORD, Room, open_room, text_trace
from command_line import run
from playwright.sync_api import Browser, Page, sync_playwright

from surefoot.records import Problem, StepLabel
from surefoot.store.database import KnownAnswer, NewItem, Protocol

CHROMIUM = shutil.which("chromium")
SCREENSHOTS = os.environ.get("SUREFOOT_SCREENSHOTS")

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
    """The pages on a free port of this machine."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    server = uvicorn.Server(
        uvicorn.Config(room.app, host="127.0.0.1", port=port, log_level="error", ws="none")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()
    room.db.close()


def enter(browser: Browser, address: str, name: str, **options: Any) -> Page:
    """A browser of its own, signed in; a script error or a request elsewhere fails the test."""
    page = browser.new_context(**options).new_page()
    page.set_default_timeout(20_000)
    page.on("pageerror", lambda error: pytest.fail(f"script error: {error}"))
    page.on("request", lambda request: None if request.url.startswith(address) else pytest.fail(request.url))
    page.goto(f"{address}/sign-in")
    page.get_by_label("Name").focus()
    page.keyboard.type(name)
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_url("**/projects")
    return page


def begin(page: Page) -> None:
    """From the list of projects to the first item."""
    page.get_by_role("link", name="Annotate").first.click()
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
    assert ann.locator(".formula .source").first.is_hidden()
    press(ann, "3", "Step 2 of 3")
    assert ann.locator("#live").inner_text() in ("", "Step 2 of 3")
    press(ann, "1", "Item finished")
    press(ann, "u", "Step 2 of 3")
    press(ann, "+", "Step 3 of 3")
    ann.keyboard.press("f")
    ann.wait_for_selector(".step.current .remark:has-text('flagged')")
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
    ann.locator("details.call summary").first.click()
    assert "capital of France" in ann.locator("details.call pre").first.inner_text()
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
    judge.wait_for_url("**/adjudicate/*")
    first = judge.url
    judge.keyboard.press("3")
    judge.wait_for_selector("text=Decided")
    assert judge.url == first
    judge.goto(f"{address}/projects/{room.project}/agreement")
    assert "Krippendorff" in judge.content()

    judge.goto(f"{address}/projects/{room.project}/files")
    for name, link in (("labels", "Labels, settled"), ("traces", "Traces")):
        with judge.expect_download() as waiting:
            judge.get_by_role("link", name=link, exact=True).click()
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


def test_phase_one_by_keyboard(room: Room, address: str, browser: Browser) -> None:
    item = _alternatives(room)
    page = enter(browser, address, "ann")
    page.goto(address + item)
    for key in ("1", "3", "2", "ArrowLeft", "g"):
        page.keyboard.press(key)
    press(page, "Enter", "Item finished")
    data = room.browser("ann").json(item)
    assert [one["value"] for one in data["alternatives"]] == [-1, 1, 0]
    assert data["chosen"] == data["alternatives"][1]["trace"]
    press(page, "u", "Step 2: 3 alternatives")
    for key in ("1", "1", "1", "h"):
        page.keyboard.press(key)
    page.keyboard.type("So $x = 2$ or $x = 3$.")
    page.keyboard.press("Escape")
    press(page, "Enter", "Item finished")
    assert room.browser("ann").json(item)["written"] == "So $x = 2$ or $x = 3$."


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


@pytest.mark.skipif(not SCREENSHOTS, reason="SUREFOOT_SCREENSHOTS names no directory")
def test_screenshots(room: Room, address: str, browser: Browser) -> None:
    write_screenshots(room, address, browser, Path(str(SCREENSHOTS)))


def write_screenshots(room: Room, address: str, browser: Browser, folder: Path) -> None:
    """Pictures of each page, light and dark, 1280 and 390 wide."""
    folder.mkdir(parents=True, exist_ok=True)
    views = _prepare(room)
    for scheme in ("light", "dark"):
        for width, height, name in ((1280, 800, "wide"), (390, 844, "phone")):
            options = {"viewport": {"width": width, "height": height}, "color_scheme": scheme}
            out = browser.new_context(**options).new_page()
            out.goto(f"{address}/sign-in")
            out.screenshot(path=folder / f"sign-in-{name}-{scheme}.png")
            pages = {person: enter(browser, address, person, **options) for person in ("ann", "admin")}
            for view, (person, path) in views.items():
                page = pages[person]
                page.goto(address + path)
                assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{view} is too wide"
                page.screenshot(path=folder / f"{view}-{name}-{scheme}.png")


def _prepare(room: Room) -> dict[str, tuple[str, str]]:
    """Work of two annotators, a project of each phase, and the pages to be shown."""
    base, db = f"/projects/{room.project}", room.db
    _known_item(room)
    people = {name: room.browser(name) for name in ("ann", "ben")}
    for name, values in (("ben", (1, 0, 1, 1, -1, 1, 1)), ("ann", (1, 1, 1))):
        _label(people[name], base, values)
    current = str(people["ann"].follow(f"{base}/annotate").url.path)
    people["ann"].send(current, f"{current}/label", value="1", comment="Odd, but not wrong.")
    steps = _alternatives(room)
    agent = next(
        item.id
        for item in db.items.list(room.project)
        if len(db.traces.trace(room.project, item.trace_ids[0]).messages)
    )
    db.assignments.assign(room.project, agent, room.ids["admin"])
    run_page = f"{base}/items/{agent}"
    room.browser("admin").send(run_page, f"{run_page}/label", value="1")
    room.browser("admin").send(
        f"{base}/queue", policy="convincing-wrong", random_share="0.1", control_share="0.1"
    )
    return {
        "projects": ("admin", "/projects"),
        "project": ("admin", base),
        "annotate": ("ann", current),
        "alternatives": ("ann", steps),
        "agent": ("admin", run_page),
        "instructions": ("ann", f"{base}/instructions"),
        "agreement": ("admin", f"{base}/agreement"),
        "disagreements": ("admin", f"{base}/adjudicate"),
        "adjudicate": ("admin", f"{base}/adjudicate/1"),
        "queue": ("admin", f"{base}/queue"),
        "settings": ("admin", f"{base}/settings"),
        "files": ("admin", f"{base}/files"),
        "people": ("admin", "/people"),
        "error": ("ann", f"{base}/settings"),
    }


def _known_item(room: Room) -> None:
    problem = Problem(text="What is $7 \\cdot 8$?", answer="56")
    trace = text_trace(problem, "$7 \\cdot 8 = 54$.", "The answer is 54.")
    room.db.traces.add_problems(room.project, [problem])
    room.db.traces.add_traces(room.project, [trace])
    known = (KnownAnswer(trace_id=trace.id, step=0, value=-1),)
    item = NewItem(trace_ids=(trace.id,), role="control", known=known)
    (made,) = room.db.items.add(room.project, [item])
    for name, value in (("ann", -1), ("ben", -1)):
        room.db.assignments.assign(room.project, made, room.ids[name])
        page = f"/projects/{room.project}/items/{made}"
        room.browser(name).send(page, f"{page}/label", value=str(value), milliseconds="8200")


def _label(person: Any, base: str, values: tuple[int, ...]) -> None:
    for number, value in enumerate(values):
        path = str(person.follow(f"{base}/annotate").url.path)
        time_taken = str(5200 + 1700 * number)
        answer = person.send(path, f"{path}/label", value=str(value), milliseconds=time_taken)
        assert answer.status_code == 303, answer.text


def _alternatives(room: Room) -> str:
    """A project of phase 1, with an item in ann's hands; its address."""
    project = room.db.projects.create("Next steps", protocol=Protocol(phase=1)).id
    room.db.projects.set_member(project, room.ids["ann"], "annotator")
    problem = Problem(text="Solve $x^2 - 5x + 6 = 0$.", answer="2, 3")
    start = "Look for two numbers with sum $5$ and product $6$."
    ends = (
        "They are $1$ and $6$, so $x = 1$ or $x = 6$.",
        "They are $2$ and $3$.",
        r"So $x = \frac{5 \pm \sqrt{25 - 24}}{2}$.",
    )
    traces = [text_trace(problem, start, end) for end in ends]
    room.db.traces.add_problems(project, [problem])
    room.db.traces.add_traces(project, traces)
    item = NewItem(trace_ids=tuple(trace.id for trace in traces), kind="alternatives", step=1)
    (made,) = room.db.items.add(project, [item])
    room.db.assignments.assign(project, made, room.ids["ann"])
    return f"/projects/{project}/items/{made}"
