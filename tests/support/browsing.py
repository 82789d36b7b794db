"""A server on a free port and a signed-in browser: Debian's Chromium through Playwright."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
from annotation_site import link_of
from screenshot_inspection import Views

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WIDE, PHONE = ("wide", 1280, 800), ("phone", 390, 844)
ALL_LOOKS = [(*WIDE, "light"), (*PHONE, "dark"), (*WIDE, "dark"), (*PHONE, "light")]
"""Name, width and height in pixels, colour scheme; the first two have each width and each scheme once."""


@contextmanager
def served(app: Any, port: int | None = None) -> Iterator[str]:
    """``app`` on a port of this machine, by default any free one; its address."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = port or found.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:  # also after a test that fails
        server.should_exit = True
        thread.join()


def open_page(browser: Browser, address: str, **options: Any) -> Page:
    """A browser of its own; a script error or a request elsewhere fails the test."""
    page = browser.new_context(**options).new_page()
    page.set_default_timeout(20_000)
    page.on("pageerror", lambda error: pytest.fail(f"script error: {error}"))
    page.on("request", lambda request: None if request.url.startswith(address) else pytest.fail(request.url))
    return page


def enter(browser: Browser, address: str, name: str, **options: Any) -> Page:
    """A page that is signed in."""
    page = open_page(browser, address, **options)
    page.goto(address + link_of(name))
    if not options.get("java_script_enabled", True):  # its owner pastes it
        page.get_by_label("Your personal link").fill(link_of(name))
        page.get_by_label("Your personal link").focus()
    page.keyboard.press("Enter")
    page.wait_for_load_state()
    page.wait_for_selector("#rail", state="attached")
    return page


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
