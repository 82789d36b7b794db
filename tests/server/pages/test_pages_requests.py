"""Requests on pages: their candidates, filters, and that only readers see them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

import pytest
from annotation_site import SCRIPT, Browser
from inspection_site import NOON, Inspection, add_request, open_inspection


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inspection]:
    folder = tmp_path_factory.mktemp("runs")
    made = open_inspection(folder, rows=2)
    earlier = NOON - timedelta(hours=1)
    add_request(made.db, "deep", created=earlier, model="deep")
    add_request(made.db)
    yield made
    made.db.close()


@pytest.fixture(scope="module")
def tom(found: Inspection) -> Browser:
    return found.room.browser("tom")


def test_requests_with_chosen_and_rejected_candidates(tom: Browser) -> None:
    twin = tom.json("/requests.json")
    assert [one["request_id"] for one in twin["requests"]] == ["req-1", "deep"]
    assert [one["title"] for one in twin["requests"]] == [f"Ask {SCRIPT}"] * 2
    page = tom.get(twin["requests"][0]["link"]).text
    assert page.index("✓ chosen") < page.index("✗ rejected")
    assert "step 1 below 0.5" in page
    other = tom.get("/request?id=req-1&candidate=1").text
    assert re.search(r'class="cell b1"><a href="#step-1"><span class="at">1</span><b>0\.10</b>', other)
    assert tom.get("/request?id=req-1&candidate=2").status_code == 404
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
    seen, query = [], "?text=model:other"
    while query:
        twin = tom.json(f"/requests.json{query}")
        seen += [one["request_id"] for one in twin["requests"]]
        query = twin["next"] or ""
    assert seen == ["more-2", "more-1", "more-0"]
    succeeded = tom.json("/requests.json?text=failed:no")["requests"]
    assert [one["request_id"] for one in succeeded] == ["req-1", "deep"]
    assert "Nothing matches" in tom.get("/requests?text=strategy:none").text
    assert tom.get("/requests?before=deep").status_code == 404
    for query in ("?text=failed:x", "?before=%00", "?text=project:3", "?text=words"):
        assert tom.get(f"/requests{query}").status_code == 400


@pytest.mark.parametrize(
    "page",
    [
        "/requests",
        "/request?id=a",
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
