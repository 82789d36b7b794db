"""Answers to generating requests, as one body or as a stream of events."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from surefoot.records import Ending, Step, ToolCall, Usage
from surefoot.segment import Channels, channels_of
from surefoot.server.gateway.choice import Choice, usage_of
from surefoot.server.gateway.errors import ApiError
from surefoot.server.gateway.schemas import ChatRequest
from surefoot.server.gateway.settings import GatewaySettings
from surefoot.server.records import GatewayCandidate, GatewayRecord, HeldCall

Json = dict[str, Any]
"""A JSON object."""
Emit = Callable[[str], None]
"""Sends one event of a stream, in its wire format."""


FINISH_REASONS: Mapping[Ending, str] = {
    "finished": "stop",
    "unknown": "stop",
    "truncated": "length",
    "filtered": "content_filter",
    "tool_call": "tool_calls",
}
"""The words of OpenAI's older formats."""


class ResponseWriter:
    """Base of all answer formats: :meth:`response` makes one body, the other methods write a stream."""

    id_prefix: str

    def __init__(self, body: ChatRequest, record: GatewayRecord, settings: GatewaySettings) -> None:
        self.emit: Emit = lambda _: None
        self._sent: defaultdict[int, list[str]] = defaultdict(list)
        """Pieces of each choice's text that the client has received."""
        self._sent_reasoning: defaultdict[int, list[str]] = defaultdict(list)
        self._shown = body.options.candidates or settings.candidates
        self._refusal_as_text, self._body = settings.refusal_as_text, body
        self._record, self._created = record, int(record.created.timestamp())
        self._head = {"id": record.request_id, "created": self._created, "model": body.model}

    def response(self, choices: Sequence[Choice]) -> Json:
        """The body of an answer that is not streamed."""
        raise NotImplementedError

    def begin(self, count: int) -> None:
        """Start a stream of ``count`` choices."""

    def on_text(self, number: int, reasoning: str, text: str) -> None:
        """Send new reasoning and text of a choice."""
        if reasoning:
            self._sent_reasoning[number].append(reasoning)
            self.send_reasoning(number, reasoning)
        if text:
            self._sent[number].append(text)
            self.send_text(number, text)

    def sent(self) -> dict[int, str]:
        """Text of each choice that the client has received."""
        return {number: "".join(pieces) for number, pieces in self._sent.items()}

    def send_text(self, number: int, text: str) -> None:
        """Send a choice's next piece of text."""
        raise NotImplementedError

    def send_reasoning(self, number: int, text: str) -> None:
        """Send a choice's next piece of reasoning, where the format has a place for it."""

    def send_remaining(self, number: int, choice: Choice) -> None:
        """Send the remaining text. Raises :class:`ApiError` if it contradicts the sent text."""
        sent = "".join(self._sent[number])
        if not choice.text.startswith(sent):
            raise ApiError(500, "the answer does not begin with the text that was sent", code="stream")
        thought = sum(map(len, self._sent_reasoning[number]))
        self.on_text(number, (choice.reasoning or "")[thought:], choice.text[len(sent) :])

    def end(self, choices: Sequence[Choice]) -> None:
        """Send everything else. Raises :class:`ApiError` if it contradicts the sent text."""
        raise NotImplementedError

    def last_event(self, error: ApiError | None) -> str:
        """The last event of a stream, after :meth:`end` or an error; may be empty."""
        raise NotImplementedError

    def extension(self, choices: Sequence[Choice]) -> Json:
        """The field ``surefoot``: the search of each choice with all candidates, the chosen one or none, as
        the client asked. The same request with its seed gives the same answer."""
        return {
            "strategy": self._record.strategy,
            "seed": choices[0].seed,
            "policy": self._record.policy or "",
            "scorer": self._record.scorer,
            "searches": [_search(number, choice, self._shown) for number, choice in enumerate(choices)],
        }


