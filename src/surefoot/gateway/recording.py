"""What was answered is written down before it goes out: requests of the same moment in one transaction."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from surefoot.annotation.database import GatewayLog, GatewayRecord
from surefoot.errors import UnavailableError
from surefoot.gateway.http.errors import ApiError

_BATCH = 256
"""Records of one transaction."""
_NOTES = 1024
"""Records that wait; beyond it, those that nobody waits for are dropped."""
_CLOSING_S = 30.0
_PROBE_S = 5.0
_LOG = logging.getLogger("surefoot.gateway")

_Waiting = tuple[GatewayRecord, asyncio.Future[None]]


class Recorder:
    """Writes records by a thread of its own; those that come meanwhile go together in the next write.

    So many clients share one flush to disk, and a lone one waits for no other. ``log=None`` keeps nothing.
    ``lost`` is told of each record that was to be noted and is not kept.
    """

    def __init__(self, log: GatewayLog | None, *, lost: Callable[[], None] = lambda: None) -> None:
        self._log, self._lost = log, lost
        self._waiting: deque[_Waiting] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._failing = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="surefoot-record")

    async def write(self, record: GatewayRecord) -> None:
        """Return when ``record`` is kept. Raises what the log raises for it.

        A caller that is cancelled withdraws a record whose writing has not begun.
        """
        if self._log is not None:
            await self._put(self._log, record)

    def note(self, record: GatewayRecord) -> None:
        """Keep ``record`` soon, if that can be done. For what is answered with an error anyway."""
        if self._log is None:
            return
        if len(self._waiting) >= _NOTES:
            self._lost()
            _LOG.error("a failed request was not written down: %d others wait", len(self._waiting))
        else:
            self._put(self._log, record).add_done_callback(self._noted)

    async def probe(self) -> None:
        """Return if records can be kept now. Raises :class:`ApiError` 503.

        Asks the log only after a write that failed; the thread that writes is the one that asks.
        """
        if self._log is None or not self._failing:
            return
        try:
            async with asyncio.timeout(_PROBE_S):
                await asyncio.get_running_loop().run_in_executor(self._thread, self._log.ping)
        except (UnavailableError, TimeoutError) as error:
            message = "answers cannot be written down now"
            raise ApiError(503, message, code="log_failed", retry_after_s=5) from error

    async def close(self, timeout_s: float = _CLOSING_S) -> None:
        """Return when all is written, or after ``timeout_s`` seconds."""
        if self._writing is not None:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._writing
            except TimeoutError:
                _LOG.error("%d requests were not written down in time", len(self._waiting))
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _put(self, log: GatewayLog, record: GatewayRecord) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((record, done))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(log))
        return done

    async def _write(self, log: GatewayLog) -> None:
        while self._waiting:
            size = min(_BATCH, len(self._waiting))
            taken = [self._waiting.popleft() for _ in range(size)]
            batch = [(record, done) for record, done in taken if not done.done()]
            if not batch:  # all withdrawn
                continue
            error = await self._try(log, batch)
            self._failing = isinstance(error, UnavailableError)
            if error is None or len(batch) == 1 or isinstance(error, UnavailableError):
                for _, done in batch:
                    _settle(done, error)
            else:  # one that cannot be kept must not take the others with it
                for one in batch:
                    _settle(one[1], await self._try(log, [one]))

    async def _try(self, log: GatewayLog, batch: Sequence[_Waiting]) -> Exception | None:
        work = asyncio.get_running_loop().run_in_executor
        try:
            await work(self._thread, log.write_all, [record for record, _ in batch])
        except Exception as error:
            return error
        return None

    def _noted(self, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            self._lost()
            _LOG.error("a failed request could not be written down: %s", error)


def _settle(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():  # whoever waited has been cancelled
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
