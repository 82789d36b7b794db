"""Two processes learn as one does, and neither waits for ever for the other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from forked_ranks import run_ranks
from safetensors.torch import load_file

pytest.importorskip("accelerate")

IMPORTS = """
import json, os, sys
import torch, torch.distributed.fsdp, torch.distributed.tensor, transformers.models.llama.modeling_llama
import accelerate.utils.fsdp_utils
from pathlib import Path
from surefoot.answers import Grade
from benchmarks.worlds.digits.world import Difficulty, generate_problems
from surefoot.models.engine.causal import load_causal
from surefoot.records import StepScores
from surefoot.rl.config import RLConfig
from surefoot.rl.loop import train_policy
from surefoot.rl.rollouts import Task
from surefoot.segment import Line
"""

PROGRAM = """
base, out, runs = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])

class Sevens:
    def score_traces(self, items):
        return [
            StepScores(trace_id=item.trace.id, scorer="sevens", scores=tuple(
                min(1.0, item.trace.step_text(step).count("7") / 4) for step in range(len(item.trace.steps))))
            for item in items
        ]

class Judge:
    # of one in two problems all solutions are right, of the others those of an even length
    def grade(self, solutions, golds, problem=""):
        known = [int(gold) % 2 for gold in golds]
        return [
            Grade(answer="7", outcome=bool(odd) or len(one.text) % 2 == 0)
            for odd, one in zip(known, solutions, strict=True)
        ]

easy = Difficulty(min_operations=1, max_operations=2)
held_out = generate_problems(3, seed=99, difficulty=easy)
task = Task(
    problems=generate_problems(8, seed=1, difficulty=easy, exclude=held_out), held_out=held_out,
    segmenter=Line(), grader=Judge(), scorer=Sevens(), aggregation="mean",
)
common = {
    "updates": 4, "problems": 4, "samples": 3, "max_tokens": 12, "learning_rate": 0.001, "warmup": 0,
    "evaluate_every": 2, "guards": {"stop_on": []}, "advantage": {"kind": "leave-one-out"},
}
for name, changes in runs.items():
    if name.endswith("in shards"):
        os.environ.update(json.loads(sys.argv[4]))
    model, tokenizer = load_causal(base)
    train_policy(model, tokenizer, task, RLConfig.model_validate(common | changes), out / name)
    end_group()
"""

SETTINGS = {
    "several steps and a reference": {
        "credit": {"rule": "summed"},
        "epochs": 2,
        "microbatch_tokens": 64,
        "objective": {"kl": {"coefficient": 0.1}},
        "updates": 2,  # rounding of 6e-5 grows tenfold with each
    },
    "critic": {
        "credit": {"rule": "summed"},
        "advantage": {"kind": "gae"},
        "critic": {"minibatches": 1},
    },
    "online reward model": {"credit": {"rule": "mixed", "of": {"rule": "implicit", "normalize": False}}},
}

FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "LlamaDecoderLayer",
}

# two problems a round, one a process; where all of one's solutions are right, it is left out
ONE_SIDED = {
    "credit": {"rule": "mixed", "of": {"rule": "implicit"}},
    "accuracy_band": [0.0, 0.9],
    "problems": 2,
}


def log(run: Path) -> dict:
    return json.loads((run / "rl.json").read_text())["log"]


@pytest.fixture(scope="module")
def folders(lab_base, tmp_path_factory) -> tuple[Path, Path]:
    """Runs of one process, and of two."""
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    shards = {f"{name} in shards": changes for name, changes in SETTINGS.items()}
    runs = json.dumps(SETTINGS), json.dumps(SETTINGS | {"one-sided": ONE_SIDED} | shards)
    jobs = {1: (lab_base, one, runs[0]), 2: (lab_base, two, runs[1], json.dumps(FSDP))}
    run_ranks(IMPORTS, PROGRAM, jobs, tmp_path_factory.mktemp("groups"))
    return one, two


def numbers(row: dict) -> dict:
    """What is known of means."""
    names = "outcome reward proxy loss kl entropy clipped advantage_mean advantage_std"
    return {name: row[name] for name in names.split() if row[name] is not None}


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["", " in shards"])
@pytest.mark.parametrize("name", SETTINGS)
def test_two_processes_give_the_updates_of_one(folders, lab_base, name, weights):
    second = folders[1] / f"{name}{weights}"
    one, two = log(folders[0] / name), log(second)
    for mine, theirs in zip(two["updates"], one["updates"], strict=True):
        for field in ("samples", "filtered", "dropped", "unscored_steps", "usage"):
            assert mine[field] == theirs[field], field
        assert numbers(mine) == pytest.approx(numbers(theirs), rel=1e-3, abs=1e-5)
        assert mine["gradient_norm"] == pytest.approx(theirs["gradient_norm"], rel=2e-2)
        assert mine["shape"] == pytest.approx(theirs["shape"])
    assert [row["accuracy"] for row in two["evaluations"]] == [row["accuracy"] for row in one["evaluations"]]
    start, mine, theirs = (
        torch.cat([tensor.flatten() for _, tensor in sorted(load_file(folder / "model.safetensors").items())])
        for folder in (lab_base, second / "policy", folders[0] / name / "policy")
    )
    # Adam divides a gradient that is rounding alone by its size, so single weights may differ
    assert (mine - theirs).norm() < 0.01 * (theirs - start).norm()


@pytest.mark.slow
def test_a_process_that_has_nothing_to_learn_from_is_not_waited_for(folders):
    updates = log(folders[1] / "one-sided")["updates"]
    filtered = [row["filtered"] for row in updates]
    assert 3 in filtered, "no round in which one process alone has nothing"
    assert all(row["loss"] is None for row in updates if row["filtered"])
