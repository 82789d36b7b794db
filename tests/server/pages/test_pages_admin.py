"""Pages of administrators: projects, people, files, queue, agreement, adjudication."""

from __future__ import annotations

import html
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from annotation_site import (
    Browser,
    Room,
    add_solutions,
    audited,
    open_room,
    priorities_of,
    solutions,
    text_trace,
)
from starlette.datastructures import FormData
from starlette.requests import Request

from surefoot.records import Problem, StepLabel, StepScores, Trace
from surefoot.server import Protocol
from surefoot.server.logs import LogHandler
from surefoot.server.pages.page import Form, Page
from surefoot.server.permissions import Principal
from surefoot.stats.rater_agreement import agreement

RAIL = [
    *("Home", "Runs", "Label", "Reports", "Requests", "Held calls", "Monitor"),
    *("Data in / out", "People &amp; keys", "Settings"),
]


SETTINGS, QUEUE = "/projects/1/settings", "/projects/1/queue"


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    found = open_room(tmp_path)
    yield found
    found.db.close()


def work(room: Room, name: str, values: dict[int, tuple[int, ...]], project: int = 1) -> None:
    """Label items of a project, by number, until nothing is left."""
    person = room.browser(name)
    while (answer := person.get(f"/projects/{project}/annotate")).status_code == 303:
        item = str(answer.headers["location"])
        for value in values[int(item.rpartition("/")[2])]:
            sent = person.send(item, f"{item}/label", value=str(value), milliseconds="1000")
            assert sent.status_code == 303, sent.text


def upload(admin: Browser, project: int, make: str, **files: str) -> Any:
    sent = {kind: (f"{kind}.jsonl", text.encode()) for kind, text in files.items()}
    return admin.client.post(
        f"/projects/{project}/files",
        data={"make": make},
        files=sent,
        headers={"Accept": "application/json"},
    )


def lines(records: Any) -> str:
    return "".join(record.model_dump_json() + "\n" for record in records)


def test_agreement_is_that_of_the_package(room: Room) -> None:
    work(room, "ann", {1: (1, 1, 1), 2: (0, -1), 3: (1, 1)})
    work(room, "ben", {1: (1, 0, 1), 2: (0, -1), 3: (-1,)})
    data = room.browser("admin").json("/projects/1/agreement")
    expected = agreement([[1, 1, 1, 0, -1, 1], [1, 0, 1, 0, -1, -1]], categories=(-1, 0, 1))
    for name in ("raw", "kappa", "alpha", "ac1"):
        assert data["overall"][name] == pytest.approx(getattr(expected, name))
        interval = data["overall"]["intervals"][name]
        assert interval["low"] <= interval["value"] <= interval["high"]
    assert (data["overall"]["units"], data["overall"]["dropped"]) == (6, 1)
    assert [row["compared"] for row in data["annotators"]] == [6, 6]
    assert all(row["raw"] == pytest.approx(4 / 6) for row in data["annotators"])
    assert data["annotators"][0]["kappa"] == pytest.approx(expected.kappa)
    assert data["quality"] == []
    home = room.browser("admin")
    assert home.json("/projects/1")["progress"]["done"] == 6
    assert all(name in home.get("/projects/1").text for name in ("Annotators", "Median time"))


def test_quality_control_counts_known_labels_apart(tmp_path: Path) -> None:
    room = open_room(tmp_path, protocol=Protocol(annotators=2, show_answer=True, known_share=0.5))
    admin = room.browser("admin")
    problem = Problem(text="Is 1 + 1 = 3?")
    trace = text_trace(problem, "Yes.", "So it is.")
    known = StepLabel(trace_id=trace.id, step=0, kind="correctness", value=-1, source="expert")
    answer = upload(
        admin, 1, "known", problems=lines([problem]), traces=lines([trace]), labels=lines([known])
    )
    assert answer.json()["items"] == 1
    work(room, "ann", {1: (1, 1, 1), 2: (1, 1, 1), 3: (1, 1), 4: (-1,)})
    work(room, "ben", {1: (1, 1, 1), 2: (1, 1, 1), 3: (1, 1), 4: (1, 1)})
    data = admin.json("/projects/1/agreement")
    found = sorted((row["correct"], row["known"]) for row in data["quality"])
    assert found == [(0, 1), (1, 1)]
    assert all(row["low"] <= row["accuracy"] <= row["high"] for row in data["quality"])
    assert data["overall"]["units"] == 8
    exported = admin.get("/projects/1/export/labels.jsonl").text
    assert trace.id not in exported
    assert trace.id in admin.get("/projects/1/export/labels.jsonl?known=1").text


