"""What a key may do: every route has a scope, and a key without it is refused."""

from __future__ import annotations

import json

import pytest
from fastapi.routing import APIRoute
from gateway_server import LineScorer, ask, served

from surefoot.policies.scripted import ScriptedPolicy
from surefoot.server import Gateway, create_pages_app, open_database
from surefoot.server.gateway.app import create_app
from surefoot.server.gateway.scopes import ROLE_SCOPES, ROUTES, SCOPES, scope_of
from surefoot.server.gateway.settings import ServerSettings

CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}
SOLUTION = {"problem": "p", "steps": ["a bad line\n", "b"]}


def routes_of(routes):
    """Method and path of each route of an application, as the table of scopes writes them."""
    for route in routes:
        if (inner := getattr(route, "original_router", None)) is not None:
            yield from routes_of(inner.routes)
        elif isinstance(route, APIRoute) and route.path == "/v1/{path:path}":
            yield f"* {route.path}"
        elif isinstance(route, APIRoute):
            path = route.path if route.path == "/openapi.json" else route.path.removesuffix(".json")
            yield from (f"{method} {path}" for method in route.methods)


def test_every_route_has_one_scope_and_every_scope_a_route(tmp_path):
    with open_database(tmp_path / "store.db") as db:
        gateway = Gateway(ScriptedPolicy(lambda *_: "x"), LineScorer())
        found = {
            *routes_of(create_app(ServerSettings(), gateway=gateway, keys=db.keys).routes),
            *routes_of(create_pages_app(db).routes),
        }
        gateway.checker.close()
    declared = [route for routes in ROUTES.values() for route in routes]
    assert len(declared) == len(set(declared))
    assert found == set(declared)
    assert set(ROUTES) == {*SCOPES, None}
    assert set().union(*ROLE_SCOPES.values()) == set(SCOPES)
    assert (scope_of("HEAD", "/projects.json"), scope_of("PATCH", "/v1/{path:path}")) == ("read", None)
    with pytest.raises(LookupError, match="POST /v1/new"):
        scope_of("POST", "/v1/new")


def test_a_key_without_the_scope_is_refused_with_its_name(tmp_path):
    with open_database(tmp_path / "store.db") as db, served(db=db, scorer=LineScorer()) as found:
        keys = {
            "score": db.keys.create("grader", "client", scopes=["score"])[0],
            "chat": db.keys.create("talker", "client", scopes=["chat"])[0],
            "monitor": db.keys.create("prometheus", "admin", scopes=["monitor"])[0],
            "all": db.keys.create("old", "client")[0],
        }

        def answer(key, path, body=None):
            headers = {"Authorization": f"Bearer {keys[key]}"}
            return ask(found.root + path, None if body is None else json.dumps(body).encode(), headers)

        verify = {**SOLUTION, "resample": True}
        allowed = [
            ("score", "/v1/score", {"items": [SOLUTION]}),
            ("score", "/v1/verify", SOLUTION),
            ("chat", "/v1/chat/completions", CHAT),
            ("all", "/v1/verify", verify),
            ("monitor", "/metrics", None),
            *((key, "/v1/models", None) for key in keys),
        ]
        for key, path, body in allowed:
            assert answer(key, path, body)[0] == 200, (key, path)
        refused = [
            ("score", "/v1/chat/completions", CHAT, "chat"),
            ("score", "/v1/completions", {"model": "scripted", "prompt": "x"}, "chat"),
            ("score", "/v1/verify", verify, "chat"),
            ("chat", "/v1/score", {"items": [SOLUTION]}, "score"),
            ("chat", "/v1/verify", SOLUTION, "score"),
            ("monitor", "/v1/chat/completions", CHAT, "chat"),
        ]
        for key, path, body, scope in refused:
            status, error = answer(key, path, body)
            assert (status, error["error"]["code"]) == (403, "missing_scope"), (key, path)
            assert f"lacks the scope '{scope}'" in error["error"]["message"]
