"""Reward models on human labels: SmolLM2-135M, frozen and with an adapter, trained on PRM800K phase 1.

    python benchmarks/prm800k.py --data DIR --model DIR [--train frozen lora] [--quick] [--out DIR]
        [--json FILE]

``--data`` holds ``prm800k/phase1_train_plus.jsonl.gz``, ``prm800k/phase1_test.jsonl.gz`` and
``processbench/{gsm8k,math.fixed}.json.gz``; ``--model`` is a transformers checkpoint
(``benchmarks/convert_smollm2.py``). The rival is a logistic regression on lengths and positions, fitted on
the same rows. Start a killed run again and it goes on. See docs/results/prm800k.md.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from _prm800k_figures import DRAWS, auc_figures, f1_figures, report
from _prm800k_rows import (
    BENCH_FILES,
    SEED,
    TEST_FILE,
    TRAIN_FILE,
    LengthBaseline,
    Material,
    Size,
    StepLists,
    load_material,
    rated_rows,
)
from transformers import AutoTokenizer

from surefoot.io import Run
from surefoot.models import CheckpointCard, Encoding, Lora, RewardModel, encode_traces, load_prm
from surefoot.protocols import LabelledTrace, ProblemTrace, StepScorer
from surefoot.records import StepScores
from surefoot.training import StepTargets, TrainingConfig, TrainingLog, build_examples, train

TARGETS = StepTargets(neutral="good")
FROZEN = TrainingConfig(
    freeze_trunk=True, epochs=12, batch_size=64, learning_rate=1e-3, weight_decay=0.1, checkpoint_every=500
)
LORA = TrainingConfig(
    lora=Lora(rank=16, alpha=32),
    epochs=1,
    batch_size=8,
    learning_rate=2e-4,
    microbatch_tokens=1536,
    head_epochs=0,
    checkpoint_every=20,
    seed=SEED,
)
FULL = Size(train_problems=320, test_problems=60, bench_problems=300, alternatives=4, longest=640)
QUICK = Size(train_problems=6, test_problems=4, bench_problems=12, alternatives=2, longest=200)
SHARD_TRACES = 32
"""Traces scored between two files, or those of one problem: what a killed run loses at most."""


def main() -> None:
    """Load, train, score, compare, write."""
    options = _options()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(options.threads)
    size = _size(options)
    with _open_run(options, size) as run:
        with run.timed("load"):
            tokenizer = AutoTokenizer.from_pretrained(options.model)
            material = load_material(
                options.data,
                size,
                lambda items: [len(one.ids) for one in encode_traces(tokenizer, Encoding(), _pairs(items))],
            )
        logging.info("%d training traces; left out: %s", len(material.train), dict(material.left_out))
        trained = {"frozen": train_frozen(run, material.train, options.model, options.dtype)}
        if "lora" in options.train:
            trained["lora"] = train_lora(run, material.train, options.model, options.dtype)
        arms: dict[str, dict[str, StepLists]] = {}
        tokens: dict[str, dict[str, int]] = {}
        for name in sorted(options.train, reverse=True):  # lora first: what is compared with the others
            arms[name], tokens[name] = score_sets(run, name, material, options.dtype)
        rival = LengthBaseline(rated_rows(material.train))
        arms["length"] = {name: rival.score(items) for name, items in material.sets.items()}
        with run.timed("figures"):
            figures = auc_figures(
                material.test, {arm: scores["test"] for arm, scores in arms.items()}, draws=options.draws
            )
            for name, items in material.bench.items():
                figures += f1_figures(
                    name, items, {arm: scores[name] for arm, scores in arms.items()}, draws=options.draws
                )
        setting = {
            "quick": options.quick,
            "base": "SmolLM2-135M-Instruct",
            "dtype": options.dtype,
            "rival": "logistic regression on step length and position, same training rows",
            "size": asdict(size),
            "training": describe(material) | {"models": trained},
            "sets": {name: _counts(items) for name, items in material.sets.items()},
            "tokens_scored": tokens,
            "neutral": TARGETS.neutral,
            "seconds": {stage: round(seconds, 1) for stage, seconds in run.seconds.items()},
            "draws": options.draws,
            "torch_threads": torch.get_num_threads(),
        }
    report(figures, setting, options.json)


def train_frozen(run: Run, items: list[LabelledTrace], base: Path, dtype: str) -> dict[str, object]:
    """A head on the frozen trunk, trained unless it is there."""
    directory = run.directory / "frozen"
    if not _is_trained(directory):
        model = RewardModel.initialise(base, _card(frozen_trunk=True), dtype=dtype)
        _train(run, model, items, FROZEN, directory)
    return _training_of(directory)


def train_lora(run: Run, items: list[LabelledTrace], base: Path, dtype: str) -> dict[str, object]:
    """An adapter and a head that begins as the frozen trunk's; trained unless it is there."""
    directory = run.directory / "lora"
    if not _is_trained(directory):
        model = RewardModel.initialise(base, _card(frozen_trunk=False))
        head = RewardModel.load(run.directory / "frozen").head
        model.head.load_state_dict(head.state_dict())
        _train(run, model, items, LORA.model_copy(update={"bf16": dtype == "bfloat16"}), directory)
    return _training_of(directory)


def score_sets(
    run: Run, name: str, material: Material, dtype: str
) -> tuple[dict[str, StepLists], dict[str, int]]:
    """Scores of all steps of all sets, and tokens that went through the trunk, both by set."""
    scorer = load_prm(run.directory / name, dtype=dtype)
    scores, tokens = {}, {}
    for which, items in material.sets.items():
        scores[which], tokens[which] = score(run, f"{name}-{which}", scorer, items)
    return scores, tokens


