"""Signing in through a proxy that names the user in a header."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from annotation_site import Browser, Room, assignments_of, audited, link_of, open_room
from gateway_server import served
from nginx_server import nginx_program, sign_in_proxy
from pydantic import ValidationError
from starlette.requests import Request
from starlette.testclient import TestClient

from surefoot.errors import ForbiddenError, NotFoundError
from surefoot.server import PageSettings, ServerSettings, create_app, create_pages_app, make_server
from surefoot.server.pages.page import proxied_user, visitor_of

HEADER = "X-Forwarded-User"
PROXY = "10.0.0.1"
SESSION = "surefoot_session"
SETTINGS = PageSettings(trusted_user_header=HEADER, trusted_proxies=(PROXY, "2001:db8::/32"))


@pytest.fixture
def room(tmp_path: Path) -> Any:
    opened = open_room(tmp_path, settings=SETTINGS)
    yield opened
    opened.db.close()


def through(room: Room, name: str | None, address: str = PROXY, app: Any = None) -> Browser:
    """A browser whose requests come from ``address`` with the header."""
    headers = {} if name is None else {HEADER: cast("str", name.encode())}
    return Browser(TestClient(app or room.app, client=(address, 1), headers=headers, follow_redirects=False))


def test_the_proxy_signs_in_the_user_it_names(room: Room) -> None:
    ann = through(room, "ann")
    assert "Signed in as ann" in ann.get("/projects").text
    for to, location in (("/projects", "/projects"), ("//evil.example", "/")):
        answer = ann.get(f"/sign-in?next={to}")
        assert (answer.status_code, answer.headers["location"]) == (303, location)
    assert SESSION not in ann.client.cookies
    assert through(room, None).get("/projects").headers["location"] == "/sign-in?next=%2Fprojects"
    # forms still need to be this server's own
    assert ann.client.post("/sign-out", headers={"origin": "https://evil.example"}).status_code == 403
    assert ann.send("/projects", "/sign-out").status_code == 303


def test_letter_case_and_width_of_the_name_do_not_matter(room: Room) -> None:
    assert "Signed in as ann" in through(room, "\uff21NN").get("/projects").text


@pytest.mark.parametrize("address", ["10.0.0.2", "127.0.0.1", "2001:db9::1", "testclient"])
@pytest.mark.parametrize("path", ["/projects", "/sign-in", "/people", "/projects.json"])
def test_the_header_from_elsewhere_is_refused(room: Room, address: str, path: str) -> None:
    answer = through(room, "admin", address).get(path)
    assert answer.status_code == 403
    assert "only the sign-in proxy may send" in answer.text
    assert SESSION not in answer.headers.get("set-cookie", "")


def test_a_key_does_not_excuse_the_header(room: Room) -> None:
    key, _ = room.db.keys.create("reader", "viewer")
    stranger = through(room, "admin", "10.0.0.2")
    stranger.client.headers["authorization"] = f"Bearer {key}"
    assert stranger.get("/projects.json").status_code == 403


@pytest.mark.parametrize("address", [PROXY, "::ffff:10.0.0.1", "2001:db8::7"])
def test_addresses_and_networks_of_proxies(room: Room, address: str) -> None:
    assert through(room, "ann", address).get("/projects").status_code == 200


def test_a_header_that_is_not_one_name_is_refused(room: Room) -> None:
    client = TestClient(room.app, client=(PROXY, 1), follow_redirects=False)
    assert client.get("/sign-in", headers=[(HEADER, "ann"), (HEADER, "admin")]).status_code == 403
    name = HEADER.lower().encode()
    for sent in ([b"\xff\xfe"], [b"ann", b"admin"], [b"ann", b"ann"]):
        scope = {"type": "http", "client": (PROXY, 1), "headers": [(name, value) for value in sent]}
        with pytest.raises(ForbiddenError, match="must be one UTF-8 name"):
            proxied_user(Request(scope), SETTINGS)


def test_a_name_that_is_not_utf_8_is_refused_over_http(room: Room) -> None:
    app = create_pages_app(room.db, SETTINGS.model_copy(update={"trusted_proxies": ("127.0.0.1",)}))
    with served(db=room.db, pages=app, require_key=True) as server:
        for name, status in ((b"ann", 200), (b"\xff\xfe", 403), ("né".encode("latin-1"), 403)):
            answer = httpx.get(f"{server.root}/projects", headers=[(HEADER.encode(), name)])
            assert answer.status_code == status
            assert ("must be one UTF-8 name" in answer.text) == (status == 403)


def test_a_session_is_not_good_behind_the_proxy(room: Room) -> None:
    direct = Browser(TestClient(create_pages_app(room.db)))
    assert direct.sign_in("ann").status_code == 303
    assert direct.get("/projects").status_code == 200
    for address in (PROXY, "10.0.0.2"):
        thief = through(room, None, address)
        thief.client.cookies.set(SESSION, direct.client.cookies[SESSION])
        assert thief.get("/projects").status_code == 303


def test_the_header_counts_and_not_the_cookie(room: Room) -> None:
    browser = through(room, "ann")
    browser.client.cookies.set(SESSION, room.db.users.open_session(room.ids["admin"]))
    assert "Signed in as ann" in browser.get("/projects").text
    assert browser.get("/people").status_code == 403
    browser.client.headers[HEADER] = "ben"
    assert "Signed in as ben" in browser.get("/projects").text


def test_unknown_users_are_refused_unless_there_is_a_role_for_them(room: Room) -> None:
    refused = through(room, "zoe").get("/projects")
    assert refused.status_code == 403
    assert "an administrator can create one named &#39;zoe&#39;" in refused.text
    assert "zoe" not in [user.name for user in room.db.users.list()]
    settings = SETTINGS.model_copy(update={"trusted_user_role": "annotator"})
    app = create_pages_app(room.db, settings)
    for name in ("zoe", "ZOE"):
        assert through(room, name, app=app).get("/projects").status_code == 200
    zoe = room.db.users.by_name("zoe")
    assert zoe.role == "annotator"
    assert through(room, "z\u200boe", app=app).get("/projects").status_code == 400


def test_another_site_makes_no_account_and_takes_no_item(room: Room) -> None:
    settings = SETTINGS.model_copy(update={"trusted_user_role": "annotator"})
    app, cross = create_pages_app(room.db, settings), {"sec-fetch-site": "cross-site"}
    zoe, ann = through(room, "zoe", app=app), through(room, "ann", app=app)
    for path in ("/projects", "/sign-in", "/projects/1/annotate", "/nowhere"):
        assert zoe.get(path, headers=cross).status_code in (403, 404)
        assert ann.get(path, headers=cross).status_code in (403, 404)
    assert zoe.client.post("/sign-out", headers={**cross, "sec-fetch-mode": "navigate"}).status_code == 403
    assert zoe.client.post("/projects", headers={**cross, "sec-fetch-mode": "navigate"}).status_code == 403
    assert "zoe" not in [user.name for user in room.db.users.list()]
    assert assignments_of(room.db, 1, room.ids["ann"]) == []
    assert zoe.get("/projects", headers={**cross, "sec-fetch-mode": "navigate"}).status_code == 200


def test_requests_of_one_moment_make_one_account(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    app = create_pages_app(room.db, SETTINGS.model_copy(update={"trusted_user_role": "annotator"}))
    users, missed = room.db.users, threading.Barrier(4)
    by_name, late = users.by_name, set[int]()

    def all_miss(name: str) -> Any:
        if threading.get_ident() in late:
            return by_name(name)
        late.add(threading.get_ident())
        missed.wait(20)
        raise NotFoundError("not yet")

    def visit(_: int) -> int:
        request = Request({"type": "http", "method": "GET", "app": app, "client": (PROXY, 1),
                           "headers": [(HEADER.lower().encode(), b"zoe")]})  # fmt: skip
        visitor = visitor_of(request)
        assert visitor is not None
        assert visitor.user_id is not None
        return visitor.user_id

    users.by_name = all_miss  # type: ignore[method-assign]
    with ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(visit, range(4)))) == 1
    made = {"action": "account created", "project": None, "user": "zoe"}
    assert audited(caplog) == [made]


def test_a_closed_account_stays_closed(room: Room) -> None:
    ann = through(room, "ann")
    assert ann.get("/projects").status_code == 200
    room.db.users.set_active(room.ids["ann"], False)
    assert ann.get("/projects").status_code == 403


def test_personal_links_do_not_work_beside_the_proxy(room: Room) -> None:
    for client in (None, "ann"):
        browser = through(room, client)
        page = through(room, None).get("/sign-in")
        assert "through its sign-in proxy" in page.text
        assert "<form" not in page.text.partition("<main")[2]
        assert browser.client.post("/sign-in", data={"link": link_of("ann")}).status_code == 403
        assert SESSION not in browser.client.cookies


def test_accounts_behind_a_proxy_need_no_link(room: Room) -> None:
    admin = through(room, "admin")
    answer = admin.send("/people", name="zoe@example.org", role="viewer")
    assert answer.status_code == 303
    assert through(room, "zoe@example.org").get("/projects").status_code == 200


def test_the_peer_counts_and_not_what_it_forwards(room: Room) -> None:
    """Whoever names the sign-in proxy in X-Forwarded-For is not the sign-in proxy."""
    server = ServerSettings()
    config = make_server(create_app(server, pages=room.app), server).config
    config.load()
    for peer, forwarded, status in (("10.0.0.9", PROXY, 403), (PROXY, "192.0.2.7", 200)):
        browser = through(room, "ann", peer, cast("Any", config.loaded_app))
        browser.client.headers["x-forwarded-for"] = forwarded
        assert browser.get("/projects").status_code == status


@pytest.mark.parametrize(
    "settings",
    [
        {"trusted_user_header": HEADER},
        {"trusted_proxies": (PROXY,)},
        {"trusted_user_role": "viewer"},
        {"trusted_user_header": "X User", "trusted_proxies": (PROXY,)},
        {"trusted_user_header": HEADER, "trusted_proxies": ("proxy.example",)},
    ],
)
def test_incomplete_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PageSettings(**settings)


@pytest.mark.skipif(nginx_program() is None, reason="nginx is not installed (Debian: nginx-light)")
def test_a_real_proxy(tmp_path: Path) -> None:
    settings = PageSettings(trusted_user_header=HEADER, trusted_proxies=("127.0.0.2",))
    room = open_room(tmp_path, settings=settings)
    passwords = {"ann": "one", "zoe": "two"}
    with (
        served(db=room.db, pages=room.app, require_key=True) as server,
        sign_in_proxy(tmp_path, server.root, HEADER, passwords, "127.0.0.2") as address,
        httpx.Client(base_url=address, follow_redirects=True) as browser,
    ):
        assert browser.get("/projects").status_code == 401  # nginx's answer
        assert browser.get("/projects", auth=("ann", "wrong")).status_code == 401
        page = browser.get("/projects", auth=("ann", "one"))
        assert page.status_code == 200
        assert "Fractions" in page.text
        # nginx replaces the header that a client sends, so ann stays ann
        forged = browser.get("/people", auth=("ann", "one"), headers={HEADER: "admin"})
        assert forged.status_code == 403
        assert "for administrators" in forged.text
        # a form of an own page
        origin = {"origin": address}
        answer = browser.post("/sign-out", auth=("ann", "one"), headers=origin, follow_redirects=False)
        assert answer.status_code == 303
        browser.cookies.clear()
        unknown = browser.get("/projects", auth=("zoe", "two"))
        assert unknown.status_code == 403
        assert "you do not have an account here" in unknown.text
        # past the proxy
        direct = httpx.get(f"{server.root}/projects", headers={HEADER: "admin"}, follow_redirects=True)
        assert direct.status_code == 403
        assert "only the sign-in proxy may send" in direct.text
    room.db.close()
