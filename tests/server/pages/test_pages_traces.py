"""Traces, candidates and labels on pages: escaped, filtered, marked, and closed to who may not see them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from annotation_site import SCRIPT, audited, text_trace
from inspection_site import NOON, Inspection, add_labels, open_inspection

from surefoot.evaluation.verdict import run_verdict
from surefoot.records import Evidence, Message, Problem, Reasoning, StepLabel, StepScores, ToolCall, Trace
from surefoot.segment import segment_trace
from surefoot.server.pages.render import call_arguments
from surefoot.server.pages.run import aligned, gold_view, result_summary, strip
from surefoot.server.store.labels import evidence_of


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inspection]:
    made = open_inspection(tmp_path_factory.mktemp("inspect"))
    add_labels(made)
    yield made
    made.db.close()


def shown(found: Inspection, path: str) -> str:
    answer = found.viewer.get(path)
    assert answer.status_code == 200, answer.text
    text: str = answer.text
    return text


def ids(found: Inspection, query: str) -> list[str]:
    answer = found.viewer.get(f"{found.base}/runs.json{query}")
    assert answer.status_code == 200, answer.text
    return sorted(row["id"] for row in answer.json()["runs"])


def test_text_of_a_model_is_shown_as_text(found: Inspection) -> None:
    page = shown(found, f"{found.base}/run?id={found.traces[1].id}")
    assert SCRIPT not in page
    assert page.count("&lt;script&gt;") == 3  # the step's, and the judge's in its note and in the verdict
    assert "default-src &#39;none&#39;" not in page


def test_every_cell_has_its_number_beside_the_colour(found: Inspection) -> None:
    page = shown(found, f"{found.base}/run?id={found.traces[1].id}")
    cell = r'<li class="cell b(\d|x)(?: first-error)?"><a href="#step-\d"><span class="at">(\d)</span>'
    cells = re.findall(cell + "<b>([^<]+)</b>", page)
    assert cells == [
        ("7", "1", "0.70"), ("9", "2", "0.90"), ("8", "3", "0.80"),
        ("1", "1", "0.10"), ("9", "2", "0.90"), ("2", "3", "0.20"),
    ]  # fmt: skip


def test_the_first_error_is_marked_in_words_in_strips_and_steps(found: Inspection) -> None:
    page = shown(found, f"{found.base}/run?id={found.traces[1].id}")
    strips = re.findall(
        r'<li class="cell b9 first-error"><a href="#step-2"><span class="at">2</span>.*?first error</span>',
        page,
    )
    assert len(strips) == 2
    assert 'id="step-2"' in page.split("✗ First error")[0].rpartition("<li")[2]
    twin = found.viewer.json(f"{found.base}/run.json?id={found.traces[1].id}")
    assert twin["first_error"] == 1
    assert [one["scorer"] for one in twin["strips"]] == ["first", "second"]


def test_a_checked_step_without_a_score_shows_what_is_said_of_it(tmp_path: Path) -> None:
    made = open_inspection(tmp_path)
    trace = made.traces[0].model_copy(update={"id": "checked"})
    assert made.db.traces.add_traces(made.room.project, [trace]).new == 1

    def marks() -> list[str]:
        page = made.viewer.get(f"{made.base}/run?id=checked").text
        cells = re.findall(r'<li class="cell bx.*?</li>', page)
        return [re.sub("<[^>]*>", "", cell)[1:] for cell in cells]

    assert {*marks()} == {"—"}
    for source, step, value in (("a", 0, 1), ("a", 1, -1), ("b", 0, 1), ("b", 1, 1)):
        label = StepLabel(trace_id="checked", step=step, kind="correctness", value=value, source=source)
        assert made.db.labels.import_labels(made.room.project, [label]).new == 1
    assert marks()[:2] == ["✓ called right", "? in doubt"]
    made.db.reviews.adjudicate(made.room.project, "checked", made.room.ids["admin"], 1, -1)
    assert marks()[:2] == ["✓ called right", "✗ first error"]
    made.db.close()


def test_labels_of_every_source_stand_beside_each_other(found: Inspection) -> None:
    twin = found.viewer.json(f"{found.base}/run.json?id={found.traces[1].id}")
    labels = {(one["source"], one["rater"], one["step"], one["value"]) for one in twin["labels"]}
    assert labels == {
        ("human", "rater-a", 0, 1.0), ("human", "rater-a", 1, -1.0), ("human", "rater-b", 1, 1.0),
        ("judge", "judge-1", 1, -1.0), ("judge", "judge-1", 2, None), ("monte-carlo", None, 2, 0.0),
    }  # fmt: skip
    page = shown(found, f"{found.base}/run?id={found.traces[1].id}")
    assert "0 of 8 succeeded" in page
    assert "[0.00, 0.32]" in page
    assert "cannot tell" in page
    assert "because &lt;script&gt;" in page


def test_a_decision_stands_for_the_labels_of_its_step(tmp_path: Path) -> None:
    made = open_inspection(tmp_path)
    add_labels(made)
    run = made.traces[1].id
    made.db.reviews.adjudicate(made.room.project, run, made.room.ids["admin"], 1, 1, note="it holds")
    twin = made.viewer.json(f"{made.base}/run.json?id={made.traces[1].id}")
    assert twin["first_error"] is None
    assert twin["decisions"]["1"]["value"] == 1
    assert "it holds" in shown(made, f"{made.base}/run?id={made.traces[1].id}")
    made.db.close()


def test_the_filter_of_first_errors_finds_what_their_column_shows(tmp_path: Path) -> None:
    """A minority's vote and a decision against a label name no first error; a value label is no vote."""
    made = open_inspection(tmp_path)
    add_labels(made)
    project, run = made.room.project, made.traces[1].id
    for source, value in (("a", -1), ("b", 1), ("c", 1)):
        label = StepLabel(trace_id=made.traces[0].id, step=0, kind="correctness", value=value, source=source)
        assert made.db.labels.import_labels(project, [label]).new == 1

    def shown_and_found() -> set[tuple[str, int]]:
        rows = made.viewer.json(f"{made.base}/runs")["runs"]
        expected = {(row["id"], row["first_error"]) for row in rows if row["first_error"] is not None}
        found = made.viewer.json(f"{made.base}/runs?text=error:any")["runs"]
        assert {(row["id"], row["first_error"]) for row in found} == expected
        for name, step in expected:
            exact = made.viewer.json(f"{made.base}/runs?text=error:{step + 1}")["runs"]
            assert name in [row["id"] for row in exact]
        others = made.viewer.json(f"{made.base}/runs?text=error:none")["runs"]
        assert {row["id"] for row in others} == {row["id"] for row in rows} - {name for name, _ in expected}
        return expected

    before = shown_and_found()
    assert run in [name for name, _ in before]
    assert made.traces[0].id not in [name for name, _ in before]
    step = dict(before)[run]
    made.db.reviews.adjudicate(project, run, made.room.ids["admin"], step, 1)
    assert (run, step) not in shown_and_found()
    made.db.close()


