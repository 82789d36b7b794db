"""The Ray engine's own scheduling on a cluster that is simulated: a thousand workers, stragglers, deaths.

:class:`surefoot.work.RayEngine` runs as it is. What it calls of Ray is answered by :class:`Cluster`, whose
clock is virtual: a piece takes the sum of long-tailed times of its traces, some workers are slow, and workers
die at random moments and come back. Not simulated: what Ray itself costs for a call, and the file system.
"""

from __future__ import annotations

import heapq
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from itertools import count
from types import ModuleType
from typing import Any

from surefoot.records import Trace
from surefoot.work import FunctionJob, PieceDone, Pieces, RayEngine, WorkerTask

TRACES = 50
"""Of a piece, each taking a log-normal time with sigma 1."""
START_S = 60.0
"""To start a worker, or start it again elsewhere, and load its model."""


class DiedError(Exception):
    """Ray's word for a worker that died."""


@dataclass(frozen=True, kw_only=True)
class World:
    """What the cluster is like."""

    workers: int = 1000
    pieces: int = 20_000
    piece_s: float = 60.0
    """Mean time of a piece at a worker that is not slow."""
    slow_share: float = 0.0
    slow_factor: float = 5.0
    mean_life_s: float | None = None
    """Of a worker between two deaths; ``None`` = for ever."""


WORLDS = {
    "thousand_workers": World(pieces=100_000, piece_s=12.0, slow_share=0.05, mean_life_s=4 * 3600.0),
    "thousand_workers_alike": World(pieces=100_000, piece_s=12.0),
    "thousand_workers_larger_pieces": World(slow_share=0.05, mean_life_s=4 * 3600.0),
    "thousand_workers_larger_pieces_alike": World(),
    "thousand_workers_dying_each_half_hour": World(
        pieces=100_000, piece_s=12.0, slow_share=0.05, mean_life_s=1800.0
    ),
}
"""By the name of their figures."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Of one job."""

    efficiency: float
    """Seconds of the pieces at a worker of ordinary speed, over what all workers could have done of them."""
    makespan_s: float
    tail_s: float
    """From the first moment that the engine had no new piece for a worker to the end."""
    deaths: int
    calls: int
    """Pieces that were begun."""
    lost_or_doubled: int
    cpu_s: float
    """Of the engine, with the simulation."""


@dataclass(eq=False)
class Call:
    """One call of an actor."""

    actor: int
    number: int | None
    """``None``: get ready."""
    result: Any = None
    error: Exception | None = None
    resolved: bool = False


@dataclass
class Actor:
    """One worker."""

    speed: float
    queue: deque[Call] = field(default_factory=deque)
    life: int = 0
    """How often it has died."""
    up: bool = False


