"""What one GPU does: numerics first, then scoring, a beam, generation and training, on random weights."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, Qwen2Config

from benchmarks.common.figures import ROOT, Figures, arguments, figure, left_out, show, write
from benchmarks.common.processes import free_port
from benchmarks.worlds.digits import POLICY
from surefoot import segment_trace
from surefoot.models import CheckpointCard, EncodedTrace, Encoding, IncrementalScorer, RewardModel, Scorer
from surefoot.policies import TransformersPolicy
from surefoot.protocols import ProblemTrace, SampleRequest, Sampling
from surefoot.records import Problem, Trace
from surefoot.segment import Line
from surefoot.training import Example, TrainingConfig, train


def qwen2(vocabulary: int, hidden: int, layers: int, heads: int, kv_heads: int, wide: int) -> dict[str, Any]:
    """Of a Qwen2 model; small ones share the weights of embeddings and head."""
    return {
        **{"vocab_size": vocabulary, "hidden_size": hidden, "num_hidden_layers": layers},
        **{"num_attention_heads": heads, "num_key_value_heads": kv_heads, "intermediate_size": wide},
        "tie_word_embeddings": hidden < 3584,
    }


SHAPES = {
    "small": qwen2(600, 64, 2, 4, 2, 128),
    "1.5B": qwen2(151_936, 1536, 28, 12, 2, 8960),
    "7B": qwen2(152_064, 3584, 28, 28, 4, 18_944),
}
"""Of Qwen2.5, from the configurations of the published models."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is done."""

    candidates: int = 64
    tokens: int = 4096
    prompt: int = 300
    steps: int = 64
    beams: int = 16
    rounds: int = 10
    samples: int = 64
    written: int = 256
    traces: int = 48
    trained: int = 1024
    batch_tokens: int = 16_384
    repetitions: int = 2


SMALL = Sizes(
    candidates=6,
    tokens=120,
    prompt=30,
    steps=6,
    beams=3,
    rounds=3,
    samples=4,
    written=8,
    traces=8,
    trained=40,
    batch_tokens=512,
    repetitions=1,
)


@dataclass
class Report:
    """The figures, printed as they are made."""

    figures: Figures = field(default_factory=list)

    def add(self, name: str, values: Sequence[float], unit: str, *, ratio: float | None = None) -> None:
        """The highest of some measurements, or the ratio of the best of each side; and their range."""
        low, high = min(values), max(values)
        value = high if ratio is None else ratio
        self.figures += show([figure(name, value, unit, ratio, low=low, high=high)])

    def memory(self, name: str, device: torch.device) -> None:
        """The most memory since :func:`forget_memory`, where it is counted."""
        if device.type == "cuda":
            self.add(name, [torch.cuda.max_memory_allocated() / 1e9], "GB")


def forget_memory(device: torch.device) -> None:
    """Count the most memory from here on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()


class Numbers:
    """A :class:`surefoot.models.scorer.StepModel` that reads token ids made beforehand, by trace."""

    def __init__(self, trunk: PreTrainedModel, encoded: dict[str, EncodedTrace]) -> None:
        self.trunk, self.encoded = trunk, encoded
        self.tokenizer = AutoTokenizer.from_pretrained(POLICY)
        self.card = CheckpointCard(kind="prm", encoding=Encoding(), label_source="none", base="random")
        generator = torch.Generator().manual_seed(0)
        self._head_h = torch.randn(trunk.config.hidden_size, generator=generator).to(trunk.device)

    def encode(self, items: Sequence[ProblemTrace]) -> list[EncodedTrace]:
        """The ids of each trace."""
        return [self.encoded[item.trace.id] for item in items]

    def read(self, hidden_sh: torch.Tensor) -> torch.Tensor:
        """A random linear head."""
        return hidden_sh.float() @ self._head_h


def random_model(auto: type, shape: str, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Random weights, made on the device."""
    torch.manual_seed(0)
    config = Qwen2Config(**SHAPES[shape], max_position_embeddings=32_768, rope_parameters=None)
    with torch.device(device):
        return auto.from_config(config, dtype=dtype).eval()


