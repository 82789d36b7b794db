"""Who may do what: every route refuses every role that it is not for."""

from __future__ import annotations

import re

from annotation_site import Browser, add_person, link_of
from gateway_server import LineScorer, routes_of
from starlette.testclient import TestClient

from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.server import Gateway, create_app, create_pages_app, open_database
from surefoot.server.gateway.settings import ServerSettings

PROJECT = "/projects/{project_id:number}"
KEYS = ("client", "viewer", "admin")
PEOPLE = ("annotator", "viewer", "admin")
ROUTES = {
    (*KEYS, "annotator"): {  # everybody
        "GET /sign-in",
        "POST /sign-in",
        "POST /sign-out",
    },
    ("client", "admin"): {
        "GET /v1/models",
        "GET /v1/models/{model:path}",
        "GET /health",
        "GET /ready",
        "* /v1/{path:path}",
        "POST /v1/chat/completions",
        "POST /v1/responses",
        "POST /v1/messages",
        "POST /v1/messages/count_tokens",
        "GET /v1/held/{number:number}",
        "POST /v1/score",
    },
    PEOPLE: {
        "GET /",
        "GET /projects",
        f"GET {PROJECT}",
        f"GET {PROJECT}/label",
        f"GET {PROJECT}/images/{{digest}}",
    },
    ("annotator", "admin"): {
        f"GET {PROJECT}/annotate",
        f"GET {PROJECT}/items/{{item_id:number}}",
        f"POST {PROJECT}/items/{{item_id:number}}/label",
        f"POST {PROJECT}/items/{{item_id:number}}/undo",
        f"POST {PROJECT}/items/{{item_id:number}}/skip",
    },
    ("viewer", "admin"): {
        "GET /metrics",
        f"GET {PROJECT}/agreement",
        f"GET {PROJECT}/files",
        f"GET {PROJECT}/export/{{name}}",
        f"GET {PROJECT}/runs",
        f"GET {PROJECT}/run",
        f"GET {PROJECT}/compare",
        "GET /reports",
        "GET /report",
        "GET /report-file",
        "GET /requests",
        "GET /request",
        "GET /requests/images/{digest}",
        "GET /reports/pair",
        "GET /held",
        "GET /held/{number:number}",
        "GET /monitor",
    },
    ("admin",): {
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
}


def test_every_route_refuses_the_roles_that_it_is_not_for(tmp_path):
    with open_database(tmp_path / "store.db") as db:
        gateway = Gateway(ScriptedPolicy(lambda *_: "x"), LineScorer())
        pages = create_pages_app(db)
        app = create_app(ServerSettings(require_key=True), gateway=gateway, pages=pages, keys=db.keys)
        of_gateway, of_pages = routes_of(app), routes_of(pages)
        assert of_gateway | of_pages == set().union(*ROUTES.values())
        project = db.projects.create("p").id
        keys = {role: db.keys.create(role, role)[0] for role in KEYS}
        for role in PEOPLE:
            db.projects.set_member(project, add_person(db, role, role).id, role)
        with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
            people = {role: Browser(TestClient(app, base_url="http://localhost")) for role in PEOPLE}
            for role, browser in people.items():
                assert browser.sign_in(role, link_of(role)).status_code == 303
            for roles, routes in ROUTES.items():
                for route in routes - ROUTES[(*KEYS, "annotator")]:
                    method, _, path = route.partition(" ")
                    address = re.sub(r"\{\w+(:\w+)?\}", "1", path)
                    method = "GET" if method == "*" else method
                    for role in KEYS if route in of_gateway else PEOPLE:
                        if route in of_gateway:
                            headers = {"Authorization": f"Bearer {keys[role]}"}
                            answer = client.request(method, address, headers=headers)
                        else:
                            answer = people[role].client.request(method, address)
                        refused = answer.status_code == 403
                        assert refused == (role not in roles), (route, role, answer.status_code, answer.text)


def test_a_key_opens_the_pages_of_its_role_and_labels_nothing(tmp_path):
    with open_database(tmp_path / "store.db") as db:
        pages = create_pages_app(db)
        project = db.projects.create("p").id
        keys = {role: db.keys.create(role, role, project_id=project)[0] for role in KEYS}
        client = TestClient(pages, raise_server_exceptions=False)
        for roles, routes in ROUTES.items():
            for route in routes & routes_of(pages) - ROUTES[(*KEYS, "annotator")]:
                method, _, path = route.partition(" ")
                address = re.sub(r"\{\w+(:\w+)?\}", "1", path)
                for role, key in keys.items():
                    headers = {"Authorization": f"Bearer {key}", "Accept": "application/json"}
                    answer = client.request(method, address, headers=headers, follow_redirects=False)
                    inside = "project_id" in path or roles == PEOPLE
                    by_people = roles == ("annotator", "admin")
                    opens = role in roles and inside and not by_people
                    refused = 401 if role == "client" else 403
                    assert (answer.status_code != refused) == opens or (by_people and role == "admin"), (
                        route,
                        role,
                        answer.text,
                    )
