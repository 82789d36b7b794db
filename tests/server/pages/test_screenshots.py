"""Every page in a real browser: it fits a phone, can be read in light and dark, and its links lead somewhere.

``SUREFOOT_AXE=FILE`` (``axe.min.js`` of npm's axe-core) also runs axe on each page in all four looks.
``tests/support/write_pictures.py`` writes pictures of these pages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urldefrag

import pytest
import screenshot_pages
from browsing import ALL_LOOKS, looked_at, served
from real_browser import chromium
from screenshot_pages import Views, open_shown

if TYPE_CHECKING:
    from playwright.sync_api import Browser

AXE = os.environ.get("SUREFOOT_AXE")
AUDIT = (Path(screenshot_pages.__file__).parent / "page_audit.js").read_text()

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Views, Browser]]:
    found, views = open_shown(tmp_path_factory.mktemp("shown"))
    with served(found.room.app) as address, chromium() as browser:
        yield address, views, browser
    found.db.close()


@pytest.mark.parametrize(("name", "width", "height", "scheme"), ALL_LOOKS[:2])
def test_every_page(
    shown: tuple[str, Views, Browser], name: str, width: int, height: int, scheme: str
) -> None:
    wrong: list[str] = []
    for view, page in looked_at(shown, name, width, height, scheme):
        wrong += [f"{view}: {sentence}" for sentence in page.evaluate(AUDIT)]
        if page.evaluate("document.documentElement.scrollWidth") > width:
            wrong.append(f"{view}: too wide")
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
