"""The same store tests on SQLite and on PostgreSQL, and a project that is ready to be labelled."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest
from postgres_server import postgres_programs, running_postgres

from surefoot.records import Problem, Step, Trace
from surefoot.server import Database, Member, Project, Protocol, open_database


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.at = datetime(2031, 5, 4, 12, 0, 0, 123456, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.at

    def forward(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


@pytest.fixture(scope="session")
def postgres_urls() -> Iterator[Iterator[str]]:
    """URLs of new, migrated databases on one server."""
    programs = postgres_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    psycopg = pytest.importorskip("psycopg", reason="the PostgreSQL driver psycopg is not installed")
    with running_postgres(programs) as server:
        admin = server.url("postgres")

        def urls() -> Iterator[str]:
            for number in range(10_000):
                name = f"t{number}"
                with psycopg.connect(admin, autocommit=True) as connection:
                    # one at a time: hundreds of them on disk take longer to delete than the tests to run
                    connection.execute(f"DROP DATABASE IF EXISTS t{max(number - 1, 0)} WITH (FORCE)")
                    connection.execute(
                        f"CREATE DATABASE {name} TEMPLATE {'ready' if number else 'template0'}"
                    )
                if not number:
                    open_database(server.url(name)).close()
                    with psycopg.connect(admin, autocommit=True) as connection:
                        connection.execute(f"CREATE DATABASE ready TEMPLATE {name}")
                yield server.url(name)

        yield urls()


@pytest.fixture(scope="session")
def sqlite_ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file to copy."""
    path = tmp_path_factory.mktemp("sqlite") / "ready.db"
    open_database(path).close()
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new, migrated database of each kind."""
    if request.param == "postgresql":
        return str(next(request.getfixturevalue("postgres_urls")))
    shutil.copy(request.getfixturevalue("sqlite_ready"), tmp_path / "store.db")
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def db(url: str, clock: Clock) -> Iterator[Database]:
    with open_database(url, clock=clock) as opened:
        yield opened


@dataclass
class Lab:
    """A project with solutions of three steps each, and two annotators."""

    db: Database
    project: Project
    people: list[Member]
    problems: list[Problem]
    traces: list[Trace]
    items: list[int] = field(default_factory=list)
    rng: Random = field(default_factory=lambda: Random(0))

    @property
    def id(self) -> int:
        return self.project.id

    def set(self, **values: object) -> None:
        """Change the protocol."""
        protocol = self.project.protocol.model_copy(update=values)
        self.project = self.db.projects.update(self.id, self.project.version, protocol=protocol)

    def next(self, person: int = 0) -> int | None:
        """Number of the item that the annotator is given."""
        offer = self.db.assignments.next(self.id, self.people[person].user_id, self.rng)
        return offer.item_id if offer else None


def make_lab(db: Database, name: str = "lab", items: int = 3, annotators: int = 2) -> Lab:
    """Used by the tests of one project, and twice by those of isolation."""
    project = db.projects.create(name, protocol=Protocol(annotators=annotators))
    people = []
    for number in range(max(annotators, 2)):
        user = db.users.create(f"{name} annotator {number}")
        people.append(db.projects.set_member(project.id, user.id, "annotator"))
    problems = [Problem(text=f"What is {n} + {n}?", answer=str(2 * n), meta={"n": n}) for n in range(items)]
    traces = [
        Trace(
            problem_id=problem.id,
            text="one\ntwo\nthree\n",
            steps=(Step(start=0, end=4), Step(start=4, end=8), Step(start=8, end=14)),
            answer="4",
            outcome=False,
            policy="p",
            meta={"secret": True},
        )
        for problem in problems
    ]
    assert db.traces.add_problems(project.id, problems).new == items
    assert db.traces.add_traces(project.id, traces).new == items
    lab = Lab(db=db, project=project, people=people, problems=problems, traces=traces)
    lab.items = db.items.add(project.id, [trace.id for trace in traces])
    return lab


@pytest.fixture
def lab(db: Database) -> Lab:
    return make_lab(db)
