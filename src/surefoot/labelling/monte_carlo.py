"""Step labels by Monte Carlo rollouts (Wang et al., Math-Shepherd, arXiv 2312.08935).

From a prefix the policy writes completions; how many reach the reference answer is the label's evidence.
It estimates a *value*, the chance of success from here, not the correctness of the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from surefoot.answers import Grader, Solution
from surefoot.errors import LabelError
from surefoot.labelling.stopping import Borrowed, HardEstimate, StoppingRule
from surefoot.labels import AFTER_FIRST_ERROR
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import Completion, Policy, ProblemTrace, SampleRequest, Sampling
from surefoot.records import Evidence, Problem, StepLabel, Trace, Usage
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
    """

    policy: Policy
    grader: Grader
    prompt: PromptFormat = field(default_factory=PromptFormat)
    rule: StoppingRule = field(default_factory=HardEstimate)
    order: Order = "every"
    after_error: Literal["unlabelled", "wrong"] = "unlabelled"
    own_outcome: OwnOutcome = "same-policy"
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0

    async def label(self, items: Sequence[ProblemTrace]) -> list[list[StepLabel]]:
        """One list per item, one label per step.

        Raises ``LabelError`` for a problem without reference answer or a chat trace.
        """
        for item in items:
            require_rollable(item)
        rollouts = RolloutSampler(
            policy=self.policy, grader=self.grader, prompt=self.prompt, sampling=self.sampling, seed=self.seed
        )
        progress = [
            _TraceProgress(item, outcome, rollouts, self)
            for item, outcome in zip(items, self._outcomes(items), strict=True)
        ]
        while pending := [tally for trace in progress for tally in trace.next_prefixes()]:
            await rollouts.settle(pending, self.rule)
        charged: set[int] = set()
        return [trace.labels(charged) for trace in progress]

    def _outcomes(self, items: Sequence[ProblemTrace]) -> list[bool | None]:
        """Outcome of each trace; those that nobody judged are graded here."""
        unjudged = [item for item in items if item.trace.outcome is None]
        grades = self.grader.grade(
            [whole_solution(item.trace) for item in unjudged], [item.problem.answer for item in unjudged]
        )
        graded = iter(grades)
        return [next(graded).outcome if item.trace.outcome is None else item.trace.outcome for item in items]

    def counts_own(self, item: ProblemTrace) -> bool:
        """Whether the trace's outcome may stand for a rollout: is it a sample of the completer's?"""
        same = item.trace.policy is not None and item.trace.policy == self.policy.name
        return self.own_outcome == "always" or (self.own_outcome == "same-policy" and same)


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
        self.tallies = {
            place: rollouts.tally(item.problem, trace.prefix(place)) for place in range(1, self.open + 1)
        }
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


@dataclass(frozen=True, kw_only=True)
class GradedCompletion:
    """One completion of a prefix and its outcome; ``None`` = its answer could not be compared."""

    completion: Completion
    outcome: bool | None


@dataclass(kw_only=True)
class PrefixRollouts:
    """What the rollouts from one prefix have shown so far."""

    problem: Problem
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
    """Draws rollouts with ``policy`` and keeps them by problem and prefix."""

    policy: Policy
    grader: Grader
    prompt: PromptFormat
    sampling: Sampling
    seed: int
    _tallies: dict[str, dict[str, PrefixRollouts]] = field(default_factory=dict)

    def tally(self, problem: Problem, prefix: str) -> PrefixRollouts:
        """The one tally of this prefix."""
        of_problem = self._tallies.setdefault(problem.id, {})
        if prefix not in of_problem:
            of_problem[prefix] = PrefixRollouts(problem=problem, prefix=prefix)
        return of_problem[prefix]

    async def settle(self, tallies: Iterable[PrefixRollouts], rule: StoppingRule) -> None:
        """Sample until ``rule`` is satisfied for each of ``tallies``, all of them at the same time.

        Sample numbers of a prefix continue from batch to batch, so the samples do not depend on
        where a rule stops: equal seeds give the same first n rollouts under every rule. A rollout that
        passes through another prefix is lent to it, as far as ``rule`` lets it count.
        """
        waiting = list({id(tally): tally for tally in tallies}.values())
        while waiting := [tally for tally in waiting if tally.more(rule)]:
            results = await self.policy.sample([self._request(tally, tally.more(rule)) for tally in waiting])
            solutions, references, drawn = [], [], []
            for tally, result in zip(waiting, results, strict=True):
                tally.usage += result.usage
                tally.error = result.error
                if not result.completions and result.error is None:
                    tally.error = "policy: no completion came"
                for completion in result.completions:
                    solutions.append(
                        Solution(
                            prefix=tally.prefix, text=completion.text, finish_reason=completion.finish_reason
                        )
                    )
                    references.append(tally.problem.answer)
                    drawn.append((tally, completion))
            grades = self.grader.grade(solutions, references)
            for (tally, completion), grade in zip(drawn, grades, strict=True):
                tally.rollouts.append(GradedCompletion(completion=completion, outcome=grade.outcome))
                self._lend(tally, tally.prefix + completion.text, grade.outcome, rule.borrowed)

    def _lend(self, lender: PrefixRollouts, text: str, outcome: bool | None, borrowed: Borrowed) -> None:
        if borrowed == "none":
            return
        for prefix, tally in self._tallies[lender.problem.id].items():
            # a solution that ends where the prefix does has drawn nothing after it
            if len(lender.prefix) < len(prefix) < len(text) and text.startswith(prefix):
                tally.borrow(outcome, borrowed)

    def _request(self, tally: PrefixRollouts, count: int) -> SampleRequest:
        return SampleRequest(
            prompt=self.prompt.render(tally.problem),
            prefix=tally.prefix,
            n=count,
            first=tally.start + len(tally.rollouts),
            seed=self.seed,
            sampling=self.sampling,
        )


def whole_solution(trace: Trace) -> Solution:
    """A trace of text as it is graded."""
    return Solution(text=trace.text or "", finish_reason=trace.finish_reason)


def require_rollable(item: ProblemTrace) -> None:
    """Raises ``LabelError`` for a problem without reference answer, or a chat trace."""
    if item.problem.answer is None:
        raise LabelError(f"problem {item.problem.id} has no 'answer'; rollouts cannot be judged without one")
    if item.trace.text is None:
        raise LabelError(f"trace {item.trace.id} has messages; Monte Carlo rollouts continue text traces")