def test_a_decision_leaves_what_a_source_says_of_other_steps() -> None:
    """A source's second error counts after a decision that its first one is none."""

    def label(step: int, value: float, decided: bool = False) -> Any:
        record = StepLabel(trace_id="t", step=step, kind="correctness", value=value, source="judge")
        return SimpleNamespace(record=record, is_decision=decided)

    labels: list[Any] = [label(0, 1), label(1, -1), label(2, 1), label(3, -1)]
    scores = [StepScores(trace_id="t", scorer="prm", scores=(0.9, 0.1, 0.9, 0.2))]
    labels.append(label(1, 1, decided=True))
    verdict = run_verdict(4, None, evidence_of(labels, scores))
    assert (verdict.error, verdict.tone) == (3, "wrong")
    assert verdict.sources == ("decision: right", "judge: step 4", "prm scores step 4 at 0.20")
    verdict = run_verdict(4, None, evidence_of([*labels, label(3, 1, decided=True)], scores))
    assert (verdict.error, verdict.tone) == (None, "good")
    assert verdict.sources[2:] == ("judge: step 2",)


def test_a_step_is_decided_on_the_page_of_its_run(tmp_path: Path) -> None:
    made = open_inspection(tmp_path)
    run, admin = f"{made.base}/run?id={made.traces[1].id}&text=model%3Atwo&at=0", made.room.browser("admin")
    page = f"{run}&edit=1"
    form = {**admin.fields(page, "edit=1"), "step": "1", "value": "-1", "note": "2 + 4 of what?"}
    answer = admin.client.post(page, data=form)
    assert (answer.status_code, answer.headers["location"]) == (303, f"{page}&step=2&decision_id=1#step-2")
    twin = admin.json(page.replace("run?", "run.json?"))
    assert twin["decisions"]["1"]["message"] == "2 + 4 of what?"
    assert twin["first_error"] == 1
    assert admin.client.post(page, data=form).status_code == 409  # a second tab
    assert admin.client.post(page, data={**form, "step": "9"}).status_code == 400
    other = made.traces[1].model_copy(update={"id": "other"})
    assert made.db.traces.add_traces(made.room.project, [other]).new == 1
    items = made.db.items.list(made.room.project)
    bad_step = {**form, "step": "9", "seen": "0"}
    assert admin.client.post(f"{made.base}/run?id=other", data=bad_step).status_code == 400
    assert made.db.items.list(made.room.project) == items
    assert 'name="value"' not in made.viewer.get(page).text
    made.db.close()


