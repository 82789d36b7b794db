"""A sample of a policy and the rewards that it got: what every stage of an update reads and adds to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import ScoreError
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Trace, Usage

TURN_REWARDS: Final = "turn_rewards"
"""Key of ``Trace.info`` of verifiers: one reward, or ``None`` where it is unknown, for each message that the
policy sampled, in the order of ``Trace.nodes``."""

FloatArray: TypeAlias = NDArray[np.float64]

_NO_TEXT = ProblemTrace(problem=Problem(text="numbers alone"), trace=Trace(problem_id="none", text=""))


@dataclass(frozen=True, kw_only=True)
class RewardStream:
    """Rewards of one sample from one source, at token positions; empty = no reward, which is not 0."""

    at: tuple[int, ...]
    """Positions, in non-decreasing order."""
    values: tuple[float, ...]
    weight: float = 1.0
    """Multiplies the advantages, after the baseline is subtracted."""
    centred: bool = False
    """The values are advantages of the tokens of their step alone, those after the position before it: no
    baseline is subtracted. Any other reward is credited to every token up to it."""

    def __post_init__(self) -> None:
        if len(self.at) != len(self.values):
            raise ValueError(f"a stream has {len(self.values)} rewards at {len(self.at)} positions")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A solution, or an episode of several turns. Judges, credit rule, estimator and update each add to it.

    Positions count the response's tokens from 0: [T] has a number for each of them, [K] one for each step.
    Raises ``ScoreError`` if the numbers of steps, scores and log-ratios do not match.
    """

    tokens: int
    """Length T of the response, including its end-of-sequence token."""
    ends: tuple[int, ...] = ()
    """Last token of each step that judges read [K], in non-decreasing order. A token belongs to the step of
    its first visible character, white space alone to that in which it begins. The last step ends with the
    response, so that the decision to stop is part of it. A step in which no token begins (two short ones in
    one token) ends where the step before it does."""

    item: ProblemTrace = _NO_TEXT
    """The problem and the response; a stand-in where an engine knows numbers alone."""
    prompt_ids: tuple[int, ...] = ()
    ids: tuple[int, ...] = ()
    """Tokens of the response [T], as sampled."""
    contexts: tuple[tuple[int, ...], ...] = ()
    """Of an episode, what the policy read before each turn [K]; ``prompt_ids`` is the first. ``ids`` are then
    the tokens of all turns, one after the other, and ``ends`` the turns' ends: what the environment wrote is
    in contexts alone, so it gets neither advantage nor gradient."""
    states: tuple[str, ...] = ()
    """Of an episode, keys of the environment's states before each turn [K], equal where the states are; empty
    without an environment."""
    server_logprobs: FloatArray | None = None
    """log π [T] of the server that sampled the tokens, in nats, where it says."""
    reasoning_opened: bool = False
    """Whether the prompt began the reasoning, so that a response that does not end it is nothing else."""
    canaries: tuple[str, ...] = ()
    """Pieces of the hidden reasoning by which it is recognised (:func:`surefoot.rl.channels.canaries`)."""

    whole_ends: tuple[int, ...] = ()
    """Last token of every step, where judges do not read all of them; else empty."""
    outcome: float | None = None
    """1 = correct answer, 0 = wrong; ``None`` = not judged."""
    scores: tuple[float | None, ...] = ()
    """Step scores [K] of a reward model or checker; ``None`` = not scored. Empty without a scorer."""
    log_ratios: FloatArray | None = None
    """log π_φ / π_ref [T] in nats, of an implicit reward model."""
    values: FloatArray | None = None
    """A critic's V [T], of the state in which each token was sampled."""
    returns: FloatArray | None = None
    """What the critic should have said [T]."""
    scorer_usage: Usage = field(default_factory=Usage)

    rewards: tuple[RewardStream, ...] = ()
    """What the credit rule made of these; estimators read them."""
    advantages: FloatArray | None = None
    """[T]."""
    old_logprobs: FloatArray | None = None
    """log π_old [T]; ``None`` where the policy has not changed since it sampled the tokens."""
    reference_logprobs: FloatArray | None = None

    def __post_init__(self) -> None:
        if self.scores and len(self.scores) != len(self.ends):
            raise ScoreError(
                f"'scores' has {len(self.scores)} values for {len(self.ends)} steps: give each one, or "
                "None where it is not scored"
            )
        if self.states and len(self.states) != len(self.ends):
            raise ScoreError(
                f"'states' has {len(self.states)} keys for {len(self.ends)} turns: give the state in which "
                "each was taken"
            )
        for name in ("log_ratios", "values", "returns"):
            array = getattr(self, name)
            if array is not None and array.shape != (self.tokens,):
                raise ScoreError(
                    f"'{name}' has shape {array.shape} for {self.tokens} tokens: give one per token"
                )

    @property
    def problem(self) -> Problem:
        return self.item.problem

    @property
    def trace(self) -> Trace:
        return self.item.trace

    @property
    def last(self) -> int:
        """Position of the last token."""
        return self.tokens - 1

    @property
    def step_ends(self) -> tuple[int, ...]:
        """Last token of every step of the trace, whether judges read it or not."""
        return self.whole_ends or self.ends

    def scored_steps(self) -> list[tuple[int, int, float]]:
        """Index, last token and score of each step that has a score, in order."""
        steps = enumerate(zip(self.ends, self.scores, strict=False))
        return [(index, end, score) for index, (end, score) in steps if score is not None]

    def learned(self) -> FloatArray:
        """The advantages [T]. Raises ``ScoreError`` before an estimator gave any."""
        if self.advantages is None:
            raise ScoreError("a sample has no 'advantages': let an estimator give them")
        return self.advantages

    def turns(self) -> list[Self]:
        """An episode's turns as responses to their contexts, without scores of the whole; any other sample as
        it is."""
        if not self.contexts:
            return [self]
        slices = [slice(previous + 1, end + 1) for previous, end in pairwise((-1, *self.step_ends))]
        arrays = ("server_logprobs", "advantages", "old_logprobs", "reference_logprobs")
        alone = replace(self, contexts=(), states=(), scores=(), whole_ends=(), log_ratios=None)
        return [
            replace(
                alone,
                tokens=tokens.stop - tokens.start,
                ends=(tokens.stop - tokens.start - 1,),
                prompt_ids=context,
                ids=self.ids[tokens],
                values=None,
                returns=None,
                **{name: array[tokens] for name in arrays if (array := getattr(self, name)) is not None},
            )
            for context, tokens in zip(self.contexts, slices, strict=True)
        ]
