"""One call to an OpenAI-compatible server, and what may come of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError, AsyncOpenAI
from pydantic import ValidationError

from surefoot.errors import PolicyError
from surefoot.policies.openai_answer import Answer, AnswerError, read
from surefoot.policies.openai_body import Mode
from surefoot.policies.openai_stream import Calls, Show, answer_in_pieces
from surefoot.protocols import SampleRequest, SampleResult
from surefoot.records import Usage

ERROR_CHARACTERS = 500
"""How much of a server's own words goes into an error."""


@dataclass
class Connection:
    """What all calls under way share: the client, the gate that bounds them, and the loop they run in."""

    client: AsyncOpenAI
    gate: asyncio.Semaphore
    loop: asyncio.AbstractEventLoop
    users: int = 0


class Link:
    """The way to a server, for all policies that ask it: connected while any of them has a call under way."""

    def __init__(
        self, *, base_url: str, api_key: str, concurrency: int, max_retries: int, timeout_s: float
    ) -> None:
        self._base_url, self._api_key, self._concurrency = base_url, api_key, concurrency
        self._max_retries, self._timeout_s = max_retries, timeout_s
        self._connection: Connection | None = None

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Connection]:
        """Share one client and one gate among all calls under way; the last one out closes them.

        Raises :class:`PolicyError` in another event loop than that of calls under way.
        """
        connection = self._connection
        if connection is None:
            client = AsyncOpenAI(
                base_url=self._base_url,
                api_key=self._api_key,
                max_retries=self._max_retries,
                timeout=self._timeout_s,
            )
            gate = asyncio.Semaphore(self._concurrency)
            connection = self._connection = Connection(client, gate, asyncio.get_running_loop())
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
    calls, spent = Calls(), Usage()
    try:
        async with connection.gate:
            if show is None:
                answer = await _whole(connection.client, body, mode, calls)
            else:
                answer = await answer_in_pieces(
                    connection.client, body, n=request.n, mode=mode, show=show, calls=calls
                )
        # Tokens of an answer that turns out to be unusable were spent all the same.
        spent = Usage(**answer.usage.model_dump())
        return read(answer, request, mode, Usage(calls=calls.made) + spent)
    except APIError as error:
        calls.tried(error)
        reason = _explain(error)
    except UnicodeEncodeError as error:
        calls = Calls(now=0)
        reason = f"not sent: the prompt holds {error.object[error.start]!r}, which is not a character"
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        reason = f"malformed answer: {'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}"
    except ValueError as error:
        reason = f"malformed answer: {error}"
    except AnswerError as error:
        reason = str(error)
    usage = Usage(calls=calls.made) + spent
    return SampleResult(completions=(), usage=usage, error=f"server: {reason}")


async def _whole(client: AsyncOpenAI, body: Mapping[str, Any], mode: Mode, calls: Calls) -> Answer:
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
    return Answer.model_validate_json(text)


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
