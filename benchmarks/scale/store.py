"""How the database of labels and its pages scale: time, statements and memory of each route."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import Engine, MetaData, Table, create_engine, event, text

from benchmarks.common.figures import arguments, figure, left_out, write
from surefoot import Problem, Step, StepLabel, StepScores, Trace
from surefoot.records import Evidence
from surefoot.server import Database, Protocol, create_pages_app, open_database

STEPS = 15
ANNOTATORS = 2
PEOPLE = 6
SHARES = (0.7, 0.1, 0.1, 0.1)
AT = 1_924_992_000_000_000
"""Microseconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class Route:
    """One route on one database."""

    backend: str
    route: str
    milliseconds: float
    cpu: float
    statements: int
    megabytes: float
    sent_bytes: int


def fill(db: Database, engine: Engine, labels: int, rng: random.Random) -> list[int]:
    """Projects with ``labels`` in all; their ids, the largest first."""
    users = [db.users.create(f"person {number}").id for number in range(PEOPLE)]
    projects = [
        db.projects.create(f"project {n}", protocol=Protocol(annotators=ANNOTATORS)).id
        for n in range(len(SHARES))
    ]
    for project in projects:
        for user in users:
            db.projects.set_member(project, user, "annotator")
    tables = MetaData()
    tables.reflect(engine)
    item, submission = 0, 0
    for project, share in zip(projects, SHARES, strict=True):
        count = round(labels * share / (STEPS * ANNOTATORS * 0.9))
        while count:
            batch = min(count, 2_000)
            count -= batch
            rows: dict[str, list[dict[str, Any]]] = {}
            for _ in range(batch):
                item += 1
                submission = _add_item(rows, rng, project, item, submission, users)
            for name in ("problems", "traces", "trace_search", "step_scores", "items", "assignments"):
                _put(engine, tables.tables[name], rows[name])
            _put(engine, tables.tables["labels"], rows.get("labels", []))
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            for name in ("items", "assignments", "labels"):
                serial = f"pg_get_serial_sequence('{name}', 'id')"
                connection.execute(text(f"SELECT setval({serial}, (SELECT max(id) FROM {name}))"))  # noqa: S608
        connection.execute(text("ANALYZE"))
    return projects


def _add_item(
    rows: dict[str, list[dict[str, Any]]],
    rng: random.Random,
    project: int,
    item: int,
    submission: int,
    users: Sequence[int],
) -> int:
    """Rows of one item with its problem, trace, scores and labels; the number of the last submission."""

    def add(name: str, **row: Any) -> None:
        rows.setdefault(name, []).append(row)

    problem = Problem(id=f"q{item:08}", text=f"What is {item} + {item}?", answer=str(2 * item))
    words = [f"Step {step}: add the next digit of {item}.\n" for step in range(STEPS)]
    ends = [sum(map(len, words[: step + 1])) for step in range(STEPS)]
    steps = tuple(Step(start=s, end=e) for s, e in zip([0, *ends[:-1]], ends, strict=True))
    trace = Trace(
        id=f"t{rng.getrandbits(40):010x}-{item}",
        problem_id=problem.id,
        text="".join(words),
        steps=steps,
        policy="p",
        answer="4",
        outcome=rng.random() < 0.5,
    )
    at = {"project_id": project, "created": AT}
    add("problems", id=problem.id, text=problem.text, payload=problem.model_dump_json(), **at)
    payload = trace.model_dump_json()
    add("traces", id=trace.id, problem_id=problem.id, policy="p", outcome=trace.outcome, steps=STEPS, payload=payload, title=problem.text, kind="solution", first_error=None, tokens=0, outcome_word="", **at)  # fmt: skip # noqa: E501
    add("trace_search", project_id=project, trace_id=trace.id, words=f"{problem.text} {trace.text}")
    for scorer in ("prm", "orm"):
        scores = tuple(round(rng.random() ** (1 / STEPS), 4) for _ in range(STEPS))
        record = StepScores(trace_id=trace.id, scorer=scorer, scores=scores)
        add("step_scores", trace_id=trace.id, scorer=scorer, lowest=min(scores), payload=record.model_dump_json(), **at)  # fmt: skip # noqa: E501
    digest = f"{item:032x}"
    add("items", id=item, problem_id=problem.id, trace_id=trace.id, has_known=False, known="{}", digest=digest, **at)  # fmt: skip # noqa: E501
    if rng.random() < 0.1:
        return submission
    truth = rng.randrange(STEPS)
    rows["traces"][-1]["first_error"] = truth
    for user in rng.sample(users, ANNOTATORS):
        own = {"project_id": project, "item_id": item, "user_id": user, "created": AT}
        add("assignments", id=len(rows.get("assignments", ())) + item * ANNOTATORS, state="done", chosen_by="order", leased_until=AT, reason=None, milliseconds=1000, finished=AT, **own)  # fmt: skip # noqa: E501
        undone = rng.random() < 0.02
        for turn in range(2 if undone else 1):
            submission += 1
            counts = not undone or turn == 1
            for step in range(STEPS):
                value = -1 if step >= truth and rng.random() < 0.9 else 1
                label = StepLabel(
                    trace_id=trace.id,
                    step=step,
                    kind="correctness",
                    value=value,
                    source="human",
                    evidence=Evidence(rater=f"rater-{user}"),
                )
                add("labels", trace_id=trace.id, step=step, key=f"k{submission}", source="human", kind="correctness", value=value, payload=label.model_dump_json(), digest=None, milliseconds=100, chosen_by="order", is_current=counts, **own)  # fmt: skip # noqa: E501
    return submission


