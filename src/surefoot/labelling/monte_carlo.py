"""Step labels by Monte Carlo rollouts (Wang et al., Math-Shepherd, arXiv 2312.08935).

From a prefix the policy writes completions; how many reach the reference answer is the label's evidence.
It estimates a *value*, the chance of success from here, not the correctness of the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from surefoot.answers import ProblemGrader
from surefoot.batching import Batcher
from surefoot.labelling.rollouts import PrefixRollouts, RolloutSampler, require_rollable
from surefoot.labelling.stopping import HardEstimate, StoppingRule
from surefoot.labels import AFTER_FIRST_ERROR
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import Policy, ProblemTrace, Sampling
from surefoot.records import Evidence, StepLabel, Usage
from surefoot.stats.intervals import wilson_interval

Order = Literal["every", "until-error", "bisect"]
"""Which prefixes are rolled out: all; one after the other up to the first bad one; by binary search."""

OwnOutcome = Literal["same-policy", "always", "never"]
"""Whether a trace's outcome may count as a rollout of its prefixes: by default if the completer wrote it."""


@dataclass(frozen=True, kw_only=True)
class MonteCarloLabeller:
    """A :class:`surefoot.protocols.Labeller` that rolls out the prefixes of traces.

    ``rule`` says how many rollouts a prefix gets and what they mean
    (:class:`~surefoot.labelling.stopping.SoftEstimate`, ``HardEstimate``, ``SequentialTest``). ``order`` says
    which prefixes get any:

    - ``every``: all of them.
    - ``until-error``: in their order, up to the first bad one. Its first error is that of ``every``, but for
      what rollouts from prefixes that it leaves out would have lent.
    - ``bisect``: binary search for the first error of a trace with a wrong answer (OmegaPRM, arXiv
      2406.06592, section 3.2), ceil(log2 T) rounds at most for T steps, unless a lent rollout shows that a
      prefix was good which its own had shown bad. It takes for granted that no prefix after a bad one is
      good; so steps before the last good position are good without rollouts of their own.

    Steps after the first error without rollouts of their own are unknown, or with ``after_error="wrong"``
    have value 0. Prefixes that several traces share are rolled out once, and rollouts that pass through a
    later prefix are lent to it; the end of a finished trace needs none, as its outcome is known. Evidence:
    successes, trials, Wilson interval, and what the label cost; a label that reuses rollouts cost nothing.

    Traces that share no rollout are labelled independently of each other: a server always has requests of
    some of them, and a policy in this process gets those of all of them in one batch. The labels are the same
    in either case.
    """

    policy: Policy
    grader: ProblemGrader
    prompt: PromptFormat = field(default_factory=PromptFormat)
    rule: StoppingRule = field(default_factory=HardEstimate)
    order: Order = "every"
    after_error: Literal["unlabelled", "wrong"] = "unlabelled"
    own_outcome: OwnOutcome = "same-policy"
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0

    async def label(self, items: Sequence[ProblemTrace]) -> list[list[StepLabel]]:
        """One list per item, one label per step.

        Raises ``LabelError`` for a problem without reference answer (or hidden tests) or a chat trace.
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
        """Labels of traces that share rollouts. They move in rounds, so the labels do not depend on which
        rollout comes first."""
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
            await rollouts.settle(pending, self.rule)
        charged: set[int] = set()
        return [trace.labels(charged) for trace in progress]

    def counts_own(self, item: ProblemTrace) -> bool:
        """Whether the trace's outcome may stand for a rollout: is it a sample of the completer's?"""
        same = item.trace.policy is not None and item.trace.policy == self.policy.name
        return self.own_outcome == "always" or (self.own_outcome == "same-policy" and same)


def independent_groups(items: Sequence[ProblemTrace]) -> list[list[int]]:
    """Places of ``items`` in groups that share no rollout, in the order of their first members.

    A rollout passes through a prefix of another trace only if both begin with the prefix that it was sampled
    from, and so with the same first step. A first step may begin with another one's text.
    """
    groups: list[list[int]] = []
    problem, first = None, ""
    begins = [(item.problem.id, item.trace.prefix(min(1, len(item.trace.steps)))) for item in items]
    # in this order, texts that begin with another one follow it
    for number in sorted(range(len(items)), key=lambda number: (*begins[number], number)):
        if problem != begins[number][0] or not begins[number][1].startswith(first):
            groups.append([])
            problem, first = begins[number]
        groups[-1].append(number)
    return sorted(map(sorted, groups))


class _TraceProgress:
    """The prefixes of one trace and what is known of them. A *place* is the number of a prefix's steps."""

    def __init__(
        self, item: ProblemTrace, outcome: bool | None, rollouts: RolloutSampler, labeller: MonteCarloLabeller
    ) -> None:
        self.item, self.outcome, self.labeller = item, outcome, labeller
        trace = item.trace
        self.count = len(trace.steps)
        # the end of a finished trace is decided; one cut off by its length could still go on
        self.open = self.count if trace.finish_reason == "length" else max(self.count - 1, 0)
        self.tallies = {place: rollouts.tally(trace.prefix(place)) for place in range(1, self.open + 1)}
        if self.open < self.count and labeller.counts_own(item):
            for tally in self.tallies.values():
                tally.borrow(outcome, labeller.rule.borrowed)

    def next_prefixes(self) -> list[PrefixRollouts]:
        """Prefixes to roll out next; none when the trace's labels are as known as they will be."""
        return [self.tallies[place] for place in _next(self.labeller.order, self._known(), self.open)]

    def labels(self, charged: set[int]) -> list[StepLabel]:
        """Labels in the order of the steps; ``charged`` holds the tallies whose cost a label has already."""
        known = self._known()
        last_good, first_bad = _bounds(known)
        labels = []
        for place in range(1, self.count + 1):
            if place > self.open:
                labels.append(self._ending(place))
                continue
            tally = self.tallies[place]
            usage = Usage() if id(tally) in charged else tally.usage
            charged.add(id(tally))
            if place in known:
                labels.append(self._from_tally(place, tally, usage))
            else:
                labels.append(self._deduced(place, last_good, first_bad, usage))
        return labels

    def _deduced(self, place: int, last_good: int, first_bad: int | None, usage: Usage) -> StepLabel:
        if place < last_good:
            return self._label(place, 1.0, message=f"deduced: step {last_good - 1} is good", usage=usage)
        if first_bad is None or place < first_bad:
            return self._label(place, None, reason="not reached: an earlier estimate failed", usage=usage)
        if self.labeller.after_error == "wrong":
            return self._label(place, 0.0, message=f"{AFTER_FIRST_ERROR}, step {first_bad - 1}", usage=usage)
        return self._label(place, None, reason=AFTER_FIRST_ERROR, usage=usage)

    def _known(self) -> dict[int, bool | None]:
        """Whether each decided place is good; ``None`` = its rollouts failed. Includes a finished end."""
        rule = self.labeller.rule
        known: dict[int, bool | None] = {}
        for place, tally in self.tallies.items():
            if not tally.more(rule):
                bad = tally.unknown(rule) is not None
                known[place] = None if bad else rule.good(tally.successes, tally.trials)
        if self.open < self.count:
            known[self.count] = self.outcome
        return known

    def _from_tally(self, place: int, tally: PrefixRollouts, usage: Usage) -> StepLabel:
        rule = self.labeller.rule
        reason = tally.unknown(rule)
        borrowed = tally.borrowed_trials
        return self._label(
            place,
            rule.value(tally.successes, tally.trials) if reason is None else None,
            reason=reason,
            message=f"{borrowed} of the trials were sampled from another prefix" if borrowed else None,
            successes=tally.successes,
            trials=tally.trials,
            usage=usage,
        )

    def _ending(self, place: int) -> StepLabel:
        if self.outcome is None:
            return self._label(place, None, reason="the trace's own answer could not be compared", trials=0)
        return self._label(place, float(self.outcome), successes=int(self.outcome), trials=1)

    def _label(
        self,
        place: int,
        value: float | None,
        *,
        reason: str | None = None,
        message: str | None = None,
        successes: int = 0,
        trials: int | None = None,
        usage: Usage | None = None,
    ) -> StepLabel:
        return StepLabel(
            trace_id=self.item.trace.id,
            step=place - 1,
            kind="value",
            value=value,
            reason=reason,
            source=f"monte-carlo-{self.labeller.rule.name}",
            evidence=Evidence(
                successes=None if trials is None else successes,
                trials=trials,
                interval=wilson_interval(successes, trials).bounds if trials else None,
                usage=usage or Usage(),
                rater=self.labeller.policy.name,
                message=message,
            ),
        )