def test_a_page_that_is_read_decides_nothing_and_a_decision_can_be_taken_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = open_inspection(tmp_path)
    run, admin = f"{made.base}/run?id={made.traces[1].id}", made.room.browser("admin")
    read = admin.get(run).text
    assert 'name="value"' not in read
    assert not re.findall(r'data-keys="[^"]*[-01][^"]*"', read)
    page = f"{run}&edit=1"
    edit = admin.get(page).text
    assert edit.count('class="dock"') == 1
    for value in ("-1", "1"):
        form = admin.fields(page, "edit=1")
        there = admin.client.post(page, data={**form, "step": "1", "value": value}).headers["location"]
    assert "Step 2 is now" in admin.get(there).text
    for expected in (-1, None):
        (number,) = re.findall(r'name="undo" value="(\d+)"', admin.get(there).text)
        undo = {"undo": number}
        assert admin.client.post(page, data=undo).status_code == 303
        decided = admin.json(f"{run.replace('run?', 'run.json?')}")["decisions"]
        assert (decided["1"]["value"] if decided else None) == expected
        there = f"{page}&decision_id={int(number) - 1}"
    assert admin.client.post(page, data=undo).status_code == 409
    assert audited(caplog)[-1]["action"] == "decision undone"
    made.db.close()


def test_an_agents_run_folds_its_tool_calls(found: Inspection) -> None:
    agent = next(trace for trace in found.traces if trace.messages)
    page = shown(found, f"{found.base}/run?id={agent.id}")
    assert "<b>→ <code>search</code></b>" in page
    assert "<dt>query</dt><dd>capital of France</dd>" in page
    assert "<summary>↳ result · Paris is the capital of France.</summary>" in page
    assert page.count('<li class="step"') == 2


