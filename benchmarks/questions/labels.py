"""Evaluator strength and transfer, for ``benchmarks/questions/run.py``.

*Evaluators*: labels of the same 200 lab traces from weaker and stronger labellers, over difficulty (the
policy's chance of success at the problem), and the PRM (a linear head on the shipped trunk) that is trained
on them. *Assistance*: the weakest labeller is shown the marks of a PRM and follows those that are confident.
*Transfer*: linear models of words, length and position on one world or domain, tested on each. They are no
language models, so the matrix shows how much of a domain's step labels such surface cues explain elsewhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, hstack
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import LogisticRegression
from transformers import AutoModelForCausalLM

from benchmarks.common.figures import figure
from benchmarks.questions.chain_length import TRUNKS, fitted
from benchmarks.questions.traces import OPERATIONS, Traces, draw_problems, misconceptions, read_traces, sample
from surefoot.formats import (
    read_agent_judgements,
    read_agent_processbench,
    read_bigbench_mistake,
    read_prm800k_steps,
    read_processbench,
)
from surefoot.labels import LabelRule
from surefoot.protocols import LabelledTrace
from surefoot.stats import Bootstrap, Interval, mean_over_runs, roc_auc

FloatArray = NDArray[np.float64]
Figures = list[dict[str, Any]]

LENGTH, TRACES, PER_PROBLEM, TEST = 7, 200, 4, 150
CONFIDENT = 0.9


def evaluator_figures(seeds: Sequence[int], data: Path | None) -> Figures:
    """Accuracy of labels by difficulty, AUC of the PRM trained on them, and the effect of assistance.

    With ``data`` also the stored labels of judges against people's, in runs that succeeded and that failed.
    """
    results: dict[str, list[float]] = {}
    for seed in seeds:
        for name, value in _evaluators(seed).items():
            results.setdefault(name, []).append(value)
    figures = [figure(f"evaluator_{name}", _over_seeds(values), "share") for name, values in results.items()]
    return figures + (_judges(data / "agent" / "apb_human_vs_judges.jsonl.gz") if data is not None else [])


def _over_seeds(values: Sequence[float]) -> Interval | float:
    if len(values) == 1:
        return values[0]
    return mean_over_runs(np.array(values)[:, None], rng=np.random.default_rng(0))


def _judges(file: Path) -> Figures:
    """Share of steps at which a judge agrees with people; intervals are over problems."""
    rule = LabelRule(neutral="good")
    rows: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for run in read_agent_judgements(file):
        people = {label.step: rule.good(label) for label in run.labels}
        group = {True: "successful_runs", False: "failed_runs", None: "ungraded_runs"}[run.outcome]
        for name, labels in run.judges.items():
            for label in labels:
                if people.get(label.step) is not None and rule.good(label) is not None:
                    right = float(rule.good(label) == people[label.step])
                    rows.setdefault((name, group), []).append((run.problem_id, right))
    bootstrap = Bootstrap(draws=500)
    return [
        figure(f"judge_{name}_{group}", bootstrap.mean([r for _, r in of], [p for p, _ in of]), "share")
        for (name, group), of in sorted(rows.items())
    ]


def _evaluators(seed: int) -> dict[str, float]:
    rng = np.random.default_rng([seed, 77])
    operations = OPERATIONS["medium"]
    policy = misconceptions(rng, LENGTH, operations, 0.45)
    pool, held, own = (
        draw_problems(rng, count, LENGTH, operations) for count in (TRACES // PER_PROBLEM, TEST, 25)
    )
    trunks = {name: AutoModelForCausalLM.from_pretrained(path).eval() for name, path in TRUNKS.items()}
    lines = [sample(rng, policy, chains, PER_PROBLEM) for chains in (pool, held, own)]
    read = {
        name: [
            read_traces(trunk, chains, rows) for chains, rows in zip((pool, held, own), lines, strict=True)
        ]
        for name, trunk in trunks.items()
    }
    train, test, _ = read["slips"]
    rows = train.where.reshape(-1)
    truth = _prefixes(train)[rows]
    values = policy.values(pool)[np.arange(TRACES) // PER_PROBLEM]
    chance = np.take_along_axis(values, train.lines[rows][..., None], axis=2)[..., 0].clip(0, 1)
    marks = {name: _marks(*of)[rows] for name, of in read.items()}
    noisy = truth ^ (rng.random(truth.shape) < 0.3)
    labellers = {
        "checker": truth,
        "checker_10_wrong": truth ^ (rng.random(truth.shape) < 0.1),
        "checker_30_wrong": noisy,
        **{f"monte_carlo_{k}": rng.binomial(k, chance) > 0 for k in (1, 4, 16)},
        "small_verifier": marks["no slips"] > 0.5,
        "larger_verifier": marks["slips"] > 0.5,
    }
    for name, marked in marks.items():
        sure = np.abs(marked - 0.5) > CONFIDENT - 0.5
        key = {"slips": "larger", "no slips": "small"}[name]
        labellers[f"checker_30_wrong_assisted_by_{key}"] = np.where(sure, marked > 0.5, noisy)
    groups, tested = _thirds(policy.success(train.chains)[rows]), _thirds(policy.success(test.chains))
    results = {}
    for name, labels in labellers.items():
        results[f"{name}_labels"] = float((labels == truth).mean())
        for group, which in groups.items():
            results[f"{name}_labels_{group}"] = float((labels == truth)[which].mean())
        scores = fitted("prefix", 0.01, train.features[rows], labels.astype(float), test.features)
        results[f"{name}_prm_auc"] = roc_auc(scores.ravel(), _prefixes(test).ravel()).value
        for group, which in tested.items():
            auc = roc_auc(scores[which].ravel(), _prefixes(test)[which].ravel()).value
            results[f"{name}_prm_auc_{group}"] = auc
    for name, marked in marks.items():
        key = {"slips": "larger", "no slips": "small"}[name]
        gain = (labellers[f"checker_30_wrong_assisted_by_{key}"] == truth) * 1.0 - (noisy == truth)
        right = (marked > 0.5) == truth
        results[f"assistance_by_{key}_gain_where_it_is_right"] = float(gain[right].mean())
        results[f"assistance_by_{key}_gain_where_it_is_wrong"] = float(gain[~right].mean())
        results[f"assistance_by_{key}_sure"] = float((np.abs(marked - 0.5) > CONFIDENT - 0.5).mean())
    return results


def _prefixes(traces: Traces) -> NDArray[np.bool_]:
    """Whether each prefix is free of errors, [U, L]."""
    return np.asarray(np.logical_and.accumulate(traces.good, axis=1))


def _thirds(success: FloatArray) -> dict[str, NDArray[np.bool_]]:
    """The hardest and the easiest third, by the policy's chance of success."""
    low, high = np.quantile(success, (1 / 3, 2 / 3))
    return {"hard": success <= low, "easy": success >= high}