def score(run: Run, stage: str, scorer: StepScorer, items: Sequence[LabelledTrace]) -> tuple[StepLists, int]:
    """Scores of all steps of all traces, kept in the run's shards, and the tokens read for them."""
    shards = run.shards(stage, StepScores)
    pieces = list(cut_by_problem(items, SHARD_TRACES))
    for number in shards.missing(len(pieces)):
        with run.timed(f"score {stage}"):
            shards.write(number, scorer.score_traces(_pairs(pieces[number])))
        logging.info("%s: piece %d of %d", stage, number + 1, len(pieces))
    found = {record.trace_id: record for record in shards.read()}
    scores = [list(found[item.trace.id].scores) for item in items]
    return scores, sum(record.usage.verifier_tokens for record in found.values())


def cut_by_problem(items: Sequence[LabelledTrace], size: int) -> Iterator[list[LabelledTrace]]:
    """Pieces of at least ``size`` traces (the last may be smaller), no problem's traces in two of them."""
    problems: dict[str, list[LabelledTrace]] = {}
    for item in items:
        problems.setdefault(item.problem.id, []).append(item)
    piece: list[LabelledTrace] = []
    for traces in problems.values():
        piece += traces
        if len(piece) >= size:
            yield piece
            piece = []
    if piece:
        yield piece


def describe(material: Material) -> dict[str, object]:
    """What is trained on, in numbers."""
    ratings = Counter(label.value for item in material.train for label in item.labels)
    return _counts(material.train) | {
        "ratings": {str(value): count for value, count in sorted(ratings.items(), key=str)},
        "left_out": dict(material.left_out),
    }


def _train(
    run: Run, model: RewardModel, items: list[LabelledTrace], config: TrainingConfig, directory: Path
) -> None:
    made = build_examples(model.tokenizer, model.card.encoding, items, TARGETS)
    logging.info(
        "%s: %d traces, %d tokens, dropped %s",
        directory.name,
        len(made.examples),
        sum(len(example.ids) for example in made.examples),
        dict(made.dropped),
    )
    with run.timed(f"train {directory.name}"):
        train(
            model,
            made.examples,
            config,
            directory,
            progress=lambda done, total, loss: logging.info(
                "%s: update %d of %d, loss %.4f", directory.name, done, total, loss
            ),
        )


def _card(*, frozen_trunk: bool) -> CheckpointCard:
    return CheckpointCard(
        kind="prm",
        encoding=Encoding(),
        score_means="correctness",
        label_source="human (PRM800K phase 1)",
        base="SmolLM2-135M-Instruct",
        frozen_trunk=frozen_trunk,
    )


def _is_trained(directory: Path) -> bool:
    return (directory / "training.json").exists()  # written last


def _training_of(directory: Path) -> dict[str, object]:
    stored = json.loads((directory / "training.json").read_text())
    config = stored.pop("config")
    log = TrainingLog.model_validate(stored)
    return {
        "updates": len(log.losses),
        "tokens_over_all_epochs": log.tokens,
        "loss_first_and_last_20_updates": [float(np.mean(log.losses[:20])), float(np.mean(log.losses[-20:]))],
        "config": config,
    }


def _pairs(items: Sequence[LabelledTrace]) -> list[ProblemTrace]:
    return [ProblemTrace(problem=item.problem, trace=item.trace) for item in items]


def _counts(items: Sequence[LabelledTrace]) -> dict[str, object]:
    return {"problems": len({item.problem.id for item in items}), "traces": len(items)}


def _size(options: argparse.Namespace) -> Size:
    given = asdict(QUICK if options.quick else FULL)
    if options.problems:
        names = ("train_problems", "test_problems", "bench_problems")
        given |= dict(zip(names, options.problems, strict=True))
    for name in ("alternatives", "longest"):
        if getattr(options, name) is not None:
            given[name] = getattr(options, name) or None
    return Size(**given)


def _open_run(options: argparse.Namespace, size: Size) -> Run:
    """The directory of the run; ``--train`` is no part of what it is, so that a model can be added later."""
    files = {"train": TRAIN_FILE, "test": TEST_FILE, **BENCH_FILES}
    return Run.open(
        options.out,
        command="benchmarks/prm800k.py",
        config={
            "size": asdict(size),
            "dtype": options.dtype,
            "targets": TARGETS.model_dump(),
            "frozen": FROZEN.model_dump(),
            "lora": LORA.model_dump(),
        },
        inputs={name: options.data / file for name, file in files.items()} | {"model": options.model},
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--train", nargs="+", choices=("frozen", "lora"), default=["frozen", "lora"])
    parser.add_argument("--out", type=Path, default=Path("prm800k-run"), help="the run's directory")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="so few problems that a CPU core reads them in minutes: wide intervals",
    )
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument(
        "--problems",
        type=int,
        nargs=3,
        metavar=("TRAIN", "TEST", "BENCH"),
        help="problems of each set; BENCH of each subset of ProcessBench",
    )
    parser.add_argument(
        "--alternatives", type=int, help="training traces a problem beside its main solution; 0 = all"
    )
    parser.add_argument("--longest", type=int, help="tokens of the longest training trace; 0 = any length")
    parser.add_argument("--draws", type=int, default=DRAWS, help="of the bootstrap")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


if __name__ == "__main__":
    main()
