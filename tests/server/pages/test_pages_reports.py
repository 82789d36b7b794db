"""Reports of finished runs: listed with their verdicts, paired, opened without scripts, and not for all."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from annotation_site import Room, open_room, solutions
from starlette.datastructures import FormData
from starlette.requests import Request

from surefoot.evaluation.report import Report, to_json
from surefoot.evaluation.verdict import measured
from surefoot.server import PageSettings
from surefoot.server.pages import reports
from surefoot.server.pages.page import Form, Page
from surefoot.stats.intervals import Interval

LINKS = ("/report?id=runs%2Fone%2Freport.html", "/report?id=runs%2Ftwo%2Fprm.html")


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    run, absent = solutions()[1][0].id, "<absent>"
    for folder, name, sign in (("one", "report", 1), ("two", "prm", -1)):
        (tmp_path / "runs" / folder).mkdir(parents=True)
        sentence = f"<b>{folder}</b> & more"
        estimate = Interval(value=0.3 * sign, low=0.3 * sign - 0.1, high=0.3 * sign + 0.1)
        verdict = measured("monitors", estimate, "text", 300, rival="majority")
        screen = {"sentence": sentence, "verdicts": [to_json(verdict)]}
        examples = [{"trace_id": trace, "caught": True} for trace in (run, absent)]
        right = {run: sign > 0, absent: sign < 0, "both": True, f"only {folder}": True}
        content = {"first_screen": screen, "examples": examples, "right_by_example": right}
        path = tmp_path / "runs" / folder / f"{name}.html"
        path.with_suffix(".json").write_text(json.dumps(content))
        Report(folder).write(path)
        os.utime(path, (1e9 - sign, 1e9 - sign))
    (tmp_path / "secret.html").write_text("<h1>secret</h1>")
    (tmp_path / "runs" / "out.html").symlink_to(tmp_path / "secret.html")
    found = open_room(tmp_path, settings=PageSettings(reports=(tmp_path / "runs",)))
    yield found
    found.db.close()


def test_reports_stand_side_by_side(room: Room) -> None:
    admin = room.browser("admin")
    data = admin.json("/reports")
    assert sorted(one["link"] for one in data["reports"]) == sorted(LINKS)
    tones = {one["sentence"]: [verdict["tone"] for verdict in one["verdicts"]] for one in data["reports"]}
    assert tones == {"<b>one</b> & more": ["good"], "<b>two</b> & more": ["wrong"]}
    page = admin.get("/reports").text
    assert "&lt;b&gt;one&lt;/b&gt; &amp; more" in page
    assert "secret" not in page
    assert [one["id"] for one in admin.json("/reports?text=MORE one/rep")["reports"]] == [
        "runs/one/report.html"
    ]
    assert admin.json("/reports?text=nothing")["reports"] == []
    assert admin.get("/reports?text=model:x").status_code == 400
    assert admin.get("/reports?page=2").status_code == 404


def test_two_reports_are_paired_by_example(room: Room) -> None:
    admin = room.browser("admin")
    query = "id=runs/one/report.html&id=runs/two/prm.html"
    twin = admin.json(f"/reports/pair?{query}")
    assert (twin["old"]["id"], twin["new"]["id"]) == ("runs/one/report.html", "runs/two/prm.html")
    run = solutions()[1][0].id
    assert (twin["fixed"], twin["broke"], twin["both_right"], twin["shared"]) == (["<absent>"], [run], 1, 3)
    page = admin.get(f"/reports/pair?{query}").text
    assert "Fixed 1, broke 1 of 3 examples" in page
    assert f'<a href="/projects/1/run?id={run}">{run}</a>' in page
    assert "&lt;absent&gt;" in page
    assert admin.get("/reports/pair?id=runs/one/report.html").status_code == 400
    assert admin.get("/reports/pair?id=runs/one/report.html&id=x").status_code == 404


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"first_screen": 3}', '{"first_screen": {"sentence": 1, "verdicts": {}}, "examples": 1}',
     '{"first_screen": {"verdicts": [1, {}, {"tone": null}]}, "examples": [1, {"trace_id": 2}]}',
     "[" * 99_999],
)  # fmt: skip
def test_a_broken_json_file_leaves_the_name(room: Room, tmp_path: Path, content: str) -> None:
    (tmp_path / "runs" / "one" / "report.json").write_text(content)
    admin = room.browser("admin")
    assert "runs/one/report.html" in [one["sentence"] for one in admin.json("/reports")["reports"]]
    assert admin.get(LINKS[0]).status_code == 200


def test_the_newest_of_many_reports_are_listed(room: Room, tmp_path: Path) -> None:
    for number in range(520):
        path = tmp_path / "runs" / f"{number:03}.html"
        path.write_text("<h1>one of many</h1>")
        os.utime(path, (2e9 + (number * 7) % 520,) * 2)
    listed = [admin["id"] for admin in room.browser("admin").json("/reports")["reports"]]
    newest = sorted(range(520), key=lambda number: -((number * 7) % 520))
    assert listed == [f"runs/{number:03}.html" for number in newest[:25]]
    assert room.browser("admin").json("/reports?page=2")["reports"][0]["id"] == f"runs/{newest[25]:03}.html"
    assert len(room.browser("admin").json("/reports?text=RUNS/")["reports"]) == 25


def test_a_search_covers_all_reports_or_says_how_many_it_leaves_out(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(600):
        (tmp_path / "runs" / f"{number:03}.html").write_text("<h1>one of many</h1>")
    admin = room.browser("admin")
    data = admin.json("/reports?text=one/")
    assert ([row["id"] for row in data["reports"]], data["left_out"]) == (["runs/one/report.html"], 0)

    def fill(names: range, size: int) -> None:
        for name in names:  # sparse: they are on disk in name alone
            large = tmp_path / "runs" / f"{name}.json"
            large.touch()
            os.truncate(large, size)
            os.utime(large.with_suffix(".html"), (3e9 + name,) * 2)

    fill(range(590, 600), 150_000_000)  # too large to be read, so it takes no time
    data = admin.json("/reports?text=one/")
    assert ([row["id"] for row in data["reports"]], data["left_out"]) == (["runs/one/report.html"], 0)
    monkeypatch.setattr(reports, "_MOST", 4_000_000)
    fill(range(595, 600), 1_000_000)
    data = admin.json("/reports?text=59")
    assert (data["total"], data["left_out"]) == (4, 598)
    assert "4 match; the oldest 598 reports not searched" in admin.get("/reports?text=59").text
    monkeypatch.setattr(reports, "_MOST_REPORTS", 7)
    monkeypatch.setattr(reports, "_MOST", 10**9)
    assert admin.json("/reports?text=59")["left_out"] == 595


def test_a_report_that_is_deleted_meanwhile_breaks_no_page(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, admin = tmp_path / "runs" / "gone.html", room.browser("admin")
    page = Page(request=Request({"type": "http"}), pages=room.app.state.pages, form=Form(data=FormData()))
    found = {**reports._files(page), "gone": gone}
    monkeypatch.setattr(reports, "_files", lambda page: found)
    for path in ("/reports", "/reports?text=gone", "/report?id=gone"):
        assert admin.get(path).status_code == 200
    assert admin.get("/report-file?id=gone").status_code == 404
    monkeypatch.undo()
    monkeypatch.setattr(Path, "is_file", lambda path: True)
    monkeypatch.setattr(Path, "rglob", lambda root, pattern: iter([gone]))
    assert [row["id"] for row in admin.json("/reports")["reports"]] == ["runs/gone.html"]


def test_a_report_is_opened_without_scripts(room: Room) -> None:
    admin = room.browser("admin")
    page = admin.get(LINKS[0]).text
    run = f"/projects/1/run?id={solutions()[1][0].id}&report=runs%2Fone%2Freport.html"
    assert re.findall(r'<a href="([^"]*)">run', page) == [run.replace("&", "&amp;")]
    assert f'href="{LINKS[0]}"' in admin.get(run).text
    assert 'id="rail"' in page  # the menu is there
    (file,) = re.findall(r'<iframe[^>]* src="([^"]*)"[^>]* sandbox>', page)
    answer = admin.get(file)
    assert "<h1>one</h1>" in answer.text
    policy = answer.headers["content-security-policy"]
    assert "sandbox" in policy
    assert "script-src" not in policy
    for wrong in ("none", "runs/out.html", "runs/../secret.html", "secret.html", "/etc/passwd"):
        for path in ("/report", "/report-file"):
            assert admin.get(path, params={"id": wrong}).status_code == 404, wrong


def test_folders_of_one_name_and_names_that_are_no_text_lose_no_report(tmp_path: Path) -> None:
    folders = tmp_path / "a" / "runs", tmp_path / "b" / "runs"
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "r.html").write_text(f"<h1>of {folder.parent.name}</h1>")
    os.close(os.open(os.fsencode(folders[0]) + b"/x\xff.html", os.O_CREAT))
    found = open_room(tmp_path, settings=PageSettings(reports=folders))
    admin = found.browser("admin")
    rows = admin.json("/reports")["reports"]
    assert len({row["sentence"] for row in rows}) == len(rows) == 3
    opened = [admin.get(row["link"].replace("report?", "report-file?")).text for row in rows]
    assert sorted(opened) == ["", "<h1>of a</h1>", "<h1>of b</h1>"]
    assert all(admin.get(row["link"]).status_code == 200 for row in rows)
    found.db.close()


def test_reports_are_for_readers_of_the_server(room: Room) -> None:
    for path in ("/reports", "/reports/pair", LINKS[0], LINKS[0].replace("report?", "report-file?")):
        assert room.browser("ann").get(path).status_code == 403
        assert room.browser().get(path).status_code == 303


def test_without_a_folder_the_page_says_what_to_do(tmp_path: Path) -> None:
    room = open_room(tmp_path)
    assert "--reports FOLDER" in room.browser("admin").get("/reports").text
    room.db.close()
