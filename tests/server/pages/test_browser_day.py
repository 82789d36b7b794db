"""From an invitation to the model's report in a real browser: Debian's Chromium through Playwright."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from annotation_site import Room, open_room, solutions, text_trace
from browsing import enter, open_page, served
from command_line import good

from surefoot.io import read_records, write_records
from surefoot.records import Problem, StepLabel
from surefoot.server import PageSettings
from surefoot.server.store.labels import decisions_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow


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
        if label.user_id == room.ids[name] and label.is_current
    ]


def label(page: Page, *keys: str) -> None:
    """Label an item, a key for each step, and go on to the next."""
    for step, key in enumerate(keys, 2):
        press(page, key, f"Step {step} of {len(keys)}" if step <= len(keys) else "Item finished")
    on(page)


def invited(judge: Page, browser: Browser, address: str, name: str) -> Page:
    """A browser that an invitation's link has signed in."""
    judge.goto(f"{address}/people")
    judge.get_by_label("Name").fill(name)
    judge.get_by_role("button", name="Make a link").click()
    link = judge.locator("input[data-link]").input_value()
    page = open_page(browser, address)
    page.goto(link)
    assert "#" not in page.url  # the token stays neither in the address nor in the history
    page.keyboard.press("Enter")
    page.wait_for_selector("#rail", state="attached")
    return page


def drop(page: Page, *files: Path) -> None:
    """Drop files on the upload field with the mouse."""
    box = page.locator("input[type=file]").bounding_box()
    assert box is not None
    mouse = page.context.new_cdp_session(page)
    for event in ("dragEnter", "dragOver", "drop"):
        where = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
        data = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
        mouse.send("Input.dispatchDragEvent", {"type": event, **where, "data": data})


def labelled_by_ann(browser: Browser, address: str) -> None:
    """By keyboard, with a correction and a comment."""
    ann = enter(browser, address, "ann")
    begin(ann)
    assert ann.evaluate("document.activeElement.id") == "current"
    assert ann.locator("math mfrac").first.is_visible()
    assert "frac" in str(ann.locator(".formula").first.get_attribute("title"))
    press(ann, "1", "Step 2 of 3")
    assert ann.locator("#live").inner_text() in ("", "Step 2 of 3")
    press(ann, "-", "Step 3 of 3")
    press(ann, "u", "Step 2 of 3")
    press(ann, "+", "Step 3 of 3")
    ann.keyboard.press("c")
    ann.keyboard.type("1 2 3 are keys, and text here")
    ann.keyboard.press("Escape")
    press(ann, "0", "Item finished")
    on(ann)
    assert "<script>" in ann.locator(".step.current").inner_text()
    assert "owned" not in ann.title()
    label(ann, "0", "-", "1")
    assert "capital of France" in ann.locator(".step.current .kv").first.inner_text()
    label(ann, "-", "1")
    assert "Nothing to label" in ann.content()


def labelled_by_ben(browser: Browser, address: str) -> None:
    """On a phone, blind to ann."""
    ben = enter(browser, address, "ben", viewport={"width": 375, "height": 700})
    begin(ben)
    assert ben.evaluate("document.documentElement.scrollWidth") <= 375
    assert "are keys" not in ben.content()
    label(ben, "1", "1", "1")
    label(ben, "0", "-", "1")
    label(ben, "-", "1")


