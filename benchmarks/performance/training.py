"""Training speed against TRL's PRM trainer: useful tokens a second on the same model and traces."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer

from benchmarks.common.clocks import CLOCKS, Clock, add_clock, prepare
from benchmarks.common.figures import Figure, Figures, arguments, figure, show, write
from benchmarks.common.processes import has_trl, worker
from benchmarks.worlds.digits import TRUNK, Difficulty, generate_problems, parse_problem, worked_solution
from surefoot.formats import read_prm800k_steps
from surefoot.models import CheckpointCard, Encoding, RewardModel
from surefoot.protocols import ProblemTrace
from surefoot.records import Trace
from surefoot.segment import Line, segment_trace
from surefoot.training import (
    Example,
    StepTargets,
    TrainingConfig,
    batch_order,
    build_examples,
    tokens_read,
    train,
)

WARM = 2
"""Updates at the start that are not timed."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One run: seconds between updates, and losses."""

    times: list[float]
    losses: list[float]

    def rate(self, tokens: list[int]) -> float:
        """Useful tokens a second after the first ``WARM`` updates; ``tokens`` has one entry an update."""
        return sum(tokens[WARM:]) / (self.times[-1] - self.times[WARM - 1])


def main() -> None:
    """Measure every model, print and write."""
    options = _options()
    rival = has_trl(options.trl_python)
    figures: Figures = []
    settings: dict[str, object] = {}
    plans = [("lab trunk", TRUNK, 50, 3e-4)]
    if not options.data:
        plans += [(path.name, path, 6 if options.quick else 20, 1e-5) for path in options.model]
    for name, path, updates, rate in plans:
        # full batches only, because TRL cuts the rows itself
        made, setting = measure(name, path, updates * options.batch_size, rate, options, rival=rival)
        figures += made
        settings[name] = setting
    with tempfile.TemporaryDirectory() as folder:
        made, settings["token trees"] = measure_trees(Path(folder), options, rival=rival)
    about = {"batch_size": options.batch_size, "repeats": options.repeats, "models": settings}
    write(options, show(figures + made), clock=options.clock, **about)


