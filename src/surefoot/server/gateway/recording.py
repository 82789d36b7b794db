"""What was answered is written down before it goes out: requests of the same moment in one transaction."""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from surefoot.store.database import GatewayLog, GatewayRecord

_BATCH = 256
"""Records of one transaction."""
_LOG = logging.getLogger("surefoot.server")


class Recorder:
    """Writes records through one thread at a time; those that come meanwhile go together in the next write.

    So many clients share one flush to disk, and a lone one waits for no other. ``log=None`` keeps nothing.
    """

    def __init__(self, log: GatewayLog | None) -> None:
        self._log = log
        self._waiting: deque[tuple[GatewayRecord, asyncio.Future[None]]] = deque()
        self._writing: asyncio.Task[None] | None = None

    async def write(self, record: GatewayRecord) -> None:
        """Return when ``record`` is kept. Raises what the log raises for it; a caller that is cancelled
        leaves it to be written."""
        if self._log is not None:
            await self._put(self._log, record)

    def note(self, record: GatewayRecord) -> None:
        """Keep ``record`` soon; a failure is logged. For what is answered with an error anyway."""
        if self._log is not None:
            self._put(self._log, record).add_done_callback(_logged)

    async def close(self) -> None:
        """Return when all is written."""
        if self._writing is not None:
            await self._writing

    def _put(self, log: GatewayLog, record: GatewayRecord) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((record, done))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(log))
        return done

    async def _write(self, log: GatewayLog) -> None:
        while self._waiting:
            size = min(_BATCH, len(self._waiting))
            batch = [self._waiting.popleft() for _ in range(size)]
            try:
                await asyncio.to_thread(log.write_all, [record for record, _ in batch])
            except Exception as error:
                if size == 1:
                    _settle(batch[0][1], error)
                else:  # one that cannot be kept must not take the others with it
                    await self._one_by_one(log, batch)
            else:
                for _, done in batch:
                    _settle(done)

    async def _one_by_one(
        self, log: GatewayLog, batch: list[tuple[GatewayRecord, asyncio.Future[None]]]
    ) -> None:
        for record, done in batch:
            try:
                await asyncio.to_thread(log.write_all, [record])
            except Exception as error:
                _settle(done, error)
            else:
                _settle(done)


def _settle(done: asyncio.Future[None], error: Exception | None = None) -> None:
    if done.done():  # whoever waited has been cancelled
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def _logged(done: asyncio.Future[None]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        _LOG.error("a failed request could not be written down: %s", error)
