"""Signing in with Canaille, an OpenID Connect provider of others, in a real browser.

It has its own virtual environment: ``python -m venv DIR && DIR/bin/pip install 'canaille[front,oidc]'``, and
``SUREFOOT_CANAILLE=DIR/bin/python`` says where it is. Without it, the test is skipped.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

pytest.importorskip("authlib", reason="the extra oidc is not installed")
pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

from annotation_site import open_room
from browsing import served
from canaille_server import CLIENT, PASSWORD, SECRET, USER
from playwright.sync_api import Page, expect, sync_playwright

from surefoot.server import OidcSettings, PageSettings, create_pages_app

CANAILLE = os.environ.get("SUREFOOT_CANAILLE")
CHROMIUM = shutil.which("chromium")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CANAILLE is None, reason="$SUREFOOT_CANAILLE names no Python that has canaille"),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the path"),
]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture
def ports(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Of the provider, which runs, and of the pages, which it knows."""
    provider, pages = free_port(), free_port()
    script = Path(__file__).parents[2] / "support" / "canaille_server.py"
    with (tmp_path / "canaille.log").open("wb") as log:
        process = subprocess.Popen(
            [str(CANAILLE), str(script), str(provider), f"http://127.0.0.1:{pages}"],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={"PATH": os.environ["PATH"]},
        )
    try:
        until = time.monotonic() + 60
        while not answers(provider):
            assert process.poll() is None, (tmp_path / "canaille.log").read_text()
            assert time.monotonic() < until, "canaille does not start"
            time.sleep(0.1)
        yield provider, pages
    finally:
        process.terminate()
        process.wait(timeout=10)


def answers(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/.well-known/openid-configuration")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def sign_in_there(page: Page) -> None:
    """Name and password on the provider's pages."""
    page.locator("input[name=login]").fill(USER)
    page.locator("input[name=login]").press("Enter")
    page.locator("input[name=password]").fill(PASSWORD)
    page.locator("input[name=password]").press("Enter")


def test_the_whole_way_with_a_real_provider(
    ports: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUREFOOT_OIDC_CLIENT_SECRET", SECRET)
    issuer, home = (f"http://127.0.0.1:{port}" for port in ports)
    room = open_room(tmp_path)
    oidc = OidcSettings(issuer=issuer, client_id=CLIENT, label="Canaille", role="viewer")
    app = create_pages_app(room.db, PageSettings(public_url=home, passwords=False, oidc=oidc))
    with served(app, ports[1]), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context().new_page()
        page.set_default_timeout(8_000)
        page.goto(f"{home}/monitor")
        page.get_by_role("link", name="Sign in with Canaille").click()
        sign_in_there(page)
        page.wait_for_url(f"{home}/monitor")
        user = room.db.users.by_identity(issuer, USER)
        assert user is not None
        assert (user.name, user.roles) == ("Olga P", {"viewer"})

        # the answer of a sign-in is of no use a second time, nor in another browser
        answer: list[str] = []
        page.on("request", lambda one: answer.append(one.url) if "/sign-in/callback" in one.url else None)
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_text("You are signed out here")).to_be_visible()
        page.get_by_role("link", name="Sign in with Canaille").click()  # still known there, and agreed
        page.wait_for_url(f"{home}/projects")
        assert {"code", "state", "iss"} <= parse_qs(urlsplit(answer[0]).query).keys()
        for other in (page, browser.new_context().new_page()):
            said = other.goto(answer[0])
            assert said is not None
            assert said.status == 403

        page.goto(f"{home}/projects")
        page.get_by_role("button", name="Sign out").click()
        page.get_by_role("link", name="Sign out of Canaille").click()
        page.get_by_role("button", name="Logout").click()
        page.wait_for_url(f"{home}/sign-in*")
        page.get_by_role("link", name="Sign in with Canaille").click()
        expect(page.locator("input[name=login]")).to_be_visible()  # signed out there, too
        browser.close()
    room.db.close()
