"""How labelling, training and reading scale: one function a figure."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from benchmarks.common.figures import Figures, arguments, figure, left_out, measure, over_rounds
from benchmarks.common.processes import started
from benchmarks.scale import choose as choosing
from benchmarks.scale import growth as growth_of
from benchmarks.scale import workers
from surefoot import Problem, Trace
from surefoot.io import write_records
from surefoot.policies import OpenAIPolicy
from surefoot.protocols import SampleRequest
from surefoot.segment import Line, segment_trace

SLOTS = 64
STEPS = 10
TRACES = 4
"""Per problem."""
ORDERS = ("every", "until-error", "bisect")


@dataclass(frozen=True, kw_only=True)
class SimulatedServer:
    """A server in a process of its own."""

    port: int

    @property
    def url(self) -> str:
        """As ``--base-url`` takes it."""
        return f"http://127.0.0.1:{self.port}/v1"

    def get(self, path: str) -> Any:
        """What it says of itself."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as reply:
            return json.loads(reply.read())


@contextmanager
def simulated(count: int, mean_s: float) -> Iterator[list[SimulatedServer]]:
    """Servers that run as long as the block."""
    given = [f"--slots={SLOTS}", f"--mean-s={mean_s}"]
    with ExitStack() as stack:
        yield [
            SimulatedServer(
                port=int(stack.enter_context(started("benchmarks.scale.simulated_server", *given))[1])
            )
            for _ in range(count)
        ]


def write_traces(folder: Path, problems: int) -> None:
    """Wrong solutions of ``STEPS`` steps, each with its first error anywhere."""
    rng = random.Random(0)
    made = [Problem(text=f"problem {number}", answer="42") for number in range(problems)]
    traces = []
    for problem in made:
        for _ in range(TRACES):
            error = rng.randrange(STEPS)
            lines = [
                f"step {step} {'wrong ' * (step >= error)}{rng.randrange(10**6)}\n" for step in range(STEPS)
            ]
            text = "".join(lines) + "The answer is 41."
            trace = Trace(problem_id=problem.id, text=text, outcome=False, finish_reason="stop")
            traces.append(segment_trace(trace, Line()))
    write_records(folder / "problems.jsonl", made)
    write_records(folder / "traces.jsonl", traces)


def label(folder: Path, server: SimulatedServer, order: str) -> None:
    """Label all traces by the command."""
    out = folder / f"labels-{len(list(folder.iterdir()))}.jsonl"
    workers.surefoot(
        *("label", str(folder / "traces.jsonl"), f"mc:order={order},estimate=hard"),
        *("--problems", str(folder / "problems.jsonl"), "--out", str(out), "--policy", "simulated"),
        f"--base-url={server.url}",
        *("--dialect", "vllm", "--concurrency", str(SLOTS)),
        *("--extract", "phrase", "--equality", "exact"),
    )


def server_occupancy(options: argparse.Namespace) -> Figures:
    """Busy share of the slots of one server, of the worst order and of each."""
    shares: dict[str, float] = {}
    calls, cpu_s = 0, 0.0
    for order in ORDERS:
        with tempfile.TemporaryDirectory() as name, simulated(1, 0.15 if options.quick else 0.4) as [server]:
            write_traces(Path(name), problems=100 if order == "every" else 250)
            before = _children_cpu_s()
            label(Path(name), server, order)
            cpu_s += _children_cpu_s() - before
            load = server.get("/load")
            shares[order] = load["busy_s"] / SLOTS / load["elapsed_s"]
            calls += sum(load["answered"].values())
            print(f"{order}: {shares[order]:.1%} busy in {load['elapsed_s']:.0f} s")
    return [
        figure("server_occupancy", min(shares.values()), "share"),
        *(figure(f"server_occupancy_{order}", share, "share") for order, share in shares.items()),
        figure("label_mc_cpu_per_call", 1000 * cpu_s / calls, "ms with start and grading"),
    ]


def client_calls_per_cpu_second(options: argparse.Namespace) -> Figures:
    """Ours against the official client, in turns."""
    count, rounds = (1500, 2) if options.quick else (4000, 5)
    with simulated(1, 0.01) as [server]:
        ours = OpenAIPolicy(model="simulated", base_url=server.url, mode="completions", concurrency=SLOTS)
        official = AsyncOpenAI(base_url=server.url, api_key="none")

        async def by_ours(number: int) -> None:
            [result] = await ours.sample([SampleRequest(prompt=_prompt(number), seed=number)])
            if result.error is not None:
                raise RuntimeError(result.error)

        async def by_official(number: int) -> None:
            await official.completions.create(
                model="simulated", prompt=_prompt(number), seed=number, max_tokens=512, temperature=1.0
            )

        async def measure(call: Callable[[int], Any]) -> float:
            """Seconds of CPU for a call."""
            async with ours.connected():
                numbers = iter(range(count))

                async def work() -> None:
                    for number in numbers:
                        await call(number)

                start = time.process_time()
                await asyncio.gather(*(work() for _ in range(SLOTS)))
                return (time.process_time() - start) / count

        async def both() -> tuple[list[float], list[float]]:
            await measure(by_ours)  # imports, the first connections
            pairs = [(await measure(by_ours), await measure(by_official)) for _ in range(rounds)]
            await official.close()
            return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

        own, rival = asyncio.run(both())
    ratios = sorted(theirs / mine for mine, theirs in zip(own, rival, strict=True))
    ratio, calls = sum(rival) / sum(own), len(own) / sum(own)
    bounds = {"low": ratios[0], "high": ratios[-1]}
    return [figure("client_calls_per_cpu_second", calls, "calls", ratio, **bounds)]


