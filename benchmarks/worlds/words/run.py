"""Train a PRM and an ORM on the policy's solutions of word problems, and choose among solutions of others.

Runs surefoot's own commands in the directory ``--out``; what is there already is not made again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaForCausalLM

from benchmarks.common.figures import Figures, arguments, show, write
from benchmarks.worlds.words.measure import (
    Candidate,
    accuracies,
    candidates,
    choice_figures,
    policy_figures,
    step_figures,
)
from benchmarks.worlds.words.tokens import build_words_tokenizer
from surefoot.io import read_records, write_records
from surefoot.lab import POLICY, Setting, generate_problems
from surefoot.records import Problem, StepScores, Trace

TEST = Setting()
SETS = {
    "test": TEST,
    "wordings": Setting(graphs=1.0, held_out=True),
    "templates": Setting(graphs=0.0, held_out=True),
    "larger": Setting(graphs=1.0, people=(5, 5), steps=(4, 4)),
    "plain": Setting(distractor=0.0, opinion=0.0),
    "distracted": Setting(distractor=1.0, opinion=0.0),
    "opinion": Setting(distractor=0.0, opinion=1.0),
}
"""Problems to choose answers to: like those of the training, graphs in a wording and templates that it never
shows, of more people and steps, and without and with a sentence about something else or a wrong opinion."""
GRADED = ("--max-tokens", 120, "--extract", "phrase", "--equality", "exact")
TRAINING = (
    *("--batch-size", 32, "--learning-rate", 5e-4, "--validation", 0, "--max-length", 256),
    *("--layout", "padded", "--bf16", "--set", "loading.attention=eager"),
)
"""The same for every model."""


def surefoot(*words: object) -> None:
    """Run a command, with the root of the clone importable."""
    root = str(Path(__file__).parents[3])
    environment = os.environ | {"PYTHONPATH": root}
    subprocess.run([sys.executable, "-m", "surefoot", *map(str, words)], check=True, env=environment)


def sampled(
    out: Path, name: str, policy: Path, *, problems: list[Problem], samples: int, seed: int
) -> tuple[Path, Path]:
    """Files of problems and of the policy's solutions of them."""
    asked, traces = out / f"{name}-problems.jsonl", out / f"{name}-traces.jsonl"
    if not asked.exists():
        write_records(asked, problems)
    if not traces.exists():
        surefoot(
            "sample", asked, "--policy", policy, "--n", samples, "--seed", seed, *GRADED, "--out", traces
        )
    return asked, traces


def trained(out: Path, kind: str, seed: int, base: Path, epochs: int, data: tuple[Path, Path]) -> Path:
    """A PRM on exact labels, or an ORM on outcomes."""
    asked, traces = data
    labels, model = out / "train-labels.jsonl", out / f"{kind}-{seed}"
    if not labels.exists():
        verifier = "verify:rules=lab"
        surefoot("label", traces, verifier, "--problems", asked, "--out", labels)
    if not (model / "done" / "train.json").exists():
        given = ("--labels", labels) if kind == "prm" else ()
        words = ("train", kind, traces, "--problems", asked, *given, "--base", base, *TRAINING)
        surefoot(*words, "--epochs", epochs, "--seed", seed, "--out", model)
    return model


def scored(out: Path, model: Path, name: str, data: tuple[Path, Path]) -> list[StepScores]:
    """Step scores of a model."""
    scores = out / f"{name}-{model.name}.jsonl"
    if not scores.exists():
        surefoot("score", data[1], "--problems", data[0], "--prm", model, "--out", scores)
    return list(read_records(scores, StepScores))


