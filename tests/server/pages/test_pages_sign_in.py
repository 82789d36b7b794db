"""Signing in and out: sessions, cookies, the form's secret, and how often a password can be tried."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from annotation_site import PASSWORD, Browser, Room, open_room
from starlette.testclient import TestClient

from surefoot.server import PageSettings, create_pages_app, open_database
from surefoot.server.gateway.app import create_app, make_server
from surefoot.server.gateway.settings import ServerSettings
from surefoot.server.pages.access import Signer

SESSION = "surefoot_session"
SIGN_IN = "surefoot_sign_in"


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    found = open_room(tmp_path)
    yield found
    found.db.close()


def test_sign_in_makes_a_new_session_whatever_the_cookie_held(room: Room) -> None:
    attacker = room.browser("eve")
    fixed = attacker.client.cookies[SESSION]
    victim = room.browser()
    victim.client.cookies.set(SESSION, fixed)
    assert victim.sign_in("ann").status_code == 303
    fresh = [cookie.value for cookie in victim.client.cookies.jar if cookie.name == SESSION]
    assert set(fresh) != {fixed}
    # the session that was planted is over, too
    assert attacker.get("/projects").status_code == 303
    planted = room.browser()
    planted.client.cookies.set(SESSION, "chosen-by-somebody")
    assert planted.get("/projects").status_code == 303


def test_cookies_are_out_of_the_reach_of_scripts(tmp_path: Path) -> None:
    room = open_room(tmp_path)
    page = room.browser()
    answer = page.sign_in("ann")
    cookie = next(one for one in answer.headers.get_list("set-cookie") if one.startswith(SESSION))
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Secure" not in cookie
    secure = TestClient(create_pages_app(room.db, PageSettings(secure=True)), base_url="https://testserver")
    cookie = next(
        one for one in Browser(secure).sign_in("ann").headers.get_list("set-cookie") if SESSION in one
    )
    assert cookie.startswith(f"__Host-{SESSION}=")
    assert "Secure" in cookie
    room.db.close()


def test_sign_out_ends_the_session_on_the_server(room: Room) -> None:
    ann = room.browser("ann")
    token = ann.client.cookies[SESSION]
    assert ann.send("/projects", "/sign-out").status_code == 303
    again = room.browser()
    again.client.cookies.set(SESSION, token)
    assert again.get("/projects").status_code == 303


def test_sign_in_form_has_a_secret_of_its_own(room: Room) -> None:
    stranger = room.browser()
    assert stranger.sign_in("ann", csrf="guess").status_code == 403
    bare = room.browser()
    answer = bare.client.post("/sign-in", data={"name": "ann", "password": PASSWORD, "csrf": ""})
    assert answer.status_code == 403


@pytest.mark.parametrize("to", ["//evil.example", "https://evil.example", "/\\evil.example", "x", "/a\nb"])
def test_signing_in_leads_nowhere_else(room: Room, to: str) -> None:
    answer = room.browser().sign_in("ann", next=to)
    assert answer.headers["location"] == "/"


def test_wrong_passwords_are_few(tmp_path: Path) -> None:
    room = open_room(tmp_path, settings=PageSettings(attempts=3))
    stranger = room.browser()
    for _ in range(3):
        answer = stranger.sign_in("ann", "wrong password")
        assert answer.status_code == 401
        assert "Wrong name or password" in answer.text
    refused = stranger.sign_in("ann")
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0
    assert stranger.sign_in("ben").status_code == 303
    room.db.close()


def test_wrong_passwords_from_elsewhere_do_not_lock_the_owner_out(tmp_path: Path) -> None:
    room = open_room(tmp_path, settings=PageSettings(attempts=3))
    strangers = [Browser(TestClient(room.app, client=(f"10.0.0.{n}", 1))) for n in range(4)]
    for stranger in strangers:
        assert [stranger.sign_in("ann", "wrong").status_code for _ in range(4)] == [401, 401, 401, 429]
    assert room.browser().sign_in("ann").status_code == 303
    room.db.close()


@pytest.mark.parametrize(("proxies", "last"), [((), 429), (("10.0.0.1",), 401)])
def test_forwarded_addresses_are_believed_from_configured_proxies_alone(
    tmp_path: Path, proxies: tuple[str, ...], last: int
) -> None:
    room = open_room(tmp_path, settings=PageSettings(attempts=1))
    app = create_app(ServerSettings(), pages=room.app)
    config = make_server(app, ServerSettings(proxies=proxies)).config
    config.load()
    for client, expected in (("10.0.0.1", last), ("127.0.0.1", 429)):
        browser = Browser(TestClient(cast("Any", config.loaded_app), client=(client, 1)))
        codes = []
        for number in range(8):
            browser.client.headers["x-forwarded-for"] = f"192.0.2.{number}"
            codes.append(browser.sign_in(f"name {number}", "wrong").status_code)
        assert codes == [401] * 5 + [expected] * 3
    room.db.close()


def forged(secret: str) -> tuple[str, str]:
    """What a sibling domain could plant: a cookie, and the form's field that goes with it."""
    return secret, Signer("not the server's key").sign("sign-in form", secret)


