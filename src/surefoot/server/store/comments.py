"""Comments and flags on items, traces and steps."""

from __future__ import annotations

from sqlalchemy import func, select, update

from surefoot.errors import NotFoundError, StoreError
from surefoot.server.store import labelling as t
from surefoot.server.store.engine import Repository
from surefoot.server.store.items import check_step, item_in
from surefoot.server.store.labelling import Comment, CommentKind
from surefoot.server.store.projects import locked_project, project_in, pseudonym_in
from surefoot.server.store.schema import checked_text, inserted, matching, rows_of


class Comments(Repository):
    """Repository of comments and flags. An annotator may see only their own."""

    def add(
        self,
        project_id: int,
        item_id: int,
        user_id: int,
        kind: CommentKind,
        text: str,
        *,
        step: int | None = None,
    ) -> Comment:
        """Append a comment or flag on an item or one of its steps.

        Raises ``ForbiddenError`` if the user is not a member, ``StoreError`` naming the field that is wrong.
        """
        if kind not in ("comment", "flag") or not text.strip():
            raise StoreError("a comment needs a 'kind' (comment or flag) and a 'text'")
        checked_text("text", text)
        with self._connections.write() as connection:
            locked_project(connection, project_id)
            pseudonym_in(connection, project_id, user_id)
            item = item_in(connection, project_id, item_id)
            if step is not None:
                check_step(connection, item, step)
            return inserted(
                connection,
                Comment,
                t.comments,
                project_id=project_id,
                item_id=item_id,
                step=step,
                user_id=user_id,
                kind=kind,
                text=text,
                created=self._connections.clock(),
            )

    def list(
        self,
        project_id: int,
        *,
        item_id: int | None = None,
        user_id: int | None = None,
        kind: CommentKind | None = None,
        resolved: bool | None = None,
        after: int = 0,
        limit: int | None = None,
    ) -> list[Comment]:
        """Comments and flags in the order they were made, with an id above ``after``; at most ``limit``.

        For an annotator, pass their ``user_id``.
        """
        r = t.comments.c
        conditions = matching(t.comments, item_id=item_id, user_id=user_id, kind=kind)
        query = select(t.comments).where(r.project_id == project_id, r.id > after, *conditions)
        if resolved is not None:
            query = query.where(r.resolved.is_not(None) if resolved else r.resolved.is_(None))
        with self._connections.read() as connection:
            project_in(connection, project_id)
            return rows_of(connection, Comment, query.order_by(r.id).limit(limit))

    def open_flags(self, project_id: int) -> int:
        """Number of unresolved flags. Comments are not counted: they do not require action."""
        r = t.comments.c
        query = select(func.count()).where(r.project_id == project_id, r.kind == "flag", r.resolved.is_(None))
        with self._connections.read() as connection:
            return connection.scalar(query) or 0

    def resolve(self, project_id: int, comment_id: int) -> None:
        """Mark a flag or comment as resolved; a second time changes nothing. Raises ``NotFoundError``."""
        r = t.comments.c
        with self._connections.write() as connection:
            locked_project(connection, project_id)
            where = (r.project_id == project_id) & (r.id == comment_id)
            if connection.scalar(select(r.id).where(where)) is None:
                raise NotFoundError(f"project {project_id} does not have the comment or flag {comment_id}")
            at = self._connections.clock()
            connection.execute(update(t.comments).where(where, r.resolved.is_(None)).values(resolved=at))
