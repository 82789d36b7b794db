"""People: names, passwords, roles and the sessions of their browsers."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from datetime import timedelta
from typing import Any, get_args

from sqlalchemy import Connection, RowMapping, delete, insert, select, update

from surefoot.annotation.database import _secrets
from surefoot.annotation.database import _tables as t
from surefoot.annotation.database._checks import checked_name, storable
from surefoot.annotation.database._engine import Connections
from surefoot.annotation.database._errors import ConflictError, NotFoundError
from surefoot.annotation.database.accounts import Role, Session, User
from surefoot.errors import StoreError

_ROLES = frozenset(get_args(Role))

DEFAULT_ROLES: tuple[Role, ...] = ("annotator",)


class Users:
    """Repository of users and their sessions."""

    def __init__(self, connections: Connections, password_cost: int = _secrets.DEFAULT_COST) -> None:
        self._connections = connections
        self._cost = password_cost

    def create(self, name: str, password: str | None = None, roles: Collection[Role] = DEFAULT_ROLES) -> User:
        """Add a user; without a password nobody signs in by that name.

        Raises ``ConflictError`` if the name is taken, ``StoreError`` for a password of fewer than 8
        characters or an unknown role.
        """
        checked_name("name", name)
        hashed = self._hash(password)
        known = checked_roles(roles)
        with self._connections.write() as connection:
            if connection.scalar(select(t.users.c.id).where(t.users.c.name == name)) is not None:
                raise ConflictError(f"there is a user '{name}' already; choose another name")
            row = {"name": name, "password": hashed, "active": True, "created": self._connections.clock()}
            user_id = connection.execute(insert(t.users).values(row).returning(t.users.c.id)).scalar_one()
            _write_roles(connection, user_id, known)
            return _user(connection, t.users.c.id == user_id)

    def get(self, user_id: int) -> User:
        """Raises ``NotFoundError``."""
        with self._connections.read() as connection:
            return _user(connection, t.users.c.id == user_id)

    def by_name(self, name: str) -> User:
        """Raises ``NotFoundError``."""
        with self._connections.read() as connection:
            return _user(connection, t.users.c.name == name)

    def list(self) -> list[User]:
        """All users by name, inactive ones too."""
        with self._connections.read() as connection:
            roles: dict[int, set[Role]] = {}
            for user_id, role in connection.execute(select(t.user_roles)):
                roles.setdefault(user_id, set()).add(role)
            rows = connection.execute(select(t.users).order_by(t.users.c.name)).mappings()
            return [_as_user(row, roles.get(row["id"], set())) for row in rows]

    def set_password(self, user_id: int, password: str | None) -> None:
        """Change or (``None``) take away the password, and end the user's sessions."""
        self._change(user_id, password=self._hash(password))

    def set_active(self, user_id: int, active: bool) -> None:
        """Let a user in or keep them out; their sessions end, and their labels stay."""
        self._change(user_id, active=active)

    def set_roles(self, user_id: int, roles: Collection[Role]) -> User:
        """Replace the roles, and end the user's sessions."""
        known = checked_roles(roles)
        with self._connections.write() as connection:
            _user(connection, t.users.c.id == user_id)
            connection.execute(delete(t.user_roles).where(t.user_roles.c.user_id == user_id))
            _write_roles(connection, user_id, known)
            connection.execute(delete(t.sessions).where(t.sessions.c.user_id == user_id))
            return _user(connection, t.users.c.id == user_id)

    def sign_in(self, name: str, password: str) -> User | None:
        """The user, or ``None`` for a wrong name or password, alike in what is said and in time taken."""
        with self._connections.read() as connection:
            # a name that no column could hold is compared as another that nobody has
            wanted = t.users.c.name == (name if storable(name) else "")
            row = connection.execute(select(t.users).where(wanted)).mappings().one_or_none()
        stored = row["password"] if row is not None and row["active"] else None
        if not _secrets.password_matches(password, stored, self._cost) or row is None:
            return None
        return self.get(row["id"])

    def open_session(self, user_id: int, *, lifetime: timedelta = timedelta(hours=12)) -> tuple[str, Session]:
        """A new session and its token, which is nowhere else; sessions that have run out are swept away."""
        token, moment = _secrets.new_token(), self._connections.clock()
        row = {
            "token_hash": _secrets.token_hash(token),
            "user_id": user_id,
            "csrf": secrets.token_urlsafe(32),
            "created": moment,
            "expires": moment + lifetime,
        }
        with self._connections.write() as connection:
            if not _user(connection, t.users.c.id == user_id).active:
                raise StoreError("the user is not active; activate them first")
            connection.execute(delete(t.sessions).where(t.sessions.c.expires <= moment))
            made = connection.execute(insert(t.sessions).values(row).returning(t.sessions)).mappings().one()
            return token, _session(made)

    def session(self, token: str) -> tuple[User, Session] | None:
        """Who holds ``token``; ``None`` if it is unknown, ended or run out, or its user is not active."""
        hashed = _secrets.token_hash(token)
        with self._connections.read() as connection:
            query = select(t.sessions).where(t.sessions.c.token_hash == hashed)
            row = connection.execute(query).mappings().one_or_none()
            if row is None or row["expires"] <= self._connections.clock():
                return None
            user = _user(connection, t.users.c.id == row["user_id"])
            return (user, _session(row)) if user.active else None

    def end_session(self, token: str) -> None:
        """Sign out. An unknown token is no error."""
        hashed = _secrets.token_hash(token)
        with self._connections.write() as connection:
            connection.execute(delete(t.sessions).where(t.sessions.c.token_hash == hashed))

    def end_sessions(self, user_id: int) -> int:
        """Sign the user out everywhere; the number of sessions that ended."""
        with self._connections.write() as connection:
            return connection.execute(delete(t.sessions).where(t.sessions.c.user_id == user_id)).rowcount

    def _hash(self, password: str | None) -> str | None:
        if password is None:
            return None
        if not _secrets.usable_password(password):
            raise StoreError("'password' must have 8 to 1024 characters")
        return _secrets.password_hash(password, self._cost)

    def _change(self, user_id: int, **values: Any) -> None:
        with self._connections.write() as connection:
            if not connection.execute(update(t.users).where(t.users.c.id == user_id).values(values)).rowcount:
                raise NotFoundError(f"there is no user {user_id}")
            connection.execute(delete(t.sessions).where(t.sessions.c.user_id == user_id))