def test_a_program_in_a_call_is_shown_as_text(tmp_path: Path) -> None:
    found = open_inspection(tmp_path)
    call = ToolCall(name="bash", arguments=json.dumps({"command": 'cat <<E\n<b>"x"</b>\nE', "n": [1]}))
    messages = (Message(role="user", content="Go."), Message(role="assistant", tool_calls=(call,)))
    trace = segment_trace(Trace(id="shell", problem_id=found.traces[0].problem_id, messages=messages))
    found.db.traces.add_traces(found.room.project, [trace])
    page = shown(found, f"{found.base}/run?id=shell")
    assert "<dd>cat &lt;&lt;E\n&lt;b&gt;&#34;x&#34;&lt;/b&gt;\nE</dd><dt>n</dt><dd>[1]</dd>" in page
    assert "· command" in page
    twin = found.viewer.json(f"{found.base}/run.json?id=shell")
    assert twin["trace"]["messages"][1]["tool_calls"][0]["arguments"] == call.arguments
    assert all(call_arguments(text) == [("", text)] for text in ("[", '["a\\n"]', "[" * 99_999))
    found.db.close()


@pytest.mark.parametrize(
    ("query", "which"),
    [
        ("", [0, 1, 2]),
        ("?text=model:two", [1]),
        ("?text=outcome:wrong", [1]),
        ("?text=outcome:correct", [0, 2]),
        ("?text=outcome:ungraded", []),
        ("?text=second>0.49", [0, 2]),
        ("?text=second<0.2", [1]),
        ("?text=second>0.49 second<0.8", [2]),
        ("?text=FRANCE", [2]),
        ('?text="capital of"', [2]),
        ("?text=FRANCE model:one", []),
        ("?text=tool:search", [2]),
        ("?text=tool:Paris", []),
        ("?text=error:2", [1]),
        ("?text=error:any", [1]),
        ("?text=error:3..", []),
        ("?text=error:..2", [1]),
        ("?text=error:none", [0, 2]),
        ("?text=error:999999", []),
        ("?problem=none", []),
        ("?text=%25", []),
    ],
)
def test_filters(found: Inspection, query: str, which: list[int]) -> None:
    assert ids(found, query) == sorted(found.traces[place].id for place in which)


@pytest.mark.parametrize(
    "query",
    ["?text=outcome:maybe", "?text=first<x", "?text=third<0.5", "?text=first<nan", "?text=outcom:wrong",
     "?text=error:x", "?text=error:..", "?text=error:99999999", "?text=error:1..99999999",
     '?text="open', "?text=" + "a" * 1001, "?text=model:%00", "?low=0.5",
     "?text=first<1 second<1", "?text=first < 1"],
)  # fmt: skip
def test_filters_that_make_no_sense_are_refused(found: Inspection, query: str) -> None:
    answer = found.viewer.get(f"{found.base}/runs{query}")
    assert answer.status_code == 400
    assert "<h1>" in answer.text
    assert 'role="alert"' in answer.text


def test_a_filter_says_what_was_meant_and_stays_in_its_box(found: Inspection) -> None:
    answer = found.viewer.get(f"{found.base}/runs", params={"text": 'outcom:wrong "a b"'}).text
    assert "unknown filter &#39;outcom&#39;; did you mean &#39;outcome&#39;?" in answer
    assert 'value="outcom:wrong &#34;a b&#34;"' in answer
    assert "did you mean &#39;second&#39;" in found.viewer.get(f"{found.base}/runs?text=secnd<0.5").text


def test_a_list_goes_on_where_it_ended_with_its_filters(tmp_path: Path) -> None:
    made = open_inspection(tmp_path, rows=1)
    seen: list[str] = []
    for page in (1, 2, 3):
        twin = made.viewer.json(f"{made.base}/runs.json?text=is sort:oldest&page={page}")
        assert (twin["total"], twin["pages"]) == (3, 3)
        (row,) = twin["runs"]
        seen.append(row["id"])
        shown_page = made.viewer.get(row["link"]).text
        assert ("‹ previous" in shown_page, "next <kbd>" in shown_page) == (page > 1, page < 3)
    assert sorted(seen) == sorted(trace.id for trace in made.traces)
    made.db.close()


def test_a_place_that_is_no_number_is_none(found: Inspection) -> None:
    shown(found, f"{found.base}/run?id={found.traces[0].id}&at=²")


