"""Steps with images in a real browser: labelled by keyboard, as text is."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from annotation_site import Room, open_room
from browsing import enter, served
from PIL import Image

from surefoot.records import Attachment, Message, Problem, ToolCall, Trace
from surefoot.segment import segment_trace

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow


def browsing_run(room: Room) -> int:
    """An item of an agent that looks at tall screenshots; its number."""
    held = []
    for color in ("red", "teal", "navy"):
        stream = io.BytesIO()
        Image.new("RGB", (900, 1400), color).save(stream, "PNG")
        room.db.traces.add_image(room.project, stream.getvalue(), color)
        digest = hashlib.sha256(stream.getvalue()).hexdigest()
        held.append((Attachment(kind="image", sha256=digest, name=f"{color}.png"),))
    problem = Problem(text="Which of the pages is teal?")
    looks = [
        message
        for number, shot in enumerate(held[1:], 2)
        for message in (
            Message(
                role="assistant",
                content=f"I open page {number}.",
                tool_calls=(ToolCall(id=f"c{number}", name="open", arguments=f'{{"page": {number}}}'),),
            ),
            Message(role="tool", content="Opened.", tool_call_id=f"c{number}", attachments=shot),
        )
    ]
    messages = (
        Message(role="user", content=problem.text, attachments=held[0]),
        *looks,
        Message(role="assistant", content="It is page 2."),
    )
    trace = segment_trace(Trace(problem_id=problem.id, messages=messages), granularity="message")
    room.db.traces.add_problems(room.project, [problem])
    room.db.traces.add_traces(room.project, [trace])
    [item] = room.db.items.add(room.project, [trace.id])
    return item


def shown(page: Page) -> list[str]:
    """Names of the images that are shown, once all have loaded."""
    for _ in range(200):
        if page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)"):
            break
        page.wait_for_timeout(50)
    else:
        pytest.fail("an image does not load")
    return [str(image.get_attribute("alt")) for image in page.locator("img.shown").all()]


@pytest.mark.parametrize("width", [1280, 390])
def test_steps_with_images_are_labelled_by_keyboard(tmp_path: Path, browser: Browser, width: int) -> None:
    room = open_room(tmp_path)
    item = browsing_run(room)
    with served(room.app) as address:
        page = enter(browser, address, "ann", viewport={"width": width, "height": 700})
        page.goto(f"{address}/projects/{room.project}/annotate")
        for _ in range(8):
            if page.url.endswith(f"/items/{item}"):
                break
            page.keyboard.press("s")
            page.get_by_role("button", name="Skip", exact=True).click()
            page.wait_for_load_state()
        names = ["image: red.png", "image: teal.png", "image: navy.png"]
        for step, key in enumerate("110", 1):
            assert shown(page) == names[:step]
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            box = page.locator("#current").bounding_box()
            assert box is not None
            assert 0 <= box["y"] < 700, (
                "the step to label is on the screen, whatever the images above it take"
            )
            page.keyboard.press(key)
            then = f"Step {step + 1} of 3" if step < 3 else "Item finished"
            page.wait_for_selector(f'#work[data-announce^="{then}"]')
        assert shown(page) == names
    labels = [row for row in room.db.export.stored(room.project) if row.item_id == item]
    assert [(row.record.step, row.record.value) for row in labels] == [(0, 1), (1, 1), (2, 0)]
    room.db.close()
