"""Files in the formats of others: out, in again, and what is refused at the door."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from annotation_site import SCRIPT, Browser
from inspection_site import Inspection, add_labels, open_inspection

from surefoot.formats import write_labelled
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem, StepLabel, StepScores, Trace
from surefoot.server.store.traces import RunFilter


@pytest.fixture
def found(tmp_path: Path) -> Any:
    made = open_inspection(tmp_path, max_upload_bytes=60_000)
    add_labels(made)
    yield made
    made.db.close()


@pytest.fixture
def admin(found: Inspection) -> Browser:
    return found.room.browser("admin")


def send(
    browser: Browser,
    base: str,
    content: bytes,
    *,
    name: str = "x.json",
    **more: Any,
) -> Any:
    fields = {**browser.fields(f"{base}/files"), "make": "nothing", **more}
    return browser.client.post(f"{base}/files", data=fields, files={"file": (name, content)})


def problems_with(found: Inspection, text: str = "") -> list[Problem]:
    problems = found.db.export.records(found.room.project, "problems")
    return [problem for problem in problems if text in problem.text]


def test_label_studio_comes_into_another_project(found: Inspection, admin: Browser, tmp_path: Path) -> None:
    export, project = found.db.export, found.room.project
    problems = {problem.id: problem for problem in export.records(project, "problems")}
    labels = list(export.labels(project))
    labelled = [
        LabelledTrace(
            problem=problems[trace.problem_id],
            trace=trace,
            labels=tuple(label for label in labels if label.trace_id == trace.id),
        )
        for trace in export.records(project, "traces")
    ]
    write_labelled("label-studio", labelled, tmp_path / "tasks.json", neutral="drop")
    tasks = (tmp_path / "tasks.json").read_bytes()
    assert len(json.loads(tasks)) == 3
    answer = send(admin, f"/projects/{found.other}", tasks, make="solutions")
    assert answer.status_code == 200, answer.text
    assert "<h1>Imported into " in answer.text
    ours = sorted(found.db.export.labels(found.room.project), key=repr)
    assert sorted(found.db.export.labels(found.other), key=repr) == ours
    assert found.db.traces.trace(found.other, found.traces[1].id) == found.traces[1]
    assert len(found.db.items.list(found.other)) == 4  # the one that was there, too
    again = send(admin, f"/projects/{found.other}", tasks)
    assert "0 items to label" in again.text


def test_a_pool_of_candidates_comes_in_with_its_scores(found: Inspection, admin: Browser) -> None:
    candidates = [{"text": "a\n\n2", "step_scores": [0.5, 0.25]}, {"text": "a", "step_scores": [0.5, 0.5]}]
    pool = {"problem": "1 + 1?", "answer": "2", "candidates": candidates}
    answer = send(admin, f"/projects/{found.other}", json.dumps(pool).encode(), make="solutions")
    assert answer.status_code == 200, answer.text
    assert "Left out: 1 × candidates with not as many steps" in answer.text
    [row] = found.db.traces.find(found.other, RunFilter(scorer="stored PRM", max_score=1))
    [scores] = found.db.traces.scores_of(found.other, [row.id])[row.id]
    assert (scores.scores, row.steps) == ((0.5, 0.25), 2)


def test_prm800k_comes_in(found: Inspection, admin: Browser) -> None:
    row = {"instruction": "q?", "responses": ["a"], "next_response": SCRIPT, "rating": -1}
    packed = gzip.compress((json.dumps(row) + "\nnot json\n").encode())
    answer = send(admin, found.base, packed, name="x.jsonl.gz")
    assert "<h1>Imported in part into " in answer.text
    assert "1 row read, 1 skipped" in answer.text
    (problem,) = problems_with(found, "q?")
    (trace,) = found.db.traces.find(found.room.project, RunFilter(problem_id=problem.id))
    page = found.viewer.get(f"{found.base}/run?id={trace.id}").text
    assert SCRIPT not in page
    assert "Step 2 is called wrong by" in page
    assert '<a data-keys="e" href="#step-2">' in page


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("../x.json", 400),
        ("a/b.json", 400),
        ("a\\b.json", 400),
        ("..json", 400),
        ("x.exe", 400),
        ("x.parquet", 400),
        ("x.json\u202e", 400),
    ],
)
def test_names_that_look_like_paths_are_refused(
    found: Inspection, admin: Browser, name: str, status: int
) -> None:
    assert send(admin, found.base, b"[]", name=name).status_code == status


@pytest.mark.parametrize(
    ("content", "name", "status"),
    [
        (b"[" * 50_000, "x.json", 400),
        (b"\xff\xfe", "x.json", 400),
        (b"not packed", "x.json.gz", 400),
        (gzip.compress(b" " * 1_000_000), "x.json.gz", 400),
        (b"PK\x03\x04 broken PK\x05\x06" + b"\0" * 18, "x.eval", 400),
        (b" " * 70_000, "x.json", 413),
    ],
)
def test_files_that_are_none(
    found: Inspection, admin: Browser, content: bytes, name: str, status: int
) -> None:
    assert send(admin, found.base, content, name=name).status_code == status


def test_a_file_that_is_too_large_at_its_end_keeps_nothing(
    found: Inspection, admin: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUREFOOT_MAX_PIECE_BYTES", "500")
    before = len(problems_with(found))
    rows = [{"question": f"What is {n}?", "answer": f"It is.\n#### {n}"} for n in range(700)]
    good = "\n".join(json.dumps(row) for row in rows)
    bad = json.dumps({"question": "a" * 501, "answer": "#### 1"})
    answer = send(admin, found.base, f"{good}\n{bad}".encode(), name="late.jsonl")
    assert answer.status_code == 400
    assert "late.jsonl: line 701 has more than 500 bytes" in answer.text
    assert len(problems_with(found)) == before
    assert send(admin, found.base, good.encode(), name="good.jsonl").status_code == 200
    assert len(problems_with(found)) == before + 700


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"not packed", "mine.json.gz"),
        (b"not packed", "mine.jsonl.gz"),
        (b"nothing", "mine.parquet"),
        (b"nothing", "mine.json"),
        (b"\xff\xfe,\n", "mine.csv"),
        (b"PK\x03\x04 broken PK\x05\x06" + b"\0" * 18, "mine.eval"),
        (b"{}\n", "mine.jsonl"),
        (b"", "mine.jsonl"),
        (b"[" * 50_000, "mine.json"),
        (b"1", "mine.json"),
        (b'{"schema_version": "ATIF-1", "agent": 1, "steps": 1}', "mine.json"),
        (b'{"resourceSpans": 1}', "mine.json"),
        (b'{"custom_id": 1, "response": 1}', "mine.json"),
        (b'{"labeler": 1, "question": 1, "label": 1}', "mine.jsonl"),
    ],
)
def test_errors_name_the_file_as_the_user_does(
    found: Inspection, admin: Browser, content: bytes, name: str
) -> None:
    answer = send(admin, found.base, content, name=name)
    assert answer.status_code == 400
    assert name in answer.text
    assert "tmp" not in answer.text


def test_only_administrators_import_and_only_from_an_own_page(found: Inspection, admin: Browser) -> None:
    assert '<form method="post" action="' + found.base not in found.viewer.get(f"{found.base}/files").text
    fields = admin.fields(f"{found.base}/files")
    files = {"file": ("x.json", b"[]")}
    elsewhere = {"origin": "https://evil.example"}
    bare = admin.client.post(f"{found.base}/files", data=fields, files=files, headers=elsewhere)
    assert bare.status_code == 403
    foreign = found.viewer.client.post(f"{found.base}/files", data=fields, files=files)
    assert foreign.status_code == 403
    assert send(admin, found.base, b"[]").status_code == 400
    assert admin.client.post(f"{found.base}/files", data=fields).status_code == 400


@pytest.mark.parametrize("name", ["x", "..%2f..%2fetc%2fpasswd", "labels.csv"])
def test_there_is_no_other_export(found: Inspection, name: str) -> None:
    assert found.viewer.get(f"{found.base}/export/{name}").status_code == 404


def test_files_of_ones_own_are_imported(found: Inspection, admin: Browser) -> None:
    row = {"problem": "What is 20 + 2?", "response": "20 + 2 = 22\n\nThe answer is 22.", "answer": 22}
    page = send(admin, found.base, json.dumps(row).encode(), name="own.jsonl").text
    assert "<h1>Imported into " in page
    [stored] = [
        Trace.model_validate_json(line)
        for line in found.viewer.get(f"{found.base}/export/traces.jsonl").text.splitlines()
        if "20 + 2 = 22" in line
    ]
    assert [stored.step_text(0), stored.step_text(1)] == ["20 + 2 = 22\n\n", "The answer is 22."]
    wrong = send(admin, found.base, b'{"a": 1}\n', name="own.jsonl")
    assert wrong.status_code == 400
    assert "name its column with --text-field" in wrong.text


def test_an_archive_is_bounded_by_what_it_unpacks_to(found: Inspection, admin: Browser) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("samples/1_epoch_1.json", " " * 1_000_000)
    answer = send(admin, found.base, packed.getvalue(), name="x.eval")
    assert answer.status_code == 400
    assert "x.eval: its samples unpack to more than" in answer.text


def test_several_files_are_imported_by_what_they_hold(found: Inspection, admin: Browser) -> None:
    fields = admin.fields(f"{found.base}/files")
    gsm8k = json.dumps({"question": "What is 3 + 4?", "answer": "It is 7.\n#### 7"}).encode()
    steps = json.dumps({"instruction": "q2?", "responses": [], "next_response": "a", "rating": 1}).encode()
    files = [("file", ("a.jsonl", gsm8k)), ("file", ("b.jsonl", steps))]
    page = admin.client.post(f"{found.base}/files", data=fields, files=files).text
    assert "<b>a.jsonl</b> as gsm8k: 1 row read, 0 skipped" in page
    assert "<b>b.jsonl</b> as prm800k-steps: 1 row read, 0 skipped" in page
    assert problems_with(found, "What is 3 + 4?")


def test_records_and_other_formats_come_together(found: Inspection, admin: Browser) -> None:
    fields = admin.fields(f"{found.base}/files")
    gsm8k = json.dumps({"question": "What is 5 + 4?", "answer": "It is 9.\n#### 9"}).encode()
    problem = Problem(text="new")
    trace = Trace(problem_id=problem.id, text="One.\n\nTwo.")
    scores = StepScores(trace_id=trace.id, scorer="s", scores=(0.5, 0.25))
    label = StepLabel(trace_id=trace.id, step=1, kind="correctness", value=-1, source="judge")
    uploads = [
        ("file", (name, record.model_dump_json(exclude_defaults=True).encode()))
        for name, record in (
            ("4.jsonl", label),
            ("3.jsonl", scores),
            ("2.jsonl", trace),
            ("1.jsonl", problem),
        )
    ]
    uploads.append(("file", ("a.jsonl", gsm8k)))
    page = admin.client.post(f"{found.base}/files", data=fields, files=uploads).text
    assert "<h1>Imported into " in page
    for name, kind in (("1", "problems"), ("2", "traces"), ("3", "scores"), ("4", "labels"), ("a", "gsm8k")):
        assert f"<b>{name}.jsonl</b> as {kind}: 1 row read, 0 skipped" in page
    assert found.db.traces.scores_of(found.room.project, [trace.id]) == {trace.id: [scores]}
    assert [
        one.record.step for one in found.db.labels.of_traces(found.room.project, [trace.id])[trace.id]
    ] == [1]


def test_records_with_unknown_fields_are_refused_with_the_name(found: Inspection, admin: Browser) -> None:
    row = {**Problem(text="new").model_dump(mode="json"), "surprise": 1}
    answer = send(admin, found.base, json.dumps(row).encode(), name="mine.jsonl")
    assert answer.status_code == 400
    assert "mine.jsonl: its fields fit no record" in answer.text
