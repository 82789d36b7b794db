"""Debian's Chromium through Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; a test that opens one is skipped where Playwright or Chromium is missing.

    While it is open no event loop can be started in this thread, so ``asyncio.run`` fails.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if (program := shutil.which("chromium")) is None:
        pytest.skip("there is no chromium on the path")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()
