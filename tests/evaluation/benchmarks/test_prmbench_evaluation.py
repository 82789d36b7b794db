import json
from pathlib import Path

import numpy as np
import pytest

from surefoot.errors import LabelError
from surefoot.evaluation.benchmarks.solutions import (
    GROUPS,
    evaluate_prmbench,
    prmbench_cases,
    prmbench_section,
)
from surefoot.evaluation.report import Origin, Report, first_screen_of, to_json
from surefoot.evaluation.step_scores import labelled_system, scored_system
from surefoot.formats import read_prmbench
from surefoot.records import StepLabel, StepScores

REAL = Path(__file__).parents[3] / "../shared/data/prmbench/subset400_target_data.jsonl.gz"
CLASSES = [kind for group in GROUPS.values() for kind in group]


def row(kind, idx, errors, steps=4):
    process = [f"step {n}" for n in range(steps)]
    return {
        "original_question": "q",
        "modified_question": "q",
        "original_process": process,
        "modified_process": process,
        "modified_steps": errors,
        "error_steps": errors,
        "reason": "",
        "idx": idx,
        "question": "q",
        "classification": kind,
    }


def read(path):
    return prmbench_cases(list(read_prmbench(path)))


@pytest.fixture
def found(tmp_path):
    """Every class for eight problems; ``multi_solutions`` has no errors; one row comes twice."""
    rows = [
        row(kind, f"p{n}", [] if kind == "multi_solutions" else [1 + n % 4, 4])
        for n in range(8)
        for kind in CLASSES
    ]
    path = tmp_path / "prmbench.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in [*rows, row("circular", "p0", [2])]))
    return read(path)


def traces(found):
    return [case.item.trace for case in found]


def scored(found, rows, name="s"):
    records = [
        StepScores(
            trace_id=trace.id,
            scorer=name,
            scores=tuple(scores),
            unscored_reason="cut" if None in scores else None,
        )
        for trace, scores in zip(traces(found), rows, strict=True)
        if scores
    ]
    return scored_system(name, records, traces(found))


def random_rows(found, seed=0, unknown=0.0):
    rng = np.random.default_rng(seed)
    return [
        [
            None if rng.random() < unknown else float(np.clip(0.5 * good + 0.6 * rng.random(), 0, 1))
            for good in case.good
        ]
        for case in found
    ]


def published(found, rows, cut=0.5):
    """Scores as the benchmark's description gives them, by plain counting over steps."""
    counts = {kind: [0, 0, 0, 0] for kind in (*CLASSES, "all")}
    for case, scores in zip(found, rows, strict=True):
        for score, good in zip(scores, case.good, strict=True):
            if score is None:
                continue
            kept = score > cut
            place = (0 if good else 1) if kept else (2 if good else 3)
            counts[case.subset][place] += 1
            counts["all"][place] += 1
    result = {}
    for kind, (tp, fp, fn, tn) in counts.items():
        positive = 2 * tp / (2 * tp + fp + fn)
        if kind == "multi_solutions":
            result[kind] = positive
        else:
            result[kind] = 0.5 * positive + 0.5 * 2 * tn / (2 * tn + fp + fn)
    for group, kinds in GROUPS.items():
        result[group] = sum(result[kind] for kind in kinds) / len(kinds)
    return result


def all_scores(flags):
    return {
        "all": flags.total.score.value,
        **{kind: c.score.value for kind, c in flags.classes.items()},
        **{group: interval.value for group, interval in flags.groups.items()},
    }


@pytest.mark.parametrize("unknown", [0.0, 0.2])
def test_scores_are_those_of_plain_counting(found, unknown):
    rows = random_rows(found, unknown=unknown)
    [score] = evaluate_prmbench(found, [scored(found, rows)], rules=[0.5], draws=100).scores
    assert all_scores(score.flags) == pytest.approx(published(found, rows))
    missing = sum(r.count(None) for r in rows)
    assert score.flags.unjudged_steps == missing
    total = score.flags.total
    assert total.score.low < total.score.value < total.score.high
    assert total.tp + total.fp + total.fn + total.tn == 8 * 9 * 4 - missing


def test_repeated_rows_count_once(found, tmp_path):
    read_rows = len(list(read_prmbench(tmp_path / "prmbench.jsonl")))
    assert (read_rows, len(found)) == (73, 72)
    system = scored(found, random_rows(found))
    whole = evaluate_prmbench(found, [system], rules=[0.5], repeated=read_rows - len(found), draws=20)
    assert (whole.traces, whole.repeated) == (72, 1)


