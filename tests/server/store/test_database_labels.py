"""Labels in and out: submissions, undo, reviews, export, isolation. On both databases."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random

import pytest
from annotation_site import assignments_of
from conftest import Lab, make_lab
from test_database import HOSTILE

from surefoot.errors import ConflictError, ForbiddenError, NotFoundError, StoreError
from surefoot.io import write_records
from surefoot.records import Message, Problem, Step, StepLabel, StepScores, Trace
from surefoot.segment import segment_trace
from surefoot.server import Database, LabelInput, import_files, kind_of
from surefoot.server.store.labels import decisions_in
from surefoot.server.store.traces import RunFilter
from surefoot.stats.rater_agreement import agreement


def rate(lab: Lab, person: int, item: int, values: list[int | None], key: str, *, finish: bool = True):
    """Labels of the first steps of a solution."""
    labels = [
        LabelInput(step=step, value=value, reason="unclear" if value is None else None)
        for step, value in enumerate(values)
    ]
    user = lab.people[person].user_id
    return lab.db.labels.submit(
        lab.id, item, user, labels, key, finish=finish, milliseconds=1000 if finish else None
    )


def test_a_label_is_kept_with_all_that_belongs_to_it(lab: Lab, clock) -> None:
    item, user = lab.next(), lab.people[0].user_id
    assert item is not None
    given = LabelInput(
        step=1,
        value=-1,
        milliseconds=812,
        comment=HOSTILE,
    )
    made = lab.db.labels.submit(lab.id, item, user, [given], "k")
    (stored,) = lab.db.export.stored(lab.id)
    assert made.label_ids == (stored.id,)
    assert (stored.milliseconds, stored.chosen_by) == (812, "order")
    record = stored.record
    assert (record.value, record.step, record.kind, record.source) == (-1, 1, "correctness", "human")
    assert (record.evidence.rater, record.evidence.message) == (lab.people[0].pseudonym, HOSTILE)
    assert record.created == clock.at
    assert list(lab.db.export.labels(lab.id)) == [record]


def test_a_repeated_submission_adds_nothing(lab: Lab) -> None:
    item = lab.next()
    first = rate(lab, 0, item, [1, 1, -1], "k")
    again = rate(lab, 0, item, [1, 1, -1], "k")
    assert (first.repeated, again.repeated) == (False, True)
    assert again.label_ids == first.label_ids
    assert len(lab.db.export.stored(lab.id)) == 3
    with pytest.raises(ConflictError, match="another submission"):
        rate(lab, 0, item, [1, 1, 1], "k")
    with pytest.raises(ConflictError, match="done"):
        rate(lab, 0, item, [1, 1, 1], "k2")


def test_undo_appends_and_opens_the_item_again(lab: Lab) -> None:
    item, user = lab.next(), lab.people[0].user_id
    rate(lab, 0, item, [1], "a", finish=False)
    lab.db.labels.submit(lab.id, item, user, [LabelInput(step=1, value=-1)], "b", finish=True)
    last = lab.db.labels.item(lab.id, item, user).last
    undone = lab.db.labels.undo(lab.id, item, user, last)
    again = lab.db.labels.undo(lab.id, item, user, last)
    assert (undone.repeated, again.repeated, again.label_ids) == (False, True, undone.label_ids)
    assert [label.value for label in lab.db.export.labels(lab.id)] == [1]
    kept = lab.db.export.stored(lab.id)
    assert [(label.record.value, label.is_current) for label in kept] == [(1, True), (-1, False)]
    assert undone.label_ids == (kept[1].id,)
    assert lab.next() == item
    with pytest.raises(ConflictError, match="nothing to undo"):
        lab.db.labels.undo(lab.id, item, user, last + 99)
    lab.db.labels.submit(lab.id, item, user, [LabelInput(step=2, value=1)], "c")
    with pytest.raises(ConflictError, match="reload it"):  # another tab's label is the latest
        lab.db.labels.undo(lab.id, item, user, kept[0].id)
    lab.db.labels.undo(lab.id, item, user)
    lab.db.labels.undo(lab.id, item, user)
    assert list(lab.db.export.labels(lab.id)) == []
    with pytest.raises(ConflictError, match="nothing to undo"):
        lab.db.labels.undo(lab.id, item, user)


def test_a_step_has_one_label_of_an_annotator_until_it_is_undone(lab: Lab) -> None:
    item, user = lab.next(), lab.people[0].user_id
    rate(lab, 0, item, [1, 1], "a", finish=False)
    with pytest.raises(ConflictError, match="undo it first"):
        lab.db.labels.submit(lab.id, item, user, [LabelInput(step=1, value=-1)], "b")
    lab.db.labels.undo(lab.id, item, user)
    lab.db.labels.submit(lab.id, item, user, [LabelInput(step=1, value=-1)], "c")
    assert [label.value for label in lab.db.export.labels(lab.id)] == [-1]


def test_a_second_tab_is_noticed(lab: Lab) -> None:
    item, user = lab.next(), lab.people[0].user_id
    seen = lab.db.labels.item(lab.id, item, user).last
    label = [LabelInput(step=0, value=1)]
    lab.db.labels.submit(lab.id, item, user, label, "a", after=seen)
    with pytest.raises(ConflictError, match="reload it"):
        lab.db.labels.submit(lab.id, item, user, label, "b", after=seen)


@pytest.mark.parametrize(
    "bad",
    [
        {"step": 3}, {"step": -1}, {"value": 7}, {"value": None}, {"milliseconds": -1},
        {"comment": "\x00"}, {"value": None, "reason": " "}, {"comment": "\ud800"},
    ],
)  # fmt: skip
def test_a_wrong_label_is_refused_whole(lab: Lab, bad) -> None:
    item = lab.next()
    good = LabelInput(step=0, value=1)
    values = {"step": 1, "value": 0, **bad}
    with pytest.raises(StoreError):
        lab.db.labels.submit(lab.id, item, lab.people[0].user_id, [good, LabelInput(**values)], "k")
    assert lab.db.export.stored(lab.id) == []


def test_only_allowed_values_and_one_label_a_step(lab: Lab) -> None:
    lab.set(values=(-1, 1))
    item, user = lab.next(), lab.people[0].user_id
    with pytest.raises(StoreError, match="allows"):
        rate(lab, 0, item, [0], "k")
    twice = [LabelInput(step=0, value=1)] * 2
    with pytest.raises(StoreError, match="two labels"):
        lab.db.labels.submit(lab.id, item, user, twice, "k")
    with pytest.raises(StoreError, match="empty"):
        lab.db.labels.submit(lab.id, item, user, [], "k")


def test_an_annotator_sees_nothing_that_gives_the_answer_away(lab: Lab) -> None:
    name = lab.traces[1].id
    control = lab.db.items.add(lab.id, [name], known={name: {2: -1}})[0]
    lab.set(known_share=1.0)
    assert lab.next(0) == lab.next(1) == control
    lab.items[1] = control
    rate(lab, 1, control, [0], "other")
    seen = lab.db.labels.item(lab.id, control, lab.people[0].user_id)
    assert (seen.problem.answer, seen.problem.meta, seen.labels) == (None, {}, ())
    assert (seen.trace.outcome, seen.trace.meta, seen.trace.policy) == (None, {}, None)
    assert seen.trace.text == lab.traces[1].text
    assert "known" not in repr(seen)
    rate(lab, 0, control, [1], "mine", finish=False)
    (own,) = lab.db.labels.item(lab.id, control, lab.people[0].user_id).labels
    assert (own.record.value, own.chosen_by) == (1, None)
    lab.set(show_answer=True)
    shown = lab.db.labels.item(lab.id, control, lab.people[0].user_id)
    assert (shown.problem.answer, shown.trace.outcome) == ("2", False)
    with pytest.raises(ForbiddenError):
        lab.db.labels.item(lab.id, lab.items[0], lab.people[0].user_id)


def test_matrix_disagreement_and_decision(lab: Lab) -> None:
    for person, values in ((0, [1, 1, -1]), (1, [1, -1])):
        rate(lab, person, lab.next(person), values, "k")
    rate(lab, 0, lab.next(0), [None], "unfinished", finish=False)
    item, trace = lab.items[0], lab.traces[0].id
    made = lab.db.reviews.ratings(lab.id)
    assert made.raters == tuple(sorted(person.pseudonym for person in lab.people[:2]))
    own = made.raters.index(lab.people[1].pseudonym)
    assert made.matrix[own].tolist()[:2] == [1, -1]
    assert math.isnan(made.matrix[own][2])
    assert made.items.tolist() == [item] * 3
    assert agreement(made.matrix).raw == 0.5
    (found,) = lab.db.reviews.disagreements(lab.id)
    assert (found.item_id, found.trace_id, found.step) == (item, trace, 1)
    assert dict(found.values) == {lab.people[0].pseudonym: 1, lab.people[1].pseudonym: -1}
    judge = lab.people[0].user_id
    decided = lab.db.reviews.adjudicate(lab.id, trace, judge, 1, -1, note=HOSTILE, after=0)
    record = decided.record
    assert (record.evidence.message, record.value, decided.user_id) == (HOSTILE, -1, judge)
    assert record.evidence.rater == lab.people[0].pseudonym
    assert lab.db.reviews.disagreements(lab.id) == []
    (settled,) = lab.db.reviews.disagreements(lab.id, decided=True)
    assert settled.decision == decided
    with pytest.raises(ConflictError, match="decided since"):
        lab.db.reviews.adjudicate(lab.id, trace, judge, 1, 1, after=0)
    settled = list(lab.db.export.labels(lab.id, settled=True))
    (one,) = [label for label in settled if label.trace_id == trace and label.step == 1]
    assert (one.value, one.source, one.evidence.message) == (-1, "human:adjudicated", HOSTILE)
    later = lab.db.reviews.adjudicate(lab.id, trace, judge, 1, 1, after=decided.id)
    assert decisions_in(lab.db.labels.of_traces(lab.id, [trace])[trace]) == {1: later}
    assert [label.source for label in lab.db.export.labels(lab.id)] == ["human"] * 6
    (one,) = [label for label in lab.db.export.labels(lab.id, settled=True) if label.step == 1]
    assert one == later.record
    lab.db.reviews.undo(lab.id, later.id, judge)
    assert decisions_in(lab.db.labels.of_traces(lab.id, [trace])[trace]) == {1: decided}


def test_items_with_known_labels_stay_out_of_the_export(lab: Lab) -> None:
    name = lab.traces[0].id
    control = lab.db.items.add(lab.id, [name], known={name: {0: -1}})[0]
    lab.set(known_share=1.0)
    assert lab.next() == control
    lab.items[0] = control
    rate(lab, 0, control, [1], "k")
    assert lab.db.reviews.known_labels(lab.id) == [(lab.people[0].pseudonym, False)]
    assert lab.db.reviews.ratings(lab.id).matrix.shape == (0, 0)
    assert list(lab.db.export.labels(lab.id)) == []
    assert len(list(lab.db.export.labels(lab.id, known=True))) == 1


def test_nothing_crosses_from_project_to_project(db: Database) -> None:
    ours, theirs = make_lab(db, "ours"), make_lab(db, "theirs")
    item, user = ours.next(), ours.people[0].user_id
    rate(ours, 0, item, [1, -1], "k")
    db.traces.add_scores(
        ours.id, [StepScores(trace_id=ours.traces[0].id, scorer="s", scores=(0.1, 0.2, 0.3))]
    )
    wrong = theirs.id
    db.projects.set_member(wrong, user, "annotator")
    trace = ours.traces[0].id
    for ask in (
        lambda: db.items.get(wrong, item),
        lambda: db.labels.item(wrong, item, user),
        lambda: db.items.set_priorities(wrong, {item: 1.0}),
        lambda: db.assignments.skip(wrong, item, user, "x"),
        lambda: db.labels.submit(wrong, item, user, [LabelInput(step=0, value=1)], "w"),
        lambda: db.labels.undo(wrong, item, user),
        lambda: db.reviews.adjudicate(99, trace, user, 0, 1),
    ):
        with pytest.raises(NotFoundError):
            ask()
    assert item not in [found.id for found in db.items.list(wrong)]
    assert db.export.stored(wrong) == db.reviews.known_labels(wrong) == []
    assert assignments_of(db, wrong, user) == db.traces.scorers(wrong) == []
    assert db.labels.of_traces(wrong, [trace])[trace] == []  # the same trace lies in both
    assert len(db.labels.of_traces(ours.id, [trace])[trace]) == 2
    assert db.assignments.progress(wrong).done == 0
    with pytest.raises(NotFoundError):
        db.export.records(99, "traces")
    stranger = db.users.create("stranger").id
    for ask in (
        lambda: db.assignments.next(ours.id, stranger, Random(0)),
        lambda: db.labels.submit(ours.id, item, stranger, [LabelInput(step=0, value=1)], "w"),
    ):
        with pytest.raises(ForbiddenError):
            ask()


def test_every_field_of_a_record_comes_back(lab: Lab) -> None:
    zero = "\x00 and " + HOSTILE
    problem = Problem(id=HOSTILE, text=zero, answer=zero, source=zero, meta={zero: zero})
    trace = Trace(
        id=HOSTILE,
        problem_id=problem.id,
        messages=(Message(role="user", content=zero), Message(role="assistant", content=HOSTILE)),
        steps=(Step(start=0, end=3, message=1),),
        answer=zero,
        policy=HOSTILE,
        error=zero,
    )
    scores = StepScores(trace_id=trace.id, scorer=HOSTILE, scores=(None,), unscored_reason=zero)
    label = StepLabel(trace_id=trace.id, step=0, kind="value", value=0.25, source=HOSTILE, reason=zero)
    add = lab.db.traces
    assert add.add_problems(lab.id, [problem]).new == add.add_traces(lab.id, [trace]).new == 1
    assert add.add_scores(lab.id, [scores]).new == lab.db.labels.import_labels(lab.id, [label]).new == 1
    assert lab.db.labels.import_labels(lab.id, [label]).same == 1
    assert add.problem(lab.id, HOSTILE) == problem
    assert add.trace(lab.id, HOSTILE) == trace
    assert add.scores_of(lab.id, [HOSTILE]) == {HOSTILE: [scores]}
    assert [stored.record for stored in lab.db.labels.of_traces(lab.id, [HOSTILE])[HOSTILE]] == [label]
    (one,) = add.find(lab.id, RunFilter(text=lab.traces[1].id))
    assert one.id == lab.traces[1].id
    hostile = RunFilter(text="DROP TABLE users; --", facets={"model": HOSTILE})
    assert [row.id for row in add.find(lab.id, hostile)] == [trace.id]
    assert add.find(lab.id, RunFilter(text="DROPTABLE")) == []
    assert problem in list(lab.db.export.records(lab.id, "problems"))
    assert trace in list(lab.db.export.records(lab.id, "traces"))
    assert list(lab.db.export.records(lab.id, "scores")) == [scores]


def test_export_in_pages_leaves_nothing_out(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    more = [Problem(text=f"q{n}") for n in range(1203)]
    assert lab.db.traces.add_problems(lab.id, more).new == 1203
    ids = [problem.id for problem in lab.db.export.records(lab.id, "problems")]
    assert len(ids) == len(set(ids)) == 1206


def test_finding_traces_by_score_and_outcome(lab: Lab) -> None:
    scores = [
        StepScores(trace_id=trace.id, scorer="s", scores=(0.9, low, 0.8))
        for trace, low in zip(lab.traces, (0.1, 0.4, 0.7), strict=True)
    ]
    lab.db.traces.add_scores(lab.id, scores)
    changed = lab.db.traces.add_scores(
        lab.id, [*scores[:2], scores[2].model_copy(update={"scores": (1.0, 0.6, 1.0)})]
    )
    assert (changed.same, changed.replaced) == (2, 1)
    found = lab.db.traces.find(lab.id, RunFilter(scorer="s", min_score=0.3, max_score=0.65))
    assert {row.id for row in found} == {lab.traces[1].id, lab.traces[2].id}
    assert lab.db.traces.find(lab.id, RunFilter(facets={"outcome": "correct"})) == []
    assert len(lab.db.traces.find(lab.id, RunFilter(facets={"outcome": "wrong"}), limit=2)) == 2
    with pytest.raises(StoreError, match="scorer"):
        lab.db.traces.find(lab.id, RunFilter(min_score=0.5))
    refused = lab.db.traces.add_scores(
        lab.id, [StepScores(trace_id=lab.traces[0].id, scorer="t", scores=(0.5,))]
    )
    assert (refused.refused, refused.reasons[0][0]) == (1, lab.traces[0].id)


def test_files_are_imported_once_and_faults_counted(lab: Lab, tmp_path: Path) -> None:
    problems, traces, labels = (tmp_path / f"{name}.jsonl" for name in ("problems", "traces", "labels"))
    problem = Problem(text="new")
    trace = Trace(problem_id=problem.id, text="x", steps=(Step(start=0, end=1),))
    lost = Trace(problem_id="unknown", text="x")
    write_records(problems, [problem])
    problems.write_text(problems.read_text() + "{broken\n")
    write_records(traces, [trace, lost])
    label = StepLabel(trace_id=trace.id, step=0, kind="correctness", value=1, source="judge")
    write_records(labels, [label, label.model_copy(update={"step": 4})])
    for new in (1, 0):
        files = {path: kind_of(path) for path in (labels, traces, problems)}
        assert list(files.values()) == ["labels", "traces", "problems"]
        done = import_files(lab.db, lab.id, files)
        added = {file.kind: file.added[file.kind] for file in done.values()}
        assert [counts.new for counts in added.values()] == [new, new, new]
        assert done[problems].read.bad_count == 1
        assert (added["traces"].refused, added["labels"].refused) == (1, 1)
        assert not any(file.complete for file in done.values())
    changed = Problem(id=problem.id, text="other")
    assert lab.db.traces.add_problems(lab.id, [changed]).reasons == (
        (problem.id, "the project has a record with this id and other content; use another id"),
    )


def test_lists_are_searched_counted_and_sorted(lab: Lab) -> None:
    agent = segment_trace(
        Trace(
            problem_id=lab.problems[0].id,
            messages=(
                Message(role="user", content="Cancel my flight, please.\nThanks."),
                Message(role="assistant", content='Done: "reservation" <H9ZU1C>.'),
            ),
            outcome=True,
        )
    )
    traces = lab.db.traces
    assert traces.add_traces(lab.id, [agent]).new == 1
    total, facets = traces.facets(lab.id, RunFilter())
    assert total == 4
    assert facets == {
        "outcome": {"wrong": 3, "correct": 1},
        "kind": {"solution": 3, "agent": 1},
        "model": {"p": 3, "unknown": 1},
    }
    # a facet counts what the other conditions leave
    total, facets = traces.facets(lab.id, RunFilter(facets={"kind": "agent", "outcome": "wrong"}))
    assert (total, facets["kind"], facets["outcome"]) == (0, {"solution": 3}, {"correct": 1})
    for words, expected in (
        ("h9zu1c flight", [agent.id]),
        ("flight nowhere", []),
        ('"', []),
        ("AND OR NOT", []),
        ("thr*", []),
        ("two three", [trace.id for trace in lab.traces]),
        ("2", [lab.traces[2].id]),
    ):
        assert {row.id for row in traces.find(lab.id, RunFilter(text=words))} == {*expected}, words
    (row,) = traces.find(lab.id, RunFilter(facets={"model": "unknown"}))
    assert (row.title, row.kind) == ("Cancel my flight, please.", "agent")
    rate(lab, 0, lab.next(0), [1, -1], "k")
    judge = lab.people[1].user_id

    def with_error(low: int, high: int | None) -> list[str]:
        return [row.id for row in traces.find(lab.id, RunFilter(error=(low, high)))]

    assert with_error(0, None) == with_error(1, 1) == [lab.traces[0].id]
    assert with_error(0, 0) == with_error(2, None) == []
    assert len(traces.find(lab.id, RunFilter(no_error=True))) == 3
    decided = lab.db.reviews.adjudicate(lab.id, lab.traces[0].id, judge, 1, 1)
    lab.db.reviews.adjudicate(lab.id, lab.traces[0].id, judge, 2, -1)
    assert (with_error(1, 1), with_error(2, 2)) == ([], [lab.traces[0].id])
    with pytest.raises(ConflictError):
        lab.db.reviews.undo(lab.id, decided.id, lab.people[0].user_id)
    lab.db.reviews.undo(lab.id, decided.id, judge)
    assert with_error(2, 2) == [lab.traces[0].id]  # what was decided is the verdict
