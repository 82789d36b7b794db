"""What an annotator sends, and taking it back. All under the project's lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, func, insert, select

from surefoot.annotation.database import _tables as t
from surefoot.annotation.database._checks import checked_name, checked_text, digest_of, json_text, payload_of
from surefoot.annotation.database._entries import last_submission
from surefoot.annotation.database._errors import ConflictError
from surefoot.annotation.database._records import put_trace, record_in
from surefoot.annotation.database.accounts import Project
from surefoot.annotation.database.annotation import (
    ChoiceInput,
    ChosenBy,
    Item,
    LabelInput,
    Submission,
)
from surefoot.errors import StoreError
from surefoot.records import Evidence, Step, StepLabel, Trace

HUMAN = "human"
"""``StepLabel.source`` of an annotator's label."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Who sends something, for what, and when."""

    project: Project
    item: Item
    user_id: int
    pseudonym: str
    chosen_by: ChosenBy
    at: datetime

    def row(self) -> dict[str, Any]:
        """The columns that everything sent has."""
        return {
            "project_id": self.project.id,
            "item_id": self.item.id,
            "user_id": self.user_id,
            "created": self.at,
        }


def submission_digest(
    item_id: int, labels: Sequence[LabelInput], choice: ChoiceInput | None, *more: Any
) -> str:
    """Stands for what was sent, so that a repeated key is known to mean the same."""
    rows = [{**asdict(label), "meta": dict(label.meta)} for label in labels]
    return digest_of(item_id, rows, None if choice is None else asdict(choice), *more)


def repeated(
    connection: Connection, project_id: int, user_id: int, key: str, digest: str
) -> Submission | None:
    """The answer that was given to this key before; ``None`` if it is new.

    Raises ``ConflictError`` if the key came with something else.
    """
    checked_name("key", key)
    s = t.submissions.c
    query = select(s.id, s.digest, s.finished, s.undoes).where(
        s.project_id == project_id, s.user_id == user_id, s.key == key
    )
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    if row.digest != digest:
        raise ConflictError(f"the key '{key}' was used for another submission; make a new one for each")
    return answer(connection, row.undoes or row.id, finished=row.finished, repeated=True)


def answer(connection: Connection, submission: int, *, finished: bool, repeated: bool) -> Submission:
    """What came with a submission (or what an undo of it took back)."""
    label = t.labels.c
    ids = connection.scalars(select(label.id).where(label.submission_id == submission).order_by(label.id))
    choice = select(t.choices.c.id).where(t.choices.c.submission_id == submission)
    return Submission(
        label_ids=tuple(ids),
        choice_id=connection.scalar(choice),
        finished=finished,
        repeated=repeated,
    )


def latest(connection: Connection, item_id: int, user_id: int) -> int:
    """The user's latest submission on the item that is not undone. Raises ``ConflictError`` if none."""
    undone = select(t.submissions.c.undoes).where(t.submissions.c.undoes.is_not(None))
    s = t.submissions.c
    found: int | None = connection.scalar(
        select(func.max(s.id)).where(
            s.item_id == item_id, s.user_id == user_id, s.action == "submit", s.id.not_in(undone)
        )
    )
    if found is None:
        raise ConflictError(f"there is nothing to undo on item {item_id}")
    return found


def refuse_stale(connection: Connection, item_id: int, user_id: int, after: int | None) -> None:
    """Raise ``ConflictError`` if the user sent something for the item since they read it."""
    last = last_submission(connection, item_id, user_id)
    if after is not None and last != after:
        raise ConflictError(
            f"something was sent for item {item_id} since (number {last}, not {after}); read it again"
        )


def add_submission(
    connection: Connection, entry: Entry, key: str, digest: str, *, finished: bool, undoes: int | None = None
) -> int:
    """Write the row that labels and choices hang on; its number."""
    action = "submit" if undoes is None else "undo"
    row = {"key": key, "digest": digest, "action": action, "finished": finished, "undoes": undoes}
    query = insert(t.submissions).values({**entry.row(), **row}).returning(t.submissions.c.id)
    made: int = connection.execute(query).scalar_one()
    return made


