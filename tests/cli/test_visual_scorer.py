"""VisualProcessBench's form through the commands: import, score, evaluate and audit by a model of images."""

from __future__ import annotations

import json

import pytest
from command_line import good
from visual_checkpoints import authors_scores, picture, save

from surefoot import extras, load_prm
from surefoot.errors import MissingExtraError
from surefoot.io import read_records
from surefoot.models.families.visualprm import SYSTEM
from surefoot.records import StepScores

ROWS = 6


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A tiny random InternVL, and a data set in the published form with an image that is missing."""
    folder = tmp_path_factory.mktemp("bench")
    (folder / "images").mkdir()
    model = save(folder / "VisualPRM-8B")
    rows = []
    for number in range(ROWS):
        name = f"images/{number}.png"
        (folder / name).write_bytes(picture((40 + 20 * number, 40), number))
        steps = ["The square is large.", f"So its side is {number}.", "**Answer:** 9"]
        response = {
            "steps": steps,
            "process_correctness": [1, -1 if number % 2 else 1, -1 if number % 2 else 0],
        }
        rows.append(
            {
                "image": [name if number else "images/gone.png"],
                "question": f"How large is square {number}?",
                "answer": "9",
                "response": response,
                "policy_model": "InternVL2.5-8B",
                "data_source": "MathVerse" if number < 3 else "MMMU",
            }
        )
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    good("import", folder / "test.jsonl", "--out", folder / "bench")
    return folder, model, rows


def files(folder):
    return folder / "bench/traces.jsonl", ("--problems", folder / "bench/problems.jsonl")


def test_scores_are_the_authors_and_a_missing_image_is_named(site, tmp_path):
    folder, model, rows = site
    traces, problems = files(folder)
    good(
        "score",
        traces,
        "-m",
        folder / "VisualPRM-8B",
        *problems,
        "--out",
        tmp_path / "scores.jsonl",
    )
    records = {record.trace_id: record for record in read_records(tmp_path / "scores.jsonl", StepScores)}
    assert len(records) == ROWS
    tokenizer = load_prm(folder / "VisualPRM-8B").model.tokenizer
    missing, *scored = records.values()
    assert "images/gone.png" in missing.unscored_reason
    for row, record in zip(rows[1:], scored, strict=True):
        image = (folder / row["image"][0]).read_bytes()
        expected, _ = authors_scores(
            model, tokenizer, SYSTEM, row["question"], row["response"]["steps"], [image]
        )
        assert record.scores == pytest.approx(expected, abs=1e-4)


def test_the_benchmark_is_evaluated_with_its_own_macro_f1(site, tmp_path):
    folder, _, _ = site
    traces, problems = files(folder)
    out = tmp_path / "report"
    good(
        "evaluate", f"visual={folder / 'VisualPRM-8B'}", "--as", "runs", *problems, "--traces", traces,
        "--labels", folder / "bench/labels.jsonl", "--out", out,
    )  # fmt: skip
    report = json.loads((out / "runs.json").read_text())
    [row] = report["first_screen"]["verdicts"]
    assert row["coverage"] == {"checked": ROWS - 1, "of": ROWS}
    assert "macro_f1" in json.dumps(report)
    assert "base64" not in json.dumps(report)
    shown = [image["text"] for example in report["examples"] for image in example["images"]]
    page = (out / "runs.html").read_text()
    assert page.count('<img src="data:image/png;base64,') == 2 * len(shown) > 0


def test_the_audit_asks_whether_it_looks(site, tmp_path):
    folder, _, _ = site
    traces, problems = files(folder)
    shown = good(
        "audit", f"visual={folder / 'VisualPRM-8B'}", "--test", "look", *problems, "--traces", traces,
        "--out", tmp_path / "audit", "--draws", "20",
    ).out  # fmt: skip
    assert "how much more the score of a step moves with swapped" in shown
    assert "does not look" not in shown


def test_without_pillow_the_extra_is_named(site, monkeypatch):
    monkeypatch.setattr(extras, "installed", lambda module: module != "PIL")
    with pytest.raises(MissingExtraError, match=r"a model of images needs the package PIL: pip install"):
        load_prm(site[0] / "VisualPRM-8B")
