"""Users with their personal links and sessions. Only the hash of a link's or session's token is stored.

A token is 256 random bits, which cannot be guessed from a plain hash, so it is hashed once with SHA-256.
"""

from __future__ import annotations

import hashlib
import secrets
import unicodedata
from datetime import timedelta
from typing import Any, get_args

from sqlalchemy import ColumnElement, Connection, delete, select, update

from surefoot.errors import ConflictError, NotFoundError, StoreError
from surefoot.server.permissions import Role
from surefoot.server.store import accounts as t
from surefoot.server.store.accounts import Session, User
from surefoot.server.store.engine import Repository
from surefoot.server.store.schema import as_data, checked_name, inserted, one_of, rows_of


class Users(Repository):
    """Repository of users and their sessions."""

    def create(self, name: str, role: Role = "annotator") -> User:
        """Add a user, who has no link yet.

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

    def new_link(self, user_id: int) -> str:
        """The token of a new personal link, which is stored nowhere; the link before and sessions end."""
        token = new_token()
        self._change(user_id, link_hash=token_hash(token))
        return token

    def by_link(self, token: str) -> User | None:
        """The owner of a personal link; ``None`` if it is unknown or ended, or its user inactive."""
        query = select(t.users).where(t.users.c.link_hash == token_hash(token), t.users.c.active)
        with self._connections.read() as connection:
            return next(iter(rows_of(connection, User, query)), None)

    def set_active(self, user_id: int, active: bool) -> None:
        """Open or close an account; its link and its sessions end, and its labels stay."""
        self._change(user_id, active=active, link_hash=None)

    def set_role(self, user_id: int, role: Role) -> User:
        """Change the role, and end the user's sessions."""
        self._change(user_id, role=checked_role(role))
        return self.get(user_id)

    def open_session(self, user_id: int, *, lifetime: timedelta = timedelta(hours=12)) -> tuple[str, Session]:
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


def checked_role(role: Role) -> Role:
    """``role``. Raises ``StoreError`` for what is not a ``Role``."""
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
