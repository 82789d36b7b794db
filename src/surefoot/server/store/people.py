"""Users with their personal links and sessions, and API keys with their scopes and expiry.

Only hashes of tokens and keys are stored. A token is 256 random bits, which cannot be guessed from a plain
hash, so it is hashed once with SHA-256.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import unicodedata
from collections.abc import Collection
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final, TypedDict, Unpack, get_args

from sqlalchemy import ColumnElement, Connection, delete, or_, select, update

from surefoot.errors import ConflictError, ExpiredKeyError, NotFoundError, StoreError
from surefoot.server.permissions import ROLE_SCOPES, SCOPES, KeyScope, Role
from surefoot.server.store import accounts as t
from surefoot.server.store.accounts import ApiKey, Session, User
from surefoot.server.store.engine import Repository, changed_by
from surefoot.server.store.schema import as_data, checked_name, inserted, one_of

_LAST_USED_EVERY: Final = timedelta(minutes=1)
_SKEW: Final = timedelta(minutes=5)
"""Between the clocks of servers on one database."""
_RECALLED: Final = timedelta(seconds=1)
"""How long a valid key is not looked up again; changes by this process show at once."""
_MOST_RECALLED: Final = 10_000


class Users(Repository):
    """Repository of users and their sessions."""

    def create(self, name: str, role: Role = "annotator") -> User:
        """Add a user, without a link.

        Raises ``ConflictError`` if the name is taken (letter case does not matter), and ``StoreError`` for an
        invalid name or an unknown role.
        """
        name = checked_user_name(name)
        folded = folded_name(name)
        with self._connections.write() as connection:
            owner = connection.scalar(select(t.users.c.name).where(t.users.c.folded == folded))
            if owner is not None:
                raise ConflictError(f"the name '{owner}' is taken; choose another")
            row = {"name": name, "folded": folded, "role": checked_role(role), "active": True}
            return inserted(connection, User, t.users, **row, created=self._now)

    def get(self, user_id: int) -> User:
        """Raises ``NotFoundError``."""
        with self._connections.read() as connection:
            return _user(connection, t.users.c.id == user_id)

    def by_name(self, name: str) -> User:
        """Raises ``NotFoundError``."""
        with self._connections.read() as connection:
            return _user(connection, t.users.c.folded == folded_name(name))

    def list(self) -> list[User]:
        """All users by name, inactive ones too."""
        return self._rows(User, select(t.users).order_by(t.users.c.name))

    def new_link(self, user_id: int) -> str:
        """The token of a new personal link, which is stored nowhere; the link before and sessions end."""
        token = new_token()
        self._set(user_id, link_hash=token_hash(token))
        return token

    def by_link(self, token: str) -> User | None:
        """The owner of a personal link; ``None`` if it is unknown or ended, or its user inactive."""
        query = select(t.users).where(t.users.c.link_hash == token_hash(token), t.users.c.active)
        return next(iter(self._rows(User, query)), None)

    def set_active(self, user_id: int, active: bool) -> None:
        """Open or close an account; its link and its sessions end, and its labels stay."""
        self._set(user_id, active=active, link_hash=None)

    def set_role(self, user_id: int, role: Role) -> User:
        """Change the role, and end the user's sessions."""
        self._set(user_id, role=checked_role(role))
        return self.get(user_id)

    def open_session(self, user_id: int, *, lifetime: timedelta = timedelta(hours=12)) -> tuple[str, Session]:
        """A new session and its token, which is stored nowhere; expired sessions are deleted."""
        token, moment = new_token(), self._now
        with self._connections.write() as connection:
            if not _user(connection, t.users.c.id == user_id).active:
                raise StoreError("the user is not active; activate them first")
            connection.execute(delete(t.sessions).where(t.sessions.c.expires <= moment))
            session = inserted(
                connection,
                Session,
                t.sessions,
                token_hash=token_hash(token),
                user_id=user_id,
                csrf=secrets.token_urlsafe(32),
                created=moment,
                expires=moment + lifetime,
            )
            return token, session

    def session(self, token: str) -> tuple[User, Session] | None:
        """The owner of a token; ``None`` if it is unknown, ended or expired, or its user inactive."""
        hashed = token_hash(token)
        with self._connections.read() as connection:
            query = select(t.sessions).where(t.sessions.c.token_hash == hashed)
            row = connection.execute(query).mappings().one_or_none()
            moment = self._now
            # one from the future was opened before the clock was set back, and would last too long
            if row is None or not row["created"] - _SKEW <= moment < row["expires"]:
                return None
            user = _user(connection, t.users.c.id == row["user_id"])
            return (user, as_data(Session, row)) if user.active else None

    def end_session(self, token: str) -> None:
        """Sign out. An unknown token is ignored."""
        self._change(delete(t.sessions).where(t.sessions.c.token_hash == token_hash(token)))

    def _set(self, user_id: int, **values: Any) -> None:
        with self._connections.write() as connection:
            if not changed_by(connection, update(t.users).where(t.users.c.id == user_id).values(values)):
                raise NotFoundError(f"user {user_id} does not exist")
            connection.execute(delete(t.sessions).where(t.sessions.c.user_id == user_id))
        self._connections.keys.clear()


