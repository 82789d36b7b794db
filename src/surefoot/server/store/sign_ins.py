"""Attempts to sign in, counted for all processes of a server, and the secret that signs its cookies."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlalchemy import delete, func, insert, select, text

from surefoot.server.store import accounts as t
from surefoot.server.store.engine import Repository

_LOCK: Final = 0x5EF516
"""Number of the PostgreSQL advisory lock under which attempts are counted."""
_SIGNING_KEY: Final = "signing key"


@dataclass(frozen=True, kw_only=True)
class Bound:
    """At most so many attempts under a key within a window. Only a digest of the key is stored."""

    key: str
    most: int
    seconds: float

    @property
    def digest(self) -> str:
        """What the key is stored as."""
        return hashlib.sha256(self.key.encode("utf-8", "surrogatepass")).hexdigest()


class SignIns(Repository):
    """Repository of attempts to sign in."""

    def start(self, *bounds: Bound) -> float:
        """Count an attempt under each bound before it is made; seconds to wait if there were too many, or 0.

        An attempt that must wait is not counted. Attempts of which no bound speaks any more are deleted.
        """
        a = t.sign_in_attempts.c
        with self._connections.write() as connection:
            if not self._connections.sqlite:  # or attempts at the same moment would not see each other
                connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _LOCK})
            moment = self._connections.clock()
            connection.execute(delete(t.sign_in_attempts).where(a.expires <= moment))
            waits = [0.0]
            for bound in bounds:
                query = select(func.count(), func.min(a.expires)).where(a.digest == bound.digest)
                count, first = connection.execute(query).one()
                if count >= bound.most:
                    waits.append((first - moment).total_seconds())
            if max(waits) == 0:
                rows = [
                    {"digest": bound.digest, "expires": moment + timedelta(seconds=bound.seconds)}
                    for bound in bounds
                ]
                connection.execute(insert(t.sign_in_attempts), rows)
            return max(waits)

    def forget(self, bound: Bound) -> None:
        """The password was right: the attempts under the bound's key no longer count."""
        with self._connections.write() as connection:
            connection.execute(delete(t.sign_in_attempts).where(t.sign_in_attempts.c.digest == bound.digest))

    def signing_key(self) -> str:
        """The secret of what this server signs for browsers, made when it is first asked for."""
        stored = select(t.server_secrets.c.value).where(t.server_secrets.c.name == _SIGNING_KEY)
        with self._connections.read() as connection:
            value: str | None = connection.scalar(stored)
        if value is not None:
            return value
        with self._connections.write() as connection:
            if not self._connections.sqlite:
                connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _LOCK})
            value = connection.scalar(stored)
            if value is None:
                value = secrets.token_urlsafe(48)
                connection.execute(insert(t.server_secrets).values(name=_SIGNING_KEY, value=value))
            return value