def checked_roles(roles: Collection[Role]) -> frozenset[Role]:
    """``roles`` without repetition. Raises ``StoreError`` for one that is not a ``Role``."""
    unknown = sorted(set(roles) - _ROLES)
    if unknown:
        raise StoreError(f"'{unknown[0]}' is no role; choose among {', '.join(sorted(_ROLES))}")
    return frozenset(roles)


def _write_roles(connection: Connection, user_id: int, roles: Collection[Role]) -> None:
    if roles:
        rows = [{"user_id": user_id, "role": role} for role in sorted(roles)]
        connection.execute(insert(t.user_roles), rows)


def _user(connection: Connection, where: Any) -> User:
    row = connection.execute(select(t.users).where(where)).mappings().one_or_none()
    if row is None:
        raise NotFoundError("there is no such user")
    roles = connection.scalars(select(t.user_roles.c.role).where(t.user_roles.c.user_id == row["id"]))
    return _as_user(row, set(roles))


def _as_user(row: RowMapping, roles: Collection[Role]) -> User:
    return User(
        id=row["id"],
        name=row["name"],
        roles=frozenset(roles),
        active=row["active"],
        created=row["created"],
    )


def _session(row: RowMapping) -> Session:
    return Session(
        id=row["id"],
        user_id=row["user_id"],
        csrf=row["csrf"],
        created=row["created"],
        expires=row["expires"],
    )
