"""Requests to an OpenAI-compatible server: their bodies, the connection, and calls with their retries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal
from zlib import crc32

import aiohttp
from pydantic import ValidationError

from surefoot.errors import PolicyError
from surefoot.policies.endpoints import Endpoint, Endpoints
from surefoot.policies.http_calls import ERROR_CHARACTERS, CallError, NotStreamed, Server, open_session
from surefoot.policies.openai_responses import Mode, ResponseBody, ResponseBuilder, ResponseError, Show, read
from surefoot.protocols import SampleRequest, SampleResult
from surefoot.records import Message, Usage

Dialect = Literal["openai", "vllm"]

_NEUTRAL = {
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""What vLLM otherwise takes from the model's ``generation_config.json``: tokens would then be drawn by rules
that :class:`Sampling` does not mention, and not as :class:`TransformersPolicy` draws them."""


def body_of(request: SampleRequest, *, model: str, mode: Mode, dialect: Dialect) -> dict[str, Any]:
    """The fields of a call, without those that the user adds."""
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": model,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "seed": request.seed,
    }
    if isinstance(request.prompt, str) and mode == "completions":
        body["prompt"] = request.prompt + request.prefix
    else:
        prompt = request.prompt
        messages = (Message(role="user", content=prompt),) if isinstance(prompt, str) else prompt
        body["messages"] = [openai_message(message) for message in messages]
        if request.prefix:
            body["messages"].append({"role": "assistant", "content": request.prefix})
            body |= {"continue_final_message": True, "add_generation_prompt": False}
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if dialect == "vllm":
        body |= {"n": request.n, "include_stop_str_in_output": True, "return_token_ids": True, **_NEUTRAL}
    if request.logprobs:
        # of the drawn token alone
        body |= {"logprobs": 0} if "prompt" in body else {"logprobs": True, "top_logprobs": 0}
    return body


def openai_message(message: Message) -> dict[str, Any]:
    """A message in the OpenAI shape."""
    sent: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.attachments:
        sent["content"] = _content_parts(message)
    if message.readable_reasoning:
        # Servers that do not know the field leave it alone; reasoning models' templates read it.
        sent["reasoning_content"] = message.readable_reasoning
    if message.tool_calls:
        sent["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        sent["tool_call_id"] = message.tool_call_id
    return sent


def _content_parts(message: Message) -> list[dict[str, Any]]:
    """Text and attachments of a message in their order; one without an address is named in words."""
    content, done = message.content or "", 0
    parts: list[dict[str, Any]] = []
    for attachment in message.attachments:
        if content[done : attachment.at]:
            parts.append({"type": "text", "text": content[done : attachment.at]})
            done = attachment.at
        if attachment.uri is None:
            parts.append({"type": "text", "text": f"[{attachment.kind}: {attachment.name or 'not kept'}]"})
        elif attachment.kind == "image":
            parts.append({"type": "image_url", "image_url": {"url": attachment.uri}})
        else:
            kind = "audio_url" if attachment.kind == "audio" else "file_url"
            parts.append({"type": kind, kind: {"url": attachment.uri}})
    return [*parts, {"type": "text", "text": content[done:]}] if content[done:] else parts


_PATHS: dict[Mode, str] = {"chat": "/chat/completions", "completions": "/completions"}


@dataclass
class Connection:
    """What concurrent calls share: the servers, their connections, and the event loop."""

    endpoints: Endpoints[Server]
    session: aiohttp.ClientSession
    max_retries: int
    loop: asyncio.AbstractEventLoop
    users: int = 0


class Link:
    """A connection to a server, or to several equal ones, shared by the policies that use it.

    It is open while one has a call under way. ``concurrency`` bounds the calls of each server.
    """

    def __init__(
        self,
        *,
        base_url: str | Sequence[str],
        api_key: str,
        concurrency: int,
        max_retries: int,
        timeout_s: float,
    ) -> None:
        self._urls = (base_url,) if isinstance(base_url, str) else tuple(base_url)
        self._api_key, self._concurrency, self._timeout_s = api_key, concurrency, timeout_s
        # with others to turn to, a call does not wait long for one
        self._max_retries = max_retries if len(self._urls) == 1 else min(1, max_retries)
        self._connection: Connection | None = None

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Connection]:
        """Share connections and limits among all calls under way; the last one out closes them.

        Raises :class:`PolicyError` in another event loop than that of calls under way.
        """
        connection = self._connection
        if connection is None:
            session = open_session()
            servers = [
                Server(session, url, api_key=self._api_key, timeout_s=self._timeout_s) for url in self._urls
            ]
            connection = self._connection = Connection(
                endpoints=Endpoints(servers, window=self._concurrency),
                session=session,
                max_retries=self._max_retries,
                loop=asyncio.get_running_loop(),
            )
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
                await connection.session.close()
                await asyncio.sleep(0)  # in which its transports close


