"""The gateway's request log as pages, and import of answers into a project."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from annotation_site import Browser
from inspection_site import Inspection, add_request, open_inspection

from surefoot.records import Problem, StepScores, Trace, now
from surefoot.server import GatewayCandidate

HOUR = timedelta(hours=1)


@pytest.fixture
def found(tmp_path: Path) -> Inspection:
    made = open_inspection(tmp_path)
    yield made
    made.db.close()


@pytest.fixture
def admin(found: Inspection) -> Browser:
    return found.room.browser("admin")


def answer(db, name: str, text: str, *, scored: bool = True, **fields) -> Trace:
    """A request with one answer of two lines and a rival."""
    problem = Problem(text=f"What is {name}?")
    chosen = Trace(problem_id=problem.id, text=text)
    rival = Trace(problem_id=problem.id, text=f"{text}, or so")
    add_request(
        db,
        name,
        problem=problem,
        created=now(),
        candidates=(
            GatewayCandidate(trace=chosen, chosen=True),
            GatewayCandidate(trace=rival, chosen=False, reason="not chosen"),
        ),
        **fields,
    )
    return chosen


def test_an_answer_that_was_withheld_is_no_success(found: Inspection, admin: Browser) -> None:
    add_request(found.db, "refused", status=200, error="the call is denied")
    [row] = admin.json("/requests.json?text=failed:yes")["requests"]
    assert (row["request_id"], row["failed"], row["status"]) == ("refused", True, 200)
    page = admin.get("/requests?text=failed:yes").text
    assert '✗ <span class="word">withheld</span>' in page
    assert ">200<" not in page


def test_the_list_reads_no_whole_record(
    found: Inspection, admin: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some records are of megabytes, and one may be pruned while the list is made."""
    answer(found.db, "long", "first\nsecond\n")
    monkeypatch.setattr(type(found.db.gateway), "_records", None)
    rows = admin.json("/requests.json")["requests"]
    (row,) = [row for row in rows if row["request_id"] == "long"]
    assert (row["title"], row["steps"], row["outcome_word"]) == ("What is long?", None, "answered")
    assert "What is long?" in admin.get("/requests").text


def test_answers_are_imported_into_a_project_to_be_labelled(found: Inspection, admin: Browser) -> None:
    project = found.db.projects.create("new").id
    trace = answer(found.db, "two lines", "first\nsecond\n", model="m1")
    answer(found.db, "another model", "only\n", model="m2")
    answer(found.db, "failure", "x\n", model="m1", status=502, error="gone")
    page = "/requests?text=model:m1"

    def import_into(**fields: str):
        return admin.send(
            "/requests/import", page=page, into=str(project), headers={"Accept": "application/json"}, **fields
        )

    imported = import_into(which="chosen").json()
    assert (imported["requests"], imported["items"], imported["report"]["traces"]["new"]) == (1, 1, 1)
    kept = found.db.traces.trace(project, trace.id)
    assert [kept.step_text(step) for step in range(len(kept.steps))] == ["first\n", "second\n"]
    more = import_into(which="all").json()
    assert (more["report"]["traces"]["new"], more["report"]["traces"]["same"]) == (1, 1)
    assert len(found.db.items.list(project)) == 2
    assert import_into(which="some").status_code == 400
    assert (
        "Imported into new" in admin.send("/requests/import", page=page, into=str(project), which="all").text
    )


def test_scores_come_along(found: Inspection, admin: Browser) -> None:
    project = found.db.projects.create("new").id
    problem = Problem(text="scored")
    trace = Trace(problem_id=problem.id, text="a\n", steps=({"start": 0, "end": 2},))
    scores = StepScores(trace_id=trace.id, scorer="prm", scores=(0.25,))
    candidate = GatewayCandidate(trace=trace, chosen=True, score=0.25, scores=scores)
    add_request(found.db, "scored", problem=problem, candidates=(candidate,), model="only")
    admin.send("/requests/import", page="/requests?text=model:only", into=str(project), which="chosen")
    [kept] = found.db.traces.scores_of(project, [trace.id])[trace.id]
    assert kept.scores == (0.25,)


