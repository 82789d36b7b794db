"""What an annotator is given next, and how long they keep it. On both databases."""

from __future__ import annotations

from random import Random
from statistics import median

import pytest
from annotation_site import assignments_of, priorities_of
from conftest import Lab, make_lab
from test_database_labels import rate

from surefoot.errors import ConflictError, ForbiddenError, NotFoundError, StoreError
from surefoot.server import Database, LabelInput
from surefoot.server.store import queue


def add_known(lab: Lab, number: int) -> list[int]:
    """Items with a known answer: the last step is wrong."""
    names = [trace.id for trace in lab.traces[:number]]
    return lab.db.items.add(lab.id, names, known={name: {2: -1} for name in names})


def test_each_item_goes_to_as_many_as_asked_and_once_to_each(db: Database) -> None:
    lab = make_lab(db, annotators=2)
    third = db.projects.set_member(lab.id, db.users.create("third").id, "annotator")
    lab.people.append(third)
    given: dict[int, list[int]] = {item: [] for item in lab.items}
    for turn in range(12):
        person = turn % 3
        item = lab.next(person)
        if item is not None:
            rate(lab, person, item, [1], "k" + str(item))
            given[item].append(person)
    assert all(len(set(people)) == len(people) == 2 for people in given.values())
    assert [lab.next(person) for person in range(3)] == [None] * 3
    progress = db.assignments.progress(lab.id)
    assert (progress.items, progress.complete, progress.needed, progress.done) == (3, 3, 6, 6)
    assert sum(one.done for one in progress.annotators) == 6
    assert {one.milliseconds for one in progress.annotators} == {1000}


def test_progress_is_that_of_the_assignments(db: Database) -> None:
    lab, rng, times = make_lab(db, items=7, annotators=2), Random(1), dict[int, list[int]]()
    for person, finished in ((0, 6), (1, 5)):
        user = lab.people[person].user_id
        for _ in range(finished):
            item, time = lab.next(person), rng.randrange(1, 99)
            label = LabelInput(step=0, value=1)
            db.labels.submit(lab.id, item, user, [label], f"k{item}", finish=True, milliseconds=time)
            times.setdefault(user, []).append(time)
    db.assignments.skip(lab.id, lab.next(1), lab.people[1].user_id, "cannot read it")
    progress = db.assignments.progress(lab.id)
    assert {one.user_id: one.milliseconds for one in progress.annotators} == {
        user: int(median(own)) for user, own in times.items()
    }
    assert sorted((one.done, one.skipped, one.labels) for one in progress.annotators) == [
        (5, 1, 5),
        (6, 0, 6),
    ]
    last = {
        one.user_id: max(a.finished for a in assignments_of(db, lab.id, one.user_id) if a.finished)
        for one in progress.annotators
    }
    for one in progress.annotators:
        assert one.last == last[one.user_id]
        assert db.assignments.progress(lab.id, [one.user_id]).annotators == (one,)
        assert db.assignments.progress(lab.id, [one.user_id]).annotators == (one,)
    assert db.assignments.progress(lab.id, ()).annotators == ()
    both = [
        item
        for item in lab.items
        if sum(
            item in {a.item_id for a in assignments_of(db, lab.id, p.user_id) if a.state == "done"}
            for p in lab.people
        )
        == 2
    ]
    assert (progress.done, progress.complete, progress.needed) == (11, len(both), 14)
    nobody = db.users.create("nobody").id
    assert db.assignments.progress(lab.id, [nobody]).annotators == ()


def test_asking_again_gives_the_same_item(lab: Lab) -> None:
    first = lab.db.assignments.next(lab.id, lab.people[0].user_id, Random(0))
    again = lab.db.assignments.next(lab.id, lab.people[0].user_id, Random(5))
    assert first is not None
    assert again == first


def test_a_lease_runs_out(db: Database, clock) -> None:
    lab = make_lab(db, items=1, annotators=1)
    lab.set(lease_seconds=60)
    item = lab.next(0)
    assert lab.next(1) is None
    clock.forward(59)
    assert lab.next(0) == item
    clock.forward(59)
    assert lab.next(1) is None
    clock.forward(1)
    assert lab.next(1) == item
    with pytest.raises(ConflictError, match="as many as the protocol"):
        rate(lab, 0, item, [1], "late")
    assert lab.next(0) is None
    clock.forward(61)
    rate(lab, 1, item, [1], "late but free")
    assert lab.db.assignments.progress(lab.id).complete == 1


def test_a_skipped_item_goes_to_others_only(db: Database) -> None:
    lab = make_lab(db, items=1, annotators=1)
    item, user = lab.next(0), lab.people[0].user_id
    skipped = db.assignments.skip(lab.id, item, user, "cannot read it")
    assert (skipped.state, skipped.reason) == ("skipped", "cannot read it")
    assert lab.next(0) is None
    assert lab.next(1) == item
    with pytest.raises(ConflictError, match="skipped"):
        rate(lab, 0, item, [1], "k")


