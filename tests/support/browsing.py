"""A server on a free port and a signed-in browser: Debian's Chromium through Playwright."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
from annotation_site import PASSWORD
from playwright.sync_api import Browser, Page


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
    page.wait_for_load_state()
    page.wait_for_selector("#rail", state="attached")
    return page