async def call(
    connection: Connection,
    body: Mapping[str, Any],
    request: SampleRequest,
    *,
    mode: Mode,
    show: Show | None,
) -> SampleResult:
    """The answer to ``body``, which asks for ``request``; with ``show`` it comes in pieces.

    Never raises for what the server does: that is the result's ``error``, which begins with ``server:``.
    """
    asking = _Asking(body, n=request.n, mode=mode, show=show)
    spent = Usage()
    try:
        answer = await asking.any_of(connection, _prompt_key(connection, request))
        # Tokens of an answer that turns out to be unusable were spent all the same.
        counts = answer.usage
        spent = Usage(prompt_tokens=counts.prompt_tokens, completion_tokens=counts.completion_tokens)
        return read(answer, request, mode, Usage(calls=asking.calls) + spent)
    except (CallError, ResponseError) as error:
        reason = str(error)
    except UnicodeEncodeError as error:
        asking.calls = 0
        reason = f"not sent: the prompt holds {error.object[error.start]!r}, which is not a character"
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        reason = f"malformed answer: {'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}"
    except ValueError as error:
        reason = f"malformed answer: {error}"
    usage = Usage(calls=asking.calls) + spent
    return SampleResult(completions=(), usage=usage, error=f"server: {reason}")


def _prompt_key(connection: Connection, request: SampleRequest) -> int | None:
    """What all requests with one prompt have in common, if there are several servers to choose from."""
    if len(connection.endpoints.all) == 1:
        return None
    prompt = request.prompt
    text = prompt if isinstance(prompt, str) else "\n".join(message.content or "" for message in prompt)
    return crc32(text.encode(errors="replace"))


class _Asking:
    """One question, asked until a server answers; ``calls`` counts the tries."""

    def __init__(self, body: Mapping[str, Any], *, n: int, mode: Mode, show: Show | None) -> None:
        self._n, self._mode, self._show = n, mode, show
        self._body = body
        self._shown = False
        self.calls = 0

    async def any_of(self, connection: Connection, key: int | None) -> ResponseBody:
        """The answer of one server; of another where one fails before any of its text was shown.

        Each server is asked once, with its retries. Raises what the last one raised.
        """
        endpoints = connection.endpoints
        asked: list[Endpoint[Server]] = []
        while True:
            async with endpoints.use(key, avoid=asked) as endpoint:
                try:
                    answer = await self._one(endpoint.client, connection.max_retries)
                except CallError as error:
                    asked.append(endpoint)
                    if not error.elsewhere:
                        raise
                    endpoints.failed(endpoint)
                    if self._shown or len(asked) >= len(endpoints.all):
                        raise
                else:
                    endpoints.succeeded(endpoint)
                    return answer

    async def _one(self, server: Server, retries: int) -> ResponseBody:
        """Its answer; an error that may pass is waited out, unless some text was shown."""
        tried = 0
        while True:
            self.calls, tried = self.calls + 1, tried + 1
            try:
                if self._show is None:
                    return ResponseBody.model_validate_json(await server.post(_PATHS[self._mode], self._body))
                return await self._in_pieces(server, self._show)
            except CallError as error:
                if self._shown or not error.passes or tried > retries:
                    raise
                await asyncio.sleep(error.wait_s(tried))

    async def _in_pieces(self, server: Server, show: Show) -> ResponseBody:
        """The answer, whose text ``show`` is given as it comes."""

        def pass_on(number: int, text: str) -> None:
            self._shown = True
            show(number, text)

        pieces = ResponseBuilder(self._n, self._mode, pass_on)
        body = {"stream_options": {"include_usage": True}, **self._body, "stream": True}
        async with aclosing(server.events(_PATHS[self._mode], body)) as events:
            async for data in events:
                if isinstance(data, NotStreamed):
                    return ResponseBody.model_validate_json(data.body)
                event = json.loads(data)
                _raise_for(event)
                pieces.add(event)
        return pieces.answer()


def _raise_for(event: object) -> None:
    """Raises :class:`CallError` for an error that comes as an event."""
    error = event.get("error") if isinstance(event, dict) else None
    if not error:
        return
    said, code = error, None
    if isinstance(error, dict):
        said, code = error.get("message"), error.get("code")
    passes = isinstance(code, int) and (code in (408, 409, 429) or code >= 500)
    said = said if isinstance(said, str) and said else "an error without a message"
    raise CallError(f"the stream broke off: {said[:ERROR_CHARACTERS]}", passes=passes)
