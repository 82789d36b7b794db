"""Completions of prefixes, judged against the reference answer: each distinct prefix once, whoever asks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from surefoot.answers import Grader
from surefoot.errors import LabelError
from surefoot.labelling.stopping import Borrowed, StoppingRule
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import Completion, Policy, ProblemTrace, SampleRequest, Sampling
from surefoot.records import Problem, Usage


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """One completion of a prefix and its outcome; ``None`` = its answer could not be compared."""

    completion: Completion
    outcome: bool | None


@dataclass(kw_only=True)
class Tally:
    """What the rollouts from one prefix have shown so far."""

    problem: Problem
    prefix: str
    rollouts: list[Rollout] = field(default_factory=list)
    start: int = 0
    """Number of the first sample to draw: those before it are at hand already, as traces."""
    borrowed_successes: int = 0
    borrowed_trials: int = 0
    """Solutions drawn elsewhere that pass through this prefix and count as its rollouts."""
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
        """Count a solution drawn elsewhere, if the rule lets it count."""
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
        """Why ``rule`` cannot decide, or ``None`` if it can in spite of a failure."""
        decided = self.trials and not rule.more(self.successes, self.trials, self.drawn)
        return None if decided else self.failure


@dataclass(kw_only=True)
class Rollouts:
    """Draws rollouts with ``policy`` and keeps them by problem and prefix."""

    policy: Policy
    grader: Grader
    prompt: PromptFormat
    sampling: Sampling
    seed: int
    _tallies: dict[str, dict[str, Tally]] = field(default_factory=dict)

    def tally(self, problem: Problem, prefix: str) -> Tally:
        """The one tally of this prefix."""
        of_problem = self._tallies.setdefault(problem.id, {})
        if prefix not in of_problem:
            of_problem[prefix] = Tally(problem=problem, prefix=prefix)
        return of_problem[prefix]

    async def settle(self, tallies: Iterable[Tally], rule: StoppingRule) -> None:
        """Draw until ``rule`` is content with each of ``tallies``, all of them at the same time.

        The samples of a prefix are numbered on from batch to batch, so what is drawn does not depend on
        where a rule stops: equal seeds give the same first n rollouts under every rule. A rollout that
        passes through another prefix is lent to it, as far as ``rule`` lets it count.
        """
        waiting = list({id(tally): tally for tally in tallies}.values())
        while waiting := [tally for tally in waiting if tally.more(rule)]:
            results = await self.policy.sample([self._request(tally, tally.more(rule)) for tally in waiting])
            texts, references, drawn = [], [], []
            for tally, result in zip(waiting, results, strict=True):
                tally.usage += result.usage
                tally.error = result.error
                if not result.completions and result.error is None:
                    tally.error = "policy: no completion came"
                for completion in result.completions:
                    texts.append(tally.prefix + completion.text)
                    references.append(tally.problem.answer)
                    drawn.append((tally, completion))
            for (tally, completion), grade in zip(drawn, self.grader.grade(texts, references), strict=True):
                tally.rollouts.append(Rollout(completion=completion, outcome=grade.outcome))
                self._lend(tally, tally.prefix + completion.text, grade.outcome, rule.borrowed)

    def _lend(self, lender: Tally, text: str, outcome: bool | None, borrowed: Borrowed) -> None:
        if borrowed == "none":
            return
        for prefix, tally in self._tallies[lender.problem.id].items():
            # a solution that ends where the prefix does has drawn nothing after it
            if len(lender.prefix) < len(prefix) < len(text) and text.startswith(prefix):
                tally.borrow(outcome, borrowed)

    def _request(self, tally: Tally, count: int) -> SampleRequest:
        return SampleRequest(
            prompt=self.prompt.render(tally.problem),
            prefix=tally.prefix,
            n=count,
            first=tally.start + len(tally.rollouts),
            seed=self.seed,
            sampling=self.sampling,
        )


def require_rollable(item: ProblemTrace) -> None:
    """Raises ``LabelError`` for a problem without reference answer, or a chat trace."""
    if item.problem.answer is None:
        raise LabelError(f"problem {item.problem.id} has no 'answer'; rollouts cannot be judged without one")
    if item.trace.text is None:
        raise LabelError(f"trace {item.trace.id} has messages; Monte Carlo rollouts continue text traces")
