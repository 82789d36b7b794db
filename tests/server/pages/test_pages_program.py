"""A program's page: lines, steps and labels, why it fails, and who may see it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from annotation_site import SCRIPT
from inspection_site import Inspection, open_inspection
from program_trace import failing_program

from surefoot.records import Execution, Problem, StepLabel


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inspection]:
    made = open_inspection(tmp_path_factory.mktemp("program"))
    yield made
    made.db.close()


@pytest.fixture(scope="module")
def page(found: Inspection) -> str:
    problem, trace, labels = failing_program()
    found.db.traces.add_problems(found.room.project, [problem])
    found.db.traces.add_traces(found.room.project, [trace])
    added = found.db.labels.import_labels(found.room.project, labels)
    assert not added.refused, added.reasons
    return f"{found.base}/run?id={quote(trace.id)}"


def test_the_repair_and_a_failing_test_stand_above_the_program(found: Inspection, page: str) -> None:
    program = found.viewer.json(page.replace("/run?", "/run.json?"))["program"]
    assert program["why"]["repair"].split() == ["-", "result", "-=", "number", "+", "result", "+=", "number"]
    html = found.viewer.get(page).text
    assert "With this change all tests pass" in html
    assert "raised: TypeError: &lt;script&gt;" in html
    assert SCRIPT not in html
    assert "<script>alert" not in html
    assert html.count('<span class="bp">') + html.count('<span class="k">') >= 2  # highlighted
    assert [html.count(f'id="step-{step}"') for step in (1, 2, 3, 4, 5)] == [1] * 5


def test_hidden_tests_and_the_reference_are_for_viewers_and_administrators(
    found: Inspection, page: str
) -> None:
    assert "total(&#39;&lt;script&gt;" in found.room.browser("admin").get(page).text
    for path in (page, page.replace("/run?", "/run.json?")):
        answer = found.room.browser("ann").get(path)
        assert answer.status_code == 403
        assert "total(" not in answer.text


@pytest.mark.parametrize(
    "execution",
    [
        {"test": "f(\u202e)", "repair": "+\u202e"},
        {"result": "load_error: \u202e", "test": "f()"},
        {"test": "\u202e"},
    ],
)
def test_a_run_that_somebody_made_up_has_a_page(tmp_path: Path, execution: dict[str, object]) -> None:
    made = open_inspection(tmp_path)
    problem, trace, labels = failing_program("x = '\u202e'; y = 1 \x0c; result -= number")
    made.db.traces.add_problems(made.room.project, [problem])
    made.db.traces.add_traces(made.room.project, [trace])
    evidence = labels[3].evidence.model_copy(update={"execution": Execution.model_validate(execution)})
    made.db.labels.import_labels(made.room.project, [labels[3].model_copy(update={"evidence": evidence})])
    html = made.viewer.get(f"{made.base}/run?id={trace.id}").text
    assert "\u202e" not in html.split('aria-label="Program"')[1].split('class="notes"')[0]
    assert "\\u202e" in html
    made.db.close()


def test_what_is_no_program_or_has_no_run_is_shown_as_a_trace(found: Inspection) -> None:
    problem, trace, _ = failing_program("result = 1")
    other = Problem(id="odd", text="?", meta={"code": "no task"})
    odd = trace.model_copy(update={"id": "odd", "problem_id": "odd"})
    found.db.traces.add_problems(found.room.project, [problem, other])
    found.db.traces.add_traces(found.room.project, [trace, odd])
    assert "No run of this program is stored" in found.viewer.get(f"{found.base}/run?id={trace.id}").text
    assert found.viewer.json(f"{found.base}/run.json?id=odd")["program"] is None


def test_a_run_is_text_in_a_file_and_is_read_back() -> None:
    label = failing_program()[2][3]
    assert StepLabel.model_validate_json(label.model_dump_json()) == label
