"""Quotas of keys: what a key may use per day and store in all, reserved before the work, settled after it.

What was used is in the database, so that all processes and restarts agree; what running requests have
reserved is known to their process alone.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from surefoot.errors import StoreError
from surefoot.server.gateway.errors import ApiError
from surefoot.server.gateway.records import AuthorizedKey, KeyStore, KeyUse

_USES: Final = {"daily_requests": "requests", "daily_tokens": "tokens", "max_stored_bytes": "stored_bytes"}
"""Quotas of a key, and what of its use each of them bounds."""
_TIMEOUT_S = 10.0
"""Seconds for reading what a key has used."""
_FRESH_S = 1.0
_NEAR = 0.9
"""Up to this share of a quota, what the database had is remembered for so many seconds; beyond it, every
request asks."""
_ATTEMPTS = 3
_RETRY_S = 1.0
"""When to try again, if others of the key's requests hold the rest of a quota."""
RECORD_BYTES = 4096
"""What the record of a request takes beside its texts."""
BYTES_PER_TOKEN = 4
"""What a token of text takes: of a prompt that is not yet read, and of an answer that is not yet stored."""


@dataclass(kw_only=True, eq=False)
class _Ledger:
    """What is known here of the use of one key."""

    running: set[Allowance] = field(default_factory=set)
    """Those whose use is not yet in the database."""
    written: Counter[str] = field(default_factory=Counter)
    """What this process has used and written in all."""
    used: KeyUse | None = None
    """What the database had when it was last asked, with at least what ``written`` was at that time …"""
    mark: Counter[str] = field(default_factory=Counter)
    """… which was this …"""
    asked: float = 0.0
    """… and this that time, on the monotonic clock."""

    def exceeded(self, mine: Allowance, key: AuthorizedKey, *, share: float = 1.0) -> ApiError | None:
        """Why this share of the key's quotas does not allow what ``mine`` holds; ``None`` = it does.

        What was written after ``mark`` is added, though the database may have had some of it.
        """
        for quota, name in _USES.items():
            limit, asked = getattr(key, quota), getattr(mine.held, name)
            if limit is None or not asked:
                continue
            used = getattr(self.used, name, 0)
            others = sum(getattr(one.held, name) for one in self.running if one is not mine)
            if used + self.written[name] - self.mark[name] + others + asked > share * limit:
                return _refused(key, quota, limit, used, asked, final=used + asked > limit)
        return None


