"""Latency of an innocent client of a server while others attack it, one class of attack after another.

The innocent client has its own key and asks for a majority of 16 answers, of two forms that only algebra
shows to be equal. Policy and reward model cost nothing, so the times measure the server, which
runs in a separate process, with its pages. Attackers come from other addresses of the loopback network
(127.0.0.2 and following, which Linux has), with keys of their own where the attack needs one. The last column
counts answers of 5xx but 503 with ``Retry-After``, which is a refusal.

``python -m benchmarks.fair_turns.attacks [--quick] [--only NAME ...] [--attackers N] [--json FILE]``
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlencode

from surefoot import Problem, StepScores, Trace
from surefoot.policies import ScriptedPolicy
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
    """One attacker, who works until ``stop`` is set."""

    site: Site
    number: int
    stop: threading.Event
    statuses: Counter[str] = field(default_factory=Counter)
    """How requests were answered; ``closed`` = the connection ended, ``open`` = it was held."""

    @property
    def address(self) -> str:
        """A separate address."""
        return f"127.0.0.{self.number + 2}"

    def connect(self) -> socket.socket:
        """A connection."""
        return socket.create_connection(("127.0.0.1", self.site.port), 30, source_address=(self.address, 0))

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

    def hold(self, count: int, begin: bytes, seconds: float, more: bytes = b"") -> None:
        """Connections that send ``begin`` and then at most ``more``, opened again after ``seconds``."""
        with ExitStack() as links:
            held = []
            for _ in range(count):
                with suppress(OSError):
                    link = links.enter_context(self.connect())
                    link.sendall(begin)
                    held.append(link)
            until = time.monotonic() + seconds
            while time.monotonic() < until and not self.stop.wait(0.5):
                for link in held if more else ():
                    with suppress(OSError):
                        link.sendall(more)
            for link in held:
                link.setblocking(False)
                self.statuses[_state(link)] += 1


def _state(link: socket.socket) -> str:
    """Status that came over a held connection, else whether it was closed."""
    try:
        head = link.recv(12)
    except BlockingIOError:
        return "open"
    except OSError:
        return "closed"
    return head[9:12].decode("ascii", "replace") if len(head) == 12 else "closed"


Attack = Callable[[Attacker, int], None]
"""One round of an attack, by its number."""


def hard_answers(attacker: Attacker, number: int) -> None:
    """Sixteen sums that no algebra can reduce, in each answer."""
    attacker.post("/v1/chat/completions", chat(f"hostile {attacker.number} {number}"))


def half_sent(attacker: Attacker, _: int) -> None:
    """Fifty connections that end within the head of a request."""
    attacker.hold(50, b"POST /v1/chat/completions HTTP/1.1\r\nHost:", 5)


def slow_bodies(attacker: Attacker, _: int) -> None:
    """Fifty bodies of which a byte comes now and then."""
    attacker.hold(50, head(attacker, b"Content-Length: 100000") + b'{"model": "', 5, more=b"a")


def no_reading(attacker: Attacker, _: int) -> None:
    """Thirty connections that ask for large pages and read nothing."""
    begin = b"GET /projects/1/traces HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\n\r\n"
    attacker.hold(30, begin % attacker.site.keys["admin"].encode() * 4, 5)


def page_of(name: str) -> Attack:
    """The page of one trace."""

    def render(attacker: Attacker, _: int) -> None:
        path = f"/projects/1/trace?id={attacker.site.traces[name]}"
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


def wrong_passwords(attacker: Attacker, number: int) -> None:
    """Guesses for the administrator's account, with the form's own secret."""
    page, cookie = attacker.ask("GET", "/sign-in")
    secret = re.search(r'name="csrf" value="([^"]*)"', page)
    fields = {"csrf": secret[1] if secret else "", "name": "admin", "password": f"guess{number}"}
    kind = "application/x-www-form-urlencoded"
    form = urlencode(fields).encode()
    attacker.ask("POST", "/sign-in", form, Content_Type=kind, Cookie=cookie.partition(";")[0])


HOSTILE_TEXTS = ("\\[", "$", "```\n", "a. ", "\\begin{a}", "\n \n", "wait, ", "  \n", "step 1", "{", "．．")


def segmentation(attacker: Attacker, number: int) -> None:
    """Two million characters to be cut into steps."""
    way = ("thoughts", "sentence", "blank-line", "line", "step-k", "turns", "ki")[number % 7]
    piece = HOSTILE_TEXTS[(number // 7 + attacker.number) % len(HOSTILE_TEXTS)]
    text = piece * (LONG // len(json.dumps(piece)))
    attacker.post("/v1/score", {"items": [{"problem": "p", "solution": text, "segment": way}]})


def score_batches(attacker: Attacker, number: int) -> None:
    """As many solutions with as many steps as a body holds."""
    items = [{"problem": f"{number}", "steps": ["a\n"] * 700} for _ in range(256)]
    attacker.post("/v1/score", {"items": items})


def deep_json(attacker: Attacker, _: int) -> None:
    """A body that is nested 900,000 deep."""
    attacker.post("/v1/score", b'{"items": ' + b"[" * 900_000 + b"]" * 900_000 + b"}")


def two_lengths(attacker: Attacker, _: int) -> None:
    """Requests with two lengths, and another smuggled behind."""
    lengths = b"Content-Length: 4\r\nTransfer-Encoding: chunked"
    smuggled = b"0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    for _ in range(20):
        with suppress(OSError), attacker.connect() as link:
            link.sendall(head(attacker, lengths) + smuggled)
            received = b""
            with suppress(OSError):
                while piece := link.recv(65536):
                    received += piece
            for part in received.split(b"HTTP/1.1 ")[1:]:
                attacker.statuses[part[:3].decode()] += 1


ATTACKS: dict[str, Attack | None] = {
    "none": None,
    "hard answers": hard_answers,
    "half-sent requests": half_sent,
    "slow bodies": slow_bodies,
    "clients that do not read": no_reading,
    "a page of 640,000 openings": page_of("openings"),
    "a page of 2,000 long steps": page_of("steps"),
    "uploads of strangers": stranger_uploads,
    "Parquet bombs": upload_of(parquet_bomb),
    "gzip bombs": upload_of(gzip_bomb),
    "wrong passwords": wrong_passwords,
    "texts that are hard to cut": segmentation,
    "long batches of scores": score_batches,
    "deep JSON": deep_json,
    "two lengths": two_lengths,
}


def chat(text: str) -> dict[str, object]:
    """Body of a chat request."""
    return {"model": "surefoot", "messages": [{"role": "user", "content": text}]}


def head(attacker: Attacker, lengths: bytes) -> bytes:
    """Head of a chat request."""
    key = attacker.site.keys[f"hostile {attacker.number}"].encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Authorization: Bearer %s\r\n%s\r\n\r\n" % (key, lengths)
    )


@dataclass(kw_only=True)
class Outcome:
    """What one attack did."""

    name: str
    times: list[float]
    """Seconds of innocent requests, ascending."""
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


def measure(
    site: Site, name: str, attack: Attack | None, seconds: float, attackers: int = ATTACKERS
) -> Outcome:
    """Innocent requests, one after the other, while attackers work."""
    stop = threading.Event()
    hostile = [Attacker(site, number, stop) for number in range(attackers if attack else 0)]

    def work(attacker: Attacker) -> None:
        number = 0
        while attack is not None and not stop.is_set():
            attack(attacker, number)
            number += 1

    threads = [threading.Thread(target=work, args=(attacker,), daemon=True) for attacker in hostile]
    for thread in threads:
        thread.start()
    innocent, times = Attacker(site, -1, stop), []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        begin = time.monotonic()
        innocent.post("/v1/chat/completions", chat(f"innocent {begin}"), key=site.keys["innocent"])
        times.append(time.monotonic() - begin)
        time.sleep(PAUSE_S)
    stop.set()
    for thread in threads:
        thread.join(90)
    counts = sum((attacker.statuses for attacker in hostile), Counter[str]())
    return Outcome(name=name, times=sorted(times), innocent=innocent.statuses, attackers=counts)


class FreeScorer:
    """A reward model that costs nothing."""

    name = "free"

    def score_traces(self, items):  # noqa: ANN001, ANN201
        """The same score for every step."""
        return [
            StepScores(trace_id=item.trace.id, scorer=self.name, scores=(0.9,) * len(item.trace.steps))
            for item in items
        ]


def write(request, sample):  # noqa: ANN001, ANN201
    """Sixteen sums that no algebra can reduce, or two answers that are equal."""
    prompt = str(request.prompt)
    number = random.Random(prompt).randrange(10**6)
    if "hostile" in prompt:
        return rf"So \boxed{{\sum_{{k=1}}^{{10^{{100}}}} k^{{k+{sample}i+{number}}}}}"
    return rf"So \boxed{{{(f'x+{number}', f'{number}+x')[sample % 2]}}}"


def serve(folder: Path) -> None:
    """Serve on a free port, which is printed with keys and traces, until standard input ends."""
    settings = ServerSettings(port=0, require_key=True)
    texts = {"openings": r"\[" * 640_000, "steps": ("x^2 is $x^2$, " * 60 + "\n\n") * 2000}
    with open_database(folder / "attacked.db") as db:
        keys = {name: db.keys.create(name, "client")[0] for name in ("innocent", *hostile_names())}
        db.users.create("admin", "correct horse battery", roles=["admin"])
        keys["admin"], _ = db.keys.create("admin", "admin")
        project = db.projects.create("attacked").id
        problem = Problem(text="p")
        traces = {
            name: segment_trace(Trace(problem_id=problem.id, text=text)) for name, text in texts.items()
        }
        db.traces.add_problems(project, [problem])
        db.traces.add_traces(project, traces.values())
        options = GatewaySettings(strategy="majority-16")
        gateway = Gateway(ScriptedPolicy(write), FreeScorer(), settings=options, log=db.gateway)
        app = create_app(settings, gateway=gateway, pages=create_pages_app(db), keys=db.keys)
        server = make_server(app, settings)

        def watch() -> None:
            while not server.started:
                time.sleep(0.01)
            port = server.servers[0].sockets[0].getsockname()[1]
            names = {name: trace.id for name, trace in traces.items()}
            print(json.dumps({"port": port, "keys": keys, "traces": names}), flush=True)
            sys.stdin.read()
            server.should_exit = True

        threading.Thread(target=watch, daemon=True).start()
        server.run()


def hostile_names() -> list[str]:
    """Names of the attackers' keys."""
    return [f"hostile {number}" for number in range(ATTACKERS)]


