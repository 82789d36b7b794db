"""The whole service under load while its parts fail; then a count: nothing lost, nothing wrong, no delay.

Longer: ``SUREFOOT_CHAOS_MINUTES=10 SUREFOOT_CHAOS_SEED=7 pytest -s tests/journeys/test_chaos.py``.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from chaos_clients import (
    NO_ANSWER,
    SOLUTIONS,
    Answer,
    Load,
    annotating,
    chatting,
    hostile,
    innocent,
    innocent_reader,
    probing,
    scoring,
    verifying,
)
from chaos_site import Resources, Site, open_site
from chaos_upstream import FAULTS, score_of
from postgres_server import postgres_programs
from published_checkpoints import save_qwen_prm

from surefoot.errors import NotFoundError

psutil = pytest.importorskip("psutil", reason="psutil, which counts processes and descriptors, is missing")

MINUTES = float(os.environ.get("SUREFOOT_CHAOS_MINUTES", "0"))
"""How long faults go on; 0 = each comes once."""
SEED = int(os.environ.get("SUREFOOT_CHAOS_SEED", "1"))
INNOCENT_S = 20.0
"""Bound on the latency of the innocent client, on a machine that does other work, too."""
NOTICED_S = 6.0
"""Bound until ``/ready`` says that the database is gone."""
RECOVERED_S = 15.0
"""Bound until ``/ready`` says that it is back."""
INNOCENT = ("innocent", "innocent reader")
ENOUGH_S = 90.0
"""Bound until clients, undisturbed, have seen ``LEAST``."""
LEAST = {
    "recorded answers": 21,
    "labels": 11,
    "comments": 6,
    "scores": 21,
    "accepted solutions": 1,
    "answers to the hostile client": 1,
    "innocent requests": 21,
}
SETTLED_S = 1.0
"""After the end of a fault, its errors may still come: a connection of a pool may be dead."""
MORE_DESCRIPTORS, MORE_PROCESSES, MORE_MEMORY = 40, 8, 400_000_000
"""What a server may hold after the chaos beyond what it held at its start: its pools are full."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """The time of one fault."""

    fault: str
    began: float
    ended: float

    def meets(self, answer: Answer, settled_s: float = SETTLED_S) -> bool:
        """Whether the fault may have touched the request."""
        return answer.began < self.ended + settled_s and answer.ended > self.began


@dataclass
class Chaos:
    """A run: what was done to the site, and when."""

    site: Site
    load: Load
    rng: random.Random
    windows: list[Window] = field(default_factory=list)
    revoked: dict[str, float] = field(default_factory=dict)
    """Clients whose keys were revoked, and when that was acknowledged."""

    @contextmanager
    def window(self, fault: str) -> Iterator[None]:
        """Note the time of a fault; if the run fails in it, the log says so."""
        began = time.monotonic()
        print(f"{began:10.2f} {fault}", flush=True)
        try:
            yield
        finally:
            self.windows.append(Window(fault=fault, began=began, ended=time.monotonic()))

    def ready(self, wanted: bool, seconds: float) -> None:
        """Wait until ``/ready`` says so. Raises ``AssertionError`` after so many seconds."""
        end = time.monotonic() + seconds
        while (self.load.ask("prober", "GET", "/ready").status == 200) is not wanted:
            said = "ready" if not wanted else "not ready"
            assert time.monotonic() < end, f"/ready says {said} for {seconds} s"
            time.sleep(0.1)

    def excused(self, answer: Answer) -> bool:
        """Whether an innocent client's request needed a part that was gone."""
        faults = ("kill", "database", "disk", "upstream") if answer.client == "innocent" else ("kill",)
        return touched(self, answer, *faults)

    def seen(self) -> dict[str, int]:
        """How often the run has seen what the checks count."""
        answers = list(self.load.answers)
        done = [answer for answer in answers if answer.status == 200]
        scored = [a for a in done if a.route.endswith("/score") and a.client != "hostile"]
        return {
            "recorded answers": sum(a.route.endswith("/chat/completions") for a in done),
            "labels": len(self.load.labels),
            "comments": len(self.load.comments),
            "scores": sum(None not in result["scores"] for a in scored for result in results_of(a)),
            "accepted solutions": sum(
                result["decision"] == "accept" for a in scored for result in results_of(a)
            ),
            "answers to the hostile client": sum(
                a.client == "hostile" and a.route.endswith("/chat/completions") for a in done
            ),
            "innocent requests": sum(a.client in INNOCENT and not self.excused(a) for a in answers),
        }

    def see_enough(self) -> None:
        """Wait until the checks have something to count: on a busy machine faults take most of the time."""
        end = time.monotonic() + ENOUGH_S
        while few := {what: n for what, n in self.seen().items() if n < LEAST[what]}:
            assert time.monotonic() < end, f"seen in all, {ENOUGH_S:.0f} s after the last fault: {few}"
            time.sleep(0.5)

    def kill(self) -> None:
        with self.window("kill"):
            self.site.server.kill()
            self.site.server.start()
            self.ready(True, RECOVERED_S)

    def stop_database(self) -> None:
        with self.window("database"), self.site.database_gone():
            self.ready(False, NOTICED_S)
            time.sleep(self.rng.uniform(0.2, 0.6))
        with self.window("database"):
            self.ready(True, RECOVERED_S)

    def fill_disk(self) -> None:
        with self.window("disk"), self.site.disk_full():
            self.ready(False, NOTICED_S)
            time.sleep(self.rng.uniform(0.2, 0.6))
        with self.window("disk"):
            self.ready(True, RECOVERED_S)

    def fail_upstream(self, fault: str) -> None:
        with self.window(f"upstream {fault}"), self.site.upstream.failing(fault):
            time.sleep(self.rng.uniform(0.4, 0.7))

    def revoke(self, number: int) -> None:
        client = f"revoked {number}"
        key, row = self.site.room.db.keys.create(client, "client")
        self.load.keys[client] = key
        with self.window("revocation"):
            thread = self.load.start(chatting, client)
            until = time.monotonic() + RECOVERED_S
            while not any((one.client, one.status) == (client, 200) for one in list(self.load.answers)):
                assert time.monotonic() < until, f"{client} was never answered"
                time.sleep(0.05)
            self.site.room.db.keys.revoke(row.id)
            self.revoked[client] = time.monotonic()
            time.sleep(0.3)
        assert thread.is_alive()

    def round(self, number: int) -> None:
        """Every fault once, in random order; those of the upstream where it also scores, if both are run."""
        twice = MINUTES > 0 or postgres_programs() is None
        upstream = FAULTS if twice or self.site.postgres is not None else FAULTS[:1]
        faults = [lambda fault=fault: self.fail_upstream(fault) for fault in upstream]
        faults += [self.stop_database, lambda: self.revoke(number), self.kill]
        if self.site.own_disk is None or self.site.postgres is None:
            faults.append(self.fill_disk)
        else:
            print(f"the disk is not filled: {self.site.own_disk}")
        self.rng.shuffle(faults)
        for fault in faults:
            fault()
            time.sleep(self.rng.uniform(0.0, 0.2) if MINUTES == 0 else self.rng.uniform(1, 3))


