"""API keys: made once, shown once, kept as a hash."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import Final

from sqlalchemy import RowMapping, insert, or_, select, update

from surefoot.annotation.database import _secrets
from surefoot.annotation.database import _tables as t
from surefoot.annotation.database._checks import checked_name
from surefoot.annotation.database._engine import Connections
from surefoot.annotation.database._errors import NotFoundError
from surefoot.annotation.database.accounts import ApiKey, Role
from surefoot.annotation.database.users import checked_roles
from surefoot.errors import StoreError

_MARK: Final = "sf"
_PREFIX_BYTES: Final = 4
_LAST_USED_EVERY: Final = timedelta(minutes=1)
_NO_HASH: Final = "0" * 64


class Keys:
    """Repository of API keys."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def create(
        self,
        name: str,
        role: Role,
        *,
        user_id: int | None = None,
        project_id: int | None = None,
        rate_limit: int | None = None,
    ) -> tuple[str, ApiKey]:
        """A new key ``sf-PREFIX-SECRET`` and its row. The key itself is not kept: show it now.

        Raises ``NotFoundError`` for an unknown user or project, ``StoreError`` for an unknown role or a
        rate limit below one request a minute.
        """
        checked_name("name", name)
        checked_roles([role])
        if rate_limit is not None and rate_limit < 1:
            raise StoreError("'rate_limit' is in requests a minute: at least 1, or None for no limit")
        prefix = secrets.token_hex(_PREFIX_BYTES)
        key = f"{_MARK}-{prefix}-{_secrets.new_token()}"
        row = {
            "prefix": prefix,
            "key_hash": _secrets.token_hash(key),
            "name": name,
            "role": role,
            "user_id": user_id,
            "project_id": project_id,
            "rate_limit": rate_limit,
            "created": self._connections.clock(),
        }
        with self._connections.write() as connection:
            for number, table in ((user_id, t.users), (project_id, t.projects)):
                found = connection.scalar(select(table.c.id).where(table.c.id == number))
                if number is not None and found is None:
                    raise NotFoundError(f"there is no row {number} in {table.name}")
            made = connection.execute(insert(t.api_keys).values(row).returning(t.api_keys)).mappings().one()
            return key, _key(made)

    def authenticate(self, key: str) -> ApiKey | None:
        """The row of ``key``; ``None`` if it is unknown or revoked, or its user is not active.

        The row is found by the prefix, which is not secret; the rest is compared in constant time. Writes
        nothing; see ``note_use``.
        """
        parts = key.split("-", 2)
        prefix = parts[1] if len(parts) == 3 and parts[0] == _MARK and parts[1].isalnum() else ""
        query = (
            select(t.api_keys, t.users.c.active)
            .join(t.users, t.users.c.id == t.api_keys.c.user_id, isouter=True)
            .where(t.api_keys.c.prefix == prefix)
        )
        with self._connections.read() as connection:
            row = connection.execute(query).mappings().one_or_none()
        matches = _secrets.same_hash(_secrets.token_hash(key), row["key_hash"] if row else _NO_HASH)
        if not matches or row is None or row["revoked"] is not None or row["active"] is False:
            return None
        return _key(row)

    def note_use(self, key: ApiKey) -> None:
        """Write that ``key`` was used now, at most once a minute: a busy key does not write each time.

        Apart from ``authenticate``, so that who may pass does not depend on whether this can be written.
        """
        moment = self._connections.clock()
        if key.last_used is not None and moment - key.last_used < _LAST_USED_EVERY:
            return
        before = t.api_keys.c.last_used
        stale = or_(before.is_(None), before <= moment - _LAST_USED_EVERY)
        with self._connections.write() as connection:
            wanted = (t.api_keys.c.id == key.id) & stale
            connection.execute(update(t.api_keys).where(wanted).values(last_used=moment))

    def list(self) -> list[ApiKey]:
        """All keys, oldest first, revoked ones too."""
        with self._connections.read() as connection:
            rows = connection.execute(select(t.api_keys).order_by(t.api_keys.c.id)).mappings()
            return [_key(row) for row in rows]

    def get(self, key_id: int) -> ApiKey:
        """Raises ``NotFoundError``."""
        with self._connections.read() as connection:
            row = connection.execute(select(t.api_keys).where(t.api_keys.c.id == key_id)).mappings().first()
        if row is None:
            raise NotFoundError(f"there is no key {key_id}")
        return _key(row)

    def revoke(self, key_id: int) -> ApiKey:
        """End a key for good; a second time changes nothing. Raises ``NotFoundError``."""
        wanted = (t.api_keys.c.id == key_id) & t.api_keys.c.revoked.is_(None)
        with self._connections.write() as connection:
            connection.execute(update(t.api_keys).where(wanted).values(revoked=self._connections.clock()))
        return self.get(key_id)


def _key(row: RowMapping) -> ApiKey:
    return ApiKey(
        id=row["id"],
        prefix=row["prefix"],
        name=row["name"],
        role=row["role"],
        user_id=row["user_id"],
        project_id=row["project_id"],
        rate_limit=row["rate_limit"],
        revoked=row["revoked"],
        last_used=row["last_used"],
        created=row["created"],
    )