class Quotas:
    """Holds requests to the quotas of their keys.

    ``store`` says what a key has used; it is called in ``threads``, at most once a second for a key that is
    far below its quotas. ``count`` writes the use of a request that has no record; ``None`` = nobody counts,
    and then keys with quotas are refused. ``on_refusal`` is called with the name of the quota.
    """

    def __init__(
        self,
        store: KeyStore | None,
        threads: Executor,
        count: Callable[[KeyUse], asyncio.Future[None]] | None,
        on_refusal: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.store, self.threads, self.count, self.on_refusal = store, threads, count, on_refusal
        self._ledgers: dict[int, _Ledger] = {}

    async def check(self, allowance: Allowance, key: AuthorizedKey) -> None:
        """Return if the key's quotas allow what ``allowance`` holds. Raises :class:`ApiError` 429 or 503."""
        if all(getattr(key, quota) is None for quota in _USES):
            return
        if self.count is None or self.store is None:
            raise ApiError(503, "this server counts no use, and the key has quotas", code="store_failed")
        ledger = self._ledgers.setdefault(key.id, _Ledger())
        ledger.running.add(allowance)
        fresh = time.monotonic() - ledger.asked < _FRESH_S
        if fresh and ledger.exceeded(allowance, key, share=_NEAR) is None:
            return
        # What others write meanwhile may count twice. So nothing is refused before it was asked again.
        refusal: ApiError | None = None
        for _ in range(_ATTEMPTS):
            writing = [one.written for one in ledger.running if one.written is not None]
            await self._ask(self.store, ledger, key)
            if (refusal := ledger.exceeded(allowance, key)) is None:
                return
            if not writing and ledger.written == ledger.mark:
                break
            if writing:
                await asyncio.wait(writing, timeout=_TIMEOUT_S)
        if refusal is not None:
            self.on_refusal(refusal.param or "")
            raise refusal

    def release(self, allowance: Allowance, key: AuthorizedKey, *, written: bool) -> None:
        """Hold ``allowance`` no longer: what it holds is ``written``, or was not used."""
        ledger = self._ledgers.get(key.id)
        if ledger is None or allowance not in ledger.running:
            return
        ledger.running.discard(allowance)
        if written:
            ledger.written.update({name: getattr(allowance.held, name) for name in _USES.values()})

    async def _ask(self, store: KeyStore, ledger: _Ledger, key: AuthorizedKey) -> None:
        mark, asked = Counter(ledger.written), time.monotonic()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                work = asyncio.get_running_loop().run_in_executor
                used = await work(self.threads, store.usage, key.id)
        except (StoreError, TimeoutError) as error:
            message = "what the key has used cannot be read now"
            raise ApiError(503, message, code="store_failed", retry_after_s=5) from error
        if asked >= ledger.asked:  # another question may have been asked later and answered earlier
            ledger.used, ledger.mark, ledger.asked = used, mark, asked


class Allowance:
    """What one request may use of its key's quotas, and what it has used. Without a key, everything."""

    def __init__(self, quotas: Quotas, key: AuthorizedKey | None, *, body_bytes: int = 0) -> None:
        self.key, self.body_bytes = key, body_bytes
        self.spent = 0
        """Tokens that the request has used so far."""
        self.held = KeyUse(key_id=key.id if key else 0, requests=0)
        self.written: asyncio.Future[None] | None = None
        """Done when what was used is in the database."""
        self._quotas, self._open = quotas, False

    async def reserve(self, *, tokens: int, stored: bool) -> None:
        """Reserve one request that draws at most so many ``tokens``, and space for its record if it is
        ``stored``; the tokens of its prompt are estimated from its bytes.

        Raises :class:`ApiError`: 429 that names the quota, 503 if the database does not answer.
        """
        if self.key is None:
            return
        self.held = KeyUse(
            key_id=self.key.id,
            tokens=tokens + self.body_bytes // BYTES_PER_TOKEN,
            stored_bytes=RECORD_BYTES + self.body_bytes + tokens * BYTES_PER_TOKEN if stored else 0,
        )
        self._open = True
        try:
            await self._quotas.check(self, self.key)
        except BaseException:
            self.withdraw()
            raise

    def withdraw(self) -> None:
        """The request is not served, so it uses nothing."""
        self._end(written=False)

    def recorded(self, tokens: int) -> None:
        """Its record is written, and with it that the request used so many tokens."""
        self.held = replace(self.held, tokens=tokens)
        self._end(written=True)

    def close(self) -> None:
        """The request has ended: write what it used, unless its record did."""
        if not self._open or self.key is None or self._quotas.count is None:
            self.withdraw()
            return
        self.held = KeyUse(key_id=self.key.id, tokens=self.spent)
        self.written = self._quotas.count(self.held)
        self.written.add_done_callback(lambda _: self._end(written=True))

    def _end(self, *, written: bool) -> None:
        if self._open and self.key is not None:
            self._open = False
            self._quotas.release(self, self.key, written=written)


def _refused(key: AuthorizedKey, name: str, limit: int, used: int, asked: int, *, final: bool) -> ApiError:
    """``final``: the quota itself is used up, not only held by other requests that are running."""
    what = {"daily_requests": "requests per day", "daily_tokens": "tokens per day"}.get(name, "stored bytes")
    state = f"key {key.name!r} has used {used:,} of {limit:,} {what}"
    if not final:
        message = f"{state}, and its running requests hold the rest; try again when they have ended"
        return ApiError(429, message, param=name, code="rate_limit_exceeded", retry_after_s=_RETRY_S)
    if name == "max_stored_bytes":
        message = f"{state}, and this one may take {asked:,}; have old answers pruned, or the quota raised"
        return ApiError(429, message, param=name, code="insufficient_quota")
    now = datetime.now(UTC)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    more = f", and this request may take {asked:,}; lower 'max_tokens'" if name == "daily_tokens" else ""
    message = f"{state} (UTC){more}, or try again tomorrow" if more else f"{state} (UTC); try again tomorrow"
    wait_s = (midnight - now).total_seconds()
    return ApiError(429, message, param=name, code="insufficient_quota", retry_after_s=wait_s)
