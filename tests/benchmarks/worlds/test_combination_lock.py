"""The lock: which digits open a dial, and what its scorer says of a run."""

from __future__ import annotations

import pytest

from benchmarks.worlds.lock import Lock, LockProgress, lock_problems
from surefoot.errors import RecordError
from surefoot.protocols import ProblemTrace, RestorableEnvironment
from surefoot.records import Message, Problem, Trace
from surefoot.segment import segment_trace


def test_every_second_dial_wants_an_even_digit() -> None:
    lock = Lock()
    assert isinstance(lock, RestorableEnvironment)
    lock.reset(lock_problems(1)[0])
    seen = [lock.step(text).text for text in ("=", "7", "7", "44", "4")]
    assert seen == ["Now 0", "Now 1", "Now 1", "Now 1", "Now 2"]
    assert (lock.outcome(), lock.state()) == (False, 2)
    kept = lock.snapshot()
    assert [lock.step(text).done for text in ("9", "0")] == [False, True]
    assert lock.outcome()
    lock.restore(kept)
    assert lock.state() == 2


def test_another_worlds_problem_is_refused() -> None:
    with pytest.raises(RecordError, match="'lock_problems'"):
        Lock().reset(Problem(id="shop", text="Now 0"))


def test_progress_is_the_share_of_open_dials_after_each_turn() -> None:
    (problem,) = lock_problems(1, first=3)
    said = [Message(role="assistant", content=text) for text in ("7", "7", "0")]
    asked = [Message(role="user", content="Now")] * 3
    messages = tuple(one for pair in zip(asked, said, strict=True) for one in pair)
    trace = segment_trace(Trace(problem_id=problem.id, messages=messages), granularity="message")
    (record,) = LockProgress().score_traces([ProblemTrace(problem=problem, trace=trace)])
    assert record.scores == (0.25, 0.25, 0.5)
