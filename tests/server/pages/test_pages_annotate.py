"""The annotator's pages without a script: labels, undo, idempotency, blindness, JSON twins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from annotation_site import SCRIPT, Browser, Room, assignments_of, open_room

from surefoot.server import Protocol


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    found = open_room(tmp_path)
    yield found
    found.db.close()


def first_item(browser: Browser, project: int = 1) -> str:
    answer = browser.get(f"/projects/{project}/annotate")
    assert answer.status_code == 303
    return str(answer.headers["location"])


def standing(room: Room, name: str) -> list[tuple[int, float | None]]:
    return [
        (label.record.step, label.record.value)
        for label in room.db.export.stored(room.project)
        if label.user_id == room.ids[name] and label.is_current
    ]


def test_steps_appear_one_at_a_time(room: Room) -> None:
    ann = room.browser("ann")
    item = first_item(ann)
    page = ann.get(item).text
    assert "Write " in page
    assert "So the sum" not in page
    assert "The answer is" not in page
    assert ann.send(item, f"{item}/label", value="1", milliseconds="1500").status_code == 303
    page = ann.get(item).text
    assert "So the sum" in page
    assert "The answer is" not in page
    assert "boxed" not in str(ann.json(item))


def test_work_ends_at_the_first_error(room: Room) -> None:
    ann = room.browser("ann")
    item = first_item(ann)
    ann.send(item, f"{item}/label", value="1", milliseconds="1500")
    ann.send(item, f"{item}/label", value="-1", milliseconds="500", comment="The sum is off.")
    data = ann.json(item)
    assert (data["state"], data["current"], data["labelled"], data["steps"]) == ("done", None, 2, 3)
    assert data["blocks"][1]["comment"] == "The sum is off."
    assert [one.milliseconds for one in room.db.export.stored(1)] == [1500, 500]
    assert assignments_of(room.db, 1, room.ids["ann"])[0].milliseconds == 2000
    assert first_item(ann) != item


def test_every_step_gets_a_label_if_the_protocol_says_so(tmp_path: Path) -> None:
    room = open_room(tmp_path, protocol=Protocol(until="every-step"))
    ann = room.browser("ann")
    assert "Every step gets a label" in ann.get("/projects/1/label").text
    item = first_item(ann)
    for value, state in ((1, "leased"), (-1, "leased"), (1, "done")):
        ann.send(item, f"{item}/label", value=str(value))
        assert ann.json(item)["state"] == state
    assert standing(room, "ann") == [(0, 1.0), (1, -1.0), (2, 1.0)]
    ann.send(item, f"{item}/undo")
    assert ann.json(item)["current"] == 2
    room.browser("admin").send("/projects/1/settings", name="F", annotators="1", lease_minutes="9",
                               value1="on", until="first-error")  # fmt: skip
    assert room.db.projects.get(1).protocol.until == "first-error"
    room.db.close()


@pytest.mark.parametrize(
    ("form", "labels"),
    [
        ({"value": "-1", "step": "1"}, [(0, 1.0), (1, -1.0)]),
        ({"value": "-1", "step": "0"}, [(0, -1.0)]),
        ({"value": "1"}, [(0, 1.0), (1, 1.0), (2, 1.0)]),
    ],
)
def test_the_whole_solution_is_labelled_at_once(
    tmp_path: Path, form: dict[str, str], labels: list[tuple[int, float]]
) -> None:
    room = open_room(tmp_path, protocol=Protocol(until="whole-solution"))
    ann = room.browser("ann")
    item = first_item(ann)
    assert len(ann.json(item)["blocks"]) == 3
    assert "boxed" in ann.get(item).text
    for wrong in ({"value": "-1"}, {"value": "0", "step": "1"}, {"value": "-1", "step": "3"}):
        assert ann.send(item, f"{item}/label", **wrong).status_code == 400
    ann.send(item, f"{item}/label", milliseconds="900", **form)
    assert (ann.json(item)["state"], standing(room, "ann")) == ("done", labels)
    assert assignments_of(room.db, 1, room.ids["ann"])[0].milliseconds == 900
    ann.send(item, f"{item}/undo")
    assert (ann.json(item)["current"], standing(room, "ann")) == (0, [])


def test_time_is_unknown_without_a_script(room: Room) -> None:
    ann = room.browser("ann")
    item = first_item(ann)
    for sent in ("", "-5", "1e9", "99999999999999"):
        ann.send(item, f"{item}/label", value="-1", milliseconds=sent)
        assert room.db.export.stored(1)[-1].milliseconds is None
        assert assignments_of(room.db, 1, room.ids["ann"])[0].milliseconds is None
        assert ann.send(item, f"{item}/undo").status_code == 303


def test_a_form_sent_twice_makes_one_label(room: Room) -> None:
    ann = room.browser("ann")
    item = first_item(ann)
    form = {**ann.fields(item, f"{item}/label"), "value": "1", "milliseconds": "900"}
    first = ann.client.post(f"{item}/label", data=form, headers={"Accept": "application/json"}).json()
    again = ann.client.post(f"{item}/label", data=form, headers={"Accept": "application/json"}).json()
    assert (first["submission"]["repeated"], again["submission"]["repeated"]) == (False, True)
    assert first["submission"]["label_ids"] == again["submission"]["label_ids"]
    assert standing(room, "ann") == [(0, 1.0)]
    changed = ann.client.post(f"{item}/label", data={**form, "value": "-1"})
    assert changed.status_code == 409
    stale = ann.client.post(f"{item}/label", data={**form, "key": "another tab"})
    assert stale.status_code == 409
    assert standing(room, "ann") == [(0, 1.0)]


def test_undo_takes_back_one_submission_and_opens_the_item(room: Room) -> None:
    ann = room.browser("ann")
    item = first_item(ann)
    ann.send(item, f"{item}/label", value="1")
    ann.send(item, f"{item}/label", value="-1")
    assert ann.send(item, f"{item}/undo").status_code == 303
    assert standing(room, "ann") == [(0, 1.0)]
    assert ann.json(item)["current"] == 1
    assert [label.is_current for label in room.db.export.stored(1)] == [True, False]
    ann.send(item, f"{item}/label", value="0")
    assert standing(room, "ann") == [(0, 1.0), (1, 0.0)]


def test_annotators_are_blind_to_each_other(room: Room) -> None:
    ann, ben = room.browser("ann"), room.browser("ben")
    item = first_item(ann)
    ann.send(item, f"{item}/label", value="1", comment="a private thought")
    ann.send(item, f"{item}/label", value="-1")
    assert first_item(ben) == item
    page, data = ben.get(item).text, ben.json(item)
    assert "private" not in page
    assert data["labelled"] == 0
    own = room.db.projects.member(1, room.ids["ann"])
    assert own is not None
    overview = ben.get("/projects/1/label").text
    assert own.pseudonym not in overview
    assert all(word not in str(data) for word in ("chosen_by", "known", "policy", "outcome"))


def test_comments_and_skipping(room: Room) -> None:
    ann, admin = room.browser("ann"), room.browser("admin")
    item = first_item(ann)
    assert ann.send(item, f"{item}/label", value="1", comment=f"odd {SCRIPT}").status_code == 303
    assert SCRIPT not in ann.get(item).text
    assert "odd &lt;script&gt;" in ann.get(item).text
    assert ann.send(item, f"{item}/skip", reason="whim").status_code == 400
    answer = ann.send(item, f"{item}/skip", reason="bad_problem", words=f"no {SCRIPT} in it")
    assert answer.headers["location"] == "/projects/1/annotate"
    assert assignments_of(room.db, 1, room.ids["ann"])[0].reason == f"bad_problem: no {SCRIPT} in it"
    (skipped,) = admin.json("/projects/1/adjudicate")["skipped"]
    assert skipped["reason"] == f"bad_problem: no {SCRIPT} in it"
    assert skipped["trace_id"] == room.db.items.get(1, int(item.rpartition("/")[2])).trace_id
    page = admin.get("/projects/1/adjudicate").text
    assert "bad_problem: no &lt;script&gt;" in page
    assert SCRIPT not in page
    assert ann.get("/projects/1/adjudicate").status_code == 403
    assert first_item(ann) != item


@pytest.mark.parametrize("value", ["2", "", "x", "-2", "1; DROP TABLE labels"])
def test_a_label_of_another_kind_is_refused(room: Room, value: str) -> None:
    ann = room.browser("ann")
    item = first_item(ann)
    assert ann.send(item, f"{item}/label", value=value).status_code == 400
    assert standing(room, "ann") == []


def test_values_that_the_project_does_not_allow(tmp_path: Path) -> None:
    room = open_room(tmp_path, protocol=Protocol(values=(-1, 1)))
    ann = room.browser("ann")
    item = first_item(ann)
    assert 'value="0" class="sign' not in ann.get(item).text
    assert ann.send(item, f"{item}/label", value="0").status_code == 400
    room.db.close()


def test_agent_runs_show_tools_folded_and_results_late(room: Room) -> None:
    ann = room.browser("ann")
    for _ in range(2):
        item = first_item(ann)
        ann.send(item, f"{item}/label", value="-1")
    item = first_item(ann)
    page = ann.get(item).text
    assert "<b>→ <code>search</code></b>" in page
    assert "Paris is the capital" not in page
    ann.send(item, f"{item}/label", value="1")
    page = ann.get(item).text
    assert "↳ result" in page
    assert "Paris is the capital" in page


@pytest.mark.parametrize("shown", [True, False])
def test_reference_answer_is_shown_if_the_protocol_says_so(tmp_path: Path, shown: bool) -> None:
    room = open_room(tmp_path, protocol=Protocol(show_answer=shown))
    ann = room.browser("ann")
    item = first_item(ann)
    assert ("Reference answer" in ann.get(item).text) is shown
    assert (ann.json(item)["answer"] is not None) is shown
    room.db.close()


def test_instructions_are_markdown_without_html(room: Room) -> None:
    text = f"# Title\n\n**bold** {SCRIPT}\n\n[bad](javascript:alert(1)) ![img](http://x.example/a.png)\n\n"
    text += "<b onclick=x>"
    room.db.projects.update(1, 1, instructions=text)
    page = room.browser("ann").get("/projects/1/label").text
    assert "<strong>bold</strong>" in page
    for bad in (SCRIPT, 'href="javascript', "<img", "<b onclick"):
        assert bad not in page


@pytest.mark.parametrize("path", ["/projects", "/projects/1/label", "ITEM"])
def test_twins_have_the_content_of_the_page(room: Room, path: str) -> None:
    ann = room.browser("ann")
    item = first_item(ann)
    path = item if path == "ITEM" else path
    by_header, by_ending = ann.json(path), ann.get(f"{path}.json").json()
    assert by_header == by_ending
    page = ann.get(path).text
    for word in _words(by_header):
        assert word in page, word


def _words(data: object) -> Iterator[str]:
    """Plain words of a twin that people must be able to read, too."""
    if isinstance(data, dict):
        for key, value in data.items():
            if key in ("name", "text", "problem", "annotator", "item") and isinstance(value, str):
                yield value.split("$")[0].strip()
            yield from _words(value)
    elif isinstance(data, list):
        for value in data:
            yield from _words(value)


def test_the_keyboard_script_is_there_and_ours(room: Room) -> None:
    ann = room.browser("ann")
    page = ann.follow("/projects/1/annotate").text
    assert 'src="/static/pages.js"' in page
    assert "http://" not in page
    assert "https://" not in page
    for key in ('data-keys="-"', 'data-keys="0"', 'data-keys="1 + ="', 'data-keys="c"', 'data-keys="s"'):
        assert key in page
    assert "keydown" in ann.get("/static/pages.js").text
    assert ann.get("/static/pages.css").headers["content-type"].startswith("text/css")