def _marks(train: Traces, _: Traces, own: Traces) -> FloatArray:
    """Marks of a verifier that learned from exact labels of other traces."""
    return fitted("prefix", 0.01, own.features, _prefixes(own).astype(float), train.features)


def transfer_figures(data: Path | None, most: int) -> Figures:
    """AUC of steps, train on one (row) and test on each: matrix of ``transfer_TRAIN_to_TEST``."""
    sets = {f"lab_{level}": _lab_steps(level, most) for level in OPERATIONS}
    if data is not None:
        sources = {
            "gsm8k": (read_processbench, "processbench/gsm8k.json.gz"),
            "math": (read_processbench, "processbench/math.fixed.json.gz"),
            "prm800k": (read_prm800k_steps, "prm800k/phase1_test.jsonl.gz"),
            "arithmetic": (read_bigbench_mistake, "bigbench_mistake/multistep_arithmetic.jsonl.gz"),
            "dyck": (read_bigbench_mistake, "bigbench_mistake/dyck_languages.jsonl.gz"),
            "agents": (read_agent_processbench, "agent/agentprocessbench_hotpotqa.jsonl.gz"),
        }
        for name, (read, file) in sources.items():
            sets[name] = list(itertools.islice(_steps(read(data / file)), 4 * most))
    words = HashingVectorizer(
        n_features=2**14, ngram_range=(1, 2), alternate_sign=False, token_pattern=r"\S+"
    )
    halves = {}
    for name, steps in sets.items():
        problems = sorted({problem for problem, *_ in steps})
        test = set(problems[::2])
        for part, chosen in (("train", False), ("test", True)):
            rows = [step for step in steps if (step[0] in test) is chosen]
            place = np.array([[at / 10, np.log1p(len(text)) / 10, 1.0] for _, text, at, _ in rows])
            texts = words.transform([text for _, text, _, _ in rows])
            halves[name, part] = (
                csr_matrix(hstack([texts, csr_matrix(place)])),
                np.array([good for *_, good in rows]),
                place[:, 0],
            )
    figures: Figures = []
    for source in sets:
        features, good, _ = halves[source, "train"]
        model = LogisticRegression(C=1.0, max_iter=200, class_weight="balanced").fit(features, good)
        for target in sets:
            held, truth, place = halves[target, "test"]
            auc = roc_auc(model.decision_function(held), truth)
            figures.append(figure(f"transfer_{source}_to_{target}", auc.value, "AUC"))
            if source == target:
                figures.append(figure(f"transfer_position_{target}", roc_auc(-place, truth).value, "AUC"))
    return figures


Step = tuple[str, str, int, bool]


def _steps(rows: Iterator[LabelledTrace]) -> Iterator[Step]:
    """Problem, text, position and label of the steps up to the first error."""
    rule = LabelRule(neutral="good")
    for row in rows:
        good = {label.step: rule.good(label) for label in row.labels}
        for step in range(len(row.trace.steps)):
            known = good.get(step)
            if known is not None:
                yield row.problem.id, row.trace.step_text(step)[:2000], step, known


def _lab_steps(level: str, most: int) -> list[Step]:
    rng = np.random.default_rng(5)
    policy = misconceptions(rng, LENGTH, OPERATIONS[level], 0.45)
    chains = draw_problems(rng, most // 4, LENGTH, OPERATIONS[level])
    steps = []
    for number, rows in enumerate(sample(rng, policy, chains, PER_PROBLEM).tolist()):
        for lines in rows:
            value = int(chains.start[number])
            correct = chains.correct()[number]
            for at, line in enumerate(lines):
                symbol = "+-*"[chains.symbols[number, at]]
                text = f"{value} {symbol} {chains.digits[number, at]} = {line}"
                steps.append((f"p{number}", text, at, line == correct[at]))
                if line != correct[at]:
                    break
                value = line
    return steps
