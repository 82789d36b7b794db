"""The request log: the record of a request, private texts masked, and the thread that writes it before the
answer is sent."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import secrets
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
from surefoot.server.gateway.settings import PRIVATE
from surefoot.server.records import GatewayCandidate, GatewayRecord

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
            "request_id": new_id(prefix),
            "created": datetime.now(UTC),
            "endpoint": request.scope["path"],
            "key_id": key.id if key else None,
            "project_id": key.project_id if key else None,
        }
        return cls(record=trusted_copy(_RECORD, fields))

    def success(self, choices: Sequence[Choice] = (), **fields: Any) -> GatewayRecord:
        """The record of an answer with these choices, or with other ``fields``."""
        missing = (choice.withheld for choice in choices if choice.chosen is None or choice.blocked)
        outcome = {
            "error": next(missing, None),
            "usage": usage_of(choices),
            "candidates": tuple(candidate for choice in choices for candidate in choice.candidates),
            "trees": {number: choice.tree for number, choice in enumerate(choices) if choice.tree},
            "guard": {number: choice.decisions for number, choice in enumerate(choices) if choice.decisions},
        }
        return self._ended(status=200, **{**outcome, **fields})

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


def new_id(prefix: str) -> str:
    """Id of an answer."""
    return f"{prefix}-{secrets.token_hex(16)}"


def redacted(record: GatewayRecord, names: Sequence[str], patterns: Sequence[str]) -> GatewayRecord:
    """The record with private texts masked, character by character, so that steps keep their places."""
    rules = [re.compile(pattern) for pattern in (*(PRIVATE[name] for name in names), *patterns)]

    def masked(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: masked(item, name) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [masked(item, key) for item in value]
        if not isinstance(value, str) or key == "id" or key.endswith("_id"):
            return value
        for rule in rules:
            value = rule.sub(lambda match: "█" * len(match[0]), value)
        return value

    return GatewayRecord.model_validate(masked(record.model_dump(mode="python")))


WRITERS = 1
_BATCH_SIZE = 256
"""Records of one transaction."""
MOST_NOTED: Final = 1024
"""Most queued records that no request waits for; more are dropped."""
_CLOSE_TIMEOUT_S = 30.0
_PROBE_TIMEOUT_S = 2.0
_PROBE_EVERY_S = 1.0
_REFUSED_S = 5.0
"""Seconds for which a record that the log refused counts."""
_LOG = logging.getLogger("surefoot.server")

_Waiting = tuple[GatewayRecord, asyncio.Future[None]]


class Recorder:
    """Writes records in a separate thread; records that arrive during a write go together in the next one.

    So many clients share one flush to disk, and a single client waits for no other. A record that the log
    refuses is set aside: its caller gets the error, and the others of its batch are written. ``log=None``
    stores nothing. ``on_loss`` is called for each lost record of a failed request.
    """

    def __init__(self, log: RequestLog | None, *, on_loss: Callable[[], None] = lambda: None) -> None:
        self._log, self._on_loss = log, on_loss
        self._waiting: deque[_Waiting] = deque()
        self._noted = Shares(MOST_NOTED)
        self._writing: asyncio.Task[None] | None = None
        self._kept_at = self._refused_at = -math.inf
        self._probe: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(WRITERS, thread_name_prefix="surefoot-record")

    @property
    def waiting(self) -> int:
        """Records that wait to be written."""
        return len(self._waiting)

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
            self._was_written(done)

        self._put(self._log, record).add_done_callback(written)

    async def probe(self) -> None:
        """Return if records can be stored. Raises :class:`ApiError` 503.

        If the log refused the last record of a request, they cannot, for some seconds; otherwise this writes
        to the log unless a write succeeded in the last second. Concurrent probes share one.
        """
        now = time.monotonic()
        if self._log is None or now - self._kept_at < _PROBE_EVERY_S:
            return
        if now - self._refused_at < _REFUSED_S:
            raise log_unavailable()
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._run(self._log.ping))
            self._probe.add_done_callback(_note_outcome)  # all waiting requests may have ended
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                await asyncio.shield(self._probe)
        except (UnavailableError, TimeoutError) as error:
            raise log_unavailable() from error

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
        self._start(log)
        return done

    def _start(self, log: RequestLog) -> None:
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(log))

    async def _write(self, log: RequestLog) -> None:
        while self._waiting:
            size = min(_BATCH_SIZE, len(self._waiting))
            oldest = [self._waiting.popleft() for _ in range(size)]
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
        try:
            await self._run(partial(log.write_all, [record for record, _ in batch]))
        except Exception as error:
            if not isinstance(error, UnavailableError):  # a probe notices when the store is available again
                self._kept_at, self._refused_at = -math.inf, time.monotonic()
            return error
        self._refused_at = -math.inf
        return None

    async def _run(self, work: Callable[[], None]) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except UnavailableError:
            self._kept_at = -math.inf
            raise
        self._kept_at = time.monotonic()

    def _was_written(self, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            self._on_loss()
            _LOG.error("a failed request could not be recorded: %s", error)


def _note_outcome(done: asyncio.Future[None]) -> None:
    if not done.cancelled():
        done.exception()


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
