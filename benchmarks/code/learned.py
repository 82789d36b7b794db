"""Scorers of programs learned from other tasks: an ORM and a PRM on states of a small language model."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.common.figures import Figures
from benchmarks.common.gates import gate_figures
from surefoot.models import read_states
from surefoot.records import Problem, Trace
from surefoot.segment import PythonCode, segment_trace
from surefoot.stats import StepFacts, step_facts

FOLDS = 10
PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Ridge penalties, in units of the features' mean variance; inner folds over training tasks choose one."""
DEPTH = 2 / 3
"""Of the layers that are used for states. After the last layer, states are made to say the next token."""
NUMBERS = 5
"""Features that are not states: made of log-probabilities and positions."""
LOUDNESS = 2.0
"""Of those features against those of the states, of which there are a hundred times as many."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Completions:
    """The distinct completions of one task, as the trunk reads them: C completions, S steps of all."""

    name: str
    texts: list[str]
    states: NDArray[np.float32]
    """Behind each step, one completion after another, shape [S, hidden]."""
    logprobs: NDArray[np.float32]
    """Log-probability of the tokens of each step, in nats, shape [S]."""
    tokens: NDArray[np.int64]
    """Of each step, shape [S]."""
    owners: NDArray[np.int64]
    """Number of the completion of each step, shape [S]."""

    @property
    def last(self) -> NDArray[np.int64]:
        """Last step of each completion, shape [C]."""
        return np.flatnonzero(np.diff(self.owners, append=len(self.texts)))


def read_completions(
    model: Path, folder: Path, tasks: Sequence[tuple[str, str, Sequence[str]]]
) -> list[Completions]:
    """States of the completions of each ``(name, prompt, completions)``, from the files of earlier starts."""
    folder.mkdir(parents=True, exist_ok=True)
    loaded = None
    made = []
    for at, (name, prompt, completions) in enumerate(tasks):
        texts = sorted(set(completions))
        path = folder / f"{name.replace('/', '-')}.npz"
        if not path.exists():
            loaded = loaded or (
                AutoTokenizer.from_pretrained(model),
                AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval(),
            )
            arrays = _states(*loaded, prompt, texts)
            np.savez(path.with_suffix(".tmp.npz"), **arrays)
            path.with_suffix(".tmp.npz").rename(path)
            print(f"\r{at + 1} of {len(tasks)} tasks read", end="", file=sys.stderr)
        with np.load(path) as found:
            made.append(Completions(name=name, texts=texts, **dict(found)))
    return made


def step_ends(text: str) -> list[int]:
    """Where the statements of a completion end, in characters."""
    return [end for _, end in PythonCode().segment(text)] or [0]


@torch.inference_mode()
def _states(
    tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, prompt: str, texts: Sequence[str]
) -> dict[str, NDArray[Any]]:
    """What the trunk says of one task's completions, each distinct token read once by each of two passes."""
    sequences: list[tuple[int, ...]] = []
    firsts: list[int] = []  # the last token of the prompt
    reached: list[NDArray[np.int64]] = []  # the last token of each step, counted from the former
    for text in texts:
        encoded = tokenizer(prompt + text, return_offsets_mapping=True)
        begins = np.array([start - len(prompt) for start, _ in encoded["offset_mapping"]])
        first = int(np.searchsorted(begins, 0)) - 1
        # A token belongs to the step in which it begins; a step within a token has the place of that token.
        last = np.searchsorted(begins, step_ends(text)) - 1
        sequences.append(tuple(encoded["input_ids"]))
        firsts.append(first)
        reached.append(np.maximum(last - first, 0))
    trunk, numbers = model.model, range(len(texts))
    logprobs: dict[int, NDArray[np.float32]] = {}
    whole = [list(range(first, len(ids))) for ids, first in zip(sequences, firsts, strict=True)]
    for output in read_states(trunk, sequences, whole, batch_tokens=4096):
        for number, hidden in output.states.items():
            targets = torch.tensor(sequences[number][firsts[number] + 1 :], dtype=torch.long)
            of_token = model.lm_head(hidden[:-1]).log_softmax(-1).gather(1, targets[:, None])[:, 0]
            sums = torch.cat([torch.zeros(1), of_token.cumsum(0)])[torch.from_numpy(reached[number])]
            logprobs[number] = np.diff(sums.numpy(), prepend=np.float32(0))
    states: dict[int, NDArray[np.float32]] = {}
    layers = trunk.layers
    trunk.layers = layers[: round(DEPTH * len(layers))]
    ends = [(first + some).tolist() for first, some in zip(firsts, reached, strict=True)]
    for output in read_states(trunk, sequences, ends, batch_tokens=4096):
        states |= {number: hidden.float().numpy() for number, hidden in output.states.items()}
    trunk.layers = layers
    return {
        "states": np.concatenate([states[number] for number in numbers]).astype(np.float16),
        "logprobs": np.concatenate([logprobs[number] for number in numbers]),
        "tokens": np.concatenate([np.diff(reached[number], prepend=0) for number in numbers]),
        "owners": np.concatenate([np.full(len(reached[number]), number) for number in numbers]),
    }


