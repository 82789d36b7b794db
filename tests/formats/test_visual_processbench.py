from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from PIL import Image

from surefoot.cli import app
from surefoot.errors import RecordError
from surefoot.formats import detect_format
from surefoot.formats.processbench import read_visual_processbench
from surefoot.io import read_records
from surefoot.records import Trace

ROW: dict[str, Any] = {
    "image": ["images/circle.png"],
    "question": "What is the area of the circle?",
    "answer": "9π",
    "response": {
        "steps": ["The radius is 3.", "So it is 6π.", "**Answer:** 6π"],
        "process_correctness": [1, -1, 0],
    },
    "policy_model": "InternVL2.5-8B",
    "data_source": "MathVerse",
}


def file(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "test.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("as_text", [False, True])
def test_a_solution_has_its_image_and_a_label_for_each_step(tmp_path, as_text):
    row = ROW | {"response": json.dumps(ROW["response"])} if as_text else ROW
    path = file(tmp_path, row)
    assert detect_format(path) == "visual-processbench"
    (item,) = read_visual_processbench(path)
    question, reply = item.trace.messages
    assert (question.content, question.attachments[0].uri) == (ROW["question"], "images/circle.png")
    steps = [item.trace.step_text(step).strip() for step in range(3)]
    assert steps == ROW["response"]["steps"]
    assert "".join(map(item.trace.step_text, range(3))) == reply.content
    assert [label.value for label in item.labels] == [1, -1, 0]
    assert (item.trace.policy, item.problem.source, item.problem.answer) == (
        "InternVL2.5-8B",
        "MathVerse",
        "9π",
    )


def test_equal_solutions_have_different_ids(tmp_path):
    first, second = read_visual_processbench(file(tmp_path, ROW, ROW))
    assert first.trace.id != second.trace.id


@pytest.mark.parametrize(
    "response",
    [
        {"steps": ["a"], "process_correctness": [1, 1]},
        {"steps": [], "process_correctness": []},
        {"steps": ["a"], "process_correctness": [2]},
        {"steps": ["a"]},
    ],
)
def test_a_bad_response_is_refused_with_its_line(tmp_path, response):
    with pytest.raises(RecordError, match="line 1"):
        list(read_visual_processbench(file(tmp_path, ROW | {"response": response})))


def test_import_keeps_the_images_and_counts_those_that_are_missing(tmp_path):
    (tmp_path / "images").mkdir()
    Image.new("RGB", (9, 9), "green").save(tmp_path / "images/circle.png")
    path = file(tmp_path, ROW, ROW | {"image": ["images/gone.png", "../../etc/passwd"]})
    result = CliRunner().invoke(app, ["import", str(path), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    traces = list(read_records(tmp_path / "out/traces.jsonl", Trace))
    uri = traces[0].messages[0].attachments[0].uri
    assert (tmp_path / "out" / str(uri)).read_bytes() == (tmp_path / "images/circle.png").read_bytes()
    assert [one.uri for one in traces[1].messages[0].attachments] == ["images/gone.png", "../../etc/passwd"]
    assert "image images/gone.png: No such file" in result.output
    assert "image ../../etc/passwd: the path leaves the folder" in result.output