def test_adjudication_stands_in_the_settled_export(room: Room) -> None:
    work(room, "ann", {1: (1, 1, 1), 2: (1, 1, 1), 3: (1, 1)})
    work(room, "ben", {1: (1, -1), 2: (1, 1, 1), 3: (1, 1)})
    admin = room.browser("admin")
    found = admin.json("/projects/1/adjudicate")
    assert [(one["item"], [step["step"] for step in one["steps"]]) for one in found["open"]] == [(1, [1])]
    page = f"/projects/1/{found['open'][0]['link']}"
    form = {**admin.fields(page, "disagreement=1"), "step": "1", "value": "-1", "note": "0.5 + 0.25"}
    assert admin.client.post(page, data={**form, "value": "5"}).status_code == 400
    assert admin.client.post(page, data=form).status_code == 303
    assert admin.client.post(page, data=form).status_code == 409  # a second tab
    data = admin.json(page)
    assert (data["decisions"]["1"]["value"], data["decisions"]["1"]["message"]) == (-1, "0.5 + 0.25")
    assert data["strips"] == []  # scores must not influence a decision
    assert "0.80" not in admin.get(page).text
    assert admin.json("/projects/1/adjudicate")["open"] == []
    rows = [
        json.loads(line) for line in admin.get("/projects/1/export/labels.jsonl?settled=1").text.splitlines()
    ]
    first = [row for row in rows if row["trace_id"] == data["trace"]["id"] and row["step"] == 1]
    assert [(row["value"], row["source"]) for row in first] == [(-1, "human:adjudicated")]
    assert len(room.db.export.stored(1)) == 15 + 1


def test_queue_puts_convincing_wrong_answers_first(room: Room) -> None:
    admin = room.browser("admin")
    answer = admin.send(SETTINGS, QUEUE, policy="convincing-wrong", scorer="first", random_share="0")
    assert answer.status_code == 303, answer.text
    ranked = priorities_of(room.db, 1)
    assert sorted(ranked, key=lambda item: -ranked[item]) == [2, 1, 3]
    assert ranked[2] == pytest.approx(1 + 0.7 * 0.9 * 0.8)
    ann = room.browser("ann")
    item = str(ann.get("/projects/1/annotate").headers["location"])
    assert item == "/projects/1/items/2"
    ann.send(item, f"{item}/label", value="-1")
    assert room.db.export.stored(1)[0].chosen_by == "convincing-wrong"
    assert "convincing" not in ann.get(item).text
    admin.send(SETTINGS, QUEUE, policy="disagreement", random_share="0.25")
    ranked = priorities_of(room.db, 1)
    assert max(ranked, key=ranked.__getitem__) == 2
    assert room.db.projects.get(1).protocol.random_share == 0.25


@pytest.mark.parametrize(
    "change", [{"policy": "whim"}, {"random_share": "2"}, {"random_share": "nan"}, {"scorer": "nobody"}]
)
def test_queue_settings_are_checked(room: Room, change: dict[str, str]) -> None:
    sent = {"policy": "uncertainty", "random_share": "0.1", **change}
    assert room.browser("admin").send(SETTINGS, QUEUE, **sent).status_code == 400
    assert room.db.projects.get(1).protocol.queue == "order"


def test_files_in_and_out(room: Room, tmp_path: Path) -> None:
    admin = room.browser("admin")
    admin.send("/projects", name="second")
    made = 2
    problems, traces = solutions()
    bad = lines(traces) + "{not json\n"
    answer = upload(admin, made, "solutions", problems=lines(problems), traces=bad)
    data = answer.json()
    assert (data["complete"], data["items"]) == (False, 3)
    read = {file["kind"]: (file["read"]["good"], file["read"]["bad_count"]) for file in data["files"]}
    assert read == {"problems": (len(problems), 0), "traces": (3, 1)}
    again = upload(admin, made, "solutions", problems=lines(problems), traces=lines(traces)).json()
    assert (again["files"][1]["added"]["traces"]["same"], again["items"]) == (3, 0)
    exported = admin.get(f"/projects/{made}/export/traces.jsonl")
    assert exported.headers["content-disposition"] == f'attachment; filename="project-{made}-traces.jsonl"'
    assert sorted(exported.text.splitlines()) == sorted(lines(traces).splitlines())
    assert admin.get(f"/projects/{made}/export/secrets.jsonl").status_code == 404
    page = admin.client.post(
        f"/projects/{made}/files",
        data={},
        files={"traces": ("t.jsonl", b"<script>x</script>\n")},
    )
    assert page.status_code == 400
    assert "line 1: not JSON" in page.text
    assert "<script>x" not in page.text


