"""Answers to generating requests: as one body, or in the chunks of a stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel

from surefoot.guard import GuardDecision
from surefoot.records import ToolCall
from surefoot.search.method import SearchResult
from surefoot.server.gateway.errors import ApiError
from surefoot.server.gateway.plan import CONTENT_FILTER, GeneratedChoice, Generation
from surefoot.server.gateway.records import HeldCall
from surefoot.server.gateway.request_log import LogEntry
from surefoot.server.gateway.schemas import (
    CandidateResponse,
    ChatChoice,
    ChatResponse,
    CompletionResponse,
    DroppedStep,
    Extension,
    GenerationRequest,
    GuardSummary,
    HeldResponse,
    OutputFunctionCall,
    OutputMessage,
    OutputToolCall,
    ScoredStep,
    SearchResponse,
    TextChoice,
    TokenUsage,
)
from surefoot.server.gateway.settings import Candidates, GatewaySettings

Emit = Callable[[str], None]
"""Sends one event of a stream, as it stands on the wire."""


class ResponseWriter:
    """Base of all forms of answers: :meth:`response` is the whole one, the other methods write a stream."""

    id_prefix: str

    def __init__(self, body: GenerationRequest, entry: LogEntry, settings: GatewaySettings) -> None:
        self.emit: Emit = lambda _: None
        self.sent: dict[int, str] = {}
        """Text of each choice that the client has received."""
        self._candidates = body.options.candidates or settings.candidates
        self._refusal_as_text = settings.refusal_as_text
        self._created = int(entry.created.timestamp())
        self._head = {"id": entry.id, "created": self._created, "model": body.model}

    def response(self, generation: Generation) -> BaseModel:
        """The body of an answer that is not streamed."""
        raise NotImplementedError

    def begin(self, count: int) -> None:
        """Start a stream of ``count`` choices."""

    def on_text(self, number: int, text: str) -> None:
        """Send what is new in ``text``, with which a choice is certain to begin."""
        sent = self.sent.get(number, "")
        if len(text) > len(sent):
            self.sent[number] = text
            self.send_text(number, text[len(sent) :])

    def send_text(self, number: int, text: str) -> None:
        """Send a choice's next piece of text."""
        raise NotImplementedError

    def send_rest(self, number: int, choice: GeneratedChoice) -> None:
        """Send the text that was not sent. Raises :class:`ApiError` if it contradicts what was."""
        text = "" if choice.withheld else choice.text
        if not text.startswith(self.sent.get(number, "")):
            raise ApiError(500, "the answer does not begin with what was sent of it", code="stream")
        self.on_text(number, text)

    def end(self, generation: Generation) -> None:
        """Send the rest. Raises :class:`ApiError` if it contradicts what was sent before."""
        raise NotImplementedError

    def last_event(self, error: ApiError | None) -> str:
        """What stands at the end of a stream, after :meth:`end` or an error; may be nothing."""
        raise NotImplementedError


class ChunkWriter(ResponseWriter):
    """OpenAI's older forms, whose streams are chunks of one kind.

    The last event with a choice has the field ``surefoot``; with ``stream_options.include_usage`` there is
    one more, which has the usage.
    """

    chunk: str
    """Type of the object that is a chunk."""

    def __init__(self, body: GenerationRequest, entry: LogEntry, settings: GatewaySettings) -> None:
        super().__init__(body, entry, settings)
        self._usage = bool(body.stream_options and body.stream_options.include_usage)
        self._chunk_head = {"object": self.chunk, **self._head}

    def response(self, generation: Generation) -> BaseModel:
        """The body of an answer that is not streamed."""
        return self.whole(
            list(enumerate(generation.choices)),
            usage=TokenUsage.of(generation.usage),
            surefoot=extension(generation, self._candidates),
            **self._head,
        )

    def send_text(self, number: int, text: str) -> None:
        """As the base says."""
        self._send([self.piece(number, text)])

    def last_event(self, error: ApiError | None) -> str:
        """The error in OpenAI's form, or ``[DONE]``."""
        return f"data: {json.dumps(error.body) if error else '[DONE]'}\n\n"

    def end(self, generation: Generation) -> None:
        """As the base says."""
        for number, choice in enumerate(generation.choices):
            self.send_rest(number, choice)
            last = number == len(generation.choices) - 1
            field = extension(generation, self._candidates).model_dump(mode="json") if last else None
            self._send(self.closing(number, choice), field)
        if self._usage:
            self._dump([], {"usage": TokenUsage.of(generation.usage).model_dump(mode="json")})

    def whole(self, choices: Sequence[tuple[int, GeneratedChoice]], **fields: Any) -> BaseModel:
        """The body with these choices, by their numbers, and the other ``fields``."""
        raise NotImplementedError

    def piece(self, number: int, text: str) -> dict[str, Any]:
        """A choice with new text."""
        raise NotImplementedError

    def closing(self, number: int, choice: GeneratedChoice) -> list[dict[str, Any]]:
        """A choice's last pieces."""
        raise NotImplementedError

    def _send(self, pieces: list[dict[str, Any]], field: dict[str, Any] | None = None) -> None:
        for place, piece in enumerate(pieces):
            more = {"surefoot": field} if field is not None and place == len(pieces) - 1 else {}
            self._dump([piece], more)

    def _dump(self, choices: list[dict[str, Any]], more: dict[str, Any]) -> None:
        data = json.dumps({**self._chunk_head, "choices": choices, **more}, ensure_ascii=False)
        self.emit(f"data: {data}\n\n")