@contextmanager
def serving(module: str = "benchmarks.fair_turns.attacks") -> Iterator[Site]:
    """The server of ``script``, which takes ``--serve FOLDER``, in a separate process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", module, "--serve", folder]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield Site(**json.loads(next(iter(process.stdout or ()))))
            finally:
                if process.stdin is not None:
                    process.stdin.close()
                try:
                    process.wait(60)
                finally:
                    process.kill()


def row(outcome: Outcome) -> str:
    """One line of the table."""
    counts = outcome.attackers
    answered = ", ".join(f"{count} × {status}" for status, count in counts.most_common()) or "–"
    p50, p99 = (f"{outcome.percentile(share):.3f} s" for share in (50, 99))
    fields = (outcome.name, f"{counts.total():,}", answered, p50, p99, len(outcome.times), outcome.failures)
    return f"| {' | '.join(map(str, fields))} |"


def main(arguments: list[str] | None = None) -> list[Outcome]:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", choices=list(ATTACKS), help="these classes of attack alone")
    parser.add_argument("--seconds", type=float, help="of each attack")
    parser.add_argument("--attackers", type=int, default=ATTACKERS, help=f"at most {ATTACKERS}")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve(options.serve)
        return []
    seconds = options.seconds or (QUICK_S if options.quick else FULL_S)
    outcomes = []
    print("| attack | requests | answered | p50 | p99 | innocent requests | 5xx |")
    print("|---|---|---|---|---|---|---|")
    with serving() as site:
        warm = Attacker(site, -1, threading.Event())
        for number in range(3):  # starts the workers
            warm.post("/v1/chat/completions", chat(f"innocent {number}"), key=site.keys["innocent"])
        for name, attack in ATTACKS.items():
            if options.only and name not in options.only:
                continue
            outcomes.append(measure(site, name, attack, seconds, options.attackers))
            print(row(outcomes[-1]), flush=True)
    if options.json:
        figures = [
            {"name": f"p{share}, {one.name}", "value": one.percentile(share), "unit": "s"}
            for one in outcomes
            for share in (50, 99)
        ]
        setting = {"attackers": options.attackers, "seconds": seconds}
        options.json.write_text(json.dumps({"figures": figures, "setting": setting}, indent=1))
    return outcomes


if __name__ == "__main__":
    main()
