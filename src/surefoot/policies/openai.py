"""A policy behind any OpenAI-compatible server, through the official asynchronous client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError, AsyncOpenAI
from pydantic import BaseModel, Field, ValidationError

from surefoot.errors import PolicyError
from surefoot.protocols import STOP_UNKNOWN, Completion, SampleRequest, SampleResult
from surefoot.records import Message, ToolCall, Usage, content_id

ERROR_CHARACTERS = 500
"""How much of a server's own words goes into an error."""

_NEUTRAL = {
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""What vLLM otherwise takes from the model's ``generation_config.json``: tokens would then be drawn by rules
that :class:`Sampling` does not tell of, and not as :class:`TransformersPolicy` draws them."""


class OpenAIPolicy:
    """Samples from a server, over ``/chat/completions`` (mode ``chat``) or ``/completions``.

    **Prompts.** In ``completions`` mode a ``str`` prompt and its prefix are sent as one text; messages are
    refused with :class:`PolicyError`, for the template is the server's. In ``chat`` mode a ``str`` prompt is
    one user message, and a prefix is sent as a last assistant message with ``continue_final_message`` (vLLM,
    SGLang). A server that does not know this field either refuses it, which is reported as the request's
    error, or ignores it and answers afresh, which cannot be seen from here: try it once, or use
    ``completions`` mode. Reasoning that a server splits off from the content is not part of the text.

    **Tokens.** ``Completion.tokens`` is what the server counted for that completion, but the protocol has
    only a total for a call. So the ``openai`` dialect makes one call a sample (``n`` is never sent): sample 0
    with the request's seed, the others with seeds derived from it by hashing. The ``vllm`` dialect makes one
    call with ``n`` and a hash of the seed (vLLM adds the sample's number to it), and counts
    the ``token_ids`` that vLLM returns with each choice (vLLM 0.10.2 or newer). These are also given on, as
    ``Completion.token_ids``: they end with the end of the sequence if it was drawn, else with the token that
    completes a stop text. At temperature 0 vLLM refuses ``n`` above 1, so greedy samples are one call each
    there too.
    Either way ``Usage.prompt_tokens`` counts the prompt once a request, and ``Usage.calls`` counts every
    call made, retries included. An answer without ``usage`` is an error, as its cost is unknown.

    **Sampling.** Fields that a request leaves out are the server's to fill. The ``vllm`` dialect leaves none
    out: it also sends neutral values of ``top_k``, ``min_p`` and the penalties, because vLLM otherwise takes
    them from the model's ``generation_config.json``. ``extra_body`` overrides them.

    **Stop texts.** The stop text is kept, but servers drop it. The ``vllm`` dialect asks for it
    (``include_stop_str_in_output``). Elsewhere a text that already ends with a stop text is left alone, and
    one is put back only if the server names it (``stop_reason`` of vLLM, ``matched_stop`` of SGLang). If
    stop texts were asked for and the server does not say what ended the text, the end of the sequence and a
    stop text look the same; the text is then left as it came, with finish reason ``stop_unknown``.

    **Failures.** Connection errors, timeouts and the statuses 408, 409, 429 and 5xx are tried again
    ``max_retries`` times with exponential waits, or after ``Retry-After``. What still fails, other statuses
    and malformed or empty answers give a result whose ``error`` begins with ``server:``; other requests go
    on. If only some of the ``n`` samples came, they are kept and the error says how many are missing.

    One policy serves one event loop at a time; at most ``concurrency`` calls are under way, whatever the
    number of ``sample`` calls at once. Connections are closed when the last of these ends.
    """

    def __init__(
        self,
        *,
        model: str,
        base_url: str,
        api_key: str | None = None,
        mode: Literal["chat", "completions"] = "chat",
        dialect: Literal["openai", "vllm"] = "openai",
        concurrency: int = 16,
        max_retries: int = 5,
        timeout_s: float = 120.0,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        """``api_key`` defaults to ``OPENAI_API_KEY``, then to ``none``; ``extra_body`` overrides any field.

        ``timeout_s`` (seconds) is for one call without its retries. Raises :class:`PolicyError` for an
        unknown mode or dialect, or a limit that is out of range.
        """
        if mode not in ("chat", "completions"):
            raise PolicyError(f"mode={mode!r} is unknown; use 'chat' or 'completions'")
        if dialect not in ("openai", "vllm"):
            raise PolicyError(f"dialect={dialect!r} is unknown; use 'openai' or 'vllm'")
        if concurrency < 1 or max_retries < 0 or timeout_s <= 0:
            raise PolicyError("concurrency must be at least 1, max_retries at least 0 and timeout_s above 0")
        self._model = model
        self._base_url = base_url
        self._api_key = api_key or os.environ.get("OPENAI_API_KEY") or "none"
        self._mode: Literal["chat", "completions"] = mode
        self._dialect: Literal["openai", "vllm"] = dialect
        self._concurrency = concurrency
        self._max_retries = max_retries
        self._timeout_s = timeout_s
        self._extra_body = dict(extra_body or {})
        self._connection: _Connection | None = None

    @property
    def name(self) -> str:
        """The model's name on the server."""
        return self._model

    def with_extra_body(self, extra_body: Mapping[str, Any]) -> OpenAIPolicy:
        """The same policy, which also puts ``extra_body`` into every request; its calls are counted apart."""
        return OpenAIPolicy(
            model=self._model,
            base_url=self._base_url,
            api_key=self._api_key,
            mode=self._mode,
            dialect=self._dialect,
            concurrency=self._concurrency,
            max_retries=self._max_retries,
            timeout_s=self._timeout_s,
            extra_body={**self._extra_body, **extra_body},
        )

    async def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        """Answer all requests, in their order, failures included.

        Raises :class:`PolicyError`, before anything is sent, for messages in ``completions`` mode.
        """
        results: dict[int, SampleResult] = {}
        async with aclosing(self.as_completed(requests)) as answered:
            async for number, result in answered:
                results[number] = result
        return [results[number] for number in range(len(requests))]

    async def as_completed(
        self, requests: Sequence[SampleRequest]
    ) -> AsyncGenerator[tuple[int, SampleResult]]:
        """Yield ``(number of the request, result)`` as answers come, each request once.

        For long runs: a caller can save each result at once. Wrap it in :func:`contextlib.aclosing` if the
        loop may be left early; what is still under way is then cancelled. Raises like :meth:`sample`.
        """
        for request in requests:
            self._check(request)
        async with self._connect() as connection:
            tasks = [asyncio.create_task(self._numbered(connection, *pair)) for pair in enumerate(requests)]
            try:
                for task in asyncio.as_completed(tasks):
                    yield await task
            finally:
                for left in tasks:
                    left.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def _check(self, request: SampleRequest) -> None:
        if request.n < 1:
            raise PolicyError(f"n={request.n} in a sample request; it must be at least 1")
        if self._mode == "completions" and not isinstance(request.prompt, str):
            raise PolicyError(
                "messages as prompt need mode='chat': in 'completions' mode no template is applied"
            )

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[_Connection]:
        """Share one client and one gate among all calls under way; the last one out closes them."""
        connection = self._connection
        if connection is None:
            client = AsyncOpenAI(
                base_url=self._base_url,
                api_key=self._api_key,
                max_retries=self._max_retries,
                timeout=self._timeout_s,
            )
            gate = asyncio.Semaphore(self._concurrency)
            connection = self._connection = _Connection(client, gate, asyncio.get_running_loop())
        elif connection.loop is not asyncio.get_running_loop():
            raise PolicyError(
                "an OpenAIPolicy serves one event loop at a time; make one policy for each loop"
            )
        connection.users += 1
        try:
            yield connection
        finally:
            connection.users -= 1
            if not connection.users:
                self._connection = None
                await connection.client.close()

    async def _numbered(
        self, connection: _Connection, number: int, request: SampleRequest
    ) -> tuple[int, SampleResult]:
        if self._dialect == "vllm" and request.sampling.temperature > 0:
            # vLLM gives sample i the seed s + i. Hashing s keeps requests with neighbouring seeds apart.
            spread = replace(request, seed=_sample_seed(request.seed, 1) + request.first)
            return number, await self._call(connection, spread)
        singles = (
            replace(request, n=1, seed=_sample_seed(request.seed, sample))
            for sample in range(request.first, request.first + request.n)
        )
        return number, _merge(await asyncio.gather(*(self._call(connection, single) for single in singles)))

    async def _call(self, connection: _Connection, request: SampleRequest) -> SampleResult:
        """One call to the server, for ``request.n`` choices."""
        usage = Usage(calls=1)
        try:
            async with connection.gate:
                text, retries = await self._post(connection.client, self._body(request))
            usage = Usage(calls=1 + retries)
            answer = _Answer.model_validate_json(text)
            # Tokens of an answer that turns out to be unusable were spent all the same.
            usage += Usage(**answer.usage.model_dump())
            return self._read(answer, request, usage)
        except APIError as error:
            # The client tells its number of tries only in this header of the request that failed.
            usage = Usage(calls=1 + int(error.request.headers.get("x-stainless-retry-count", 0)))
            reason = _explain(error)
        except UnicodeEncodeError as error:
            usage = Usage()
            reason = f"not sent: the prompt holds {error.object[error.start]!r}, which is not a character"
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            reason = f"malformed answer: {'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}"
        except _AnswerError as error:
            reason = str(error)
        return SampleResult(completions=(), usage=usage, error=f"server: {reason}")

    async def _post(self, client: AsyncOpenAI, body: dict[str, Any]) -> tuple[str, int]:
        """Text of the answer and number of retries. Raw, as the client builds its objects unchecked."""
        raw = client.with_raw_response
        if self._mode == "chat":
            chat = await raw.chat.completions.create(
                model=self._model, messages=body["messages"], extra_body=body
            )
            return chat.text, chat.retries_taken
        plain = await raw.completions.create(model=self._model, prompt=body["prompt"], extra_body=body)
        return plain.text, plain.retries_taken

    def _body(self, request: SampleRequest) -> dict[str, Any]:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self._model,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": request.seed,
        }
        if isinstance(request.prompt, str) and self._mode == "completions":
            body["prompt"] = request.prompt + request.prefix
        else:
            prompt = request.prompt
            messages = (Message(role="user", content=prompt),) if isinstance(prompt, str) else prompt
            body["messages"] = [_message(message) for message in messages]
            if request.prefix:
                body["messages"].append({"role": "assistant", "content": request.prefix})
                body |= {"continue_final_message": True, "add_generation_prompt": False}
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if self._dialect == "vllm":
            body |= {"n": request.n, "include_stop_str_in_output": True, "return_token_ids": True, **_NEUTRAL}
        return body | self._extra_body

    def _read(self, answer: _Answer, request: SampleRequest, usage: Usage) -> SampleResult:
        """Turn the server's answer into a result; raises :class:`_AnswerError` if nothing can be kept."""
        if not answer.choices:
            raise _AnswerError("the answer has no choices")
        if len(answer.choices) > request.n:
            raise _AnswerError(f"{len(answer.choices)} choices came, {request.n} were asked for")
        choices = sorted(answer.choices, key=lambda choice: choice.index)
        completions = tuple(
            _completion(choice, self._mode, request.sampling.stop, _tokens(choice, answer))
            for choice in choices
        )
        missing = request.n - len(completions)
        error = f"server: {missing} of {request.n} choices are missing" if missing else None
        return SampleResult(completions=completions, usage=usage, error=error)


@dataclass
class _Connection:
    client: AsyncOpenAI
    gate: asyncio.Semaphore
    loop: asyncio.AbstractEventLoop
    users: int = 0


class _AnswerError(Exception):
    """A well-formed answer from which no completion can be taken."""


class _Function(BaseModel):
    name: str
    arguments: str = "{}"


class _ToolCall(BaseModel):
    id: str | None = None
    function: _Function


class _Reply(BaseModel):
    content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(BaseModel):
    """What is read of a choice of either endpoint; other fields are left alone."""

    index: int = 0
    finish_reason: str | None = None
    text: str | None = None
    message: _Reply | None = None
    token_ids: list[int] | None = None
    stop_reason: str | int | None = None
    matched_stop: str | int | list[int] | None = None


class _Counts(BaseModel):
    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)


