"""How soon the gateway's monitor sees a change, and how often it errs."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import httpx
import numpy as np

from benchmarks.common.figures import Figures, arguments, figure, over_draws, show, write
from benchmarks.worlds.digits import PRM, Difficulty, ExactLabeller, NoisySolver, generate_problems
from surefoot.models import load_prm
from surefoot.policies import IN_PROCESS, Capabilities
from surefoot.protocols import ProblemTrace, SampleRequest, SampleResult
from surefoot.records import Problem
from surefoot.server import (
    ChangeChart,
    Gateway,
    GatewayRecord,
    GatewaySettings,
    MonitorSettings,
    ServerSettings,
    create_app,
)
from surefoot.stats import wilson_interval

GOLD_SHARE, GOLD_DELAY = 0.2, 50
REFERENCE, HORIZON = 1000, 3000
WINDOW, EVERY = 200, 10
STRATEGY = "best-of-n:n=2"


@dataclass(frozen=True, kw_only=True)
class Rewriting:
    """A solver whose texts are rewritten, whose token counts are multiplied, or that fails sometimes."""

    solver: NoisySolver = field(default_factory=lambda: NoisySolver(error_rate=0.05))
    rewrite: Callable[[str], str] = str
    tokens: float = 1.0
    longest: int | None = None
    name: str = "policy"

    def capabilities(self) -> Capabilities:
        return IN_PROCESS

    async def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        if self.longest:
            requests = [
                replace(one, sampling=replace(one.sampling, max_tokens=self.longest)) for one in requests
            ]
        results = await self.solver.sample(requests)
        return [self._rewritten(result) for result in results]

    def _rewritten(self, result: SampleResult) -> SampleResult:
        texts = [self.rewrite(one.text) for one in result.completions]
        share = sum(map(len, texts)) / max(sum(len(one.text) for one in result.completions), 1)
        tokens = round(self.tokens * share * result.usage.completion_tokens)
        completions = zip(result.completions, texts, strict=True)
        return replace(
            result,
            completions=tuple(replace(one, text=text) for one, text in completions),
            usage=result.usage.model_copy(update={"completion_tokens": tokens}),
        )


def stop_early(text: str) -> str:
    """Two lines and an answer: the PRM likes it, the answer is wrong."""
    lines = text.splitlines(keepends=True)
    return "".join(lines[:2]) + f"Answer: {lines[1].strip()[-1]}\n" if len(lines) > 3 else text


def restate(text: str) -> str:
    """One line, said again four times, as the answer."""
    first = text.splitlines(keepends=True)[0]
    digit = first.strip()[-1]
    return first + f"Now {digit}\n" * 4 + f"Answer: {digit}\n"


@dataclass(frozen=True, kw_only=True)
class System:
    """What is served."""

    policy: Rewriting = field(default_factory=Rewriting)
    questions: Difficulty = field(default_factory=Difficulty)
    settings: dict[str, object] | None = None
    longest: int = 200


CHANGES: dict[str, tuple[str, System]] = {
    "longer questions": ("new questions", System(questions=Difficulty(min_operations=8, max_operations=12))),
    "more products": ("new questions", System(questions=Difficulty(operations="+-***"))),
    "more errors": ("new policy", System(policy=Rewriting(solver=NoisySolver(error_rate=0.12)))),
    "worse at products": (
        "new policy",
        System(policy=Rewriting(solver=NoisySolver(error_rate={"+": 0.05, "-": 0.05, "*": 0.35}))),
    ),
    "answers early": ("gamed scorer", System(policy=Rewriting(rewrite=stop_early))),
    "restates": ("gamed scorer", System(policy=Rewriting(rewrite=restate))),
    "other answer form": ("broken parser", System(settings={"extract": ("boxed",)})),
    "other separator": ("broken parser", System(settings={"separator": " = "})),
    "shorter limit": ("changed upstream", System(policy=Rewriting(longest=55))),
    "other tokens": ("changed upstream", System(policy=Rewriting(tokens=1.15))),
}


class _Log:
    """Keeps records in memory."""

    def __init__(self) -> None:
        self.records: list[GatewayRecord] = []

    def write_all(self, records: Sequence[GatewayRecord]) -> None:
        self.records += records

    def ping(self) -> None:
        pass


async def serve(system: System, prm: object, count: int, seed: int) -> list[tuple[GatewayRecord, bool]]:
    """Records of ``count`` requests to a gateway, and whether all steps and the answer are right."""
    log = _Log()
    settings = GatewaySettings(template="{problem}", **(system.settings or {}))
    gateway = Gateway(system.policy, prm, settings=settings, log=log)
    app = create_app(ServerSettings(), gateway=gateway)
    problems = list(generate_problems(count, seed=seed, difficulty=system.questions))
    transport = httpx.ASGITransport(app=app, client=("127.0.0.1", 1))
    async with httpx.AsyncClient(
        transport=transport, base_url="http://127.0.0.1:8000", timeout=600
    ) as client:
        for start in range(0, count, 64):
            some = enumerate(problems[start : start + 64], start=start)
            await asyncio.gather(*(_ask(client, problem, seed + n, system) for n, problem in some))
    await gateway.close()
    by_text = {problem.text: problem for problem in problems}
    return [(record, await _right(record, by_text)) for record in log.records]


async def _ask(client: httpx.AsyncClient, problem: Problem, seed: int, system: System) -> None:
    body = {
        "model": STRATEGY,
        "messages": [{"role": "user", "content": problem.text}],
        "seed": seed,
        "max_tokens": system.longest,
    }
    answer = await client.post("/v1/chat/completions", json=body)
    answer.raise_for_status()


async def _right(record: GatewayRecord, problems: dict[str, Problem]) -> bool:
    chosen = next(one.trace for one in record.candidates if one.chosen)
    problem = problems[record.problem.text]
    trace = chosen.model_copy(update={"problem_id": problem.id})
    [labels] = await ExactLabeller(after_error="wrong").label([ProblemTrace(problem=problem, trace=trace)])
    return (chosen.text or "").rstrip().endswith(f"Answer: {problem.answer}") and all(
        label.value == 1 for label in labels
    )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One stream with a change."""

    change: str
    delay: int
    """Requests until the alarm; ``HORIZON`` without one."""
    early: bool
    """Whether the alarm was before the change."""
    rival: int


