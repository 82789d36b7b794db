"""Items: what annotators label. One solution, or alternatives of one step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import get_args

from sqlalchemy import ColumnElement, Connection, Select, delete, exists, insert, select, update

from surefoot.errors import ForbiddenError, NotFoundError, StoreError
from surefoot.records import Problem, Trace
from surefoot.server.store import labelling as t
from surefoot.server.store.accounts import Project, QueuePolicy
from surefoot.server.store.engine import Repository
from surefoot.server.store.label_queries import choices_in, labels_in, last_submission
from surefoot.server.store.labelling import AnnotatorItem, Item, ItemRole, NewItem
from surefoot.server.store.projects import locked_project, project_in, pseudonym_in
from surefoot.server.store.schema import as_data, checked_name, digest_of, matching
from surefoot.server.store.traces import CHUNK, record_in


class Items(Repository):
    """Repository of items."""

    def add(self, project_id: int, items: Sequence[NewItem]) -> list[int]:
        """Add items, all or none; for one equal to an existing item, that item's id is returned.

        Raises ``NotFoundError`` for an unknown trace; ``StoreError`` for traces of different problems, a
        step that a trace lacks, or known answers that do not fit the role.
        """
        with self._connections.write() as connection:
            locked_project(connection, project_id)
            return [self._put(connection, project_id, item) for item in items]

    def add_solutions(self, project_id: int, trace_ids: Sequence[str] | None = None) -> list[int]:
        """An item of kind ``solution`` for each trace; by default for every trace that is in no item.

        The default excludes traces made by steps written by hand. Many items take several transactions, so
        that others get their turn; repeated after a failure, it adds what is missing.
        """
        if trace_ids is None:
            with self._connections.read() as connection:
                project_in(connection, project_id)
                trace_ids = list(connection.scalars(_without_item(project_id)))
        new = [NewItem(trace_ids=(trace_id,)) for trace_id in trace_ids]
        return [item_id for part in _chunks(new) for item_id in self.add(project_id, part)]

    def get(self, project_id: int, item_id: int) -> Item:
        """The whole item with its known answers: not for annotators. Raises ``NotFoundError``."""
        with self._connections.read() as connection:
            return item_in(connection, project_id, item_id)

    def of_ids(self, project_id: int, ids: Iterable[int]) -> dict[int, Item]:
        """Items by number, without those that the project lacks. Not for annotators."""
        numbers = set(ids)
        with self._connections.read() as connection:
            rows = items_in(connection, project_id, t.items.c.id.in_(numbers), limit=len(numbers))
        return {item.id: item for item in rows}

    def list(
        self,
        project_id: int,
        *,
        role: ItemRole | None = None,
        active: bool | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[Item]:
        """Items in the order they were added, starting after ``after``. Not for annotators."""
        conditions = [t.items.c.id > after, *matching(t.items, role=role, active=active)]
        with self._connections.read() as connection:
            project_in(connection, project_id)
            return items_in(connection, project_id, *conditions, limit=limit)

    def all(self, project_id: int, *, role: ItemRole | None = None) -> Iterator[Item]:
        """Every item, in the order they were added. Not for annotators."""
        last_id = 0
        while page := self.list(project_id, role=role, after=last_id, limit=500):
            yield from page
            last_id = page[-1].id

    def set_active(self, project_id: int, item_id: int, active: bool) -> None:
        """Take an item out of the queue or put it back; its labels stay. Raises ``NotFoundError``."""
        where = (t.items.c.project_id == project_id) & (t.items.c.id == item_id)
        with self._connections.write() as connection:
            if not connection.execute(update(t.items).where(where).values(active=active)).rowcount:
                raise NotFoundError(f"project {project_id} does not have item {item_id}")

    def set_priorities(self, project_id: int, policy: QueuePolicy, values: Mapping[int, float]) -> None:
        """Replace the priorities of ``policy``: the highest comes first, items without one last.

        Raises ``NotFoundError`` for an item of another project, ``StoreError`` for a value that is not
        finite or a policy that does not use priorities.
        """
        if policy in ("order", "random") or policy not in get_args(QueuePolicy):
            raise StoreError(f"the queue policy '{policy}' does not use priorities")
        bad = next((item for item, value in values.items() if not math.isfinite(value)), None)
        if bad is not None:
            raise StoreError(f"the priority of item {bad} is {values[bad]}; leave it out instead")
        where = (t.priorities.c.project_id == project_id) & (t.priorities.c.policy == policy)
        with self._connections.write() as connection:
            locked_project(connection, project_id)
            existing = set(connection.scalars(select(t.items.c.id).where(t.items.c.project_id == project_id)))
            foreign = sorted(set(values) - existing)
            if foreign:
                raise NotFoundError(f"project {project_id} does not have item {foreign[0]}")
            connection.execute(delete(t.priorities).where(where))
            rows = [{"item_id": item, "value": value} for item, value in values.items()]
            if rows:
                shared = {"project_id": project_id, "policy": policy}
                connection.execute(insert(t.priorities), [{**shared, **row} for row in rows])

    def priorities(self, project_id: int, policy: QueuePolicy) -> dict[int, float]:
        """The priorities that ``set_priorities`` stored last."""
        where = (t.priorities.c.project_id == project_id) & (t.priorities.c.policy == policy)
        query = select(t.priorities.c.item_id, t.priorities.c.value).where(where)
        with self._connections.read() as connection:
            project_in(connection, project_id)
            return {item: value for item, value in connection.execute(query)}  # noqa: C416

    def for_annotator(self, project_id: int, item_id: int, user_id: int) -> AnnotatorItem:
        """The item as its annotator may see it.

        Raises ``ForbiddenError`` if it was never assigned to the user or their membership has ended.
        """
        with self._connections.read() as connection:
            project = project_in(connection, project_id)
            item = item_in(connection, project_id, item_id)
            return annotator_item(connection, project, item, user_id)

    def _put(self, connection: Connection, project_id: int, item: NewItem) -> int:
        traces = [
            record_in(connection, t.traces, Trace, project_id, checked_name("trace_ids", trace_id))
            for trace_id in item.trace_ids
        ]
        _check(item, traces)
        answers = [asdict(answer) for answer in item.known]
        digest = digest_of(item.kind, item.trace_ids, item.step, item.role, answers)
        where = (t.items.c.project_id == project_id) & (t.items.c.digest == digest)
        existing: int | None = connection.scalar(select(t.items.c.id).where(where))
        if existing is not None:
            return existing
        row = {
            "project_id": project_id,
            "problem_id": traces[0].problem_id,
            "kind": item.kind,
            "step": item.step,
            "role": item.role,
            "known": item.known,
            "digest": digest,
            "active": True,
            "created": self._connections.clock(),
        }
        item_id: int = connection.execute(insert(t.items).values(row).returning(t.items.c.id)).scalar_one()
        rows = [
            {"project_id": project_id, "item_id": item_id, "position": position, "trace_id": trace.id}
            for position, trace in enumerate(traces)
        ]
        connection.execute(insert(t.item_traces), rows)
        return item_id


def _chunks(items: Sequence[NewItem]) -> Iterator[Sequence[NewItem]]:
    return (items[start : start + CHUNK] for start in range(0, len(items), CHUNK))


def _without_item(project_id: int) -> Select[str]:
    trace = t.traces.c
    in_item = exists().where(
        t.item_traces.c.project_id == trace.project_id, t.item_traces.c.trace_id == trace.id
    )
    by_hand = exists().where(
        t.choices.c.project_id == trace.project_id,
        t.choices.c.trace_id == trace.id,
        t.choices.c.text.is_not(None),
    )
    query = select(trace.id).where(trace.project_id == project_id, ~in_item, ~by_hand, trace.steps > 0)
    return query.order_by(trace.created, trace.id)


def _check(item: NewItem, traces: Sequence[Trace]) -> None:
    if not traces or len(set(item.trace_ids)) != len(item.trace_ids):
        raise StoreError("'trace_ids' must name at least one trace, and each once")
    if len({trace.problem_id for trace in traces}) > 1:
        raise StoreError("the traces of an item must answer one problem")
    if item.role not in get_args(ItemRole):
        raise StoreError(f"'{item.role}' is not a role of an item; choose from {get_args(ItemRole)}")
    if item.kind == "solution" and (len(traces) > 1 or item.step is not None):
        raise StoreError("an item of kind 'solution' has one trace and no 'step'")
    if item.kind == "alternatives" and item.step is None:
        raise StoreError("an item of kind 'alternatives' needs the 'step' to be labelled")
    if item.kind not in ("solution", "alternatives"):
        raise StoreError(f"'{item.kind}' is not a kind of item; choose 'solution' or 'alternatives'")
    for trace in traces:
        if not 0 <= (item.step or 0) < len(trace.steps):
            raise StoreError(
                f"trace {trace.id} has {len(trace.steps)} steps, so step {item.step or 0} does not exist"
            )
    if (item.role == "normal") == bool(item.known):
        raise StoreError(
            "items of role 'control' and 'screening' need 'known' answers; others must have none"
        )
    steps = {trace.id: len(trace.steps) for trace in traces}
    for answer in item.known:
        if not 0 <= answer.step < steps.get(answer.trace_id, 0):
            raise StoreError(f"a known answer is about step {answer.step} of trace '{answer.trace_id}'")
        if item.step is not None and answer.step != item.step:
            raise StoreError(f"a known answer is about step {answer.step}, the item about step {item.step}")
        if answer.value not in (-1, 0, 1):
            raise StoreError(f"a known answer is -1, 0 or 1, not {answer.value}")


def item_in(connection: Connection, project_id: int, item_id: int) -> Item:
    """The item, in the caller's transaction. Raises ``NotFoundError``."""
    rows = items_in(connection, project_id, t.items.c.id == item_id, limit=1)
    if not rows:
        raise NotFoundError(f"project {project_id} does not have item {item_id}")
    return rows[0]