class _Answer(BaseModel):
    choices: list[_Choice]
    usage: _Counts


def _completion(choice: _Choice, mode: str, stop: tuple[str, ...], tokens: int) -> Completion:
    calls: tuple[ToolCall, ...] = ()
    if mode == "completions":
        text = choice.text
    elif choice.message is None:
        text = None
    else:
        made = choice.message.tool_calls or []
        calls = tuple(ToolCall(id=c.id, name=c.function.name, arguments=c.function.arguments) for c in made)
        # A reply of tool calls alone has no content; a null content without any is an empty reply.
        text = choice.message.content or ""
    if text is None:
        raise _AnswerError(f"malformed answer: choice {choice.index} has no text; is mode={mode!r} right?")
    text, reason = _restore_stop(choice, text, stop)
    drawn = tuple(choice.token_ids or ())
    return Completion(text=text, finish_reason=reason, tokens=tokens, tool_calls=calls, token_ids=drawn)


def _restore_stop(choice: _Choice, text: str, stop: tuple[str, ...]) -> tuple[str, str]:
    """Text with the stop text that ended it, and the finish reason; see the class for the rule."""
    reason = choice.finish_reason or "unknown"
    if reason != "stop" or not stop or text.endswith(stop):
        return text, reason
    told = choice.model_fields_set & {"stop_reason", "matched_stop"}
    for mark in (choice.stop_reason, choice.matched_stop):
        if mark in stop:
            return f"{text}{mark}", reason
    # A reported null, or a token's number, is the end of the sequence.
    return text, reason if told else STOP_UNKNOWN


