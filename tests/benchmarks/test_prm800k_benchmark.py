"""benchmarks/prm800k/run.py: what it draws, what its figures see, and a small run that is resumed."""

import gzip
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.prm800k import reading
from benchmarks.prm800k import run as prm800k
from benchmarks.worlds.digits.world import Difficulty, generate_problems, parse_problem, worked_solution
from surefoot.evaluation.benchmarks.solutions import best_threshold, processbench_f1
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem, StepLabel, Trace
from surefoot.segment import Line, segment_trace

SIZE = prm800k.Size(train_problems=4, test_problems=3, bench_problems=None, alternatives=2, longest=None)


def labelled(problem: str, text: str, ratings: list[float | None]) -> LabelledTrace:
    """A trace of one line a step, its last steps rated."""
    one = Problem(text=problem)
    trace = segment_trace(Trace(problem_id=one.id, text=text), Line())
    first = len(trace.steps) - len(ratings)
    labels = tuple(
        StepLabel(
            trace_id=trace.id,
            step=first + number,
            kind="correctness",
            value=value,
            reason=None if value is not None else "not rated",
            source="human",
        )
        for number, value in enumerate(ratings)
    )
    return LabelledTrace(problem=one, trace=trace, labels=labels)


def lengths(items) -> list[int]:
    return [len(item.trace.text) for item in items]


@pytest.fixture(scope="module")
def drawn() -> list[LabelledTrace]:
    """Three problems: a main solution of three rated steps, ten alternatives, one trace without a rating."""
    items = []
    for name in "abc":
        items.append(labelled(name, "one\ntwo\nthree\n", [1, 1, 1]))
        items += [labelled(name, f"one\n{'x' * k}\n", [(-1, 0, 1)[k % 3]]) for k in range(1, 11)]
        items.append(labelled(name, "one\nunseen\n", [None]))
    return items


def test_main_solution_and_alternatives_are_kept_and_the_rest_counted(drawn):
    chosen, left_out = prm800k.thin(drawn, SIZE, lengths)
    assert [len(item.labels) for item in chosen] == [3, 1, 1] * 3
    assert left_out == {"without a rating": 3, "too long": 0, "further alternatives": 24}
    assert len(chosen) + left_out.total() == len(drawn)


def test_a_larger_draw_contains_a_smaller_one(drawn):
    few, many = (
        {item.trace.id for item in prm800k.thin(drawn, size, lengths)[0]}
        for size in (SIZE, prm800k.Size(**{**vars(SIZE), "alternatives": 5}))
    )
    assert few < many
    everything, left_out = prm800k.thin(drawn, prm800k.Size(**{**vars(SIZE), "alternatives": None}), lengths)
    assert len(everything) == 33
    assert left_out["further alternatives"] == 0


def test_long_traces_are_left_out_and_counted_even_a_main_solution(drawn):
    chosen, left_out = prm800k.thin(drawn, prm800k.Size(**{**vars(SIZE), "longest": 10}), lengths)
    assert max(lengths(chosen)) <= 10
    assert all(len(item.labels) == 1 for item in chosen)
    assert left_out["too long"] == sum(
        length > 10 for length, item in zip(lengths(drawn), drawn, strict=True) if prm800k.rated(item)
    )


def test_a_sampled_prefix_has_all_its_rated_continuations(drawn, monkeypatch):
    rows = reading.rows_of(drawn)
    assert len(rows) == 3 * 13, "each rating is a row, and the unrated step none"
    monkeypatch.setattr(reading, "PREFIXES", 1)
    chosen = reading.sampled(rows, 2, seed=0)
    assert len({row.item.problem.id for row in chosen}) == len({row.fact.prefix for row in chosen}) == 2
    for prefix in {row.fact.prefix for row in chosen}:
        siblings = [row for row in rows if row.fact.prefix == prefix]
        assert [row for row in chosen if row.fact.prefix == prefix] == siblings
    depths = {row.step for seed in range(9) for row in reading.sampled(rows, 3, seed=seed)}
    assert depths == {0, 1, 2}
    assert reading.statistics(rows)["bad"] == pytest.approx(3 * 3 / 39)


