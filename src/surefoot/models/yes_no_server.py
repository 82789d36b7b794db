"""The odds of yes against no as the next token of a model behind an OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from openai import APIError, AsyncOpenAI
from pydantic import BaseModel, Field, ValidationError

from surefoot.models.yes_no import YesNo
from surefoot.policies.openai_body import openai_message
from surefoot.protocols import SampleRequest
from surefoot.records import Usage


class OpenAIYesNo:
    """The odds from an OpenAI-compatible server's log probabilities of one more token.

    A ``str`` prompt goes to ``/completions``; messages go to ``/chat/completions`` with
    ``continue_final_message`` (vLLM, SGLang), where a template that rewrites the assistant's words is the
    server's (DeepSeek's drops the reasoning).

    Only the ``top`` likeliest tokens come: if no spelling of yes, or none of no, is among them, the odds are
    unknown, not 0 or 1. A model that is very sure is therefore often unknown here;
    :class:`surefoot.models.yes_no.TransformersYesNo` has no such limit.
    """

    def __init__(
        self,
        *,
        model: str,
        base_url: str,
        yes: Sequence[str],
        no: Sequence[str],
        api_key: str | None = None,
        top: int = 20,
        concurrency: int = 16,
        max_retries: int = 5,
        timeout_s: float = 120.0,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        """``api_key`` defaults to ``OPENAI_API_KEY``; ``timeout_s`` is for one call without its retries."""
        self._model, self._base_url, self._top, self._concurrency = model, base_url, top, concurrency
        self._key = api_key or os.environ.get("OPENAI_API_KEY") or "none"
        self._yes, self._no = frozenset(yes), frozenset(no)
        self._max_retries, self._timeout_s = max_retries, timeout_s
        self._extra_body = dict(extra_body or {})

    async def read(self, requests: Sequence[SampleRequest]) -> list[YesNo]:
        """Log odds after each request's prompt and prefix; a call that fails is unknown, with the reason."""
        gate = asyncio.Semaphore(self._concurrency)
        async with AsyncOpenAI(
            base_url=self._base_url,
            api_key=self._key,
            max_retries=self._max_retries,
            timeout=self._timeout_s,
        ) as client:
            return list(await asyncio.gather(*(self._one(client, gate, request) for request in requests)))

    async def _one(self, client: AsyncOpenAI, gate: asyncio.Semaphore, request: SampleRequest) -> YesNo:
        try:
            async with gate:
                text = await self._post(client, request)
            answer = _Answer.model_validate_json(text)
        except APIError as error:
            return YesNo(log_odds=None, reason=f"server: {error.message}"[:500], usage=Usage(calls=1))
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"]))
            return YesNo(log_odds=None, reason=f"server: malformed answer at {where}", usage=Usage(calls=1))
        spent = Usage(verifier_tokens=answer.usage.prompt_tokens + answer.usage.completion_tokens, calls=1)
        top = answer.choices[0].top()
        if top is None:
            return YesNo(log_odds=None, reason="server: the answer has no log probabilities", usage=spent)
        yes = _log_sum(value for token, value in top if token in self._yes)
        no = _log_sum(value for token, value in top if token in self._no)
        if yes is None or no is None:
            missing = " and ".join(name for name, value in (("yes", yes), ("no", no)) if value is None)
            reason = f"{missing} not among the {len(top)} likeliest tokens"
            return YesNo(log_odds=None, reason=reason, usage=spent)
        return YesNo(log_odds=yes - no, usage=spent)

    async def _post(self, client: AsyncOpenAI, request: SampleRequest) -> str:
        body: dict[str, Any] = {"max_tokens": 1, "temperature": 0.0}
        if isinstance(request.prompt, str):
            body |= {"logprobs": self._top} | self._extra_body
            plain = await client.completions.with_raw_response.create(
                model=self._model, prompt=request.prompt + request.prefix, extra_body=body
            )
            return plain.text
        body |= {"logprobs": True, "top_logprobs": self._top}
        messages: list[Any] = [openai_message(message) for message in request.prompt]
        if request.prefix:
            messages.append({"role": "assistant", "content": request.prefix})
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        chat = await client.chat.completions.with_raw_response.create(
            model=self._model, messages=messages, extra_body=body | self._extra_body
        )
        return chat.text


class _Token(BaseModel):
    token: str
    logprob: float


class _Place(BaseModel):
    top_logprobs: list[_Token]


class _Logprobs(BaseModel):
    """Of either endpoint: ``top_logprobs`` is ``/completions``', ``content`` is ``/chat/completions``'."""

    top_logprobs: list[dict[str, float]] | None = None
    content: list[_Place] | None = None


class _Choice(BaseModel):
    logprobs: _Logprobs | None = None

    def top(self) -> list[tuple[str, float]] | None:
        """Tokens and log probabilities at the first place; ``None`` if the server sent none."""
        if self.logprobs and self.logprobs.top_logprobs:
            return list(self.logprobs.top_logprobs[0].items())
        if self.logprobs and self.logprobs.content:
            return [(entry.token, entry.logprob) for entry in self.logprobs.content[0].top_logprobs]
        return None


class _Counts(BaseModel):
    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)


class _Answer(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: _Counts


def _log_sum(values: Iterable[float]) -> float | None:
    """Log of the sum of exponentials of the finite values; ``None`` if there are none."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return None
    most = max(known)
    return most + math.log(math.fsum(math.exp(value - most) for value in known))
