"""Schemathesis over the routes of gateway and pages: no request that they allow or forbid gives a 5xx,
whoever sends it."""

from __future__ import annotations

import json
import os
import re
from collections import Counter

import pytest
from annotation_site import open_room
from gateway_server import LineScorer, lines, served

from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.server import PageSettings
from surefoot.server.app import GATEWAY
from surefoot.server.gateway.settings import ServerLimits

PROJECT, ITEM = "/projects/{project_id}", "/projects/{project_id}/items/{item_id}"
FORMS = {
    "/sign-in": "link next",
    "/sign-out": "",
    "/projects": "name",
    f"{PROJECT}/runs": "id",
    f"{PROJECT}/run": "step value note after",
    f"{PROJECT}/settings": "version name instructions show_answer annotators value-1 value0 value1 "
    "lease_minutes retention_days archived",
    f"{PROJECT}/members": "name role inactive",
    f"{PROJECT}/queue": "version policy scorer random_share known_share",
    f"{PROJECT}/files": "make",
    f"{ITEM}/label": "step value milliseconds comment key after",
    f"{ITEM}/undo": "after",
    f"{ITEM}/skip": "reason words",
    "/people": "name role",
    "/people/{user_id}": "what role",
    "/requests/import": "which into text",
    "/held/{number}": "decision comment",
}
"""Fields of each form of the pages."""
WORDS = ["1", "0.5", "-1", "NaN", "admin", "flag", "order", "nothing", "chosen", "approve", "link"]
"""Values that are valid in some field."""
EXAMPLES = int(os.environ.get("SUREFOOT_SCHEMATHESIS_EXAMPLES", "1"))
"""Requests to a page of each kind (valid or not); five times as many to a route of the gateway."""
PREFIXES = ("/v1", "/metrics", "/health", "/ready")


def described(routes):
    """An OpenAPI document of routes: their paths, with parameters, and their bodies."""
    paths, definitions = {}, {}
    for route in routes:
        if route.method == "*":
            continue
        operation = {"responses": {"default": {"description": "any"}}}
        found = re.findall(r"\{(\w+)(?::(\w+))?\}", route.path)
        operation["parameters"] = [
            {
                "name": name,
                "in": "path",
                "required": True,
                "schema": {"type": {"number": "integer", "int": "integer"}.get(kind, "string")},
            }
            for name, kind in found
        ]
        if route.body is not None:
            schema = route.body.model_json_schema(ref_template="#/components/schemas/{model}")
            definitions |= schema.pop("$defs", {})
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        for path in route.paths:
            plain = re.sub(r"\{(\w+):\w+\}", r"{\1}", path)
            paths.setdefault(plain, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "surefoot", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": definitions,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


def described_pages(app):
    """The document of the pages with their forms; numbers are often of rows that there are."""
    document = described(app.state.routes)
    forms = dict(FORMS)
    for name, path in document["paths"].items():
        for method, operation in path.items():
            for parameter in operation.get("parameters", ()):
                if parameter["schema"].get("type") == "integer":
                    parameter["schema"] = {"anyOf": [{"enum": [1]}, {"type": "integer"}]}
            if method == "post":
                values = {"anyOf": [{"enum": WORDS}, {"type": "string"}]}
                schema = {"type": "object", "properties": dict.fromkeys(forms.pop(name).split(), values)}
                content = {"application/x-www-form-urlencoded": {"schema": schema}}
                operation["requestBody"] = {"content": content}
    assert not forms, "forms of pages that do not exist"
    return document


@pytest.fixture
def site(tmp_path):
    """Gateway and pages; the keys of all roles, and none, and wrong ones."""
    room = open_room(tmp_path, settings=PageSettings())
    keys = [
        room.db.keys.create("admin", "admin")[0],
        room.db.keys.create("reader", "viewer")[0],
        room.db.keys.create("client", "client")[0],
        "sf-00000000-wrong",
        "",
        None,
    ]
    limits = ServerLimits(max_tokens=64, default_tokens=64, max_n=2, max_candidates=8, timeout_s=20)
    options = {"limits": limits, "db": room.db, "pages": room.app, "require_key": True}
    with served(ScriptedPolicy(lines), LineScorer(), **options) as running:
        yield running, room.app, keys
    room.db.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_schemathesis_finds_no_server_error(site):
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st

    running, app, keys = site
    statuses, paths, wrong = Counter(), set(), []
    documents = (described(GATEWAY), described_pages(app))
    operations = [
        result.ok()
        for document in documents
        for result in schemathesis.openapi.from_dict(document).get_all_operations()
    ]

    def send(case, key):
        case.headers = dict(case.headers or {})
        if key is not None:
            case.headers["Authorization"] = f"Bearer {key}"
        answer = case.call(base_url=running.root, allow_redirects=False, timeout=20)
        statuses[answer.status_code] += 1
        if answer.status_code >= 500:
            wrong.append(f"{case.method} {case.path} {answer.status_code} {answer.text[:300]}")
        elif answer.status_code >= 400 and answer.status_code != 405 and case.path.startswith("/v1"):
            expected = {"message", "type"}
            if not case.path.startswith("/v1/messages"):
                expected |= {"param", "code"}
            assert set(json.loads(answer.content)["error"]) == expected

    for operation in operations:
        paths.add((operation.method, operation.path))
        gateway = operation.path.startswith(PREFIXES)
        for mode in schemathesis.GenerationMode:

            @given(case=operation.as_strategy(generation_mode=mode), data=st.data())
            @settings(
                max_examples=EXAMPLES * (5 if gateway else 1),
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
                database=None,
            )
            def one(case, data):
                send(case, keys[0] if data.draw(st.booleans()) else data.draw(st.sampled_from(keys)))

            try:
                one()
            except Exception as error:
                if "Unsatisfiable" not in type(error).__name__:
                    raise
    print(f"{statuses.total()} requests to {len(paths)} routes: {dict(statuses)}")
    assert not wrong, "\n".join(wrong)
    assert {f"{method.upper()} {path}" for method, path in paths} >= {
        "POST /v1/chat/completions",
        "POST /projects/{project_id}/items/{item_id}/label",
        "POST /people/{user_id}",
    }
    assert statuses[200] > 30
    assert statuses[401] + statuses[403] > 10
