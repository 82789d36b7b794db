"""Users with their sessions, and attempts to sign in. Passwords and tokens are stored as hashes only.

A password is weak, so it goes through scrypt (RFC 7914) with a random salt. A token or key is 256 random
bits, which cannot be guessed from a plain hash, so it is hashed once with SHA-256: it is checked with every
request, and scrypt would let a stranger keep the server busy.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, get_args

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, text, update

from surefoot.errors import ConflictError, NotFoundError, StoreError
from surefoot.server.store import accounts as t
from surefoot.server.store.accounts import Role, Session, User
from surefoot.server.store.engine import Connections, Repository
from surefoot.server.store.schema import as_data, checked_name, inserted, one_of, rows_of, storable

DEFAULT_ROLES: tuple[Role, ...] = ("annotator",)
DEFAULT_COST: Final = 14
"""log2 of scrypt's N; with r = 8 a hash takes 2^(cost + 10) bytes: 16 MB."""

_ROLES = frozenset(get_args(Role))
_BLOCK: Final = 8
_PARALLEL: Final = 5
"""N = 2^14, r = 8, p = 5: as slow as N = 2^17, p = 1 in an eighth of the memory (OWASP's list of equals)."""
_LONGEST_PASSWORD: Final = 1024


class Users(Repository):
    """Repository of users and their sessions."""

    def __init__(self, connections: Connections, password_cost: int = DEFAULT_COST) -> None:
        super().__init__(connections)
        self._cost = password_cost

    def create(self, name: str, password: str | None = None, roles: Collection[Role] = DEFAULT_ROLES) -> User:
        """Add a user; one without a password can only sign in through a sign-in proxy.

        Raises ``ConflictError`` if the name is taken (letter case does not matter), and ``StoreError`` for an
        invalid name, a password of fewer than 8 characters or an unknown role.
        """
        name = checked_user_name(name)
        folded, hashed, roles = folded_name(name), self._hash(password), checked_roles(roles)
        with self._connections.write() as connection:
            owner = connection.scalar(select(t.users.c.name).where(t.users.c.folded == folded))
            if owner is not None:
                raise ConflictError(f"the name '{owner}' is taken; choose another")
            row = {"name": name, "folded": folded, "password": hashed, "roles": roles, "active": True}
            return inserted(connection, User, t.users, **row, created=self._connections.clock())

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
        with self._connections.read() as connection:
            return rows_of(connection, User, select(t.users).order_by(t.users.c.name))

    def set_password(self, user_id: int, password: str | None) -> None:
        """Change or (``None``) remove the password, and end the user's sessions."""
        self._change(user_id, password=self._hash(password))

    def invited(self) -> set[int]:
        """Active accounts without a password: their owners may choose one with a link."""
        query = select(t.users.c.id).where(t.users.c.password.is_(None), t.users.c.active)
        with self._connections.read() as connection:
            return set(connection.scalars(query))

    def accept(self, user_id: int, password: str) -> None:
        """Set the first password of an account. Raises ``ConflictError`` if it has one."""
        unset, hashed = (t.users.c.id == user_id) & t.users.c.password.is_(None), self._hash(password)
        with self._connections.write() as connection:
            if not connection.execute(update(t.users).where(unset).values(password=hashed)).rowcount:
                raise ConflictError("this account has a password already; sign in with it")

    def set_active(self, user_id: int, active: bool) -> None:
        """Open or close an account; its sessions end, and its labels stay."""
        self._change(user_id, active=active)

    def set_roles(self, user_id: int, roles: Collection[Role]) -> User:
        """Replace the roles, and end the user's sessions."""
        self._change(user_id, roles=checked_roles(roles))
        return self.get(user_id)

    def sign_in(self, name: str, password: str) -> User | None:
        """The user, or ``None``; a wrong name and a wrong password look and take the same."""
        with self._connections.read() as connection:
            # replace an invalid name by an unused one, so that the check takes as long as for a valid name
            matches = t.users.c.folded == (folded_name(name) if storable(name) else "")
            row = connection.execute(select(t.users).where(matches)).mappings().one_or_none()
        stored = row["password"] if row is not None and row["active"] else None
        if not password_matches(password, stored, self._cost) or row is None:
            return None
        return self.get(row["id"])

    def open_session(
        self, user_id: int, *, lifetime: timedelta = timedelta(hours=12), proxied: bool = False
    ) -> tuple[str, Session]:
        """A new session and its token, which is stored nowhere; expired sessions are deleted."""
        token, moment = new_token(), self._connections.clock()
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
                proxied=proxied,
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
            if row is None or row["expires"] <= self._connections.clock():
                return None
            user = _user(connection, t.users.c.id == row["user_id"])
            return (user, as_data(Session, row)) if user.active else None

    def end_session(self, token: str) -> None:
        """Sign out. An unknown token is ignored."""
        hashed = token_hash(token)
        with self._connections.write() as connection:
            connection.execute(delete(t.sessions).where(t.sessions.c.token_hash == hashed))

    def _hash(self, password: str | None) -> str | None:
        if password is None:
            return None
        if not 8 <= len(password) <= _LONGEST_PASSWORD:
            raise StoreError("'password' must have 8 to 1024 characters")
        return password_hash(password, self._cost)

    def _change(self, user_id: int, **values: Any) -> None:
        with self._connections.write() as connection:
            if not connection.execute(update(t.users).where(t.users.c.id == user_id).values(values)).rowcount:
                raise NotFoundError(f"user {user_id} does not exist")
            connection.execute(delete(t.sessions).where(t.sessions.c.user_id == user_id))


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


