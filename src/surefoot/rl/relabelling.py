"""What an expert would have done in the states that a policy came to: the relabelling of DAgger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from surefoot.errors import TrainingError
from surefoot.labelling.step_match import ExactText, SameNumbers, SimilarText, StepMatch
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import (
    STOP_UNKNOWN,
    Policy,
    ProblemTrace,
    SampleRequest,
    SampleResult,
    Sampling,
    Segmenter,
)
from surefoot.records import Step, Trace, Usage
from surefoot.training.cloning import Demonstration

After = Literal["until_error", "all"]


@dataclass(frozen=True, kw_only=True)
class Expert:
    """Who is imitated."""

    policy: Policy
    prompt: PromptFormat = field(default_factory=PromptFormat)
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0.0, max_tokens=96))
    """With a stop text that ends a step it writes one step at a time: cheap where it rarely agrees for long.
    Without, it writes on, and is asked again only after the policy has left its path."""


@dataclass(frozen=True, kw_only=True)
class Relabelled:
    """What an expert made of one rollout."""

    shown: tuple[Demonstration, ...]
    """Together they have the expert's decision in every state that counts, each once."""
    states: int
    """States in which it decided: before each step, and at the end."""
    agreed: int
    """Of these, those in which the policy did the same, word for word."""
    dropped: Counter[str]
    usage: Usage


async def relabel(
    expert: Expert,
    rollouts: Sequence[ProblemTrace],
    *,
    segmenter: Segmenter,
    after: After = "until_error",
    match: StepMatch[Any] | None = None,
    seed: int = 0,
) -> list[Relabelled]:
    """The expert's decisions in the states of text ``rollouts``; one record each, in order.

    A state is the text up to a step; where the policy ended a solution itself, to have ended there is a
    decision as well. While the policy's steps are the expert's own, word for word, one reply of the expert
    counts for several states: it is what the expert does there. A failure, or a step that is cut off, ends
    the rollout's relabelling and is counted.
    """
    walks = [_Walk(item, after, match or ExactText()) for item in rollouts]
    while going := [walk for walk in walks if not walk.done]:
        requests = [walk.request(expert, seed) for walk in going]
        for walk, result in zip(going, await expert.policy.sample(requests), strict=True):
            walk.hear(result, expert, segmenter)
    return [
        Relabelled(
            shown=tuple(walk.shown),
            states=walk.states,
            agreed=walk.agreed,
            dropped=walk.dropped,
            usage=walk.usage,
        )
        for walk in walks
    ]


def step_match(name: str) -> StepMatch[Any]:
    """The rule of that name, with its own tolerance."""
    rules: dict[str, StepMatch[Any]] = {
        rule.name: rule for rule in (ExactText(), SameNumbers(), SimilarText())
    }
    return rules[name]


class _Walk:
    """One rollout, gone through decision by decision: the text of a step, or ``None`` to end here."""

    def __init__(self, item: ProblemTrace, after: After, match: StepMatch[Any]) -> None:
        trace = item.trace
        if trace.text is None:
            raise TrainingError(f"trace {trace.id} is a chat; an expert goes on from texts alone")
        self._problem, self._trace, self._after, self._match = item.problem, trace, after, match
        self._own: list[str | None] = [trace.step_text(step) for step in range(len(trace.steps))]
        if trace.finish_reason != "length":
            self._own.append(None)
        self._at = 0  # decisions before the state
        self._same: list[int] = []  # decisions that are the expert's too, in no demonstration yet
        self.shown: list[Demonstration] = []
        self.states = self.agreed = 0
        self.dropped: Counter[str] = Counter()
        self.usage = Usage()
        self.done = False

    def request(self, expert: Expert, seed: int) -> SampleRequest:
        """Ask for what the expert would do in this state, and after."""
        return SampleRequest(
            prompt=expert.prompt.render(self._problem),
            prefix=self._trace.prefix(self._at),
            seed=seed,
            sampling=expert.sampling,
        )

    def hear(self, result: SampleResult, expert: Expert, segmenter: Segmenter) -> None:
        """Follow a reply for as long as the rollout does the same."""
        self.usage += Usage(verifier_tokens=result.usage.tokens, calls=result.usage.calls)
        reply = self._decisions(result, expert.sampling.stop, segmenter)
        for number, decision in enumerate(reply):
            if self._at == len(self._own):
                break
            self.states += 1
            if decision != self._own[self._at]:
                last = reply[number + 1 : number + 2] == [None]
                self._correct(decision, expert.policy.name, last=last)
                return
            self.agreed += 1
            self._same.append(self._at)
            self._at += 1
        if not reply or self._at == len(self._own):
            self._finish()

    def _decisions(
        self, result: SampleResult, stop: tuple[str, ...], segmenter: Segmenter
    ) -> list[str | None]:
        """What the expert does from here on; nothing (counted) if that is not known."""
        if not result.completions:
            self.dropped["states that the expert failed in"] += 1
            return []
        completion = result.completions[0]
        prefix = self._trace.prefix(self._at)
        text = prefix + completion.text if completion.text.strip() else prefix
        spans = segmenter.segment(text) if text != prefix else []
        found: list[str | None] = [text[max(a, len(prefix)) : b] for a, b in spans if b > len(prefix)]
        if len(found) > 1 and not str(found[0]).strip():
            found[:2] = [f"{found[0]}{found[1]}"]  # white space that the cut gave to the step before
        if completion.finish_reason not in ("stop", STOP_UNKNOWN):
            found = found[:-1]
            self.dropped["expert's steps that were cut off"] += not found
        elif not (stop and text.endswith(stop)) or text == prefix:
            found.append(None)
        if found == [None] and not prefix.strip():
            self.dropped["problems that the expert wrote nothing of"] += 1
            return []
        return found

    def _correct(self, decision: str | None, name: str, *, last: bool) -> None:
        """Show the decision that the expert takes in place of the policy's, and go on if that is wanted."""
        at, before = self._at, self._trace.prefix(self._at)
        steps = self._trace.steps[:at]
        if decision is not None:
            steps = (*steps, Step(start=len(before), end=len(before) + len(decision)))
        shown = Trace(
            problem_id=self._problem.id,
            text=before + (decision or ""),
            steps=steps,
            policy=name,
            meta={"rollout": self._trace.id},
        )
        learned = (*self._same, at) if decision is not None else tuple(self._same)
        self.shown.append(Demonstration(trace=shown, steps=learned, end=last or decision is None))
        self._same = []
        self._at += 1
        if self._at >= len(self._own) or (self._after == "until_error" and not self._alike(shown, at)):
            self._finish()

    def _alike(self, shown: Trace, at: int) -> bool:
        """Whether the rollout's step ``at`` is the expert's in other words."""
        if at >= len(shown.steps) or at >= len(self._trace.steps):
            return False
        mine, theirs = self._match.key(self._trace, at), self._match.key(shown, at)
        return mine is not None and theirs is not None and bool(self._match.same(mine, theirs))

    def _finish(self) -> None:
        """Show what the rollout has in common with the expert since its last correction."""
        self.done = True
        steps = tuple(at for at in self._same if self._own[at] is not None)
        if self._same:
            end = len(steps) < len(self._same)
            self.shown.append(Demonstration(trace=self._trace, steps=steps, end=end))