def test_a_swapped_number_changes_one_good_step_a_problem():
    items = [labelled(name, f"{name}\nso {number}\n", [1, 1]) for number, name in enumerate("abc")]
    before, after = reading.swapped(reading.rows_of(items))
    assert [row.step for row in before] == [row.step for row in after] == [1, 1, 1]
    assert len({row.item.problem.id for row in before}) == 3
    for row, other in zip(before, after, strict=True):
        assert other.item.trace.text != row.item.trace.text
        assert other.item.trace.step_text(0) == row.item.trace.step_text(0)


@pytest.fixture(scope="module")
def bench() -> tuple[list[LabelledTrace], dict[str, prm800k.StepLists]]:
    """120 problems of four steps, some wrong at a step; two scorers that know it a little, one better."""
    rng = np.random.default_rng(1)
    items, arms = [], {"lora": [], "frozen": [], "length": []}
    for number in range(120):
        bad = int(rng.integers(-2, 4))
        ratings = [1.0, 1.0, 1.0, 1.0] if bad < 0 else [1.0] * bad + [-1.0] + [None] * (3 - bad)
        items.append(labelled(f"problem {number}", "a\nb\nc\nd\n", ratings))
        for noise, arm in enumerate(arms, start=1):
            truth = np.array([0.0 if step == bad else 1.0 for step in range(4)])
            arms[arm].append((truth + noise * rng.normal(size=4) / 3).tolist())
    return items, arms


def test_reported_f1_is_that_of_the_other_halfs_threshold(bench):
    items, arms = bench
    half, labels = prm800k.halves(items), [prm800k.first_bad(item) for item in items]
    fit, reported = np.flatnonzero(half == 0), np.flatnonzero(half == 1)
    found = prm800k.f1_figures("toy", items, arms, draws=20)[0]
    for arm, scores in arms.items():
        cut = best_threshold([scores[i] for i in fit], [labels[i] for i in fit]).threshold
        expected = processbench_f1([scores[i] for i in reported], [labels[i] for i in reported], cut).f1
        assert found["arms"][arm]["value"] == pytest.approx(expected)
        assert found["parts"][arm]["thresholds"] == [cut]


def test_thresholds_do_not_see_the_reported_labels(bench):
    items, arms = bench
    half = prm800k.halves(items)
    flipped = [
        labelled(item.problem.text, "a\nb\nc\nd\n", [1.0] * 4) if side == 1 and number % 3 else item
        for number, (item, side) in enumerate(zip(items, half, strict=True))
    ]
    before, after = (prm800k.f1_figures("toy", some, arms, draws=20)[0] for some in (items, flipped))
    assert before["arms"] != after["arms"]
    assert [part["thresholds"] for part in before["parts"].values()] == [
        part["thresholds"] for part in after["parts"].values()
    ]


def test_differences_are_paired(bench):
    items, arms = bench
    same = {"lora": arms["lora"], "frozen": arms["lora"], "length": arms["length"]}
    for found in [
        *prm800k.f1_figures("toy", items, same, draws=20),
        prm800k.auc_figures(items, same, draws=20)[0],
    ]:
        nothing = found["differences"]["lora - frozen"]
        assert (nothing["low"], nothing["value"], nothing["high"]) == (0, 0, 0)
        gap = found["differences"]["lora - length"]
        assert gap["value"] == pytest.approx(
            found["arms"]["lora"]["value"] - found["arms"]["length"]["value"]
        )
        assert gap["low"] < gap["value"] < gap["high"]


def test_a_step_that_one_scorer_lacks_is_left_out_for_all(bench):
    items, arms = bench
    gone = {arm: [list(scores) for scores in lists] for arm, lists in arms.items()}
    gone["frozen"][0][0] = None
    whole, partial = (
        prm800k.auc_figures(items, arms, draws=20)[0],
        prm800k.auc_figures(items, gone, draws=20)[0],
    )
    assert (whole["unscored_steps"], partial["unscored_steps"]) == (0, 1)
    assert whole["arms"]["lora"]["value"] != partial["arms"]["lora"]["value"]


