"""Projects, their members, and the audit log."""

from __future__ import annotations

import secrets
from typing import Any

from sqlalchemy import Connection, insert, select, update

from surefoot.errors import ConflictError, ForbiddenError, NotFoundError
from surefoot.server.permissions import Role
from surefoot.server.store import accounts as t
from surefoot.server.store.accounts import AuditEntry, Member, Project, Protocol
from surefoot.server.store.engine import Repository, changed_by
from surefoot.server.store.labelling import assignments
from surefoot.server.store.people import checked_role
from surefoot.server.store.schema import checked_name, checked_text, inserted, matching, one_of, rows_of


class Projects(Repository):
    """Repository of projects and their members."""

    def create(self, name: str, *, instructions: str = "", protocol: Protocol | None = None) -> Project:
        """Add a project. Raises ``ConflictError`` if the name is taken."""
        checked_name("name", name)
        with self._connections.write() as connection:
            _refuse_taken(connection, name, None)
            row: dict[str, Any] = {"name": name, "instructions": checked_text("instructions", instructions)}
            row |= {"protocol": protocol or Protocol(), "version": 1, "archived": False}
            return inserted(connection, Project, t.projects, **row, created=self._now)

    def get(self, project_id: int) -> Project:
        """Raises ``NotFoundError``."""
        with self._connections.read() as connection:
            return project_in(connection, project_id)

    def by_name(self, name: str) -> Project:
        """Raises ``NotFoundError``."""
        query = select(t.projects).where(t.projects.c.name == name)
        return self._one(Project, query, f"project '{name}' does not exist")

    def update(
        self,
        project_id: int,
        version: int,
        *,
        name: str | None = None,
        instructions: str | None = None,
        protocol: Protocol | None = None,
        archived: bool | None = None,
    ) -> Project:
        """Change the arguments that are not ``None``, if the project is still at ``version``.

        Raises ``ConflictError`` if it has changed since, or the name is taken.
        """
        changes = {
            "name": None if name is None else checked_name("name", name),
            "instructions": None if instructions is None else checked_text("instructions", instructions),
            "protocol": protocol,
            "archived": archived,
        }
        values = {column: value for column, value in changes.items() if value is not None}
        with self._connections.write() as connection:
            current = locked_project(connection, project_id)
            if current.version != version:
                raise ConflictError(
                    f"the project is at version {current.version}, not {version}: it has changed; reload it"
                )
            if name is not None:
                _refuse_taken(connection, name, project_id)
            changed = (
                update(t.projects).where(t.projects.c.id == project_id).values(**values, version=version + 1)
            )
            connection.execute(changed)
            return project_in(connection, project_id)

    def set_member(self, project_id: int, user_id: int, role: Role, active: bool = True) -> Member:
        """Add a user to the project or change their membership; the pseudonym stays the same.

        Items leased to a member who becomes inactive are available to others at once.

        Raises ``NotFoundError`` for an unknown user or project.
        """
        where = (t.members.c.project_id == project_id) & (t.members.c.user_id == user_id)
        with self._connections.write() as connection:
            locked_project(connection, project_id)
            if connection.scalar(select(t.users.c.id).where(t.users.c.id == user_id)) is None:
                raise NotFoundError(f"user {user_id} does not exist")
            values: dict[str, Any] = {"role": checked_role(role), "active": active}
            if not changed_by(connection, update(t.members).where(where).values(values)):
                values |= {"project_id": project_id, "user_id": user_id}
                values["pseudonym"] = f"rater-{secrets.token_hex(4)}"
                connection.execute(insert(t.members).values(values))
            if not active:
                a = assignments.c
                leased = (a.project_id == project_id) & (a.user_id == user_id) & (a.state == "leased")
                connection.execute(update(assignments).where(leased).values(leased_until=self._now))
            return _members(connection, where)[0]

    def members(self, project_id: int) -> list[Member]:
        """All members by name, inactive ones too."""
        with self._connections.read() as connection:
            return _members(connection, t.members.c.project_id == project_id)

    def member(self, project_id: int, user_id: int) -> Member | None:
        """The user's membership; ``None`` if they have none or it is not active."""
        where = (t.members.c.project_id == project_id) & (t.members.c.user_id == user_id)
        with self._connections.read() as connection:
            rows = _members(connection, where & t.members.c.active.is_(True))
        return rows[0] if rows else None

    def audit(self, action: str, user_id: int | None, project_id: int | None = None, **detail: Any) -> None:
        """Log an action; ``detail`` is JSON and must hold no secret."""
        row = {"action": checked_name("action", action), "user_id": user_id, "project_id": project_id}
        self._change(insert(t.audit_log).values(**row, detail=detail, created=self._now))

    def audit_log(self, project_id: int | None = None, limit: int = 100) -> list[AuditEntry]:
        """The latest entries first, of one project or all."""
        query = select(t.audit_log).where(*matching(t.audit_log, project_id=project_id))
        return self._rows(AuditEntry, query.order_by(t.audit_log.c.id.desc()).limit(limit))

    def list(self, user_id: int | None = None, *, archived: bool = False) -> list[Project]:
        """Projects by name: all, or those in which the user is an active member."""
        query = select(t.projects).order_by(t.projects.c.name)
        if user_id is not None:
            membership = (t.members.c.user_id == user_id) & t.members.c.active.is_(True)
            query = query.where(t.projects.c.id.in_(select(t.members.c.project_id).where(membership)))
        if not archived:
            query = query.where(t.projects.c.archived.is_(False))
        return self._rows(Project, query)


def project_in(connection: Connection, project_id: int, *, lock: bool = False) -> Project:
    """The project, in the caller's transaction. Raises ``NotFoundError``."""
    query = select(t.projects).where(t.projects.c.id == project_id)
    if lock:
        query = query.with_for_update(key_share=True)
    return one_of(connection, Project, query, f"project {project_id} does not exist")


def locked_project(connection: Connection, project_id: int) -> Project:
    """The project, whose row is locked until the transaction ends: writers of one project queue here.

    Labelling is done at the pace of people, so one queue per project costs nothing and leaves no race to
    think about. Foreign keys do not wait for this lock (``FOR NO KEY UPDATE``).
    """
    return project_in(connection, project_id, lock=True)


def pseudonym_in(connection: Connection, project_id: int, user_id: int) -> str:
    """Pseudonym of an active member. Raises ``ForbiddenError`` for others."""
    where = (t.members.c.project_id == project_id) & (t.members.c.user_id == user_id)
    query = select(t.members.c.pseudonym).where(where & t.members.c.active.is_(True))
    pseudonym: str | None = connection.scalar(query)
    if pseudonym is None:
        raise ForbiddenError(f"user {user_id} is not a member of project {project_id}; add them first")
    return pseudonym


def _refuse_taken(connection: Connection, name: str, own: int | None) -> None:
    owner = connection.scalar(select(t.projects.c.id).where(t.projects.c.name == name))
    if owner is not None and owner != own:
        raise ConflictError(f"the name '{name}' is taken; choose another")


def _members(connection: Connection, where: Any) -> list[Member]:
    query = (
        select(t.members, t.users.c.name)
        .join(t.users, t.users.c.id == t.members.c.user_id)
        .where(where)
        .order_by(t.users.c.name)
    )
    return rows_of(connection, Member, query)