def candidates(sizes: Sizes, vocabulary: int) -> tuple[list[ProblemTrace], dict[str, EncodedTrace]]:
    """Traces with a shared prompt; every other one leaves the one before it at a random place."""
    generator = torch.Generator().manual_seed(1)

    def some(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(2, vocabulary, (count,), generator=generator).tolist())

    problem = Problem(text="random numbers")
    prompt, before = some(sizes.prompt), ()
    items, encoded = [], {}
    for number in range(sizes.candidates):
        kept = prompt
        if number % 2:
            kept = before[: int(torch.randint(sizes.prompt, sizes.tokens, (1,), generator=generator))]
        ids = before = kept + some(sizes.tokens - len(kept))
        text = "".join(f"line {step}\n" for step in range(sizes.steps))
        trace = segment_trace(Trace(problem_id=problem.id, text=text, sample=number), Line())
        each = (sizes.tokens - sizes.prompt) // sizes.steps
        positions = tuple(sizes.prompt + each * (step + 1) - 1 for step in range(sizes.steps))
        items.append(ProblemTrace(problem=problem, trace=trace))
        encoded[trace.id] = EncodedTrace(ids=ids, positions=positions)
    return items, encoded


def timed(
    device: torch.device, work: Callable[[], object], repetitions: int, *, warm: bool = True
) -> list[float]:
    """Seconds of each repetition, after one that is not counted."""
    seconds = []
    for number in range(repetitions + warm):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if number or not warm:
            seconds.append(time.perf_counter() - start)
    return seconds


def linear_weights(model: PreTrainedModel) -> int:
    """Weights of the matrix products of one token, without the head."""
    layers = model.base_model.layers.modules()
    return sum(one.weight.numel() for one in layers if isinstance(one, torch.nn.Linear))


def operations(model: PreTrainedModel, depths: Sequence[int]) -> float:
    """Of a forward pass over tokens at these depths."""
    config = model.config
    attention = 4 * config.hidden_size * config.num_hidden_layers * sum(depths)
    return 2 * linear_weights(model) * len(depths) + attention


@torch.no_grad()
def matmul_speed(model: PreTrainedModel, rows: int, repetitions: int) -> list[float]:
    """Operations a second of the products of one layer, in the model's type."""
    layers = [one for one in model.base_model.layers[0].modules() if isinstance(one, torch.nn.Linear)]
    inputs = [torch.randn(rows, one.in_features, device=model.device, dtype=model.dtype) for one in layers]

    def work() -> None:
        for _ in range(10):
            for one, given in zip(layers, inputs, strict=True):
                torch.matmul(given, one.weight.T)

    count = 20 * rows * sum(one.weight.numel() for one in layers)
    return [count / seconds for seconds in timed(model.device, work, repetitions + 1)]


@torch.no_grad()
def check_numerics(shape: str, sizes: Sizes, device: torch.device, report: Report) -> None:
    """Scores of trees against plain float32; raises ``SystemExit`` for one that is too far off."""
    few = replace(sizes, candidates=4, tokens=min(sizes.tokens, 1024))
    trunk = random_model(AutoModel, shape, torch.float32, device)
    items, encoded = candidates(few, trunk.config.vocab_size)

    def plain() -> torch.Tensor:
        model = Numbers(trunk, encoded)
        rows = []
        for trace in model.encode(items):
            ids = torch.tensor([trace.ids], device=device)
            states = trunk(input_ids=ids, use_cache=False).last_hidden_state
            rows.append(model.read(states[0, list(trace.positions)]))
        return torch.cat(rows).cpu()

    def by_tree() -> torch.Tensor:
        scorer = Scorer(Numbers(trunk, encoded), name="tree", batch_tokens=few.batch_tokens)
        records = scorer.score_traces(items)
        return torch.tensor([score for record in records for score in record.scores])

    exact = plain()
    for dtype, most in ((torch.float32, 1e-3), (torch.bfloat16, 0.1)):
        trunk.to(dtype)
        name = str(dtype).removeprefix("torch.")
        found = {"plain": plain(), "tree_sdpa": by_tree()}
        for way, scores in found.items():
            apart = float((scores - exact).norm() / exact.norm())
            report.add(f"numerics_{way}_{name}_{shape}", [apart], "relative difference")
            if not apart < most:
                raise SystemExit(f"{way} in {name}: scores differ by {apart:.2g}, more than {most:g}")