class ChatWriter(ResponseWriter):
    """``chat.completion``: messages, or pieces of messages.

    The last event with a choice has the field ``surefoot``; with ``stream_options.include_usage``, one more
    event has the usage.
    """

    id_prefix = "chatcmpl"

    def response(self, choices: Sequence[Choice]) -> Json:
        """The body of an answer that is not streamed."""
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [self._whole(number, choice) for number, choice in enumerate(choices)],
            "usage": token_usage(usage_of(choices)),
            "surefoot": self.extension(choices),
        }

    def _whole(self, number: int, choice: Choice) -> Json:
        no_text = choice.withheld or (choice.tool_calls and not choice.text)
        content, refusal, ending = None if no_text else choice.text, choice.withheld, choice.ending
        if refusal and self._refusal_as_text:
            content, refusal, ending = refusal, None, "filtered"
        message = _output(content, refusal, choice.reasoning, choice.tool_calls)
        reason = FINISH_REASONS[ending]
        return {"index": number, "message": message, "logprobs": None, "finish_reason": reason}

    def begin(self, count: int) -> None:
        """Send each choice's role."""
        for number in range(count):
            self._delta(number, {"role": "assistant", "content": ""})

    def send_reasoning(self, number: int, text: str) -> None:
        """See the base class."""
        self._delta(number, {"reasoning": text, "reasoning_content": text})

    def send_text(self, number: int, text: str) -> None:
        """See the base class."""
        self._delta(number, {"content": text})

    def end(self, choices: Sequence[Choice]) -> None:
        """See the base class."""
        for number, choice in enumerate(choices):
            self.send_remaining(number, choice)
            whole = self._whole(number, choice)
            if choice.withheld:
                name = "refusal" if whole["message"]["refusal"] else "content"
                self._delta(number, {name: choice.withheld})
            if choice.tool_calls:
                self._delta(number, {"tool_calls": output_calls(choice.tool_calls, numbered=True)})
            more = {"surefoot": self.extension(choices)} if number == len(choices) - 1 else {}
            self._delta(number, {}, whole["finish_reason"], **more)
        if self._body.stream_options and self._body.stream_options.include_usage:
            self._send([], usage=token_usage(usage_of(choices)))

    def last_event(self, error: ApiError | None) -> str:
        """The error in OpenAI's format, or ``[DONE]``."""
        return f"data: {json.dumps(error.body) if error else '[DONE]'}\n\n"

    def _delta(self, number: int, delta: Json, reason: str | None = None, **extra: Any) -> None:
        choice = {"index": number, "delta": delta, "logprobs": None, "finish_reason": reason}
        self._send([choice], **extra)

    def _send(self, choices: list[Json], **extra: Any) -> None:
        head = {"object": "chat.completion.chunk", **self._head}
        data = json.dumps({**head, "choices": choices, **extra}, ensure_ascii=False)
        self.emit(f"data: {data}\n\n")


class EventWriter(ResponseWriter):
    """Formats with one choice, whose streams consist of named events."""

    def event(self, kind: str, **fields: Any) -> str:
        """An event in its wire format."""
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields}, ensure_ascii=False)}\n\n"

    def send(self, kind: str, **fields: Any) -> None:
        """Send an event."""
        self.emit(self.event(kind, **fields))


def token_usage(usage: Usage) -> Json:
    """Tokens and calls. Prompt and completion tokens are the policy's, over all candidates."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "verifier_tokens": usage.verifier_tokens,
        "calls": usage.calls,
    }


def output_calls(calls: Sequence[ToolCall], *, numbered: bool = False) -> list[Json]:
    """Calls as clients receive them, each with an id; in streams ``numbered``."""
    return [
        {
            **({"index": number} if numbered else {}),
            "id": call.id or f"call_{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for number, call in enumerate(calls)
    ]


def _output(
    content: str | None,
    refusal: str | None = None,
    reasoning: str | None = None,
    calls: Sequence[ToolCall] = (),
) -> Json:
    """The assistant's message; ``refusal`` gives the reason for a missing answer."""
    message: Json = {"role": "assistant", "content": content, "refusal": refusal}
    if reasoning is not None:  # as vLLM and OpenRouter call it, and as DeepSeek and SGLang do
        message |= {"reasoning": reasoning, "reasoning_content": reasoning}
    if calls:
        message["tool_calls"] = output_calls(calls)
    return message


