"""A small project in a database, people with personal links, and a browser without a script."""

from __future__ import annotations

import html
import json
import random
import re
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from surefoot.records import Message, Problem, Reasoning, Step, StepScores, ToolCall, Trace
from surefoot.segment import segment_trace
from surefoot.server import Database, PageSettings, Protocol, create_pages_app, open_database
from surefoot.server.store import queue
from surefoot.server.store.accounts import Role, User, locked_project, token_hash

SCRIPT = "<script>document.title='owned'</script>"


def text_trace(problem: Problem, *steps: str, **fields: Any) -> Trace:
    """A trace whose text is the steps joined by line ends, which belong to the step before."""
    lines = [f"{step}\n" for step in steps[:-1]] + [steps[-1]]
    spans, at = [], 0
    for line in lines:
        spans.append(Step(start=at, end=at + len(line)))
        at += len(line)
    return Trace(problem_id=problem.id, text="".join(lines), steps=tuple(spans), **fields)


def agent_trace(problem: Problem) -> Trace:
    """An agent run with reasoning, a tool call, its result and an answer; a message is a step."""
    return segment_trace(
        Trace(
            problem_id=problem.id,
            messages=(
                Message(role="user", content=problem.text),
                Message(
                    role="assistant",
                    content="I shall look it up.",
                    reasoning=Reasoning(text="A capital.\n\nWait, France or Paris?"),
                    tool_calls=(ToolCall(id="1", name="search", arguments='{"query": "capital of France"}'),),
                ),
                Message(role="tool", content="Paris is the capital of France.", tool_call_id="1"),
                Message(
                    role="assistant",
                    content="The capital is Paris.",
                    reasoning=Reasoning(visibility="withheld", tokens=40),
                ),
            ),
            outcome=True,
        ),
        granularity="message",
    )


def link_of(name: str) -> str:
    """The personal link of a person, the same in every room."""
    return f"/sign-in#link-of-{name.encode().hex()}"


def add_person(db: Database, name: str, role: Role) -> User:
    """An account whose personal link is ``link_of(name)``."""
    user = db.users.create(name, role)
    know_link(db, user)
    return user


def know_link(db: Database, user: User) -> None:
    """Make ``link_of`` the personal link of an account."""
    db.users._set(user.id, link_hash=token_hash(link_of(user.name).partition("#")[2]))


@dataclass(kw_only=True)
class Room:
    """The database with its people (``admin``, ``ann``, ``ben``, ``eve``) and one project."""

    db: Database
    app: Any
    project: int
    ids: dict[str, int]

    def browser(self, name: str | None = None) -> Browser:
        """A browser of its own; signed in if a name is given."""
        found = Browser(TestClient(self.app, base_url="http://testserver"))
        if name is not None:
            answer = found.sign_in(name)
            assert answer.status_code == 303, answer.text
        return found


def hidden_fields(page: str, action: str) -> dict[str, str]:
    """Hidden fields of the first form on a page whose action ends in ``action``."""
    forms = re.findall(r"<form.*?</form>", page, re.DOTALL)
    form = next(one for one in forms if re.search(rf'action="[^"]*{re.escape(action)}"', one))
    return {
        match["name"]: html.unescape(match["value"])
        for match in re.finditer(
            r'<input type="hidden" name="(?P<name>[^"]+)" value="(?P<value>[^"]*)"', form
        )
    }


class Browser:
    """Sends forms as a browser without a script does: with every hidden field, and the page's origin."""

    def __init__(self, client: TestClient) -> None:
        self.client = client
        self.client.follow_redirects = False
        self.client.headers["origin"] = str(client.base_url)

    def get(self, path: str, **kwargs: Any) -> Any:
        return self.client.get(path, **kwargs)

    def json(self, path: str) -> Any:
        answer = self.get(path, headers={"Accept": "application/json"})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def follow(self, path: str) -> Any:
        return self.client.get(path, follow_redirects=True)

    def fields(self, path: str, action: str | None = None) -> dict[str, str]:
        """Hidden fields of the first form on a page whose action ends in ``action``."""
        return hidden_fields(self.follow(path).text, action or path)

    def send(
        self,
        path: str,
        action: str | None = None,
        *,
        page: str | None = None,
        headers: dict[str, str] | None = None,
        **fields: Any,
    ) -> Any:
        """Fill in the form for ``action`` on ``page`` and send it."""
        to = action or path
        filled = {**self.fields(page or path, to), **fields}
        return self.client.post(to, data=filled, headers=headers)

    def sign_in(self, name: str, link: str | None = None, **fields: Any) -> Any:
        return self.send("/sign-in", link=link or link_of(name), **fields)


