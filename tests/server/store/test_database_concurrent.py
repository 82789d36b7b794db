"""Many writers, and writers that are killed: nothing lost, nothing doubled. On both databases."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from random import Random

import pytest
from conftest import make_lab

from surefoot.errors import ConflictError
from surefoot.server import Database, LabelInput, open_database
from surefoot.server.store.accounts import QueuePolicy

NOON = datetime(2031, 5, 4, 12, tzinfo=UTC)

WORK = """
import json, sys
from datetime import UTC, datetime
from random import Random
from surefoot.server import LabelInput, open_database
from surefoot.server import GatewayRecord

url, project, user, endless = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "endless"
db, rng, number = open_database(url), Random(user), 0
while endless or (offer := db.assignments.next(project, user, rng)):
    number += 1
    name = f"{user}-{number}"
    if endless:
        offer = db.assignments.next(project, user, rng)
        item = offer.item_id
        made = GatewayRecord(request_id=name, created=datetime.now(UTC), endpoint="e", model="m",
                             strategy="s", status=200, latency_ms=1)
        db.gateway.write_all([made])
    else:
        item = offer.item_id
    made = db.labels.submit(project, item, user, [LabelInput(step=number % 3, value=1)], name,
                            finish=not endless)
    print(json.dumps([name, item, made.label_ids[0]]), flush=True)
    if endless:
        db.labels.undo(project, item, user)
"""


def start(url: str, project: int, user: int, mode: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", WORK, url, str(project), str(user), mode]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_share_a_queue(url: str) -> None:
    with open_database(url) as db:
        lab = make_lab(db, items=12, annotators=1)
        started = [start(url, lab.id, person.user_id, "queue") for person in lab.people]
        lines = [
            json.loads(line)
            for process in started
            for line in process.communicate(timeout=120)[0].splitlines()
        ]
        assert [process.returncode for process in started] == [0, 0]
        assert sorted(item for _, item, _ in lines) == lab.items
        assert sorted(label.id for label in db.export.stored(lab.id)) == sorted(label for *_, label in lines)


def test_what_was_acknowledged_survives_a_kill(url: str) -> None:
    with open_database(url) as db:
        lab = make_lab(db, items=1, annotators=1)
        process = start(url, lab.id, lab.people[0].user_id, "endless")
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(15)]
        process.send_signal(signal.SIGKILL)
        # what was written to the pipe before the kill was acknowledged, too; a torn last line was not
        lines += [
            line for line in process.communicate(timeout=60)[0].splitlines(keepends=True) if line[-1] == "\n"
        ]
        assert process.returncode == -signal.SIGKILL
        told = [json.loads(line) for line in lines]
    with open_database(url) as db:
        stored = [label.id for label in db.export.stored(lab.id)]
        assert len(stored) == len(set(stored))
        assert {label for *_, label in told} <= set(stored)
        assert len(stored) - len(told) <= 1
        for name, *_ in told:
            assert db.gateway.get(name).status == 200


def test_threads_never_overfill_an_item(db: Database) -> None:
    lab = make_lab(db, items=5, annotators=2)
    for number in range(4):
        user = db.users.create(f"more {number}")
        lab.people.append(db.projects.set_member(lab.id, user.id, "annotator"))

    def work(user: int) -> list[int]:
        done = []
        while offer := db.assignments.next(lab.id, user, Random(user)):
            item = offer.item_id
            label = LabelInput(step=0, value=1)
            db.labels.submit(lab.id, item, user, [label], f"k{item}", finish=True)
            done.append(item)
        return done

    with ThreadPoolExecutor(6) as pool:
        done = list(pool.map(work, [person.user_id for person in lab.people]))
    assert Counter(item for items in done for item in items) == dict.fromkeys(lab.items, 2)
    assert all(len(set(items)) == len(items) for items in done)
    assert len(db.export.stored(lab.id)) == 10


def test_one_of_many_equal_submissions_counts(db: Database) -> None:
    lab = make_lab(db, items=1, annotators=1)
    item, user = lab.next(), lab.people[0].user_id
    label = [LabelInput(step=0, value=1)]

    def send(_: int):
        return db.labels.submit(lab.id, item, user, label, "same key", finish=True)

    with ThreadPoolExecutor(6) as pool:
        made = list(pool.map(send, range(6)))
    assert [one.repeated for one in made].count(False) == 1
    assert len({one.label_ids for one in made}) == 1
    assert len(db.export.stored(lab.id)) == 1


def test_one_of_many_editors_wins(db: Database) -> None:
    project = db.projects.create("p")

    def edit(number: int) -> bool:
        try:
            db.projects.update(project.id, 1, instructions=str(number))
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(edit, range(6)))
    assert won.count(True) == 1
    assert db.projects.get(project.id).instructions == str(won.index(True))


@pytest.mark.parametrize("policy", ["random", "uncertainty"])
def test_many_claims_at_once_fill_every_item_once(db: Database, policy: QueuePolicy) -> None:
    lab = make_lab(db, items=12, annotators=1)
    lab.set(queue=policy)
    for number in range(6):
        user = db.users.create(f"more {number}")
        lab.people.append(db.projects.set_member(lab.id, user.id, "annotator"))

    def work(user: int) -> list[int]:
        done = []
        while offer := db.assignments.next(lab.id, user, Random(user)):
            item = offer.item_id
            db.labels.submit(lab.id, item, user, [LabelInput(step=0, value=1)], f"k{item}", finish=True)
            done.append(item)
        return done

    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(work, [person.user_id for person in lab.people]))
    assert sorted(item for items in done for item in items) == lab.items