def test_items_of_a_removed_member_go_to_others(db: Database) -> None:
    lab = make_lab(db, items=1, annotators=1)
    item = lab.next(0)
    assert lab.next(1) is None
    db.projects.set_member(lab.id, lab.people[0].user_id, "annotator", active=False)
    with pytest.raises(ForbiddenError):
        lab.next(0)
    assert lab.next(1) == item


def test_priorities_decide_and_the_policy_is_kept(lab: Lab) -> None:
    lab.set(queue="convincing-wrong")
    first, second, third = lab.items
    lab.db.items.set_priorities(lab.id, {second: 0.9, third: 0.95})
    order = []
    while (item := lab.next()) is not None:
        rate(lab, 0, item, [1], f"k{item}")
        order.append(item)
    assert order == [third, second, first]
    assert {label.chosen_by for label in lab.db.export.stored(lab.id)} == {"convincing-wrong"}
    assert priorities_of(lab.db, lab.id) == {second: 0.9, third: 0.95}
    with pytest.raises(NotFoundError):
        lab.db.items.set_priorities(lab.id, {99: 1.0})
    lab.db.items.set_priorities(lab.id, {first: 0.1})
    assert priorities_of(lab.db, lab.id) == {first: 0.1}


def test_the_random_share_is_drawn_at_random_and_marked(db: Database) -> None:
    lab = make_lab(db, items=40, annotators=1)
    lab.set(random_share=0.5)
    chosen = []
    while (item := lab.next()) is not None:
        rate(lab, 0, item, [1], f"k{item}")
        chosen.append((item, db.export.stored(lab.id)[-1].chosen_by))
    assert len({item for item, _ in chosen}) == 40
    by = [policy for _, policy in chosen]
    assert set(by) == {"order", "random"}
    assert 10 <= by.count("random") <= 30
    in_order = [item for item, policy in chosen if policy == "order"]
    assert in_order == sorted(in_order)


def test_items_with_known_labels_are_mixed_in_for_everybody(db: Database) -> None:
    lab = make_lab(db, items=6, annotators=1)
    controls = add_known(lab, 3)
    lab.set(known_share=0.5)
    seen: list[list[int]] = [[], []]
    for person in (0, 1):
        while (item := lab.next(person)) is not None:
            place = controls.index(item) if item in controls else lab.items.index(item)
            trace_items = [*lab.items]
            trace_items[place] = item
            own = Lab(**{**lab.__dict__, "items": trace_items})
            rate(own, person, item, [1, 1, -1], f"k{item}")
            seen[person].append(item)
    assert set(lab.items) <= set(seen[0])
    assert set(seen[0]) & set(controls)
    assert len(set(seen[0])) == len(seen[0])
    assert set(seen[1]) <= set(controls)


def test_archived_projects_give_nothing(lab: Lab) -> None:
    item = lab.next()
    lab.db.projects.update(lab.id, lab.project.version, archived=True)
    assert lab.next() is None
    with pytest.raises(ConflictError, match="archived"):
        rate(lab, 0, item, [1], "k")


def test_an_equal_item_is_not_added_twice(lab: Lab) -> None:
    assert lab.db.items.add(lab.id, [trace.id for trace in lab.traces]) == lab.items
    assert lab.db.items.add(lab.id) == []
    assert [item.id for item in lab.db.items.list(lab.id)] == lab.items
    first = lab.traces[0].id
    checked = lab.db.items.add(lab.id, [first], known={first: {2: -1}})
    assert lab.db.items.add(lab.id, [first], known={first: {2: -1}}) == checked
    assert lab.db.items.get(lab.id, checked[0]).known == {2: -1}
    for name, known in (("", {}), (first, {9: 1}), (first, {-1: 1}), (first, {0: 2})):
        with pytest.raises(StoreError):
            lab.db.items.add(lab.id, [name], known={name: known})
    with pytest.raises(NotFoundError):
        lab.db.items.add(lab.id, ["unknown"])


def test_items_with_known_labels_are_added_all_or_none(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "CHUNK", 1)
    names = [trace.id for trace in lab.traces]
    with pytest.raises(StoreError, match="a known label is of step 9"):
        lab.db.items.add(lab.id, names, known={**{name: {2: -1} for name in names}, names[-1]: {9: 1}})
    for traces, known in ((names[:1], {names[1]: {2: -1}}), ([], {"x": {0: 1}}), (None, {names[0]: {2: -1}})):
        with pytest.raises(StoreError, match=f"known labels of trace '{next(iter(known))}'"):
            lab.db.items.add(lab.id, traces, known=known)
    assert [item.id for item in lab.db.items.list(lab.id)] == lab.items