def likelihoods(policy: Path, problems: list[Problem], traces: list[Trace]) -> list[StepScores]:
    """The policy's probability of each step: what a choice by its own confidence goes by."""
    model, tokenizer = LlamaForCausalLM.from_pretrained(policy).eval(), build_words_tokenizer()
    texts = {problem.id: problem.text for problem in problems}
    found = []
    for trace in traces:
        lines = (trace.step_text(index) for index in range(len(trace.steps)))
        steps = [tokenizer(line, add_special_tokens=False)["input_ids"] for line in lines]
        prompt = tokenizer(f"{texts[trace.problem_id]}\n")["input_ids"]
        ids = torch.tensor([prompt + [token for step in steps for token in step]])
        with torch.inference_mode():
            logits = torch.log_softmax(model(ids).logits[0, len(prompt) - 1 : -1], -1)
        chances = logits.gather(1, ids[0, len(prompt) :, None])[:, 0]
        scores = [part.sum().exp().item() for part in chances.split([len(step) for step in steps])]
        found.append(StepScores(trace_id=trace.id, scorer="policy", scores=tuple(scores)))
    return found


def main() -> None:
    """Command line."""
    parser = arguments(__doc__, "fewer problems")
    parser.add_argument("--policy", type=Path, default=POLICY)
    parser.add_argument("--base", type=Path, default=POLICY, help="what the reward models are trained from")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=2, help="PRMs and ORMs to train")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--train-problems", type=int, default=4000)
    parser.add_argument("--train-samples", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--kinds", nargs="+", choices=["prm", "orm"], default=["prm", "orm"])
    parser.add_argument("--test-problems", type=int, default=300)
    parser.add_argument("--test-seed", type=int, default=1_000_000)
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=["test"])
    options = parser.parse_args()
    if options.quick:
        options.train_problems, options.test_problems, options.seeds = 200, 100, 1
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    train = sampled(
        out,
        "train",
        options.policy,
        problems=generate_problems(options.train_problems, seed=0),
        samples=options.train_samples,
        seed=0,
    )
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    models = {
        f"{kind}-{seed}": trained(out, kind, seed, options.base, options.epochs, train)
        for seed in seeds
        for kind in options.kinds
    }
    figures: Figures = []
    for name in options.sets:
        label = f"{name}-{options.test_seed}"
        problems = generate_problems(
            options.test_problems,
            seed=options.test_seed,
            setting=SETS[name],
            exclude=list(read_records(train[0], Problem)),
        )
        data = sampled(out, label, options.policy, problems=problems, samples=16, seed=options.test_seed)
        scores = {key: scored(out, model, label, data) for key, model in models.items()}
        problems, traces = list(read_records(data[0], Problem)), list(read_records(data[1], Trace))
        scores["policy"] = likelihoods(options.policy, problems, traces)
        figures += show(measured(candidates(problems, traces, scores), list(scores), name))
    write(options, figures, **{key: str(value) for key, value in vars(options).items() if key != "json"})


def measured(groups: list[list[Candidate]], models: list[str], name: str) -> Figures:
    """All figures of one set; the mean over seeds stands under ``prm`` and ``orm``."""
    found = accuracies(groups, models)
    kinds = list(dict.fromkeys(model.split("-")[0] for model in models))
    for rule in [rule for rule in found if models[0] in rule]:
        for kind in kinds:
            same = [found[rule.replace(models[0], model)] for model in models if model.startswith(kind)]
            key = rule.replace(models[0], kind)
            found[key] = {size: np.mean([one[size] for one in same], axis=0) for size in same[0]}
    pairs = [
        (f"{check}{kind} {vote}{read}", f"{check}majority")
        for check in ("", "check, ")
        for kind in (*kinds, *(model for model in models if model.startswith("prm")))
        for vote in ("", "vote ")
        for read in ("lowest", "last", "product")
    ]
    pairs += [
        (f"{check}prm {vote}{read}", f"{check}{rival} {vote}{read}")
        for check in ("", "check, ")
        for rival in kinds[1:]
        for vote in ("", "vote ")
        for read in ("lowest", "last", "product")
    ]
    return [
        *policy_figures(groups, name),
        *step_figures(groups, models, name),
        *choice_figures(found, pairs, name),
    ]


if __name__ == "__main__":
    main()
