"""Latency of an innocent client of a server while others attack it, one class of attack after another."""

from __future__ import annotations

import argparse
import gzip
import io
import json
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlencode

from benchmarks.common.figures import arguments, figure, write
from benchmarks.common.processes import serve, started
from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot import Problem, StepScores, Trace
from surefoot.segment import segment_trace
from surefoot.server import (
    Gateway,
    GatewaySettings,
    ServerSettings,
    create_app,
    create_pages_app,
    make_server,
    open_database,
)

MODULE = "benchmarks.fair_turns.attacks"
ATTACKERS = 8
QUICK_S, FULL_S = 6.0, 60.0
"""Seconds of each attack."""
PAUSE_S = 0.05
"""Between two innocent requests."""
LONG = 1_900_000
"""Characters of long texts: a body may have 2,000,000 bytes."""


@dataclass
class Site:
    """The server under attack."""

    port: int
    keys: dict[str, str]
    traces: dict[str, str]
    """Ids of traces whose pages are hard to render."""


@dataclass
class Attacker:
    """One attacker, or with the number -1 the innocent client."""

    site: Site
    number: int
    statuses: Counter[str] = field(default_factory=Counter)
    """How requests were answered; ``closed`` = the connection ended."""

    @property
    def address(self) -> str:
        """A separate address."""
        return f"127.0.0.{self.number + 2}"

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[str, str]:
        """Ask, and count the status; returns the text of the answer and the cookies that it set."""
        link = HTTPConnection("127.0.0.1", self.site.port, timeout=60, source_address=(self.address, 0))
        try:
            link.request(
                method, path, body, {name.replace("_", "-"): value for name, value in headers.items()}
            )
            answer = link.getresponse()
            text = answer.read().decode("utf-8", "replace")
            asked = answer.status == 503 and "Retry-After" in answer.headers
            self.statuses[f"{answer.status}{' later' if asked else ''}"] += 1
            return text, answer.headers.get("Set-Cookie", "")
        except (OSError, HTTPException):
            self.statuses["closed"] += 1
            return "", ""
        finally:
            link.close()

    def post(self, path: str, body: object, *, key: str | None = None) -> None:
        """A request with a body of JSON (or of bytes, as they are)."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        token = key or self.site.keys[f"hostile {self.number}"]
        self.ask("POST", path, data, Content_Type="application/json", Authorization=f"Bearer {token}")

    def done(self) -> Counter[str]:
        """How requests were answered since this was asked last."""
        found, self.statuses = self.statuses, Counter()
        return found


Work = Callable[[int], Counter[str]]
"""Acts once, by number, and says how requests were answered."""
Attack = Callable[[Attacker, int], None]
"""One round of an attack, by its number."""


def hard_answers(attacker: Attacker, number: int) -> None:
    """Sixteen sums that no algebra can reduce, in each answer."""
    attacker.post("/v1/chat/completions", chat(f"hostile {attacker.number} {number}"))


def page_of(name: str) -> Attack:
    """The page of one trace."""

    def render(attacker: Attacker, _: int) -> None:
        path = f"/projects/1/run?id={attacker.site.traces[name]}"
        attacker.ask("GET", path, Authorization=f"Bearer {attacker.site.keys['admin']}")

    return render


def stranger_uploads(attacker: Attacker, _: int) -> None:
    """30 MB without signing in."""
    kind = "multipart/form-data; boundary=b"
    attacker.ask("POST", "/projects/1/files", b"--b\r\n" + b"a" * 30_000_000, Content_Type=kind)


def upload_of(make: Callable[[], tuple[str, bytes]]) -> Attack:
    """A file that is small outside and large inside, uploaded with an administrator's key."""
    lock, made = threading.Lock(), list[bytes]()

    def upload(attacker: Attacker, _: int) -> None:
        with lock:
            if not made:
                name, content = make()
                field_ = f'Content-Disposition: form-data; name="traces"; filename="{name}"'
                made.append(b"--b\r\n%s\r\n\r\n%s\r\n--b--\r\n" % (field_.encode(), content))
        kind, key = "multipart/form-data; boundary=b", attacker.site.keys["admin"]
        attacker.ask("POST", "/projects/1/files", made[0], Content_Type=kind, Authorization=f"Bearer {key}")

    return upload


