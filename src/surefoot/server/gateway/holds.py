"""Calls that are held: requests wait for people's decisions, which come through a store."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from surefoot.errors import StoreError
from surefoot.guard import GuardDecision, Review
from surefoot.records import Message
from surefoot.server.gateway.records import HeldCall, HoldStore
from surefoot.server.gateway.request_log import LogEntry
from surefoot.server.gateway.settings import ToolGuard

_POLL_S = 0.25
"""Seconds between looks at the store, one look for all requests that wait."""
_LOG = logging.getLogger("surefoot.server")


class Holds:
    """Puts held calls into ``store``, and waits for what people decide; any process may answer there.

    ``on_review`` is told of each decision that came in time.
    """

    def __init__(self, store: HoldStore, settings: ToolGuard, on_review: Callable[[Review], None]) -> None:
        self._store, self._settings, self._on_review = store, settings, on_review
        self._waiting: dict[int, asyncio.Future[Review]] = {}
        self._polling: asyncio.Task[None] | None = None

    async def review(
        self,
        entry: LogEntry,
        choice: int,
        run: tuple[Message, ...],
        reply: Message,
        decision: GuardDecision,
    ) -> tuple[Review | None, str | None]:
        """A person's decision, ``None`` if there is none within ``hold_s`` seconds; and the call's number.

        It is denied at once while too many wait, or the store fails.
        """
        held = HeldCall(
            request_id=entry.id,
            choice=choice,
            created=datetime.now(UTC),
            key_id=entry.key.id if entry.key else None,
            run=run,
            reply=reply,
            decision=decision,
        )
        try:
            number = await asyncio.to_thread(self._store.hold, held, most=self._settings.most_held)
        except StoreError as error:
            _LOG.warning("a call could not be held: %s", error)
            number = None
        if number is None:
            return Review(approved=False, comment="too many calls wait for a decision"), None
        made: asyncio.Future[Review] = asyncio.get_running_loop().create_future()
        self._waiting[number] = made
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll())
        try:
            async with asyncio.timeout(self._settings.hold_s):
                review = await made
        except TimeoutError:
            return None, str(number)
        finally:
            self._waiting.pop(number, None)
        self._on_review(review)
        return review, str(number)

    async def find(self, number: int, key_id: int | None) -> HeldCall:
        """A held call of a key. Raises ``NotFoundError``, also for one of another key."""
        return await asyncio.to_thread(self._store.held, number, key_id=key_id)

    async def close(self) -> None:
        """Stop looking."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)

    async def _poll(self) -> None:
        while self._waiting:
            await asyncio.sleep(_POLL_S)
            begin = time.monotonic()
            try:
                reviews = await asyncio.to_thread(self._store.reviews, list(self._waiting))
            except StoreError as error:
                _LOG.warning("decisions on held calls cannot be read: %s", error)
                await asyncio.sleep(1 + time.monotonic() - begin)
                continue
            for number, review in reviews.items():
                waiting = self._waiting.get(number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(review)