def test_any_id_has_a_link_that_works(tmp_path: Path) -> None:
    made = open_inspection(tmp_path)
    odd = 'a/b#1?x=y&"<b>%2F.json '
    problem = Problem(id=odd, text="odd")
    made.db.traces.add_problems(made.room.project, [problem])
    made.db.traces.add_traces(made.room.project, [Trace(id=odd, problem_id=odd, text="")])
    for query in ("text=odd", f"problem={quote(odd)}"):
        (row,) = made.viewer.json(f"{made.base}/runs.json?{query}")["runs"]
        answer = made.viewer.get(row["link"])
        assert answer.status_code == 200
        assert "<b>%2F" not in answer.text
    (link,) = re.findall(
        r'<a href="([^"]*run\.json[^"]*)">JSON</a>', shown(made, f"{made.base}/run?id={quote(odd)}")
    )
    assert made.viewer.get(link.replace("&amp;", "&")).json()["trace"]["id"] == odd
    made.db.close()


def test_another_projects_trace_is_not_found(found: Inspection) -> None:
    assert found.viewer.get(f"{found.base}/run?id={found.foreign.id}").status_code == 404
    assert ids(found, f"?problem={found.foreign.problem_id}") == []
    for page in ("runs", f"run?id={found.foreign.id}", "files"):
        assert found.viewer.get(f"/projects/{found.other}/{page}").status_code == 404
    assert found.viewer.get(f"{found.base}/run").status_code == 404


@pytest.mark.parametrize("page", ["runs", "run?id=1", "files", "export/labels.jsonl"])
def test_annotators_are_blind_to_each_other(found: Inspection, page: str) -> None:
    assert found.room.browser("ann").get(f"{found.base}/{page}").status_code == 403
    assert found.room.browser("eve").get(f"{found.base}/{page}").status_code == 404
    assert found.room.browser().get(f"{found.base}/{page}").status_code == 303


def test_a_project_without_traces_says_so(found: Inspection) -> None:
    empty = found.db.projects.create("Empty").id
    admin = found.room.browser("admin")
    assert "does not have runs yet" in admin.get(f"/projects/{empty}/runs").text
    assert admin.json(f"/projects/{empty}/runs.json")["runs"] == []
    assert "Nothing matches" in shown(found, f"{found.base}/runs?text=model:nobody")
    past = found.viewer.get(f"{found.base}/runs?page=9999")
    assert (past.status_code, "No such page" in past.text, "does not have runs" in past.text) == (
        404,
        True,
        False,
    )


def test_colours_rise_with_the_score_and_margins_are_signed() -> None:
    assert [cell["bucket"] for cell in strip((0.0, 0.05, 0.55, 1.0, None))] == [0, 0, 5, 9, None]
    assert [cell["bucket"] for cell in strip((-1.0, 0.0, 1.0, 7.0))] == [0, 5, 9, 9]
    assert [cell["first_error"] for cell in strip((0.1, 0.2), 1)] == [False, True]


def test_the_verdict_names_its_sources(found: Inspection) -> None:
    page = shown(found, f"{found.base}/run?id={found.traces[1].id}")
    assert "The run failed: step 2 is called wrong by 2 of 3 sources." in page
    assert '<a data-keys="e" href="#step-2">Show step 2</a>' in page
    twin = found.viewer.json(f"{found.base}/run.json?id={found.traces[1].id}")
    assert twin["verdict"]["sources"] == [
        "human (1 of 2): step 2",
        "human (1 of 2): 1 step checked, none wrong",
        "judge: step 2",
        "monte-carlo objects to step 3",
        "second scores step 1 at 0.10",
    ]
    assert (twin["verdict"]["tone"], twin["verdict"]["advice"]) == ("wrong", "Next: decide step 2.")
    other = found.viewer.json(f"{found.base}/run.json?id={found.traces[0].id}")["verdict"]
    assert other["tone"] == "good"
    assert other["sentence"] in shown(found, f"{found.base}/run?id={found.traces[0].id}")


