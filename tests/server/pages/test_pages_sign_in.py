"""Signing in and out: sessions, cookies, the form's secret, and how often a link can be tried."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from annotation_site import Browser, Room, link_of, open_room
from starlette.testclient import TestClient

from surefoot.server import PageSettings, create_pages_app, open_database, personal_link

SESSION = "surefoot_session"


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


@pytest.mark.parametrize("to", ["//evil.example", "https://evil.example", "/\\evil.example", "x", "/a\nb"])
def test_signing_in_leads_nowhere_else(room: Room, to: str) -> None:
    answer = room.browser().sign_in("ann", next=to)
    assert answer.headers["location"] == "/"


def test_a_link_survives_signing_in_with_its_query(room: Room) -> None:
    stranger, to = room.browser(), "/projects/1/runs?wrong=yes&text=a%26b"
    form = stranger.get(to).headers["location"]
    assert stranger.send("/sign-in", page=form, link=link_of("admin")).headers["location"] == to
    long = room.browser().get(f"/projects?text={'a' * 3000}").headers["location"]
    assert long == "/sign-in?next=%2Fprojects"


def test_a_link_is_pasted_whole_or_without_its_path(room: Room) -> None:
    link = link_of("ann")
    for pasted in (link, f"http://testserver{link}", link.partition("#")[2], f"  {link}\n"):
        assert room.browser().sign_in("ann", pasted).status_code == 303


def test_a_link_cannot_be_guessed_and_is_in_no_answer_log_or_file(
    room: Room, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    link = personal_link(room.db, room.ids["ann"])
    path, _, token = link.partition("#")
    assert path == "/sign-in"
    assert len(base64.urlsafe_b64decode(token + "=")) >= 16
    browser = room.browser()
    answers = [browser.sign_in("ann", link), browser.sign_in("ann", link[:-1]), browser.follow("/projects")]
    assert [answer.status_code for answer in answers] == [303, 401, 200]
    told = [answer.text + str(answer.headers) for answer in answers]
    assert '{"action":"sign-in","project":null,"user":"ann"}' in caplog.text
    told.append(caplog.text)
    assert not any(token[:-1] in text for text in told)
    assert token.encode() not in b"".join(file.read_bytes() for file in tmp_path.iterdir())


def test_a_wrong_link_is_refused(room: Room) -> None:
    stranger = room.browser()
    for guess in ("wrong", "/sign-in#wrong", "#"):
        answer = stranger.sign_in("ann", guess)
        assert answer.status_code == 401
        assert "This link is invalid or has expired" in answer.text


@pytest.mark.parametrize("origin", ["", "null", "https://evil.example", "http://testserver.evil.example"])
def test_another_site_signs_nobody_in(room: Room, origin: str) -> None:
    victim = room.browser()
    victim.client.headers["origin"] = origin
    assert victim.sign_in("eve").status_code == 403
    assert SESSION not in victim.client.cookies


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 303), ("none", 303)]
)
def test_a_browser_says_where_a_form_comes_from(room: Room, site: str, status: int) -> None:
    browser = room.browser()
    browser.client.headers.update({"sec-fetch-site": site, "sec-fetch-mode": "navigate"})
    assert browser.sign_in("ann").status_code == status


def test_every_cookie_is_of_this_host_alone_over_https(room: Room) -> None:
    app = create_pages_app(room.db, PageSettings(secure=True))
    browser = Browser(TestClient(app, base_url="https://testserver"))
    answers = [browser.get("/sign-in"), browser.sign_in("ann"), browser.send("/projects", "/sign-out")]
    cookies = [line for answer in answers for line in answer.headers.get_list("set-cookie")]
    assert {line.partition("=")[0] for line in cookies} == {"__Host-surefoot_session"}
    for line in cookies:
        assert {"Secure", "HttpOnly", "Path=/"} <= set(line.split("; "))
        assert "Domain" not in line


def test_forms_and_sessions_are_those_of_all_processes(tmp_path: Path) -> None:
    """Two servers on one database: one's form and session are good at the other."""
    room = open_room(tmp_path)
    with open_database(tmp_path / "labels.db") as other:
        first, second = (Browser(TestClient(app)) for app in (room.app, create_pages_app(other)))
        fields = {**first.fields("/sign-in"), "link": link_of("ann")}
        second.client.cookies.update(first.client.cookies)
        assert second.client.post("/sign-in", data=fields).status_code == 303
        first.client.cookies.update(second.client.cookies)
        assert first.get("/projects").status_code == 200
    room.db.close()
