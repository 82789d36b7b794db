"""Scorers of agents' steps learned from other tasks of AgentProcessBench, by a small language model's states.

    python -m benchmarks.common.smollm2 MODEL
    python -m benchmarks.agents.run --only learned --model MODEL --states DIR [--data DIR]

150 runs of HotpotQA (of ``agentprocessbench_hotpotqa.jsonl.gz`` in ``--data``). The trunk stays as it is
(SmolLM2-135M): its states at the steps, after two thirds of its layers, are computed once, in a file a run,
in windows of 2,048 tokens (:func:`surefoot.models.windows_of`). On them logistic regressions are fitted,
cross-validated over tasks in ten folds (inner folds choose the penalty), so that what scores a task has seen
no label of it. None knows a run's outcome at scoring time. SOURCE is

- ``position``: the step's position, its length, whether it is an answer; a baseline without the text;
- ``rules``: a step that breaks a rule on tool calls (0), any other (1);
- ``orm``: state, fitted to the run's outcome at the last step, read at each;
- ``prm``: state, fitted to people's labels (−1 against the others) at each step;
- ``prm_16``: the same on the state's 16 principal components;
- ``fused``: position, rules and the scores of ``prm_16``, stacked: fitted on its scores of held-out tasks;
- ``adapter``, with ``--adapters DIR``: ``surefoot train prm`` with a LoRA adapter of rank 8, one epoch,
  windows of 512 tokens, in three folds of tasks (a step that no window holds has the mean score of the
  fold); checkpoints and scores stay in DIR, and a stopped run
  resumes (hours on a CPU);
- ``adapter_fused``: position, rules and the adapter's scores, by a logistic regression cross-validated over
  tasks. Adapters of the other folds have seen a fold's tasks, so this result is slightly optimistic.

Figures, in percent with 95 % intervals over tasks: ``step_SOURCE`` and ``first_error_SOURCE`` (thresholds are
fitted on the other half of the tasks), ``first_error_less_floor_SOURCE`` in points against the best baseline
without the outcome, ``auc_SOURCE``: area under the ROC curve for wrong steps, and ``auc_within_SOURCE``:
the same from the pairs inside a task alone, which one model has scored;
``windows_steps_read_without_messages``: steps before which some messages were not read. Each
learned scorer and ``position`` go through the reading gate (``benchmarks/common/gates.py``), on the
labelled steps.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegressionCV
from sklearn.model_selection import GroupKFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from transformers import AutoModel, AutoTokenizer

from benchmarks.common.figures import figure
from benchmarks.common.gates import gate_figures
from surefoot import run_sync
from surefoot.evaluation import open_systems
from surefoot.evaluation.benchmarks import AgentEvaluation, agent_layout, agent_runs, evaluate_agent_steps
from surefoot.formats import read_agent_processbench
from surefoot.io import read_records, write_records
from surefoot.labelling import TOOL_RULES, ToolCallVerifier, VerifierLabeller
from surefoot.models import Encoding, encode_traces, read_states, windows_of
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.records import StepScores
from surefoot.stats import Bootstrap, Interval, bootstrap_totals, roc_auc, step_facts

FILE = "agentprocessbench_hotpotqa.jsonl.gz"
LIMIT = 2048
DEPTH = 2 / 3
"""Of the layers that are used for states. After the last layer, states are made to say the next token."""
FOLDS, INNER = 10, 5
COMPONENTS = 16
ADAPTERS = 3
ADAPTER = (
    *("--lora=8", "--max-length=512", "--epochs=1", "--head-epochs=1", "--head-learning-rate=1e-3"),
    *("--learning-rate=2e-4", "--batch-size=8", "--microbatch-tokens=1024", "--seed=0"),
)
PENALTIES = np.logspace(-6, 0, 7)
"""Inverse strengths of the ridge penalty on standardised features."""
Floats = NDArray[np.float64]


def step_states(
    model: Path, folder: Path, items: Sequence[ProblemTrace]
) -> tuple[list[NDArray[np.float32]], list[NDArray[np.int64]]]:
    """Of each run the states at its steps [S, hidden], and the messages that each was read without [S]."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(model)
    encode = partial(encode_traces, tokenizer, Encoding(max_length=LIMIT))
    trunk = None
    states, left_out = [], []
    for at, item in enumerate(items):
        path = folder / f"{item.trace.id.replace(':', '-')}.npz"
        if not path.exists():
            if trunk is None:
                trunk = AutoModel.from_pretrained(model, dtype=torch.float32).eval()
                trunk.layers = trunk.layers[: round(DEPTH * len(trunk.layers))]
            np.savez(path.with_suffix(".tmp.npz"), **_read(trunk, encode, item))
            path.with_suffix(".tmp.npz").rename(path)
            print(f"\r{at + 1} of {len(items)} runs read", end="", file=sys.stderr)
        with np.load(path) as found:
            states.append(found["states"].astype(np.float32))
            left_out.append(found["left_out"])
    return states, left_out