def parquet_bomb() -> tuple[str, bytes]:
    """One text, repeated to gigabytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, out = 1000, io.BytesIO()
    text = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["a\n" * 2_000_000]))
    table = pa.table({"problem_id": ["p"] * rows, "sample": list(range(rows)), "text": text})
    pq.write_table(table, out, compression="zstd")
    return "bomb.parquet", out.getvalue()


def gzip_bomb() -> tuple[str, bytes]:
    """One line of 500 MB."""
    out = io.BytesIO()
    with gzip.open(out, "wb", compresslevel=1) as packed:
        packed.write(b'{"text": "')
        for _ in range(500):
            packed.write(b"a" * 1_000_000)
    return "bomb.jsonl.gz", out.getvalue()


def wrong_links(attacker: Attacker, number: int) -> None:
    """Guesses of the administrator's personal link, as a page of the server sends them."""
    headers = {"Content_Type": "application/x-www-form-urlencoded", "Sec_Fetch_Site": "same-origin"}
    attacker.ask("POST", "/sign-in", urlencode({"link": f"guess{number}"}).encode(), **headers)


HOSTILE_TEXTS = ("\\[", "$", "```\n", "a. ", "\\begin{a}", "\n \n", "wait, ", "  \n", "step 1", "{", "．．")