def _put(engine: Engine, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """Rows with the columns that ``table`` has."""
    if not rows:
        return
    names = [name for name in rows[0] if name in table.c]
    if table.name == "assignments":
        names.remove("id")
    if engine.dialect.name == "postgresql" and table.name == "trace_search":
        words = text(
            "INSERT INTO trace_search VALUES (:project_id, :trace_id, to_tsvector('simple', :words))"
        )
        with engine.begin() as connection:
            connection.execute(words, rows)
        return
    if engine.dialect.name == "postgresql":
        raw = engine.raw_connection()
        columns = ", ".join(f'"{name}"' for name in names)
        with raw.cursor() as cursor, cursor.copy(f"COPY {table.name} ({columns}) FROM STDIN") as copy:  # type: ignore[attr-defined]
            for row in rows:
                copy.write_row([row[name] for name in names])
        raw.commit()
        raw.close()
        return
    with engine.begin() as connection:
        connection.execute(table.insert(), [{name: row[name] for name in names} for row in rows])


def routes(project: int, trace: str) -> list[str]:
    """What is asked, with GET."""
    base = f"/projects/{project}"
    return [
        "/projects.json",
        f"{base}.json",
        f"{base}/agreement.json",
        f"{base}/adjudicate.json",
        f"{base}/runs.json",
        f"{base}/runs.json?" + urlencode({"text": "prm<0.5"}),
        f"{base}/runs.json?" + urlencode({"text": "prm>0.5"}),
        f"{base}/runs.json?" + urlencode({"text": "error:any outcome:wrong"}),
        f"{base}/runs.json?" + urlencode({"text": "sort:longest", "page": 40}),
        f"{base}/runs.json?" + urlencode({"text": "999 999"}),
        f"{base}/run.json?" + urlencode({"id": trace}),
        f"{base}/settings.json",
        *(f"{base}/export/{kind}.jsonl" for kind in ("traces", "scores", "labels")),
        f"{base}/export/labels.jsonl?settled=1",
    ]


def ask(app: Any, key: str, path: str, method: str = "GET", body: bytes = b"") -> tuple[int, int]:
    """Status and bytes of an answer, whose body is thrown away as it comes."""
    where, _, query = path.partition("?")
    headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {key}".encode())]
    if body:
        headers += [(b"content-type", b"application/x-www-form-urlencoded")]
        headers += [(b"content-length", str(len(body)).encode())]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": where,
        "raw_path": where.encode(),
        "query_string": query.encode(),
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
        "root_path": "",
    }
    status, size = 0, 0

    async def run() -> None:
        done = asyncio.Event()
        requests = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> dict[str, Any]:
            one = next(requests, None)
            if one is None:
                await done.wait()
                return {"type": "http.disconnect"}
            return one

        async def send(message: dict[str, Any]) -> None:
            nonlocal status, size
            status = message.get("status", status)
            size += len(message.get("body", b""))

        await app(scope, receive, send)
        done.set()

    asyncio.run(run())
    return status, size


def measure(
    db: Database, projects: Sequence[int], user: int, statements: list[str], times: int, only: str
) -> Iterator[Route]:
    """Each route of the largest project."""
    app = create_pages_app(db, rng=random.Random(0))
    key, _ = db.keys.create("bench", role="admin")
    trace = db.traces.find(projects[0], limit=1)[0]
    for path in routes(projects[0], trace.id):
        if only in path:
            yield _asked(db.backend, path, statements, times, lambda path=path: ask(app, key, path))
    for name, action in (
        ("assignments.next", lambda: db.assignments.next(projects[0], user, random.Random(0))),
        (
            "POST queue, uncertainty",
            lambda: ask(
                app,
                key,
                f"/projects/{projects[0]}/queue",
                "POST",
                urlencode(
                    {
                        "policy": "uncertainty",
                        "version": db.projects.get(projects[0]).version,
                        "random_share": "0",
                        "known_share": "0",
                    }
                ).encode(),
            ),
        ),
    ):
        if only in name:
            yield _asked(db.backend, name, statements, times, action)