@cache
def _empty_database() -> Path:
    """A migrated file to copy: migrating costs more than most tests."""
    path = Path(tempfile.mkdtemp(prefix="surefoot-tests-")) / "empty.db"
    open_database(path).close()
    return path


def open_room(
    folder: Path,
    *,
    protocol: Protocol | None = None,
    settings: PageSettings | None = None,
    wrong: bool = True,
    url: str | None = None,
) -> Room:
    """A project with three solutions of two problems, its members, and one user who is none (``eve``).

    It is in the file ``labels.db`` of ``folder``, or in the database at ``url``.
    """
    if url is None:
        shutil.copy(_empty_database(), folder / "labels.db")
    db = open_database(url or folder / "labels.db")
    ids = {
        name: add_person(db, name, role).id
        for name, role in (
            ("admin", "admin"),
            ("ann", "annotator"),
            ("ben", "annotator"),
            ("eve", "annotator"),
        )
    }
    project = db.projects.create("Fractions", protocol=protocol or Protocol(annotators=2, show_answer=True))
    db.projects.set_member(project.id, ids["admin"], "admin")
    for name in ("ann", "ben"):
        db.projects.set_member(project.id, ids[name], "annotator")
    if wrong:
        add_solutions(db, project.id)
    app = create_pages_app(db, settings, rng=random.Random(0))
    return Room(db=db, app=app, project=project.id, ids=ids)


def audited(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """What the log says that people did, in order."""
    return [json.loads(one.getMessage()) for one in caplog.records if one.name == "surefoot.server.audit"]


def lease(db: Database, project_id: int, item_id: int, user_id: int) -> None:
    """Lease a certain item to a user, past the queue."""
    known = db.items.get(project_id, item_id).known
    connections = db.assignments._connections
    with connections.write() as connection:
        project = locked_project(connection, project_id)
        chosen_by = "known" if known else "order"
        queue.lease(connection, project, item_id, chosen_by, user_id, connections.clock())


def assignments_of(db: Database, project_id: int, user_id: int) -> list[queue.Assignment]:
    """A user's assignments, newest first."""
    of = queue.assignments.c
    query = queue.assignments.select().where(of.project_id == project_id, of.user_id == user_id)
    return db.assignments._rows(queue.Assignment, query.order_by(of.id.desc()))


def priorities_of(db: Database, project_id: int) -> dict[int, float]:
    """The priorities of items that have one."""
    of = queue.items.c
    query = queue.items.select().where(of.project_id == project_id, of.priority.is_not(None))
    return {row.id: row.priority for row in db.items._all(query)}


def solutions() -> tuple[list[Problem], list[Trace]]:
    """Two problems and three solutions; the second holds a script, the third is an agent's run."""
    half = Problem(text=r"What is $\frac{1}{2} + \frac{1}{4}$?", answer=r"$\frac{3}{4}$")
    capital = Problem(text="What is the capital of France?", answer="Paris")
    traces = [
        text_trace(
            half,
            r"Write $\frac{1}{2} = \frac{2}{4}$.",
            r"So the sum is \(\frac{2}{4} + \frac{1}{4} = \frac{3}{4}\).",
            r"The answer is $\boxed{\frac{3}{4}}$.",
            outcome=True,
            policy="one",
        ),
        text_trace(
            half,
            f"Add the parts {SCRIPT} one by one.",
            r"$1 + 1 = 2$ and $2 + 4 = 6$, so it is $\frac{2}{6}$.",
            "The answer is 1/3.",
            outcome=False,
            policy="two",
        ),
        agent_trace(capital),
    ]
    return [half, capital], traces


def add_solutions(db: Database, project: int) -> list[int]:
    """Put ``solutions`` and the scores of two scorers into a project; its items."""
    problems, traces = solutions()
    db.traces.add_problems(project, problems)
    db.traces.add_traces(project, traces)
    rows = {
        "first": [(0.9, 0.8, 0.9), (0.7, 0.9, 0.8), (0.5, 0.5)],
        "second": [(0.9, 0.9, 0.9), (0.1, 0.9, 0.2), (0.5, 0.5)],
    }
    for scorer, scores in rows.items():
        db.traces.add_scores(
            project,
            [StepScores(trace_id=t.id, scorer=scorer, scores=s) for t, s in zip(traces, scores, strict=True)],
        )
    return db.items.add(project, [trace.id for trace in traces])
