"""Rollouts from the prefixes of one problem: drawn, graded, kept by prefix, and lent to later prefixes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from surefoot.answers import ProblemGrader, Solution
from surefoot.batching import Batcher
from surefoot.errors import LabelError
from surefoot.labelling.stopping import Borrowed, StoppingRule
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import Completion, ProblemTrace, SampleRequest, Sampling
from surefoot.records import Message, Problem, Trace, Usage


@dataclass(frozen=True, kw_only=True)
class GradedCompletion:
    """One completion of a prefix and its outcome; ``None`` = its answer could not be compared."""

    completion: Completion
    outcome: bool | None


@dataclass(kw_only=True)
class PrefixRollouts:
    """What the rollouts from one prefix have shown so far."""

    prefix: str
    rollouts: list[GradedCompletion] = field(default_factory=list)
    start: int = 0
    """Number of the first sample to draw: those before it exist already, as traces."""
    borrowed_successes: int = 0
    borrowed_trials: int = 0
    """Solutions sampled from other prefixes that pass through this one and count as its rollouts."""
    usage: Usage = field(default_factory=Usage)
    error: str | None = None
    """What went wrong when rollouts were last asked for; such a prefix is not asked for again."""

    @property
    def successes(self) -> int:
        return self.borrowed_successes + sum(rollout.outcome is True for rollout in self.rollouts)

    @property
    def trials(self) -> int:
        return self.borrowed_trials + sum(rollout.outcome is not None for rollout in self.rollouts)

    @property
    def drawn(self) -> int:
        """Trials, and rollouts that could not be judged."""
        return self.borrowed_trials + len(self.rollouts)

    @property
    def failure(self) -> str | None:
        """What is wrong with the trials, whatever they are meant to decide."""
        if self.error is not None:
            return f"rollouts failed: {self.error}"
        return None if self.trials else "no rollout's answer could be compared"

    def borrow(self, outcome: bool | None, borrowed: Borrowed) -> None:
        """Count a solution sampled from another prefix, if the rule allows it."""
        if outcome is None or borrowed == "none" or (borrowed == "right" and not outcome):
            return
        self.borrowed_trials += 1
        self.borrowed_successes += outcome

    def more(self, rule: StoppingRule) -> int:
        """Rollouts that ``rule`` still wants; 0 also after a failure."""
        if self.error is not None:
            return 0
        return rule.more(self.successes, self.trials, self.drawn)

    def unknown(self, rule: StoppingRule) -> str | None:
        """Why ``rule`` cannot decide, or ``None`` if it can despite a failure."""
        decided = self.trials and not rule.more(self.successes, self.trials, self.drawn)
        return None if decided else self.failure


@dataclass(kw_only=True)
class RolloutSampler:
    """Draws rollouts of one problem through ``batcher`` and keeps them by prefix."""

    problem: Problem
    batcher: Batcher
    grader: ProblemGrader
    prompt: PromptFormat
    sampling: Sampling
    seed: int
    _tallies: dict[str, PrefixRollouts] = field(default_factory=dict)
    _index: PrefixIndex | None = None
    """Of ``_tallies``; ``None`` = some are not in it yet."""

    def tally(self, prefix: str) -> PrefixRollouts:
        """The one tally of this prefix."""
        if prefix not in self._tallies:
            self._tallies[prefix] = PrefixRollouts(prefix=prefix)
            self._index = None
        return self._tallies[prefix]

    async def outcomes(self, traces: Sequence[Trace]) -> list[bool | None]:
        """Outcome of each trace; those that nobody judged are graded here."""
        solutions = [
            Solution(text=trace.text or "", finish_reason=trace.finish_reason)
            for trace in traces
            if trace.outcome is None
        ]
        graded = iter(await self.grader.grade_problem(self.problem, solutions))
        return [next(graded).outcome if trace.outcome is None else trace.outcome for trace in traces]

    async def settle(self, tallies: Iterable[PrefixRollouts], rule: StoppingRule) -> None:
        """Sample until ``rule`` is satisfied for each of ``tallies``, all of them at the same time.

        Sample numbers of a prefix continue from batch to batch, so the samples do not depend on
        where a rule stops: equal seeds give the same first n rollouts under every rule. A rollout that
        passes through another prefix is lent to it, as far as ``rule`` lets it count. This happens when all
        rollouts of a round are there, so what is drawn does not depend on which comes first.
        """
        waiting = list({id(tally): tally for tally in tallies}.values())
        while waiting := [tally for tally in waiting if tally.more(rule)]:
            results = await self.batcher.sample([self._request(tally, tally.more(rule)) for tally in waiting])
            drawn = []
            for tally, result in zip(waiting, results, strict=True):
                tally.usage += result.usage
                tally.error = result.error
                if not result.completions and result.error is None:
                    tally.error = "policy: no completion came"
                drawn += [(tally, completion) for completion in result.completions]
            grades = await self.grader.grade_problem(
                self.problem,
                [
                    Solution(
                        prefix=tally.prefix, text=completion.text, finish_reason=completion.finish_reason
                    )
                    for tally, completion in drawn
                ],
            )
            for (tally, completion), grade in zip(drawn, grades, strict=True):
                tally.rollouts.append(GradedCompletion(completion=completion, outcome=grade.outcome))
                self._lend(tally, tally.prefix + completion.text, grade.outcome, rule.borrowed)

    def _lend(self, lender: PrefixRollouts, text: str, outcome: bool | None, borrowed: Borrowed) -> None:
        if borrowed == "none":
            return
        if self._index is None:
            self._index = PrefixIndex(self._tallies)
        for prefix in self._index.prefixes_of(text):
            if len(prefix) <= len(lender.prefix):
                break
            # a solution that ends where the prefix does has drawn nothing after it
            if len(prefix) < len(text):
                self._tallies[prefix].borrow(outcome, borrowed)

    def _request(self, tally: PrefixRollouts, count: int) -> SampleRequest:
        return SampleRequest(
            prompt=self._prompt,
            prefix=tally.prefix,
            n=count,
            first=tally.start + len(tally.rollouts),
            seed=self.seed,
            sampling=self.sampling,
        )

    @cached_property
    def _prompt(self) -> str | tuple[Message, ...]:
        return self.prompt.render(self.problem)


class PrefixIndex:
    """Finds which of ``texts`` another text begins with, in time that grows with that text alone.

    In sorted order, what a text begins with stands before it, and between the two only what begins so too.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._sorted = sorted(set(texts))
        self._parent: list[int] = []
        """Place of the longest other text with which each begins; -1 = there is none."""
        for place, text in enumerate(self._sorted):
            parent = place - 1
            while parent >= 0 and not text.startswith(self._sorted[parent]):
                parent = self._parent[parent]
            self._parent.append(parent)

    def prefixes_of(self, text: str) -> Iterator[str]:
        """Those with which ``text`` begins, itself among them if it is one, the longest first."""
        place = bisect_right(self._sorted, text) - 1
        while place >= 0:
            if text.startswith(self._sorted[place]):
                yield self._sorted[place]
            place = self._parent[place]


def require_rollable(item: ProblemTrace, grader: ProblemGrader) -> None:
    """Raises ``LabelError`` for a problem without reference answer or tests, or a chat trace."""
    if not grader.can_grade(item.problem):
        what = "hidden tests in meta['code']" if item.problem.answer is not None else "'answer'"
        raise LabelError(f"problem {item.problem.id} has no {what}; rollouts cannot be judged without")
    if item.trace.text is None:
        raise LabelError(f"trace {item.trace.id} has messages; Monte Carlo rollouts continue text traces")
