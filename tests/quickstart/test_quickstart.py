"""The whole main job with tiny sizes, on the shipped models."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from surefoot.io import Run
from surefoot.lab.checkpoints import POLICY, TRUNK
from surefoot.quickstart import QuickstartConfig, Schedule, expected_seconds, run_quickstart
from surefoot.training.config import TrainingConfig

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (POLICY / "config.json").exists() or not (TRUNK / "config.json").exists(),
        reason="the lab's language models are not in this tree (benchmarks/common/lab_models.py makes them)",
    ),
]

CONFIG = QuickstartConfig(
    train_problems=6,
    train_samples=2,
    rollouts=2,
    test_problems=4,
    test_samples=4,
    training_seeds=2,
    training=TrainingConfig(epochs=1, batch_size=4, checkpoint_every=1),
    shard=2,
)
KEYS = {"pass_at", "majority", "orm", "prm", "prm_gold", "policy", "label_noise", "tokens", "seconds"}
VARYING = {"timings.json", "manifest.json", ".lock"}


@pytest.fixture(scope="module", autouse=True)
def same_times():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        yield


def quickstart(folder: Path, progress=lambda *_: None) -> Path:
    with Run.open(folder, command="quickstart", config=CONFIG.model_dump()) as run:
        run_quickstart(run, CONFIG, progress)
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    return quickstart(tmp_path_factory.mktemp("quickstart"))


def contents(folder: Path) -> dict[str, bytes]:
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in VARYING
    }
    summary = json.loads(files["summary.json"])
    files["summary.json"] = json.dumps(summary | {"seconds": None}).encode()
    return files


def test_the_summary_has_every_result(finished):
    summary = json.loads((finished / "summary.json").read_text())
    assert summary.keys() >= KEYS
    assert summary["policy"].keys() >= {"accuracy", "lucky_fraction"}
    assert summary["label_noise"].keys() >= {"precision", "recall", "f1"}
    assert list(summary["prm"]) == ["1", "2", "4"]
    assert summary["counts"]["test_traces"] == 16
    assert summary["counts"]["train_traces"] == 12
    assert summary["tokens"]["test_traces"]["completion_tokens"] > 0
    assert summary["tokens"]["scores_prm"]["verifier_tokens"] > 0
    assert summary["seconds"]["total"] > 0


def test_no_selector_is_above_the_ceiling(finished):
    summary = json.loads((finished / "summary.json").read_text())
    curves = {
        **summary["selectors"],
        **{name: summary[name] for name in ("majority", "orm", "prm", "prm_gold")},
    }
    for name, curve in curves.items():
        assert curve["4"]["value"] <= summary["pass_at"]["4"]["value"] + 1e-9, name
        assert curve["1"]["value"] == pytest.approx(summary["pass_at"]["1"]["value"], abs=1e-5), name


def test_the_report_needs_nothing_from_outside(finished):
    page = (finished / "report.html").read_text()
    outside = re.findall(r"""(?:src|href|action|data)\s*=\s*["'](?!#)[^"']*|url\((?!#)[^)]*|@import""", page)
    beside = ("data-", 'href="summary.json')
    assert [found for found in outside if not found.startswith(beside)] == []
    assert "<script" not in page


def test_test_problems_are_in_no_training_set(finished):
    texts = [
        {json.loads(line)["text"] for line in (finished / f"{name}-problems.jsonl").read_text().splitlines()}
        for name in ("train", "test")
    ]
    assert not texts[0] & texts[1]


def test_a_finished_run_is_not_done_again(finished):
    before = contents(finished)
    calls = []
    quickstart(finished, lambda stage, done, total: calls.append((stage, done, total)))
    assert all(done == total for stage, done, total in calls if stage != "compare")
    assert contents(finished) == before


class Interrupted(Exception):  # noqa: N818
    """Raised from inside the run."""


def test_a_run_interrupted_again_and_again_gives_the_same_files(finished, tmp_path):
    stops = {
        "train-traces": 2,
        "train-labels": 4,
        "train orm": 2,
        "train prm": 4,
        "train prm_gold": 3,
        "test-traces": 2,
        "scores-prm": 24,
        "compare": 0,
    }

    def stop(stage: str, done: int, total: int) -> None:
        if stops.get(stage) == done:
            del stops[stage]
            raise Interrupted(stage)

    for _ in range(len(stops)):
        with pytest.raises(Interrupted):
            quickstart(tmp_path, stop)
    assert stops == {}
    quickstart(tmp_path, stop)
    assert contents(tmp_path) == contents(finished)


def test_the_stages_are_those_of_the_schedule(finished):
    assert len(expected_seconds(CONFIG)) == 10
    lines, bars = [], []
    clock = iter(range(0, 99, 10)).__next__
    schedule = Schedule(CONFIG, lambda *call: bars.append(call), lines.append, clock=clock)
    for stage in expected_seconds(CONFIG):
        schedule(stage, 0, 2)
    assert lines[0].startswith("stage 1 of 10, train-traces: about 0:")
    assert lines[1].startswith("stage 2 of 10, train-labels: 0:10 so far, about ")
    assert bars[-1] == ("stage 10 of 10, compare", 0, 2)
