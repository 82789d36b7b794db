"""The gateway's record. On both databases."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from test_database import HOSTILE

from surefoot.errors import NotFoundError, StoreError, UnavailableError
from surefoot.records import Attachment, Message, Problem, Step, StepScores, Trace, Usage
from surefoot.server import Database, GatewayCandidate, GatewayRecord, open_database
from surefoot.server.store.traces import request_images


def record(clock, name: str = "r1", **more) -> GatewayRecord:
    problem = Problem(text=HOSTILE + "\x00")
    traces = [
        Trace(problem_id=problem.id, text=HOSTILE + "\x00", steps=(Step(start=0, end=2),), sample=n)
        for n in range(2)
    ]
    values = {
        "request_id": name,
        "created": clock.at,
        "endpoint": "/v1/chat/completions",
        "model": "m",
        "strategy": "best-of-n:n=2",
        "policy": "p",
        "status": 200,
        "latency_ms": 12.5,
        "usage": Usage(prompt_tokens=3, completion_tokens=5, verifier_tokens=7),
        "problem": problem,
        "candidates": tuple(
            GatewayCandidate(
                trace=trace,
                chosen=n == 1,
                score=n / 4,
                scores=StepScores(trace_id=trace.id, scorer="s", scores=(n / 4,)),
                reason=HOSTILE,
            )
            for n, trace in enumerate(traces)
        ),
        "request": {"n": 2, HOSTILE: [HOSTILE]},
        **more,
    }
    return GatewayRecord(**values)


def test_a_request_comes_back_whole(db: Database, clock) -> None:
    log = db.gateway
    given = record(clock, HOSTILE)
    log.write_all([given])
    log.write_all([given.model_copy(update={"status": 500})])
    assert db.gateway.get(HOSTILE) == given
    (row,) = db.gateway.find()
    assert (row.request_id, row.candidates, row.tokens, row.failed) == (HOSTILE, 2, 15, False)
    with pytest.raises(NotFoundError):
        db.gateway.get("r2")


def test_requests_are_found_in_pages(db: Database, clock) -> None:
    names = [f"r{n}" for n in range(6)]
    given = []
    for n, name in enumerate(names):
        clock.forward(n % 2)
        more = {"error": "PolicyError: gone", "status": 502} if n == 3 else {}
        given.append(record(clock, name, key_id=n % 2, project_id=n % 3, candidates=(), **more))
    db.gateway.write_all(given)
    found: list[str] = []
    page = db.gateway.find(limit=4)
    while page:
        found += [row.request_id for row in page]
        page = db.gateway.find(limit=4, before=page[-1].request_id)
    assert found == names[::-1]
    assert [row.request_id for row in db.gateway.find(failed=True)] == ["r3"]
    assert [row.request_id for row in db.gateway.find(key_id=1, project_id=2)] == ["r5"]
    assert len(db.gateway.find(strategy="best-of-n:n=2", model="m", policy="p")) == 6
    assert db.gateway.find(strategy="other") == []


def test_old_requests_are_deleted_with_their_candidates(db: Database, clock) -> None:
    given = [record(clock, f"r{n}", created=clock.at + timedelta(days=n)) for n in range(5)]
    db.gateway.write_all(given)
    before = clock.at + timedelta(days=3)
    assert [db.gateway.prune(before, most=2) for _ in range(3)] == [2, 1, 0]
    assert [row.request_id for row in db.gateway.find()] == ["r4", "r3"]
    assert len(db.gateway.get("r3").candidates) == 2


def test_images_are_kept_once_for_the_latest_request_and_taken_by_projects(db: Database, clock) -> None:
    """By the project of the key, so that its own bound of time deletes nobody else's."""
    old, both = ("image/png", b"\x00old"), ("image/jpeg", b"\xffboth")
    held = tuple(
        Attachment(kind="image", sha256=name) for name in ("old", "both", "none", "\x00", "' or 1=1")
    )
    trace = Trace(problem_id="p", messages=(Message(role="user", content="Look.", attachments=held),))
    project = db.projects.create("lab").id
    db.gateway.keep_images(None, {"old": old, "both": both})
    clock.forward(60)
    db.gateway.keep_images(None, {"both": both})
    db.gateway.keep_images(project, {"old": old})
    assert db.traces.images_of(None, trace) == {"old", "both"}
    assert db.traces.images_of(project, trace) == set()
    assert db.traces.image(None, "both") == (both[1], both[0])
    for _ in range(2):
        db.traces.take_images(project, [trace, Trace(problem_id="p", text="no images")])
    assert db.traces.images_of(project, trace) == {"old", "both"}
    assert db.traces.image(project, "old") == (old[1], old[0])
    assert db.gateway.prune(clock.at + timedelta(1), project_id=project) == 0
    assert db.traces.images_of(None, trace) == {"old", "both"}
    assert db.gateway.prune(clock.at - timedelta(seconds=30)) == 0
    assert db.traces.images_of(None, trace) == {"both"}
    assert db.traces.images_of(project, trace) == {"old", "both"}