def _search(index: int, choice: Choice, shown: str) -> Json:
    numbers: Sequence[int] = range(len(choice.candidates))
    if shown != "all":
        numbers = [choice.chosen] if shown == "chosen" and choice.chosen is not None else []
    if choice.withheld and (shown != "all" or choice.guarded):
        numbers = []
    elif choice.guarded:
        numbers = [number for number in numbers if number == choice.chosen]
    finish = choice.finish
    search = {
        "index": index,
        "seed": choice.seed,
        "rule": choice.rule,
        "chosen": choice.chosen,
        "value": choice.value,
        "abstained": choice.abstained,
        "finish": finish,
        "usage": token_usage(choice.usage),
        "counts": choice.counts.model_dump(),
        "error": choice.error or (choice.withheld if choice.chosen is None else None),
        "candidates": [_candidate(choice.candidates[number], number == choice.chosen) for number in numbers],
        "dropped": choice.dropped if shown == "all" else [],
    }
    if finish == "rejected":
        rejected = f"{choice.counts.rejected} steps of the answer were rejected, and no draw was better"
        search["warnings"] = [rejected]
    if finish == "unscored":
        reasons = (candidate.scores.unscored_reason for candidate in choice.candidates if candidate.scores)
        reason = next(filter(None, reasons), "no reason given")
        search["warnings"] = [f"no candidate has a score ({reason}), so votes or order decided"]
    if choice.decisions:
        search["guard"] = [
            {
                "action": decision.action,
                "stage": decision.by_stage,
                "reason": decision.reason,
                "held": decision.held,
                "review": decision.review.model_dump(mode="json") if decision.review else None,
                "latency_ms": decision.latency_ms,
            }
            for decision in choice.decisions
        ]
    return search


def _candidate(candidate: GatewayCandidate, chosen: bool) -> Json:
    trace, record = candidate.trace, candidate.scores
    scores = record.scores if record else (None,) * len(trace.steps)
    channels = channels_of(trace.text or "")
    last = trace.messages[-1] if trace.messages else None
    hidden, text = (last.reasoning, last.content or "") if last else (trace.reasoning, channels.answer)
    row = {
        "text": text,
        "answer": trace.answer,
        "value": candidate.score,
        "weight": candidate.weight,
        "chosen": chosen,
        "finish_reason": trace.finish_reason,
        "steps": [
            _scored_step(step, score, channels)
            for step, score in zip(trace.steps, scores, strict=True)
            if step.message in (None, len(trace.messages) - 1)
        ],
        "unscored_reason": record.unscored_reason if record else None,
    }
    if reasoning := channels.reasoning or (hidden.readable if hidden else None):
        row["reasoning"] = reasoning
    if last and last.tool_calls:
        row["tool_calls"] = output_calls(last.tool_calls)
    return row


def _scored_step(step: Step, score: float | None, channels: Channels) -> Json:
    """A step as a span of the candidate's text, or of its ``part``: ``reasoning``, or the arguments of
    ``call``."""
    start, end, part = step.start, step.end, step.part
    if step.message is None:
        start, end, thought = channels.place(start, end) or (0, 0, False)
        part = "reasoning" if thought else part
    row: Json = {"start": start, "end": end, "score": score}
    if part != "content":
        row["part"] = part
    if step.call is not None:
        row["call"] = step.call
    return row


def held_response(number: int, held: HeldCall, *, delivered: bool) -> Json:
    """A held message as far as it may be seen: its calls only if this answer delivers them.

    ``approved``: they are to be executed once; ``delivered``: an earlier answer had them.
    """
    review, reply = held.review, held.reply
    state = "waiting" if review is None else "denied"
    if review is not None and review.approved:
        state = "approved" if delivered else "delivered"
    return {
        "number": number,
        "state": state,
        "comment": review.comment if review else "",
        "message": _output(reply.content, calls=reply.tool_calls) if delivered else None,
    }
