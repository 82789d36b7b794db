"""Reward models on human labels: SmolLM2-135M, frozen and with an adapter, trained on PRM800K phase 1."""

from __future__ import annotations

import argparse
import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from transformers import AutoTokenizer

from benchmarks.common.figures import Figure, arguments, write
from benchmarks.prm800k import reading
from surefoot.evaluation.benchmarks import best_threshold, processbench_f1
from surefoot.formats import read_prm800k_steps, read_processbench
from surefoot.io import Run
from surefoot.models import CheckpointCard, Encoding, Lora, RewardModel, encode_traces, load_prm
from surefoot.policies import Loading
from surefoot.protocols import LabelledTrace, ProblemTrace, StepScorer
from surefoot.records import Problem, StepScores, Trace, content_id
from surefoot.stats import Interval, Resample, bootstrap_statistic, roc_auc, roc_auc_within
from surefoot.training import StepTargets, TrainingConfig, TrainingLog, build_examples, train

TRAIN_FILE = "prm800k/phase1_train_plus.jsonl.gz"
TEST_FILE = "prm800k/phase1_test.jsonl.gz"
BENCH_FILES = {"gsm8k": "processbench/gsm8k.json.gz", "math": "processbench/math.fixed.json.gz"}
SEED = 0

StepLists = list[list[float | None]]
Lengths = Callable[[Sequence[LabelledTrace]], list[int]]
"""Tokens of each trace."""
DRAWS = 1000
BASELINE = "length"

Arms = Mapping[str, StepLists]
"""Scores of every step of every trace, by scorer; the first is the one that is put forward."""
Labels = NDArray[np.int64]
AucOf = Callable[[NDArray[np.float64], Labels, Resample], float]
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
SHARD_TRACES = 32
"""Traces per file, or the traces of one problem: the most that a killed run loses."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much of each set is used; ``None`` = all of it."""

    train_problems: int | None
    test_problems: int | None
    bench_problems: int | None
    """Of each subset of ProcessBench."""
    alternatives: int | None
    """Training traces per problem in addition to its main solution."""
    longest: int | None
    """Tokens of the longest training trace."""


FULL = Size(train_problems=320, test_problems=60, bench_problems=300, alternatives=4, longest=640)
QUICK = Size(train_problems=6, test_problems=4, bench_problems=12, alternatives=2, longest=200)


