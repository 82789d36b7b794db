"""Runs, trees and requests on pages: curves drawn, trees folded, names that are no names refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from annotation_site import SCRIPT, Browser
from inspection_site import (
    NOON,
    Inspection,
    add_request,
    add_run,
    add_trees,
    example_tree,
    open_inspection,
)

from surefoot.search.saved_tree import SavedNode
from surefoot.server.pages.charts import HEIGHT, WIDTH, chart, charts
from surefoot.server.pages.render import axis_text
from surefoot.server.pages.runs import changed, series
from surefoot.server.pages.trees import outline


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inspection]:
    folder = tmp_path_factory.mktemp("runs")
    made = open_inspection(folder, rows=2)
    add_run(made.runs / "maths" / "seed-0")
    add_trees(made.runs / "maths" / "beam.trees.jsonl", example_tree(), example_tree(problem_id="q"))
    (folder / "secret").mkdir()
    (folder / "secret" / "curves.jsonl").write_text('{"loss": 1}\n')
    (folder / "secret" / "trees.jsonl").write_text(example_tree().model_dump_json())
    (made.runs / "maths" / "seed-0" / "training.json").symlink_to(folder / "secret" / "trees.jsonl")
    (made.runs / "link").symlink_to(folder / "secret")
    (made.runs / "maths" / "linked.trees.jsonl").symlink_to(folder / "secret" / "trees.jsonl")
    add_request(made.db)
    yield made
    made.db.close()


@pytest.fixture(scope="module")
def tom(found: Inspection) -> Browser:
    return found.room.browser("tom")


def test_runs_are_listed_and_links_are_not_followed(tom: Browser) -> None:
    twin = tom.json("/runs.json")
    assert [one["name"] for one in twin["runs"]] == ["maths/seed-0"]
    assert tom.get(twin["runs"][0]["link"]).status_code == 200
    assert "No run of this name" in tom.get("/runs?text=zzz").text


def test_curves_are_drawn_on_the_server_with_their_figures(tom: Browser) -> None:
    page = tom.get("/run?name=maths/seed-0").text
    assert page.count("<svg") == 2
    assert "gradient_norm: 1, 3 points" in page
    assert page.index("accuracy by update") < page.index("loss by update")
    assert 'aria-label="accuracy by update: first 0, last 0.6, lowest 0, highest 0.6"' in page
    assert page.count("<polygon") == 1
    for points in re.findall(r'points="([^"]+)"', page):
        for pair in points.split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= WIDTH
            assert 0 <= y <= HEIGHT
    twin = tom.json("/run.json?name=maths/seed-0")
    assert twin["series"]["loss"] == [[1.0, 1.0], [2.0, 0.5], [3.0, pytest.approx(1 / 3)]]
    assert sorted(twin["about"]) == ["rl.json"]  # a link that leads elsewhere is none of the run's
    assert twin["stopped"] == "guard 'length'"


def test_what_a_run_says_is_shown_as_text(tom: Browser) -> None:
    page = tom.get("/run?name=maths/seed-0").text
    assert SCRIPT not in page
    assert "from update 2: solutions grow &lt;script&gt;" in page


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("../secret", 400),
        ("..", 400),
        (".", 400),
        ("/etc", 400),
        ("maths/../../secret", 400),
        ("maths//seed-0", 400),
        ("maths\\seed-0", 400),
        ("%2e%2e/secret", 400),
        ("maths/.hidden", 400),
        ("maths/seed-0\n", 404),
        ("a/" * 20 + "b", 400),
        ("x" * 501, 400),
        ("\x00", 400),
        ("link", 404),
        ("maths", 404),
        ("nothing", 404),
        ("", 404),
    ],
)
def test_path_tricks_in_names_of_runs(tom: Browser, name: str, status: int) -> None:
    if name == "maths/seed-0\n":
        name, status = "maths/seed\n-0", 400
    for page in ("/run", "/run.json"):
        answer = tom.get(page, params={"name": name})
        assert answer.status_code == status
        assert "secret/" not in answer.text


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("maths/linked.trees.jsonl", 404),
        ("link/trees.jsonl", 404),
        ("../secret/trees.jsonl", 400),
        ("maths", 404),
        ("maths/seed-0/rl.json", 400),
        ("none.trees.jsonl", 404),
    ],
)
def test_path_tricks_in_names_of_trees(tom: Browser, name: str, status: int) -> None:
    for page in ("/tree-list", "/tree.json"):
        assert tom.get(page, params={"file": name, "number": 0}).status_code == status


def test_a_tree_unfolds_along_the_chosen_solution(tom: Browser) -> None:
    files = tom.json("/trees.json")["files"]
    assert "maths/beam.trees.jsonl" in [one["name"] for one in files]
    listed = tom.json("/tree-list.json?file=maths/beam.trees.jsonl")["trees"]
    assert [one["problem_id"] for one in listed] == ["p", "q"]
    page = tom.get(listed[0]["link"]).text
    tree = page[page.index('<div class="card tree">') :]
    assert tree.count("<details") == tree.count("</details>") == 1
    assert '<details class="node chosen" open>' in tree
    assert "good end" in tree[tree.index("<details") : tree.index("</details>")]
    assert "second" in tree[tree.index("</details>") :]
    assert SCRIPT not in page
    assert "<b>0.90</b>" in tree
    assert tom.json(listed[0]["link"].replace("/tree?", "/tree.json?"))["tree"]["chosen"] == [1, 3]


def test_trees_that_are_not_there(tom: Browser) -> None:
    for number in ("2", "999999999"):
        assert tom.get(f"/tree?file=maths/beam.trees.jsonl&number={number}").status_code == 404
    for number in ("-1", "x", "²", "1" * 30):
        assert tom.get(f"/tree?file=maths/beam.trees.jsonl&number={number}").status_code == 400


def test_a_deep_tree_needs_no_recursion() -> None:
    nodes = [SavedNode(id=0, parent=None, depth=0, text="")]
    nodes += [SavedNode(id=n, parent=n - 1, depth=n, text="s") for n in range(1, 3000)]
    drawn = outline(example_tree(nodes=tuple(nodes), chosen=()))
    assert sum(not one["close"] for one in drawn) == 2999
    assert sum(one["close"] for one in drawn) == 2998


def test_a_broken_curve_is_refused_and_one_being_written_is_read(found: Inspection, tom: Browser) -> None:
    folder = found.runs / "live"
    folder.mkdir()
    (folder / "curves.jsonl").write_text('{"loss": 1}\n{"loss": 2}\n{"loss": 3')
    assert tom.json("/run.json?name=live")["rows"] == 2
    (folder / "curves.jsonl").write_text('{"loss": 1\n{"loss": 2}\n')
    assert tom.get("/run?name=live").status_code == 400
    (folder / "curves.jsonl").write_text('{"loss": NaN, "x": 1e999, "update": 1}\n[]\n')
    assert tom.get("/run?name=live").status_code == 400
    (folder / "curves.jsonl").write_text("[" * 100_000 + "\n{}\n")
    assert tom.get("/run?name=live").status_code == 400
    (folder / "curves.jsonl").write_text('{"\\ud800": 1}\n{}\n')
    assert tom.get("/run?name=live").status_code == 400
    (folder / "curves.jsonl").write_text('{"loss": NaN, "x": 1e999, "update": 1}\n')
    assert "no curve" in tom.get("/run?name=live").text


@pytest.mark.parametrize(
    ("rl", "curves"),
    [
        ({"log": {"alarms": [{}]}}, "{}"),
        ({"log": {"alarms": [{"name": "kl"}, {"name": None, "update": [1], "message": {"a": 1}}]}}, "{}"),
        ({"log": {"alarms": [[], None, "late", 3]}}, "{}"),
        ({"log": {"alarms": {"name": "kl"}, "stopped": 3}}, "{}"),
        ({"log": []}, "{}"),
        ([], "{}"),
        (None, "{}"),
        ({}, '{"loss": 1' + "0" * 400 + "}"),
        ({}, '{"loss": 1, "update": 1' + "0" * 400 + "}"),
        ({"log": {"stopped": "\ud800", "alarms": [{"name": "\udfff"}]}}, '{"loss": "\\ud800"}'),
    ],
    ids=["no name", "types", "no objects", "no list", "log", "list", "null", "value", "update", "surrogate"],
)
def test_a_run_of_any_shape_has_a_page(found: Inspection, tom: Browser, rl: object, curves: str) -> None:
    folder = found.runs / "odd"
    folder.mkdir(exist_ok=True)
    (folder / "rl.json").write_text(json.dumps(rl))
    (folder / "curves.jsonl").write_text(curves)
    for page in ("/run", "/run.json"):
        assert tom.get(page, params={"name": "odd"}).status_code == 200


def test_an_alarm_that_lacks_something_says_so(found: Inspection, tom: Browser) -> None:
    (found.runs / "odd" / "rl.json").write_text('{"log": {"alarms": [{"message": "it grows"}]}}')
    assert "<b>unnamed</b> from update —: it grows" in tom.get("/run?name=odd").text


def test_updates_and_evaluations_are_two_curves() -> None:
    rows = [
        {"kind": "update", "update": 1, "failed": 3},
        {"kind": "evaluation", "update": 1, "failed": 0, "accuracy_value": 0.5},
    ]
    assert series(rows) == {
        "failed": [(1.0, 3.0)],
        "evaluation_failed": [(1.0, 0.0)],
        "accuracy_value": [(1.0, 0.5)],
    }


def test_lines_stay_in_their_box_and_are_thinned() -> None:
    one = chart("x", [(float(n), (-1.0) ** n * 1e308) for n in range(5000)])
    places = [tuple(map(float, pair.split(","))) for pair in one["line"].split()]
    assert len(places) == 400
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places)
    assert places[-1] == one["end"]
    flat = chart("c", [(0, 2), (1, 2)])["line"].split()
    assert len({pair.partition(",")[2] for pair in flat}) == 1
    assert charts({"lonely": [(0.0, 1.0)]}) == []


def test_requests_with_chosen_and_rejected_candidates(tom: Browser) -> None:
    twin = tom.json("/requests.json")
    assert [one["request_id"] for one in twin["requests"]] == ["req-1"]
    page = tom.get(twin["requests"][0]["link"]).text
    assert page.index("✓ chosen") < page.index("✗ rejected")
    assert "step 1 below 0.5" in page
    assert re.search(r'class="cell b1"><span class="at">1</span><b>0\.10</b>', page)
    assert SCRIPT not in page
    assert tom.json("/request.json?id=req-1")["request"]["candidates"][0]["chosen"] is False
    assert tom.get("/request?id=none").status_code == 404


def test_requests_are_filtered_and_go_on(found: Inspection, tom: Browser) -> None:
    for number in range(3):
        add_request(
            found.db,
            f"more-{number}",
            created=NOON + timedelta(seconds=number),
            status=500,
            error="E",
            model="other",
        )
    seen, query = [], "?model=other"
    while query:
        twin = tom.json(f"/requests.json{query}")
        seen += [one["request_id"] for one in twin["requests"]]
        query = twin["next"] or ""
    assert seen == ["more-2", "more-1", "more-0"]
    assert [one["request_id"] for one in tom.json("/requests.json?failed=no")["requests"]] == ["req-1"]
    assert "No request matches" in tom.get("/requests?strategy=none").text
    for query in ("?failed=x", "?before=x", "?before=2024-05-01", "?project=x"):
        assert tom.get(f"/requests{query}").status_code == 400


@pytest.mark.parametrize(
    "page",
    [
        "/runs",
        "/run?name=a",
        "/trees",
        "/tree?file=a",
        "/requests",
        "/request?id=a",
        "/request-tree?id=a",
        "/monitor",
    ],
)
def test_only_readers_of_the_whole_server_see_them(found: Inspection, page: str) -> None:
    assert found.viewer.get(page).status_code == 403
    assert found.room.browser("ann").get(page).status_code == 403
    assert found.room.browser().get(page).status_code == 303
    bound, _ = found.db.keys.create("k", "viewer", project_id=found.room.project)
    free, _ = found.db.keys.create("k", "viewer")
    nobody = found.room.browser()
    assert nobody.get(page, headers={"Authorization": f"Bearer {bound}"}).status_code == 403
    assert nobody.get(page, headers={"Authorization": f"Bearer {free}"}).status_code in (200, 404)


def test_without_a_directory_of_runs_the_pages_say_so(found: Inspection, tom: Browser) -> None:
    pages = found.room.app.state.pages
    settings = pages.settings
    pages.settings = settings.model_copy(update={"runs": None})
    try:
        assert "No directory of runs" in tom.get("/runs").text
        assert "No directory of runs" in tom.get("/trees").text
        assert tom.get("/run?name=maths/seed-0").status_code == 404
    finally:
        pages.settings = settings


def test_a_number_of_updates_and_evaluations_is_two_charts() -> None:
    line = [(1.0, 0.1), (2.0, 0.2)]
    names = {"proxy": line, "loss": line, "proxy_value": line, "proxy_low": line, "proxy_high": line}
    assert [one["name"] for one in charts(names)] == ["loss", "proxy", "proxy (evaluation)"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.4036, "0.404"),
        (-0.0022691, "−0.00227"),
        (12_800, "12.8k"),
        (999_999, "1000k"),
        (5e-8, "5e−8"),
        (-1e308, "−1e308"),
        (-0.000123, "−1.23e−4"),
        (9999.9, "1e4"),
    ],
)
def test_numbers_beside_an_axis_are_short(value: float, text: str) -> None:
    assert axis_text(value) == text
    assert len(text) <= 8


def test_runs_say_when_they_changed(found: Inspection, tom: Browser) -> None:
    row = tom.json("/runs?text=seed-0")["runs"][0]
    written = (found.runs / "maths" / "seed-0" / "rl.json").stat().st_mtime
    assert datetime.fromisoformat(row["changed"]).timestamp() == pytest.approx(written, abs=5)
    assert row["curves"] is True
    assert changed(found.runs, "nothing") is None
    assert changed(None, "x") is None
