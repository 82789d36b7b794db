"""Calibration of a judge: corrected rate, agreement by kind and position, changes, and the command."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from command_line import good, refused

from surefoot.evaluation import calibrate_judge, judge_section
from surefoot.io import write_records
from surefoot.records import Evidence, Step, StepLabel, Trace


def trace_of(number, steps=5):
    spans = tuple(Step(start=n, end=n + 1, kind="thought" if n % 2 else "tool_call") for n in range(steps))
    return Trace(id=f"t{number}", problem_id=f"p{number}", text="." * steps, steps=spans)


def labels_of(table, *, rater="people"):
    return [
        StepLabel(
            trace_id=f"t{number}",
            step=step,
            kind="correctness",
            value=-1.0 if wrong else 1.0,
            source=rater,
            evidence=Evidence(rater=rater),
        )
        for number, row in table.items()
        for step, wrong in enumerate(row)
    ]


@pytest.fixture(scope="module")
def study():
    """200 traces of 5 steps, people on 60 of them, and a judge with false alarms at calls."""
    rng = np.random.default_rng(0)
    wrong = rng.random((200, 5)) < 0.2
    strict = wrong | ((np.arange(5) % 2 == 0) & (rng.random((200, 5)) < 0.4))
    return [trace_of(number) for number in range(200)], wrong, strict


def test_the_rate_is_corrected_and_agreement_is_measured(study):
    traces, wrong, strict = study
    gold = labels_of(dict(enumerate(wrong[:60])))
    result = calibrate_judge(traces, gold, {"judge": labels_of(dict(enumerate(strict)), rater="m#1")})
    [rate] = result.rates
    assert rate.judged.value == pytest.approx(strict.mean())
    assert rate.gold_only.value == pytest.approx(wrong[:60].mean())
    assert rate.corrected.includes(wrong.mean())
    assert not rate.corrected.includes(strict.mean())
    assert np.ptp(rate.corrected.bounds) < np.ptp(rate.gold_only.bounds)
    [total] = result.quality
    assert total.base_rate == pytest.approx(wrong[:60].mean())
    assert total.sensitivity.value == 1
    assert total.specificity.value == pytest.approx((~strict[:60])[~wrong[:60]].mean())
    assert result.raters == {"judge": ("m#1",)}
    screen = judge_section(result)
    finds, rate = screen.verdicts["judge"]
    assert "corrected by 300 gold labels" in rate.detail
    assert rate.tone == "wrong"
    assert "of them wrong" in finds.detail


def test_the_command_stores_the_result_beside_the_labels(study, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    traces, wrong, strict = study
    write_records("t.jsonl", traces)
    write_records("gold.jsonl", labels_of(dict(enumerate(wrong[:60]))))
    write_records("judge.jsonl", labels_of(dict(enumerate(strict)), rater="m#1"))
    words = (
        "evaluate",
        "--as=judge",
        "--labels=gold.jsonl",
        "judge.jsonl",
        "--traces=t.jsonl",
        "--draws=50",
        "--out=c",
    )
    assert "corrected by 300 gold labels" in good(*words).out
    stored = json.loads((tmp_path / "judge.jsonl.calibration.json").read_text())
    assert stored["schema"] == "surefoot.judge-calibration/1"
    assert stored["rates"][0]["corrected"]["low"] < wrong.mean() < stored["rates"][0]["corrected"]["high"]
    assert stored["sha256"] == json.loads((tmp_path / "c" / "judge.json").read_text())["sha256"]
    assert len(stored["sha256"]["gold"]) == 64
    assert "add --force" in refused(*words)
    empty = labels_of({0: wrong[0]})
    write_records("one.jsonl", empty)
    says = refused(
        "evaluate",
        "--as=judge",
        "--labels=one.jsonl",
        "judge.jsonl",
        "--traces=t.jsonl",
        "--out=d",
        "--force",
    )
    assert "gold labels of 1 problems" in says
    assert not math.isnan(stored["quality"][0]["base_rate"])
