"""Field ``surefoot`` of an answer: what was found on the way, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from surefoot.gateway.schemas import Candidates
from surefoot.gateway.tasks import Choice, Generation
from surefoot.records import Usage
from surefoot.search.result import SearchCounts, SearchResult


class Told(BaseModel):
    """Base of what is answered."""

    model_config = ConfigDict(frozen=True)


class TokenUsage(Told):
    """Tokens. Prompt and completion are the policy's, over all candidates; the verifier's are apart."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    verifier_tokens: int
    calls: int
    """Requests made of policy and verifier."""

    @classmethod
    def of(cls, usage: Usage) -> TokenUsage:
        """From the account of a search."""
        return cls(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            total_tokens=usage.prompt_tokens + usage.completion_tokens,
            verifier_tokens=usage.verifier_tokens,
            calls=usage.calls,
        )


class ToldStep(Told):
    """A step as a span of the candidate's text, in characters."""

    start: int
    end: int
    score: float | None


class ToldCandidate(Told):
    """A solution that was found."""

    text: str
    answer: str | None
    """Final answer, as extracted."""
    value: float | None
    """Aggregated score."""
    weight: int
    """How often it was found."""
    chosen: bool
    finish_reason: str | None
    steps: list[ToldStep]
    unscored_reason: str | None = None


class ToldDropped(Told):
    """A step that was drawn and given up."""

    step: int
    """Its place in the solution, counted from 0."""
    text: str
    score: float | None


class ToldSearch(Told):
    """How one choice came about."""

    index: int
    seed: int
    rule: str
    chosen: int | None
    """Index of the chosen one of all candidates that were found."""
    value: float | None
    """Its aggregated score."""
    abstained: bool
    usage: TokenUsage
    counts: SearchCounts
    error: str | None
    candidates: list[ToldCandidate]
    """Solutions that were found."""
    dropped: list[ToldDropped] = []
    """Steps that lead to none of them; where all candidates are shown."""


class Extension(Told):
    """Field ``surefoot`` of an answer."""

    strategy: str
    seed: int
    """Sent again, with the same request, it gives the same answer."""
    policy: str
    scorer: str | None
    searches: list[ToldSearch]
    """One a choice."""


def extension(generation: Generation, candidates: Candidates) -> Extension:
    """What was found, with all candidates, the chosen ones or none."""
    return Extension(
        strategy=generation.strategy,
        seed=generation.seed,
        policy=generation.policy,
        scorer=generation.scorer,
        searches=[_told(number, choice, candidates) for number, choice in enumerate(generation.choices)],
    )


def _told(index: int, choice: Choice, candidates: Candidates) -> ToldSearch:
    result = choice.result
    shown: Sequence[int] = range(len(result.candidates))
    if candidates != "all":
        shown = [result.chosen] if candidates == "chosen" and result.chosen is not None else []
    if choice.withheld and candidates != "all":
        shown = []
    return ToldSearch(
        index=index,
        seed=result.seed,
        rule=result.rule,
        chosen=result.chosen,
        value=choice.value,
        abstained=choice.abstained,
        usage=TokenUsage.of(result.usage),
        counts=result.counts,
        error=result.error,
        candidates=[_candidate(result, number) for number in shown],
        dropped=_dropped(choice) if candidates == "all" else [],
    )


def _dropped(choice: Choice) -> list[ToldDropped]:
    if choice.tree is None:
        return []
    nodes = (choice.tree.nodes[place] for place in choice.dropped)
    return [ToldDropped(step=node.depth - 1, text=node.text, score=node.score) for node in nodes]


def _candidate(result: SearchResult, number: int) -> ToldCandidate:
    trace = result.candidates[number]
    record = result.scores[number] if result.scores else None
    scores = record.scores if record else (None,) * len(trace.steps)
    text = trace.text if trace.text is not None else (trace.messages[-1].content or "")
    return ToldCandidate(
        text=text,
        answer=trace.answer,
        value=result.values[number],
        weight=result.weights[number],
        chosen=number == result.chosen,
        finish_reason=trace.finish_reason,
        steps=[
            ToldStep(start=step.start, end=step.end, score=score)
            for step, score in zip(trace.steps, scores, strict=True)
        ],
        unscored_reason=record.unscored_reason if record else None,
    )