def _tokens(choice: _Choice, answer: _Answer) -> int:
    if choice.token_ids is not None:
        return len(choice.token_ids)
    if len(answer.choices) > 1:
        raise _AnswerError("no token_ids came with several choices (an old vLLM?); use dialect='openai'")
    return answer.usage.completion_tokens


def _merge(results: Sequence[SampleResult]) -> SampleResult:
    """One result from calls of one sample each; the prompt, common to all, is counted once."""
    if len(results) == 1:
        return results[0]
    errors = [result.error for result in results if result.error]
    total = sum((result.usage for result in results), Usage())
    usage = total.model_copy(update={"prompt_tokens": max(result.usage.prompt_tokens for result in results)})
    completions = tuple(completion for result in results for completion in result.completions)
    error = f"{errors[0]} ({len(errors)} of {len(results)} samples are missing)" if errors else None
    return SampleResult(completions=completions, usage=usage, error=error)


def _sample_seed(seed: int, sample: int) -> int:
    """Seed of one sample: the request's own for the first, a hash of both below 2**31 for the others."""
    return seed if sample == 0 else int(content_id("sample seed", seed, sample), 16) % 2**31


def _message(message: Message) -> dict[str, Any]:
    """A message in the OpenAI shape."""
    sent: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        sent["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        sent["tool_call_id"] = message.tool_call_id
    return sent


def _explain(error: APIError) -> str:
    if isinstance(error, APIStatusError):
        # The client's own message leaves out the server's reason.
        return f"status {error.status_code}: {error.response.text[:ERROR_CHARACTERS]}"
    if isinstance(error, APITimeoutError):
        return "no answer in time; raise timeout_s or lower concurrency"
    if isinstance(error, APIConnectionError):
        return f"connection failed: {error.__cause__ or error}"
    return str(error)
