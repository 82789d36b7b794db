"""The request log: the record of a request, private texts masked, and the thread that writes it before the
answer is sent."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request

from surefoot.concurrency import Shares
from surefoot.errors import UnavailableError
from surefoot.records import Trace, Usage, trusted_copy
from surefoot.server.gateway.choice import Choice, usage_of
from surefoot.server.gateway.errors import ApiError
from surefoot.server.records import GatewayCandidate, GatewayRecord, new_id

if TYPE_CHECKING:
    from surefoot.server.store.accounts import ApiKey
    from surefoot.server.store.requests import RequestLog


_RECORD: Final = GatewayRecord(
    request_id="_",
    created=datetime.fromtimestamp(0, UTC),
    endpoint="",
    model="",
    strategy="",
    status=0,
    latency_ms=0,
)


@dataclass(frozen=True, kw_only=True)
class LogEntry:
    """A valid request: its record without the outcome."""

    record: GatewayRecord
    started: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, request: Request, prefix: str, /, **fields: Any) -> LogEntry:
        """The entry of a request, with an id that begins with ``prefix``; ``fields`` are the record's."""
        key: ApiKey | None = request.state.key
        fields |= {
            "request_id": new_id(f"{prefix}-"),
            "created": datetime.now(UTC),
            "endpoint": request.scope["path"],
            "key_id": key.id if key else None,
            "project_id": key.project_id if key else None,
        }
        return cls(record=trusted_copy(_RECORD, fields))

    def success(self, choices: Sequence[Choice]) -> GatewayRecord:
        """The record of an answer with these choices."""
        missing = (choice.withheld for choice in choices if choice.chosen is None or choice.blocked)
        return self._ended(
            status=200,
            error=next(missing, None),
            usage=usage_of(choices),
            candidates=tuple(candidate for choice in choices for candidate in choice.candidates),
            guard={number: choice.decisions for number, choice in enumerate(choices) if choice.decisions},
        )

    def failure(self, status: int, error: str, usage: Usage, sent: Mapping[int, str]) -> GatewayRecord:
        """The record of a failure, with its HTTP status and the text already ``sent`` of each choice."""
        problem_id = self.record.problem.id if self.record.problem else ""
        partial = tuple(
            GatewayCandidate(
                trace=Trace(problem_id=problem_id, text=text, policy=self.record.policy),
                chosen=False,
                choice=number,
                reason="sent, then cut short",
            )
            for number, text in sorted(sent.items())
        )
        return self._ended(status=status, error=error, usage=usage, candidates=partial)

    def _ended(self, **outcome: Any) -> GatewayRecord:
        outcome["latency_ms"] = 1000 * (time.monotonic() - self.started)
        return trusted_copy(self.record, outcome)


WRITERS = 1
_BATCH_SIZE = 256
"""Records of one transaction."""
_GATHER_S = 0.003
"""Seconds that a transaction waits for more records, if the one before had several."""
MOST_NOTED: Final = 1024
"""Most queued records that no request waits for; more are dropped."""
_CLOSE_TIMEOUT_S = 30.0
_SLOW_S = 2.0
"""Seconds of a write after which the log counts as unavailable."""
_FAILED_S = 10.0
"""Seconds for which a record that could not be stored counts: without requests, nothing is stored."""
_LOG = logging.getLogger("surefoot.server")

_Waiting = tuple[GatewayRecord, asyncio.Future[None]]