def scores_of(
    model: Path, folder: Path, tasks: Sequence[tuple[str, str, Sequence[str], NDArray[np.bool_]]]
) -> tuple[dict[str, list[Floats]], Figures]:
    """Scores of the samples of each task ``(name, prompt, completions, right)``, all above 0, and the
    figures of the reading gate.

    ``logprob`` and ``steps`` are floors; ``orm`` and ``prm`` are learned.
    """
    read = read_completions(model, folder, [(name, prompt, texts) for name, prompt, texts, _ in tasks])
    counts, outcomes, places = [], [], []
    for task, (_, _, texts, right) in zip(read, tasks, strict=True):
        place = np.array([task.texts.index(text) for text in texts])
        places.append(place)
        counts.append(np.bincount(place, minlength=len(task.texts)).astype(float))
        outcomes.append(np.bincount(place, right, minlength=len(task.texts)) / counts[-1])
    features = [step_features(task) for task in read]
    lasts = [some[task.last] for some, task in zip(features, read, strict=True)]
    values = [prefix_values(*one) for one in zip(read, outcomes, counts, strict=True)]
    weights = [
        (count / np.bincount(task.owners))[task.owners] for task, count in zip(read, counts, strict=True)
    ]
    learned = {
        "orm": fit_heads(lasts, outcomes, counts),
        "prm": fit_heads(features, values, weights),
    }
    found = {
        "logprob": [np.exp(mean_logprobs(task)) for task in read],
        "steps": [np.bincount(task.owners).astype(float) for task in read],
    } | {
        name: [head.probabilities(rows) for head, rows in zip(heads, lasts, strict=True)]
        for name, heads in learned.items()
    }
    gates = reading_figures(
        read,
        [prompt for _, prompt, _, _ in tasks],
        programs={name: scores for name, scores in found.items() if name != "steps"},
        statements={
            name: [head.probabilities(rows) for head, rows in zip(heads, features, strict=True)]
            for name, heads in learned.items()
        },
        outcomes=outcomes,
        values=values,
    )
    of_samples = {
        name: [scores[place] for scores, place in zip(some, places, strict=True)]
        for name, some in found.items()
    }
    return of_samples, gates


def reading_figures(
    read: Sequence[Completions],
    prompts: Sequence[str],
    *,
    programs: Mapping[str, Sequence[Floats]],
    statements: Mapping[str, Sequence[Floats]],
    outcomes: Sequence[Floats],
    values: Sequence[Floats],
) -> Figures:
    """The reading gate on distinct programs, scores ``[C]`` of each task, and beginnings, ``[S]``.

    All programs of a task continue its prompt, so that this is their prefix. Length and position are
    those of a program's last statement, what came before it included. A beginning is good if one
    of the samples that share it passes; its siblings continue the same statements. An empty completion has
    no statement and is left out.
    """
    whole, whole_good, whole_task = [], [], []
    parts, parts_good, parts_task = [], [], []
    kept, chosen = [], []  # completions of each task, and rows, the first of each beginning
    for task, prompt, outcome, value in zip(read, prompts, outcomes, values, strict=True):
        problem = Problem(id=task.name, text=prompt)
        rows: dict[str, int] = {}
        facts: list[StepFacts | None] = []
        kept.append([number for number, text in enumerate(task.texts) if text.strip()])
        for text in task.texts:
            if not text.strip():  # it has a state all the same
                facts.append(None)
                continue
            trace = segment_trace(Trace(problem_id=task.name, text=text), PythonCode())
            for step, fact in zip(trace.steps, step_facts(problem, trace), strict=True):
                rows.setdefault(text[: step.end], len(facts))
                facts.append(fact)
            whole.append(replace(facts[-1], prefix=task.name, characters=len(text)))
        chosen.append(list(rows.values()))
        whole_good += (outcome[kept[-1]] > 0).tolist()
        whole_task += [task.name] * len(kept[-1])
        parts += [facts[row] for row in chosen[-1]]
        parts_good += (value[chosen[-1]] > 0).tolist()
        parts_task += [task.name] * len(chosen[-1])
    scores = {
        name: np.concatenate([some[rows] for some, rows in zip(of_tasks, chosen, strict=True)])
        for name, of_tasks in statements.items()
    }
    return [
        *gate_figures(
            {
                name: np.concatenate([some[numbers] for some, numbers in zip(of_tasks, kept, strict=True)])
                for name, of_tasks in programs.items()
            },
            whole,
            whole_good,
            whole_task,
            ending="_programs",
        ),
        *gate_figures(scores, parts, parts_good, parts_task, ending="_statements"),
    ]


def mean_logprobs(task: Completions) -> Floats:
    """Of the tokens of each completion, [C]."""
    sums = np.bincount(task.owners, task.logprobs)
    return np.asarray(sums / np.maximum(np.bincount(task.owners, task.tokens), 1))


