"""A policy behind any OpenAI-compatible server, or behind several that serve the same model."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

from surefoot.errors import PolicyError
from surefoot.policies.openai_requests import Connection, Dialect, Link, body_of, call, openai_message
from surefoot.policies.openai_responses import Mode, Show, merge
from surefoot.protocols import SampleRequest, SampleResult
from surefoot.records import content_id


class OpenAIPolicy:
    """Samples from a server, over ``/chat/completions`` (mode ``chat``) or ``/completions``.

    **Prompts.** In ``completions`` mode a ``str`` prompt and its prefix are sent as one text; messages are
    refused with :class:`PolicyError`, for the template is the server's. In ``chat`` mode a ``str`` prompt is
    one user message, and a prefix is sent as a last assistant message with ``continue_final_message`` (vLLM,
    SGLang). A server that does not know this field either refuses it, which is reported as the request's
    error, or ignores it and answers afresh, which cannot be seen from here: try it once, or use
    ``completions`` mode. Reasoning that a server splits off from the content is not part of the text.

    **Tokens.** ``Completion.tokens`` is what the server counted for that completion, but the protocol has
    only a total for a call. So the ``openai`` dialect makes one call a sample (``n`` is never sent). The
    ``vllm`` dialect makes one call with ``n`` and counts the ``token_ids`` that vLLM returns with each choice
    (vLLM 0.10.2 or newer). These are also given on, as ``Completion.token_ids``: they end with the end of the
    sequence if it was drawn, else with the token that completes a stop text. At temperature 0 vLLM refuses
    ``n`` above 1, so greedy samples are one call each there too. Either way ``Usage.prompt_tokens`` counts
    the prompt once a request, and ``Usage.calls`` counts every call made, retries included. An answer without
    ``usage`` is an error, as its cost is unknown.

    **Seeds.** A server's random numbers depend on the seed alone. So each sample is sent a hash of the
    request's seed, its prompt and prefix, and the sample's number (the ``vllm`` dialect: a hash of the
    first three, to which vLLM adds the number); equal requests have equal seeds.

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
    and malformed or empty answers give a result whose ``error`` begins with ``server:``; other requests
    continue. If only some of the ``n`` samples came, they are kept and the error says how many are missing.

    **Streams.** :meth:`stream` asks for the same, with ``stream`` and ``stream_options.include_usage``, and
    gives the same result. An answer that breaks off is tried again only while none of its text was shown;
    ``timeout_s`` is then for the head and for the wait for each piece. A server that answers in one piece all
    the same is understood. Tokens of an answer that broke off are not known, and not counted.

    One policy serves one event loop at a time; at most ``concurrency`` calls are under way, whatever the
    number of ``sample`` calls at once. Connections are closed when the last of these ends.
    """

    overlaps = True
    """See :class:`surefoot.protocols.Policy`."""

    def __init__(
        self,
        *,
        model: str,
        base_url: str | Sequence[str],
        api_key: str | None = None,
        mode: Mode = "chat",
        dialect: Dialect = "openai",
        concurrency: int = 16,
        max_retries: int = 5,
        timeout_s: float = 120.0,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        """``api_key`` defaults to ``OPENAI_API_KEY``, then to ``none``; ``extra_body`` overrides any field.

        Several ``base_url`` are servers of the same model (:class:`surefoot.policies.endpoints.Endpoints`):
        requests with one prompt go to one server while all are evenly busy, and a call that fails is made
        again elsewhere, with the same seed; ``concurrency`` is then for each.
        ``timeout_s`` (seconds) is for one whole call without its retries, however slowly its bytes come.
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
        self._link = Link(
            base_url=base_url,
            api_key=api_key or os.environ.get("OPENAI_API_KEY") or "none",
            concurrency=concurrency,
            max_retries=max_retries,
            timeout_s=timeout_s,
        )

    @property
    def name(self) -> str:
        """The model's name on the server."""
        return self._model

    def with_extra_body(self, extra_body: Mapping[str, Any]) -> OpenAIPolicy:
        """The same policy, which also puts ``extra_body`` into every request.

        Both share their connections, and ``concurrency`` bounds the calls of both together.
        """
        policy = copy(self)
        policy._extra_body = {**self._extra_body, **extra_body}
        return policy

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Keep the connections for the time of the block, while no call is under way, too.

        Making them anew costs some 50 ms a time. Raises :class:`PolicyError` as :meth:`sample` does.
        """
        async with self._link.connect():
            yield

    async def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        """Answer all requests, in their order, failures included.

        Raises :class:`PolicyError`, before anything is sent, for messages in ``completions`` mode.
        """
        for request in requests:
            self._check(request)
        async with self._link.connect() as connection:
            return await _all(self._answer(connection, request) for request in requests)

    async def as_completed(
        self, requests: Sequence[SampleRequest]
    ) -> AsyncGenerator[tuple[int, SampleResult]]:
        """Yield ``(number of the request, result)`` as answers come, each request once.

        For long runs: a caller can save each result at once. Wrap it in :func:`contextlib.aclosing` if the
        loop may be left early; what is still under way is then cancelled. Raises like :meth:`sample`.
        """
        for request in requests:
            self._check(request)
        async with self._link.connect() as connection:
            tasks = [asyncio.create_task(self._numbered(connection, *pair)) for pair in enumerate(requests)]
            try:
                for task in asyncio.as_completed(tasks):
                    yield await task
            finally:
                for left in tasks:
                    left.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def stream(self, request: SampleRequest, show: Show) -> SampleResult:
        """Answer one request; see :class:`surefoot.protocols.StreamsText`. Raises like :meth:`sample`."""
        self._check(request)
        async with self._link.connect() as connection:
            return await self._answer(connection, request, show)

    def _check(self, request: SampleRequest) -> None:
        if request.n < 1:
            raise PolicyError(f"n={request.n} in a sample request; it must be at least 1")
        if self._mode == "completions" and not isinstance(request.prompt, str):
            raise PolicyError(
                "messages as prompt need mode='chat': in 'completions' mode no template is applied"
            )

    async def _numbered(
        self, connection: Connection, number: int, request: SampleRequest
    ) -> tuple[int, SampleResult]:
        return number, await self._answer(connection, request)

    async def _answer(
        self, connection: Connection, request: SampleRequest, show: Show | None = None
    ) -> SampleResult:
        if self._dialect == "vllm" and request.sampling.temperature > 0:
            # vLLM gives sample i the seed s + i.
            spread = replace(request, seed=_sample_seed(request, 0) + request.first)
            return await self._call(connection, spread, show)
        singles = [
            replace(request, n=1, seed=_sample_seed(request, sample))
            for sample in range(request.first, request.first + request.n)
        ]
        shows = [None if show is None else partial(_show_as, show, number) for number in range(request.n)]
        return merge(await _all(self._call(connection, *pair) for pair in zip(singles, shows, strict=True)))

    async def _call(self, connection: Connection, request: SampleRequest, show: Show | None) -> SampleResult:
        body = body_of(request, model=self._model, mode=self._mode, dialect=self._dialect) | self._extra_body
        return await call(connection, body, request, mode=self._mode, show=show)


async def _all(calls: Iterable[Coroutine[Any, Any, SampleResult]]) -> list[SampleResult]:
    """Results of all calls, made at the same time; one alone needs no task of its own."""
    made = list(calls)
    return [await made[0]] if len(made) == 1 else list(await asyncio.gather(*made))


def _show_as(show: Show, number: int, _: int, text: str) -> None:
    """Show what a call for one sample gives as the sample of that number."""
    show(number, text)


def _sample_seed(request: SampleRequest, sample: int) -> int:
    """Seed of one sample, below 2**31: a hash of the request's seed, its prompt and prefix, and the number.

    Were it the same for every prompt, a lucky stream of random numbers would be lucky for all of them, and a
    mean over problems as noisy as one problem's.
    """
    prompt = request.prompt
    sent = prompt if isinstance(prompt, str) else [openai_message(message) for message in prompt]
    return int(content_id("sample seed", request.seed, sent, request.prefix, sample), 16) % 2**31