def test_gold_calls_and_whether_they_are_made() -> None:
    gold = [{"name": "cancel", "arguments": {"id": "A"}}, {"name": "book", "arguments": {"to": "SEA"}}]
    problem = Problem(text="?", meta={"gold_actions": gold})
    calls = (ToolCall(id="1", name="book", arguments='{"to": "SEA"}'),)
    messages = (
        Message(role="user", content="Go."),
        Message(role="assistant", tool_calls=calls),
        Message(role="tool", content='{"status": "ok"}', tool_call_id="1"),
        Message(role="assistant", content="Done."),
    )
    trace = segment_trace(Trace(problem_id=problem.id, messages=messages))
    assert [(one["call"].name, one["made"]) for one in gold_view(problem, trace)] == [
        ("cancel", False),
        ("book", True),
    ]
    assert gold_view(Problem(text="?"), trace) == []
    assert gold_view(Problem(text="?", meta={"gold_actions": "all"}), trace) == []


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("[1, 2]", "2 results"),
        ('[{"a": 1}]', "1 result"),
        ('{"status": "delivered", "lines": [], "cost": 3}', "status: delivered, cost: 3"),
        ('{"lines": []}', "1 field"),
        ("first\nsecond", "first"),
        ("[" * 99_999, "[" * 99_999),
    ],
)
def test_results_are_summarised(text: str, summary: str) -> None:
    assert result_summary(text) == summary


def test_a_selection_goes_to_the_annotators_or_into_a_file(tmp_path: Path) -> None:
    made = open_inspection(tmp_path)
    admin, extra = made.room.browser("admin"), text_trace(Problem(text="More?"), "yes", "no")
    made.db.traces.add_problems(made.room.project, [Problem(text="More?")])
    made.db.traces.add_traces(made.room.project, [extra])
    page = f"{made.base}/runs"
    assert admin.send(page, id=[extra.id, made.traces[0].id]).headers["location"] == f"{made.base}/label"
    assert [item.trace_id for item in made.db.items.list(made.room.project)].count(extra.id) == 1
    assert "nothing is selected" in admin.send(page).text
    lines = admin.get(f"{made.base}/export/traces.jsonl?id={extra.id}").text.splitlines()
    assert [Trace.model_validate_json(line).id for line in lines] == [extra.id]
    assert len(admin.get(f"{made.base}/export/scores.jsonl?id={made.traces[0].id}").text.splitlines()) == 2
    assert admin.get(f"{made.base}/export/labels.jsonl?id={extra.id}").text == ""
    made.db.close()


def test_two_runs_are_compared(found: Inspection) -> None:
    one, two = found.traces[0].id, found.traces[1].id
    twin = found.viewer.json(f"{found.base}/compare.json?id={one}&id={two}")
    assert (twin["differ"], len(twin["steps"])) == (0, 3)
    assert [run["outcome"] for run in twin["runs"]] == [True, False]
    assert "They differ from" in found.viewer.get(f"{found.base}/compare?id={one}&id={two}").text
    assert found.viewer.json(f"{found.base}/compare.json?id={one}&id={one}")["differ"] is None
    assert found.viewer.get(f"{found.base}/compare?id={one}").status_code == 400
    assert found.viewer.get(f"{found.base}/compare?id={one}&id=none").status_code == 404


