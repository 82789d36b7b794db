"""Worked examples show the images of their traces: in order, bounded, checked, and nothing is loaded."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from surefoot import display, extras
from surefoot.evaluation import report
from surefoot.evaluation.report import (
    FirstScreen,
    JudgedTrace,
    Report,
    WorkedExample,
    to_json,
    worked_examples,
)
from surefoot.protocols import ProblemTrace
from surefoot.records import Attachment, Message, Problem, Trace
from surefoot.segment import segment_trace

COLOURS = ("red", "green", "blue", "white", "black", "grey", "pink", "teal", "gold", "navy")


def png(colour: str = "red", size: tuple[int, int] = (8, 6)) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, colour).save(stream, "PNG")
    return stream.getvalue()


def url_of(content: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def example(folder: Path | None, *shown: tuple[Attachment, ...], error: int = 0) -> WorkedExample:
    """A run of one step after each message with attachments, whose first error is missed."""
    messages: list[Message] = []
    for number, held in enumerate(shown):
        messages += [
            Message(role="user", content=f"look {number}", attachments=held),
            Message(role="assistant", content=f"I saw number {number}."),
        ]
    trace = segment_trace(Trace(id="run", problem_id="p", messages=tuple(messages)))
    item = ProblemTrace(problem=Problem(id="p", text="What is it?"), trace=trace)
    [found] = worked_examples([JudgedTrace(item=item, error=error, predicted=-1)], folder)
    return found


def image(uri: str, name: str | None = None) -> Attachment:
    return Attachment(kind="image", uri=uri, name=name)


class Page(HTMLParser):
    """Addresses that a page names in any attribute, its images, and its texts and images in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.images: list[tuple[str, str]] = []
        self.loaded: list[str] = []
        self.order: list[str] = []
        self.tags: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        found = dict(attrs)
        if tag == "img":
            self.images.append((found["src"] or "", found["alt"] or ""))
            self.order.append(found["alt"] or "")
        self.loaded += [
            value or ""
            for name, value in attrs
            if name in ("src", "srcset", "data", "poster", "background", "style", "action", "xlink:href")
            or (name == "href" and tag != "a")
        ]

    def handle_data(self, data: str) -> None:
        self.order.append(data)


def page_of(*examples: WorkedExample) -> str:
    return Report("t", FirstScreen(sentence="So.", examples=examples)).html()


def full(html: str) -> str:
    return html[html.index("The examples in full") :]


def card(html: str) -> str:
    return html[: html.index("The examples in full")]


def test_images_stand_before_the_step_that_follows_them_with_their_names(tmp_path: Path) -> None:
    for colour in COLOURS[:3]:
        (tmp_path / f"{colour}.png").write_bytes(png(colour))
    shown = example(
        tmp_path,
        (image("red.png", 'a "sign" <b>'), image("green.png", "second")),
        (image("blue.png"),),
    )
    html = page_of(shown)
    for part in (card(html), full(html)):
        page = Page(part)
        assert page.images == [
            (url_of(png("red")), 'image: a "sign" <b>'),
            (url_of(png("green")), "image: second"),
            (url_of(png("blue")), "image: blue.png"),
        ]
        wanted = [
            'image: a "sign" <b>',
            "image: second",
            "I saw number 0.",
            "image: blue.png",
            "I saw number 1.",
        ]
        assert [text for text in page.order if text in wanted] == wanted


@pytest.mark.parametrize("error", [0, 5, 11])
def test_a_card_shows_the_images_of_the_problem_and_of_the_steps_near_the_error(
    tmp_path: Path, error: int
) -> None:
    names = [f"{number}.png" for number in range(12)]
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(png(COLOURS[number % 10]))
    html = page_of(example(tmp_path, *((image(name),) for name in names), error=error))
    assert [alt for _, alt in Page(full(html)).images] == [f"image: {name}" for name in names]
    near = {0, *range(max(0, error - 2), min(11, error + 3) + 1)}  # and before the step after the last one
    assert [alt for _, alt in Page(card(html)).images] == [f"image: {number}.png" for number in sorted(near)]


def test_an_image_after_the_last_step_is_shown_last(tmp_path: Path) -> None:
    (tmp_path / "end.png").write_bytes(png())
    trace = segment_trace(
        Trace(
            id="run",
            problem_id="p",
            messages=(
                Message(role="user", content="Click."),
                Message(role="assistant", content="I click."),
                Message(role="tool", content="", attachments=(image("end.png"),)),
            ),
        )
    )
    item = ProblemTrace(problem=Problem(id="p", text="Click."), trace=trace)
    html = page_of(*worked_examples([JudgedTrace(item=item, error=0, predicted=-1)], tmp_path))
    for part in (card(html), full(html)):
        order = Page(part).order
        assert order.index("I click.") < order.index("image: end.png")


