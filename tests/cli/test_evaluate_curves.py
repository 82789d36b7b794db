"""``surefoot evaluate --as best-of-n`` and ``calibration`` on files, a checkpoint and a published pool."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import good, refused, run
from lab_traces import lab_item

from benchmarks.worlds.digits.world import Difficulty, ExactLabeller, generate_problems
from surefoot.concurrency import run_sync
from surefoot.io import write_records
from surefoot.models.card import CheckpointCard
from surefoot.models.kinds.classifier import RewardModel
from surefoot.models.loading import load_prm
from surefoot.protocols import ProblemTrace
from surefoot.records import StepScores, Usage

SAMPLES = 4


def records(files: Path, after_error: str = "unlabelled") -> tuple[object, ...]:
    """Options for the problems, their traces and exact labels."""
    labels = files / f"labels-{after_error}.jsonl"
    return ("--problems", files / "problems.jsonl", "--traces", files / "traces.jsonl", "--labels", labels)


@pytest.fixture(scope="module")
def items() -> list[ProblemTrace]:
    """Four traces each of eight short problems, every other one with a wrong line and answer."""
    made = []
    for problem in generate_problems(8, seed=5, difficulty=Difficulty(min_operations=2, max_operations=3)):
        for sample in range(SAMPLES):
            wrong = sample % 2 == 1
            item = lab_item(problem, wrong=wrong, rng=np.random.default_rng(sample))
            update = {"sample": sample, "id": f"{problem.id}-{sample}", "usage": Usage(completion_tokens=9)}
            if wrong:
                update["answer"] = f"wrong {sample}"
            made.append(ProblemTrace(problem=problem, trace=item.trace.model_copy(update=update)))
    return made


@pytest.fixture(scope="module")
def files(items: list[ProblemTrace], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("records")
    problems = list({item.problem.id: item.problem for item in items}.values())
    write_records(folder / "problems.jsonl", problems)
    write_records(folder / "traces.jsonl", [item.trace for item in items])
    for after in ("unlabelled", "wrong"):
        labels = run_sync(ExactLabeller(after_error=after).label(items))
        write_records(folder / f"labels-{after}.jsonl", [label for row in labels for label in row])
    rng = np.random.default_rng(0)
    scores = [
        StepScores(
            trace_id=item.trace.id,
            scorer="by-hand",
            scores=tuple(
                float(np.clip((0.8 if item.trace.outcome else 0.3) + rng.normal(0, 0.3), 0.01, 0.99))
                for _ in item.trace.steps
            ),
            usage=Usage(verifier_tokens=3),
        )
        for item in items
    ]
    write_records(folder / "scores.jsonl", scores)
    return folder


@pytest.fixture(scope="module")
def checkpoint(lab_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    card = CheckpointCard(kind="prm", aggregation="min", label_source="none", base=str(lab_base))
    folder = tmp_path_factory.mktemp("prm") / "tiny"
    RewardModel.initialise(lab_base, card).save(folder)
    return folder


def test_a_checkpoint_and_stored_scores_side_by_side(files: Path, checkpoint: Path, tmp_path: Path):
    words = [
        "evaluate",
        "--as=best-of-n:sizes=1+4,bootstrap=200",
        f"tiny={checkpoint}",
        f"hand={files / 'scores.jsonl'}",
    ]
    words += ["--problems", files / "problems.jsonl", "--traces", files / "traces.jsonl"]
    words += ["--out", tmp_path, "--tables"]
    ended = good(*words)
    assert "4 samples; at least one is right for 100.0%" in " ".join(ended.out.split())
    data = json.loads((tmp_path / "best-of-n.json").read_text())
    assert data["sizes"] == [1, 4]
    curves = {curve["name"]: curve for curve in data["curves"]}
    assert len(curves) == 2 + 2 * 2 * 5
    assert curves["majority"]["accuracy"]["1"]["value"] == pytest.approx(0.5)
    assert curves["hand best-of-N min"]["tokens"]["4"] == pytest.approx(4 * 12)
    assert curves["tiny best-of-N min"]["tokens"]["4"] > 4 * 9
    assert data["inputs"]["sources"][0].endswith(str(checkpoint))
    assert "<svg" in (tmp_path / "best-of-n.html").read_text()
    assert (tmp_path / "scores/tiny").is_dir(), "the checkpoint's scores are kept"


def test_every_rule_reads_every_scorer_alike(files: Path, tmp_path: Path):
    words = ["evaluate", f"a={files / 'scores.jsonl'}", f"b={files / 'scores.jsonl'}"]
    words += ["--traces", files / "traces.jsonl", "--out", tmp_path]
    rules = [
        "best_of_n",
        "weighted_vote",
        "agreement",
    ]
    good(*words, f"--as=best-of-n:sizes=1+4,bootstrap=50,rule={'+'.join(rules)}")
    data = json.loads((tmp_path / "best-of-n.json").read_text())
    assert data["inputs"]["settings"]["rule"] == rules
    for rule in rules:
        read = [[c["aggregation"], c["accuracy"]] for c in data["curves"] if c["rule"] == rule]
        assert len(read) == 2 * 5
        assert read[:5] == read[5:], "the same scores under two names"
    for rule in ("weighted_vote", "agreement"):
        picked = good(
            *("select", files / "traces.jsonl", "--scores", files / "scores.jsonl"),
            *("--rule", rule, "--equality", "exact"),
        )
        assert len(picked.out.splitlines()) == 8
        assert f" {rule} " in " ".join(picked.err.split())


def test_a_published_pool_is_imported_graded_and_evaluated(tmp_path: Path):
    rows = [
        {
            "problem": f"{n} + 0?",
            "answer": str(n),
            "candidates": [
                {"text": f"so\n\n\\boxed{{{n}}}", "step_scores": [0.9, 0.9], "correct": True},
                {"text": "so\n\n\\boxed{99}", "step_scores": [0.9, 0.2], "correct": True},
                {"text": "so\n\n\\boxed{98}", "step_scores": [0.2], "correct": False},
            ],
        }
        for n in range(5)
    ]
    pool, imported = tmp_path / "pool.jsonl", tmp_path / "imported"
    pool.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"problem": "?", "candidates": 1}\n')
    ended = good("import", pool, "--out", imported)
    assert "left out: 5 candidates with not as many steps" in ended.err
    assert "pool.jsonl: 5 read, 1 skipped: line 6: field 'answer': missing" in ended.err
    assert "10 traces" in ended.err
    assert "10 of them graded, 10 scores" in ended.err
    scores, traces = f"pool={imported / 'scores.jsonl'}", imported / "traces.jsonl"
    words = ("--as=best-of-n:bootstrap=100", "--traces", traces, "--out", tmp_path / "out")
    ended = good("evaluate", scores, *words)
    assert "unknown: tokens of the policy; 10 of 10 traces" in ended.err
    data = json.loads((tmp_path / "out/best-of-n.json").read_text())
    curves = {curve["name"]: curve["accuracy"]["2"]["value"] for curve in data["curves"]}
    assert curves["pool best-of-N min"] == curves["pass@N"] == 1.0
    assert curves["majority"] == 0.5


def test_what_best_of_n_cannot_do_is_one_sentence(files: Path, tmp_path: Path):
    base = ["evaluate", "--as=best-of-n", "--out", tmp_path]
    scores, traces = f"s={files / 'scores.jsonl'}", files / "traces.jsonl"
    assert "--traces is required by --as best-of-n" in run(*base, scores).err
    assert "NAME=FILE is required by --as best-of-n" in run(*base, "--traces", traces).err
    assert "sizes.0: Input should be greater than or equal to 1" in refused(
        *base[:1], scores, "--traces", traces, "--as=best-of-n:sizes=0", *base[2:]
    )
    assert "no problem has 9 traces" in refused(
        *base[:1], scores, "--traces", traces, "--as=best-of-n:sizes=9", *base[2:]
    )
    assert "a checkpoint needs --problems" in refused(*base, "m=nowhere", "--traces", traces)


def test_calibration_is_fitted_reported_and_stored(files: Path, checkpoint: Path, tmp_path: Path):
    words = ["evaluate", f"tiny={checkpoint}", *records(files, "wrong")]
    ended = good(
        *words,
        "--as=calibration:fit=isotonic,store=true",
        "--draws",
        "50",
        "--out",
        tmp_path,
    )
    assert f"tiny: calibration.json written to {checkpoint}" in ended.err
    data = json.loads((tmp_path / "calibration.json").read_text())
    [scorer] = data["scorers"]
    [fit] = scorer["fits"]
    assert fit["kind"] == "isotonic"
    assert fit["fitted"]["split"].startswith("half 0")
    assert 0 < data["fit_problems"] < data["problems"] == 8
    assert data["labels"]["unknown"] == 0
    stored = json.loads((checkpoint / "calibration.json").read_text())
    assert stored["map"]["scores"] == fit["fitted"]["map"]["scores"]
    assert load_prm(checkpoint, calibrated=True).name == "tiny+isotonic"
    assert "<svg" in (tmp_path / "calibration.html").read_text()


def test_calibration_of_stored_scores(files: Path, tmp_path: Path):
    words = (*records(files), "--out", tmp_path, "--tables")
    ended = good("evaluate", "--as=calibration:fit=none", f"hand={files / 'scores.jsonl'}", *words)
    assert "ECE" in ended.out
    data = json.loads((tmp_path / "calibration.json").read_text())
    assert data["scorers"][0]["fits"] == []
    assert data["labels"]["unknown"] > 0, "the steps after an error"


def test_what_calibration_cannot_do_is_one_sentence(files: Path, checkpoint: Path, tmp_path: Path):
    base = ["evaluate", *records(files), "--out", tmp_path]
    scores = f"s={files / 'scores.jsonl'}"
    assert "'store' writes one map" in refused(*base, f"m={checkpoint}", "--as=calibration:store=true")
    assert "s is not one" in refused(*base, scores, "--as=calibration:store=true,fit=platt")
    assert "choose platt, isotonic or none" in refused(*base, scores, "--as=calibration:fit=beta")
