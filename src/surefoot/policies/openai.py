"""A policy behind any OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
from pydantic import ValidationError

from surefoot.concurrency import FairQueue, run_sync
from surefoot.errors import PolicyError
from surefoot.policies.capabilities import Capabilities
from surefoot.policies.http_client import MAX_RESPONSE_BYTES, CallError, HttpClient, NotStreamed, open_session
from surefoot.policies.openai_requests import PATHS, Dialect, body_of, openai_message
from surefoot.policies.openai_responses import (
    Mode,
    ResponseBody,
    ResponseBuilder,
    ResponseError,
    Show,
    check_parts,
    merge,
    read,
)
from surefoot.policies.probe import probe_server
from surefoot.printable import quoted
from surefoot.protocols import SampleRequest, SampleResult
from surefoot.records import Usage, content_id

_SMALL_BYTES, _BYTES_PER_CHARACTER, _BYTES_PER_TOKEN = 1_000_000, 16, 2048
"""Largest response: for the frame, for each character of the prompt, whose tokens may be repeated, and for
each new token with its log-probability."""
CONCURRENCY = 16


class OpenAIPolicy:
    """Samples from a server, over ``/chat/completions`` (mode ``chat``) or ``/completions``.

    **Prompts.** In ``completions`` mode a ``str`` prompt and its prefix are sent as one text; messages are
    refused with :class:`PolicyError`, because only the server knows the chat template. In ``chat`` mode a
    ``str`` prompt is one user message, and a prefix is sent as a last assistant message with
    ``continue_final_message`` (vLLM, SGLang). A server without this field either refuses the request, which
    is reported as its error, or ignores the field and starts a new answer, which :meth:`capabilities`
    detects; use ``completions`` mode there. Reasoning that a server separates from the content is not part of
    the text.

    **Tokens.** ``Completion.tokens`` is the server's count for that completion. The protocol only has a total
    per call, so the ``openai`` dialect makes one call per sample and never sends ``n``. The ``vllm`` dialect
    makes one call with ``n`` and counts the ``token_ids`` that vLLM (0.10.2 or newer) returns with each
    choice. These are passed on as ``Completion.token_ids``; they end with the end-of-sequence token if it was
    sampled, otherwise with the token that completes a stop text. At temperature 0 vLLM refuses ``n`` above 1,
    so greedy samples are one call each there too. ``Usage.prompt_tokens`` counts the prompt once per request,
    and ``Usage.calls`` counts every call, retries included. A response without ``usage`` is an error, because
    its cost is unknown.

    **Seeds.** A server's random numbers depend only on the seed. So each sample's seed is a hash of the
    request's seed, prompt, prefix and the sample's number (``vllm`` dialect: a hash of the first three, to
    which vLLM adds the number). Equal requests have equal seeds.

    **Sampling.** The server chooses the values of fields that a request omits. The ``vllm`` dialect also
    sends neutral values of ``top_k``, ``min_p`` and the penalties, because vLLM otherwise takes them from the
    model's ``generation_config.json``. ``extra_body`` overrides them.

    **Stop texts.** The text keeps its stop text, which servers drop. The ``vllm`` dialect asks for it
    (``include_stop_str_in_output``). In the ``openai`` dialect it is appended only if the server names it
    (``stop_reason`` in vLLM, ``matched_stop`` in SGLang) and the text does not already end with a stop text.
    If stop texts were requested and the server does not report which one matched, the end of the sequence and
    a stop text look the same. The text is then left unchanged, with finish reason ``stop_unknown``.

    **Failures.** Connection errors, timeouts and the statuses 408, 409, 429 and 5xx are retried
    ``max_retries`` times with exponential backoff, or after ``Retry-After``. If a request still fails, or the
    response is malformed or empty, its result has an ``error`` that begins with ``server:``; other requests
    continue. If only some of the ``n`` samples arrive, they are kept and the error says how many are missing.

    **Streams.** :meth:`stream` sends the same request with ``stream`` and ``stream_options.include_usage``,
    and returns the same result. A stream that breaks off is retried only if none of its text was shown;
    ``timeout_s`` then bounds the wait for the headers and for each piece. A server that answers with one
    plain response is supported. The tokens of a broken stream are unknown and not counted.

    One policy serves one event loop at a time. At most ``concurrency`` calls are in flight, however many
    ``sample`` calls run at once. Connections are closed when the last of these ends.
    """

    overlaps = True
    """See :class:`surefoot.protocols.Policy`."""

    def __init__(
        self,
        *,
        model: str,
        base_url: str,
        api_key: str | None = None,
        mode: Mode = "chat",
        dialect: Dialect = "openai",
        concurrency: int = CONCURRENCY,
        max_retries: int = 5,
        timeout_s: float = 120.0,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        """``api_key`` defaults to ``OPENAI_API_KEY``, then to ``none``; ``extra_body`` overrides any field.

        ``timeout_s`` (seconds) bounds one whole call without its retries, however slowly its bytes arrive.
        Raises :class:`PolicyError` for an unknown mode or dialect, or a limit that is out of range.
        """
        if mode not in ("chat", "completions"):
            raise PolicyError(f"mode={mode!r} is unknown; use 'chat' or 'completions'")
        if dialect not in ("openai", "vllm"):
            raise PolicyError(f"dialect={dialect!r} is unknown; use 'openai' or 'vllm'")
        if concurrency < 1 or max_retries < 0 or timeout_s <= 0:
            raise PolicyError("concurrency must be at least 1, max_retries at least 0 and timeout_s above 0")
        self._model = model
        self._mode: Mode = mode
        self._dialect: Dialect = dialect
        self._extra_body = dict(extra_body or {})
        self._shares_calls = False
        self._server = _Server(
            url=base_url,
            api_key=api_key,
            concurrency=concurrency,
            max_retries=max_retries,
            timeout_s=timeout_s,
        )

    @property
    def name(self) -> str:
        """The model's name on the server."""
        return self._model

    @property
    def path(self) -> str:
        """Path of the endpoint."""
        return PATHS[self._mode]

    @property
    def concurrency(self) -> int:
        """Calls that may be in flight at once."""
        return self._server.concurrency

    def with_extra_body(self, extra_body: Mapping[str, Any]) -> OpenAIPolicy:
        """A copy of this policy that adds ``extra_body`` to every request.

        Both share their connections, and ``concurrency`` bounds their calls together.
        """
        policy = copy(self)
        policy._extra_body = {**self._extra_body, **extra_body}
        return policy

    def with_shared_calls(self) -> OpenAIPolicy:
        """A copy that also asks in the ``openai`` dialect for all samples of a request in one call, if the
        probe found that the server returns several.

        The tokens of such samples are known in total, and are divided by the lengths of the texts.
        """
        policy = copy(self)
        policy._shares_calls = True
        return policy

    def capabilities(self) -> Capabilities:
        """What the server can do, probed once for this policy and its copies.

        Servers often ignore unsupported fields without an error, so check before relying on one: a prefix in
        ``chat`` mode above all.
        """
        server = self._server
        if server.capabilities is None:
            server.capabilities = run_sync(self._probe())
        return server.capabilities

    @property
    def probed(self) -> Capabilities | None:
        """The result of :meth:`capabilities`, if it was called."""
        return self._server.capabilities

    async def _probe(self) -> Capabilities:
        async with open_session() as session:
            client = self._server.connect(session)
            return await probe_server(client, self._model, self._mode, self._extra_body)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Keep the connections open until the end of the block, even between calls.

        Opening them takes about 50 ms. Raises :class:`PolicyError` as :meth:`sample` does.
        """
        async with self._server:
            yield

    async def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        """Answer all requests, in their order, failures included.

        Raises :class:`PolicyError`, before anything is sent, for messages in ``completions`` mode.
        """
        for request in requests:
            self._check(request)
        async with self._server:
            return await _all(self._answer(request) for request in requests)

    async def stream(self, request: SampleRequest, show: Show) -> SampleResult:
        """Answer one request; see :class:`surefoot.protocols.StreamsText`. Raises like :meth:`sample`."""
        self._check(request)
        async with self._server:
            return await self._answer(request, show)

    def _check(self, request: SampleRequest) -> None:
        if request.n < 1:
            raise PolicyError(f"n={request.n} in a sample request; it must be at least 1")
        if self._mode == "completions" and not isinstance(request.prompt, str):
            raise PolicyError(
                "messages as prompt need mode='chat': in 'completions' mode no template is applied"
            )

    async def _answer(self, request: SampleRequest, show: Show | None = None) -> SampleResult:
        probed = self.probed
        shared = self._shares_calls and request.n > 1 and probed is not None and probed.n.confirmed
        if (shared or self._dialect == "vllm") and request.sampling.temperature > 0:
            # vLLM gives sample i the seed s + i.
            spread = replace(request, seed=_sample_seed(request, 0) + request.first)
            return await self._call(spread, show)
        singles = [
            replace(request, n=1, seed=_sample_seed(request, sample))
            for sample in range(request.first, request.first + request.n)
        ]
        shows = [None if show is None else _numbered(show, number) for number in range(request.n)]
        return merge(await _all(self._call(*pair) for pair in zip(singles, shows, strict=True)))

    def _call(self, request: SampleRequest, show: Show | None) -> Coroutine[Any, Any, SampleResult]:
        body = body_of(request, model=self._model, mode=self._mode, dialect=self._dialect) | self._extra_body
        call = _Call(server=self._server, body=body, request=request, mode=self._mode, show=show)
        return call.result()


async def _all(calls: Iterable[Coroutine[Any, Any, SampleResult]]) -> list[SampleResult]:
    """Await all calls concurrently; a single call does not need a task."""
    coroutines = list(calls)
    return [await coroutines[0]] if len(coroutines) == 1 else list(await asyncio.gather(*coroutines))


def _numbered(show: Show, number: int) -> Show:
    return lambda _, text: show(number, text)


def _sample_seed(request: SampleRequest, sample: int) -> int:
    """Seed of one sample, below 2**31: a hash of the request's seed, its prompt and prefix, and the number.

    If every prompt had the same seed, a lucky random stream would be lucky for all prompts, and a mean over
    problems would be as noisy as a single problem.
    """
    prompt = request.prompt
    sent = prompt if isinstance(prompt, str) else [openai_message(message) for message in prompt]
    return int(content_id("sample seed", request.seed, sent, request.prefix, sample, plain=True), 16) % 2**31


@dataclass(kw_only=True, eq=False)
class _Server:
    """A server; its connections are shared by all policies that use it and open during calls."""

    url: str
    api_key: str | None
    concurrency: int
    max_retries: int
    timeout_s: float
    capabilities: Capabilities | None = None
    client: HttpClient = field(init=False)
    """While connected."""
    window: FairQueue = field(init=False)
    """Bounds the calls that are in flight, while connected, in fair turns of the clients."""
    session: aiohttp.ClientSession | None = None
    loop: asyncio.AbstractEventLoop | None = None
    users: int = 0

    def connect(self, session: aiohttp.ClientSession) -> HttpClient:
        return HttpClient(session, self.url, api_key=self.api_key, timeout_s=self.timeout_s)

    async def __aenter__(self) -> None:
        """Open the connections, or share the open ones; the last user closes them.

        Raises :class:`PolicyError` if calls are in flight in another event loop.
        """
        loop = asyncio.get_running_loop()
        if self.session is None:
            self.session, self.loop = open_session(), loop
            self.client, self.window = self.connect(self.session), FairQueue(self.concurrency)
        elif self.loop is not loop:
            raise PolicyError(
                "an OpenAIPolicy serves one event loop at a time; make one policy for each loop"
            )
        self.users += 1

    async def __aexit__(self, *_: object) -> None:
        self.users -= 1
        if not self.users and self.session is not None:
            session, self.session = self.session, None
            await session.close()
            await asyncio.sleep(0)  # lets its transports close


@dataclass(kw_only=True, eq=False)
class _Call:
    """One request, sent until the server answers; ``attempts`` counts the calls."""

    server: _Server
    body: Mapping[str, Any]
    request: SampleRequest
    mode: Mode
    show: Show | None
    text_shown: bool = False
    attempts: int = 0

    async def result(self) -> SampleResult:
        """The result; a server's failure is its ``error``, which begins with ``server:``."""
        spent = None
        try:
            response = await self._response()
            # The tokens of an unusable response were spent, too.
            counts = response.usage
            counts.limit(self.body, completion=self._most_tokens)
            spent = Usage(
                prompt_tokens=counts.prompt_tokens,
                completion_tokens=counts.completion_tokens,
                cached_tokens=counts.cached_tokens,
                calls=self.attempts,
            )
            divide = "return_token_ids" not in self.body
            return read(response, self.request, self.mode, spent, divide_tokens=divide)
        except (CallError, ResponseError) as error:
            reason = str(error)
        except UnicodeEncodeError as error:
            self.attempts = 0
            reason = f"not sent: the prompt holds {error.object[error.start]!r}, which is not a character"
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            reason = f"malformed answer: {'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}"
        except ValueError as error:
            reason = f"malformed answer: {error}"
        usage = spent or Usage(calls=self.attempts)
        return SampleResult(completions=(), usage=usage, error=f"server: {reason}")

    @property
    def _most_tokens(self) -> int:
        return self.request.n * self.request.sampling.max_tokens

    async def _response(self) -> ResponseBody:
        """The server's response, with retries until some text was shown."""
        client, max_retries = self.server.client, self.server.max_retries
        prompt = self.request.prompt
        characters = len(prompt) if isinstance(prompt, str) else sum(len(row.content or "") for row in prompt)
        small = _SMALL_BYTES + _BYTES_PER_CHARACTER * characters
        max_bytes = min(MAX_RESPONSE_BYTES, small + _BYTES_PER_TOKEN * self._most_tokens)
        turn = await self.server.window.take()  # not async_turn: each call would pay for its generator
        try:
            while True:
                self.attempts += 1
                try:
                    if self.show is None:
                        path = PATHS[self.mode]
                        data = await client.request_once(path, self.body, max_bytes=max_bytes)
                        check_parts(data, self._most_tokens)
                        return ResponseBody.model_validate_json(data)
                    return await self._streamed(client, self.show, max_bytes)
                except CallError as error:
                    if self.text_shown or not error.retryable or self.attempts > max_retries:
                        raise
                    await asyncio.sleep(error.wait_s(self.attempts))
        finally:
            self.server.window.leave(turn)

    async def _streamed(self, client: HttpClient, show: Show, max_bytes: int) -> ResponseBody:
        def show_piece(number: int, text: str) -> None:
            self.text_shown = True
            show(number, text)

        builder = ResponseBuilder(self.request, self.mode, show_piece)
        body = {"stream_options": {"include_usage": True}, **self.body, "stream": True}
        async with aclosing(client.events(PATHS[self.mode], body, max_bytes=max_bytes)) as events:
            async for data in events:
                if isinstance(data, NotStreamed):
                    return ResponseBody.model_validate_json(data.body)
                check_parts(data, self._most_tokens)
                event = json.loads(data)
                _raise_error_event(event)
                builder.add(event)
        return builder.answer()


def _raise_error_event(event: object) -> None:
    error = event.get("error") if isinstance(event, dict) else None
    if not error:
        return
    message, code = (error.get("message"), error.get("code")) if isinstance(error, dict) else (error, None)
    retryable = isinstance(code, int) and (code in (408, 409, 429) or code >= 500)
    message = message if isinstance(message, str) and message else "an error without a message"
    raise CallError(f"the stream broke off: {quoted(message)}", retryable=retryable)