def scored(db, name: str, trace: Trace, problem: Problem, *scores: float, ago: timedelta = 0 * HOUR) -> None:
    candidate = GatewayCandidate(
        trace=trace, chosen=True, scores=StepScores(trace_id=trace.id, scorer="prm", scores=scores)
    )
    add_request(
        db, name, problem=problem, candidates=(candidate,), model="only", scorer="prm", created=now() - ago
    )


def test_the_latest_scores_of_a_solution_are_kept(found: Inspection, admin: Browser) -> None:
    project = found.db.projects.create("new").id
    problem = Problem(text="scored")
    trace = Trace(problem_id=problem.id, text="a\n", steps=({"start": 0, "end": 2},))
    for name, score, ago in (("z", 0.1, 3), ("b", 0.9, 1), ("c", 0.5, 2)):
        scored(found.db, name, trace, problem, score, ago=ago * HOUR)
    for _ in range(2):
        admin.send("/requests/import", page="/requests?text=model:only", into=str(project), which="chosen")
        [kept] = found.db.traces.scores_of(project, [trace.id])[trace.id]
        assert kept.scores == (0.9,)
    scored(found.db, "newest", trace, problem, 0.7)
    admin.send("/requests/import", page="/requests?text=model:only", into=str(project), which="chosen")
    [kept] = found.db.traces.scores_of(project, [trace.id])[trace.id]
    assert kept.scores == (0.7,)


def test_scores_of_other_steps_are_left_out_and_counted(found: Inspection, admin: Browser) -> None:
    project = found.db.projects.create("new").id
    problem = Problem(text="scored")
    about = {"id": "t", "problem_id": problem.id, "text": "a\nb\n"}
    whole = Trace(**about, steps=({"start": 0, "end": 2}, {"start": 2, "end": 4}))
    shifted = Trace(**about, steps=({"start": 0, "end": 1}, {"start": 1, "end": 4}))
    judged = whole.model_copy(update={"outcome": True})  # other content, and the same steps
    found.db.traces.add_problems(project, [problem])
    found.db.traces.add_traces(project, [whole])
    scored(found.db, "same", judged, problem, 0.1, 0.2, ago=HOUR)
    scored(found.db, "other", shifted, problem, 0.8, 0.9)
    sent = {"page": "/requests?text=model:only", "into": str(project), "which": "chosen"}
    imported = admin.send("/requests/import", headers={"Accept": "application/json"}, **sent).json()
    assert imported["scores_left_out"] == 1
    assert (imported["report"]["traces"]["refused"], imported["report"]["scores"]["new"]) == (2, 1)
    [kept] = found.db.traces.scores_of(project, ["t"])["t"]
    assert kept.scores == (0.1, 0.2)
    page = admin.send("/requests/import", **sent).text
    assert "Left out: the scores of 1 solution that the project has with other steps" in page


def test_only_administrators_import_and_only_from_an_own_page(found: Inspection, admin: Browser) -> None:
    fields = {"into": "1", "which": "all"}
    assert "Take into a project" not in found.room.browser("tom").get("/requests").text
    for name in ("tom", "ann"):
        person = found.room.browser(name)
        assert person.client.post("/requests/import", data=fields).status_code == 403
    elsewhere = {"origin": "https://evil.example"}
    assert admin.client.post("/requests/import", data=fields, headers=elsewhere).status_code == 403


def test_requests_are_kept_as_long_as_their_project_says(found: Inspection) -> None:
    db, project = found.db, found.room.project
    before = db.gateway.find()
    answer(db, "mine", "a", project_id=project)
    answer(db, "others", "b")
    assert db.gateway.prune(now() + HOUR, project_id=project) == 1
    assert {row.request_id for row in db.gateway.find()} == {"others", *(row.request_id for row in before)}