def growth(options: argparse.Namespace) -> Figures:
    """Memory and time of commands against the size of the data."""
    sizes = growth_of.QUICK_SIZES if options.quick else growth_of.SIZES
    costs = growth_of.growth(sizes)
    memory = {name: growth_of.memory_ratio(some) for name, some in costs.items()}
    exponents = {name: growth_of.exponent(some, sizes) for name, some in costs.items()}
    return [
        figure("memory_growth", max(memory.values()), "times"),
        figure("time_exponent", max(exponents.values()), "power"),
        *(figure(f"memory_growth_{name}", ratio, "times") for name, ratio in memory.items()),
        *(figure(f"time_exponent_{name}", power, "power") for name, power in exponents.items()),
        *(figure(f"peak_{name}", some[-1].peak_mb, "MB") for name, some in costs.items()),
    ]


def step_cost(options: argparse.Namespace) -> Figures:
    """Time and memory of the commands that pass data on, next to a plain loop."""
    steps = growth_of.QUICK_COST_STEPS if options.quick else growth_of.COST_STEPS
    rounds = growth_of.QUICK_COST_ROUNDS if options.quick else growth_of.COST_ROUNDS
    costs, peaks = growth_of.step_costs(steps, rounds)
    loop = costs["plain_loop"]
    figures = []
    for name, values in costs.items():
        ratios = sorted(plain / ours for plain, ours in zip(loop, values, strict=True))
        ratio, value = statistics.median(ratios), statistics.median(values)
        title = f"step_cost_{name}"
        figures.append(figure(title, value, "us", ratio=ratio, low=ratios[0], high=ratios[-1]))
        figures.append(figure(f"{title}_peak", peaks[name], "MB"))
    return figures


def choose_at_n(options: argparse.Namespace) -> Figures:
    """Memory and time of choosing, against the number N of samples a problem."""
    sizes = choosing.QUICK_SIZES if options.quick else choosing.SIZES
    with tempfile.TemporaryDirectory(prefix="surefoot-scale-") as name:
        problems = choosing.QUICK_PROBLEMS if options.quick else choosing.PROBLEMS
        costs = choosing.costs_at_n(Path(name), sizes, problems)
    exponents = {name: growth_of.exponent(some, sizes) for name, some in costs.items()}
    return [
        figure("choose_at_n", max(exponents.values()), "power of N, of the time"),
        figure("choose_at_n_memory", max(map(growth_of.memory_ratio, costs.values())), "times"),
        *(figure(f"choose_at_n_{name}", power, "power") for name, power in exponents.items()),
        *(figure(f"choose_at_n_{name}_cpu", some[-1].cpu_s, "s") for name, some in costs.items()),
        *(figure(f"choose_at_n_{name}_peak", some[-1].peak_mb, "MB") for name, some in costs.items()),
    ]


def two_workers(options: argparse.Namespace) -> Figures:
    """One worker against two."""
    ways = tuple(way for way in workers.WAYS if way != "ray" or find_spec("ray"))
    if "ray" not in ways:
        left_out("Ray", "it is not installed: pip install '.[ray]'")
    problems = {"labelling": 75 if options.quick else 150, "scoring": 600 if options.quick else 1500}
    figures = []
    with tempfile.TemporaryDirectory(prefix="surefoot-scale-") as name:
        folder = Path(name)
        for what, count in problems.items():
            job, start = (workers.make_inputs(what, size, folder) for size in (count, workers.START))
            speed = workers.two_workers(what, job, start, folder, ways, 1 if options.quick else 3)
            if not speed.same_bytes:
                raise RuntimeError(f"{what}: the outputs differ")
            for way in ways[1:]:
                name, whole = f"two_workers_{what}_{way}", speed.command_speedups(way)
                figures.append(over_rounds(name, speed.speedups(way), "times one worker"))
                figures.append(over_rounds(f"{name}_command", whole, "times, start included"))
    return figures


def _prompt(number: int) -> str:
    return f"problem {number} " * 20


def _children_cpu_s() -> float:
    """CPU seconds of children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


FIGURES = (
    server_occupancy,
    client_calls_per_cpu_second,
    growth,
    step_cost,
    choose_at_n,
    two_workers,
)


def main() -> None:
    """Command line."""
    measure(arguments(__doc__), {function.__name__: function for function in FIGURES})


if __name__ == "__main__":
    main()
