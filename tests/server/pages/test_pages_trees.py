"""Trees and requests on pages: trees fold, curves stay in their box, hostile file names are refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

import pytest
from annotation_site import SCRIPT, Browser
from inspection_site import (
    NOON,
    Inspection,
    add_request,
    add_trees,
    example_tree,
    open_inspection,
)

from surefoot.search.saved_tree import SavedNode
from surefoot.server.pages.monitor import BOX, chart
from surefoot.server.pages.render import axis_text
from surefoot.server.pages.trees import outline


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inspection]:
    folder = tmp_path_factory.mktemp("runs")
    made = open_inspection(folder, rows=2)
    (made.runs / "maths" / "seed-0").mkdir(parents=True)
    (made.runs / "maths" / "seed-0" / "rl.json").write_text("{}")
    add_trees(made.runs / "maths" / "beam.trees.jsonl", example_tree(), example_tree(problem_id="q"))
    (folder / "secret").mkdir()
    (folder / "secret" / "trees.jsonl").write_text(example_tree().model_dump_json())
    (made.runs / "link").symlink_to(folder / "secret")
    (made.runs / "maths" / "linked.trees.jsonl").symlink_to(folder / "secret" / "trees.jsonl")
    add_request(made.db)
    yield made
    made.db.close()


@pytest.fixture(scope="module")
def tom(found: Inspection) -> Browser:
    return found.room.browser("tom")


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
        ("maths/linked.trees.jsonl", 404),
        ("link/trees.jsonl", 404),
        ("../secret/trees.jsonl", 400),
        ("maths/seed-0/rl.json", 400),
        ("none.trees.jsonl", 404),
        ("maths/seed\n-0", 400),
        ("a/" * 20 + "b", 400),
        ("x" * 501, 400),
        ("\x00", 400),
        ("link", 404),
        ("maths", 404),
        ("nothing", 404),
        ("", 404),
    ],
)
def test_path_tricks_in_names_of_trees(tom: Browser, name: str, status: int) -> None:
    for page in ("/tree-list", "/tree.json"):
        answer = tom.get(page, params={"file": name, "number": 0})
        assert answer.status_code == status
        assert "secret/" not in answer.text


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


def test_lines_stay_in_their_box_and_are_thinned() -> None:
    one = chart("x", [(float(n), (-1.0) ** n * 1e300) for n in range(5000)])
    places = [tuple(map(float, pair.split(","))) for pair in one["line"].split()]
    assert len(places) == 400
    assert all(BOX["left"] <= x <= BOX["right"] and BOX["top"] <= y <= BOX["bottom"] for x, y in places)
    assert places[-1] == one["end"]
    flat = chart("c", [(0, 2), (1, 2)])["line"].split()
    assert len({pair.partition(",")[2] for pair in flat}) == 1


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
        assert "No directory of runs" in tom.get("/trees").text
        assert tom.get("/tree-list?file=maths/beam.trees.jsonl").status_code == 404
    finally:
        pages.settings = settings


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