def check_step(connection: Connection, item: Item, trace_id: str, step: int) -> None:
    """Raise ``StoreError`` unless ``trace_id`` is a trace of the item and has the step."""
    if trace_id not in item.trace_ids:
        raise StoreError(f"'trace_id' is not a trace of item {item.id}")
    steps = len(record_in(connection, t.traces, Trace, item.project_id, trace_id).steps)
    if not 0 <= step < steps:
        raise StoreError(f"'step' {step}: the trace has steps 0 to {steps - 1}")
    if item.step is not None and step != item.step:
        raise StoreError(f"'step' {step}: this item is about step {item.step}")


def items_in(
    connection: Connection, project_id: int, *conditions: ColumnElement[bool], limit: int
) -> list[Item]:
    """Items by number, in the caller's transaction."""
    query = select(t.items).where(t.items.c.project_id == project_id, *conditions)
    rows = connection.execute(query.order_by(t.items.c.id).limit(limit)).mappings().all()
    traces: dict[int, list[str]] = {row["id"]: [] for row in rows}
    of_items = select(t.item_traces).where(
        t.item_traces.c.project_id == project_id, t.item_traces.c.item_id.in_(traces)
    )
    for part in connection.execute(of_items.order_by(t.item_traces.c.position)):
        traces[part.item_id].append(part.trace_id)
    return [as_data(Item, row, trace_ids=tuple(traces[row["id"]])) for row in rows]


