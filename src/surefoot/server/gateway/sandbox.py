"""``/v1/run``: a sandbox for other machines, behind the gateway's keys and bounds on bodies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI, Request, Response
from pydantic import ValidationError

from surefoot.sandbox.protocol import Limits, Program, Sandbox
from surefoot.sandbox.remote import LARGEST, RunRequest, RunResponse
from surefoot.server.gateway.access import KeyAuth, guarded_route
from surefoot.server.gateway.admission import Admission
from surefoot.server.gateway.app import create_app
from surefoot.server.gateway.errors import ApiError, invalid
from surefoot.server.gateway.records import KeyStore
from surefoot.server.gateway.settings import ServerSettings


def create_sandbox_app(
    sandbox: Sandbox, settings: ServerSettings, *, largest: Limits = LARGEST, keys: KeyStore | None = None
) -> FastAPI:
    """The application that runs programs in ``sandbox``, one request after another.

    A program may ask for no more than ``largest``. Raises ``ValueError`` for missing ``keys``.
    """
    auth = KeyAuth(keys, required=settings.needs_key, rate_per_minute=settings.limits.rate_per_minute)
    admission = Admission(running=1, waiting=settings.limits.waiting)

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        yield
        auth.close()

    guarded = guarded_route("client", settings=settings, auth=auth)
    router = APIRouter(route_class=guarded, tags=["sandbox"], lifespan=lifespan)

    @router.post("/v1/run", response_model=RunResponse)
    async def run(request: Request) -> Response:
        """Run programs, each in isolation, and say how each ended."""
        try:
            programs = RunRequest.model_validate_json(await request.body()).programs
        except ValidationError as problem:
            raise invalid(problem.errors()) from None
        for at, program in enumerate(programs):
            _require_within(program, largest, f"programs.{at}")
        async with admission.reserve():
            results = await asyncio.to_thread(sandbox.run, programs)
        answer = RunResponse(results=tuple(results))
        return Response(answer.model_dump_json(), media_type="application/json")

    return create_app(settings, routers=[router], keys=keys)


def _require_within(program: Program, bounds: Limits, where: str) -> None:
    """Raises ``ApiError`` 400 for a limit above this server's."""
    for name in Limits.model_fields:
        asked, most = getattr(program.limits, name), getattr(bounds, name)
        if asked > most:
            raise ApiError(400, f"{where}.limits.{name} is {asked}, at most {most} here", param=name)
    if program.peer is not None:
        _require_within(program.peer, bounds, f"{where}.peer")