def checked_roles(roles: Collection[Role]) -> frozenset[Role]:
    """``roles`` without repetition. Raises ``StoreError`` for one that is not a ``Role``."""
    unknown = sorted(set(roles) - _ROLES)
    if unknown:
        raise StoreError(f"'{unknown[0]}' is not a role; choose from {', '.join(sorted(_ROLES))}")
    return frozenset(roles)


def _user(connection: Connection, where: ColumnElement[bool]) -> User:
    return one_of(connection, User, select(t.users).where(where), "the user does not exist")


def password_hash(password: str, cost: int = DEFAULT_COST) -> str:
    """``scrypt$cost$r$p$salt$hash``, so that costs can rise without breaking older hashes."""
    salt = secrets.token_bytes(16)
    hashed = _scrypt(password, salt, cost, _BLOCK, _PARALLEL)
    return f"scrypt${cost}${_BLOCK}${_PARALLEL}${_text(salt)}${_text(hashed)}"


def password_matches(password: str, stored: str | None, cost: int = DEFAULT_COST) -> bool:
    """Whether ``password`` gives ``stored``; takes as long where there is none (no such user)."""
    if stored is None or len(password) > _LONGEST_PASSWORD:
        _scrypt("", b"-" * 16, cost, _BLOCK, _PARALLEL)
        return False
    _, stored_cost, block, parallel, salt, expected = stored.split("$")
    hashed = _scrypt(password, base64.b64decode(salt), int(stored_cost), int(block), int(parallel))
    return hmac.compare_digest(hashed, base64.b64decode(expected))


def new_token() -> str:
    """256 random bits, safe in URLs and headers."""
    return secrets.token_urlsafe(32)


def token_hash(token: str) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _scrypt(password: str, salt: bytes, cost: int, block: int, parallel: int) -> bytes:
    # twice the size of the algorithm's memory, because OpenSSL also counts its working space
    room = 2 * 128 * block * ((1 << cost) + parallel)
    secret = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(secret, salt=salt, n=1 << cost, r=block, p=parallel, maxmem=room, dklen=32)


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


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
        with self._connections.write() as connection:
            if not self._connections.sqlite:
                connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _LOCK})
            value: str | None = connection.scalar(stored)
            if value is None:
                value = secrets.token_urlsafe(48)
                connection.execute(insert(t.server_secrets).values(name=_SIGNING_KEY, value=value))
            return value
