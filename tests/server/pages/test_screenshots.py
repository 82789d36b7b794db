"""Every page in a real browser: it fits a phone, can be read in light and dark, and its links lead somewhere.

``SUREFOOT_SCREENSHOTS=DIR`` also writes pictures of each page there, light and dark, wide and phone width.
``SUREFOOT_AXE=FILE`` (``axe.min.js`` of npm's axe-core) also runs axe on each page in all four looks.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag

import pytest

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

import screenshot_pages
from browsing import enter, served
from playwright.sync_api import Browser, Page, sync_playwright
from screenshot_pages import Views, open_shown

CHROMIUM = shutil.which("chromium")
SCREENSHOTS = os.environ.get("SUREFOOT_SCREENSHOTS")
AXE = os.environ.get("SUREFOOT_AXE")
AUDIT = (Path(screenshot_pages.__file__).parent / "page_audit.js").read_text()
TALLEST = 1600
"""Pixels of a picture; a longer page is cut."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the path"),
]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Views, Browser]]:
    found, views = open_shown(tmp_path_factory.mktemp("shown"))
    with served(found.room.app) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield address, views, browser
        browser.close()
    found.db.close()


WIDE, PHONE = ("wide", 1280, 800), ("phone", 390, 844)
LOOKS = [(*WIDE, "light"), (*PHONE, "dark")]
"""Each width and each scheme once; pictures are of all four."""
ALL_LOOKS = [*LOOKS, (*WIDE, "dark"), (*PHONE, "light")]
if SCREENSHOTS:
    LOOKS = ALL_LOOKS


@pytest.mark.parametrize(("name", "width", "height", "scheme"), LOOKS)
def test_every_page(
    shown: tuple[str, Views, Browser], name: str, width: int, height: int, scheme: str
) -> None:
    wrong: list[str] = []
    for view, page in looked_at(shown, name, width, height, scheme):
        wrong += [f"{view}: {sentence}" for sentence in page.evaluate(AUDIT)]
        if page.evaluate("document.documentElement.scrollWidth") > width:
            wrong.append(f"{view}: too wide")
        if SCREENSHOTS:
            folder = Path(SCREENSHOTS)
            folder.mkdir(parents=True, exist_ok=True)
            write_picture(page, width, height, folder / f"{view}-{name}-{scheme}.png")
    assert wrong == []


@pytest.mark.skipif(AXE is None, reason="SUREFOOT_AXE does not name axe.min.js")
@pytest.mark.parametrize(("name", "width", "height", "scheme"), ALL_LOOKS)
def test_axe_finds_nothing(
    shown: tuple[str, Views, Browser], name: str, width: int, height: int, scheme: str
) -> None:
    script = Path(AXE or "").read_text()
    wrong = []
    for view, page in looked_at(shown, name, width, height, scheme):
        page.evaluate(script)
        for violation in page.evaluate("axe.run().then((result) => result.violations)"):
            wrong += [f"{view}: {violation['id']}: {node['html'][:150]}" for node in violation["nodes"]]
    assert wrong == []


def test_no_link_is_dead(shown: tuple[str, Views, Browser]) -> None:
    seen: set[str] = set()
    for view, page in looked_at(shown, "wide", 1280, 800, "light"):
        links = page.eval_on_selector_all("a[href]", "all => all.map((one) => one.href)")
        for link in sorted({urldefrag(one).url for one in links} - seen):
            seen.add(link)
            # asking for the next item takes it
            if not link.endswith(("/annotate", "/annotate.json")) and view != "error":
                assert page.request.get(link).ok, f"{view}: {link}"
    assert len(seen) > 60


def test_the_audit_sees_what_is_wrong(shown: tuple[str, Views, Browser]) -> None:
    page = shown[2].new_page()
    page.set_content("""<h1>A</h1><h3>B</h3><input id="x"><button id="x"></button><a href="#none">go</a>
        <table><tr><th>d</th></tr></table><p style="color: #aaa">faint</p><a href="#x" tabindex="2">e</a>
        <i data-keys="f">1</i><i data-keys="f g">2</i>""")
    found = " ".join(page.evaluate(AUDIT))
    for sentence in (
        "a level is left out",
        "no label",
        "no name",
        "no scope",
        "order of focus",
        "id twice: x",
        "leads nowhere",
        "key twice: f",
        "contrast 2.3",
    ):
        assert sentence in found
    page.close()


def looked_at(
    shown: tuple[str, Views, Browser], name: str, width: int, height: int, scheme: str
) -> Iterator[tuple[str, Page]]:
    """Each page in turn, as the person sees it who would."""
    address, views, browser = shown
    options: dict[str, Any] = {"viewport": {"width": width, "height": height}, "color_scheme": scheme}
    if name == "phone":
        options |= {"has_touch": True, "is_mobile": True}
    pages: dict[str | None, Page] = {None: browser.new_context(**options).new_page()}
    for view, (person, path) in views.items():
        if person is not None and person not in pages:
            pages[person] = enter(browser, address, person, **options)
        page = pages[person]
        page.set_viewport_size({"width": width, "height": height})
        answer = page.goto(address + path)
        assert answer is not None
        assert answer.ok or view == "error", f"{view}: status {answer.status}"
        yield view, page
    for page in pages.values():
        page.context.close()


def write_picture(page: Page, width: int, height: int, path: Path) -> None:
    """The page as far as ``TALLEST``, in 256 colours, which is half of the bytes."""
    from PIL import Image

    page.wait_for_load_state("networkidle")
    tall = page.evaluate("document.documentElement.scrollHeight")
    page.set_viewport_size({"width": width, "height": min(max(tall, height), TALLEST)})
    page.evaluate("scrollTo(0, 0)")
    drawn = Image.open(BytesIO(page.screenshot())).convert("RGB")
    drawn.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)