def _next(order: Order, known: Mapping[int, bool | None], last: int) -> list[int]:
    """Places among 1 … ``last`` to roll out next, given what is known; see the labeller."""
    if order == "every":
        return [place for place in range(1, last + 1) if place not in known]
    if order == "until-error":
        place = next((place for place in range(1, last + 1) if not known.get(place)), 0)
        return [place] if place and place not in known else []
    middle = probe(known, last)
    return [middle] if middle else []


def probe(known: Mapping[int, bool | None], last: int) -> int | None:
    """Next place of the binary search for the first error; ``None`` = found, or that place failed.

    The prefix of ``low`` steps is good (0: the problem itself) and that of ``high`` is bad, which at first
    is known of a whole trace by its wrong answer; of a trace that was cut off, or whose answer cannot be
    compared, it has to be tested. From there each probe halves what lies between (OmegaPRM, arXiv
    2406.06592, section 3.2).
    """
    low, high = _bounds(known)
    place = max(low, last) if high is None else (low + high) // 2
    return None if place == low or place in known else place


def _bounds(known: Mapping[int, bool | None]) -> tuple[int, int | None]:
    """Last good place before the first bad one, and that one, if there is any."""
    high = min((place for place, good in known.items() if good is False), default=None)
    goods = (place for place, good in known.items() if good and (high is None or place < high))
    return max(goods, default=0), high