def add_labels(connection: Connection, entry: Entry, labels: Sequence[LabelInput], submission: int) -> None:
    """Append labels."""
    for label in labels:
        record = StepLabel(
            trace_id=label.trace_id,
            step=label.step,
            kind="correctness",
            value=label.value,
            reason=label.reason,
            source=HUMAN,
            evidence=Evidence(rater=entry.pseudonym, message=label.comment),
            created=entry.at,
        )
        row = {
            "trace_id": label.trace_id,
            "step": label.step,
            "submission_id": submission,
            "source": record.source,
            "kind": record.kind,
            "value": record.value,
            "payload": payload_of(record),
            "milliseconds": label.milliseconds,
            "chosen_by": entry.chosen_by,
            "meta": json_text(dict(label.meta)),
        }
        connection.execute(insert(t.labels).values({**entry.row(), **row}))


def check_labels(connection: Connection, entry: Entry, labels: Sequence[LabelInput]) -> None:
    """Raise ``StoreError`` unless every label is about a step of the item and a value that may be given."""
    project, item = entry.project, entry.item
    steps = {
        name: len(record_in(connection, t.traces, Trace, project.id, name).steps) for name in item.trace_ids
    }
    if len({(label.trace_id, label.step) for label in labels}) < len(labels):
        raise StoreError("a step has two labels in one submission; send one")
    for label in labels:
        if label.trace_id not in steps:
            raise StoreError(f"'trace_id' is no trace of item {item.id}")
        if not 0 <= label.step < steps[label.trace_id]:
            raise StoreError(f"'step' {label.step}: the trace has steps 0 to {steps[label.trace_id] - 1}")
        if item.step is not None and label.step != item.step:
            raise StoreError(f"'step' {label.step}: this item is about step {item.step}")
        if label.value is None and not (label.reason or "").strip():
            raise StoreError("a label without a value needs a 'reason'")
        if label.value is not None and label.value not in project.protocol.values:
            raise StoreError(f"'value' {label.value}: the project allows {list(project.protocol.values)}")
        if label.milliseconds is not None and label.milliseconds < 0:
            raise StoreError(f"'milliseconds' is {label.milliseconds}; time taken is at least 0")
        for field, text in (("reason", label.reason), ("comment", label.comment)):
            checked_text(field, text or "")


def add_choice(connection: Connection, entry: Entry, choice: ChoiceInput, submission: int) -> None:
    """Append a choice, and the new trace that a step written by hand makes."""
    trace = _chosen_trace(connection, entry, choice)
    if choice.text is not None:
        put_trace(connection, entry.project.id, trace, entry.at)
    row = {"submission_id": submission, "trace_id": trace.id, "text": choice.text}
    connection.execute(insert(t.choices).values({**entry.row(), **row}))


def _chosen_trace(connection: Connection, entry: Entry, choice: ChoiceInput) -> Trace:
    """The alternative that was chosen, or a trace that ends in the step written by hand.

    Raises ``StoreError`` for an item of another kind, a trace that is none of the alternatives, both or
    neither, or a step by hand in an agent run (it has no text to go on from).
    """
    item, project = entry.item, entry.project
    if item.kind != "alternatives" or item.step is None:
        raise StoreError("only items of kind 'alternatives' take a 'choice'")
    if (choice.trace_id is None) == (choice.text is None):
        raise StoreError("'choice' is a 'trace_id' or a 'text', not both and not neither")
    if choice.trace_id is not None:
        if choice.trace_id not in item.trace_ids:
            raise StoreError(f"'choice.trace_id' is no alternative of item {item.id}")
        return record_in(connection, t.traces, Trace, project.id, choice.trace_id)
    text = checked_text("choice.text", choice.text or "")
    if not text.strip():
        raise StoreError("'choice.text' is empty; write the step")
    first = record_in(connection, t.traces, Trace, project.id, item.trace_ids[0])
    if first.text is None:
        raise StoreError("a step by hand needs a text trace; this one is an agent run")
    start = first.steps[item.step].start
    return Trace(
        problem_id=item.problem_id,
        text=first.text[:start] + text,
        steps=(*first.steps[: item.step], Step(start=start, end=start + len(text))),
        policy=f"{HUMAN}:{entry.pseudonym}",
        meta={"item": item.id},
    )
