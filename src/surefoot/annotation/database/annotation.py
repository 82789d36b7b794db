"""What the store says of labelling: items, assignments, labels, choices, reviews. Plain frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from surefoot.records import Problem, StepLabel, Trace

ItemKind = Literal["solution", "alternatives"]
"""solution: one trace, labelled step by step; alternatives: several traces that differ from one step on."""

ItemRole = Literal["normal", "control", "screening"]
"""control and screening items have known answers and are given to every annotator once."""

AssignmentState = Literal["leased", "done", "skipped"]

ChosenBy = str
"""A ``QueuePolicy``, or ``control`` or ``screening``. Never shown to an annotator."""


@dataclass(frozen=True, kw_only=True)
class KnownAnswer:
    """The right label of one step of a control or screening item."""

    trace_id: str
    step: int
    value: Literal[-1, 0, 1]


@dataclass(frozen=True, kw_only=True)
class NewItem:
    """An item to be added. ``step`` is the one to label in each trace of ``alternatives``."""

    trace_ids: tuple[str, ...]
    kind: ItemKind = "solution"
    step: int | None = None
    role: ItemRole = "normal"
    known: tuple[KnownAnswer, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Item:
    """An item as an administrator sees it, known answers included."""

    id: int
    project_id: int
    problem_id: str
    kind: ItemKind
    step: int | None
    role: ItemRole
    known: tuple[KnownAnswer, ...]
    trace_ids: tuple[str, ...]
    active: bool
    created: datetime


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """Who has which item. ``chosen_by`` is for records and administrators, not for the annotator."""

    id: int
    project_id: int
    item_id: int
    user_id: int
    state: AssignmentState
    chosen_by: ChosenBy
    leased_until: datetime
    reason: str | None
    """Why it was skipped."""
    milliseconds: int | None
    """Time that the annotator took, as measured by the page."""
    created: datetime
    finished: datetime | None


@dataclass(frozen=True, kw_only=True)
class Offer:
    """Answer to "what next?". ``screening``: not passed, so nothing is given; ``empty``: nothing is left."""

    assignment: Assignment | None
    why: Literal["leased", "resumed", "empty", "screening"]


@dataclass(frozen=True, kw_only=True)
class AnnotatorItem:
    """An item as its annotator sees it: no role, no known answers, nobody else's labels.

    ``problem.answer`` and ``trace.outcome`` are ``None`` unless the protocol shows the answer; ``meta`` is
    always empty, since data sets keep labels there.
    """

    item_id: int
    kind: ItemKind
    step: int | None
    problem: Problem
    traces: tuple[Trace, ...]
    state: AssignmentState
    leased_until: datetime
    labels: tuple[StoredLabel, ...]
    """The annotator's own, the ones that count now, with ``chosen_by`` blanked."""
    choice: Choice | None
    last: int
    """Number of the annotator's latest entry on this item, 0 if none: give it back as ``after``."""


@dataclass(frozen=True, kw_only=True)
class LabelInput:
    """One label to append. ``value`` ``None`` (cannot tell) needs a ``reason``."""

    trace_id: str
    step: int
    value: Literal[-1, 0, 1] | None
    reason: str | None = None
    milliseconds: int | None = None
    comment: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ChoiceInput:
    """Phase 1: the alternative to go on with, or a step written by hand. Exactly one of the two."""

    trace_id: str | None = None
    text: str | None = None


@dataclass(frozen=True, kw_only=True)
class StoredLabel:
    """A label as it lies in the store: the package's record and what the store knows beside it."""

    id: int
    """Rises with each entry."""
    item_id: int | None
    """``None`` = imported from another source."""
    user_id: int | None
    record: StepLabel
    milliseconds: int | None
    chosen_by: ChosenBy | None
    role: ItemRole | None
    retracted: bool
    meta: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Phase 1: what the annotator went on with. ``trace_id`` is a new trace for a hand-written step."""

    id: int
    item_id: int
    user_id: int
    trace_id: str
    text: str | None
    """The step written by hand; ``None`` = an alternative was chosen."""
    created: datetime


@dataclass(frozen=True, kw_only=True)
class Submission:
    """Answer to a label submission. ``repeated``: the key was seen before, and nothing was added."""

    label_ids: tuple[int, ...]
    choice_id: int | None
    finished: bool
    repeated: bool


@dataclass(frozen=True, kw_only=True)
class Remark:
    """A comment or a flag on an item, a trace or a step. Annotators get their own only."""

    id: int
    kind: Literal["comment", "flag"]
    item_id: int
    trace_id: str | None
    step: int | None
    user_id: int
    text: str
    created: datetime
    resolved: datetime | None


@dataclass(frozen=True, kw_only=True)
class MatrixCell:
    """One rating: a unit is (trace_id, step), a rater is ``annotator``."""

    label_id: int
    item_id: int
    trace_id: str
    step: int
    steps: int
    """Steps of the trace, for figures by position."""
    user_id: int
    annotator: str
    value: int | None
    created: datetime
    role: ItemRole
    chosen_by: ChosenBy
    milliseconds: int | None
    known: int | None
    """The right label, for control and screening items."""

    @property
    def control(self) -> bool:
        """Whether the item has known answers."""
        return self.role != "normal"


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """A step to which annotators who finished gave different labels."""

    item_id: int
    trace_id: str
    step: int
    values: tuple[tuple[str, int | None], ...]
    """(pseudonym, value), by pseudonym."""
    label_ids: tuple[int, ...]
    adjudication: Adjudication | None


@dataclass(frozen=True, kw_only=True)
class Adjudication:
    """The label that stands after a disagreement. Appended; the latest of a step counts."""

    id: int
    item_id: int
    trace_id: str
    step: int
    value: Literal[-1, 0, 1] | None
    label_id: int | None
    """The annotator's label that was chosen, if it was one of theirs."""
    user_id: int
    note: str
    created: datetime


@dataclass(frozen=True, kw_only=True)
class AnnotatorProgress:
    """Work of one annotator; control and screening items are counted in ``done``, too."""

    user_id: int
    annotator: str
    done: int
    skipped: int
    labels: int
    milliseconds: int | None
    """Median time of a finished item; ``None`` = not measured."""
    last: datetime | None


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a project is. ``needed`` = active normal items times annotators an item."""

    items: int
    complete: int
    """Normal items finished by as many annotators as asked."""
    needed: int
    done: int
    """Finished assignments of normal items."""
    leased: int
    """Held right now."""
    annotators: tuple[AnnotatorProgress, ...]