CLIENTS = (("chat 0", chatting), ("chat 1", chatting), ("score", scoring), ("verify", verifying))


def run(site: Site) -> Chaos:
    """Start the clients, let everything fail, stop the clients."""
    keys = site.room.db.keys
    names = [name for name, _ in CLIENTS] + [*INNOCENT, "prober", "hostile"]
    load = Load(site.port, {name: keys.create(name, "client")[0] for name in names})
    load.keys["hostile admin"], _ = keys.create("hostile admin", "admin")
    chaos = Chaos(site, load, random.Random(SEED))
    chaos.ready(True, RECOVERED_S)
    for number in range(4):  # starts the workers
        load.ask(
            "innocent", "POST", "/v1/score", {"items": [{"problem": "1 + 1", "steps": SOLUTIONS[number]}]}
        )
    project = site.room.project
    threads = [load.start(work, name) for name, work in CLIENTS]
    threads += [load.start(annotating(name, project), name) for name in ("ann", "ben")]
    threads += [
        load.start(hostile(project), "hostile"),
        load.start(innocent, "innocent"),
        load.start(innocent_reader, "innocent reader"),
        load.start(probing, "prober"),
    ]
    end = time.monotonic() + 60 * MINUTES
    number = 0
    try:
        time.sleep(1)
        while number == 0 or time.monotonic() < end:
            chaos.round(number)
            number += 1
        time.sleep(SETTLED_S)
        chaos.see_enough()
    finally:
        load.stop.set()
        for thread in threads:
            thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    return chaos


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_the_service_survives_what_may_befall_it(database: str, tmp_path: Path) -> None:
    reward_model = None
    if database == "sqlite":
        save_qwen_prm(tmp_path / "Qwen2.5-Math-PRM-7B")
        reward_model = tmp_path / "Qwen2.5-Math-PRM-7B"
    else:
        if postgres_programs() is None:
            pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
        pytest.importorskip("psycopg", reason="the PostgreSQL driver psycopg is not installed")
    print(f"seed {SEED}")
    with open_site(tmp_path, database=database, reward_model=reward_model) as site:
        try:
            before = site.server.resources()
            chaos = run(site)
            report(chaos)
            check_statuses(chaos)
            check_nothing_is_lost(chaos)
            check_verdicts(chaos)
            check_revocations(chaos)
            check_latency(chaos)
            check_resources(chaos, before)
            check_reports(chaos)
            site.server.end()
        except BaseException:
            print(site.server.log.read_text(errors="replace")[-20_000:])
            raise