class Streams:
    """Streams drawn from served records."""

    def __init__(self, pools: dict[str, list[tuple[GatewayRecord, bool]]], seed: int) -> None:
        self.pools, self.rng = pools, np.random.default_rng(seed)
        self.scores = {
            name: np.array(
                [next(one.score or 0.0 for one in record.candidates if one.chosen) for record, _ in pool]
            )
            for name, pool in pools.items()
        }

    def draw(self, name: str, count: int) -> list[tuple[str, int]]:
        """``count`` records in random order; each again only after all others."""
        size = len(self.pools[name])
        rounds = [self.rng.permutation(size) for _ in range(-(-count // size))]
        return [(name, int(at)) for at in np.concatenate([*rounds, np.empty(0, dtype=int)])[:count]]

    def monitor(self, reference: list[tuple[str, int]]) -> ChangeChart:
        monitor = ChangeChart(MonitorSettings(reference=REFERENCE, gold_share=GOLD_SHARE, gold_project=1))
        self.feed(monitor, reference, [])
        return monitor

    def feed(
        self, monitor: ChangeChart, stream: list[tuple[str, int]], late: list[tuple[float, bool]]
    ) -> int | None:
        """Add requests, and gold labels with their delay; the number of requests until the first alarm."""
        for number, (name, at) in enumerate(stream, start=1):
            record, right = self.pools[name][at]
            monitor.add(record)
            sampled = self.rng.random() < GOLD_SHARE and record.candidates
            late.append((float(self.scores[name][at]), right) if sampled else (-1.0, False))
            # the labels of the reference arrive before its end
            if len(late) > GOLD_DELAY or not monitor.fitted:
                proxy, gold = late.pop(0)
                if proxy >= 0:
                    monitor.add_gold(proxy, gold)
            if monitor.alarm:
                return number
        return None

    def distances(self, reference: list[tuple[str, int]], stream: list[tuple[str, int]]) -> np.ndarray:
        """The rival's statistic after each ``EVERY`` requests of ``stream``."""
        before = np.sort(self.of(reference))
        values = np.concatenate([self.of(reference)[-WINDOW:], self.of(stream)])
        points = np.unique(before)
        expected = np.searchsorted(before, points, "right") / len(before)
        distances = []
        for end in range(WINDOW + EVERY, len(values) + 1, EVERY):
            recent = np.sort(values[end - WINDOW : end])
            distances.append(np.abs(np.searchsorted(recent, points, "right") / WINDOW - expected).max())
        return np.array(distances)

    def of(self, stream: list[tuple[str, int]]) -> np.ndarray:
        return np.array([self.scores[name][at] for name, at in stream])

    def fitted_threshold(self, requests: int) -> float:
        """The distance that unchanged streams exceed once in 10,000 requests."""
        largest = []
        for _ in range(requests // 2500):
            largest.append(self.distances(self.draw(BASE, REFERENCE), self.draw(BASE, 2500)).max())
        return float(np.quantile(largest, 0.75))  # one of four streams of 2,500

    def false_alarms(self, requests: int) -> tuple[int, int]:
        """Alarms and requests of unchanged streams of up to 5,000 requests."""
        alarms = used = 0
        while used < requests:
            monitor = self.monitor(self.draw(BASE, REFERENCE))
            at = self.feed(monitor, self.draw(BASE, 5000), [])
            alarms, used = alarms + (at is not None), used + (at or 5000)
        return alarms, used

    def changed(self, name: str, threshold: float) -> Outcome:
        """A stream with a change after 0 to 500 requests."""
        before = int(self.rng.integers(500))
        unchanged = self.draw(BASE, REFERENCE + before)
        reference, stream = unchanged[:REFERENCE], unchanged[REFERENCE:] + self.draw(name, HORIZON)
        monitor, late = self.monitor(reference), []
        at = self.feed(monitor, stream, late)
        above = np.flatnonzero(self.distances(reference, stream[before:]) > threshold)
        return Outcome(
            change=name,
            delay=HORIZON if at is None else max(at - before, 0),
            early=at is not None and at <= before,
            rival=int(EVERY * (above[0] + 1)) if len(above) else HORIZON,
        )


BASE = "unchanged"


def main() -> None:
    """Serve, draw streams, print and write the figures."""
    parser = arguments(__doc__)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--first-seed", type=int, default=100)
    args = parser.parse_args()
    seeds = args.seeds or (1 if args.quick else 4)
    served, changed, repeats = (1500, 300, 4) if args.quick else (2000, 500, 10)
    quiet = 20_000 if args.quick else 100_000
    started, prm = time.perf_counter(), load_prm(PRM)
    outcomes: list[Outcome] = []
    alarms = requests = 0
    for seed in range(args.first_seed, args.first_seed + seeds):
        systems = {BASE: (served, System())} | {name: (changed, one) for name, (_, one) in CHANGES.items()}
        pools = {
            name: asyncio.run(serve(system, prm, count, 1000 * seed + number))
            for number, (name, (count, system)) in enumerate(systems.items())
        }
        streams = Streams(pools, seed)
        threshold = streams.fitted_threshold(quiet)
        outcomes += [streams.changed(name, threshold) for name in CHANGES for _ in range(repeats)]
        more, used = streams.false_alarms(quiet)
        alarms, requests = alarms + more, requests + used
        print(f"seed {seed}: threshold {threshold:.3f}, {alarms} alarms in {requests} unchanged requests")
    figures = figures_of(outcomes, alarms, requests)
    about = {"seeds": [args.first_seed, args.first_seed + seeds - 1], "served": served}
    seconds = time.perf_counter() - started
    write(args, show(figures), unchanged_requests=requests, seconds=seconds, **about)


def figures_of(outcomes: list[Outcome], alarms: int, requests: int) -> Figures:
    """The headlines, and a line for each change."""
    print("| change | cause | delay | drift statistic |")
    by_change: dict[str, list[int]] = defaultdict(list)
    for number, one in enumerate(outcomes):
        by_change[one.change].append(number)
    for name, numbers in by_change.items():
        delay, rival = (
            np.median([getattr(outcomes[at], field) for at in numbers]) for field in ("delay", "rival")
        )
        print(f"| {name} | {CHANGES[name][0]} | {delay:g} | {rival:g} |")
    delays, rivals = (np.array([getattr(one, name) for one in outcomes]) for name in ("delay", "rival"))
    rng = np.random.default_rng(0)
    draws = [rng.integers(len(outcomes), size=len(outcomes)) for _ in range(2000)]
    ratios = [np.median(rivals[draw]) / max(np.median(delays[draw]), 1) for draw in draws]
    ratio = over_draws(float(np.median(rivals) / max(np.median(delays), 1)), ratios)
    both = [at for at, one in enumerate(outcomes) if one.rival < HORIZON]
    seen = np.median(rivals[both]) / max(np.median(delays[both]), 1) if both else float("nan")
    return [
        figure("delay_vs_drift_statistic", ratio, "times", ratio=ratio.value),
        figure("delay_vs_drift_statistic_where_it_alarms", float(seen), "times", ratio=float(seen)),
        figure("delay_median", float(np.median(delays)), "requests"),
        figure("seen", 100 * float(np.mean(delays < HORIZON))),
        figure("alarms_before_the_change", 100 * float(np.mean([one.early for one in outcomes]))),
        figure("false_alarms_per_10000", 10_000 * wilson_interval(alarms, requests), "alarms"),
    ]


if __name__ == "__main__":
    main()