@torch.inference_mode()
def _read(trunk: Any, encode: Any, item: ProblemTrace) -> dict[str, NDArray[Any]]:
    (whole,) = encode([item])
    windows = windows_of(encode, item, whole, LIMIT)
    places = [
        [window.encoded.positions[step - window.start] or 0 for step in window.read] for window in windows
    ]
    found: dict[int, NDArray[np.float32]] = {}
    for output in read_states(trunk, [window.encoded.ids for window in windows], places, batch_tokens=LIMIT):
        found |= {number: hidden.float().numpy() for number, hidden in output.states.items()}
    return {
        "states": np.concatenate([found[number] for number in range(len(windows))]).astype(np.float16),
        "left_out": np.concatenate([np.full(len(window.read), window.left_out) for window in windows]),
    }


def plain_features(item: LabelledTrace) -> Floats:
    """What is known of each step without reading it, [S, 4]: place, characters, whether it is an answer, and
    characters of the observation before it."""
    rows, before = [], 0
    messages = item.trace.messages
    for number, step in enumerate(item.trace.steps):
        message = messages[step.message or 0]
        observed = messages[(step.message or 1) - 1]
        before = len(observed.content or "") if observed.role == "tool" else before
        rows.append(
            [
                np.log1p(number),
                np.log1p(len(item.trace.step_text(number))),
                float(not message.tool_calls),
                np.log1p(before),
            ]
        )
    return np.array(rows, dtype=float)


@dataclass(frozen=True, kw_only=True)
class Steps:
    """All steps of all runs, R of them."""

    targets: NDArray[np.bool_]
    fitted: NDArray[np.bool_]
    """Whose target is known and used."""
    groups: NDArray[np.int64]
    """Number of the task."""

    def __getitem__(self, rows: NDArray[np.int64]) -> Steps:
        return Steps(targets=self.targets[rows], fitted=self.fitted[rows], groups=self.groups[rows])


def cross_validated(features: Floats, steps: Steps, *, folds: int = FOLDS, components: int = 0) -> Floats:
    """Chance of the target at each row [R], from the fitted rows of other tasks."""
    scores = np.zeros(len(features))
    for train, test in GroupKFold(folds).split(features, steps.targets, steps.groups):
        model = fit(features[train], steps[train], components)
        scores[test] = model.predict_proba(features[test])[:, 1]
    return scores


def fit(features: Floats, steps: Steps, components: int = 0) -> Pipeline:
    """A logistic regression, whose penalty inner folds choose."""
    rows, known = features[steps.fitted], steps[np.flatnonzero(steps.fitted)]
    regression = LogisticRegressionCV(
        Cs=PENALTIES,
        cv=list(GroupKFold(INNER).split(rows, known.targets, known.groups)),
        scoring="neg_log_loss",
        max_iter=2000,
        l1_ratios=(0.0,),
        use_legacy_attributes=False,
    )
    parts = [PCA(components, whiten=True, random_state=0)] if components else [StandardScaler()]
    return make_pipeline(*parts, regression).fit(rows, known.targets)


def stacked(hidden: Floats, rest: Floats, steps: Steps) -> Floats:
    """Chance of the target by ``rest`` and what the states say, which other tasks were asked for each."""
    scores = np.zeros(len(hidden))
    for train, test in GroupKFold(FOLDS).split(hidden, steps.targets, steps.groups):
        known = steps[train]
        held_out = cross_validated(hidden[train], known, folds=INNER, components=COMPONENTS)
        says = fit(hidden[train], known, COMPONENTS).predict_proba(hidden[test])[:, 1]
        model = fit(np.column_stack([rest[train], held_out]), known)
        scores[test] = model.predict_proba(np.column_stack([rest[test], says]))[:, 1]
    return scores


