"""What a key may do: a key without the scope of a route is refused."""

from __future__ import annotations

import json
import re

from gateway_server import LineScorer, ask, routes_of, served
from starlette.testclient import TestClient

from surefoot.policies.scripted import ScriptedPolicy
from surefoot.server import Gateway, create_app, create_pages_app, open_database
from surefoot.server.gateway.settings import ServerSettings
from surefoot.server.permissions import ROLE_SCOPES, SCOPES

CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}
SOLUTION = {"problem": "p", "steps": ["a bad line\n", "b"]}
PROJECT = "/projects/{project_id:number}"
ROUTES = {
    "chat": {
        "POST /v1/chat/completions",
        "POST /v1/responses",
        "POST /v1/messages",
        "POST /v1/messages/count_tokens",
        "GET /v1/held/{number:int}",
    },
    "score": {"POST /v1/score"},
    "pages": {
        "GET /",
        "GET /metrics",
        "GET /projects",
        f"GET {PROJECT}",
        f"GET {PROJECT}/label",
        f"GET {PROJECT}/agreement",
        f"GET {PROJECT}/files",
        f"GET {PROJECT}/export/{{name}}",
        f"GET {PROJECT}/images/{{digest}}",
        f"GET {PROJECT}/runs",
        f"GET {PROJECT}/run",
        f"GET {PROJECT}/compare",
        f"GET {PROJECT}/annotate",
        f"GET {PROJECT}/items/{{item_id:number}}",
        f"POST {PROJECT}/items/{{item_id:number}}/label",
        f"POST {PROJECT}/items/{{item_id:number}}/undo",
        f"POST {PROJECT}/items/{{item_id:number}}/skip",
        "GET /reports",
        "GET /report",
        "GET /report-file",
        "GET /reports/pair",
        "GET /requests",
        "GET /request",
        "GET /held",
        "GET /held/{number:number}",
        "GET /monitor",
    },
    "admin": {
        f"GET {PROJECT}/adjudicate",
        f"GET {PROJECT}/settings",
        f"POST {PROJECT}/settings",
        f"POST {PROJECT}/members",
        f"POST {PROJECT}/runs",
        f"POST {PROJECT}/run",
        f"POST {PROJECT}/queue",
        f"POST {PROJECT}/files",
        "POST /requests/import",
        "POST /projects",
        "GET /people",
        "POST /held/{number:number}",
        "POST /people",
        "POST /people/{user_id:number}",
    },
    None: {  # every key, or everybody
        "GET /v1/models",
        "GET /v1/models/{model:path}",
        "GET /health",
        "GET /ready",
        "* /v1/{path:path}",
        "GET /sign-in",
        "POST /sign-in",
        "POST /sign-out",
    },
}


def test_every_route_refuses_a_key_without_its_scope(tmp_path):
    with open_database(tmp_path / "store.db") as db:
        gateway = Gateway(ScriptedPolicy(lambda *_: "x"), LineScorer())
        pages = create_pages_app(db)
        app = create_app(ServerSettings(require_key=True), gateway=gateway, pages=pages, keys=db.keys)
        served_routes = routes_of(app) | routes_of(pages)
        assert served_routes == set().union(*ROUTES.values())
        assert set(ROUTES) == {*SCOPES, None}
        assert set().union(*ROLE_SCOPES.values()) == set(SCOPES)
        with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
            for scope, routes in ROUTES.items():
                others = [other for other in SCOPES if other != scope]
                key, _ = db.keys.create(f"all but {scope}", "admin", scopes=others)
                headers = {"Authorization": f"Bearer {key}", "Accept": "application/json"}
                for route in routes:
                    method, _, path = route.partition(" ")
                    path = re.sub(r"\{\w+(:\w+)?\}", "1", path)
                    method = "GET" if method == "*" else method
                    answer = client.request(method, path, headers=headers, follow_redirects=False)
                    refused = answer.status_code == 403 and f"lacks the scope '{scope}'" in answer.text
                    assert refused == (scope is not None), (route, answer.status_code, answer.text)


def test_a_key_without_the_scope_is_refused_with_its_name(tmp_path):
    with open_database(tmp_path / "store.db") as db, served(db=db, scorer=LineScorer()) as found:
        keys = {
            "score": db.keys.create("grader", "client", scopes=["score"])[0],
            "chat": db.keys.create("talker", "client", scopes=["chat"])[0],
            "pages": db.keys.create("prometheus", "admin", scopes=["pages"])[0],
            "all": db.keys.create("old", "client")[0],
        }

        def answer(key, path, body=None):
            headers = {"Authorization": f"Bearer {keys[key]}"}
            return ask(found.root + path, None if body is None else json.dumps(body).encode(), headers)

        allowed = [
            ("score", "/v1/score", {"items": [SOLUTION]}),
            ("chat", "/v1/chat/completions", CHAT),
            ("all", "/v1/score", {"items": [SOLUTION]}),
            ("pages", "/metrics", None),
            *((key, "/v1/models", None) for key in keys),
        ]
        for key, path, body in allowed:
            assert answer(key, path, body)[0] == 200, (key, path)
        refused = [
            ("score", "/v1/chat/completions", CHAT, "chat"),
            ("chat", "/v1/score", {"items": [SOLUTION]}, "score"),
            ("pages", "/v1/chat/completions", CHAT, "chat"),
        ]
        for key, path, body, scope in refused:
            status, error = answer(key, path, body)
            assert (status, error["error"]["code"]) == (403, "missing_scope"), (key, path)
            assert f"lacks the scope '{scope}'" in error["error"]["message"]
