"""A sandbox on another machine, by HTTP: ``POST /v1/run`` of ``surefoot serve sandbox``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from surefoot.concurrency import run_sync
from surefoot.errors import SandboxError
from surefoot.sandbox.protocol import Limits, Program, ProgramResult

if TYPE_CHECKING:
    from aiohttp import ClientSession  # a tenth of the start of each command

API_KEY_VARIABLE = "SUREFOOT_SANDBOX_KEY"
"""Environment variable of the key that the server asks for."""
MAX_PROGRAMS = 64
"""Programs in one request."""
LARGEST = Limits(wall_s=60, cpu_s=60, output_bytes=16 << 20)
"""What a server lets a program ask for, unless it is told otherwise."""
_MAX_REQUEST_BYTES = 1_000_000
_REQUESTS = 4
"""Requests at the same time, so that the server always has the next one."""
_MARGIN_S = 60.0
"""Seconds for the way and the wait, beside what the programs may take one after another."""
_TRIES = 4
_FIRST_WAIT_S = 1.0


class RunRequest(BaseModel):
    """Body of ``/v1/run``; contents of files, input and output are Base64."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")

    programs: tuple[Program, ...] = Field(min_length=1, max_length=MAX_PROGRAMS)


class RunResponse(BaseModel):
    """Answer of ``/v1/run``: a result for each program, in order."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")

    results: tuple[ProgramResult, ...]


class RemoteSandbox:
    """Runs programs on the server at ``url``, whose isolation is the server's to keep.

    ``api_key`` is by default that of the environment variable ``SUREFOOT_SANDBOX_KEY``.
    """

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._key = api_key if api_key is not None else os.environ.get(API_KEY_VARIABLE, "")

    def run(self, programs: Sequence[Program]) -> list[ProgramResult]:
        """One result for each program, in order.

        Raises:
            SandboxError: the server does not answer, refuses, or answers something else.
        """
        return run_sync(self._run(programs))

    async def _run(self, programs: Sequence[Program]) -> list[ProgramResult]:
        from aiohttp import ClientSession

        free = asyncio.Semaphore(_REQUESTS)
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        async with ClientSession(headers=headers) as session:

            async def one(request: RunRequest) -> tuple[ProgramResult, ...]:
                async with free:
                    return await self._post(session, request)

            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(one(request)) for request in _requests(programs)]
            except ExceptionGroup as problems:  # of several, the first says it
                raise problems.exceptions[0] from None
        return [result for task in tasks for result in task.result()]

    async def _post(self, session: ClientSession, request: RunRequest) -> tuple[ProgramResult, ...]:
        from aiohttp import ClientError, ClientTimeout

        seconds = _MARGIN_S + sum(program.limits.wall_s for program in request.programs)
        timeout = ClientTimeout(total=seconds)
        data = request.model_dump_json().encode()
        wait_s = _FIRST_WAIT_S
        for attempt in range(_TRIES):
            try:
                async with session.post(f"{self.url}/v1/run", data=data, timeout=timeout) as response:
                    body = await response.read()
                    status = response.status
            except (ClientError, TimeoutError) as problem:
                raise SandboxError(f"the sandbox server {self.url} does not answer: {problem}") from problem
            if status not in (429, 503) or attempt == _TRIES - 1:
                break
            await asyncio.sleep(wait_s)
            wait_s *= 2
        if status != 200:
            said = body[:300].decode(errors="replace")
            raise SandboxError(
                f"the sandbox server {self.url} answered {status}: {said}; "
                f"for its key, set {API_KEY_VARIABLE}"
            )
        try:
            results = RunResponse.model_validate_json(body).results
        except ValidationError as problem:
            raise SandboxError(
                f"the sandbox server {self.url} answered something else: {problem}"
            ) from problem
        if len(results) != len(request.programs):
            raise SandboxError(f"the sandbox server {self.url} answered another number of results")
        return results

    def describe(self) -> str:
        """Whose isolation this is."""
        return f"the sandbox server {self.url}: what is enforced is what its own sandbox enforces"

    def close(self) -> None:
        """Nothing stays open between calls."""

    def __enter__(self) -> RemoteSandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _requests(programs: Sequence[Program]) -> Iterator[RunRequest]:
    """Programs in pieces of bounded number and size, in order."""
    piece: list[Program] = []
    size = 0
    for program in programs:
        cost = _bytes(program)
        if piece and (size + cost > _MAX_REQUEST_BYTES or len(piece) == MAX_PROGRAMS // 4):
            yield RunRequest(programs=tuple(piece))
            piece, size = [], 0
        piece.append(program)
        size += cost
    if piece:
        yield RunRequest(programs=tuple(piece))


def _bytes(program: Program) -> int:
    """Bytes of a program as JSON, about: Base64 has four for three."""
    own = (sum(map(len, program.files.values())) + len(program.stdin)) * 4 // 3 + 1000
    return own + (_bytes(program.peer) if program.peer is not None else 0)