def test_a_long_run_is_shown_in_parts_with_its_whole_strip(tmp_path: Path) -> None:
    made = open_inspection(tmp_path)
    call = ToolCall(name="look", arguments='{"at": 1}')
    turns = [Message(role="user", content="Go.")]
    for number in range(130):
        turns.append(
            Message(role="assistant", content=f"turn {number}", tool_calls=(call,) * (number in (3, 70)))
        )
    long = segment_trace(
        Trace(id="long", problem_id=made.traces[0].problem_id, messages=tuple(turns)), granularity="message"
    )
    made.db.traces.add_traces(made.room.project, [long])

    def steps(query: str = "") -> list[int]:
        page = made.viewer.get(f"{made.base}/run?id=long{query}").text
        assert page.count('<span class="at">') == 130
        return [int(step) for step in re.findall(r'<li class="step[^"]*" id="step-(\d+)"', page)]

    assert steps() == list(range(1, 61))
    assert steps("&step=61") == list(range(61, 121))
    assert steps("&step=999") == list(range(121, 131))
    page = made.viewer.get(f"{made.base}/run?id=long&step=71").text
    assert "the same call as in step 4" in page
    assert page.count("<form") <= 1  # to sign out
    assert 'href="?id=long&amp;step=1#step-1"' in page
    label = {"kind": "correctness", "source": "rule", "evidence": Evidence(), "created": NOON}
    made.db.labels.import_labels(made.room.project, [StepLabel(trace_id="long", step=99, value=-1, **label)])
    assert steps() == list(range(61, 121))  # those with the first error
    made.db.close()


def test_long_reasoning_is_folded_unless_it_is_the_first_error(tmp_path: Path) -> None:
    made = open_inspection(tmp_path)
    messages = (
        Message(role="user", content="Go."),
        Message(role="assistant", content="Done.", reasoning=Reasoning(text="and then " * 40)),
    )
    trace = segment_trace(Trace(id="deep", problem_id=made.traces[0].problem_id, messages=messages))
    made.db.traces.add_traces(made.room.project, [trace])
    page = f"{made.base}/run?id=deep"
    assert "<summary>Reasoning · 359 characters</summary>" in made.viewer.get(page).text
    label = {"kind": "correctness", "source": "rule", "evidence": Evidence(), "created": NOON}
    made.db.labels.import_labels(made.room.project, [StepLabel(trace_id="deep", step=0, value=-1, **label)])
    assert "<summary>Reasoning" not in made.viewer.get(page).text
    made.db.close()


def test_steps_of_two_runs_are_aligned() -> None:
    assert aligned(["a", "b", "c"], ["a", "x", "b", "c"]) == [(0, 0), (None, 1), (1, 2), (2, 3)]
    assert aligned(["a", "b"], ["b"]) == [(0, None), (1, 0)]
    assert aligned([], ["a"]) == [(None, 0)]
    assert aligned(["a"] * 600, ["b"] * 601)[-1] == (None, 600)


def test_attempts_at_a_task_stand_together_and_empty_columns_are_left_out(tmp_path: Path) -> None:
    made = open_inspection(tmp_path)
    page = shown(made, f"{made.base}/runs")
    assert page.count(">attempt 2</a>") == 1
    heads = re.findall(r'<th scope="col">(?:<span[^>]*>)?([^<]*)', page)
    assert "Tokens" not in heads
    assert {"Outcome", "Task", "Steps", "Lowest score", "Model", "When"} <= {*heads}
    made.db.close()


def test_every_message_has_its_direction_and_box(found: Inspection) -> None:
    page = shown(found, f"{found.base}/run?id={found.traces[1].id}")
    assert page.count('<div class="text" dir="auto">') >= 3
    assert "one by one.</div>" in page  # without the line end after it


def test_an_outcome_has_the_word_of_its_data_set(tmp_path: Path) -> None:
    made = open_inspection(tmp_path)
    trace = made.traces[0].model_copy(update={"id": "judged", "outcome": True, "meta": {"outcome": "safe"}})
    odd = made.traces[0].model_copy(update={"id": "odd", "meta": {"outcome": {"<b>": 1}}})
    made.db.traces.add_traces(made.room.project, [trace, odd])
    words = {row["id"]: row["outcome_word"] for row in made.viewer.json(f"{made.base}/runs.json")["runs"]}
    assert (words["judged"], words["odd"]) == ("safe", "correct")
    page = shown(made, f"{made.base}/run?id=judged")
    assert '✓ <span class="word">safe</span>' in page
    assert "The outcome is safe; no step was checked." in page
    assert "outcome is right" not in page
    assert '✓ <span class="word">correct</span>' in shown(made, f"{made.base}/run?id=odd")
    made.db.close()