def test_a_forged_pair_of_cookie_and_form_is_refused(room: Room) -> None:
    """A sibling domain can set a cookie for this host, and knows what it set."""
    mine = room.browser().fields("/sign-in")["csrf"]
    signer = Signer(room.db.sign_ins.signing_key())
    pairs = [
        ("chosen", "chosen"),
        forged("chosen"),
        ("chosen", mine),  # of a form that was sent to another browser
        ("chosen", signer.sign("device", "chosen")),  # signed for another purpose
        ("chosen", signer.sign("sign-in form", ["chosen"])),
        ("chosen", ""),
        ("", ""),
    ]
    for cookie, field in pairs:
        victim = room.browser()
        victim.client.cookies.set(SIGN_IN, cookie)
        answer = victim.client.post("/sign-in", data={"name": "eve", "password": PASSWORD, "csrf": field})
        assert answer.status_code == 403, (cookie, field)
        assert SESSION not in victim.client.cookies


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 303), ("none", 303)]
)
def test_a_form_from_another_page_is_refused_even_with_a_good_pair(
    room: Room, site: str, status: int
) -> None:
    """An attacker can ask for a form, and plant its cookie; but the browser says where a form comes from."""
    browser = room.browser()
    browser.client.headers["sec-fetch-site"] = site
    assert browser.sign_in("ann").status_code == status


def test_a_form_expires(room: Room) -> None:
    signer = Signer(room.db.sign_ins.signing_key())
    assert signer.read("sign-in form", signer.sign("sign-in form", "x"), seconds=10) == "x"
    assert signer.read("sign-in form", signer.sign("sign-in form", "x"), seconds=-1) is None


def test_every_cookie_is_of_this_host_alone_over_https(room: Room) -> None:
    app = create_pages_app(room.db, PageSettings(secure=True))
    browser = Browser(TestClient(app, base_url="https://testserver"))
    answers = [browser.get("/sign-in"), browser.sign_in("ann"), browser.send("/projects", "/sign-out")]
    cookies = [line for answer in answers for line in answer.headers.get_list("set-cookie")]
    assert {line.partition("=")[0] for line in cookies} == {
        f"__Host-surefoot_{name}" for name in ("session", "sign_in", "device")
    }
    for line in cookies:
        assert {"Secure", "HttpOnly", "Path=/"} <= set(line.split("; "))
        assert "Domain" not in line


def test_forms_and_attempts_are_those_of_all_processes(tmp_path: Path) -> None:
    """Two servers on one database: one's form is good at the other, and they count together."""
    settings = PageSettings(attempts=4)
    room = open_room(tmp_path, settings=settings)
    with open_database(tmp_path / "labels.db", password_cost=4) as other:
        clients = [TestClient(app) for app in (room.app, create_pages_app(other, settings))]
        browsers = [Browser(client) for client in clients]
        fields = {**browsers[0].fields("/sign-in"), "name": "ann", "password": PASSWORD}
        browsers[1].client.cookies.update(browsers[0].client.cookies)
        assert browsers[1].client.post("/sign-in", data=fields).status_code == 303
        stranger = [Browser(client) for client in clients]
        for browser in stranger:
            browser.client.cookies.clear()
        codes = [stranger[n % 2].sign_in("ben", "wrong").status_code for n in range(5)]
        assert codes == [401] * 4 + [429]
    with open_database(tmp_path / "labels.db", password_cost=4) as again:  # a restart forgives nothing
        assert Browser(TestClient(create_pages_app(again, settings))).sign_in("ben").status_code == 429
    room.db.close()


def test_guesses_from_many_addresses_are_bounded_and_the_owner_gets_in(tmp_path: Path) -> None:
    room = open_room(tmp_path, settings=PageSettings(attempts=3, account_attempts=7))
    owner = room.browser("ann")  # a browser that has signed in
    assert owner.send("/projects", "/sign-out").status_code == 303
    codes = []
    for number in range(10):
        guesser = Browser(TestClient(room.app, client=(f"10.0.{number}.1", 1)))
        codes.append(guesser.sign_in("ann", "wrong").status_code)
    assert codes == [401] * 6 + [429] * 4  # the owner's first was one of the seven
    stranger = Browser(TestClient(room.app, client=("10.1.1.1", 1)))
    assert stranger.sign_in("ann").status_code == 429
    assert stranger.sign_in("ben").status_code == 303
    assert owner.sign_in("ann", "mistyped").status_code == 401
    assert owner.sign_in("ann").status_code == 303
    room.db.close()


def test_a_known_browser_is_known_for_its_own_account_and_bounded(tmp_path: Path) -> None:
    room = open_room(tmp_path, settings=PageSettings(attempts=2, account_attempts=5))
    eve = room.browser("eve")
    assert [eve.sign_in("ann", "wrong").status_code for _ in range(3)] == [401, 401, 429]
    assert [eve.sign_in("eve", "wrong").status_code for _ in range(3)] == [401, 401, 429]
    made_up = Browser(TestClient(room.app, client=("10.0.0.9", 1)))
    made_up.client.cookies.set("surefoot_device", Signer("a guess").sign("device", ["ann", "x"]))
    assert [made_up.sign_in("ann", "wrong").status_code for _ in range(3)] == [401, 401, 429]
    room.db.close()
