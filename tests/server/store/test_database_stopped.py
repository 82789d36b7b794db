"""A PostgreSQL server that is stopped in use: every route says so plainly, and recovers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from annotation_site import Browser, open_room
from gateway_server import routes_of
from postgres_server import Postgres, postgres_programs, running_postgres
from starlette.testclient import TestClient

from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.server import Gateway, create_app
from surefoot.server.gateway.settings import ServerSettings

WITHOUT_DATABASE = (
    "GET /health",
    "GET /sign-in",
    "POST /sign-in",  # its form's secret comes first
    "GET /join",
    "POST /join",
    "* /v1/{path:path}",
)
VALUES = {"kind": "labels", "name": "prm800k", "model": "scripted"}
QUESTION = {"model": "scripted", "messages": [{"role": "user", "content": "x"}]}


@dataclass
class Site:
    """The service, and the server of its database."""

    server: Postgres
    client: TestClient
    key: str
    signed_in: Browser
    routes: list[str]

    def ask(self, route: str, *, key: bool) -> tuple[int, str | None, str]:
        """Status, Retry-After and body of a route, asked with a key or by a browser that is signed in."""
        method, _, path = route.partition(" ")
        path = re.sub(r"\{(\w+)(:\w+)?\}", lambda found: VALUES.get(found[1], "1"), path)
        client = self.client if key else self.signed_in.client
        headers = {"Authorization": f"Bearer {self.key}", "Origin": "http://localhost"} if key else {}
        form = {"link": "y"}
        sent = {"json": QUESTION} if path.startswith("/v1") else {"data": form} if method == "POST" else {}
        answer = client.request(method, path, headers=headers, follow_redirects=False, **sent)
        return answer.status_code, answer.headers.get("retry-after"), answer.text


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    programs = postgres_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    pytest.importorskip("psycopg", reason="the PostgreSQL driver psycopg is not installed")
    with running_postgres(programs) as server:
        room = open_room(tmp_path, url=server.url("postgres"))
        key, _ = room.db.keys.create("all", "admin")
        gateway = Gateway(ScriptedPolicy(lambda request, sample: "yes"), log=room.db.gateway)
        app = create_app(ServerSettings(require_key=True), gateway=gateway, pages=room.app, keys=room.db.keys)
        with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
            browser = Browser(TestClient(app, base_url="http://localhost", raise_server_exceptions=False))
            assert browser.sign_in("admin").status_code == 303
            routes = sorted(routes_of(app) | routes_of(room.app))
            yield Site(server, client, key, browser, routes)
        room.db.close()


@pytest.mark.slow
def test_every_route_says_that_the_database_is_gone_and_recovers(site: Site) -> None:
    routes = [route for route in site.routes if route not in WITHOUT_DATABASE]
    page_routes = [route for route in routes if not re.search("/v1|/ready|/metrics", route)]
    assert len(routes) > 45
    site.server.stop()
    try:
        asked = {(route, True): site.ask(route, key=True) for route in routes}
        assert site.signed_in.sign_in("ann").status_code == 503
        asked |= {(route, False): site.ask(route, key=False) for route in page_routes}
    finally:
        site.server.start()
    for (route, key), (status, retry_after, text) in asked.items():
        assert status == 503, (route, key, status, text)
        assert retry_after, route
        assert not re.search(r"psycopg|sqlalchemy|Traceback|socket|/tmp|SELECT", text), (route, text)
    for route in routes:
        status, _, text = site.ask(route, key=True)
        assert status < 500, (route, status, text)
