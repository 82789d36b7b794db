"""Requests to an OpenAI-compatible server: their bodies, the connection, and calls with their retries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError, AsyncOpenAI, AsyncStream
from pydantic import ValidationError

from surefoot.errors import PolicyError
from surefoot.policies import deadlines
from surefoot.policies.endpoints import Endpoint, Endpoints
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
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 8.0
ERROR_CHARACTERS = 500
"""How much of a server's own words goes into an error."""


@dataclass
class CallCount:
    """Calls made to the server for one answer, retries included."""

    before: int = 0
    now: int = 1

    @property
    def made(self) -> int:
        """All so far."""
        return self.before + self.now

    def tried(self, error: APIError) -> None:
        """Count a failed request: the client gives its number of retries only in this header."""
        self.now = 1 + int(error.request.headers.get("x-stainless-retry-count", 0))


@dataclass
class Connection:
    """What concurrent calls share: the servers, the semaphore that bounds them, and their event loop."""

    endpoints: Endpoints[AsyncOpenAI]
    gate: asyncio.Semaphore
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
        """Share one client and one gate among all calls under way; the last one out closes them.

        Raises :class:`PolicyError` in another event loop than that of calls under way.
        """
        connection = self._connection
        if connection is None:
            clients = [
                deadlines.async_client(
                    base_url=url,
                    api_key=self._api_key,
                    max_retries=self._max_retries,
                    timeout_s=self._timeout_s,
                )
                for url in self._urls
            ]
            gate = asyncio.Semaphore(self._concurrency * len(clients))
            loop = asyncio.get_running_loop()
            connection = self._connection = Connection(Endpoints(clients), gate, loop)
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
                for endpoint in connection.endpoints.all:
                    await endpoint.client.close()


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
    calls, spent = CallCount(), Usage()
    try:
        async with connection.gate:
            answer = await _from_any(
                connection.endpoints, body, n=request.n, mode=mode, show=show, calls=calls
            )
        # Tokens of an answer that turns out to be unusable were spent all the same.
        counts = answer.usage
        spent = Usage(prompt_tokens=counts.prompt_tokens, completion_tokens=counts.completion_tokens)
        return read(answer, request, mode, Usage(calls=calls.made) + spent)
    except APIError as error:
        reason = _explain(error)
    except UnicodeEncodeError as error:
        calls = CallCount(now=0)
        reason = f"not sent: the prompt holds {error.object[error.start]!r}, which is not a character"
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        reason = f"malformed answer: {'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}"
    except ValueError as error:
        reason = f"malformed answer: {error}"
    except ResponseError as error:
        reason = str(error)
    usage = Usage(calls=calls.made) + spent
    return SampleResult(completions=(), usage=usage, error=f"server: {reason}")


async def _from_any(
    endpoints: Endpoints[AsyncOpenAI],
    body: Mapping[str, Any],
    *,
    n: int,
    mode: Mode,
    show: Show | None,
    calls: CallCount,
) -> ResponseBody:
    """The answer of the least busy server; of another where one fails before any of its text was shown.

    Each server is asked once, with the client's own retries. Raises what the last one raised.
    """
    shown = False

    def pass_on(number: int, text: str) -> None:
        nonlocal shown
        shown = True
        if show is not None:
            show(number, text)

    calls.now = 0
    asked: list[Endpoint[AsyncOpenAI]] = []
    while True:
        with endpoints.use(avoid=asked) as endpoint:
            here = CallCount()
            try:
                if show is None:
                    answer = await _whole(endpoint.client, body, mode, here)
                else:
                    answer = await answer_in_pieces(
                        endpoint.client, body, n=n, mode=mode, show=pass_on, calls=here
                    )
            except APIError as error:
                here.tried(error)
                asked.append(endpoint)
                if not _server_failed(error):
                    raise
                endpoints.failed(endpoint)
                if shown or len(asked) == len(endpoints.all):
                    raise
            else:
                endpoints.succeeded(endpoint)
                return answer
            finally:
                calls.before += here.made