def segmentation(attacker: Attacker, number: int) -> None:
    """Two million characters to be cut into steps."""
    piece = HOSTILE_TEXTS[(number + attacker.number) % len(HOSTILE_TEXTS)]
    text = piece * (LONG // len(json.dumps(piece)))
    attacker.post("/v1/score", {"items": [{"problem": "p", "solution": text}]})


def score_batches(attacker: Attacker, number: int) -> None:
    """As many solutions with as many steps as a body holds."""
    items = [{"problem": f"{number}", "steps": ["a\n"] * 700} for _ in range(256)]
    attacker.post("/v1/score", {"items": items})


def deep_json(attacker: Attacker, _: int) -> None:
    """A body that is nested 900,000 deep."""
    attacker.post("/v1/score", b'{"items": ' + b"[" * 900_000 + b"]" * 900_000 + b"}")


ATTACKS: dict[str, Attack | None] = {
    "none": None,
    "hard answers": hard_answers,
    "a page of 640,000 openings": page_of("openings"),
    "a page of 2,000 long steps": page_of("steps"),
    "uploads of strangers": stranger_uploads,
    "Parquet bombs": upload_of(parquet_bomb),
    "gzip bombs": upload_of(gzip_bomb),
    "wrong links": wrong_links,
    "texts that are hard to cut": segmentation,
    "long batches of scores": score_batches,
    "deep JSON": deep_json,
}


def chat(text: str) -> dict[str, object]:
    """Body of a chat request."""
    return {"model": "surefoot", "messages": [{"role": "user", "content": text}]}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the innocent client saw, alone or next to an attack."""

    name: str
    times: list[float]
    """Seconds, ascending."""
    innocent: Counter[str]
    attackers: Counter[str]

    def percentile(self, share: int) -> float:
        """Of the innocent times."""
        return self.times[min(len(self.times) - 1, len(self.times) * share // 100)]

    @property
    def failures(self) -> int:
        """Answers that say that the server failed; 503 with ``Retry-After`` is a refusal."""
        both = self.innocent + self.attackers
        return sum(
            count for status, count in both.items() if status.startswith("5") and "later" not in status
        )


def measure(name: str, ask: Work, attacks: Sequence[Work], seconds: float, pause_s: float) -> Outcome:
    """Ask one thing after another, each attack working in a thread of its own."""
    stop, tried = threading.Event(), [Counter[str]() for _ in attacks]

    def work(attack: Work, counts: Counter[str]) -> None:
        number = 0
        while not stop.is_set():
            counts.update(attack(number))
            number += 1

    threads = [
        threading.Thread(target=work, args=pair, daemon=True) for pair in zip(attacks, tried, strict=True)
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.3 if attacks else 0.0)
    times, statuses, number = [], Counter[str](), 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begin = time.monotonic()
        statuses.update(ask(number))
        times.append(time.monotonic() - begin)
        number += 1
        time.sleep(pause_s)
    stop.set()
    for thread in threads:
        thread.join(90)
    attackers = sum(tried, Counter[str]())
    return Outcome(name=name, times=sorted(times), innocent=statuses, attackers=attackers)


def working(attacker: Attacker, attack: Attack) -> Work:
    """An attack by one attacker."""

    def work(number: int) -> Counter[str]:
        attack(attacker, number)
        return attacker.done()

    return work


class FreeScorer:
    """A reward model that costs nothing."""

    name = "free"

    def score_traces(self, items):  # noqa: ANN001, ANN201
        """The same score for every step."""
        return [
            StepScores(trace_id=item.trace.id, scorer=self.name, scores=(0.9,) * len(item.trace.steps))
            for item in items
        ]


def scripted(request, sample):  # noqa: ANN001, ANN201
    """Sixteen sums that no algebra can reduce, or two answers that are equal."""
    prompt = str(request.prompt)
    number = random.Random(prompt).randrange(10**6)
    if "hostile" in prompt:
        return rf"So \boxed{{\sum_{{k=1}}^{{10^{{100}}}} k^{{k+{sample}i+{number}}}}}"
    return rf"So \boxed{{{(f'x+{number}', f'{number}+x')[sample % 2]}}}"


def run_server(folder: Path) -> None:
    """Serve on a free port, which is printed with keys and traces, until standard input ends."""
    settings = ServerSettings(port=0, require_key=True)
    texts = {"openings": r"\[" * 640_000, "steps": ("x^2 is $x^2$, " * 60 + "\n\n") * 2000}
    with open_database(folder / "attacked.db") as db:
        keys = {name: db.keys.create(name, "client")[0] for name in ("innocent", *hostile_names())}
        db.users.new_link(db.users.create("admin", "admin").id)
        keys["admin"], _ = db.keys.create("admin", "admin")
        project = db.projects.create("attacked").id
        problem = Problem(text="p")
        traces = {
            name: segment_trace(Trace(problem_id=problem.id, text=text)) for name, text in texts.items()
        }
        db.traces.add_problems(project, [problem])
        db.traces.add_traces(project, traces.values())
        options = GatewaySettings(strategy="majority:n=16")
        gateway = Gateway(ScriptedPolicy(scripted), FreeScorer(), settings=options, log=db.gateway)
        app = create_app(settings, gateway=gateway, pages=create_pages_app(db), keys=db.keys)
        server = make_server(app, settings)

        names = {name: trace.id for name, trace in traces.items()}
        serve(server, lambda port: json.dumps({"port": port, "keys": keys, "traces": names}))


def hostile_names() -> list[str]:
    """Names of the attackers' keys."""
    return [f"hostile {number}" for number in range(ATTACKERS)]


@contextmanager
def serving(module: str = MODULE) -> Iterator[Site]:
    """The server of ``module``, which takes ``--serve FOLDER``, in a separate process."""
    with tempfile.TemporaryDirectory() as folder, started(module, "--serve", folder) as (_, line):
        yield Site(**json.loads(line))


def row(outcome: Outcome) -> str:
    """One line of the table."""
    counts = outcome.attackers
    answered = ", ".join(f"{count} × {status}" for status, count in counts.most_common()) or "–"
    p50, p99 = (f"{outcome.percentile(share):.3f} s" for share in (50, 99))
    fields = (outcome.name, f"{counts.total():,}", answered, p50, p99, len(outcome.times), outcome.failures)
    return f"| {' | '.join(map(str, fields))} |"


def main(given: list[str] | None = None) -> list[Outcome]:
    """Measure and print."""
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="+", choices=list(ATTACKS), help="these classes of attack alone")
    parser.add_argument("--seconds", type=float, help="of each attack")
    parser.add_argument("--attackers", type=int, default=ATTACKERS, help=f"at most {ATTACKERS}")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    if options.serve:
        run_server(options.serve)
        return []
    seconds = options.seconds or (QUICK_S if options.quick else FULL_S)
    outcomes = []
    print("| attack | requests | answered | p50 | p99 | innocent requests | 5xx |")
    print("|---|---|---|---|---|---|---|")
    with serving() as site:
        innocent = Attacker(site, -1)

        def ask(number: int) -> Counter[str]:
            text = chat(f"innocent {number} {time.monotonic()}")
            innocent.post("/v1/chat/completions", text, key=site.keys["innocent"])
            return innocent.done()

        for number in range(3):  # starts the workers
            ask(number)
        for name, attack in ATTACKS.items():
            if options.only and name not in options.only:
                continue
            numbers = range(options.attackers if attack else 0)
            attacks = [working(Attacker(site, number), attack) for number in numbers if attack]
            outcomes.append(measure(name, ask, attacks, seconds, PAUSE_S))
            print(row(outcomes[-1]), flush=True)
    figures = [
        figure(f"p{share}, {one.name}", one.percentile(share), "s") for one in outcomes for share in (50, 99)
    ]
    write(options, figures, attackers=options.attackers, seconds=seconds)
    return outcomes


if __name__ == "__main__":
    main()