def learn(
    items: Sequence[LabelledTrace], states: Sequence[NDArray[np.float32]], adapter: Floats | None
) -> dict[str, tuple[Floats, NDArray[np.int64]]]:
    """Scores of all steps by source, with the number of each step's task."""
    tasks = {name: at for at, name in enumerate(dict.fromkeys(item.problem.id for item in items))}
    groups = np.array([tasks[item.problem.id] for item in items for _ in item.trace.steps])
    plain = np.concatenate([plain_features(item) for item in items])
    hidden = np.concatenate(states).astype(float)
    labels = [{label.step: label.value for label in item.labels} for item in items]
    values = [
        row.get(step)
        for item, row in zip(items, labels, strict=True)
        for step in range(len(item.trace.steps))
    ]
    known = np.array([value is not None for value in values])
    good = np.array([value is None or value >= 0 for value in values])
    outcomes = np.array([item.trace.outcome is True for item in items for _ in item.trace.steps])
    ends = np.array(
        [step == len(item.trace.steps) - 1 for item in items for step in range(len(item.trace.steps))]
    )
    rules = np.array([float(entry) for item in items for entry in unbroken(item)])
    by_people = Steps(targets=good, fitted=known, groups=groups)
    by_outcome = Steps(targets=outcomes, fitted=ends, groups=groups)
    found = {
        "position": (cross_validated(plain, by_people), groups),
        "rules": (rules, groups),
        "orm": (cross_validated(hidden, by_outcome), groups),
        "prm": (cross_validated(hidden, by_people), groups),
        "prm_16": (cross_validated(hidden, by_people, components=COMPONENTS), groups),
        "fused": (stacked(hidden, np.column_stack([plain, rules]), by_people), groups),
    }
    if adapter is not None:
        together = np.column_stack([plain, rules, np.log(adapter / (1 - adapter))])
        found["adapter"] = (adapter, groups)
        found["adapter_fused"] = (cross_validated(together, by_people), groups)
    return found


def adapter_scores(model: Path, folder: Path, items: Sequence[LabelledTrace]) -> Floats:
    """Scores of all steps [R], each by an adapter that was trained on other tasks.

    Steps that do not fit into a window have the mean of their fold's scores, which says nothing of them.
    """
    tasks = {name: at for at, name in enumerate(dict.fromkeys(item.problem.id for item in items))}
    groups = [tasks[item.problem.id] for item in items]
    records: dict[str, list[float]] = {}
    for fold, (train, test) in enumerate(GroupKFold(ADAPTERS).split(items, groups=groups)):
        base = folder / f"fold-{fold}"
        for part, rows in (("train", train), ("test", test)):
            if (base / part / "labels.jsonl").exists():  # labels carry the time of reading
                continue
            some = [items[row] for row in rows]
            (base / part).mkdir(parents=True, exist_ok=True)
            write_records(base / part / "problems.jsonl", {i.problem.id: i.problem for i in some}.values())
            write_records(base / part / "traces.jsonl", [item.trace for item in some])
            write_records(base / part / "labels.jsonl", [label for item in some for label in item.labels])
        if not (base / "scores.jsonl").exists():
            data = [f"--{name}={base / 'train' / name}.jsonl" for name in ("problems", "labels")]
            data.append(f"{base / 'train' / 'traces.jsonl'}")
            surefoot("train", "prm", *data, f"--base={model}", "--windows", *ADAPTER, f"--out={base / 'prm'}")
            data = [f"{base / 'test' / 'traces.jsonl'}", f"--problems={base / 'test' / 'problems.jsonl'}"]
            surefoot("score", "-m", str(base / "prm"), *data, f"--out={base / 'scores.jsonl'}")
        some_scores = list(read_records(base / "scores.jsonl", StepScores))
        usual = np.mean(
            [score for some_score in some_scores for score in some_score.scores if score is not None]
        )
        for some_score in some_scores:
            records[some_score.trace_id] = [usual if score is None else score for score in some_score.scores]
    return np.array([score for item in items for score in records[item.trace.id]])


def surefoot(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "surefoot", *words], check=True)


def unbroken(item: LabelledTrace) -> list[bool]:
    # the rules that do not read markup: calls written as text would be a feature of one model of five
    rules = tuple(rule for rule in TOOL_RULES if rule != "call-in-text")
    labeller = VerifierLabeller(verifiers=(ToolCallVerifier(rules=rules),))
    (row,) = run_sync(labeller.label([ProblemTrace(problem=item.problem, trace=item.trace)]))
    return [label.value != -1 for label in row]