REFUSED = {
    "../secret.png": "leaves the folder",
    "/etc/hostname": "leaves the folder",
    "script.svg": "not a PNG",
    "moving.gif": "animated",
    "wide.png": "pixels are too many",
    "cut.png": "damaged",
    "gone.png": "No such file",
    "https://example.org/cat.png": "image: https://example.org/cat.png",
    "http://169.254.169.254/latest": "image: http://169.254.169.254/latest",
    "file:///etc/hostname": "image: file:///etc/hostname",
    "data:text/html,<script>alert(1)</script>": "<script>",
    "data:image/svg+xml;base64,PHN2Zy8+": "not a PNG",
}


@pytest.mark.parametrize("uri", REFUSED)
def test_refused_images_are_named_and_nothing_is_loaded(tmp_path: Path, uri: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "secret.png").write_bytes(png())
    (folder / "script.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'><script>x</script></svg>")
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    frames[0].save(folder / "moving.gif", save_all=True, append_images=frames[1:])
    Image.new("1", (10_000, 6_000)).save(folder / "wide.png")
    (folder / "cut.png").write_bytes(png()[:-30])
    html = page_of(example(folder, (image(uri),)))
    page = Page(html)
    assert not page.images
    assert REFUSED[uri] in "".join(page.order)
    assert not page.loaded
    assert not page.tags & {"script", "iframe", "object", "embed", "link", "base"}


def test_a_page_may_load_nothing_but_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    html = page_of(example(tmp_path, (image("a.png"),)))
    [policy] = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', html)
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert html.index("Content-Security-Policy") < html.index("<style>")
    assert Page(html).loaded == [url_of(png())] * 2


def noise(side: int) -> bytes:
    """A PNG whose bytes cannot be compressed."""
    pixels = np.random.default_rng(side).integers(0, 256, (side, side, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def test_one_image_and_one_example_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "huge.png").write_bytes(noise(760))
    (tmp_path / "large.png").write_bytes(noise(700))
    assert len(url_of(noise(760))) > report._IMAGE > len(url_of(noise(700))) > report._IMAGES / 3
    held = [image("huge.png"), *(image("large.png", str(number)) for number in range(4)), image("a.png")]
    (tmp_path / "a.png").write_bytes(png())
    shown = example(tmp_path, tuple(held)).images
    assert [bool(each.url) for each in shown] == [False, True, True, False, False, True]
    assert sum(len(each.url) for each in shown) <= report._IMAGES
    assert shown[0].text == "image: huge.png: too large to be shown here"


def test_no_more_images_are_read_than_can_be_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.png").write_bytes(png())
    read: list[str] = []

    def embedded(held: Attachment, folder: Path) -> Attachment:
        read.append(str(held.uri))
        return original(held, folder)

    original = display.embedded
    monkeypatch.setattr(display, "embedded", embedded)
    shown = example(tmp_path, tuple(image("a.png") for _ in range(103)), error=0).images
    assert len(read) == 100
    unread = "image: a.png: too many to be shown here"
    assert [each.text for each in shown[99:]] == ["image: a.png", *[unread] * 3]


def test_a_name_is_bounded(tmp_path: Path) -> None:
    for held in (image("a.png", "n" * 5000), image("../" + "x" * 5000), image("https://" + "h" * 5000)):
        [shown] = example(tmp_path, (held,)).images
        assert len(shown.text) <= 300


def test_the_json_holds_names_and_hashes_and_no_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    digest = hashlib.sha256(png()).hexdigest()
    held = image("a.png", "sign").model_copy(update={"sha256": digest})
    shown = example(tmp_path, (held,))
    data = to_json([shown])
    assert data[0]["images"] == [{"next_step": 0, "text": "image: sign", "sha256": digest}]
    inline = to_json(example(tmp_path, (image(url_of(png())),)))
    assert inline["images"][0]["text"] == "image: no name"
    assert "base64" not in json.dumps([data, inline])


def test_without_a_folder_or_pillow_the_report_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.png").write_bytes(png())
    assert not Page(page_of(example(None, (image("a.png"),)))).images
    monkeypatch.setattr(extras, "installed", lambda module: module != "PIL")
    page = Page(page_of(example(tmp_path, (image("a.png"),))))
    assert not page.images
    assert "reading images needs the package PIL" in "".join(page.order)