def annotator_item(connection: Connection, project: Project, item: Item, user_id: int) -> AnnotatorItem:
    """What the user may see of ``item``. Raises ``ForbiddenError`` if it was never assigned to them."""
    pseudonym_in(connection, project.id, user_id)
    assignment = (t.assignments.c.item_id == item.id) & (t.assignments.c.user_id == user_id)
    row = connection.execute(select(t.assignments).where(assignment)).mappings().one_or_none()
    if row is None:
        raise ForbiddenError(f"item {item.id} was not assigned to user {user_id}; ask for the next one")
    problem = record_in(connection, t.problems, Problem, project.id, item.problem_id)
    traces = (record_in(connection, t.traces, Trace, project.id, name) for name in item.trace_ids)
    own_labels = (t.labels.c.item_id == item.id) & (t.labels.c.user_id == user_id)
    choices = choices_in(connection, project.id, item_id=item.id, user_id=user_id)
    show = project.protocol.show_answer
    return AnnotatorItem(
        item_id=item.id,
        kind=item.kind,
        step=item.step,
        problem=problem.model_copy(
            update={"answer": problem.answer if show else None, "meta": {}, "source": None}
        ),
        traces=tuple(_blinded(trace, show) for trace in traces),
        state=row["state"],
        leased_until=row["leased_until"],
        labels=tuple(
            replace(label, chosen_by=None, role=None)
            for label in labels_in(connection, project.id, own_labels)
        ),
        choice=choices[-1] if choices else None,
        last=last_submission(connection, item.id, user_id),
    )


def _blinded(trace: Trace, show_answer: bool) -> Trace:
    hidden: dict[str, object] = {"meta": {}, "policy": None, "seed": None, "error": None}
    return trace.model_copy(update=hidden if show_answer else {**hidden, "outcome": None})