def test_a_perfect_scorer_and_one_that_finds_nothing(found):
    perfect = scored(found, [[0.9 if good else 0.1 for good in case.good] for case in found])
    silent = scored(found, [[0.9] * len(case.good) for case in found], "silent")
    best, worst = evaluate_prmbench(found, [perfect, silent], rules=[0.5], draws=20).scores
    assert set(all_scores(best.flags).values()) == {1.0}
    assert best.flags.first_error.value == 1.0
    assert worst.flags.classes["multi_solutions"].score.value == 1.0
    assert worst.flags.total.f1_negative.value == 0.0
    assert worst.flags.total.score.value == pytest.approx(worst.flags.total.f1.value / 2)
    assert (worst.flags.accuracy_good.value, worst.flags.accuracy_bad.value) == (1.0, 0.0)


def test_the_score_at_the_threshold_is_flagged(found):
    [score] = evaluate_prmbench(
        found, [scored(found, [[0.5] * len(case.good) for case in found])], rules=[0.5], draws=10
    ).scores
    assert score.flags.total.tp == 0


def test_a_fitted_threshold_has_not_seen_the_problem(found):
    rows = [[0.3 if good else 0.2 for good in case.good] for case in found]
    fixed, fitted = evaluate_prmbench(found, [scored(found, rows)], rules=[0.5, "split"], draws=20).scores
    assert fixed.flags.total.tp == 0
    assert fitted.flags.total.score.value == 1.0
    assert fitted.thresholds == {"half 0": pytest.approx(0.25), "half 1": pytest.approx(0.25)}


def test_a_judge_is_read_as_it_labels_and_an_unparsed_trace_is_not_counted(found):
    kept = [None if n == 0 else case.good for n, case in enumerate(found)]
    labels = [
        StepLabel(
            trace_id=trace.id,
            step=step,
            kind="correctness",
            value=None if row is None else 1.0 if row[step] else -1.0,
            reason="no vote" if row is None else None,
            source="judge",
        )
        for trace, row in zip(traces(found), kept, strict=True)
        for step in range(len(trace.steps))
    ]
    [score] = evaluate_prmbench(found, [labelled_system("j", labels, traces(found))], draws=20).scores
    assert (score.rule, score.flags.total.score.value) == ("as labelled", 1.0)
    assert (score.flags.unparsed, score.flags.unjudged_steps) == (1, 4)
    assert score.flags.parsed == pytest.approx(71 / 72)


def test_traces_without_record(found):
    rows = random_rows(found)
    part = [r if n % 2 else None for n, r in enumerate(rows)]
    systems = [scored(found, rows, "whole"), scored(found, part, "part")]
    out = evaluate_prmbench(found, systems, rules=[0.5], draws=20)
    assert out.traces + out.left_out == 72
    assert {score.flags.unparsed for score in out.scores} == {0}
    kept = evaluate_prmbench(found, systems, rules=[0.5], missing="wrong", draws=20)
    assert (kept.traces, kept.scores[0].flags.unparsed) == (72, 0)
    assert kept.scores[1].flags.unparsed == out.left_out


def test_rows_of_another_class_are_refused(tmp_path):
    (tmp_path / "x.jsonl").write_text(json.dumps(row("typo", "p", [1])) + "\n")
    with pytest.raises(LabelError, match="has class 'typo'"):
        read(tmp_path / "x.jsonl")


def test_json_and_report(found, tmp_path):
    out = evaluate_prmbench(found, [scored(found, random_rows(found))], draws=20)
    json.dumps(to_json(out)["scores"], allow_nan=False)
    section = prmbench_section(out)
    Report("p", first_screen_of([section], Origin())).section(section).write(tmp_path / "p.html")
    assert (tmp_path / "p.html").read_text().count("<svg") == 1


def test_real_rows_with_an_oracle_and_chance():
    if not REAL.exists():
        pytest.skip(f"PRMBench not found at {REAL}")
    found = read(REAL)
    oracle = scored(found, [[0.9 if good else 0.1 for good in case.good] for case in found])
    chance = scored(found, random_rows(found, unknown=0.0), "chance")
    best, fair = evaluate_prmbench(found, [oracle, chance], rules=[0.5], draws=50).scores
    assert best.flags.total.score.value == 1.0
    assert set(found[0].item.trace.meta) >= {"idx", "classification"}
    assert all_scores(fair.flags) == pytest.approx(published(found, random_rows(found)))