def folded_name(name: str) -> str:
    """``name`` without letter case and compatibility forms (Unicode's compatibility caseless match)."""
    folded = unicodedata.normalize("NFD", name)
    for _ in range(2):
        folded = unicodedata.normalize("NFKC", folded.casefold())
    return folded


def checked_user_name(name: str) -> str:
    """``name`` in Unicode's normal form NFKC.

    Raises ``StoreError`` for invisible characters and for spaces other than single ones between words.
    """
    name = checked_name("name", unicodedata.normalize("NFKC", checked_name("name", name)))
    if not name.isprintable():
        character = next(character for character in name if not character.isprintable())
        described = f"U+{ord(character):04X} ({unicodedata.name(character, 'unnamed')})"
        raise StoreError(f"'name' contains {described}, which is invisible; leave it out")
    if name != " ".join(name.split()):
        raise StoreError("'name' may have single spaces between words, and no others")
    return name


def checked_role(role: Role) -> Role:
    """``role``. Raises ``StoreError`` if it is not a ``Role``."""
    if role not in get_args(Role):
        raise StoreError(f"'{role}' is not a role; choose from {', '.join(get_args(Role))}")
    return role


def _user(connection: Connection, where: ColumnElement[bool]) -> User:
    return one_of(connection, User, select(t.users).where(where), "the user does not exist")


def new_token() -> str:
    """256 random bits, safe in URLs and headers."""
    return secrets.token_urlsafe(32)


def token_hash(token: str) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class KeyLimits(TypedDict, total=False):
    """What a key may do, until when, and how much; ``None`` = no limit. The fields are ``ApiKey``'s."""

    rate_limit: int | None
    expires: datetime | None
    scopes: Collection[KeyScope] | None