def step_features(task: Completions) -> Floats:
    """What the heads read at each step, [S, hidden + 5]: the state, and five numbers: mean log-probability of
    the tokens so far and of the step's, its sum, number of steps and of tokens so far."""
    first = np.r_[0, task.last[:-1] + 1][task.owners]
    before = first - 1
    sums, tokens = np.cumsum(task.logprobs, dtype=float), np.cumsum(task.tokens, dtype=float)
    sums_so_far = sums - np.where(before >= 0, sums[before], 0.0)
    tokens_so_far = tokens - np.where(before >= 0, tokens[before], 0.0)
    numbers = np.stack(
        [
            sums_so_far / np.maximum(tokens_so_far, 1),
            task.logprobs / np.maximum(task.tokens, 1),
            task.logprobs,
            np.log1p(np.arange(len(first)) - first),
            np.log1p(tokens_so_far),
        ],
        axis=1,
    )
    return np.concatenate([task.states.astype(float), numbers], axis=1)


def prefix_values(task: Completions, outcomes: Floats, counts: Floats) -> Floats:
    """Share of the samples that begin with the text up to each step and pass, shape [S].

    Monte Carlo estimation whose rollouts are the samples themselves: those that share a prefix continue it.
    """
    keys = [text[:end] for text in task.texts for end in step_ends(text)]
    passed: dict[str, float] = {}
    drawn: dict[str, float] = {}
    for key, owner in zip(keys, task.owners, strict=True):
        passed[key] = passed.get(key, 0.0) + outcomes[owner] * counts[owner]
        drawn[key] = drawn.get(key, 0.0) + counts[owner]
    return np.array([passed[key] / drawn[key] for key in keys])


@dataclass(frozen=True, kw_only=True)
class Head:
    """A linear head, fitted within tasks."""

    weights: Floats
    base: float
    """Mean of the targets."""

    def probabilities(self, features: Floats) -> Floats:
        """Of the completions of one task, [C, F] -> [C], kept within 0.01 and 0.99.

        Their mean is the base: how hard a task is, a head that is fitted within tasks cannot say.
        """
        return np.clip(self.base + (features - features.mean(0)) @ self.weights, 0.01, 0.99)


def fit_heads(features: Sequence[Floats], targets: Sequence[Floats], weights: Sequence[Floats]) -> list[Head]:
    """For each task the head that the tasks of other folds give, from rows [R, F], [R] and [R] of each.

    Least squares with a ridge penalty. Rows are compared within their task alone (the means of a task are
    taken off), since a head has to choose within a task; each task weighs the same. Inner folds choose the
    penalty by the squared error.
    """
    shares = [some / some.sum() for some in weights]
    centres = np.stack([share @ rows for share, rows in zip(shares, features, strict=True)])
    bases = np.array([share @ some for share, some in zip(shares, targets, strict=True)])
    spread = np.zeros(features[0].shape[1])
    for rows, share, centre in zip(features, shares, centres, strict=True):
        spread += share @ (rows - centre) ** 2
    scale = np.sqrt(spread / len(features))
    scale[scale == 0] = 1.0
    scale[-NUMBERS:] /= LOUDNESS
    grams, cross = [], []
    for rows, some, share, centre, base in zip(features, targets, shares, centres, bases, strict=True):
        centred = (rows - centre) / scale
        grams.append((centred * share[:, None]).T @ centred)
        cross.append((centred * share[:, None]).T @ (some - base))
    solve = _Ridge(np.stack(grams), np.stack(cross))
    fold = np.random.default_rng(0).permutation(len(features)) % FOLDS
    heads: dict[int, Head] = {}
    for outer in sorted(set(fold.tolist())):
        losses = np.zeros(len(PENALTIES))
        for inner in set(fold.tolist()) - {outer}:
            found = solve((fold != outer) & (fold != inner))
            losses += [solve.loss(one, fold == inner) for one in found]
        used = fold != outer
        best = solve(used)[int(losses.argmin())] / scale
        for at in np.flatnonzero(fold == outer):
            heads[int(at)] = Head(weights=best, base=float(bases[used].mean()))
    return [heads[at] for at in range(len(features))]


@dataclass(frozen=True)
class _Ridge:
    """Ridge regression on any of the tasks, from the moments of each."""

    grams: Floats
    """[tasks, F, F]"""
    cross: Floats
    """[tasks, F]"""

    def __call__(self, used: NDArray[np.bool_]) -> list[Floats]:
        """The solution with each of the penalties."""
        values, vectors = np.linalg.eigh(self.grams[used].mean(0))
        projected = vectors.T @ self.cross[used].mean(0)
        return [vectors @ (projected / (values + penalty)) for penalty in PENALTIES]

    def loss(self, head: Floats, left: NDArray[np.bool_]) -> float:
        """Squared error on other tasks, up to a constant."""
        return float((self.grams[left].sum(0) @ head) @ head - 2 * self.cross[left].sum(0) @ head)