def test_story(tmp_path: Path, browser: Browser, gpt2_base: Path) -> None:
    """From an invitation to the run that a report of the trained model names."""
    room = open_room(tmp_path, wrong=False, settings=PageSettings(reports=(tmp_path / "runs",)))
    with served(room.app) as address:
        project = f"{address}/projects/{room.project}"
        judge = enter(browser, address, "admin")
        cyd = invited(judge, browser, address, "cyd")

        judge.goto(f"{project}/settings")
        judge.get_by_label("Annotators per item").fill("3")
        judge.get_by_label("Labelling ends").select_option("every-step")
        judge.get_by_role("button", name="Save").click()
        problems, traces = solutions()
        write_records(tmp_path / "problems.jsonl", problems)
        write_records(tmp_path / "runs.jsonl", traces)
        judge.goto(project)
        judge.get_by_role("link", name="Drop a file").click()
        drop(judge, tmp_path / "problems.jsonl", tmp_path / "runs.jsonl")
        judge.get_by_role("button", name="Import").click()
        judge.wait_for_selector("text=3 items to label")

        labelled_by_ann(browser, address)
        assert labelled(room, "ann") == [
            (1, 0, 1.0), (1, 1, 1.0), (1, 2, 0.0), (2, 0, 0.0), (2, 1, -1.0), (2, 2, 1.0),
            (3, 0, -1.0), (3, 1, 1.0),
        ]  # fmt: skip
        labelled_by_ben(browser, address)
        cyd.goto(address)
        begin(cyd)
        label(cyd, "1", "1", "1")
        label(cyd, "0", "-", "1")
        label(cyd, "1", "1")
        stored = room.db.export.stored(room.project)
        assert all(row.milliseconds is not None and row.milliseconds > 0 for row in stored)

        judge.goto(f"{project}/adjudicate")
        assert "Open: 2" in judge.content()
        judge.keyboard.press("Enter")
        judge.wait_for_url("**disagreement=1*", wait_until="load")  # with its scripts
        first = judge.url
        # htmx binds forms in a task of its own, maybe after "load"; before that the browser opens a new page
        judge.wait_for_selector("#dock[data-htmx-powered]")
        judge.keyboard.press("1")
        judge.wait_for_selector("text=Decided")
        assert judge.url == f"{first}#step-3"
        on(judge)
        judge.keyboard.press("-")
        judge.wait_for_selector("text=Decided")
        for run_address in (first, first.replace("&disagreement=1", "")):
            answer = cyd.goto(run_address)  # others' labels, and scores
            assert answer is not None
            assert answer.status == 403
        judge.goto(f"{project}/agreement")
        assert "Krippendorff" in judge.content()

        judge.goto(f"{project}/files")
        for name, link in (("p", "Problems"), ("t", "Traces"), ("l", "Labels after adjudication")):
            with judge.expect_download() as waiting:
                judge.locator("#main").get_by_role("link", name=link, exact=True).click()
            waiting.value.save_as(tmp_path / f"{name}.jsonl")
        rows = list(read_records(tmp_path / "l.jsonl", StepLabel))
        settled = {(row.trace_id, row.step): row.value for row in rows if row.source == "human:adjudicated"}
        assert settled == {(traces[0].id, 2): 1.0, (traces[2].id, 0): -1.0}

        data = [f"--{name}={tmp_path / name[0]}.jsonl" for name in ("problems", "labels")]
        model, found = tmp_path / "runs" / "prm", tmp_path / "runs" / "found"
        good("train", "prm", tmp_path / "t.jsonl", *data, "--base", gpt2_base, "--epochs=1", "--out", model)
        good("evaluate", "--as=runs:threshold=0.5", f"prm={model}", *data, f"--traces={tmp_path / 't.jsonl'}",
             "--set=draws=20", "--out", found)  # fmt: skip
        judge.locator("#rail").get_by_role("link", name="Reports").click()
        content = json.loads((found / "runs.json").read_text())
        sentence, right = content["first_screen"]["sentence"], content["right_by_example"]
        assert {type(value) for value in right.values()} == {bool}  # what pairs two reports
        assert right.keys() <= {trace.id for trace in traces}
        judge.get_by_role("link", name=sentence).click()
        assert judge.frame_locator("iframe").locator("h1").inner_text() == sentence
        judge.locator(".crumb").get_by_role("link", name="run ").first.click()
        judge.wait_for_selector("p.verdict b")
        assert judge.get_by_role("link", name="the report").is_visible()
    room.db.close()


def decided(room: Room, run: str) -> list[tuple[int, float | None]]:
    """Steps of a run with their decisions."""
    found = decisions_in(room.db.labels.of_traces(room.project, [run])[run])
    return [(step, label.record.value) for step, label in found.items()]


def test_a_page_that_is_read_stores_nothing_until_one_decides(
    room: Room, address: str, browser: Browser
) -> None:
    page = enter(browser, address, "admin")
    run = room.db.items.get(room.project, 1).trace_id
    page.goto(f"{address}/projects/{room.project}/run?id={run}")
    for key in ("j", "1", "-", "0"):
        page.keyboard.press(key)
    page.keyboard.press("?")
    page.wait_for_selector("dialog:has-text('Decide steps')")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog[open]", state="detached")
    page.keyboard.press("d")
    page.wait_for_selector("#dock")
    assert decided(room, run) == []
    page.locator("#step-2").click()
    page.keyboard.press("-")
    page.wait_for_selector(".notice:has-text('Step 2 is now')")
    assert decided(room, run) == [(1, -1)]
    assert page.locator("#step-2 input[type=radio]").is_checked()
    page.keyboard.press("u")
    page.wait_for_selector(".notice", state="detached")
    assert decided(room, run) == []


def test_on_a_phone_the_end_of_a_long_formula_is_reached(room: Room, address: str, browser: Browser) -> None:
    problem = Problem(text="Add.")
    sums = "$" + "+".join(f"a_{{{number}}}x" for number in range(60)) + "$"
    trace = text_trace(problem, sums, f"$${sums[1:]}$")
    room.db.traces.add_problems(room.project, [problem])
    room.db.traces.add_traces(room.project, [trace])
    page = enter(browser, address, "admin", viewport={"width": 375, "height": 700})
    page.goto(f"{address}/projects/{room.project}/run?id={trace.id}")
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    for box in page.locator(".steps .formula").all():
        box.evaluate("node => node.scrollLeft = node.scrollWidth")
        right = (
            "node.getBoundingClientRect().right - node.querySelector('math').getBoundingClientRect().right"
        )
        reach = box.evaluate(f"node => {right}")
        assert reach > -2
        assert box.get_attribute("tabindex") == "0"


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
    press(page, "1", "Step 2 of 3")
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