def _server_failed(error: APIError) -> bool:
    """Whether the server is at fault, so that another may answer the same request."""
    if isinstance(error, APIStatusError):
        return error.status_code in (401, 403, 404, 408, 409, 429) or error.status_code >= 500
    return True


async def _whole(client: AsyncOpenAI, body: Mapping[str, Any], mode: Mode, calls: CallCount) -> ResponseBody:
    """The answer in one piece. Read here, as the client builds its objects unchecked."""
    raw = client.with_raw_response
    if mode == "chat":
        chat = await raw.chat.completions.create(
            model=body["model"], messages=body["messages"], extra_body=body
        )
        calls.now, text = 1 + chat.retries_taken, chat.text
    else:
        plain = await raw.completions.create(model=body["model"], prompt=body["prompt"], extra_body=body)
        calls.now, text = 1 + plain.retries_taken, plain.text
    return ResponseBody.model_validate_json(text)


async def answer_in_pieces(
    client: AsyncOpenAI, body: Mapping[str, Any], *, n: int, mode: Mode, show: Show, calls: CallCount
) -> ResponseBody:
    """The answer to ``body``, whose text ``show`` is given as it comes.

    The client tries again, as ever, until an answer begins; one that breaks off before any of its text was
    shown is requested again, within the same number of retries. Raises what the client raises, and
    :class:`ResponseError` or ``ValueError`` for what cannot be read.
    """
    sent = {"stream_options": {"include_usage": True}, **body, "stream": True}
    while True:
        pieces = ResponseBuilder(n, mode, show)
        left = client.max_retries - calls.before
        try:
            async with aclosing(_events(client, _PATHS[mode], sent, left, calls)) as events:
                async for event in events:
                    if isinstance(event, ResponseBody):
                        return event  # a server that does not stream
                    pieces.add(event)
            return pieces.answer()
        except APIError as error:
            calls.tried(error)
            if pieces.shown or calls.now > left or not _passes(error):
                raise
        await asyncio.sleep(min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** (calls.made - 1)))
        calls.before, calls.now = calls.made, 1


_END = object()


async def _events(
    client: AsyncOpenAI, path: str, body: dict[str, Any], retries: int, calls: CallCount
) -> AsyncGenerator[object]:
    """Data of each event, as it came: the client would build its objects unchecked."""
    stream = await client.post(
        path,
        body=body,
        options={"max_retries": retries},
        cast_to=object,
        stream=True,
        stream_cls=AsyncStream[object],
    )
    seconds = client.timeout if isinstance(client.timeout, float) else None
    async with stream:
        answer = stream.response
        calls.now = 1 + int(answer.request.headers.get("x-stainless-retry-count", 0))
        try:
            if answer.headers.get("content-type", "").startswith("application/json"):
                async with asyncio.timeout(seconds):
                    whole = await answer.aread()
                yield ResponseBody.model_validate_json(whole)
                return
            events = aiter(stream)
            while True:
                async with asyncio.timeout(seconds):
                    event = await anext(events, _END)
                if event is _END:
                    return
                yield event
        except TimeoutError as error:
            raise APITimeoutError(request=answer.request) from error
        except (APIError, ValueError):
            raise
        except Exception as error:  # older clients raise here what their transport raises
            raise APIConnectionError(request=answer.request) from error


def _passes(error: APIError) -> bool:
    """Whether a retry may succeed: the client's own rule, for errors that arrive as events."""
    if isinstance(error, APIConnectionError):
        return True
    code = error.body.get("code") if isinstance(error.body, Mapping) else None
    return isinstance(code, int) and (code in (408, 409, 429) or code >= 500)


def _explain(error: APIError) -> str:
    if isinstance(error, APIStatusError):
        # The client's own message leaves out the server's reason.
        return f"status {error.status_code}: {error.response.text[:ERROR_CHARACTERS]}"
    if isinstance(error, APITimeoutError):
        return "no answer in time; raise timeout_s or lower concurrency"
    if isinstance(error, APIConnectionError):
        cause = error.__cause__ or error
        return f"connection failed: {str(cause) or type(cause).__name__}"
    said = error.body if isinstance(error.body, str) else error.message
    return f"the stream broke off: {said[:ERROR_CHARACTERS]}"
