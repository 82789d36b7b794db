"""Rollouts from the prefixes of one problem: how many a prefix needs, sampled, graded, and counted for every
prefix they pass through."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from pydantic import Field

from surefoot.answers import ProblemGrader, Solution
from surefoot.batching import Batcher
from surefoot.errors import LabelError
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import Completion, ProblemTrace, SampleRequest, Sampling
from surefoot.records import FrozenModel, Message, Problem, Trace, Usage


class RolloutRule(FrozenModel):
    """How many rollouts a prefix gets, and the value that they give it.

    It decides after every batch, so that no rollout is sampled whose result cannot matter.

    **soft**: the share of ``rollouts`` that reach the answer (Math-Shepherd, arXiv 2312.08935, eq. 4). The
    number is fixed and nothing is borrowed, so the share is unbiased even if the traces were selected by
    their outcome.

    **hard**: 1 if any of ``rollouts`` reaches the answer, else 0 (eq. 3). Sampling ends at the first success,
    which decides the label. Any correct solution that passes through the prefix is a success, such as the
    trace itself. Rollouts come in batches of ``first``, ``first``, 2 ``first``, 4 ``first`` …: a small
    ``first`` wastes fewer rollouts, a large one reads the prefix less often.
    """

    estimate: Literal["soft", "hard"] = Field(
        default="soft", description="soft: the share that succeeded. hard: whether any did."
    )
    rollouts: int = Field(default=8, ge=1, description="Completions per prefix; at most, if hard.")
    first: int = Field(default=2, ge=1, description="Hard: completions in the first batch of a prefix.")

    def lends(self, outcome: bool | None) -> bool:
        """Whether a solution sampled from another prefix counts for a prefix that it passes through.

        From that prefix on, it is a sample of its continuations. Candidates are the traces themselves and the
        rollouts from earlier prefixes.
        """
        return self.estimate == "hard" and outcome is True

    def more(self, successes: int, sampled: int) -> int:
        """Rollouts to sample next, 0 = decided. ``sampled`` also counts rollouts that could not be graded."""
        remaining = max(self.rollouts - sampled, 0)
        if self.estimate == "soft":
            return remaining
        return 0 if successes else min(max(sampled, self.first), remaining)

    def value(self, successes: int, trials: int) -> float:
        """The label, in [0, 1], from at least one trial."""
        return successes / trials if self.estimate == "soft" else float(successes > 0)


@dataclass(frozen=True, kw_only=True)
class GradedCompletion:
    """One completion of a prefix and its outcome; ``None`` = no answer of its round could be compared."""

    completion: Completion
    outcome: bool | None


@dataclass(kw_only=True)
class PrefixRollouts:
    """The rollouts from one prefix so far."""

    prefix: str
    rollouts: list[GradedCompletion] = field(default_factory=list)
    start: int = 0
    """Number of the first sample: earlier ones exist already, as traces."""
    borrowed_successes: int = 0
    borrowed_trials: int = 0
    """Solutions sampled from other prefixes that pass through this one and count as its rollouts."""
    usage: Usage = field(default_factory=Usage)
    error: str | None = None
    """Why the last request failed; a failed prefix is not requested again."""

    @property
    def successes(self) -> int:
        return self.borrowed_successes + sum(rollout.outcome is True for rollout in self.rollouts)

    @property
    def trials(self) -> int:
        return self.borrowed_trials + sum(rollout.outcome is not None for rollout in self.rollouts)

    @property
    def sampled(self) -> int:
        """Trials, and rollouts that could not be graded."""
        return self.borrowed_trials + len(self.rollouts)

    @property
    def failure(self) -> str | None:
        """Why the trials are unusable, for any rule."""
        if self.error is not None:
            return f"rollouts failed: {self.error}"
        return None if self.trials else "no rollout's answer could be compared"

    def borrow(self, outcome: bool) -> None:
        """Count a solution that was sampled from another prefix."""
        self.borrowed_trials += 1
        self.borrowed_successes += outcome

    def more(self, rule: RolloutRule) -> int:
        """Rollouts that ``rule`` still needs; 0 after a failure."""
        if self.error is not None:
            return 0
        return rule.more(self.successes, self.sampled)

    def unknown(self, rule: RolloutRule) -> str | None:
        """Why ``rule`` cannot decide; ``None`` if it can, even after a failure."""
        decided = self.trials and not rule.more(self.successes, self.sampled)
        return None if decided else self.failure


@dataclass(kw_only=True)
class RolloutSampler:
    """Samples rollouts of one problem through ``batcher``, by prefix."""

    problem: Problem
    batcher: Batcher
    grader: ProblemGrader
    prompt: PromptFormat
    sampling: Sampling
    seed: int
    _tallies: dict[str, PrefixRollouts] = field(default_factory=dict)

    def tally(self, prefix: str) -> PrefixRollouts:
        """The tally of this prefix; always the same object."""
        if prefix not in self._tallies:
            self._tallies[prefix] = PrefixRollouts(prefix=prefix)
        return self._tallies[prefix]

    async def outcomes(self, traces: Sequence[Trace]) -> list[bool | None]:
        """Outcome of each trace; ungraded traces are graded here."""
        solutions = [
            Solution(text=trace.text or "", finish_reason=trace.finish_reason)
            for trace in traces
            if trace.outcome is None
        ]
        graded = iter(await self.grader.grade_problem(self.problem, solutions))
        return [next(graded).outcome if trace.outcome is None else trace.outcome for trace in traces]

    async def settle(self, tallies: Iterable[PrefixRollouts], rule: RolloutRule) -> None:
        """Sample until ``rule`` is satisfied for each of ``tallies``, concurrently.

        Sample numbers of a prefix continue from batch to batch, so equal seeds give the same first n rollouts
        under every rule. A rollout that passes through another prefix also counts there, if ``rule`` allows
        it. This happens after a round is complete, so that the samples do not depend on the order of arrival.
        """
        waiting = list({id(tally): tally for tally in tallies}.values())
        while waiting := [tally for tally in waiting if tally.more(rule)]:
            results = await self.batcher.sample([self._request(tally, tally.more(rule)) for tally in waiting])
            completions = []
            for tally, result in zip(waiting, results, strict=True):
                tally.usage += result.usage
                tally.error = result.error
                if not result.completions and result.error is None:
                    tally.error = "policy: no completion arrived"
                completions += [(tally, reply) for reply in result.completions]
            grades = await self.grader.grade_problem(
                self.problem,
                [
                    Solution(
                        prefix=tally.prefix, text=completion.text, finish_reason=completion.finish_reason
                    )
                    for tally, completion in completions
                ],
            )
            comparable = any(grade.outcome is not None for grade in grades)
            for (tally, completion), grade in zip(completions, grades, strict=True):
                # where others can be compared, an answer that cannot counts as a wrong one
                outcome = grade.outcome is True if comparable else None
                tally.rollouts.append(GradedCompletion(completion=completion, outcome=outcome))
                if rule.lends(outcome):
                    self._lend(tally, tally.prefix + completion.text)

    def _lend(self, lender: PrefixRollouts, text: str) -> None:
        """Count a right solution for the prefixes that it passes through after the lender's.

        A solution that ends with a prefix says nothing about the prefix's continuations.
        """
        for prefix in prefixes_of(text, self._tallies):
            if len(lender.prefix) < len(prefix) < len(text):
                self._tallies[prefix].borrow(True)

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


def prefixes_of(text: str, candidates: Mapping[str, object]) -> list[str]:
    """The keys of ``candidates`` that ``text`` begins with."""
    beginnings = (text[:length] for length in {len(candidate) for candidate in candidates})
    return list({beginning for beginning in beginnings if beginning in candidates})


def require_rollable(item: ProblemTrace, grader: ProblemGrader) -> None:
    """Raises ``LabelError`` for a problem without reference answer or tests, or a chat trace."""
    if not grader.can_grade(item.problem):
        what = "hidden tests in meta['code']" if item.problem.answer is not None else "'answer'"
        raise LabelError(f"problem {item.problem.id} has no {what}; rollouts cannot be graded without")
    if item.trace.text is None:
        raise LabelError(f"trace {item.trace.id} has messages; Monte Carlo rollouts continue text traces")
