"""What it costs to score the candidates of many problems: tokens through the model, and time."""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import tempfile
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from benchmarks.common.clocks import Clock, add_clock, prepare
from benchmarks.common.figures import DATA, Figure, Figures, arguments, left_out, show, times, write
from benchmarks.common.smollm2 import convert, packaged_file
from benchmarks.worlds.digits import POLICY, TRUNK, generate_problems
from surefoot.answers import AnswerChecker, Grader
from surefoot.models import CheckpointCard, EncodedTrace, Encoding, RewardModel, Scorer
from surefoot.policies import TransformersPolicy, sample_traces
from surefoot.protocols import ProblemTrace, Sampling, Segmenter
from surefoot.records import Problem, Trace
from surefoot.segment import BlankLine, Line, segment_trace
from surefoot.tree import shared_length

CANDIDATES = DATA / "bon/math500_prm_scored_pool.jsonl.gz"
OURS = "surefoot"
Scores = list[list[float]]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model and the candidates of each problem."""

    name: str
    model: RewardModel
    groups: list[list[ProblemTrace]]

    @property
    def items(self) -> list[ProblemTrace]:
        """All candidates in order."""
        return [item for group in self.groups for item in group]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One way to score, run once."""

    scores: Scores
    tokens: int
    """Through the trunk, padding included."""
    seconds: float


