"""Particle filtering over steps, and particle Gibbs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np
from pydantic import Field, model_validator

from surefoot.errors import ScoreError
from surefoot.search.method import SearchMethod
from surefoot.search.selection import FIRST, Rule
from surefoot.search.space import Prefix, Space

MARGIN = 1e-6
"""Scores nearer than this to 0 or 1 count as this near: no particle's weight is infinite."""


class ParticleFilter(SearchMethod):
    """``n`` solutions grow side by side; after each step they are resampled in proportion to s / (1 - s).

    Puri et al. 2025 (arXiv 2502.01618), algorithm 1: extend each particle by a step, weigh it by the score s
    of its prefix (log-weight = logit s), draw ``n`` particles with replacement, until all have stopped.
    A stopped particle keeps its last weight and still takes part. Unlike beam search it stays random, and
    relies less on a scorer that may be wrong.

    The authors' code takes the score of the last step as s (``aggregation`` "last"), and their later its_hub
    leaves it to the reward model. The default here is the rule of the scorer's checkpoint.

    ``sweeps`` above 1 is particle Gibbs: each further sweep keeps one finished particle of the sweep before,
    sampled by weight, as its reference, which is never resampled away; the particles of all sweeps are
    candidates. ``rule`` "best_of_n" takes the best particle; "first" draws one of the last sweep by weight.

    Scores must lie in [0, 1] (else ``ScoreError``); a prefix without one has the weight 0.
    """

    method: ClassVar[str] = "particle"
    n: int = Field(default=16, ge=1, description="Particles.")
    sweeps: int = Field(default=1, ge=1, description="More than one = particle Gibbs.")
    rule: Rule = Field(
        default="best_of_n",
        description="How the solution that is returned is chosen; first = a particle sampled by weight.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.sweeps > 1 and self.n == 1:
            raise ValueError("more than one of 'sweeps' needs 'n' above 1")
        return self

    @property
    def draws(self) -> int:
        """As :attr:`SearchMethod.draws`."""
        return self.n * self.sweeps

    async def explore(self, space: Space) -> list[Prefix]:
        """The particles of each sweep, ``n`` of them where the policy answered."""
        generator = space.generator
        solutions: list[Prefix] = []
        reference: Prefix | None = None
        for _ in range(self.sweeps):
            particles = await self._sweep(space, reference, generator)
            solutions += particles
            ended = [particle for particle in particles if particle.data.finish is not None]
            if not ended:
                break
            weights = [log_weight(value) for value in await space.score(ended)]
            reference = ended[resample(weights, 1, generator)[0]]
        if self.rule == FIRST and reference is not None:
            solutions.remove(reference)
            solutions.insert(0, reference)
        return solutions

    async def _sweep(
        self, space: Space, reference: Prefix | None, generator: np.random.Generator
    ) -> list[Prefix]:
        particles = [space.root] * self.n
        depth = 0
        while True:
            depth += 1
            fixed = [_reached(reference, depth, space.steps.max_steps)] if reference else []
            moving = Counter(particles[len(fixed) :])
            children = await space.extend(list(moving), list(moving.values()))
            moved = [child for siblings in children for child in siblings]
            if not moved:  # the policy no longer answers
                break
            particles = fixed + moved
            if all(particle.data.finish is not None for particle in particles):
                break
            if len(set(particles)) == 1:  # nothing to choose between
                particles = particles[:1] * self.n
            else:
                weights = [log_weight(value) for value in await space.score(particles)]
                chosen = resample(weights, self.n - len(fixed), generator)
                particles = fixed + [particles[k] for k in chosen]
        return [particle for particle in particles if particle is not space.root]


def log_weight(score: float) -> float:
    """logit of a score in [0, 1], bounded by ``MARGIN``; minus infinity stays (no score, no weight).

    Raises ``ScoreError`` for anything else.
    """
    if score == -math.inf:
        return score
    if not 0 <= score <= 1:
        raise ScoreError(f"particle filtering needs scores in [0, 1], got {score}; map logits to them first")
    bounded = min(max(score, MARGIN), 1 - MARGIN)
    return math.log(bounded) - math.log1p(-bounded)


def normalised(log_weights: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Probabilities in proportion to the weights, shape (particles,); all alike if none has a weight."""
    top = max(log_weights)
    if top == -math.inf:
        return np.full(len(log_weights), 1 / len(log_weights))
    weights = np.exp(np.asarray(log_weights) - top)
    return np.asarray(weights / weights.sum())


def resample(log_weights: Sequence[float], count: int, generator: np.random.Generator) -> list[int]:
    """``count`` indices of particles, sampled with replacement in proportion to their weights."""
    bounds = np.cumsum(normalised(log_weights))
    points = generator.random(count)
    # the last bound may miss 1 by rounding; "right", so that weight 0 is never chosen
    indices = np.searchsorted(bounds, points * bounds[-1], side="right")
    return [int(k) for k in np.minimum(indices, len(log_weights) - 1)]


def _reached(reference: Prefix, depth: int, max_steps: int) -> Prefix:
    """Where the reference particle is after ``depth`` rounds, the last of which writes the whole rest."""
    path = reference.path()
    return path[depth - 1] if depth <= min(max_steps, len(path)) else reference