class Cluster:
    """Ray with a clock of its own."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.now = world, 0.0
        self.rng = random.Random(seed)
        self.actors: list[Actor] = []
        self.deaths = self.calls = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        draws = [self.rng.lognormvariate(0, 1) for _ in range(TRACES * 1000)]
        mean = sum(draws) / len(draws)
        self.durations = [
            sum(self.rng.choices(draws, k=TRACES)) / TRACES / mean * world.piece_s
            for _ in range(world.pieces)
        ]

    def at(self, seconds: float, then: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), then))

    # what the engine calls

    def remote(self, _assignment: WorkerTask) -> Handle:
        """A new worker."""
        number, slow = len(self.actors), self.rng.random() < self.world.slow_share
        self.actors.append(Actor(speed=1 / self.world.slow_factor if slow else 1.0))
        self._start(number)
        return Handle(self, number)

    def wait(
        self, refs: Sequence[Call], *, num_returns: int, timeout: float
    ) -> tuple[list[Call], list[Call]]:
        end = self.now + timeout
        done = [ref for ref in refs if ref.resolved]
        while not done and self._events and self._events[0][0] <= end:
            self.now, _, then = heapq.heappop(self._events)
            then()
            done = [ref for ref in refs if ref.resolved]
        if not done:
            self.now = end
        return done[:num_returns], []

    def get(self, ref: Call) -> Any:
        if ref.error is not None:
            raise ref.error
        return ref.result

    # what happens

    def call(self, actor: int, number: int | None) -> Call:
        made = Call(actor, number)
        self.calls += number is not None
        one = self.actors[actor]
        if number is not None and not one.up:
            made.error, made.resolved = DiedError(), True
            return made
        one.queue.append(made)
        if one.up and len(one.queue) == 1:
            self._begin(actor)
        return made

    def _start(self, actor: int) -> None:
        def up() -> None:
            self.actors[actor].up = True
            self._begin(actor)

        self.at(START_S, up)
        if self.world.mean_life_s is not None:
            self.at(START_S + self.rng.expovariate(1 / self.world.mean_life_s), lambda: self._die(actor))

    def _die(self, actor: int) -> None:
        one = self.actors[actor]
        one.up, one.life = False, one.life + 1
        self.deaths += 1
        waiting = deque(call for call in one.queue if call.number is None)  # Ray does these again
        for call in one.queue:
            if call.number is not None:
                call.error, call.resolved = DiedError(), True
        one.queue = waiting
        self._start(actor)

    def _begin(self, actor: int) -> None:
        one = self.actors[actor]
        if not one.queue:
            return
        call, life = one.queue[0], one.life
        seconds = 0.0 if call.number is None else self.durations[call.number] / one.speed

        def end() -> None:
            if one.life == life:
                one.queue.popleft()
                if call.number is not None:
                    call.result = PieceDone(number=call.number, lines=(), tokens=1, seconds=seconds)
                call.resolved = True
                self._begin(actor)

        self.at(seconds, end)


class Handle:
    """An actor as the engine sees it: ``handle.do.remote(3)``, ``handle.ready.options(…).remote()``."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self._cluster, self._number = cluster, number

    @property
    def do(self) -> Handle:
        return self

    @property
    def ready(self) -> Handle:
        return self

    def options(self, **_: Any) -> Handle:
        return self

    def remote(self, number: int | None = None) -> Call:
        return self._cluster.call(self._number, number)


def simulate(world: World, *, seed: int = 0) -> Outcome:
    """One job of ``world.pieces``."""
    cluster = Cluster(world, seed)
    numbers = iter(range(world.pieces))
    dry: list[float] = []

    def following(_underway: int) -> int | None:
        number = next(numbers, None)
        if number is None and not dry:
            dry.append(cluster.now)
        return number

    job = FunctionJob(work=list, record=Trace)
    start = time.process_time()
    with instead_of_ray(cluster), RayEngine(world.workers).start(job, Pieces([], 1)) as run_pieces:
        done = [piece.number for piece in run_pieces(following)]
    cpu_s = time.process_time() - start
    capacity = sum(actor.speed for actor in cluster.actors) * cluster.now
    return Outcome(
        efficiency=sum(cluster.durations) / capacity,
        makespan_s=cluster.now,
        tail_s=cluster.now - dry[0],
        deaths=cluster.deaths,
        calls=cluster.calls,
        lost_or_doubled=len(set(range(world.pieces)) - set(done)) + len(done) - len(set(done)),
        cpu_s=cpu_s,
    )


@contextmanager
def instead_of_ray(cluster: Cluster) -> Iterator[None]:
    """``import ray`` gives the simulated cluster."""
    ray, exceptions = ModuleType("ray"), ModuleType("ray.exceptions")
    ray.__spec__ = ModuleSpec("ray", None)
    vars(ray).update(
        exceptions=exceptions,
        is_initialized=lambda: True,
        remote=lambda **_: lambda _worker: cluster,
        wait=cluster.wait,
        get=cluster.get,
        kill=lambda _actor: None,
    )
    vars(exceptions).update(RayError=DiedError, RayTaskError=type("RayTaskError", (DiedError,), {}))
    before = {name: sys.modules.get(name) for name in ("ray", "ray.exceptions")}
    sys.modules |= {"ray": ray, "ray.exceptions": exceptions}
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
