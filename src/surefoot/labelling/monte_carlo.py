"""Step labels by Monte Carlo rollouts (Wang et al., Math-Shepherd, arXiv 2312.08935).

The policy completes a prefix several times; the number of correct completions is the label's evidence. It
estimates a *value*, the chance of success from here, not the correctness of the step. A rollout counts for
every prefix that it passes through, and a rule says how many a prefix needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from pydantic import Field

from surefoot.answers import ProblemGrader, Solution
from surefoot.batching import Batcher
from surefoot.errors import LabelError
from surefoot.labels import AFTER_FIRST_ERROR
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import SOLUTION_CHANNELS, Completion, Policy, ProblemTrace, SampleRequest, Sampling
from surefoot.records import Evidence, FrozenModel, Message, Problem, StepLabel, Trace, Usage
from surefoot.stats.intervals import wilson_interval


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


Order = Literal["every", "until-error", "bisect"]
"""Which prefixes are rolled out: all; in order up to the first bad one; by binary search."""


class MonteCarloSettings(RolloutRule):
    """Which prefixes get rollouts, how many, and the labels of steps without."""

    order: Order = "every"
    """Prefixes to roll out: every, those up to the first error, or a binary search for it."""
    after_error: Literal["unlabelled", "wrong"] = "unlabelled"
    """Label of steps after the first error: none, or 0 (`wrong`)."""
    own_outcome: Literal["same-policy", "always", "never"] = "same-policy"
    """Count a trace's outcome as a rollout of its prefixes: if the policy wrote it, always or never."""


@dataclass(frozen=True, kw_only=True)
class MonteCarloLabeller:
    """A :class:`surefoot.protocols.Labeller` that rolls out the prefixes of traces.

    ``settings.order`` says which prefixes get rollouts:

    - ``every``: all of them.
    - ``until-error``: in order, up to the first bad one. It finds the same first error as ``every``, unless
      rollouts that it does not sample would have changed a later prefix.
    - ``bisect``: binary search for the first error of a trace with a wrong answer (OmegaPRM, arXiv
      2406.06592, section 3.2), at most ceil(log2 T) rounds for T steps, unless a borrowed rollout changes a
      bad prefix to a good one. It assumes that no prefix after a bad one is good, so steps before the last
      good position are good without rollouts.

    Prefixes that several traces share are rolled out once, and a rollout that passes through a later prefix
    also counts there. The end of a finished trace is not rolled out, because its outcome is known. Evidence:
    successes, trials, Wilson interval, and the cost of the label; a label that reuses rollouts costs nothing.

    Traces that cannot share rollouts are labelled concurrently: a server always has requests, and a policy in
    this process gets the requests of all traces in one batch. The labels are the same in both cases.
    """

    reads = SOLUTION_CHANNELS
    policy: Policy
    grader: ProblemGrader
    settings: MonteCarloSettings = field(default_factory=MonteCarloSettings)
    prompt: PromptFormat = field(default_factory=PromptFormat)
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0

    async def label(self, items: Sequence[ProblemTrace]) -> list[list[StepLabel]]:
        """One list per item, one label per step.

        Raises ``LabelError`` for a problem without reference answer (or hidden tests), and for a chat trace.
        """
        for item in items:
            require_rollable(item, self.grader)
        batcher = Batcher(self.policy)
        groups = independent_groups(items)
        rows = await batcher.run([self._label_group([items[n] for n in group], batcher) for group in groups])
        by_number = {
            number: labels
            for group, of_group in zip(groups, rows, strict=True)
            for number, labels in zip(group, of_group, strict=True)
        }
        return [by_number[number] for number in range(len(items))]

    async def _label_group(self, items: Sequence[ProblemTrace], batcher: Batcher) -> list[list[StepLabel]]:
        """Labels of traces that share rollouts. They advance in rounds, so that the labels do not depend on
        the order in which rollouts arrive."""
        rollouts = RolloutSampler(
            problem=items[0].problem,
            batcher=batcher,
            grader=self.grader,
            prompt=self.prompt,
            sampling=self.sampling,
            seed=self.seed,
        )
        outcomes = await rollouts.outcomes([item.trace for item in items])
        progress = [
            _TraceProgress(item, outcome, rollouts, self)
            for item, outcome in zip(items, outcomes, strict=True)
        ]
        while pending := [tally for trace in progress for tally in trace.next_prefixes()]:
            await rollouts.settle(pending, self.settings)
        charged: set[int] = set()
        return [trace.labels(charged) for trace in progress]

    def counts_own(self, item: ProblemTrace) -> bool:
        """Whether the trace's outcome counts as a rollout."""
        same = item.trace.policy is not None and item.trace.policy == self.policy.name
        own_outcome = self.settings.own_outcome
        return own_outcome == "always" or (own_outcome == "same-policy" and same)


def independent_groups(items: Sequence[ProblemTrace]) -> list[list[int]]:
    """Indices of ``items`` in groups that share no rollouts, in the order of their first members.

    A rollout passes through a prefix of another trace only if both begin with the prefix that it was sampled
    from, and so with the same first step. The text of a first step may begin with another first step.
    """
    groups: list[list[int]] = []
    problem, first = None, ""
    begins = [(item.problem.id, item.trace.prefix(min(1, len(item.trace.steps)))) for item in items]
    # sorted, a text comes before the texts that begin with it
    for number in sorted(range(len(items)), key=lambda number: (*begins[number], number)):
        if problem != begins[number][0] or not begins[number][1].startswith(first):
            groups.append([])
            problem, first = begins[number]
        groups[-1].append(number)
    return sorted(map(sorted, groups))


