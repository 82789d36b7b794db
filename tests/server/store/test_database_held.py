"""The queue of held tool calls. On both databases."""

from __future__ import annotations

from datetime import timedelta

import pytest
from held_calls import held_call

from surefoot.errors import ConflictError, NotFoundError
from surefoot.server import Database


def test_a_call_waits_until_it_is_decided_once(db: Database, clock) -> None:
    store = db.held_calls
    ada = db.users.create("ada").id
    given = held_call(clock.at, arguments='{"order": "\x00 W1 ü"}', key_id=7)
    number = store.hold(given, most=2)
    other = store.hold(given, most=2)
    assert number is not None
    assert store.hold(given, most=2) is None
    assert store.reviews([number]) == {}
    assert store.held(number, key_id=7) == given
    db.held_calls.decide(number, ada, approved=False, comment="ask first")
    [review] = store.reviews([number, other or 0, 99]).values()
    assert (review.approved, review.comment, review.by) == (False, "ask first", f"user {ada}")
    assert store.held(number, key_id=7).review == review
    assert db.held_calls.count() == {"waiting": 1, "approved": 0, "delivered": 0, "denied": 1, "abandoned": 0}
    with pytest.raises(ConflictError, match="denied already"):
        db.held_calls.decide(number, ada, approved=True)
    with pytest.raises(NotFoundError):
        db.held_calls.decide(99, ada, approved=True)
    for key_id in (None, 8):
        with pytest.raises(NotFoundError):
            store.held(number, key_id=key_id)


def test_the_oldest_waits_first_the_others_are_listed_newest_first_and_pruned(db: Database, clock) -> None:
    numbers = [db.held_calls.hold(held_call(clock.at + timedelta(days=day)), most=9) for day in range(3)]
    assert [row.id for row in db.held_calls.find()] == numbers[::-1]
    assert [row.id for row in db.held_calls.find(past=numbers[2], limit=1)] == [numbers[1]]
    assert [row.id for row in db.held_calls.find(state="waiting")] == numbers
    assert [row.id for row in db.held_calls.find(state="waiting", past=numbers[0], limit=1)] == [numbers[1]]
    assert db.held_calls.find(state="approved") == []
    assert db.held_calls.prune(clock.at + timedelta(days=2)) == 2
    assert [row.id for row in db.held_calls.find()] == [numbers[2]]


def test_a_call_whose_client_has_disconnected_cannot_be_decided(db: Database, clock) -> None:
    calls = db.held_calls
    number, decided = (calls.hold(held_call(clock.at), most=9) for _ in range(2))
    assert number is not None
    assert decided is not None
    calls.decide(decided, None, approved=True)
    for gone in (number, decided, 99):
        calls.abandon(gone)
    with pytest.raises(ConflictError, match="has disconnected"):
        calls.decide(number, None, approved=True)
    assert calls.count() == {"waiting": 0, "approved": 1, "delivered": 0, "denied": 0, "abandoned": 1}
    assert list(calls.reviews([number, decided])) == [decided]
    assert calls.get(number)[0].review is None


def test_an_approved_call_is_delivered_once(db: Database, clock) -> None:
    calls = db.held_calls
    waiting, denied = (calls.hold(held_call(clock.at), most=9) or 0 for _ in range(2))
    assert not calls.deliver(waiting)
    calls.decide(waiting, None, approved=True)
    calls.decide(denied, None, approved=False)
    assert [calls.deliver(number) for number in (waiting, waiting, denied, 99)] == [True, False, False, False]
    review = calls.get(waiting)[0].review
    assert review is not None
    assert review.approved
    assert calls.count() == {"waiting": 0, "approved": 0, "delivered": 1, "denied": 1, "abandoned": 0}


def test_one_key_cannot_fill_the_queue_for_others(db: Database, clock) -> None:
    def held(key: int | None) -> int | None:
        return db.held_calls.hold(held_call(clock.at, key_id=key), most=4)

    assert [held(1) is not None for _ in range(6)] == [True] * 4 + [False] * 2
    assert [held(2) is not None for _ in range(3)] == [True, True, False]
    assert [held(key) is not None for key in (None, 3, 4, 5)] == [True, True, False, False]
    assert db.held_calls.count()["waiting"] == 8


def test_a_call_that_nobody_decided_about_for_a_day_leaves_the_queue_and_a_clock_set_back_keeps_it(
    db: Database, clock
) -> None:
    first = db.held_calls.hold(held_call(clock.at), most=1)
    clock.at -= timedelta(days=400)
    assert db.held_calls.hold(held_call(clock.at), most=1) is None
    clock.at += timedelta(days=400, hours=23)
    assert db.held_calls.hold(held_call(clock.at), most=1) is None
    clock.at += timedelta(hours=2)
    assert db.held_calls.hold(held_call(clock.at), most=1) is not None
    with pytest.raises(ConflictError):
        db.held_calls.decide(first, None, approved=True)