def evaluate(
    items: Sequence[LabelledTrace], scores: dict[str, tuple[Floats, NDArray[np.int64]]], draws: int
) -> AgentEvaluation:
    runs = agent_runs(items)
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for name, (of_steps, _) in scores.items():
            rest = iter(of_steps.tolist())
            records = [
                StepScores(
                    trace_id=item.trace.id, scorer=name, scores=tuple(next(rest) for _ in item.trace.steps)
                )
                for item in items
            ]
            files[name] = str(Path(folder) / f"{name}.jsonl")
            write_records(files[name], records)
        systems = open_systems(files, [], Path(folder), layout=agent_layout(runs))
        return evaluate_agent_steps(runs, systems, draws=draws)


def within_tasks(scores: Floats, wrong: Sequence[float], tasks: Sequence[int], draws: int) -> Interval:
    """AUC of wrong steps from the pairs inside a task alone, whose steps one model has scored.

    Over all pairs, scores of models that were fitted to other tasks are compared: one whose tasks have few
    wrong steps says lower chances of all, just where there are more of them.
    """
    targets, numbers = np.array(wrong), np.array(tasks)
    counts = []
    for task in np.unique(numbers):
        rows = numbers == task
        area = roc_auc(scores[rows], targets[rows])
        counts.append([area.value * area.pairs if area.pairs else 0.0, area.pairs])
    with np.errstate(invalid="ignore"):  # a draw of tasks without pairs says nothing
        (found,) = bootstrap_totals(
            [counts],
            lambda totals: totals[:, 0, :1] / totals[:, 0, 1:],
            draws=draws,
            rng=np.random.default_rng(0),
        )
    return found


def figures_of(
    items: Sequence[LabelledTrace],
    states: Sequence[NDArray[np.float32]],
    left_out: Sequence[NDArray[np.int64]],
    draws: int,
    adapter: Floats | None = None,
) -> list[dict[str, Any]]:
    scores = learn(items, states, adapter)
    found = evaluate(items, scores, draws)
    figures = []
    for score in found.scores:
        (accuracy,) = [of_subset for name, of_subset in score.subsets.items() if name != "all"][:1]
        name = score.system.replace(" ", "_")
        figures += [
            figure(f"step_{name}", 100 * accuracy.step, "%"),
            figure(f"first_error_{name}", 100 * accuracy.first_error, "%"),
            figure(f"first_error_less_floor_{name}", 100 * accuracy.first_error_less_floor, "points"),
        ]
    labels = [label for item in items for label in item.labels]
    first = np.cumsum([0, *(len(item.trace.steps) for item in items)])
    place = {item.trace.id: at for item, at in zip(items, first, strict=False)}
    rows = [place[label.trace_id] + label.step for label in labels]
    wrong = [float(label.value == -1) for label in labels]
    for name, (of_steps, groups) in scores.items():
        area = Bootstrap(draws=draws).auc(
            [-of_steps[row] for row in rows], wrong, [int(groups[row]) for row in rows]
        )
        figures.append(figure(f"auc_{name}", area, "of pairs"))
        inside = within_tasks(
            np.array([-of_steps[row] for row in rows]), wrong, [int(groups[row]) for row in rows], draws
        )
        figures.append(figure(f"auc_within_{name}", inside, "of pairs of one task"))
    facts = [fact for item in items for fact in step_facts(item.problem, item.trace)]
    task = [item.problem.id for item in items for _ in item.trace.steps]
    figures += gate_figures(
        {name: of_steps[rows] for name, (of_steps, _) in scores.items() if name != "rules"},
        [facts[row] for row in rows],
        [not bad for bad in wrong],
        [task[row] for row in rows],
        draws=draws,
    )
    without = np.concatenate(left_out)
    figures.append(
        figure("windows_steps_read_without_messages", int((without > 0).sum()), f"of {len(without)}")
    )
    return figures


def learned_figures(
    quick: bool, data: Path, model: Path, states: Path, adapters: Path | None
) -> list[dict[str, Any]]:
    """All of the above."""
    items = list(read_agent_processbench(data / FILE))
    pairs = [ProblemTrace(problem=item.problem, trace=item.trace) for item in items]
    adapter = adapter_scores(model, adapters, items) if adapters is not None else None
    return figures_of(items, *step_states(model, states, pairs), 100 if quick else 1000, adapter)