class _TraceProgress:
    """The prefixes of one trace and their rollouts. A *depth* is the number of a prefix's steps."""

    def __init__(
        self, item: ProblemTrace, outcome: bool | None, rollouts: RolloutSampler, labeller: MonteCarloLabeller
    ) -> None:
        self.item, self.outcome, self.labeller = item, outcome, labeller
        trace = item.trace
        self.count = len(trace.steps)
        # the outcome of a finished trace is known; a trace that was cut off could continue
        self.open = self.count if trace.cut_off else max(self.count - 1, 0)
        self.tallies = {depth: rollouts.tally(trace.prefix(depth)) for depth in range(1, self.open + 1)}
        if self.open < self.count and labeller.settings.lends(outcome) and labeller.counts_own(item):
            for tally in self.tallies.values():
                tally.borrow(True)

    def next_prefixes(self) -> list[PrefixRollouts]:
        """Prefixes to roll out next; none if the trace's labels are final."""
        return [
            self.tallies[depth] for depth in _next(self.labeller.settings.order, self._known(), self.open)
        ]

    def labels(self, charged: set[int]) -> list[StepLabel]:
        """Labels in the order of the steps; ``charged`` holds the tallies whose cost is already in a
        label."""
        decided = self._known()
        bounds = _bounds(decided)
        return [self._label(depth, decided, bounds, charged) for depth in range(1, self.count + 1)]

    def _known(self) -> dict[int, bool | None]:
        """Whether each decided depth is good; ``None`` = its rollouts failed. Includes the end if
        finished."""
        rule = self.labeller.settings
        decided: dict[int, bool | None] = {}
        for depth, tally in self.tallies.items():
            if not tally.more(rule):
                bad = tally.unknown(rule) is not None
                decided[depth] = None if bad else tally.successes > 0
        if self.open < self.count:
            decided[self.count] = self.outcome
        return decided

    def _label(
        self,
        depth: int,
        decided: Mapping[int, bool | None],
        bounds: tuple[int, int | None],
        charged: set[int],
    ) -> StepLabel:
        rule, (last_good, first_bad) = self.labeller.settings, bounds
        value: float | None = None
        reason: str | None = None
        message: str | None = None
        successes = trials = None
        usage = Usage()
        if depth > self.open:
            value = None if self.outcome is None else float(self.outcome)
            successes, trials = int(self.outcome or False), int(self.outcome is not None)
            reason = None if trials else "the trace's own answer could not be compared"
        else:
            tally = self.tallies[depth]
            usage = Usage() if id(tally) in charged else tally.usage
            charged.add(id(tally))
            if depth in decided:
                successes, trials = tally.successes, tally.trials
                reason = tally.unknown(rule)
                value = rule.value(successes, trials) if reason is None else None
                if tally.borrowed_trials:
                    message = f"{tally.borrowed_trials} of the trials were sampled from another prefix"
            elif depth < last_good:
                value, message = 1.0, f"deduced: step {last_good} is good"
            elif first_bad is None or depth < first_bad:
                reason = "not reached: an earlier estimate failed"
            elif rule.after_error == "wrong":
                value, message = 0.0, f"{AFTER_FIRST_ERROR}, step {first_bad}"
            else:
                reason = AFTER_FIRST_ERROR
        return StepLabel(
            trace_id=self.item.trace.id,
            step=depth - 1,
            kind="value",
            value=value,
            reason=reason,
            source=f"monte-carlo-{rule.estimate}",
            evidence=Evidence(
                successes=successes,
                trials=trials,
                interval=wilson_interval(successes or 0, trials).bounds if trials else None,
                usage=usage,
                rater=self.labeller.policy.name,
                message=message,
            ),
        )


def _next(order: Order, decided: Mapping[int, bool | None], last: int) -> list[int]:
    """Depths among 1 … ``last`` to roll out next, given the decided ones; see the labeller."""
    if order == "every":
        return [depth for depth in range(1, last + 1) if depth not in decided]
    if order == "until-error":
        depth = next((depth for depth in range(1, last + 1) if not decided.get(depth)), 0)
        return [depth] if depth and depth not in decided else []
    middle = probe(decided, last)
    return [middle] if middle else []


def probe(decided: Mapping[int, bool | None], last: int) -> int | None:
    """Next depth of the binary search for the first error; ``None`` = finished, or that prefix failed.

    The prefix of ``low`` steps is good (0: the problem itself) and the prefix of ``high`` steps is bad. At
    first that is the whole trace, by its wrong answer; if the trace was cut off or its answer cannot be
    compared, it has to be tested first. Each probe halves the interval (OmegaPRM, arXiv 2406.06592, section
    3.2).
    """
    low, high = _bounds(decided)
    depth = max(low, last) if high is None else (low + high) // 2
    return None if depth == low or depth in decided else depth


def _bounds(decided: Mapping[int, bool | None]) -> tuple[int, int | None]:
    """Last good depth before the first bad one, and the first bad one, if there is any."""
    high = min((depth for depth, good in decided.items() if good is False), default=None)
    goods = (depth for depth, good in decided.items() if good and (high is None or depth < high))
    return max(goods, default=0), high
