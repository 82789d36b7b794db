"""Reading PRM800K's sessions: this package against TRL's script, each in a process of its own.

``python -m benchmarks.scale.reading ours|trl FILE WARM_UP [SCRIPT]`` reads once and says what it took.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from surefoot.formats import read_prm800k

SCRIPT = "https://raw.githubusercontent.com/huggingface/trl/main/examples/datasets/prm800k.py"
_WORDS = ("so", "we have", "the sum of", "both sides", "divide by", "$x^2 + 3x = 12$", "that is equal to")


PHASES = {1: (range(4, 45), range(1, 7)), 2: (range(4, 14), (1, 1, 1, 2))}
"""Numbers of steps of a session, and of completions of a step: phase 1 has many of both; of the whole set,
800,000 labels of 75,000 solutions, a session has about 11 labels."""


def sessions(count: int, phase: int) -> Iterator[dict[str, Any]]:
    """Sessions of own making, in the shape of one of the phases in which the labels were collected."""
    rng = random.Random(0)
    steps, completions = PHASES[phase]
    for number in range(count):
        path = [
            [
                (" ".join(rng.choices(_WORDS, k=8)), rng.choice((1, 1, 0, -1)))
                for _ in range(rng.choice(completions))
            ]
            for _ in range(rng.choice(steps))
        ]
        yield _session(f"Problem {number}: find x.", [(offered, 0) for offered in path])


def sessions_of(folder: Path) -> Iterator[dict[str, Any]]:
    """Those of the published step rows ``folder/phase1_train_plus.jsonl.gz``, put together again."""
    problems: dict[str, dict[tuple[str, ...], list[dict[str, Any]]]] = defaultdict(dict)
    with gzip.open(folder / "phase1_train_plus.jsonl.gz", "rt") as stream:
        for line in stream:
            row = json.loads(line)
            problems[row["instruction"]].setdefault(tuple(row["responses"]), []).append(row)
    for problem, tree in problems.items():
        prefix: tuple[str, ...] | None = ()
        steps = []
        while prefix in tree:
            rows = tree[prefix]
            paths = [(*prefix, row["next_response"]) for row in rows]
            chosen = next((place for place, path in enumerate(paths) if path in tree), None)
            steps.append(([(row["next_response"], _rating(row)) for row in rows], chosen))
            prefix = None if chosen is None else paths[chosen]
        if steps:
            yield _session(problem, steps)


def _rating(row: dict[str, Any]) -> int | None:
    return None if row["rating"] is None else int(row["rating"])


def _session(problem: str, steps: list[tuple[list[tuple[str, int | None]], int | None]]) -> dict[str, Any]:
    return {
        "labeler": "a",
        "timestamp": "2022-07-30T23:23:32",
        "generation": None,
        "is_quality_control_question": False,
        "is_initial_screening_question": False,
        "question": {"problem": problem, "ground_truth_answer": "12"},
        "label": {
            "steps": [
                {
                    "completions": [
                        {"text": text, "rating": rating, "flagged": False} for text, rating in offered
                    ],
                    "human_completion": None,
                    "chosen_completion": chosen,
                }
                for offered, chosen in steps
            ],
            "total_time": 1000,
            "finish_reason": "solution",
        },
    }


def write(path: Path, rows: Iterator[dict[str, Any]]) -> int:
    """Write sessions; returns the number of their labels."""
    labels = 0
    with path.open("w") as stream:
        for row in rows:
            labels += sum(len(step["completions"]) for step in row["label"]["steps"])
            stream.write(json.dumps(row) + "\n")
    return labels


def seconds(what: str, path: Path, warm_up: Path, script: Path | None = None) -> float:
    """CPU seconds of one reading of ``path``, in a fresh process, after one of ``warm_up``."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.scale.reading",
        what,
        str(path),
        str(warm_up),
        *([str(script)] if script else []),
    ]
    with tempfile.TemporaryDirectory() as cache:
        environment = {
            **os.environ,
            "HF_DATASETS_CACHE": cache,
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1800)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return float(done.stdout.split()[-1])


def _ours(path: Path) -> None:
    for _ in read_prm800k(path):
        pass


def _trl(path: Path, script: Path) -> None:
    """What the script does with the file, its own functions and settings."""
    from datasets import load_dataset

    spec = importlib.util.spec_from_file_location("trl_prm800k", script)
    if spec is None or spec.loader is None:
        raise RuntimeError(f"{script} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    rows = load_dataset("json", data_files={"train": str(path)})
    rows.map(module.process_batch, batched=True, batch_size=10, remove_columns=rows["train"].column_names)


def _main() -> None:
    what, path, warm_up, *script = sys.argv[1:]

    def read(name: str) -> None:
        if what == "ours":
            _ours(Path(name))
        else:
            _trl(Path(name), Path(script[0]))

    read(warm_up)
    start = time.process_time()
    read(path)
    print(time.process_time() - start)


if __name__ == "__main__":
    _main()