def _asked(backend: str, name: str, statements: list[str], times: int, action: Any) -> Route:
    taken, cpu, grown, sent, count = [], [], 0.0, 0, 0
    for turn in range(times):
        statements.clear()
        before = _resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        start, cpu_start = time.perf_counter(), time.process_time() + _postgresql_s()
        answer = action()
        taken.append(time.perf_counter() - start)
        cpu.append(time.process_time() + _postgresql_s() - cpu_start)
        if isinstance(answer, tuple):
            status, sent = answer
            if status not in (200, 303):
                raise RuntimeError(f"{name}: status {status}")
        if turn == 0:
            grown, count = (_resident("VmHWM") - before) / 1024, len(statements)
        if taken[0] > 20:
            break
    return Route(
        backend=backend,
        route=name,
        milliseconds=1000 * statistics.median(taken),
        cpu=1000 * statistics.quantiles(cpu, n=20, method="inclusive")[-1] if len(cpu) > 1 else 1000 * cpu[0],
        statements=count,
        megabytes=grown,
        sent_bytes=sent,
    )


def _postgresql_s() -> float:
    """CPU seconds so far of all processes of PostgreSQL on this machine, to a hundredth."""
    stats = [file.read_text().rpartition(")") for file in Path("/proc").glob("[0-9]*/stat")]
    ticks = [rest.split()[11:13] for begin, _, rest in stats if begin.endswith("(postgres")]
    return sum(int(user) + int(system) for user, system in ticks) / os.sysconf("SC_CLK_TCK")


def _resident(name: str) -> int:
    """KiB, of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def databases(folder: Path, postgresql: str | None) -> Iterable[str]:
    """Their URLs."""
    yield f"sqlite:///{folder}/store.db"
    if postgresql is None:
        left_out("PostgreSQL", "give an empty database, --postgresql postgresql://user@host/name")
    else:
        yield postgresql


def main() -> None:
    """Command line."""
    parser = arguments(__doc__, "100 thousand labels, not a million")
    parser.add_argument("--labels", type=int, help="another number of labels")
    parser.add_argument("--times", type=int, default=3, help="requests for each route")
    parser.add_argument("--only", default="", help="routes that contain these words")
    parser.add_argument("--postgresql", metavar="URL", help="an empty database, which is filled")
    parser.add_argument("--folder", type=Path, help="where the SQLite file stays; by default it is deleted")
    options = parser.parse_args()
    labels = options.labels or (100_000 if options.quick else 1_000_000)
    figures: list[Route] = []
    with tempfile.TemporaryDirectory(prefix="surefoot-scale-") as temporary:
        for url in databases(options.folder or Path(temporary), options.postgresql):
            with open_database(url) as db:
                engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
                start = time.perf_counter()
                existing = [project.id for project in db.projects.list()]
                projects = existing or fill(db, engine, labels, random.Random(0))
                engine.dispose()
                print(
                    f"{db.backend}: {labels} labels, filled in {time.perf_counter() - start:.0f} s",
                    flush=True,
                )
                statements: list[str] = []

                @event.listens_for(Engine, "before_cursor_execute")
                def note(_c: Any, _cursor: Any, sql: str, *_: Any, seen: list[str] = statements) -> None:
                    seen.extend([] if sql.startswith("BEGIN") else [sql])

                user = db.users.by_name("person 0").id
                for one in measure(db, projects, user, statements, options.times, options.only):
                    figures.append(one)
                    print(
                        f"{one.backend:10} {one.milliseconds:10.1f} ms {one.cpu:10.1f} ms cpu "
                        f"{one.statements:6} statements {one.megabytes:8.1f} MB  {one.sent_bytes:11} bytes  "
                        f"{one.route}",
                        flush=True,
                    )
                event.remove(Engine, "before_cursor_execute", note)
    rows = [
        figure(f"{one.backend} {one.route} {what}", value, unit)
        for one in figures
        for what, value, unit in (
            ("time", one.milliseconds, "ms"),
            ("cpu", one.cpu, "ms"),
            ("statements", one.statements, "statements"),
            ("memory", one.megabytes, "MB"),
        )
    ]
    write(options, rows, labels=labels)


if __name__ == "__main__":
    main()