def test_settings_notice_that_somebody_was_first(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    admin = room.browser("admin")
    page = "/projects/1/settings"
    fields = {"name": "Fractions", "annotators": "3", "lease_minutes": "5", "value-1": "on",
              "value1": "on", "instructions": "Read."}  # fmt: skip
    stale = admin.fields(page)
    assert admin.send(page, **fields).status_code == 303
    protocol = room.db.projects.get(1).protocol
    assert (protocol.annotators, protocol.values, protocol.lease_seconds) == (3, (-1, 1), 300)
    assert protocol.show_answer is False
    assert admin.client.post(page, data={**stale, **fields}).status_code == 409
    for wrong in ({"annotators": "0"}, {"lease_minutes": "x"}, {"name": " "}):
        assert admin.send(page, **{**fields, **wrong}).status_code == 400
    assert [entry["action"] for entry in audited(caplog)].count("settings") == 1


def test_what_is_done_is_logged_in_one_line(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    name = "p\r\n{\x1b[2J\u202e\x9b} naïve 漢字"
    room.browser("admin").send("/projects", name=name)
    line = next(record.getMessage() for record in caplog.records if record.name.endswith("audit"))
    assert line.isascii()
    assert line.isprintable()
    assert audited(caplog)[-1] == {
        "action": "project created",
        "project": 2,
        "user": "admin",
        "name": name.replace("\r\n", "\n"),
    }


def test_people_are_made_changed_and_closed(room: Room) -> None:
    admin = room.browser("admin")
    assert admin.send("/people", name="fay", role="emperor").status_code == 400
    page = admin.send("/people", name="fay", role="annotator", project="1").text
    assert admin.send("/people", name="fay", role="annotator").status_code == 409
    link, fay = invitation(page), room.browser()
    assert fay.sign_in("fay", link).headers["location"] == "/"
    assert "Label" in fay.follow("/").text  # a member of the project, too
    assert room.browser().sign_in("fay", link).status_code == 303  # until there is a new one
    path = f"/people/{room.db.users.by_name('fay').id}"
    again = invitation(admin.send("/people", path, what="link").text)
    assert fay.get("/projects").status_code == 303  # signed out
    assert room.browser().sign_in("fay", link).status_code == 401
    assert room.browser().sign_in("fay", again).status_code == 303
    assert admin.send("/people", path, what="close").status_code == 303
    assert room.browser().sign_in("fay", again).status_code == 401
    assert admin.send("/people", path, what="open").status_code == 303
    assert room.browser().sign_in("fay", again).status_code == 401
    own = f"/people/{room.ids['admin']}"
    assert admin.client.post(own, data={**admin.fields("/people"), "what": "close"}).status_code == 400
    assert "/sign-in#" not in str(admin.json("/people"))


def invitation(page: str) -> str:
    """The link on a page, which is shown once."""
    (link,) = re.findall(r'value="(/sign-in#[^"]+)"', page)
    return html.unescape(link)


def test_an_empty_project_says_how_to_begin(room: Room) -> None:
    admin = room.browser("admin")
    admin.send("/projects", name="second")
    home = "/projects/2"
    assert "Drop a file" in admin.get(home).text
    assert "Take answers from the gateway" in admin.get(home).text
    add_solutions(room.db, 2)
    data = admin.json(home)
    assert (data["runs"], data["left"]) == (3, 3)
    assert "3 annotations left" in admin.get(home).text
    assert admin.get("/").headers["location"] == "/projects/1"


def test_annotators_see_label_only(room: Room) -> None:
    ann = room.browser("ann")
    assert ann.get("/projects/1").headers["location"] == "/projects/1/label"
    rail = ann.get("/projects/1/label").text.partition('<nav id="rail"')[2].partition("</nav>")[0]
    assert re.findall(r'<li><a href="([^"]+)"', rail) == ["/projects/1/label"]
    rail = room.browser("admin").follow("/").text.partition('<nav id="rail"')[2].partition("</nav>")[0]
    assert [name.strip() for name in re.findall(r"<li><a [^>]+>([^<]+)", rail)] == RAIL


@pytest.mark.parametrize("page", ["agreement", "adjudicate", "settings", "files", ""])
def test_twins_of_administrators_pages(room: Room, page: str) -> None:
    work(room, "ann", {1: (1, 1, 1), 2: (0, -1), 3: (1, 1)})
    work(room, "ben", {1: (1, 0, 1), 2: (0, -1), 3: (-1,)})
    admin = room.browser("admin")
    path = f"/projects/1/{page}".rstrip("/")
    data = admin.json(path)
    assert admin.get(f"{path}.json").json() == data
    shown = admin.get(path).text
    assert data["project"]["name"] in shown
    for row in [*data.get("annotators", []), *data.get("members", []), *data.get("quality", [])]:
        assert row.get("annotator", row.get("name")) in shown
    if page == "agreement":
        assert f"{data['overall']['alpha']:.2f}" in shown
        assert "give it the same label in <b>66.7 %</b> of cases, a mean over 6 steps" in shown


def test_viewers_read_and_do_not_write(room: Room) -> None:
    room.db.projects.set_member(1, room.ids["eve"], "viewer")
    eve = room.browser("eve")
    for page in ("", "/agreement", "/files", "/export/labels.jsonl", "/label"):
        assert eve.get(f"/projects/1{page}").status_code == 200, page
    for page in ("/annotate", "/settings", "/adjudicate"):
        assert eve.get(f"/projects/1{page}").status_code == 403, page
    assert "Import</button>" not in eve.get("/projects/1/files").text


def test_an_import_says_which_scores_took_the_place_of_others(room: Room) -> None:
    admin = room.browser("admin")
    _, traces = solutions()
    rows = [StepScores(trace_id=traces[0].id, scorer="first", scores=(0.1, 0.2, 0.3))]
    files = {"file": ("s.jsonl", (lines(rows) + "no json\n").encode())}
    page = admin.client.post("/projects/1/files", data={"make": "nothing"}, files=files).text
    assert "<h1>Imported in part into " in page
    assert "1 row read, 1 skipped" in page
    assert '<th scope="row">Scores</th><td>0</td><td>0</td><td>1</td><td>0</td>' in page


def test_an_upload_of_which_nothing_fits_is_an_error_with_its_reason(room: Room) -> None:
    admin = room.browser("admin")
    wrong = upload(admin, 1, "nothing", traces='{"what": "That."}\n')
    assert wrong.status_code == 400
    assert "name its column with --text-field" in wrong.text
    orphan = upload(admin, 1, "nothing", traces=lines([Trace(problem_id="nobody", text="a")]))
    assert orphan.status_code == 400
    assert "none of the records fits; first" in orphan.text


def test_uploaded_traces_without_steps_are_cut(room: Room) -> None:
    admin = room.browser("admin")
    problem = Problem(text="What is 1 + 1?")
    trace = Trace(problem_id=problem.id, text="1 + 1 = 2\n\nThe answer is 2.")
    assert upload(admin, 1, "solutions", problems=lines([problem]), traces=lines([trace])).status_code == 200
    [stored] = [
        row
        for row in room.browser("admin").get("/projects/1/export/traces.jsonl").text.splitlines()
        if trace.id in row
    ]
    assert len(Trace.model_validate_json(stored).steps) == 2


def test_a_key_in_the_log_has_its_id_and_details_replace_nobody(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    sent, key = room.db.keys.create("robot", "admin")
    browser = room.browser()
    browser.client.headers["authorization"] = f"Bearer {sent}"
    assert browser.send("/projects", name="made by a key").status_code == 303
    assert audited(caplog)[-1] == {
        **{"action": "project created", "project": 2, "name": "made by a key"},
        **{"key": "robot", "key_id": key.id},
    }
    actor = Principal(name="robot", role="admin", key_id=key.id)
    page = Page(
        request=Request({"type": "http"}),
        pages=room.app.state.pages,
        visitor=actor,
        form=Form(data=FormData()),
    )
    page.audit("x", key="other", key_id=0)
    assert audited(caplog)[-1] == {"action": "x", "project": None, "key": "robot", "key_id": key.id}


def test_a_text_of_the_log_cannot_look_like_another_entry() -> None:
    record = logging.LogRecord("surefoot.server", logging.WARNING, "", 0, "%s", (), None)
    record.msg = "broken\n2026-01-01 INFO surefoot.server.audit {}\r\x1b[2J\u2028x"
    first, *more = LogHandler().format(record).split("\n")
    assert first.endswith(" WARNING surefoot.server broken")
    assert len(more) == 3
    assert all(line.startswith("    ") and line.isprintable() for line in more)


def test_under_another_server_what_people_do_is_logged(tmp_path: Path) -> None:
    program = (
        "from surefoot.server import create_pages_app, open_database\n"
        "from surefoot.server.logs import AUDIT\n"
        "for _ in range(2): create_pages_app(open_database('a.db'))\n"
        "AUDIT.info('done')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    (line,) = done.stderr.splitlines()
    assert line.endswith(" INFO surefoot.server.audit done")
