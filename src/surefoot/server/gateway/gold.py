"""The stream of gold labels: random answers go to people, and their labels return to the monitor."""

from __future__ import annotations

import asyncio
import logging
import random
from datetime import datetime
from typing import TYPE_CHECKING

from surefoot.errors import StoreError
from surefoot.server.gateway.admission import cancel
from surefoot.server.gateway.changes import ChangeChart
from surefoot.server.gateway.settings import MonitorSettings
from surefoot.server.records import GatewayRecord

if TYPE_CHECKING:
    from surefoot.server.store.gold import GoldSamples

_LOG = logging.getLogger("surefoot.server")


class GoldStream:
    """Offers each answer to people with the chance ``settings.gold_share``, and polls for their labels.

    Answers do not wait for it; an answer that cannot be queued is counted in ``lost``.
    """

    def __init__(
        self,
        store: GoldSamples,
        settings: MonitorSettings,
        chart: ChangeChart,
        rng: random.Random | None = None,
    ) -> None:
        self._store, self._settings, self._chart = store, settings, chart
        self._rng = rng or random.SystemRandom()
        self._tasks: set[asyncio.Task[None]] = set()
        self._polling: asyncio.Task[None] | None = None
        self.queued = self.lost = 0
        self.last_label: datetime | None = None

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
