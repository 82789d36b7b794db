"""Who may see and send what: sign-in, sessions, CSRF, roles, projects, keys, hostile text, limits."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from annotation_site import SCRIPT, Room, assignments_of, know_link, open_room, solutions
from held_calls import held_call
from inspection_site import add_request
from PIL import Image
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

import surefoot.server.pages
from surefoot.records import Problem
from surefoot.server import PageSettings
from surefoot.server.store.traces import RunFilter

SESSION = "surefoot_session"
ADMIN_PAGES = (
    "adjudicate",
    "settings",
    "files",
    "agreement",
    "export/labels.jsonl",
)


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    found = open_room(tmp_path)
    yield found
    found.db.close()


def forms(room: Room) -> list[tuple[str, str, str]]:
    """Every form of the pages: (who may send it, its page, its action)."""
    ann = room.browser("ann")
    item = str(ann.get("/projects/1/annotate").headers["location"])
    held = f"/held/{room.db.held_calls.hold(held_call(), most=99)}"
    add_request(room.db)  # the form for imports needs something to import
    return [
        ("ann", "/projects", "/sign-out"),
        ("ann", item, f"{item}/label"),
        ("ann", item, f"{item}/undo"),
        ("ann", item, f"{item}/skip"),
        ("admin", "/projects", "/projects"),
        ("admin", "/projects/1/runs", "/projects/1/runs"),
        ("admin", "/people", "/people"),
        ("admin", "/people", f"/people/{room.ids['eve']}"),
        ("admin", "/projects/1/settings", "/projects/1/settings"),
        ("admin", "/projects/1/settings", "/projects/1/members"),
        ("admin", "/projects/1/settings", "/projects/1/queue"),
        ("admin", "/projects/1/files", "/projects/1/files"),
        ("admin", "/requests", "/requests/import"),
        ("admin", held, held),
    ]


OTHERS: tuple[dict[str, str | None], ...] = (
    {"origin": None},
    {"origin": "null"},
    {"origin": "https://evil.example"},
    {"origin": "http://testserver.evil.example"},
    {"origin": "http://testserver:8000"},
    {"sec-fetch-site": "cross-site"},  # it alone decides where it is there
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": ""},
)


def test_every_form_of_another_page_is_refused(room: Room) -> None:
    for who, page, action in forms(room):
        browser = room.browser(who)
        hidden = browser.fields(page, action)
        for headers in OTHERS:
            request = browser.client.build_request("POST", action, data=hidden)
            for name, value in headers.items():
                if value is None:
                    del request.headers[name]
                else:
                    request.headers[name] = value
            assert browser.client.send(request).status_code == 403, (action, headers)
    assert room.db.export.stored(1) == []


@pytest.mark.parametrize("headers", [{"sec-fetch-site": "same-origin"}, {"origin": "https://TESTSERVER"}])
def test_a_form_of_an_own_page_is_taken(room: Room, headers: dict[str, str]) -> None:
    assert room.browser("ann").send("/projects", "/sign-out", headers=headers).status_code == 303


def test_a_request_without_a_host_owns_no_form(room: Room) -> None:
    headers = {"host": "", "origin": ""}
    assert room.browser("ann").send("/projects", "/sign-out", headers=headers).status_code == 403


def test_every_post_of_the_app_is_in_the_list_of_forms(room: Room) -> None:
    known = {re.sub(r"\d+", "N", action) for _, _, action in forms(room)}
    known |= {"/sign-in", "/projects/N/run"}
    posts = {route.path for route in room.app.state.routes if route.method == "POST"}
    assert {re.sub(r"\{[^}]*\}", "N", path) for path in posts} == known


_SECRET = re.compile(r"\btoken\b|\bsecret\b")


def _in_addresses(page: str, secret: re.Pattern[str]) -> list[str]:
    """Addresses with a secret: links, and forms that a browser can send with GET."""
    forms = re.findall(r"<form\b.*?</form>", page, re.DOTALL)
    by_get = [one for one in forms if not re.match(r'<form method="post"', one) or "formmethod" in one]
    links = re.findall(r'(?:href|src|action|hx-\w+)="[^"]*"', page)
    return [part for part in (*by_get, *links) if secret.search(part)]


TEMPLATES = sorted((Path(surefoot.server.pages.__file__).parent / "templates").glob("*.html"))


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_no_template_puts_a_secret_into_an_address(template: Path) -> None:
    assert _in_addresses(template.read_text(), _SECRET) == []


def _gets(room: Room) -> set[str]:
    return {path for route in room.app.state.routes if route.method == "GET" for path in route.paths}


def test_no_page_puts_a_secret_into_an_address(room: Room) -> None:
    forms(room)  # something in every list
    content = io.BytesIO()
    Image.new("1", (1, 1)).save(content, "PNG")
    room.db.traces.add_image(1, content.getvalue(), "dot")
    digest, shown = hashlib.sha256(content.getvalue()).hexdigest(), set()
    room.db.gateway.keep_images(1, {digest: ("image/png", content.getvalue())})
    for who in ("admin", "ann"):
        browser = room.browser(who)
        found = re.compile(re.escape(browser.client.cookies[SESSION]))
        traces = [trace.id for trace in room.db.traces.find(1, RunFilter())]
        query = f"?id={traces[0]}&id={traces[1]}"
        for path in _gets(room):
            address = re.sub(
                r"\{[^}]*\}", "1", path.replace("{name}", "labels.jsonl").replace("{digest}", digest)
            )
            address += "" if "export" in path else "?id=req-1" if "request" in path else query
            page = browser.follow(address)
            shown |= {path} if page.status_code == 200 else set()
            assert _in_addresses(page.text, found) == [], path
            assert not found.search(str(page.url)), path
    missing = {path for path in _gets(room) if not path.endswith(".json")} - shown
    assert missing == {
        "/report",
        "/report-file",
        "/reports/pair",
    }  # templates have their test


def test_a_selection_is_compared_and_exported(room: Room) -> None:
    admin = room.browser("admin")
    ids = [trace.id for trace in room.db.traces.find(1, RunFilter())][:2]
    page = admin.get("/projects/1/runs").text
    for to in ("compare", "export/labels.jsonl", "export/traces.jsonl"):
        assert f'formmethod="get" formaction="/projects/1/{to}"' in page
        assert admin.get(f"/projects/1/{to}", params={"id": ids}).status_code == 200


def test_nothing_is_open_without_signing_in(room: Room) -> None:
    stranger = room.browser()
    for path in ("/projects", "/people", "/projects/1", "/projects/1/annotate", "/projects/1/items/1"):
        answer = stranger.get(path)
        assert answer.status_code == 303, path
        assert answer.headers["location"].startswith("/sign-in?next=")
        assert stranger.get(f"{path}.json").status_code == 401
    assert stranger.client.post("/projects/1/items/1/label", data={"value": "1"}).status_code == 303
    assert stranger.get("/projects/1/export/labels.jsonl").status_code == 303


@pytest.mark.parametrize("who", [None, "ann"])
def test_uploads_of_those_who_may_not_upload_are_not_read(room: Room, who: str | None) -> None:
    browser = room.browser(who) if who else room.browser()
    read, seen = 0, list[int]()

    def body() -> Iterator[bytes]:
        nonlocal read
        while read < 30_000_000:
            read += 1_000_000
            yield b"x" * 1_000_000

    headers = {"content-type": "multipart/form-data; boundary=b", "content-length": "30000000"}
    paths = ["/projects/1/files", "/projects/1/protocol"]
    for path in [*paths, *(["/sign-in"] if who is None else [])]:
        read = 0
        seen.clear()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            async def counted() -> Message:
                message = await receive()
                seen.append(len(message.get("body", b"")))
                return message

            await room.app(scope, counted, send)

        client = TestClient(app, cookies=dict(browser.client.cookies), follow_redirects=False)
        answer = client.post(path, content=body(), headers=headers)
        assert answer.status_code in (303, 403, 404, 405, 413), path
        assert sum(seen) == 0, path


def test_annotators_do_not_get_to_pages_of_administrators(room: Room) -> None:
    ann = room.browser("ann")
    for page in ADMIN_PAGES:
        assert ann.get(f"/projects/1/{page}").status_code == 403, page
    assert ann.get("/people").status_code == 403
    own = [f"/projects/1/{page}" for page in ("settings", "members", "queue", "files", "run?id=x")]
    for path in ("/projects", "/people", f"/people/{room.ids['admin']}", *own):
        assert ann.client.post(path, data={}).status_code == 403, path


def test_another_project_does_not_exist_for_who_is_no_member(room: Room) -> None:
    eve = room.browser("eve")
    missing = eve.get("/projects/999").status_code
    for page in (
        "",
        "/annotate",
        "/items/1",
        "/label",
        "/settings",
        "/agreement",
        "/export/traces.jsonl",
    ):
        assert eve.get(f"/projects/1{page}").status_code == missing == 404
    assert eve.json("/projects") == {"projects": []}


def test_items_of_others_and_of_other_projects_do_not_exist(room: Room) -> None:
    ann, ben = room.browser("ann"), room.browser("ben")
    item = str(ann.get("/projects/1/annotate").headers["location"])
    assert ben.get(item).status_code == 404
    form = {"key": "k", "after": "0", "step": "0", "value": "1"}
    assert ben.client.post(f"{item}/label", data=form).status_code == 404
    other = room.db.projects.create("other").id
    room.db.projects.set_member(other, room.ids["ann"], "annotator")
    assert ann.get(item.replace("/projects/1/", f"/projects/{other}/")).status_code == 404


def test_a_member_who_left_is_out(room: Room) -> None:
    ann = room.browser("ann")
    room.db.projects.set_member(1, room.ids["ann"], "annotator", active=False)
    assert ann.get("/projects/1/annotate").status_code == 404
    room.db.users.set_active(room.ids["ann"], False)
    assert ann.get("/projects").status_code == 303


@pytest.mark.parametrize(
    "text", [SCRIPT, "'; DROP TABLE users; --", '"><img src=x onerror=alert(1)>', "{{ 7*7 }}", "\u202e ☃ 𝕏"]
)
def test_hostile_text_in_every_field_is_text(room: Room, text: str) -> None:
    admin = room.browser("admin")
    assert admin.send("/projects", name=text).status_code == 303
    made = next(project.id for project in room.db.projects.list() if project.name == text)
    settings = f"/projects/{made}/settings"
    ticks = {"value-1": "on", "value1": "on"}
    numbers = {"annotators": "1", "lease_minutes": "30"}
    answer = admin.send(settings, name=text, instructions=text, **numbers, **ticks)
    assert answer.status_code == 303, answer.text
    name = text.replace("\u202e ☃ 𝕏", "☃ ▓")  # names of accounts hold nothing invisible
    assert admin.send("/people", name=name, role="annotator").status_code == 200
    know_link(room.db, room.db.users.by_name(name))
    assert admin.send(settings, f"/projects/{made}/members", name=name, role="annotator").status_code == 303
    person = room.browser(name)
    read = [person.get(path).text for path in ("/projects", f"/projects/{made}/label")]
    for page in [*read, *(admin.get(path).text for path in (settings, "/people", "/projects"))]:
        assert SCRIPT not in page
        assert "<img" not in page
    assert room.db.projects.get(made).instructions == text
    assert {user.name for user in room.db.users.list()} >= {"ann", name}


@pytest.mark.parametrize("field", ["step", "after", "value", "key"])
def test_nonsense_in_fields_is_refused(room: Room, field: str) -> None:
    ann = room.browser("ann")
    item = str(ann.get("/projects/1/annotate").headers["location"])
    good = {**ann.fields(item, f"{item}/label"), "value": "1"}
    texts = ["", "\0", "1" * 300]
    if field != "key":  # any other text will do for a key
        texts += ["9" * 30, "' OR 1=1", "-1e5", "\u0661"]
    for nonsense in texts:
        answer = ann.client.post(f"{item}/label", data={**good, field: nonsense})
        assert answer.status_code in (400, 403), (field, nonsense, answer.status_code)
    assert room.db.export.stored(1) == []


def test_forms_have_limits(tmp_path: Path) -> None:
    room = open_room(tmp_path, settings=PageSettings(max_form_bytes=5_000, max_upload_bytes=20_000))
    ann = room.browser("ann")
    item = str(ann.get("/projects/1/annotate").headers["location"])
    assert ann.send(item, f"{item}/label", value="1", comment="x" * 6_000).status_code == 413
    many = "&".join(f"a{n}=" for n in range(600))
    headers = {"content-type": "application/x-www-form-urlencoded"}
    assert ann.client.post(f"{item}/undo", content=many, headers=headers).status_code == 400
    stream = (part for part in [b"after=0"])
    assert ann.client.post(f"{item}/undo", content=stream, headers=headers).status_code == 411
    admin = room.browser("admin")
    files = {"traces": ("t.jsonl", b"x" * 30_000)}
    assert admin.client.post("/projects/1/files", data={}, files=files).status_code == 413
    room.db.close()


@pytest.mark.parametrize("name", ["../../etc/passwd", "/srv/x.jsonl/../y", "x.exe", "x", "a.jsonl\0.txt"])
def test_names_of_uploads_are_no_paths(room: Room, name: str, tmp_path: Path) -> None:
    admin = room.browser("admin")
    before = {path for path in tmp_path.rglob("*") if "labels.db" not in path.name}
    answer = admin.client.post(
        "/projects/1/files", data={"make": "nothing"}, files={"traces": (name, b"{}\n")}
    )
    assert answer.status_code == 400
    assert {path for path in tmp_path.rglob("*") if "labels.db" not in path.name} == before


def test_pages_forbid_content_from_elsewhere(room: Room) -> None:
    answer = room.browser("ann").get("/projects")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["cache-control"] == "no-store"
    assert not re.search(r"<script>|\sstyle=|\son\w+=", answer.text)


def test_static_files_are_what_they_are_declared_to_be(room: Room) -> None:
    answer = room.browser().get("/static/pages.js")
    assert answer.status_code == 200
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_keys_open_no_more_than_their_role(room: Room) -> None:
    anonymous = room.browser()

    def status(path: str, key: str) -> int:
        headers = {"Authorization": f"Bearer {key}", "Accept": "application/json"}
        return int(anonymous.get(path, headers=headers).status_code)

    viewer, _ = room.db.keys.create("report", "viewer", project_id=1)
    watcher, _ = room.db.keys.create("of no project", "viewer")
    client, _ = room.db.keys.create("chat", "client")
    boss, _ = room.db.keys.create("boss", "admin")
    bound, _ = room.db.keys.create("boss of one", "admin", project_id=1)
    assert status("/projects/1/agreement", viewer) == 200
    assert status("/projects/1/settings", viewer) == 403
    assert status("/projects/1/agreement", watcher) == 404
    assert status("/requests", watcher) == 200
    assert status("/projects/1/agreement", client) == 401
    assert status("/projects/1/agreement", "sf_made_up") == 401
    for path in ("/projects/1/agreement", "/people", "/projects/1/settings"):
        assert status(path, boss) == 200
    assert status("/projects/1/settings", bound) == 200
    assert status("/people", bound) == 403
    assert status("/projects/1/annotate", boss) == 403  # people label
    other = room.db.projects.create("other").id
    narrow, _ = room.db.keys.create("narrow", "viewer", project_id=other)
    assert status("/projects/1/agreement", narrow) == 404
    assert status(f"/projects/{other}/agreement", narrow) == 200


def test_an_expired_key_is_refused_with_the_reason(room: Room) -> None:
    key, row = room.db.keys.create("guest", "viewer", expires=datetime.now(UTC) + timedelta(days=1))
    headers = {"Authorization": f"Bearer {key}", "Accept": "application/json"}
    anonymous = room.browser()
    assert anonymous.get("/projects", headers=headers).status_code == 200
    connections = room.db.keys._connections
    connections.clock = lambda: row.expires
    answer = anonymous.get("/projects", headers=headers)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert "'guest' expired at" in answer.json()["error"]


def test_lists_name_only_projects_that_open(room: Room) -> None:
    """For each kind of visitor: a project is in the list if, and only if, its own page opens."""
    other = room.db.projects.create("other").id
    room.db.projects.set_member(other, room.ids["ben"], "viewer")
    for role, user, project, expected in [
        ("viewer", None, None, []),
        ("viewer", None, other, ["other"]),
        ("admin", None, other, ["other"]),
        ("admin", None, None, ["Fractions", "other"]),
        (None, "ann", None, ["Fractions"]),
        (None, "ben", None, ["Fractions", "other"]),
        (None, "eve", None, []),
        (None, "admin", None, ["Fractions", "other"]),
    ]:
        browser = room.browser(user)
        if role is not None:
            key, _ = room.db.keys.create("k", cast("Any", role), project_id=project)
            browser.client.headers["authorization"] = f"Bearer {key}"
        names = [one["name"] for one in browser.json("/projects")["projects"]]
        assert names == expected, (role, user, project)
        page = browser.get("/projects").text
        for name, number in (("Fractions", 1), ("other", other)):
            assert (f">{name}<" in page) == (name in names)
            assert browser.get(f"/projects/{number}.json").status_code == (200 if name in names else 404)


def repeated_text(path: Path, problem: str) -> bytes:
    """A Parquet file of traces, all with the same text of a million characters."""
    rows = 200
    text = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["a\n" * 500_000]))
    columns = {"problem_id": pa.array([problem] * rows), "sample": pa.array(range(rows)), "text": text}
    pq.write_table(pa.table(columns), path, compression="zstd")
    return path.read_bytes()


def test_uploads_that_are_large_inside_are_refused_before_anything_is_kept(
    room: Room, tmp_path: Path
) -> None:
    admin = room.browser("admin")
    problem = Problem(text="What is 1 + 1?")
    good = (problem.model_dump_json() + "\n").encode()
    bombs = {
        "b.parquet": repeated_text(tmp_path / "b.parquet", problem.id),
        "b.jsonl.gz": gzip.compress(b'{"text": "' + b"a" * 80_000_000),
    }
    for name, content in bombs.items():
        assert len(content) < 100_000
        answer = admin.client.post(
            "/projects/1/files",
            data={"make": "nothing"},
            files={"problems": ("p.jsonl", good), "traces": (name, content)},
        )
        assert answer.status_code == 400
        assert "SUREFOOT_MAX_" in answer.text
    assert problem.id not in admin.get("/projects/1/export/problems.jsonl").text


def test_reports_on_uploads_name_the_files_as_the_user_does(room: Room) -> None:
    admin = room.browser("admin")

    def send(make: str, *files: tuple[str, tuple[str, bytes]]) -> str:
        fields = {"make": make}
        return str(admin.client.post("/projects/1/files", data=fields, files=files).text)

    good = (Problem(text="What is 2 + 2?").model_dump_json() + "\n").encode()
    wrong = b'{"trace_id": "t", "step": 0, "kind": "taste", "value": 1, "source": "me"}\n'
    pages = [
        send("nothing", ("problems", ("one.jsonl", good)), ("problems", ("two.jsonl", b"{}\n"))),
        send("nothing", ("problems", ("two.jsonl", b"{}\n"))),
        send("nothing", ("traces", ("two.jsonl.gz", b"not packed"))),
        send("known", ("labels", ("two.jsonl", wrong))),
    ]
    for page in pages:
        assert "two.jsonl" in page
        assert not re.search(r"tmp|[0-9a-f]{32}", page)


@pytest.mark.parametrize("score", ["1e999", "NaN", "true"])
def test_a_score_that_is_no_number_is_refused_with_line_and_field(room: Room, score: str) -> None:
    admin = room.browser("admin")
    _, traces = solutions()
    rows = [f'{{"trace_id": "{traces[0].id}", "scorer": "s{n}", "scores": [0.5, 0.5, 0.5]}}' for n in (1, 2)]
    content = "\n".join(rows).replace("0.5]}", f"{score}]}}", 1)
    answer = admin.client.post(
        "/projects/1/files",
        data={"make": "nothing"},
        files={"scores": ("s.jsonl", content.encode())},
    )
    assert answer.status_code == 200
    assert re.search(r"row 1: field &#39;scores\.2&#39;: ", answer.text)
    stored = admin.get("/projects/1/export/scores.jsonl").text
    assert ('"scorer":"s2"' in stored, '"scorer":"s1"' in stored) == (True, False)
    for page in ("runs", f"run?id={traces[0].id}"):
        assert admin.get(f"/projects/1/{page}").status_code == 200, page


@pytest.mark.parametrize("digits", [16, 5_000])
def test_numbers_that_no_row_has_are_not_found(room: Room, digits: int) -> None:
    admin = room.browser("admin")
    for path in (f"/projects/{'9' * digits}", f"/projects/1/items/{'9' * digits}"):
        answer = admin.get(path)
        assert answer.status_code == 404
        assert "Not Found" in answer.text


def test_redirects_repeat_no_host(room: Room) -> None:
    browser = room.browser()
    for path in ("/projects/", "/projects", "/sign-in/", "/v1/models/"):
        answer = browser.get(path, headers={"host": "evil.example"})
        assert "evil.example" not in answer.headers.get("location", ""), path


def test_a_database_that_is_gone_gives_a_plain_page(tmp_path: Path) -> None:
    room = open_room(tmp_path)
    ann = room.browser("ann")
    with closing(sqlite3.connect(tmp_path / "labels.db")) as connection:
        connection.execute("DROP TABLE sessions")
    for path in ("/projects", "/projects.json", "/projects/1/annotate"):
        answer = ann.get(path)
        assert answer.status_code == 503, path
        assert answer.headers["retry-after"]
        assert "no such table" not in answer.text  # nor a host name, nor a path
    room.db.close()


CROSS = {"sec-fetch-site": "cross-site"}


def test_another_site_loads_no_page_and_links_to_none_that_changes_something(room: Room) -> None:
    """A page of another site may be a link to ours, but no picture, script or frame of requests."""
    number = room.db.held_calls.hold(held_call(), most=99)
    ids = {"project_id": 1, "item_id": room.db.items.list(1)[0].id, "number": number, "name": "labels.jsonl"}
    admin, seen = room.browser("admin"), 0
    for route in room.app.state.routes:
        for path in route.paths if route.method == "GET" else ():
            address = re.sub(r"\{(\w+)[^}]*\}", lambda match: str(ids.get(match[1], 1)), path)
            for mode, refused in (
                ("no-cors", True),
                ("cors", True),
                (None, True),
                ("navigate", route.changes),
            ):
                headers = CROSS if mode is None else {**CROSS, "sec-fetch-mode": mode}
                status = admin.get(address, headers=headers).status_code
                assert (status == 403) == refused, (address, mode)
                seen += 1
    assert seen > 80
    assert assignments_of(room.db, 1, room.ids["admin"]) == []
    assert admin.get("/projects/1/annotate").status_code == 303
    changing = {route.path for route in room.app.state.routes if route.changes}
    assert changing == {"/projects/{project_id:number}/annotate"}
    for site in ("same-origin", "same-site", "none"):
        headers = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors"}
        assert admin.get("/projects/1/runs", headers=headers).status_code == 200