def measure(
    name: str, path: Path, count: int, rate: float, options: argparse.Namespace, *, rival: bool
) -> tuple[Figures, dict[str, object]]:
    """Both orders for one model, without ``rival`` ours alone: figures, and what they rest on."""
    config = TrainingConfig(
        epochs=1, batch_size=options.batch_size, learning_rate=rate, weight_decay=0.0, warmup=0.0,
        head_epochs=0, microbatch_tokens=options.microbatch_tokens, layout="padded",
    )  # fmt: skip
    examples = lab_examples(path, count)
    ours_order = batch_order(examples, config)
    shuffled = np.random.default_rng(1).permutation(len(examples)).tolist()
    random_order = [
        shuffled[at : at + config.batch_size] for at in range(0, len(shuffled), config.batch_size)
    ]
    orders = {"ours": ours_order, "trl, our batches": ours_order, "trl": random_order}
    if not rival:
        del orders["trl, our batches"], orders["trl"]
    rates: dict[str, list[float]] = {who: [] for who in orders}
    last: dict[str, Timing] = {}
    for _ in range(options.repeats):
        for who, order in orders.items():
            if who == "ours":
                last[who] = run_ours(path, examples, config, CLOCKS[options.clock])
            else:
                last[who] = run_trl(path, examples, order, config, options)
            rates[who].append(last[who].rate(_tokens(examples, order)))
            print(f"{name}: {who} {rates[who][-1]:.0f} useful tokens/s", flush=True)
    losses = {who: np.array(timing.losses) for who, timing in last.items()}
    tail = slice(-max(1, len(losses["ours"]) // 4), None)
    setting: dict[str, object] = {
        "traces": len(examples),
        "tokens": sum(len(one.ids) for one in examples),
        "updates": len(ours_order),
        "padded_per_useful": {who: _padding(examples, order) for who, order in orders.items()},
        "tokens_per_second": rates,
        "mean_loss_of_last_quarter": {who: float(values[tail].mean()) for who, values in losses.items()},
    }
    if not rival:
        return [_figure(f"ours ({name})", rates["ours"], [])], setting
    gap = np.abs(losses["ours"] - losses["trl, our batches"]).max()
    setting["largest_difference_of_losses_on_our_batches"] = float(gap)
    figures = [
        _figure(f"vs_trl ({name})", rates["ours"], rates["trl"]),
        _figure(f"vs_trl_same_batches ({name})", rates["ours"], rates["trl, our batches"]),
    ]
    return figures, setting


TRL_ROWS = 16
"""Traces of one forward pass of rows and of TRL where traces share prefixes."""
PRM800K = "prm800k/phase1_train_plus.jsonl.gz"


def measure_trees(
    folder: Path, options: argparse.Namespace, *, rival: bool
) -> tuple[Figures, dict[str, object]]:
    """Token trees, rows and TRL on traces that share prefixes; every update has all of them, and the second
    one is timed."""
    if options.data:
        path, examples = prm800k_examples(folder, options)
    else:
        path, examples = TRUNK, lab_alternatives(TRUNK, 8 if options.quick else 24)
    examples = sorted(examples, key=lambda one: len(one.ids))[: len(examples) // TRL_ROWS * TRL_ROWS]
    steps, count = len(examples) // TRL_ROWS, len(examples)
    common = {"epochs": 2, "learning_rate": 1e-5, "weight_decay": 0.0, "warmup": 0.0, "head_epochs": 0}
    rows = TrainingConfig(**common, layout="padded", batch_size=count, gradient_accumulation_steps=steps)
    tree = TrainingConfig(**common, layout="tree", batch_size=count)
    runs: dict[str, Callable[[], Timing]] = {
        "tree": lambda: run_ours(path, examples, tree, CLOCKS[options.clock]),
        "rows": lambda: run_ours(path, examples, rows, CLOCKS[options.clock]),
    }
    if rival:
        updates = [list(range(count))] * 2
        runs["trl"] = lambda: run_trl(path, examples, updates, rows, options)
    tokens = sum(len(one.ids) for one in examples)
    rates: dict[str, list[float]] = {who: [] for who in runs}
    losses: dict[str, list[float]] = {}
    for _ in range(options.repeats):
        for who, run in runs.items():
            timing = run()
            losses[who] = timing.losses
            rates[who].append(tokens / (timing.times[1] - timing.times[0]))
            print(f"token trees: {who} {rates[who][-1]:.0f} useful tokens/s", flush=True)
    setting: dict[str, object] = {
        "data": PRM800K if options.data else "lab",
        "model": options.model[0].name if options.data else "lab trunk",
        "layers": options.layers if options.data else None,
        "traces": count,
        "tokens": tokens,
        "distinct_tokens": tokens_read(examples, "tree"),
        "losses": losses,
        "tokens_per_second": rates,
    }
    figures = [_figure("token_tree_vs_rows", rates["tree"], rates["rows"])]
    if rival:
        figures.append(_figure("token_tree_vs_trl", rates["tree"], rates["trl"]))
    return figures, setting


def prm800k_examples(folder: Path, options: argparse.Namespace) -> tuple[Path, list[Example]]:
    """The rated traces of the problems at the quartiles of size, and a checkpoint of the first layers."""
    if not options.model:
        raise SystemExit("--data needs --model, e.g. a converted SmolLM2 (benchmarks/common/smollm2.py)")
    config = AutoConfig.from_pretrained(options.model[0])
    config.num_hidden_layers = min(options.layers, config.num_hidden_layers)
    AutoModel.from_pretrained(options.model[0], config=config, dtype=torch.float32).save_pretrained(folder)
    AutoTokenizer.from_pretrained(options.model[0]).save_pretrained(folder)
    traces = list(read_prm800k_steps(options.data / PRM800K))
    characters: Counter[str] = Counter()
    for one in traces:
        characters[one.problem.id] += len(one.problem.text) + len(one.trace.text or "")
    by_size = sorted(characters, key=characters.__getitem__)
    chosen = {by_size[len(by_size) * quarter // 4] for quarter in (1, 2, 3)}
    items = [one for one in traces if one.problem.id in chosen]
    model = _model(folder, 4096)
    return folder, list(build_examples(model.tokenizer, model.card.encoding, items, StepTargets()).examples)


def lab_alternatives(path: Path, count: int) -> list[Example]:
    """Worked solutions of lab problems, and before each of their lines three wrong ones."""
    rng = np.random.default_rng(0)
    items, labels = [], []
    for problem in generate_problems(
        count, seed=11, difficulty=Difficulty(min_operations=8, max_operations=12)
    ):
        lines = worked_solution(parse_problem(problem.text)).splitlines(keepends=True)
        texts = [(len(lines), "".join(lines))]
        for at, line in enumerate(lines):
            for wrong in rng.permutation(9)[:3]:
                digit = (int(line[-2]) + 1 + int(wrong)) % 10
                texts.append((at, "".join(lines[:at]) + f"{line[:-2]}{digit}\n"))
        for first, text in texts:
            trace = segment_trace(Trace(problem_id=problem.id, text=text), Line())
            items.append(ProblemTrace(problem=problem, trace=trace))
            labels.append(first)
    return _as_examples(path, items, labels)


def lab_examples(path: Path, count: int) -> list[Example]:
    """Worked solutions of lab problems of 2 to 12 operations; half of them have a wrong digit somewhere.

    A step is good before the wrong digit and bad from it on.
    """
    rng = np.random.default_rng(0)
    items, firsts = [], []
    for problem in generate_problems(
        count, seed=11, difficulty=Difficulty(min_operations=2, max_operations=12)
    ):
        lines = worked_solution(parse_problem(problem.text)).splitlines(keepends=True)
        first = int(rng.integers(len(lines))) if rng.random() < 0.5 else len(lines)
        if first < len(lines):
            digit = (int(lines[first][-2]) + int(rng.integers(1, 10))) % 10
            lines[first] = f"{lines[first][:-2]}{digit}\n"
        trace = Trace(problem_id=problem.id, text="".join(lines))
        items.append(ProblemTrace(problem=problem, trace=segment_trace(trace, Line())))
        firsts.append(first)
    return _as_examples(path, items, firsts)


def _as_examples(path: Path, items: list[ProblemTrace], firsts: list[int]) -> list[Example]:
    """Steps are good before the first wrong one of their trace."""
    encoded = _model(path).encode(items)
    return [
        Example(
            trace_id=item.trace.id,
            ids=one.ids,
            positions=tuple(at for at in one.positions if at is not None),
            targets=tuple(float(step < first) for step, at in enumerate(one.positions) if at is not None),
        )
        for item, one, first in zip(items, encoded, firsts, strict=True)
    ]


def run_ours(
    path: Path,
    examples: list[Example],
    config: TrainingConfig,
    clock: Clock = time.perf_counter,
) -> Timing:
    """This package's loop."""
    times: list[float] = []
    with tempfile.TemporaryDirectory() as out:
        log = train(_model(path), examples, config, Path(out), progress=lambda *_: times.append(clock()))
    return Timing(times=times, losses=log.losses)


def run_trl(
    path: Path,
    examples: list[Example],
    batches: list[list[int]],
    config: TrainingConfig,
    options: argparse.Namespace,
) -> Timing:
    """TRL's trainer on the same traces in the order of ``batches``."""
    rows = [
        {
            "input_ids": list(examples[number].ids),
            "labels": _dense(examples[number]),
        }
        for batch in batches
        for number in batch
    ]
    with tempfile.TemporaryDirectory() as out:
        given = {
            "model": str(path),
            "examples": rows,
            "out": out,
            "batch_size": config.batch_size // config.gradient_accumulation_steps,
            "accumulation": config.gradient_accumulation_steps,
            "learning_rate": config.learning_rate,
            "threads": options.threads,
            "clock": options.clock,
        }
        script = Path(__file__).with_name("trl_worker.py")
        found = worker(options.trl_python, script, given, options.threads)
    return Timing(times=found["times"], losses=found["losses"])


def _model(path: Path, longest: int = 512) -> RewardModel:
    encoding = Encoding(max_length=longest)
    card = CheckpointCard(kind="prm", label_source="lab", base=path.name, encoding=encoding)
    return RewardModel.initialise(path, card)


def _dense(example: Example) -> list[int]:
    labels = [-100] * len(example.ids)
    for at, target in zip(example.positions, example.targets, strict=True):
        labels[at] = int(target)
    return labels


def _tokens(examples: list[Example], batches: list[list[int]]) -> list[int]:
    return [sum(len(examples[number].ids) for number in batch) for batch in batches]


def _padding(examples: list[Example], batches: list[list[int]]) -> float:
    padded = sum(len(batch) * max(len(examples[number].ids) for number in batch) for batch in batches)
    return padded / sum(_tokens(examples, batches))


def _figure(name: str, ours: list[float], theirs: list[float]) -> Figure:
    """Our rate, and how many times the rival's it is; ``theirs`` is empty without one."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)] if theirs else []
    bounds = {"low": min(ratios, default=None), "high": max(ratios, default=None)}
    return figure(name, median(ours), "useful tokens/s", median(ratios) if ratios else None, **bounds)


def _options() -> argparse.Namespace:
    parser = arguments(__doc__, "the lab's trunk by CPU time; 6 updates of each --model, not 20")
    parser.add_argument("--trl-python", default=sys.executable, help="interpreter that has trl 1.13")
    parser.add_argument("--model", type=Path, action="append", default=[], help="a transformers checkpoint")
    parser.add_argument("--data", type=Path, help="directory with prm800k/, for the token trees")
    parser.add_argument("--layers", type=int, help="of the model on PRM800K: 4 with --quick, else 12")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--microbatch-tokens", type=int, help="ours: most padded tokens of one forward pass")
    parser.add_argument("--repeats", type=int, default=3)
    add_clock(parser)
    parser.set_defaults(threads=1)
    options = parser.parse_args()
    options.layers = options.layers or (4 if options.quick else 12)
    prepare(options)
    return options


if __name__ == "__main__":
    main()