def results_of(answer: Answer) -> list[dict[str, Any]]:
    """What ``/v1/score`` says of each solution."""
    found: list[dict[str, Any]] = answer.body["results"]
    return found


def touched(chaos: Chaos, answer: Answer, *faults: str) -> bool:
    return any(window.fault.startswith(faults) and window.meets(answer) for window in chaos.windows)


def check_statuses(chaos: Chaos) -> None:
    """Errors of the server come only while something has failed, and say when to come back."""
    wrong = list(chaos.load.broken)
    for answer in chaos.load.answers:
        status, gone = answer.status, touched(chaos, answer, "database", "disk", "kill")
        fine = (
            0 < status < 500
            or (status == NO_ANSWER and touched(chaos, answer, "kill"))
            or (answer.asked_to_wait and gone)
            or (status in (502, 504) and (touched(chaos, answer, "upstream") or gone))
        )
        if answer.client in dict(CLIENTS) or answer.client in (*INNOCENT, "prober", "ann", "ben"):
            fine = fine and status in (NO_ANSWER, 200, 303, 409, 502, 503, 504)
        if not fine:
            faults = [w.fault for w in chaos.windows if w.meets(answer)]
            wrong.append(f"{answer.began:.2f} {answer.client} {answer.route} {status} {faults} {answer.body}")
    assert not wrong, "\n".join(wrong[:20]) + f"\n({len(wrong)} in all)"


def check_nothing_is_lost(chaos: Chaos) -> None:
    """What a client had acknowledged is in the database."""
    db, project = chaos.site.room.db, chaos.site.room.project
    lost, kept = [], 0
    for answer in chaos.load.answers:
        if answer.status != 200 or not answer.route.endswith("/chat/completions"):
            continue
        try:
            record = db.gateway.get(answer.body["id"])
        except NotFoundError:
            lost.append(f"{answer.route} {answer.body['id']}")
            continue
        [chosen] = [candidate for candidate in record.candidates if candidate.chosen]
        assert chosen.trace.text == answer.body["choices"][0]["message"]["content"]
        kept += 1
    labels = db.export.stored(project)
    stored = {label.id for label in labels}
    comments = {label.record.evidence.message for label in labels}
    print(f"kept: {kept} answers, {len(chaos.load.labels)} labels, {len(chaos.load.comments)} comments")
    assert not lost
    assert chaos.load.labels <= stored
    assert chaos.load.comments <= comments
    assert kept > 20
    assert len(chaos.load.labels) > 10
    assert len(chaos.load.comments) > 5