class Keys(Repository):
    """Repository of API keys."""

    def create(
        self,
        name: str,
        role: Role,
        *,
        user_id: int | None = None,
        project_id: int | None = None,
        **limits: Unpack[KeyLimits],
    ) -> tuple[str, ApiKey]:
        """A new key ``sf-…`` and its row. The key itself is not stored: show it now.

        It never expires, and may do what its role may, unless ``limits`` say otherwise. Raises
        ``NotFoundError`` for an unknown user or project; ``StoreError`` for an unknown role, a limit below 1,
        an expiry that is past, and scopes that are none or beyond the role.
        """
        row = {"name": checked_name("name", name), "role": checked_role(role), "created": self._now}
        row |= {"user_id": user_id, "project_id": project_id}
        row |= _checked_limits(limits, role, self._now)
        key = f"sf-{new_token()}"
        with self._connections.write() as connection:
            for number, table in ((user_id, t.users), (project_id, t.projects)):
                exists = select(table.c.id).where(table.c.id == number)
                if number is not None and connection.scalar(exists) is None:
                    raise NotFoundError(f"row {number} of {table.name} does not exist")
            return key, inserted(connection, ApiKey, t.api_keys, key_hash=token_hash(key), **row)

    def authenticate(self, key: str) -> ApiKey | None:
        """The row of ``key``; ``None`` if it is unknown or revoked, or its user is not active.

        Raises ``ExpiredKeyError`` if it is right, but past its time. The row is found by the key's hash,
        which cannot be guessed. Writes nothing; see ``note_use``.
        """
        digest = token_hash(key)
        query = (
            select(t.api_keys, t.users.c.active)
            .join(t.users, t.users.c.id == t.api_keys.c.user_id, isouter=True)
            .where(t.api_keys.c.key_hash == digest)
        )
        with self._connections.read() as connection:
            row = connection.execute(query).mappings().one_or_none()
        if row is None or row["revoked"] is not None or row["active"] is False:
            return None
        if row["expires"] is not None and row["expires"] <= self._now:
            when = row["expires"].isoformat(timespec="minutes")
            raise ExpiredKeyError(f"key {row['name']!r} expired at {when}; ask for a new one")
        api_key = as_data(ApiKey, row)
        recalled = self._connections.keys
        if len(recalled) >= _MOST_RECALLED:
            recalled.clear()
        recalled[digest] = self._now, api_key
        return api_key

    def recall(self, key: str) -> ApiKey | None:
        """A key that ``authenticate`` found within the last second and that has not expired; ``None`` if only
        ``authenticate`` can tell. Does not wait."""
        api_key: ApiKey | None
        at, api_key = self._connections.keys.get(token_hash(key), (self._now, None))
        fresh = timedelta(0) <= self._now - at < _RECALLED
        if not fresh or api_key is None or (api_key.expires is not None and api_key.expires <= self._now):
            return None
        return api_key

    def note_use(self, key: ApiKey) -> None:
        """Write that ``key`` was used now, at most once a minute: a busy key does not write each time.

        Apart from ``authenticate``, so that who may pass does not depend on whether this can be written.
        """
        moment = self._now
        if key.last_used is not None and moment - key.last_used < _LAST_USED_EVERY:
            return
        last_used = t.api_keys.c.last_used
        stale = or_(last_used.is_(None), last_used <= moment - _LAST_USED_EVERY)
        self._change(update(t.api_keys).where(t.api_keys.c.id == key.id, stale).values(last_used=moment))

    def list(self) -> list[ApiKey]:
        """All keys, oldest first, revoked ones too."""
        return self._rows(ApiKey, select(t.api_keys).order_by(t.api_keys.c.id))

    def get(self, key_id: int) -> ApiKey:
        """Raises ``NotFoundError``."""
        query = select(t.api_keys).where(t.api_keys.c.id == key_id)
        return self._one(ApiKey, query, f"key {key_id} does not exist")

    def change(self, key_id: int, **limits: Unpack[KeyLimits]) -> ApiKey:
        """Set the limits that are named; ``None`` takes one away. Raises as ``create`` does."""
        checked = _checked_limits(limits, self.get(key_id).role, self._now)
        if checked:
            self._set(t.api_keys.c.id == key_id, **checked)
        return self.get(key_id)

    def revoke(self, key_id: int) -> ApiKey:
        """End a key for good; a second time changes nothing. Raises ``NotFoundError``."""
        self._set((t.api_keys.c.id == key_id) & t.api_keys.c.revoked.is_(None), revoked=self._now)
        return self.get(key_id)

    def _set(self, where: ColumnElement[bool], **values: Any) -> None:
        self._change(update(t.api_keys).where(where).values(values))
        self._connections.keys.clear()


def _checked_limits(limits: KeyLimits, role: Role, now: datetime) -> dict[str, Any]:
    rate_limit = limits.get("rate_limit")
    if rate_limit is not None and rate_limit < 1:
        raise StoreError("'rate_limit' must be at least 1, or None for no limit")
    expires = limits.get("expires")
    if expires is not None and expires <= now:
        raise StoreError(f"'expires' is in the past: {expires.isoformat(timespec='minutes')}")
    checked: dict[str, Any] = {**limits}
    if "scopes" in limits:
        checked["scopes"] = _checked_scopes(role, limits["scopes"])
    return checked


def _checked_scopes(role: Role, scopes: Collection[KeyScope] | None) -> tuple[KeyScope, ...] | None:
    if scopes is None:
        return None
    if not scopes:
        raise StoreError("'scopes' is empty; leave it out for all that the role may do")
    if unknown := sorted(set(scopes) - ROLE_SCOPES[role]):
        allowed = ", ".join(scope for scope in SCOPES if scope in ROLE_SCOPES[role])
        raise StoreError(f"the role {role} does not include the scope '{unknown[0]}'; choose from {allowed}")
    return tuple(scope for scope in SCOPES if scope in scopes)


_PERIOD: Final = re.compile(r"([1-9][0-9]{0,4})([hdw])")
_UNITS: Final = {"h": "hours", "d": "days", "w": "weeks"}


def expiry_of(text: str, now: datetime) -> datetime:
    """When a key ends: ``30d`` (or ``12h``, ``2w``) from ``now``, or with the day ``2026-12-31`` (UTC).

    Raises ``StoreError`` for anything else.
    """
    if period := _PERIOD.fullmatch(text):
        return now + timedelta(**{_UNITS[period[2]]: int(period[1])})
    try:
        return datetime.combine(date.fromisoformat(text), time(), UTC) + timedelta(days=1)
    except (ValueError, OverflowError) as error:
        message = "write a period such as 30d, 12h or 2w, or a last day such as 2026-12-31"
        raise StoreError(f"'expires' is {text[:100]!r}; {message}") from error