@dataclass(frozen=True, kw_only=True)
class Material:
    """The traces of a run."""

    train: list[LabelledTrace]
    test: list[LabelledTrace]
    bench: dict[str, list[LabelledTrace]]
    """By subset of ProcessBench."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Unused traces of the sampled training problems, by reason."""

    @property
    def sets(self) -> dict[str, list[LabelledTrace]]:
        """What is scored, by name."""
        return {"test": self.test} | self.bench


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rated steps, one entry a label: R rows."""

    items: list[tuple[Problem, Trace, int]]
    """Problem, trace and step of each row."""
    ratings: NDArray[np.float64]
    """-1, 0 or +1, shape [R]."""
    problems: list[str]
    siblings: NDArray[np.int64]
    """Number of the prefix that the step continues, shape [R]."""


def load_material(data: Path, size: Size, lengths: Lengths) -> Material:
    """Read the files of ``data`` and draw from them. Exits if a training problem is a test problem, too."""
    sampled = first_problems(list(read_prm800k_steps(data / TRAIN_FILE)), size.train_problems)
    train, left_out = thin(sampled, size, lengths)
    test = first_problems(list(read_prm800k_steps(data / TEST_FILE)), size.test_problems)
    bench = {
        name: first_problems(list(read_processbench(data / file)), size.bench_problems)
        for name, file in BENCH_FILES.items()
    }
    for name, items in ({"test": test} | bench).items():
        if common := {i.problem.text for i in train} & {i.problem.text for i in items}:
            raise SystemExit(f"{len(common)} training problems are in {name}, too")
    return Material(train=train, test=[i for i in test if rated(i)], bench=bench, left_out=left_out)


def first_problems(items: list[LabelledTrace], count: int | None) -> list[LabelledTrace]:
    """All traces of ``count`` random problems; a larger sample contains a smaller one."""
    problems = list(dict.fromkeys(item.problem.id for item in items))
    order = np.random.default_rng(SEED).permutation(len(problems))[:count]
    chosen = {problems[index] for index in order}
    return [item for item in items if item.problem.id in chosen]


def thin(
    items: Sequence[LabelledTrace], size: Size, lengths: Lengths
) -> tuple[list[LabelledTrace], Counter[str]]:
    """Of each problem the main solution and some alternatives, and a count of the unused traces.

    The main solution is the trace with the most rated steps. Alternatives are sampled among those that are
    short enough, whatever their rating; a larger draw contains a smaller one.
    """
    left_out: Counter[str] = Counter()
    problems: dict[str, list[tuple[LabelledTrace, int]]] = {}
    for item, tokens in zip(items, lengths(items), strict=True):
        if rated(item):
            problems.setdefault(item.problem.id, []).append((item, tokens))
        else:
            left_out["without a rating"] += 1
    chosen = []
    for problem, traces in problems.items():
        main = max(range(len(traces)), key=lambda number: rated(traces[number][0]))
        longest = math.inf if size.longest is None else size.longest
        short = [number for number, (_, tokens) in enumerate(traces) if tokens <= longest]
        left_out["too long"] += len(traces) - len(short)
        others = [number for number in short if number != main]
        rng = np.random.default_rng([SEED, int(content_id("alternatives", problem), 16) % 2**32])
        sampled = rng.permutation(others)[: size.alternatives].tolist()
        left_out["further alternatives"] += len(others) - len(sampled)
        kept = {*sampled, *({main} & set(short))}
        chosen += [traces[number][0] for number in sorted(kept)]
    return chosen, left_out


def rated(item: LabelledTrace) -> int:
    """Number of rated steps."""
    return sum(label.value is not None for label in item.labels)


def rated_rows(items: Sequence[LabelledTrace]) -> Rows:
    """One row for each label that has a value."""
    rows = [
        (item, label.step, label.value) for item in items for label in item.labels if label.value is not None
    ]
    prefixes: dict[tuple[str, str, int], int] = {}
    siblings = [
        prefixes.setdefault((item.problem.id, item.trace.prefix(step), step), len(prefixes))
        for item, step, _ in rows
    ]
    return Rows(
        items=[(item.problem, item.trace, step) for item, step, _ in rows],
        ratings=np.array([value for _, _, value in rows]),
        problems=[item.problem.id for item, _, _ in rows],
        siblings=np.array(siblings),
    )


def first_bad(item: LabelledTrace) -> int:
    """Index of the first step labelled -1, or -1."""
    return next((label.step for label in item.labels if label.value == -1.0), -1)


def halves(items: Sequence[LabelledTrace]) -> NDArray[np.int64]:
    """0 or 1 for each trace, by a hash of its problem, shape [traces]."""
    return np.array([int(content_id("half", item.problem.id), 16) % 2 for item in items])


class LengthBaseline:
    """What length and position alone know: logistic regression; neutral counts as good."""

    def __init__(self, rows: Rows) -> None:
        features = [self._features(*row) for row in rows.items]
        self._model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        self._model.fit(features, rows.ratings >= 0)

    def score(self, items: Sequence[LabelledTrace]) -> StepLists:
        """Probability of a good step for every step."""
        scores: StepLists = []
        for item in items:
            features = [self._features(item.problem, item.trace, k) for k in range(len(item.trace.steps))]
            scores.append(self._model.predict_proba(features)[:, 1].tolist())
        return scores

    @staticmethod
    def _features(problem: Problem, trace: Trace, step: int) -> list[float]:
        text = trace.step_text(step)
        before = trace.steps[step].start
        lengths = [len(text), len(text.split()), before, len(problem.text)]
        return [*map(float, lengths), *(float(np.log1p(n)) for n in lengths), step, float(np.log1p(step))]


def main() -> None:
    """Load, train, score, compare, write."""
    options = _options()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(options.threads)
    if options.reading:
        train_items, test_items = (
            list(read_prm800k_steps(options.data / file)) for file in (TRAIN_FILE, TEST_FILE)
        )
        figures, setting = reading.measure(train_items, test_items, options)
        print(json.dumps({"figures": figures, "setting": setting}, indent=2))
        write(options, figures, **setting)
        return
    size = _size(options)
    with _open_run(options, size) as run:
        with run.timed("load"):
            tokenizer = AutoTokenizer.from_pretrained(options.model)
            material = load_material(
                options.data,
                size,
                lambda items: [
                    len(encode_trace.ids)
                    for encode_trace in encode_traces(tokenizer, Encoding(), _pairs(items))
                ],
            )
        logging.info("%d training traces; left out: %s", len(material.train), dict(material.left_out))
        trained = {"frozen": train_frozen(run, material.train, options.model, options.dtype)}
        if "lora" in options.train:
            trained["lora"] = train_lora(run, material.train, options.model, options.dtype)
        arms: dict[str, dict[str, StepLists]] = {}
        tokens: dict[str, dict[str, int]] = {}
        for name in sorted(options.train, reverse=True):  # lora first: the others are compared with it
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
        }
    show(figures)
    print(json.dumps(setting, indent=2))
    write(options, figures, **setting)


def train_frozen(run: Run, items: list[LabelledTrace], base: Path, dtype: str) -> dict[str, object]:
    """A head on the frozen trunk, trained unless it is there."""
    directory = run.directory / "frozen"
    if not _is_trained(directory):
        model = RewardModel.initialise(base, _card(frozen_trunk=True), loading=Loading(dtype=dtype))
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
    scorer = load_prm(run.directory / name, loading=Loading(dtype=dtype))
    scores, tokens = {}, {}
    for which, items in material.sets.items():
        scores[which], tokens[which] = score(run, f"{name}-{which}", scorer, items)
    return scores, tokens


def score(run: Run, stage: str, scorer: StepScorer, items: Sequence[LabelledTrace]) -> tuple[StepLists, int]:
    """Scores of all steps of all traces, stored in the run's journal, and the tokens read for them."""
    journal = run.journal(stage, StepScores)
    pieces = list(cut_by_problem(items, SHARD_TRACES))
    for number in journal.missing(len(pieces)):
        with run.timed(f"score {stage}"):
            journal.write(number, scorer.score_traces(_pairs(pieces[number])))
        logging.info("%s: piece %d of %d", stage, number + 1, len(pieces))
    found = {record.trace_id: record for record in journal.read()}
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
    """The directory of the run, which does not depend on ``--train``, so that a model can be added later."""
    files = {"train": TRAIN_FILE, "test": TEST_FILE, **BENCH_FILES}
    return Run.open(
        options.out,
        command="benchmarks/prm800k/run.py",
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
    parser = arguments(__doc__, "so few problems that a CPU core reads them in minutes: wide intervals")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--train", nargs="+", choices=("frozen", "lora"), default=["frozen", "lora"])
    parser.add_argument(
        "--reading",
        action="store_true",
        help="only the reading gate: a ridge head on a middle layer, three seeds, against length and "
        "position fitted on all training rows",
    )
    parser.add_argument("--layer", type=int, default=12, help="of the ridge head")
    parser.add_argument("--out", type=Path, default=Path("prm800k-run"), help="the run's directory")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument(
        "--problems",
        type=int,
        nargs=3,
        metavar=("TRAIN", "TEST", "BENCH"),
        help="problems of each set; BENCH of each subset of ProcessBench",
    )
    parser.add_argument(
        "--alternatives", type=int, help="training traces per problem besides its main solution; 0 = all"
    )
    parser.add_argument("--longest", type=int, help="tokens of the longest training trace; 0 = any length")
    parser.add_argument("--draws", type=int, default=DRAWS, help="of the bootstrap")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


def auc_figures(items: Sequence[LabelledTrace], arms: Arms, *, draws: int = DRAWS) -> list[Figure]:
    """AUC over held-out rated steps, three ways; intervals over problems.

    A step that an arm has not scored is left out for all, so that they are compared on the same steps; the
    figures count such steps.
    """
    rows = rated_rows(items)
    number = {item.trace.id: index for index, item in enumerate(items)}
    scores = {
        arm: np.array([lists[number[trace.id]][step] for _, trace, step in rows.items], dtype=float)
        for arm, lists in arms.items()
    }
    unscored = np.any([np.isnan(values) for values in scores.values()], axis=0)
    for values in scores.values():
        values[unscored] = np.nan
    not_bad, positive = np.where(rows.ratings >= 0, 1, -1), np.where(rows.ratings > 0, 1, -1)
    groups = rows.siblings.max() + 1

    def pooled(values: NDArray[np.float64], labels: Labels, draw: Resample) -> float:
        return roc_auc(values[draw.items], labels[draw.items])

    def among_siblings(values: NDArray[np.float64], labels: Labels, draw: Resample) -> float:
        group = draw.clusters * groups + rows.siblings[draw.items]
        return roc_auc_within(values[draw.items], labels[draw.items], group)

    figures = []
    for name, auc, labels in (
        ("step AUC, good or neutral against bad", pooled, not_bad),
        ("step AUC, good against neutral or bad", pooled, positive),
        ("step AUC among continuations of one prefix, good or neutral against bad", among_siblings, not_bad),
    ):

        def statistic(arm: str, draw: Resample, auc: AucOf = auc, labels: Labels = labels) -> float:
            return auc(scores[arm], labels, draw)

        figures.append(
            figure(name, "AUC", list(arms), statistic, rows.problems, draws)
            | {"steps": len(rows.items), "unscored_steps": int(unscored.sum())}
        )
    return figures


def f1_figures(
    subset: str, items: Sequence[LabelledTrace], arms: Arms, *, draws: int = DRAWS
) -> list[Figure]:
    """ProcessBench F1 of one subset, thresholds from problems that are not reported; intervals over problems.

    First on one half of the problems, with the threshold of the other; then on both halves, each with the
    other's threshold.
    """
    labels = [first_bad(item) for item in items]
    half = halves(items)
    cuts = {
        arm: (_cut(scores, labels, half == 0), _cut(scores, labels, half == 1))
        for arm, scores in arms.items()
    }
    shifted = {
        arm: [
            [None if s is None else s - cuts[arm][1 - side] for s in scores]
            for scores, side in zip(lists, half, strict=True)
        ]
        for arm, lists in arms.items()
    }
    figures = []
    for name, chosen in (
        (f"ProcessBench {subset} F1, threshold from the other half", np.flatnonzero(half == 1)),
        (f"ProcessBench {subset} F1, both halves, each with the other's threshold", np.arange(len(items))),
    ):

        def statistic(arm: str, draw: Resample, chosen: NDArray[np.intp] = chosen) -> float:
            sampled = chosen[draw.items]
            return processbench_f1([shifted[arm][i] for i in sampled], [labels[i] for i in sampled], 0.0).f1

        parts = {
            arm: dict(processbench_f1([shifted[arm][i] for i in chosen], [labels[i] for i in chosen], 0.0))
            | {"thresholds": [cuts[arm][1 - side] for side in sorted({int(half[i]) for i in chosen})]}
            for arm in arms
        }
        problems = [items[i].problem.id for i in chosen.tolist()]
        figures.append(figure(name, "F1", list(arms), statistic, problems, draws) | {"parts": parts})
    return figures


def figure(
    name: str,
    unit: str,
    arms: Sequence[str],
    statistic: Callable[[str, Resample], float],
    clusters: Sequence[Hashable],
    draws: int,
) -> Figure:
    """Each arm, each difference of two and the first arm's ratio to the baseline, with 95 % intervals.

    All arms share the samples of problems, so that the difficulty of a problem cancels.
    """

    def interval(function: Callable[[Resample], float]) -> Interval:
        return bootstrap_statistic(clusters, function, draws=draws, rng=np.random.default_rng(SEED))

    def ratio(draw: Resample) -> float:
        below = statistic(BASELINE, draw)
        return statistic(arms[0], draw) / below if below else float("nan")

    own = {arm: interval(lambda draw, arm=arm: statistic(arm, draw)) for arm in arms}  # type: ignore[misc]
    differences = {
        f"{one} - {other}": interval(
            lambda draw, one=one, other=other: statistic(one, draw) - statistic(other, draw)  # type: ignore[misc]
        )
        for one, other in combinations(arms, 2)
    }
    ratios = interval(ratio)
    return {
        "name": name,
        "value": own[arms[0]].value,
        "unit": unit,
        "ratio": ratios.value,
        "low": ratios.low,
        "high": ratios.high,
        "arms": {arm: asdict(item) for arm, item in own.items()},
        "differences": {pair: asdict(difference) for pair, difference in differences.items()},
    }


def show(figures: list[Figure]) -> None:
    """Print each scorer and each difference."""
    for figure in figures:
        print(figure["name"])
        for name, values in (figure["arms"] | figure["differences"]).items():
            print(f"    {name:18} {values['value']:6.3f} [{values['low']:.3f}, {values['high']:.3f}]")


def _cut(scores: StepLists, labels: Sequence[int], chosen: NDArray[np.bool_]) -> float:
    """The threshold fitted on the chosen traces."""
    fit = np.flatnonzero(chosen).tolist()
    return best_threshold([scores[i] for i in fit], [labels[i] for i in fit]).threshold


if __name__ == "__main__":
    main()
