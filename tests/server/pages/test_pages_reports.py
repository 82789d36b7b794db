"""Reports of finished runs: listed with their cards, compared, opened without scripts, and not for all."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from annotation_site import Room, open_room, solutions

from surefoot.evaluation.frame import FirstScreen, WorkedExample
from surefoot.evaluation.report import Report
from surefoot.evaluation.verdict import measured
from surefoot.server import PageSettings
from surefoot.stats.intervals import Interval

LINKS = ("/report?id=runs%2Fone%2Freport.html", "/report?id=runs%2Ftwo%2Fprm.html")


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    for folder, name, value in (("one", "report", 0.3), ("two", "prm", -0.3)):
        (tmp_path / "runs" / folder).mkdir(parents=True)
        estimate = Interval(value=value, low=value - 0.1, high=value + 0.1)
        examples = [
            WorkedExample(caught=True, trace_id=trace, problem="What?", steps=[], note="Found.")
            for trace in (solutions()[1][0].id, "<absent>")
        ]
        screen = FirstScreen(
            sentence=f"<b>{folder}</b> & more",
            verdicts=[measured("selects", estimate, "text", 300, rival="majority")],
            examples=examples,
        )
        Report(folder, screen).write(tmp_path / "runs" / folder / f"{name}.html")
    (tmp_path / "secret.html").write_text("<h1>secret</h1>")
    (tmp_path / "runs" / "out.html").symlink_to(tmp_path / "secret.html")
    found = open_room(tmp_path, settings=PageSettings(reports=(tmp_path / "runs",)))
    yield found
    found.db.close()


def test_reports_stand_side_by_side(room: Room) -> None:
    admin = room.browser("admin")
    data = admin.json("/reports")
    assert sorted(one["link"] for one in data["reports"]) == sorted(LINKS)
    cards = {one["sentence"]: one["cards"] for one in data["reports"]}
    answers = {name: [one["kind"] for one in of] for name, of in cards.items()}
    assert answers == {"<b>one</b> & more": ["good"], "<b>two</b> & more": ["wrong"]}
    page = admin.get("/reports").text
    assert "&lt;b&gt;one&lt;/b&gt; &amp; more" in page
    assert "secret" not in page
    compared = admin.json("/reports?id=runs/one/report.html")
    assert [one["id"] for one in compared["reports"]] == ["runs/one/report.html"]


def test_the_newest_of_many_reports_are_listed(room: Room, tmp_path: Path) -> None:
    for number in range(520):
        path = tmp_path / "runs" / f"{number:03}.html"
        path.write_text("<h1>one of many</h1>")
        os.utime(path, (2e9 + (number * 7) % 520,) * 2)
    listed = [one["id"] for one in room.browser("admin").json("/reports")["reports"]]
    newest = sorted(range(520), key=lambda number: -((number * 7) % 520))[:500]
    assert listed == [f"runs/{number:03}.html" for number in newest]


def test_a_report_is_opened_without_scripts(room: Room) -> None:
    admin = room.browser("admin")
    answer = admin.get(LINKS[0])
    assert "&lt;b&gt;one" in answer.text
    run = f"/projects/1/run?id={solutions()[1][0].id}&report=runs%2Fone%2Freport.html"
    assert re.findall(r'<a href="([^"]*)">Open this run', answer.text) == [run.replace("&", "&amp;")]
    assert f'href="{LINKS[0]}"' in admin.get(run).text
    policy = answer.headers["content-security-policy"]
    assert "sandbox" in policy
    assert "script-src" not in policy
    for wrong in ("", "runs/out.html", "runs/../secret.html", "secret.html", "/etc/passwd"):
        assert admin.get("/report", params={"id": wrong}).status_code == 404, wrong


def test_reports_are_for_readers_of_the_server(room: Room) -> None:
    for path in ("/reports", LINKS[0]):
        assert room.browser("ann").get(path).status_code == 403
        assert room.browser().get(path).status_code == 303


def test_without_a_folder_the_page_says_what_to_do(tmp_path: Path) -> None:
    room = open_room(tmp_path)
    assert "--reports FOLDER" in room.browser("admin").get("/reports").text
    room.db.close()