def test_pieces_keep_a_problem_together(drawn):
    pieces = list(prm800k.cut_by_problem(drawn, 13))
    assert [len(piece) for piece in pieces] == [24, 12]
    assert {item.problem.id for item in pieces[0]}.isdisjoint(item.problem.id for item in pieces[1])


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """The four files, filled with the lab's problems: each has its solution and a wrong first line."""
    folder = tmp_path_factory.mktemp("prm800k-data")
    easy = Difficulty(min_operations=2, max_operations=3)
    texts = list(dict.fromkeys(p.text for p in generate_problems(60, seed=8, difficulty=easy)))
    solved = [(text, worked_solution(parse_problem(text)).splitlines()) for text in texts]
    for file, part in ((prm800k.TRAIN_FILE, solved[:6]), (prm800k.TEST_FILE, solved[6:10])):
        lines = []
        for text, steps in part:
            shared = {"instruction": text, "answer": None}
            for number, step in enumerate(steps):
                lines.append({**shared, "responses": steps[:number], "next_response": step, "rating": 1})
            wrong = {**shared, "responses": [], "next_response": steps[0][:-1] + "x", "rating": -1}
            lines.append(wrong)
        _write(folder / file, "\n".join(map(json.dumps, lines)))
    for name, part in (("gsm8k", solved[10:30]), ("math", solved[30:50])):
        records = [
            {
                "id": f"{name}-{number}",
                "generator": "lab",
                "problem": text,
                "steps": steps,
                "final_answer_correct": number % 2 == 0,
                "label": -1 if number % 2 == 0 else 0,
            }
            for number, (text, steps) in enumerate(part)
        ]
        _write(folder / prm800k.BENCH_FILES[name], json.dumps(records))
    return folder


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    with gzip.open(path, "wt") as stream:
        stream.write(text)


def _run(monkeypatch, data: Path, model: Path, out: Path, *arguments: str) -> dict:
    given = ["--data", str(data), "--model", str(model), "--out", str(out), "--dtype", "float32"]
    given += [
        "--problems",
        "6",
        "4",
        "20",
        "--threads",
        "1",
        "--draws",
        "20",
        "--json",
        str(out.parent / "figures.json"),
    ]
    monkeypatch.setattr(sys, "argv", ["prm800k.py", *given, *arguments])
    prm800k.main()
    return json.loads((out.parent / "figures.json").read_text())


def test_a_model_added_later_leaves_what_is_there_and_lost_scores_are_made_again(
    monkeypatch, data, lab_base, tmp_path
):
    out = tmp_path / "run"
    first = _run(monkeypatch, data, lab_base, out, "--train", "frozen")
    assert set(first["figures"][0]["arms"]) == {"frozen", "length"}
    trained = (out / "frozen" / "training.json").stat().st_mtime_ns

    both = _run(monkeypatch, data, lab_base, out, "--train", "frozen", "lora")
    assert [one["name"] for one in both["figures"]] == [one["name"] for one in first["figures"]]
    assert list(both["figures"][0]["arms"]) == ["lora", "frozen", "length"]
    assert both["figures"][0]["arms"]["frozen"] == first["figures"][0]["arms"]["frozen"]
    assert (out / "frozen" / "training.json").stat().st_mtime_ns == trained
    assert (out / "lora" / "adapter_model.safetensors").is_file()
    assert both["setting"]["training"]["models"]["lora"]["config"]["lora"]["rank"] == 16

    (out / "pieces" / "lora-math.journal").unlink()
    again = _run(monkeypatch, data, lab_base, out, "--train", "frozen", "lora")
    assert again["figures"] == both["figures"]


def test_a_training_problem_that_is_tested_on_is_refused(data, tmp_path):
    copies = {file: file for file in (prm800k.TRAIN_FILE, *prm800k.BENCH_FILES.values())}
    for file, source in (copies | {prm800k.TEST_FILE: prm800k.TRAIN_FILE}).items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        shutil.copy(data / source, tmp_path / file)
    with pytest.raises(SystemExit, match="3 training problems are in test"):
        prm800k.load_material(tmp_path, prm800k.Size(**{**vars(SIZE), "train_problems": None}), lengths)


def test_the_reading_gate_runs_on_a_middle_layer_with_three_seeds(data, lab_base, tmp_path, monkeypatch):
    found = _run(monkeypatch, data, lab_base, tmp_path / "run", "--reading", "--layer", "1")
    figures = {figure["name"]: figure for figure in found["figures"]}
    for name in ("auc_within_prefix_minus_baseline", "auc_within_problem_minus_baseline"):
        assert len(figures[name]["seeds"]) == 3
        assert figures[name]["low"] <= figures[name]["value"] <= figures[name]["high"]
    assert 0 <= figures["swapped_number_noticed"]["value"] <= 1
    assert found["setting"]["rival_rows"] >= found["setting"]["rows"]["train"]["rows"]