def test_many_old_images_are_found_by_an_index_and_deleted_a_few_at_a_time(db: Database, clock) -> None:
    """The gateway's own writes wait for each deletion."""
    db.gateway.keep_images(None, {f"{n}": ("image/png", b"x") for n in range(130)})
    clock.forward(60)
    db.gateway.keep_images(None, {"129": ("image/png", b"x")})
    deleted = []

    def count(_connection, cursor, statement, *_) -> None:
        if statement.startswith("DELETE FROM request_images"):
            deleted.append(cursor.rowcount)

    engine = db._connections.engine
    sa.event.listen(engine, "after_cursor_execute", count)
    assert db.gateway.prune(clock.at) == 0
    assert (sum(deleted), max(deleted) <= 50) == (129, True)
    assert ["used"] in [index["column_names"] for index in sa.inspect(engine).get_indexes("request_images")]
    # what a search reads stands before the bytes, which fill many pages
    assert request_images.columns.keys()[-1] == "content"


def test_a_batch_is_kept_whole_or_not_at_all(db: Database, clock) -> None:
    with pytest.raises(StoreError, match="model"):
        db.gateway.write_all([record(clock), record(clock, "r2", model="\x00")])
    assert db.gateway.find() == []
    with pytest.raises(StoreError, match="time zone"):
        db.gateway.write_all([record(clock, created=clock.at.replace(tzinfo=None))])


def test_history_is_the_first_requests_and_the_latest(db: Database, clock) -> None:
    for number in range(130):
        clock.forward(1)
        db.gateway.write_all([record(clock, f"r{number}", policy="p" if number % 2 else "q")])

    def ids(**more) -> list[str]:
        return [one.request_id for one in db.gateway.history(policy="p", **more)]

    odd = [f"r{number}" for number in range(1, 130, 2)]
    assert ids() == odd
    assert ids(first=2, latest=3) == odd[:2] + odd[-3:]
    assert ids(since=clock.at, first=5) == ["r129"]
    assert [*db.gateway.history(policy="none")] == []


def test_a_full_disk_stores_nothing_and_the_next_request_is_stored(tmp_path: Path, clock) -> None:
    resource = pytest.importorskip("resource")
    with open_database(tmp_path / "store.db") as db:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # no file can be written, as on a full disk
        try:
            with pytest.raises(UnavailableError):
                db.gateway.write_all([record(clock)])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert db.gateway.find() == []
        db.gateway.write_all([record(clock)])
        assert len(db.gateway.find()) == 1


def test_a_large_batch_with_a_stored_request(db: Database, clock) -> None:
    log, first = db.gateway, record(clock, "r7", candidates=())
    log.write_all([first])
    log.write_all([record(clock, f"r{number}") for number in range(150)])
    assert log.get("r7") == first
    assert all(len(log.get(f"r{number}").candidates) == 2 for number in (0, 6, 8, 63, 64, 149))
