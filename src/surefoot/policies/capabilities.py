"""What an OpenAI-compatible server can do, measured by a dozen short requests before work starts.

Servers take fields that they do not know and ignore them, so a status of 200 says nothing: each capability is
decided by what came back.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from surefoot.errors import PolicyError
from surefoot.policies.http_client import CallError, HttpClient
from surefoot.policies.openai_responses import Mode, ResponseBody, ResponseChoice
from surefoot.printable import quoted
from surefoot.protocols import Policy
from surefoot.records import FrozenModel, Message

CapabilityName = Literal[
    "continuation", "logprobs", "n", "seeds", "tool_calls", "stop_strings", "token_ids", "reasoning"
]
MEANINGS: Mapping[CapabilityName, str] = {
    "continuation": "continue the beginning of an answer",
    "logprobs": "return the log-probabilities of sampled tokens",
    "n": "return several samples of one request",
    "seeds": "repeat a sample for an equal seed",
    "tool_calls": "call tools",
    "stop_strings": "say which stop text ended a sample",
    "token_ids": "return the ids of sampled tokens",
    "reasoning": "return reasoning apart from the answer",
}


class Capability(FrozenModel):
    """Whether a server can do one thing, and how this is known."""

    status: Literal["yes", "no", "unknown"]
    evidence: str

    @property
    def confirmed(self) -> bool:
        """Unknown is never better than missing."""
        return self.status == "yes"


class Capabilities(FrozenModel):
    """What a policy can do; see :data:`MEANINGS`."""

    continuation: Capability
    logprobs: Capability
    n: Capability
    seeds: Capability
    tool_calls: Capability
    stop_strings: Capability
    token_ids: Capability
    reasoning: Capability

    def require(
        self, name: CapabilityName, server: str, instead: str, *, accept_unknown: bool = False
    ) -> None:
        """Raise :class:`PolicyError` unless ``name`` is confirmed; ``instead`` names an alternative."""
        capability: Capability = getattr(self, name)
        if not (capability.confirmed or (accept_unknown and capability.status == "unknown")):
            failing = "cannot" if capability.status == "no" else "may not be able to"
            raise PolicyError(f"{server} {failing} {MEANINGS[name]} ({capability.evidence}); {instead}")


IN_PROCESS = Capabilities.model_validate(
    {name: {"status": "yes", "evidence": "the model is in this process"} for name in MEANINGS}
)


def capabilities_of(policy: Policy) -> Capabilities:
    """What ``policy`` can do: a server is probed once, a policy of this process keeps to the protocol.

    Blocks for some seconds at a server's first call; in an event loop call it in a thread.
    """
    probe = getattr(policy, "capabilities", None)
    return IN_PROCESS if probe is None else probe()


_TASK = "Write the numbers from one to twenty as English words, separated by commas, and nothing else."
_BEGINNING = "one, two, three, four, five, six, seven, eight, nine, ten, eleven, twel"
"""Ends within a word: what continues it begins with ``ve``, and a new answer with a whole word."""
_REST = "ve"
_CLOSED_REASONING = "<think>\nTwenty words are wanted.\n</think>\n\n"
_MIN_GROWTH = 6
"""Tokens by which the beginning, of twelve words, lengthens the prompt at least."""
_RAW_PROMPT = 4
"""Most tokens of a prompt of one character; a chat template adds more."""
_TOOL = {
    "type": "function",
    "function": {
        "name": "record_number",
        "description": "Record a number in the table of measurements. " * 8,
        "parameters": {
            "type": "object",
            "properties": {"number": {"type": "integer", "description": "The number to record."}},
            "required": ["number"],
        },
    },
}
_REFUSED = frozenset({400, 404, 405, 415, 422, 500, 501})
"""Statuses of a server that does not take a field; others are failures."""
_QUOTED = 60


@dataclass(frozen=True, kw_only=True)
class _Reply:
    """A reply to one request of the probe, with its counts bounded; or why there is none."""

    body: ResponseBody | None = None
    refused: bool = False
    problem: str = ""

    @property
    def choice(self) -> ResponseChoice:
        return self.body.choices[0] if self.body else ResponseChoice()

    @property
    def prompt_tokens(self) -> int | None:
        return self.body.usage.prompt_tokens if self.body else None

    @property
    def text(self) -> str:
        message = self.choice.message
        return (message.content if message else self.choice.text) or ""

    @property
    def reasoning(self) -> str:
        message = self.choice.message
        if message is None:
            return ""
        details = "".join(part.text or part.summary or "" for part in message.reasoning_details or ())
        return message.reasoning_content or message.reasoning or details

    @property
    def thinks_in_text(self) -> bool:
        return self.text.lstrip().startswith("<think>")

    def failure(self) -> Capability:
        """The capability that the request asked for, if it got no reply."""
        return Capability(status="no" if self.refused else "unknown", evidence=self.problem)


async def probe_server(
    client: HttpClient, model: str, mode: Mode, extra_body: Mapping[str, Any] | None = None
) -> Capabilities:
    """Probe one server; ``extra_body`` goes into every request. Failures make capabilities unknown."""
    asking = _Probe(client, model, mode, dict(extra_body or {}))
    if mode == "chat":
        return await asking.chat()
    return await asking.completions()


class _Probe:
    def __init__(self, client: HttpClient, model: str, mode: Mode, extra_body: dict[str, Any]) -> None:
        self._client, self._mode = client, mode
        self._path = "/chat/completions" if mode == "chat" else "/completions"
        shaping = ("tools", "tool_choice", "response_format", "n", "stop", "stream")
        self._common = {name: value for name, value in extra_body.items() if name not in shaping}
        self._common["model"] = model

    async def chat(self) -> Capabilities:
        task = Message(role="user", content=_TASK)
        plain = await self._ask([task])
        thinks = bool(plain.reasoning) or plain.thinks_in_text
        beginning = (_CLOSED_REASONING if thinks else "") + _BEGINNING
        started = [task, Message(role="assistant", content=beginning)]
        continued, answered, called, shared = await asyncio.gather(
            self._ask(started, continue_final_message=True, add_generation_prompt=False),
            self._ask(started),
            self._ask(
                [Message(role="user", content="Record 7 with the tool.")], max_tokens=128, tools=[_TOOL]
            ),
            self._shared([task]),
        )
        return Capabilities(
            continuation=_continues(plain, continued, answered),
            tool_calls=_calls_tools(plain, called),
            reasoning=_separates_reasoning(plain),
            **shared,
        )

    async def completions(self) -> Capabilities:
        digit, begun, shared = await asyncio.gather(
            self._ask("1", max_tokens=1), self._ask(_BEGINNING), self._shared(f"{_TASK}\n")
        )
        none = Capability(status="no", evidence="/completions takes text, not messages")
        return Capabilities(
            continuation=_reads_raw_text(digit, begun), tool_calls=none, reasoning=none, **shared
        )

    async def _shared(self, prompt: Any) -> dict[str, Capability]:
        """Capabilities that both endpoints may have."""
        random = {"temperature": 1.5, "max_tokens": 16}
        logprobs = {"logprobs": True, "top_logprobs": 0} if self._mode == "chat" else {"logprobs": 0}
        sample, same_seed, other_seed, several, probable, stopped, numbered = await asyncio.gather(
            self._ask(prompt, **random, seed=1),
            self._ask(prompt, **random, seed=1),
            self._ask(prompt, **random, seed=2),
            self._ask(prompt, **random, n=2, seed=1),
            self._ask(prompt, max_tokens=2, **logprobs),
            self._ask(prompt, stop=[","]),
            self._ask(prompt, max_tokens=2, return_token_ids=True),
        )
        return {
            "seeds": _keeps_seeds(sample, same_seed, other_seed),
            "n": _counted(several),
            "logprobs": _presence(probable, "logprobs", probable.choice.logprobs is not None),
            "stop_strings": _names_stops(stopped),
            "token_ids": _presence(numbered, "token_ids", numbered.choice.token_ids is not None),
        }

    async def _ask(self, prompt: str | list[Message], **fields: Any) -> _Reply:
        sent = (
            {"prompt": prompt}
            if isinstance(prompt, str)
            else {"messages": [{"role": message.role, "content": message.content} for message in prompt]}
        )
        body = {**self._common, "temperature": 0, "max_tokens": 24, **sent, **fields}
        try:
            data = await self._client.request_once(self._path, body, max_bytes=4_000_000)
            reply = ResponseBody.model_validate_json(data)
        except CallError as error:
            message = quoted(" ".join((error.body or str(error)).split()), _QUOTED)
            status = f"status {error.status}: " if error.status else ""
            return _Reply(refused=error.status in _REFUSED, problem=f"{status}{message}")
        except (ValidationError, UnicodeError):
            return _Reply(problem="the reply is not one of an OpenAI-compatible server")
        if not reply.choices:
            return _Reply(problem="the reply is without choices")
        reply.usage.limit(body, completion=body["max_tokens"] * body.get("n", 1))
        return _Reply(body=reply)


def _continues(plain: _Reply, continued: _Reply, answered: _Reply) -> Capability:
    """Whether a chat continues the last message, from the lengths of prompts and from the text.

    Unless the fields are ignored, the prompt is longer than without the beginning, and shorter than with the
    beginning as a finished message and the opening of the next one.
    """
    tokens_plain, tokens_begun, closed = plain.prompt_tokens, continued.prompt_tokens, answered.prompt_tokens
    if tokens_plain is None:
        return plain.failure()
    if tokens_begun is None:
        return continued.failure()
    if tokens_begun < tokens_plain + _MIN_GROWTH:
        evidence = f"the prompt has {tokens_plain} tokens without a beginning and {tokens_begun} with one"
        return Capability(status="no", evidence=evidence)
    grown = f"the beginning makes the prompt grow from {tokens_plain} to {tokens_begun} tokens"
    if continued.reasoning or continued.thinks_in_text:
        return Capability(status="no", evidence="reasoning starts again after a beginning that has closed it")
    text = continued.text
    continuation = f"{quoted(text, _QUOTED)!r} follows {_BEGINNING[-6:]!r}"
    if text.startswith(_REST):
        return Capability(status="yes", evidence=f"{grown}, and {continuation}")
    took_effect = closed is not None and tokens_begun < closed
    if re.match(r"\W*(one|twelve)\b", text, re.IGNORECASE):
        return Capability(status="unknown" if took_effect else "no", evidence=f"starts again: {continuation}")
    if took_effect:
        closing = f"and a finished message would have made it {closed}"
        return Capability(status="yes", evidence=f"{grown}, {closing}")
    return Capability(status="unknown", evidence=continuation)


def _reads_raw_text(digit: _Reply, begun: _Reply) -> Capability:
    """Whether ``/completions`` continues the prompt as it stands, without a chat template around it."""
    short, long = digit.prompt_tokens, begun.prompt_tokens
    if short is None:
        return digit.failure()
    if long is None:
        return begun.failure()
    counts = f"prompts of 1 and {len(_BEGINNING)} characters have {short} and {long} tokens"
    if long < short + _MIN_GROWTH:
        return Capability(status="unknown", evidence=counts)
    return Capability(status="no" if short > _RAW_PROMPT else "yes", evidence=counts)


def _calls_tools(plain: _Reply, called: _Reply) -> Capability:
    if called.body is None:
        return called.failure()
    message = called.choice.message
    calls = [call.function.name for call in (message and message.tool_calls) or () if call.function]
    if "record_number" in calls:
        return Capability(status="yes", evidence="a tool was called")
    tokens_plain, tokens_called = plain.prompt_tokens, called.prompt_tokens
    if tokens_plain is not None and tokens_called is not None and tokens_called <= tokens_plain:
        evidence = f"the prompt has {tokens_called} tokens, fewer than the tool needs"
        return Capability(status="no", evidence=evidence)
    return Capability(status="unknown", evidence=f"answers {quoted(called.text, _QUOTED)!r}")


def _separates_reasoning(plain: _Reply) -> Capability:
    if plain.body is None:
        return plain.failure()
    if plain.reasoning:
        return Capability(status="yes", evidence="the reply has reasoning in a field")
    if plain.thinks_in_text:
        return Capability(status="no", evidence="the text begins with <think>")
    details = plain.body.usage.completion_tokens_details
    if details and details.reasoning_tokens:
        return Capability(status="no", evidence="reasoning is counted and not returned")
    return Capability(status="unknown", evidence="no reasoning about a simple task")


def _keeps_seeds(first: _Reply, again: _Reply, other: _Reply) -> Capability:
    for reply in (first, again, other):
        if reply.body is None:
            return reply.failure()
    samples = [reply.reasoning + reply.text for reply in (first, again, other)]
    if samples[0] != samples[1]:
        return Capability(status="no", evidence="two samples with one seed differ")
    if samples[0] == samples[2]:
        return Capability(status="unknown", evidence="samples with different seeds are equal, too")
    return Capability(status="yes", evidence="equal with one seed, different with another")


def _counted(several: _Reply) -> Capability:
    if several.body is None:
        return several.failure()
    choices = several.body.choices
    if len(choices) != 2:
        return Capability(status="no", evidence=f"{len(choices)} of 2 samples came")
    first, second = (_Reply(body=several.body.model_copy(update={"choices": [choice]})) for choice in choices)
    if first.reasoning + first.text == second.reasoning + second.text:
        # a server that gives each choice the same seed: votes would count one sample several times
        return Capability(status="unknown", evidence="two samples of one request are equal")
    return Capability(status="yes", evidence="2 of 2 samples came, and they differ")


def _names_stops(stopped: _Reply) -> Capability:
    if stopped.body is None:
        return stopped.failure()
    choice = stopped.choice
    if "," in (choice.stop_reason, choice.matched_stop):
        return Capability(status="yes", evidence="the stop text is named")
    if "," in stopped.text.rstrip(","):
        return Capability(status="no", evidence="the text continues after a stop text")
    if choice.finish_reason == "stop" and not choice.model_fields_set & {"stop_reason", "matched_stop"}:
        return Capability(status="no", evidence="no field says why the text ended")
    return Capability(status="unknown", evidence="no sample reached a stop text")


def _presence(reply: _Reply, field: str, present: bool) -> Capability:
    if reply.body is None:
        return reply.failure()
    return Capability(
        status="yes" if present else "no", evidence=f"{field} {'came' if present else 'did not come'}"
    )