def padded(subject: Subject, rows: int | None, outputs: torch.Tensor) -> tuple[Scores, int]:
    """Batches of ``rows`` in the given order (``None``: one a problem); ``outputs`` [C, H] at every token."""
    encoded = subject.model.encode(subject.items)
    sizes = [len(group) for group in subject.groups]
    cuts = [sum(sizes[:end]) for end in range(len(sizes) + 1)]
    if rows:
        cuts = [*range(0, len(encoded), rows), len(encoded)]
    scores, tokens = [], 0
    for first, last in pairwise(cuts):
        batch = encoded[first:last]
        ids = pad_sequence([torch.tensor(trace.ids) for trace in batch], batch_first=True)
        mask = pad_sequence([torch.ones(len(trace.ids), dtype=torch.long) for trace in batch], True)
        hidden = subject.model.trunk(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        logits = hidden @ outputs.T  # every position, as the rivals do
        tokens += ids.numel()
        scores += [picked(subject.model, logits[row], trace) for row, trace in enumerate(batch)]
    return scores, tokens


def picked(model: RewardModel, logits: torch.Tensor, trace: EncodedTrace) -> list[float]:
    """Scores at the steps from the value that stands last among the logits."""
    at = [place for place in trace.positions if place is not None]
    return torch.sigmoid(logits[at, -1] + model.head.bias).tolist()


def per_step(subject: Subject) -> tuple[Scores, int]:
    """RLHFlow's ``prm_evaluate.py``: a conversation that grows by one step, a forward for each."""
    scores, tokens = [], 0
    for trace in subject.model.encode(subject.items):
        row = []
        for at in trace.positions:
            if at is None:
                continue
            ids = torch.tensor([trace.ids[: at + 1]])
            hidden = subject.model.trunk(input_ids=ids, use_cache=False).last_hidden_state[0, -1:]
            row += subject.model.read(hidden).tolist()
            tokens += at + 1
        scores.append(row)
    return scores, tokens


def rows_read(traces: Sequence[EncodedTrace]) -> list[tuple[int, ...]]:
    """The tokens of each trace up to its last score."""
    ends = [max((at for at in trace.positions if at is not None), default=-1) for trace in traces]
    return [tuple(trace.ids[: end + 1]) for trace, end in zip(traces, ends, strict=True)]


def sorted_rows(subject: Subject, tokens_a_batch: int = 8192) -> tuple[Scores, int]:
    """Each distinct row once, rows of similar length together, head at the steps only."""
    encoded = subject.model.encode(subject.items)
    rows = rows_read(encoded)
    order = sorted(set(rows), key=len, reverse=True)
    hidden: dict[tuple[int, ...], torch.Tensor] = {}
    tokens = 0
    while order:
        size = max(1, tokens_a_batch // len(order[0]))
        batch, order = order[:size], order[size:]
        ids = pad_sequence([torch.tensor(row) for row in batch], batch_first=True)
        mask = pad_sequence([torch.ones(len(row), dtype=torch.long) for row in batch], True)
        states = subject.model.trunk(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        hidden |= dict(zip(batch, states, strict=True))
        tokens += ids.numel()
    return [
        read_at(subject.model, hidden[row], trace) for row, trace in zip(rows, encoded, strict=True)
    ], tokens


def prompt_cached(subject: Subject, rows_a_batch: int = 16) -> tuple[Scores, int]:
    """The beginning that a problem's rows share is read once; distinct remainders sorted by length."""
    encoded = subject.model.encode(subject.items)
    rows = rows_read(encoded)
    scores: Scores = []
    tokens = first = 0
    for group in subject.groups:
        mine, traces = rows[first : first + len(group)], encoded[first : first + len(group)]
        first += len(group)
        shared = min(shared_length(mine[0], row) for row in mine)
        shared = min(shared, min(map(len, mine)) - 1)
        cache = DynamicCache(config=subject.model.trunk.config)
        prompt = subject.model.trunk(input_ids=torch.tensor([mine[0][:shared]]), past_key_values=cache)
        tokens += shared
        hidden: dict[tuple[int, ...], torch.Tensor] = {}
        order = sorted(set(mine), key=len)
        for start in range(0, len(order), rows_a_batch):
            batch = order[start : start + rows_a_batch]
            ids = pad_sequence([torch.tensor(row[shared:]) for row in batch], batch_first=True)
            ones = [torch.ones(len(row), dtype=torch.long) for row in batch]
            copy = deepcopy(cache)
            copy.batch_repeat_interleave(len(batch))
            states = subject.model.trunk(
                input_ids=ids, attention_mask=pad_sequence(ones, True), past_key_values=copy
            ).last_hidden_state
            for row, state in zip(batch, states, strict=True):
                hidden[row] = torch.cat([prompt.last_hidden_state[0], state])
            tokens += ids.numel()
        scores += [
            read_at(subject.model, hidden[row], trace) for row, trace in zip(mine, traces, strict=True)
        ]
    return scores, tokens


def read_at(model: RewardModel, hidden_th: torch.Tensor, trace: EncodedTrace) -> list[float]:
    """Scores at the steps from the states of a row."""
    return model.read(hidden_th[[place for place in trace.positions if place is not None]]).tolist()


def ours(subject: Subject, scorer: Scorer) -> tuple[Scores, int]:
    """This package."""
    records = scorer.score_traces(subject.items)
    scores = [[score for score in record.scores if score is not None] for record in records]
    return scores, sum(record.usage.verifier_tokens for record in records)


def ways(subject: Subject) -> dict[str, Callable[[], tuple[Scores, int]]]:
    """Ours and the rivals."""
    value = subject.model.head.weight
    both = torch.cat([torch.zeros_like(value), value])
    vocabulary = torch.cat([subject.model.trunk.get_input_embeddings().weight, value])
    scorer = Scorer(subject.model, name="ours")
    scorer.score_traces(subject.items[:1])  # finds out how the trunk can be read
    return {
        OURS: lambda: ours(subject, scorer),
        "padded_batch": lambda: padded(subject, 16, value),
        "search_and_learn": lambda: padded(subject, None, value),
        "search_and_learn_rlhflow": lambda: padded(subject, 8, vocabulary),
        "trl": lambda: padded(subject, 8, both),
        "sorted_rows": lambda: sorted_rows(subject),
        "prompt_cached": lambda: prompt_cached(subject),
        "per_step": lambda: per_step(subject),
    }


@torch.no_grad()
def measure(subject: Subject, repetitions: int, clock: Clock) -> dict[str, list[Run]]:
    """All in turn, again and again; the slow one, ``per_step``, once."""
    runs: dict[str, list[Run]] = {}
    for repetition in range(repetitions):
        for name, score in ways(subject).items():
            if name == "per_step" and repetition:
                continue
            start = clock()
            scores, tokens = score()
            seconds = clock() - start
            runs.setdefault(name, []).append(Run(scores=scores, tokens=tokens, seconds=seconds))
            print(
                f"  {subject.name} {repetition + 1}: {name:25} {tokens:8} tokens {seconds:8.2f} s", flush=True
            )
    return runs


def check(runs: dict[str, list[Run]]) -> float:
    """Largest difference between our scores and a rival's; ends the program if they are not equal."""
    worst = max(
        abs(score - other)
        for way in runs.values()
        for row, mine in zip(way[0].scores, runs[OURS][0].scores, strict=True)
        for score, other in zip(row, mine, strict=True)
    )
    if worst > 1e-3:
        raise SystemExit(f"scores differ by {worst:.2g}: the comparison would be void")
    return worst


@torch.no_grad()
def limit(subject: Subject, clock: Clock, rows: int = 1024, repetitions: int = 3) -> tuple[float, float]:
    """Seconds that the matrix products of the distinct tokens take, and operations a second."""
    layers = [one for one in subject.model.trunk.modules() if isinstance(one, torch.nn.Linear)]
    inputs = {one.in_features: torch.randn(rows, one.in_features) for one in layers}
    best = float("inf")
    for _ in range(repetitions):
        start = clock()
        for one in layers:
            torch.matmul(inputs[one.in_features], one.weight.T)
        best = min(best, clock() - start)
    weights = sum(one.weight.numel() for one in layers)
    speed = 2 * rows * weights / best
    config = subject.model.trunk.config
    ends = [
        (trace.ids, max((at for at in trace.positions if at is not None), default=-1))
        for trace in subject.model.encode(subject.items)
    ]
    read = [ids[: end + 1] for ids, end in ends]  # what follows the last score need not be read
    depths = [len(ids) for ids in {ids[: end + 1] for ids in read for end in range(len(ids))}]
    attention = 4 * config.hidden_size * config.num_hidden_layers * sum(depths)
    return (2 * weights * len(depths) + attention) / speed, speed


def figures(runs: dict[str, list[Run]], seconds: float, suffix: str) -> Figures:
    """The published figures of one model; ``seconds`` is the limit."""
    mine = [run.seconds for run in runs[OURS]]
    found = []
    for name, rival in runs.items():
        if name == OURS:
            continue
        found.append(compared(f"vs_{name}{suffix}", mine, rival))
        tokens = rival[0].tokens / runs[OURS][0].tokens
        found.append(times(f"tokens_vs_{name}{suffix}", [tokens]))
    strongest = min(
        (name for name in runs if name != OURS), key=lambda name: min(run.seconds for run in runs[name])
    )
    found.append(compared(f"vs_strongest_rival{suffix}", mine, runs[strongest]) | {"note": strongest})
    shares = [seconds / second for second in mine]
    found.append(times(f"vs_distinct_token_limit{suffix}", shares, seconds / min(mine)))
    return found


def compared(name: str, mine: Sequence[float], rival: Sequence[Run]) -> Figure:
    """The rival's best time by ours, and the range over the repetitions."""
    theirs = [run.seconds for run in rival]
    ratios = [b / a for a, b in zip(mine, theirs, strict=False)]
    return times(name, ratios, min(theirs) / min(mine))


def reward_model(base: Path, length: int) -> RewardModel:
    """A random head on a trunk: what it says does not matter here, but scores must differ."""
    card = CheckpointCard(
        kind="prm", encoding=Encoding(max_length=length), label_source="none", base=base.name
    )
    model = RewardModel.initialise(base, card)
    torch.manual_seed(0)
    torch.nn.init.normal_(model.head.weight, std=0.02)
    return model.eval()


def lab_groups(problems: int, candidates: int) -> list[list[ProblemTrace]]:
    """Traces of the lab's policy."""
    made = generate_problems(problems, seed=11)
    policy = TransformersPolicy.from_pretrained(POLICY)
    with AnswerChecker("exact") as checker:
        grader = Grader(checker=checker, styles=("phrase",))
        sampled = asyncio.run(
            sample_traces(
                policy,
                made,
                n=candidates,
                seed=0,
                segmenter=Line(),
                grader=grader,
                sampling=Sampling(max_tokens=96),
            )
        )
    return [
        [ProblemTrace(problem=problem, trace=trace) for trace in traces if trace.steps]
        for problem, traces in zip(made, sampled, strict=True)
    ]


def real_groups(file: Path, problems: int, candidates: int, steps: int = 1) -> list[list[ProblemTrace]]:
    """First candidates of the first problems of 400 characters that have so many of ``steps`` steps."""
    groups: list[list[ProblemTrace]] = []
    segmenter: Segmenter = BlankLine()
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            if len(row["problem"]) > 400:  # a long statement would leave no room for steps
                continue
            problem = Problem(text=row["problem"])
            texts = [one["text"] for one in row["candidates"]]
            traces = [
                segment_trace(Trace(problem_id=problem.id, text=text, sample=number), segmenter)
                for number, text in enumerate(texts)
                if text.strip()
            ]
            kept = [trace for trace in traces if len(trace.steps) >= steps][:candidates]
            if len(kept) == candidates:
                groups.append([ProblemTrace(problem=problem, trace=trace) for trace in kept])
            if len(groups) == problems:
                break
    return groups


def real_base(given: Path | None) -> Path | None:
    """Directory of the real model; ``None`` (and a word why) if there is none."""
    if given:
        return given
    folder = Path(tempfile.gettempdir()) / "surefoot-smollm2"
    if not (folder / "tokenizer.json").is_file():
        try:
            convert(packaged_file(), folder)
        except (SystemExit, ImportError) as error:
            left_out("the real model", str(error))
            return None
    return folder


def wanted_base(options: argparse.Namespace) -> Path | None:
    """As :func:`real_base`, but a quick run measures the real model only where ``--model`` names it."""
    if options.quick and not options.model:
        left_out("the real model", "give --model DIR (python -m benchmarks.common.smollm2 DIR)")
        return None
    return real_base(options.model)


def subjects(options: argparse.Namespace) -> list[Subject]:
    """The tiny model, and the real one if there is one."""
    found = []
    if options.only != "real":
        lab = lab_groups(64, 16)
        found.append(Subject(name="tiny", model=reward_model(TRUNK, 256), groups=lab))
    if options.only != "tiny" and (base := wanted_base(options)):
        count, each = (1, 4) if options.quick else (options.problems, options.each)
        has = options.candidates.is_file()
        groups = real_groups(options.candidates, count, each) if has else lab_groups(count, each)
        found.insert(0, Subject(name="real", model=reward_model(base, options.max_length), groups=groups))
    return found


def parse(description: str | None) -> argparse.ArgumentParser:
    """Options that the scoring benchmarks share."""
    parser = arguments(
        description, "the tiny model alone, by CPU time on one thread; a little of the real one by --model"
    )
    parser.add_argument("--model", type=Path, help="checkpoint directory of the real model")
    parser.add_argument("--candidates", type=Path, default=CANDIDATES, help="rows of problems and candidates")
    parser.add_argument("--max-length", type=int, default=2048, help="tokens of a real trace; longer is cut")
    parser.add_argument("--only", choices=["real", "tiny"], help="leave the other model out")
    add_clock(parser)
    parser.add_argument("--repetitions", type=int, default=3)
    return parser


def main() -> None:
    """Command line."""
    parser = parse(__doc__)
    parser.add_argument("--problems", type=int, default=2, help="of the real model; 64 take hours on a CPU")
    parser.add_argument("--each", type=int, default=8, help="candidates a problem for the real model")
    options = parser.parse_args()
    clock = prepare(options)
    found: Figures = []
    about: dict[str, object] = {}
    tested = subjects(options)
    for subject in tested:
        runs = measure(subject, options.repetitions, clock)
        seconds, speed = limit(subject, clock)
        suffix = "" if subject is tested[0] else f"_{subject.name}"
        found += show(figures(runs, seconds, suffix))
        about[subject.name] = {
            "figures": f"with suffix {suffix}" if suffix else "without suffix",
            "problems": len(subject.groups),
            "candidates": len(subject.items),
            "max_length": subject.model.card.encoding.max_length,
            "distinct_tokens": runs[OURS][0].tokens,
            "matmul_gflops": round(speed / 1e9, 1),
            "limit_seconds": round(seconds, 3),
            "seconds": {name: round(min(run.seconds for run in of), 3) for name, of in runs.items()},
            "largest_score_difference": check(runs),
        }
    note = "the real model reads fewer candidates than 64 x 16: on a CPU they would take hours"
    write(options, found, **about, clock=options.clock, scaled_down=note)


if __name__ == "__main__":
    main()
