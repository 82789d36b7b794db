"""What grows with the labels: which of them count, how rows are found, how many statements are sent."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from conftest import Lab, make_lab
from sqlalchemy import event, text
from starlette.testclient import TestClient
from test_database_labels import rate

from surefoot.errors import ConflictError
from surefoot.records import Evidence, StepLabel, StepScores, Trace
from surefoot.server import Database, LabelInput, create_pages_app
from surefoot.server.store.traces import RunFilter


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


def shuffled_work(lab: Lab, rng: Random, turns: int) -> Iterator[set[int]]:
    """Submissions and undos in any order, and an imported label; ids of the labels that count."""
    item = lab.next(0)
    assert item == lab.next(1)
    machine = StepLabel(trace_id=lab.traces[0].id, step=1, kind="correctness", value=1, source="machine")
    assert lab.db.labels.import_labels(lab.id, [machine]).new == 1
    (imported,) = lab.db.export.stored(lab.id)
    sent: list[list[dict[int, int]]] = [[], []]  # of each person, submissions: step -> label
    for turn in range(turns):
        person = rng.randrange(2)
        user, submissions = lab.people[person].user_id, sent[person]
        if rng.random() < 0.6:
            steps = sorted(rng.sample(range(3), rng.randint(1, 3)))
            labels = [LabelInput(step=step, value=rng.choice([-1, 0, 1])) for step in steps]
            if any(step in one for one in submissions for step in steps):
                with pytest.raises(ConflictError, match="undo it first"):
                    lab.db.labels.submit(lab.id, item, user, labels, f"k{turn}")
            else:
                made = lab.db.labels.submit(lab.id, item, user, labels, f"k{turn}")
                submissions.append(dict(zip(steps, made.label_ids, strict=True)))
        elif submissions:
            submissions.pop()
            lab.db.labels.undo(lab.id, item, user)
        else:
            with pytest.raises(ConflictError, match="nothing to undo"):
                lab.db.labels.undo(lab.id, item, user)
        yield {imported.id} | {label for own in sent for one in own for label in one.values()}


def test_the_labels_that_count_are_those_of_brute_force(db: Database) -> None:
    rng, lab, other = Random(3), make_lab(db), make_lab(db, "other")
    rate(other, 0, other.next(0), [1, 1, 1], "k")
    for expected in shuffled_work(lab, rng, 30):
        stored = db.export.stored(lab.id)
        assert {label.id for label in stored if label.is_current} == expected
        assert {
            label.id for label in db.labels.of_traces(lab.id, [lab.traces[0].id])[lab.traces[0].id]
        } == expected
        assert len(list(db.export.labels(lab.id))) == len(expected)
        counted = sum(one.labels for one in db.assignments.progress(lab.id).annotators)
        assert counted == len(expected) - 1
    assert len(list(db.export.labels(other.id))) == 3


def test_ratings_follow_labels_and_undos(db: Database) -> None:
    rng, lab = Random(5), make_lab(db)
    item = lab.next(0)
    assert item == lab.next(1)
    finished = [False, False]
    for turn in range(30):
        person = rng.randrange(2)
        if finished[person]:
            db.labels.undo(lab.id, item, lab.people[person].user_id)
        else:
            rate(
                lab,
                person,
                item,
                [rng.choice([-1, 0, 1, None]) for _ in range(rng.randint(1, 3))],
                f"k{turn}",
            )
        finished[person] = not finished[person]
        finishers = {lab.people[number].user_id for number in range(2) if finished[number]}
        by_step: dict[int, list[float | None]] = {}
        for label in db.export.stored(lab.id):
            if label.is_current and label.user_id in finishers:
                by_step.setdefault(label.record.step, []).append(label.record.value)
        ratings = db.reviews.ratings(lab.id)
        stored = [[value for value in unit if value == value] for unit in ratings.matrix.T.tolist()]
        assert list(map(sorted, stored)) == [
            sorted(value for value in values if value is not None) for _, values in sorted(by_step.items())
        ]
        disputed = [dispute.step for dispute in db.reviews.disagreements(lab.id)]
        assert disputed == [step for step, values in sorted(by_step.items()) if len(set(values)) > 1]


def test_traces_are_found_by_score_from_the_index(lab: Lab) -> None:
    low = [StepScores(trace_id=one.id, scorer="prm", scores=(0.1, 0.9, 0.5)) for one in lab.traces[:2]]
    high = [StepScores(trace_id=one.id, scorer="prm", scores=(0.9, 0.9, 0.8)) for one in lab.traces[2:]]
    lab.db.traces.add_scores(lab.id, [*low, *high])
    with statements(lab.db) as seen:
        rows = lab.db.traces.find(lab.id, RunFilter(scorer="prm", max_score=0.2))
    assert {row.id for row in rows} == {one.trace_id for one in low}
    (query,) = [one for one in seen if "step_scores" in one[0]]
    how = plan(lab.db, *query)
    if lab.db.backend == "sqlite":
        assert "COVERING INDEX ix_step_scores_project_id_scorer_lowest_trace_id" in how
        assert "CORRELATED" not in how
    else:  # which index depends on the sizes
        assert "Seq Scan" not in how


def test_facets_and_wrong_steps_come_from_indices(lab: Lab) -> None:
    rate(lab, 0, lab.next(0), [1, -1], "k")
    with statements(lab.db) as seen:
        lab.db.traces.facets(lab.id, RunFilter(error=(0, None)))
    how = plan(lab.db, *seen[-1])
    if lab.db.backend == "sqlite":
        assert "CORRELATED" not in how
        assert "COVERING INDEX ix_traces_project_id_kind" in how
    else:  # which index depends on the sizes
        assert "Seq Scan" not in how


@pytest.mark.parametrize("count", [1, 3])
def test_names_of_scorers_come_from_the_index(lab: Lab, count: int) -> None:
    for number in range(count):
        scores = [StepScores(trace_id=one.id, scorer=f"s{number}", scores=(0.5,) * 3) for one in lab.traces]
        lab.db.traces.add_scores(lab.id, scores)
    with statements(lab.db) as seen:
        assert lab.db.traces.scorers(lab.id) == [f"s{number}" for number in range(count)]
    assert "ix_step_scores" in plan(lab.db, *seen[-1])
    assert make_lab(lab.db, "empty").db.traces.scorers(lab.id + 1) == []


def test_progress_counts_labels_in_an_index(lab: Lab) -> None:
    item = lab.next(0)
    rate(lab, 0, item, [1, 1, 1], "k")
    with statements(lab.db) as seen:
        (row,) = lab.db.assignments.progress(lab.id).annotators
    assert row.labels == 3
    lab.db.labels.undo(lab.id, item, lab.people[0].user_id)
    assert [row.labels for row in lab.db.assignments.progress(lab.id).annotators] == [0]
    (query,) = [one for one in seen if "FROM labels" in one[0]]
    assert "ix_labels_project_id_user_id_is_current" in plan(lab.db, *query)


def more_traces(lab: Lab, count: int) -> list[Trace]:
    """More solutions of the first problem."""
    new = [
        lab.traces[0].model_copy(update={"id": f"more{len(lab.traces):03}-{number:03}", "sample": number})
        for number in range(count)
    ]
    assert lab.db.traces.add_traces(lab.id, new).new == count
    lab.traces += new
    return new


def enlarge(lab: Lab, count: int) -> None:
    """More solutions of the first problem, each an item that both people labelled, in disagreement."""
    new = more_traces(lab, count)
    scores = [StepScores(trace_id=one.id, scorer="prm", scores=(0.1, 0.9, 0.5)) for one in new]
    assert lab.db.traces.add_scores(lab.id, scores).new == count
    lab.items += lab.db.items.add(lab.id, [trace.id for trace in new])
    for person, values in enumerate(([1, 1, -1], [1, 1, 1])):
        while (item := lab.next(person)) is not None:
            rate(lab, person, item, values, f"k{item}")


class Client:
    """A program with a key."""

    def __init__(self, app: Any, key: str) -> None:
        self._client = TestClient(app, headers={"Authorization": f"Bearer {key}"}, follow_redirects=False)

    def get(self, path: str) -> None:
        answer = self._client.get(path, headers={"Accept": "application/json"})
        assert answer.status_code == 200, answer.text

    def post(self, path: str, form: dict[str, str]) -> None:
        answer = self._client.post(path, data=form)
        assert answer.status_code in (200, 303), answer.text


PAGES = ("agreement", "adjudicate", "runs", "runs?text=prm<0.5", "settings", "")


def test_pages_send_as_many_statements_for_more_labels(db: Database) -> None:
    lab = make_lab(db)
    key, _ = db.keys.create("k", role="admin")
    browser = Client(create_pages_app(db), key)
    counts: list[dict[str, int]] = []
    browser.get("/projects")  # the first request of a key notes that it is used
    for more in (2, 12):
        enlarge(lab, more)
        problem = f"runs?problem={lab.problems[0].id}"
        form = {"policy": "uncertainty", "random_share": "0", "known_share": "0"}
        counts.append({})
        with statements(db) as seen:
            version = db.projects.get(lab.id).version
            browser.post(f"/projects/{lab.id}/queue", {**form, "version": str(version)})
        counts[-1]["POST queue"] = len(seen)
        for page in (*PAGES, problem):
            path = f"/projects/{lab.id}/{page}".rstrip("/")
            with statements(db) as seen:
                browser.get(path)
            counts[-1][page] = len(seen)
    assert counts[0] == counts[1]
    assert max(counts[0].values()) < 25


def machine_labels(lab: Lab, message: str) -> Iterator[StepLabel]:
    """One for each step."""
    for trace in lab.traces:
        for step in range(3):
            yield StepLabel(
                trace_id=trace.id,
                step=step,
                kind="correctness",
                value=1,
                source="machine",
                evidence=Evidence(message=message),
                created=datetime(2031, 5, 4, tzinfo=UTC),  # so that the same again adds nothing
            )


def test_an_export_reads_a_page_at_a_time(db: Database) -> None:
    lab = make_lab(db)
    enlarge(lab, 5)
    trace_id = db.items.get(lab.id, lab.items[5]).trace_id
    db.reviews.adjudicate(lab.id, trace_id, lab.people[0].user_id, 2, -1)
    more_traces(lab, 120)
    count = 3 * 128
    assert db.labels.import_labels(lab.id, machine_labels(lab, "")).new == count
    for settled, expected in ((False, count + 8 * 6), (True, count + 8 * 6 - 2 + 1)):
        with statements(db) as seen:
            labels = db.export.labels(lab.id, settled=settled)
            before = len(seen)
            first = next(labels)
            assert len(seen) == before + 1  # the first 200, not the others
            whole = [first, *labels]
            assert len(seen) == before + 3
        assert len(whole) == expected
        assert [(one.trace_id, one.step) for one in whole] == sorted((o.trace_id, o.step) for o in whole)
        assert [one.source for one in whole].count("human:adjudicated") == settled


def test_the_memory_of_an_export_does_not_grow_with_it(db: Database) -> None:
    lab = make_lab(db)
    sizes, peaks = [], []
    for more in (120, 400):  # a page is being read while the one before is at hand
        more_traces(lab, more)
        db.labels.import_labels(lab.id, machine_labels(lab, "n" * 1000))
        list(db.export.labels(lab.id))
        tracemalloc.start()
        sizes.append(sum(len(one.model_dump_json()) for one in db.export.labels(lab.id)))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert sizes[1] > 4 * sizes[0]
    assert peaks[1] < 1.2 * peaks[0]


def test_labels_are_imported_by_the_chunk(lab: Lab) -> None:
    labels = [*machine_labels(lab, ""), *machine_labels(lab, "")]
    foreign = [
        labels[0].model_copy(update=change)
        for change in ({"trace_id": "gone"}, {"trace_id": "\x00"}, {"step": 3}, {"source": " "})
    ]
    with statements(lab.db) as seen:
        added = lab.db.labels.import_labels(lab.id, [*foreign, *labels])
    assert (added.new, added.same, added.refused) == (9, 9, 4)
    assert len({reason for _, reason in added.reasons}) == 4
    # the project, looked for and locked; traces, what is new, and the verdicts that it changes
    assert len(seen) == 2 + 4
    again = lab.db.labels.import_labels(lab.id, labels)
    assert (again.new, again.same) == (0, 18)


def test_odd_text_is_imported_as_it_is(db: Database) -> None:
    lab = make_lab(db)
    odd = "tab\t, newline\n, backslash \\N, quote ' and \U0001f600"
    label = next(machine_labels(lab, odd)).model_copy(update={"value": None, "reason": odd, "source": odd})
    assert db.labels.import_labels(lab.id, [label]).new == 1
    (stored,) = db.export.stored(lab.id)
    assert stored.record == label
    assert (stored.item_id, stored.user_id) == (None, None)
