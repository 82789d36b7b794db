"""What grows with the labels: which of them count, how rows are found, how many statements are sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
from conftest import Lab, make_lab
from sqlalchemy import event, text
from test_database import engine_of
from test_database_labels import rate

from surefoot.annotation import Database, StoredLabel, open_database
from surefoot.errors import ConflictError
from surefoot.records import StepLabel, StepScores


@contextmanager
def statements(db: Database) -> Iterator[list[tuple[str, Any]]]:
    """The statements sent to the database, with their parameters."""
    seen: list[tuple[str, Any]] = []
    engine = db._connections.engine

    def note(_connection: Any, _cursor: Any, sql: str, parameters: Any, *_: Any) -> None:
        if not sql.startswith("BEGIN"):
            seen.append((sql, parameters))

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", note)


def plan(db: Database, sql: str, parameters: Any) -> str:
    """How the database would run it."""
    explain = "EXPLAIN QUERY PLAN " if db.backend == "sqlite" else "EXPLAIN "
    with db._connections.read() as connection:
        if db.backend == "postgresql":  # small tables are cheaper to read whole, large ones are not
            connection.execute(text("SET LOCAL enable_seqscan = off"))
        rows = connection.exec_driver_sql(explain + sql, parameters).all()
    return "\n".join(str(row[-1]) for row in rows)


def by_brute_force(stored: list[StoredLabel]) -> set[int]:
    """Ids of the labels that count, from everything ever submitted."""
    latest: dict[Any, int] = {}
    for label in sorted(stored, key=lambda one: one.id):
        place = (label.item_id, label.user_id, label.record.trace_id, label.record.step)
        if not label.retracted:
            latest[label.id if label.user_id is None else place] = label.id
    return set(latest.values())


def shuffled_work(lab: Lab, rng: Random, turns: int) -> Iterator[None]:
    """Submissions, repeated ones and undos of two people in any order, and an imported label."""
    item = lab.next(0)
    assert item == lab.next(1)
    machine = StepLabel(trace_id=lab.traces[0].id, step=1, kind="correctness", value=1, source="machine")
    assert lab.db.labels.import_labels(lab.id, [machine]).new == 1
    for turn in range(turns):
        person = rng.randrange(2)
        if rng.random() < 0.6:
            values = [rng.choice([-1, 0, 1, None]) for _ in range(rng.randint(1, 3))]
            rate(lab, person, item, values, f"k{turn}", finish=False)
        else:
            try:
                lab.db.labels.undo(lab.id, item, lab.people[person].user_id, f"u{turn}")
            except ConflictError:  # nothing left to undo
                continue
        yield


def test_the_labels_that_count_are_those_of_brute_force(db: Database) -> None:
    rng, lab, other = Random(3), make_lab(db), make_lab(db, "other")
    rate(other, 0, other.next(0), [1, 1, 1], "k")
    for _ in shuffled_work(lab, rng, 30):
        expected = by_brute_force(db.export.stored(lab.id))
        assert {label.id for label in db.labels.of_trace(lab.id, lab.traces[0].id)} == expected
        assert len(list(db.export.labels(lab.id))) == len(expected)
        (row,) = [one for one in db.traces.find(lab.id) if one.trace.id == lab.traces[0].id]
        assert row.labels == len(expected)
        counted = sum(one.labels for one in db.assignments.progress(lab.id).annotators)
        assert counted == len(db.reviews.matrix(lab.id, unfinished=True)) == len(expected) - 1
    assert len(list(db.export.labels(other.id))) == 3


def test_the_migration_finds_the_labels_that_count(url: str) -> None:
    from alembic import command

    from surefoot.annotation.database.database import _config

    with open_database(url, password_cost=4) as db:
        lab = make_lab(db)
        for _ in shuffled_work(lab, Random(4), 25):
            pass
        before, everything = current(url), len(db.export.stored(lab.id))
    assert 1 < len(before) < everything
    engine = engine_of(url)
    with engine.begin() as connection:
        config = _config()
        config.attributes["connection"] = connection
        command.downgrade(config, "r0005")
        command.upgrade(config, "head")
    engine.dispose()
    assert current(url) == before


def current(url: str) -> list[int]:
    engine = engine_of(url)
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT id FROM labels WHERE is_current ORDER BY id")).scalars().all()
    engine.dispose()
    return list(rows)


def test_traces_are_found_by_score_from_the_index(lab: Lab) -> None:
    low = [StepScores(trace_id=one.id, scorer="prm", scores=(0.1, 0.9, 0.5)) for one in lab.traces[:2]]
    high = [StepScores(trace_id=one.id, scorer="prm", scores=(0.9, 0.9, 0.8)) for one in lab.traces[2:]]
    lab.db.traces.add_scores(lab.id, [*low, *high])
    with statements(lab.db) as seen:
        rows = lab.db.traces.find(lab.id, scorer="prm", max_score=0.2)
    assert {row.trace.id for row in rows} == {one.trace_id for one in low}
    (query,) = [one for one in seen if "step_scores" in one[0]]
    how = plan(lab.db, *query)
    if lab.db.backend == "sqlite":
        assert "COVERING INDEX ix_step_scores_project_id_scorer_lowest_trace_id" in how
        assert "CORRELATED LIST" not in how
    else:  # which index depends on the sizes
        assert "Seq Scan" not in how
        assert how.count("SubPlan") == 1  # the count of labels; scores are joined


@pytest.mark.parametrize("count", [1, 3])
def test_names_of_scorers_come_one_step_in_the_index_each(lab: Lab, count: int) -> None:
    for number in range(count):
        scores = [StepScores(trace_id=one.id, scorer=f"s{number}", scores=(0.5,) * 3) for one in lab.traces]
        lab.db.traces.add_scores(lab.id, scores)
    with statements(lab.db) as seen:
        assert lab.db.traces.scorers(lab.id) == [f"s{number}" for number in range(count)]
    assert "ix_step_scores" in plan(lab.db, *seen[-1])
    assert make_lab(lab.db, "empty").db.traces.scorers(lab.id + 1) == []


def test_counts_of_labels_come_from_the_index(lab: Lab) -> None:
    rate(lab, 0, lab.next(0), [1, 1, 1], "k")
    with statements(lab.db) as seen:
        (row,) = lab.db.assignments.progress(lab.id).annotators
    assert row.labels == 3
    (query,) = [one for one in seen if "labels" in one[0]]
    assert "ix_labels_project_id_is_current_user_id" in plan(lab.db, *query)