class ChatWriter(ChunkWriter):
    """``chat.completion``: a message, or pieces of it."""

    id_prefix = "chatcmpl"
    chunk = "chat.completion.chunk"

    def whole(self, choices: Sequence[tuple[int, GeneratedChoice]], **fields: Any) -> BaseModel:
        """As the base says."""
        return ChatResponse(choices=[self._choice(*pair) for pair in choices], **fields)

    def begin(self, count: int) -> None:
        """Send each choice's role."""
        self._send([_delta(number, {"role": "assistant", "content": ""}) for number in range(count)])

    def piece(self, number: int, text: str) -> dict[str, Any]:
        """New content."""
        return _delta(number, {"content": text})

    def closing(self, number: int, choice: GeneratedChoice) -> list[dict[str, Any]]:
        """Refusal, tool calls, and the reason for the end."""
        pieces = []
        if choice.reasoning and not choice.withheld:
            pieces.append(_delta(number, {"reasoning_content": choice.reasoning}))
        if choice.withheld and self._refusal_as_text:
            return [_delta(number, {"content": choice.withheld}), _delta(number, {}, CONTENT_FILTER)]
        if choice.withheld:
            pieces.append(_delta(number, {"refusal": choice.withheld}))
        if choice.tool_calls:
            calls = [call.model_dump(mode="json") for call in output_calls(choice.tool_calls, numbered=True)]
            pieces.append(_delta(number, {"tool_calls": calls}))
        return [*pieces, _delta(number, {}, choice.finish_reason)]

    def _choice(self, index: int, choice: GeneratedChoice) -> ChatChoice:
        if choice.withheld and self._refusal_as_text:
            message = OutputMessage(content=choice.withheld)
            return ChatChoice(index=index, message=message, finish_reason=CONTENT_FILTER)
        message = OutputMessage(
            content=None if choice.withheld or (choice.tool_calls and not choice.text) else choice.text,
            refusal=choice.withheld,
            reasoning_content=None if choice.withheld else choice.reasoning,
            tool_calls=output_calls(choice.tool_calls) or None,
        )
        return ChatChoice(index=index, message=message, finish_reason=choice.finish_reason)


class TextWriter(ChunkWriter):
    """``text_completion``: a text, or pieces of it; empty if it was withheld."""

    id_prefix = "cmpl"
    chunk = "text_completion"

    def whole(self, choices: Sequence[tuple[int, GeneratedChoice]], **fields: Any) -> BaseModel:
        """As the base says."""
        texts = [
            TextChoice(
                index=index,
                text="" if choice.withheld else choice.text,
                finish_reason=CONTENT_FILTER if choice.withheld else choice.finish_reason,
            )
            for index, choice in choices
        ]
        return CompletionResponse(choices=texts, **fields)

    def piece(self, number: int, text: str) -> dict[str, Any]:
        """New text."""
        return {"index": number, "text": text, "logprobs": None, "finish_reason": None}

    def closing(self, number: int, choice: GeneratedChoice) -> list[dict[str, Any]]:
        """The reason for the end."""
        reason = CONTENT_FILTER if choice.withheld else choice.finish_reason
        return [{"index": number, "text": "", "logprobs": None, "finish_reason": reason}]


def _delta(number: int, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"index": number, "delta": delta, "logprobs": None, "finish_reason": reason}


def output_calls(calls: Sequence[ToolCall], *, numbered: bool = False) -> list[OutputToolCall]:
    """Calls as clients get them, each with an id."""
    return [
        OutputToolCall(
            index=number if numbered else None,
            id=call.id or f"call_{number}",
            function=OutputFunctionCall(name=call.name, arguments=call.arguments),
        )
        for number, call in enumerate(calls)
    ]


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
    if choice.withheld and (candidates != "all" or choice.guarded):
        places = []
    elif choice.guarded:
        places = [place for place in places if place == result.chosen]
    return SearchResponse(
        index=index,
        seed=result.seed,
        rule=result.rule,
        chosen=result.chosen,
        value=choice.value,
        abstained=choice.abstained,
        usage=TokenUsage.of(result.usage),
        counts=result.counts,
        error=result.error or (choice.withheld if result.chosen is None else None),
        candidates=[_candidate(result, number) for number in places],
        dropped=_dropped(choice) if candidates == "all" else [],
        guard=[_summary(decision) for decision in choice.decisions],
    )


def _summary(decision: GuardDecision) -> GuardSummary:
    return GuardSummary(
        action=decision.action,
        stage=decision.by_stage,
        reason=decision.reason,
        held=decision.held,
        review=decision.review,
        latency_ms=decision.latency_ms,
    )


def held_response(number: int, held: HeldCall) -> HeldResponse:
    """A held message as far as it may be seen: its calls once they are approved."""
    review, reply = held.review, held.reply
    approved = review is not None and review.approved
    return HeldResponse(
        number=number,
        state="waiting" if review is None else "approved" if approved else "denied",
        comment=review.comment if review else "",
        message=OutputMessage(content=reply.content, tool_calls=output_calls(reply.tool_calls))
        if approved
        else None,
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
            ScoredStep(
                start=step.start,
                end=step.end,
                score=score,
                part=None if step.part == "content" else step.part,
                call=step.call,
            )
            for step, score in zip(trace.steps, scores, strict=True)
            if step.message in (None, len(trace.messages) - 1)
        ],
        tool_calls=output_calls(trace.messages[-1].tool_calls) or None if trace.messages else None,
        unscored_reason=record.unscored_reason if record else None,
    )