@torch.no_grad()
def measure_scoring(trunk: PreTrainedModel, shape: str, sizes: Sizes, speed: float, report: Report) -> None:
    """Trees, a padded batch, and a forward for each step."""
    device = trunk.device
    items, encoded = candidates(sizes, trunk.config.vocab_size)
    traces = list(encoded.values())
    ends = [trace.ids[: max(trace.positions) + 1] for trace in traces]
    distinct, before = [], ()
    for ids in sorted(ends):
        pairs = enumerate(zip(before, ids, strict=False))
        common = next((at for at, (a, b) in pairs if a != b), min(len(before), len(ids)))
        distinct += range(common + 1, len(ids) + 1)
        before = ids
    count = operations(trunk, distinct)
    rows = max(1, sizes.batch_tokens // sizes.tokens)
    scorer = Scorer(Numbers(trunk, encoded), name="tree", batch_tokens=sizes.batch_tokens)
    forget_memory(device)
    seconds = timed(device, lambda: scorer.score_traces(items), sizes.repetitions)
    report.add(f"scoring_sdpa_tokens_{shape}", [len(distinct) / one for one in seconds], "distinct tokens/s")
    report.add(f"scoring_sdpa_share_{shape}", [count / one / speed for one in seconds], "of matmul")
    report.memory(f"scoring_sdpa_memory_{shape}", device)
    ours = min(seconds)

    def padded() -> None:
        for first in range(0, len(ends), rows):
            batch = [torch.tensor(ids) for ids in ends[first : first + rows]]
            ids_bt = pad_sequence(batch, batch_first=True).to(device)
            mask_bt = pad_sequence([torch.ones_like(ids) for ids in batch], batch_first=True).to(device)
            trunk(input_ids=ids_bt, attention_mask=mask_bt, use_cache=False)

    forget_memory(device)
    seconds = timed(device, padded, 1, warm=device.type == "cuda")
    report.add(
        f"scoring_vs_padded_{shape}", [one / ours for one in seconds], "times", ratio=min(seconds) / ours
    )
    report.memory(f"scoring_padded_memory_{shape}", device)

    def per_step() -> None:
        for at in traces[0].positions:
            trunk(input_ids=torch.tensor([traces[0].ids[: at + 1]], device=device), use_cache=False)

    seconds = [one * len(traces) for one in timed(device, per_step, 1, warm=False)]
    report.add(
        f"scoring_vs_per_step_{shape}", [one / ours for one in seconds], "times", ratio=min(seconds) / ours
    )


@torch.no_grad()
def measure_beam(trunk: PreTrainedModel, shape: str, sizes: Sizes, report: Report) -> None:
    """Beams that grow by a step a round, scored after each."""
    device = trunk.device
    items, encoded = candidates(replace(sizes, candidates=sizes.beams), trunk.config.vocab_size)
    rounds = []
    for depth in range(1, sizes.rounds + 1):
        cut = {
            key: EncodedTrace(ids=one.ids[: one.positions[depth - 1] + 1], positions=one.positions[:depth])
            for key, one in encoded.items()
        }
        rounds.append(cut)

    def search(make: Callable[[Numbers], Scorer]) -> None:
        model = Numbers(trunk, rounds[0])
        scorer = make(model)
        for cut in rounds:
            model.encoded = cut
            scorer.score_traces(items)

    def padded() -> None:
        for cut in rounds:
            batch = [torch.tensor(one.ids) for one in cut.values()]
            ids_bt = pad_sequence(batch, batch_first=True).to(device)
            trunk(input_ids=ids_bt, attention_mask=torch.ones_like(ids_bt), use_cache=False)

    incremental = timed(
        device, lambda: search(lambda model: IncrementalScorer(model, name="beam")), sizes.repetitions
    )
    again = timed(device, lambda: search(lambda model: Scorer(model, name="tree")), sizes.repetitions)
    whole = timed(device, padded, sizes.repetitions)
    for name, rival in (("padded", whole), ("shared_prefix", again)):
        ratios = [b / a for a, b in zip(incremental, rival, strict=True)]
        report.add(f"beam_vs_{name}_{shape}", ratios, "times", ratio=min(rival) / min(incremental))


def measure_generation(shape: str, sizes: Sizes, device: torch.device, report: Report) -> None:
    """Tokens a second of one prompt's samples; no sample ends early."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = random_model(AutoModelForCausalLM, shape, dtype, device)
    model.generation_config.eos_token_id = []
    policy = TransformersPolicy(model, AutoTokenizer.from_pretrained(POLICY), name="random")
    for name, top_p in (("", 1.0), ("_top_p", 0.95)):
        sampling = Sampling(max_tokens=sizes.written, top_p=top_p)
        request = SampleRequest(prompt="1" * sizes.prompt, n=sizes.samples, sampling=sampling)
        forget_memory(device)
        seconds = timed(
            device, lambda request=request: asyncio.run(policy.sample([request])), sizes.repetitions
        )
        tokens = sizes.samples * sizes.written
        report.add(f"generation{name}_{shape}", [tokens / one for one in seconds], "tokens/s")
        report.memory(f"generation{name}_memory_{shape}", device)


def training_set(sizes: Sizes, vocabulary: int) -> list[Example]:
    """Random traces of half to all of ``trained`` tokens, a label every 32 tokens."""
    generator = torch.Generator().manual_seed(2)
    examples = []
    for number in range(sizes.traces):
        length = int(torch.randint(sizes.trained // 2, sizes.trained + 1, (1,), generator=generator))
        ids = tuple(torch.randint(2, vocabulary, (length,), generator=generator).tolist())
        positions = tuple(range(min(31, length - 1), length, 32))
        targets = tuple(float((number + at) % 2) for at in range(len(positions)))
        examples.append(Example(trace_id=str(number), ids=ids, positions=positions, targets=targets))
    return examples


def tree_set(sizes: Sizes, vocabulary: int) -> list[Example]:
    """Random traces of ``trained`` tokens; eight in a row share all but their last eighth, as rated
    alternatives of one prefix do."""
    generator = torch.Generator().manual_seed(3)
    examples = []
    own = max(1, sizes.trained // 8)
    for number in range(sizes.traces):
        if number % 8 == 0:
            stem = torch.randint(2, vocabulary, (sizes.trained - own,), generator=generator).tolist()
        ids = (*stem, *torch.randint(2, vocabulary, (own,), generator=generator).tolist())
        target = (float(number % 2),)
        examples.append(Example(trace_id=str(number), ids=ids, positions=(len(ids) - 1,), targets=target))
    return examples


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A short training; its first update does not count for tokens and seconds."""

    losses: list[float]
    seconds: float
    tokens: int
    weights: int


def trained(shape: str, sizes: Sizes, device: torch.device, layout: str, *, trees: bool = False) -> Trained:
    """Train a PRM with a random head; with ``trees`` on all traces of :func:`tree_set` in each update."""
    trunk = random_model(AutoModel, shape, torch.float32, device)
    card = CheckpointCard(kind="prm", encoding=Encoding(), label_source="none", base="random")
    model = RewardModel(trunk, AutoTokenizer.from_pretrained(POLICY), card)
    torch.nn.init.normal_(model.head.weight, std=0.02)
    config = TrainingConfig(
        epochs=4 if trees else 1,
        batch_size=sizes.traces if trees else max(1, sizes.traces // 4),
        microbatch_tokens=sizes.batch_tokens,
        head_epochs=0,
        layout=layout,
        bf16=device.type == "cuda",
        gradient_checkpointing=device.type == "cuda",
        learning_rate=1e-5,
    )
    examples = (tree_set if trees else training_set)(sizes, trunk.config.vocab_size)
    weights = linear_weights(trunk)
    times: list[float] = []

    def note(_done: int, _total: int, _loss: float) -> None:
        times.append(time.perf_counter())  # the loss has come from the device

    with tempfile.TemporaryDirectory() as folder:
        log = train(model, examples, config, Path(folder), progress=note)
    share = (len(times) - 1) / len(times)
    return Trained(
        losses=log.losses,
        seconds=times[-1] - times[0],
        tokens=int(log.tokens * share),
        weights=weights,
    )


def measure_training(
    shape: str, sizes: Sizes, speed: float, device: torch.device, report: Report
) -> list[float]:
    """Packed rows against padded ones, then token trees (FlexAttention on CUDA) against padded rows of the
    same traces; returns the losses of the packed."""
    found = {}
    for layout in ("packed", "padded"):
        forget_memory(device)
        done = found[layout] = trained(shape, sizes, device, layout)
        rate = done.tokens / done.seconds
        report.add(f"training_{layout}_{shape}", [rate], "tokens/s")
        report.add(f"training_{layout}_share_{shape}", [6 * done.weights * rate / speed], "of matmul")
        report.memory(f"training_{layout}_memory_{shape}", device)
    ratio = found["padded"].seconds / found["packed"].seconds
    report.add(f"training_vs_padded_{shape}", [ratio], "times", ratio=ratio)
    report.add(f"training_layouts_apart_{shape}", [apart(*(one.losses for one in found.values()))], "nats")
    trees = {layout: trained(shape, sizes, device, layout, trees=True) for layout in ("tree", "padded")}
    ratio = trees["padded"].seconds / trees["tree"].seconds
    report.add(f"training_tree_vs_rows_{shape}", [ratio], "times", ratio=ratio)
    report.add(f"training_tree_apart_{shape}", [apart(*(one.losses for one in trees.values()))], "nats")
    return found["packed"].losses


def apart(losses: Sequence[float], others: Sequence[float]) -> float:
    """Largest difference."""
    return max(abs(a - b) for a, b in zip(losses, others, strict=True))


def ddp_gap(shape: str, sizes: Sizes, device: torch.device) -> float:
    """Largest difference of a gradient with and without DistributedDataParallel; run as a worker."""
    trunk = random_model(AutoModel, shape, torch.float32, device)
    card = CheckpointCard(kind="prm", encoding=Encoding(), label_source="none", base="random")
    model = RewardModel(trunk, AutoTokenizer.from_pretrained(POLICY), card)
    torch.nn.init.normal_(model.head.weight, std=0.02)
    examples = training_set(sizes, trunk.config.vocab_size)[:4]
    lengths = tuple(len(one.ids) for one in examples)
    ids = torch.tensor([[token for one in examples for token in one.ids]], device=device)
    positions = torch.cat([torch.arange(length) for length in lengths])[None].to(device)
    at = torch.tensor(lengths, device=device).cumsum(0) - 1
    gradients = []
    for module in (model, torch.nn.parallel.DistributedDataParallel(model)):
        model.zero_grad()
        module(ids, None, torch.zeros_like(at), at, position_ids=positions).sum().backward()
        gradients.append(torch.cat([one.grad.flatten() for one in model.parameters()]))
    return float((gradients[0] - gradients[1]).norm() / gradients[0].norm())


def worker(shape: str, sizes: Sizes, device: torch.device) -> None:
    """One process in a group of one; its results are the last line of its output."""
    # one group for both: a second one at the same address can meet the store of the first, and wait for ever
    torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    found = {"ddp": ddp_gap(shape, sizes, device), "fsdp2": None}
    if find_spec("accelerate"):
        os.environ |= {
            "ACCELERATE_USE_FSDP": "true",
            "FSDP_VERSION": "2",
            "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
            "FSDP_TRANSFORMER_CLS_TO_WRAP": "Qwen2DecoderLayer",
        }
        found["fsdp2"] = trained(shape, sizes, device, "packed").losses  # ends the group
    else:
        torch.distributed.destroy_process_group()
    print(json.dumps(found))


def measure_groups(shape: str, losses: Sequence[float], device: torch.device, report: Report) -> None:
    """DDP and FSDP2 in a group of one process; ``losses`` are those without a group."""
    group = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    environment = os.environ | group | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    if device.type == "cpu":
        environment["ACCELERATE_USE_CPU"] = "true"
    command = [sys.executable, "-m", "benchmarks.performance.gpu", "--worker", "--sizes", shape]
    if shape == "small":
        command.append("--quick")
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if ended.returncode:
        raise SystemExit(f"DDP or FSDP2: {ended.stderr[-2000:]}")
    found = json.loads(ended.stdout.strip().splitlines()[-1])
    report.add(f"ddp_gradient_apart_{shape}", [found["ddp"]], "relative difference")
    if found["fsdp2"] is None:
        left_out("fsdp2", "pip install accelerate")
    else:
        report.add(f"fsdp2_losses_apart_{shape}", [apart(found["fsdp2"], losses)], "nats")


def setting(device: torch.device) -> dict[str, object]:
    """What the figures depend on."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    about: dict[str, object] = {"commit": commit.stdout.strip() or None, "small": device.type == "cpu"}
    if device.type == "cuda":
        about |= {"device": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
        about |= {"tf32": torch.backends.cuda.matmul.allow_tf32}
    return about


def main() -> None:
    """Command line."""
    parser = arguments(__doc__, "tiny shapes on the CPU: the default without CUDA")
    parser.add_argument("--sizes", default="1.5B,7B", help="of these, the first is trained as well")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    small = options.quick or not torch.cuda.is_available()
    device = torch.device("cpu" if small else "cuda")
    if small:
        torch.set_num_threads(1)
    sizes, shapes = (SMALL, ["small"]) if small else (Sizes(), options.sizes.split(","))
    if options.worker:
        worker(shapes[0], sizes, device)
        return
    if small:
        print("tiny shapes on the CPU: this checks the program, and no figure is worth quoting", flush=True)
    start, report = time.perf_counter(), Report()
    speed = 1.0
    check_numerics(shapes[0], sizes, device, report)
    for shape in shapes:
        trunk = random_model(AutoModel, shape, torch.float32 if small else torch.bfloat16, device)
        speeds = matmul_speed(trunk, 64 if small else 8192, sizes.repetitions)
        speed_here = max(speeds)
        report.add(f"matmul_{shape}", [one / 1e12 for one in speeds], "TFLOP/s")
        speed = speed_here if shape == shapes[0] else speed
        measure_scoring(trunk, shape, sizes, speed_here, report)
        measure_beam(trunk, shape, sizes, report)
        del trunk
        free_memory(device)
        measure_generation(shape, sizes, device, report)
        free_memory(device)
    losses = measure_training(shapes[0], sizes, speed, device, report)
    free_memory(device)  # the group's process has its own
    measure_groups(shapes[0], losses, device, report)
    about = setting(device) | {"seconds": round(time.perf_counter() - start, 1)}
    print(json.dumps(about))
    write(options, report.figures, **about)


def free_memory(device: torch.device) -> None:
    """Give back what is cached."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
