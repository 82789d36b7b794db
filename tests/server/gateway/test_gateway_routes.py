"""What the gateway answers where it has no route, or none for the method."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from annotation_site import open_room
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.server import Gateway, create_app
from surefoot.server.gateway.settings import ServerSettings

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


@pytest.fixture
def client() -> TestClient:
    pages = Starlette(routes=[Route("/{path:path}", lambda request: PlainTextResponse("a page"))])
    app = create_app(
        ServerSettings(),
        gateway=Gateway(ScriptedPolicy(lambda request, sample: "yes")),
        pages=pages,
    )
    return TestClient(app, base_url="http://localhost")


def test_pages_get_what_no_route_matches(client: TestClient) -> None:
    assert client.get("/elsewhere").text == "a page"


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/chat/completions", "POST"),
        ("/v1/models", "GET"),
        ("/v1/models/some/one", "GET"),
    ],
)
def test_another_method_is_405_with_those_that_are_allowed(
    client: TestClient, path: str, allowed: str
) -> None:
    for method in METHODS:
        if method in allowed.split(", "):
            continue
        answer = client.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
        if method != "HEAD":
            assert answer.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/held/" + "9" * 5000])
def test_what_there_is_not_is_404_by_any_method(client: TestClient, path: str) -> None:
    for method in METHODS:
        answer = client.request(method, path)
        assert answer.status_code == 404
        assert "allow" not in answer.headers
        if method != "HEAD":
            assert answer.json()["error"]["code"] == "not_found"


def test_nothing_under_v1_is_told_without_a_key(tmp_path: Path) -> None:
    room = open_room(tmp_path)
    gateway = Gateway(ScriptedPolicy(lambda request, sample: "yes"))
    app = create_app(ServerSettings(require_key=True), gateway=gateway, keys=room.db.keys)
    client = TestClient(app, base_url="http://localhost")
    for path in ("/v1/audio/speech", "/v1/chat/completions", "/v1/models", "/v1/models/some/one"):
        for method in METHODS:
            assert client.request(method, path).status_code == 401
    room.db.close()


def test_a_foreign_page_cannot_post_without_a_preflight(client: TestClient) -> None:
    """A browser sends these content types, or none, to any address, without asking first."""
    body = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": "x"}]})
    kinds = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", None)
    for kind in kinds:
        headers = {} if kind is None else {"Content-Type": kind}
        answer = client.post("/v1/chat/completions", content=body, headers=headers)
        assert answer.status_code == 400
    json_kind = {"Content-Type": "application/json"}
    assert client.post("/v1/chat/completions", content=body, headers=json_kind).status_code == 200
    assert client.options("/v1/chat/completions").status_code == 405


@pytest.mark.parametrize(
    "body", ["[]", "1", "null", '{"model": 1}', "{", '{"model": "scripted", "messages": []}']
)
def test_a_body_is_refused_alike_however_the_route_is_found(client: TestClient, body: str) -> None:
    def post(kind: str) -> tuple[int, object]:
        answer = client.post("/v1/chat/completions", content=body, headers={"Content-Type": kind})
        return answer.status_code, answer.json()

    status, refusal = post("application/json")
    assert (status, refusal) == post("application/json; charset=utf-8")
    assert status == 400