class Recorder:
    """Writes records in a separate thread; records that arrive during a write go together in the next one.

    So many clients share one flush to disk. A client whose requests come one after the other waits for none,
    but for a moment once after others have asked. A record that the log
    refuses is set aside: its caller gets the error, and the others of its batch are written. ``log=None``
    stores nothing. ``on_loss`` is called for each lost record of a failed request.
    """

    def __init__(self, log: RequestLog | None, *, on_loss: Callable[[], None] = lambda: None) -> None:
        self._log, self._on_loss = log, on_loss
        self._waiting: deque[_Waiting] = deque()
        self._size = 1
        """Records of the latest transaction."""
        self._noted = Shares(MOST_NOTED)
        self._writing: asyncio.Task[None] | None = None
        self._failed_at, self._began = -math.inf, math.inf
        """When a record could not be stored, and when a write began that goes on."""
        self._thread = ThreadPoolExecutor(WRITERS, thread_name_prefix="surefoot-record")

    @property
    def waiting(self) -> int:
        """Records that wait to be written."""
        return len(self._waiting)

    async def keep(self, project_id: int | None, images: Mapping[str, tuple[str, bytes]]) -> None:
        """Return when a request's images are stored. Raises what the log raises."""
        if self._log is not None:
            work = partial(self._log.keep_images, project_id, images)
            await asyncio.get_running_loop().run_in_executor(self._thread, self._watched, work)

    async def write(self, record: GatewayRecord) -> None:
        """Return when ``record`` is stored. Raises what the log raises for it.

        If the caller is cancelled, its record is withdrawn unless it is being written.
        """
        if self._log is not None:
            await self._put(self._log, record)

    def note(self, record: GatewayRecord) -> None:
        """Store ``record`` soon, if possible. For requests that are answered with an error anyway."""
        if self._log is None:
            return
        owner = str(record.key_id)
        if not self._noted.has_room(owner):
            self._on_loss()
            _LOG.error("a failed request was not recorded: %d others wait", self._noted.total)
            return
        self._noted.add(owner)

        def written(done: asyncio.Future[None]) -> None:
            self._noted.add(owner, -1)
            if not done.cancelled() and (error := done.exception()) is not None:
                self._on_loss()
                _LOG.error("a failed request could not be recorded: %s", error)

        self._put(self._log, record).add_done_callback(written)

    def check(self) -> None:
        """Raise :class:`ApiError` 503 while the latest record could not be stored, for some seconds, or takes
        long."""
        now = time.monotonic()
        if now - self._failed_at < _FAILED_S or now - self._began > _SLOW_S:
            raise log_unavailable()

    async def close(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> None:
        """Return when all records are written, or after ``timeout_s`` seconds."""
        if self._writing is not None:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._writing
            except TimeoutError:
                _LOG.error("%d requests were not recorded in time", len(self._waiting))
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _put(self, log: RequestLog, record: GatewayRecord) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((record, done))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(log))
        return done

    async def _write(self, log: RequestLog) -> None:
        while self._waiting:
            if self._size > 1:  # several clients: more records will come
                await asyncio.sleep(_GATHER_S)
            self._size = min(_BATCH_SIZE, len(self._waiting))
            oldest = [self._waiting.popleft() for _ in range(self._size)]
            batch = [(record, done) for record, done in oldest if not done.done()]
            if not batch:  # all callers were cancelled
                continue
            error = await self._try(log, batch)
            if error is None or len(batch) == 1 or isinstance(error, UnavailableError):
                for _, done in batch:
                    _settle(done, error)
            else:  # one bad record must not lose the others
                for waiting in batch:
                    _settle(waiting[1], await self._try(log, [waiting]))

    async def _try(self, log: RequestLog, batch: Sequence[_Waiting]) -> Exception | None:
        work = partial(log.write_all, [record for record, _ in batch])
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._watched, work)
        except Exception as error:
            return error
        return None

    def _watched(self, work: Callable[[], None]) -> None:
        """Do ``work`` in the one thread, so that :meth:`check` sees how it goes."""
        self._began = time.monotonic()
        try:
            work()
        except BaseException:
            self._failed_at = time.monotonic()
            raise
        finally:
            self._began = math.inf
        self._failed_at = -math.inf


def log_unavailable() -> ApiError:
    """The error while records cannot be stored. The reason may name hosts, so only the log has it."""
    return ApiError(503, "answers cannot be recorded now", code="log_failed", retry_after_s=5)


def _settle(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():  # the caller was cancelled
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
