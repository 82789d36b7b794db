"""What people decide: calls that the guard holds for them, and random answers that they label for the
monitor."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from surefoot.errors import StoreError
from surefoot.guard import GuardDecision, Review
from surefoot.records import Message
from surefoot.server.gateway.admission import cancel
from surefoot.server.gateway.changes import ChangeChart
from surefoot.server.gateway.settings import ToolGuard
from surefoot.server.records import GatewayRecord, HeldCall

if TYPE_CHECKING:
    from surefoot.server.store.requests import GoldSamples, HeldCalls

T = TypeVar("T")
_POLL_S = 0.25
"""Seconds between polls of the store of held calls, one poll for all waiting requests."""
_LOG = logging.getLogger("surefoot.server")


class Holds:
    """Puts held calls into ``store``, and waits for people's decisions; any process may decide there.

    ``on_review`` is called with each decision that came in time.
    """

    def __init__(self, store: HeldCalls, settings: ToolGuard, on_review: Callable[[Review], None]) -> None:
        self._store, self._settings, self._on_review = store, settings, on_review
        self._waiting: dict[int, asyncio.Future[Review]] = {}
        self._polling: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    async def review(
        self,
        record: GatewayRecord,
        choice: int,
        run: tuple[Message, ...],
        reply: Message,
        decision: GuardDecision,
    ) -> tuple[Review | None, str | None]:
        """A person's decision, ``None`` after ``hold_s`` seconds without one; and the number of the call.

        The call is denied at once if too many wait or the store fails.
        """
        held = HeldCall(
            request_id=record.request_id,
            choice=choice,
            created=datetime.now(UTC),
            key_id=record.key_id,
            run=run,
            reply=reply,
            decision=decision,
        )
        holding = asyncio.ensure_future(
            asyncio.to_thread(self._store.hold, held, most=self._settings.most_held)
        )
        try:
            number = await asyncio.shield(holding)
            if number is None:
                return Review(approved=False, comment="too many calls wait for a decision"), None
            review = await self._decision(number)
        except StoreError as error:
            _LOG.warning("a call could not be held: %s", error)
            return Review(approved=False, comment="calls cannot be held now"), None
        except asyncio.CancelledError:  # the client has disconnected, or the server stops
            leaving = asyncio.create_task(self._leave(holding))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
            raise
        if review is None:
            return None, str(number)
        self._on_review(review)
        if review.approved and not await self._try(self._store.deliver, number):
            review = Review(approved=False, comment="the approval was used before, or could not be read")
        return review, str(number)

    async def _decision(self, number: int) -> Review | None:
        decided: asyncio.Future[Review] = asyncio.get_running_loop().create_future()
        self._waiting[number] = decided
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll())
        try:
            async with asyncio.timeout(self._settings.hold_s):
                return await decided
        except TimeoutError:
            return None
        finally:
            self._waiting.pop(number, None)

    async def _leave(self, holding: asyncio.Future[int | None]) -> None:
        """Abandon a call, once it is stored."""
        await asyncio.wait([holding])
        if holding.exception() is None and (number := holding.result()) is not None:
            await self._try(self._store.abandon, number)

    async def find(self, number: int, key_id: int | None) -> tuple[HeldCall, bool]:
        """A held call of a key, and whether this request gets it: it is approved, and none got it before.

        Raises ``NotFoundError``, also for another key's call.
        """
        call = await asyncio.to_thread(self._store.held, number, key_id=key_id)
        approved = call.review is not None and call.review.approved
        return call, approved and await asyncio.to_thread(self._store.deliver, number)

    async def _try(self, change: Callable[[int], T], number: int) -> T | None:
        """Change the stored call; ``None`` if the store fails."""
        try:
            return await asyncio.to_thread(change, number)
        except StoreError as error:
            _LOG.warning("the state of held call %d could not be stored: %s", number, error)
            return None

    async def close(self) -> None:
        """Stop polling."""
        await asyncio.gather(*self._leaving)
        if self._polling is not None:
            await cancel(self._polling)

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


class GoldStream:
    """Offers each answer to people with a chance, ``gold_share``, and polls for their labels.

    Answers do not wait for it; an answer that cannot be queued is counted in ``lost``.
    """

    def __init__(self, store: GoldSamples, chart: ChangeChart, rng: random.Random | None = None) -> None:
        self._store, self._settings, self._chart = store, chart.settings, chart
        self._rng = rng or random.SystemRandom()
        self._tasks: set[asyncio.Task[None]] = set()
        self._polling: asyncio.Task[None] | None = None
        self.queued = self.lost = 0
        self.last_label: datetime | None = None

    @property
    def age_s(self) -> float:
        """Seconds since people's last label; NaN without one."""
        return (datetime.now(UTC) - self.last_label).total_seconds() if self.last_label else math.nan

    def offer(self, record: GatewayRecord) -> None:
        """Queue the answer, if it is chosen."""
        if self._polling is None:
            self._polling = asyncio.create_task(self._poll())
        if self._rng.random() < self._settings.gold_share:
            task = asyncio.create_task(self._add(record))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def read(self) -> None:
        """Give new labels to the chart."""
        project = self._settings.gold_project or 0
        for result in await asyncio.to_thread(self._store.results, project):
            if self._chart.add_result(result):
                self.last_label = max(self.last_label or result.labelled, result.labelled)

    async def close(self) -> None:
        """Stop polling once all chosen answers are queued."""
        await asyncio.gather(*self._tasks)
        if self._polling is not None:
            await cancel(self._polling)

    async def _add(self, record: GatewayRecord) -> None:
        settings = self._settings
        try:
            added = await asyncio.to_thread(
                self._store.add, settings.gold_project or 0, record, settings.gold_share
            )
            self.queued += added
        except StoreError as error:
            self.lost += 1
            _LOG.warning("an answer could not be queued for people: %s", error)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._settings.gold_poll_s)
            try:
                await self.read()
            except StoreError as error:
                _LOG.warning("people's labels cannot be read: %s", error)