def check_verdicts(chaos: Chaos) -> None:
    """Every accept has a score for each step, equal texts have equal scores, no hostile answer is right."""
    before: dict[str, list[float]] = {}
    accepted = scored = hostile_answers = 0
    for answer in chaos.load.answers:
        if answer.status != 200:
            continue
        if answer.route.endswith("/score"):
            least = answer.body["threshold"]
            for result in results_of(answer):
                scores = result["scores"]
                if result["decision"] == "accept":
                    assert scores
                    assert all(isinstance(score, float) and least <= score <= 1 for score in scores), result
                    accepted += 1
        if answer.route.endswith("/score") and not answer.client.startswith("hostile"):
            for result in results_of(answer):
                assert all(score is None or isinstance(score, float) for score in result["scores"])
                if None in result["scores"]:
                    assert touched(chaos, answer, "upstream"), answer
                    continue
                scored += 1
                expected = before.setdefault(str(result["steps"]), result["scores"])
                assert result["scores"] == pytest.approx(expected, abs=1e-4)
                if chaos.site.postgres is not None:
                    assert result["scores"] == pytest.approx([score_of(step) for step in result["steps"]])
        if answer.client == "hostile" and answer.route.endswith("/chat/completions"):
            for search in answer.body["surefoot"]["searches"]:
                hostile_answers += 1
                weights = Counter(candidate["answer"] for candidate in search["candidates"])
                if "10^{100}" in str(search["candidates"][0]["text"]):  # no two are equal
                    assert max(weights.values()) == 1, search
    print(f"scored {scored}, accepted {accepted}, hostile answers {hostile_answers}")
    assert scored > 20
    assert accepted  # how many depends on the load of the machine
    assert hostile_answers > 0


def check_revocations(chaos: Chaos) -> None:
    """No request that began a second after the revocation, by another process, is answered."""
    assert chaos.revoked
    for client, moment in chaos.revoked.items():
        answers = [answer for answer in chaos.load.answers if answer.client == client]
        assert any(answer.status == 200 for answer in answers if answer.began < moment)
        late = [answer for answer in answers if answer.began > moment + 1.0]  # keys are recalled for a second
        assert late
        assert all(answer.status in (401, NO_ANSWER, 503) for answer in late)


def check_latency(chaos: Chaos) -> None:
    """The innocent clients are answered in time, but for what needs a part that is gone."""
    answers = [one for one in chaos.load.answers if one.client in INNOCENT and not chaos.excused(one)]
    assert len(answers) > 20
    assert max(answer.seconds for answer in answers) < INNOCENT_S


def check_resources(chaos: Chaos, before: Resources) -> None:
    """Without clients, the server holds about what it held at its start."""
    deadline = time.monotonic() + 10
    while (now := chaos.site.server.resources()).descriptors > before.descriptors + MORE_DESCRIPTORS:
        assert time.monotonic() < deadline, f"{now}, before {before}"
        time.sleep(0.2)
    print(f"before {before}\nafter  {now}")
    assert now.processes <= before.processes + MORE_PROCESSES
    assert now.memory < before.memory + MORE_MEMORY


def check_reports(chaos: Chaos) -> None:
    """What an upstream says of itself is bounded, and no text went where it redirects."""
    assert chaos.site.upstream.stolen == []
    for row in chaos.site.room.db.gateway.find(limit=1_000_000):
        assert row.tokens < 10**10, row  # a scorer may read two megabytes 1,000 times
    for answer in chaos.load.answers:
        if answer.route.endswith("/score") and answer.status == 200:
            for result in results_of(answer):
                reason = result["unscored_reason"] or ""
                assert len(reason) <= 500
                assert "\x1b" not in reason


def report(chaos: Chaos) -> None:
    """Print what was tried, and how long the innocent client waited meanwhile."""
    load = chaos.load
    print(f"hostile: {dict(load.tried)}")
    for fault in (*sorted({window.fault for window in chaos.windows}), None):
        windows = [window for window in chaos.windows if window.fault == fault]
        for client in INNOCENT:
            answers = [
                answer
                for answer in load.answers
                if answer.client == client
                and (
                    any(window.meets(answer, 0) for window in windows)
                    if fault
                    else not any(window.meets(answer) for window in chaos.windows)
                )
            ]
            times = sorted(answer.seconds for answer in answers if answer.status != NO_ANSWER) or [0.0]
            p50, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
            statuses = dict(Counter(answer.status for answer in answers))
            print(
                f"{fault or 'none':32} {len(windows):3} times, {client:15} {len(answers):5} "
                f"p50 {p50:.3f} s p99 {p99:.3f} s max {times[-1]:.3f} s {statuses}"
            )
    for client in sorted({answer.client for answer in load.answers}):
        print(client, dict(Counter(answer.status for answer in load.answers if answer.client == client)))
