"""What the generating interfaces answer: OpenAI's bodies, with a field ``surefoot``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from surefoot.gateway.plan import GeneratedChoice, Generation
from surefoot.gateway.settings import Candidates
from surefoot.records import Usage
from surefoot.search.method import SearchCounts, SearchResult


class ResponseModel(BaseModel):
    """Base of what is answered."""

    model_config = ConfigDict(frozen=True)


class TokenUsage(ResponseModel):
    """Tokens. Prompt and completion are the policy's, over all candidates; the verifier's are apart."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    verifier_tokens: int
    calls: int
    """Calls of policy and verifier."""

    @classmethod
    def of(cls, usage: Usage) -> TokenUsage:
        """From the usage of a search."""
        return cls(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            total_tokens=usage.prompt_tokens + usage.completion_tokens,
            verifier_tokens=usage.verifier_tokens,
            calls=usage.calls,
        )


class ScoredStep(ResponseModel):
    """A step as a span of the candidate's text, in characters."""

    start: int
    end: int
    score: float | None


class CandidateResponse(ResponseModel):
    """A solution that was found."""

    text: str
    answer: str | None
    """Final answer, as extracted."""
    value: float | None
    """Aggregated score."""
    weight: int
    """How often it was drawn."""
    chosen: bool
    finish_reason: str | None
    steps: list[ScoredStep]
    unscored_reason: str | None = None


class DroppedStep(ResponseModel):
    """A step that was drawn and dropped."""

    step: int
    """Its place in the solution, counted from 0."""
    text: str
    score: float | None


class SearchResponse(ResponseModel):
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
    candidates: list[CandidateResponse]
    """Solutions that were found."""
    dropped: list[DroppedStep] = []
    """Steps that lead to none of them; where all candidates are shown."""


class Extension(ResponseModel):
    """Field ``surefoot`` of an answer: how it was found, and what it cost."""

    strategy: str
    seed: int
    """The same request with this seed gives the same answer."""
    policy: str
    scorer: str | None
    searches: list[SearchResponse]
    """One a choice."""


def extension(generation: Generation, candidates: Candidates) -> Extension:
    """The field for a generation, with all candidates, the chosen ones or none."""
    return Extension(
        strategy=generation.strategy,
        seed=generation.seed,
        policy=generation.policy,
        scorer=generation.scorer,
        searches=[_search(number, choice, candidates) for number, choice in enumerate(generation.choices)],
    )


def _search(index: int, choice: GeneratedChoice, candidates: Candidates) -> SearchResponse:
    result = choice.result
    places: Sequence[int] = range(len(result.candidates))
    if candidates != "all":
        places = [result.chosen] if candidates == "chosen" and result.chosen is not None else []
    if choice.withheld and candidates != "all":
        places = []
    return SearchResponse(
        index=index,
        seed=result.seed,
        rule=result.rule,
        chosen=result.chosen,
        value=choice.value,
        abstained=choice.abstained,
        usage=TokenUsage.of(result.usage),
        counts=result.counts,
        error=result.error,
        candidates=[_candidate(result, number) for number in places],
        dropped=_dropped(choice) if candidates == "all" else [],
    )


def _dropped(choice: GeneratedChoice) -> list[DroppedStep]:
    if choice.tree is None:
        return []
    nodes = (choice.tree.nodes[place] for place in choice.dropped)
    return [DroppedStep(step=node.depth - 1, text=node.text, score=node.score) for node in nodes]


def _candidate(result: SearchResult, number: int) -> CandidateResponse:
    trace = result.candidates[number]
    record = result.scores[number] if result.scores else None
    scores = record.scores if record else (None,) * len(trace.steps)
    text = trace.text if trace.text is not None else (trace.messages[-1].content or "")
    return CandidateResponse(
        text=text,
        answer=trace.answer,
        value=result.values[number],
        weight=result.weights[number],
        chosen=number == result.chosen,
        finish_reason=trace.finish_reason,
        steps=[
            ScoredStep(start=step.start, end=step.end, score=score)
            for step, score in zip(trace.steps, scores, strict=True)
        ],
        unscored_reason=record.unscored_reason if record else None,
    )


CONTENT_FILTER = "content_filter"
"""Finish reason of a text that was withheld."""


class OutputFunctionCall(ResponseModel):
    """Function and arguments of a tool call."""

    name: str
    arguments: str


class OutputToolCall(ResponseModel):
    """A tool call; ``index`` is there in streams only."""

    index: int | None = Field(default=None, exclude_if=lambda value: value is None)
    id: str
    type: Literal["function"] = "function"
    function: OutputFunctionCall


class OutputMessage(ResponseModel):
    """The assistant's message; ``refusal`` says why an answer was withheld."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: str | None = None
    tool_calls: list[OutputToolCall] | None = Field(default=None, exclude_if=lambda value: value is None)


class ChatChoice(ResponseModel):
    """One answer."""

    index: int
    message: OutputMessage
    logprobs: None = None
    finish_reason: str


class ChatResponse(ResponseModel):
    """Answer of ``/v1/chat/completions``."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: TokenUsage
    surefoot: Extension


class TextChoice(ResponseModel):
    """One answer."""

    index: int
    text: str
    logprobs: None = None
    finish_reason: str


class CompletionResponse(ResponseModel):
    """Answer of ``/v1/completions``."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: TokenUsage
    surefoot: Extension


def chat_choice(index: int, choice: GeneratedChoice, *, refusal_as_text: bool = False) -> ChatChoice:
    """A choice as a whole message."""
    if choice.withheld and refusal_as_text:
        return ChatChoice(
            index=index, message=OutputMessage(content=choice.withheld), finish_reason=CONTENT_FILTER
        )
    message = OutputMessage(
        content=None if choice.withheld or (choice.tool_calls and not choice.text) else choice.text,
        refusal=choice.withheld,
        tool_calls=output_tool_calls(choice) or None,
    )
    return ChatChoice(index=index, message=message, finish_reason=choice.finish_reason)


def text_choice(index: int, choice: GeneratedChoice) -> TextChoice:
    """A choice as a text; empty if it was withheld."""
    reason = CONTENT_FILTER if choice.withheld else choice.finish_reason
    return TextChoice(index=index, text="" if choice.withheld else choice.text, finish_reason=reason)


def output_tool_calls(choice: GeneratedChoice, *, numbered: bool = False) -> list[OutputToolCall]:
    """A choice's tool calls."""
    return [
        OutputToolCall(
            index=number if numbered else None,
            id=call.id or f"call_{number}",
            function=OutputFunctionCall(name=call.name, arguments=call.arguments),
        )
        for number, call in enumerate(choice.tool_calls)
    ]
