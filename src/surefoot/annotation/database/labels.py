"""Labels: appended, never overwritten. Undo appends a retraction; a repeated key adds nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, insert, select

from surefoot.annotation.database import _queue, _submit
from surefoot.annotation.database import _tables as t
from surefoot.annotation.database._checks import checked_name, digest_of, payload_of
from surefoot.annotation.database._engine import Connections
from surefoot.annotation.database._entries import choices_in, counting, labels_in
from surefoot.annotation.database._items import item_in
from surefoot.annotation.database._records import Added, add_in_chunks, record_in
from surefoot.annotation.database.annotation import Choice, ChoiceInput, LabelInput, StoredLabel, Submission
from surefoot.annotation.database.assignments import finish_in
from surefoot.annotation.database.projects import locked_project, project_in, pseudonym_in
from surefoot.errors import StoreError
from surefoot.records import StepLabel, Trace


class Labels:
    """Repository of labels and choices."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def submit(
        self,
        project_id: int,
        item_id: int,
        user_id: int,
        labels: Sequence[LabelInput],
        key: str,
        *,
        choice: ChoiceInput | None = None,
        after: int | None = None,
        finish: bool = False,
        milliseconds: int | None = None,
    ) -> Submission:
        """Append labels (and a choice) to an item that the user holds; all of it or nothing.

        ``key`` is made by the sender, new for each submission: sent again with the same content, after a
        lost answer, it adds nothing and gets the first answer. ``after`` is ``AnnotatorItem.last`` as the
        sender read it, to notice a second tab. ``milliseconds`` is the time taken for the whole item.

        Raises ``ConflictError`` if the item is finished or went to others, the key was used for something
        else, or something was sent since ``after``; ``ForbiddenError`` if the item is not theirs;
        ``StoreError`` naming the field that is wrong.
        """
        digest = _submit.submission_digest(item_id, labels, choice, finish, milliseconds)
        if not labels and choice is None:
            raise StoreError("'labels' is empty, and there is no 'choice'; send one of them")
        with self._connections.write() as connection:
            project = locked_project(connection, project_id)
            pseudonym = pseudonym_in(connection, project_id, user_id)
            before = _submit.repeated(connection, project_id, user_id, key, digest)
            if before is not None:
                return before
            item, at = item_in(connection, project_id, item_id), self._connections.clock()
            held = _queue.held(connection, project, item, user_id, at)
            entry = _submit.Entry(
                project=project,
                item=item,
                user_id=user_id,
                pseudonym=pseudonym,
                chosen_by=held["chosen_by"],
                at=at,
            )
            _submit.refuse_stale(connection, item_id, user_id, after)
            _submit.check_labels(connection, entry, labels)
            made = _submit.add_submission(connection, entry, key, digest, finished=finish)
            _submit.add_labels(connection, entry, labels, made)
            if choice is not None:
                _submit.add_choice(connection, entry, choice, made)
            if finish:
                finish_in(connection, held, milliseconds, at)
            return _submit.answer(connection, made, finished=finish, repeated=False)

    def undo(self, project_id: int, item_id: int, user_id: int, key: str) -> Submission:
        """Take back the user's latest submission on the item, by an entry of its own; opens it again.

        The answer names the labels that were taken back. Raises ``ConflictError`` if there is nothing to
        undo or the item was skipped or went to others; otherwise as ``submit``.
        """
        digest = digest_of("undo", item_id)
        with self._connections.write() as connection:
            project, at = locked_project(connection, project_id), self._connections.clock()
            pseudonym = pseudonym_in(connection, project_id, user_id)
            before = _submit.repeated(connection, project_id, user_id, key, digest)
            if before is not None:
                return before
            item = item_in(connection, project_id, item_id)
            row = _queue.assignment_row(connection, item_id, user_id)
            if row["state"] == "done":
                _queue.change(connection, row["id"], state="leased", finished=None, milliseconds=None)
                # it takes one of the item's places, so nobody else can have been given it
                _queue.lease(connection, project, item_id, user_id, row["chosen_by"], at)
            else:
                _queue.held(connection, project, item, user_id, at)
            entry = _submit.Entry(
                project=project,
                item=item,
                user_id=user_id,
                pseudonym=pseudonym,
                chosen_by=row["chosen_by"],
                at=at,
            )
            undone = _submit.latest(connection, item_id, user_id)
            _submit.add_submission(connection, entry, key, digest, finished=False, undoes=undone)
            return _submit.answer(connection, undone, finished=False, repeated=False)

    def import_labels(self, project_id: int, labels: Iterable[StepLabel]) -> Added:
        """Add labels of other sources beside the annotators' own; one that is there already is ``same``.

        Refused are those of an unknown trace, and of a step that it lacks. Raises ``NotFoundError``.
        """
        return add_in_chunks(self._connections, project_id, labels, self._import)

    def of_trace(self, project_id: int, trace_id: str, *, retracted: bool = False) -> list[StoredLabel]:
        """Labels of a trace from every source: those that count, or all that were ever sent.

        Not for annotators, who are blind to each other. Raises ``NotFoundError``.
        """
        where = t.labels.c.trace_id == trace_id
        with self._connections.read() as connection:
            record_in(connection, t.traces, Trace, project_id, trace_id)
            found = labels_in(connection, project_id, where, retracted=retracted)
        return found if retracted else counting(found)

    def history(self, project_id: int, item_id: int) -> list[StoredLabel]:
        """All that was ever sent for the item, retracted or replaced since. Not for annotators."""
        with self._connections.read() as connection:
            item_in(connection, project_id, item_id)
            where = t.labels.c.item_id == item_id
            return labels_in(connection, project_id, where, retracted=True)

    def choices(self, project_id: int, item_id: int | None = None) -> list[Choice]:
        """What annotators went on with, undone choices left out. Not for annotators."""
        with self._connections.read() as connection:
            project_in(connection, project_id)
            return choices_in(connection, project_id, item_id=item_id)

    def _import(self, connection: Connection, project_id: int, label: StepLabel) -> Added:
        checked_name("trace_id", label.trace_id)
        trace = record_in(connection, t.traces, Trace, project_id, label.trace_id)
        if label.step >= len(trace.steps):
            raise StoreError(f"a label of step {label.step}; the trace has {len(trace.steps)} steps")
        digest = digest_of(label.model_dump(mode="json"))
        where = (t.labels.c.project_id == project_id) & (t.labels.c.digest == digest)
        if connection.scalar(select(t.labels.c.id).where(where)) is not None:
            return Added(same=1)
        row = {
            "project_id": project_id,
            "trace_id": label.trace_id,
            "step": label.step,
            "source": checked_name("source", label.source),
            "kind": label.kind,
            "value": label.value,
            "payload": payload_of(label),
            "meta": "{}",
            "digest": digest,
            "created": self._connections.clock(),
        }
        connection.execute(insert(t.labels).values(row))
        return Added(new=1)
