"""Leases: one writer in a directory, on this machine and on others that see the same disk.

Another machine is a lease file that names one: its process does not hold this machine's lock.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from surefoot.errors import RunError
from surefoot.io.lease import Lease
from surefoot.io.runs import Run
from surefoot.records import Problem

SECONDS = 0.4


def of_another_machine(directory, epoch=7, age=0.0):
    path = directory / f".lease-{epoch:06d}"
    path.write_text(json.dumps({"node": "far-away", "pid": 12, "key": "k"}))
    os.utime(path, (time.time() - age,) * 2)
    return path


def leases(directory):
    return sorted(path.name for path in directory.glob(".lease-*"))


def test_a_lease_is_given_back_and_leaves_nothing(tmp_path):
    lease = Lease(tmp_path)
    assert lease.held
    assert leases(tmp_path) == [".lease-000001"]
    lease.check()
    lease.release()
    lease.release()
    assert not lease.held
    assert leases(tmp_path) == []


def test_a_second_process_of_this_machine_is_refused_at_once(tmp_path):
    lease = Lease(tmp_path)
    with pytest.raises(RunError, match=f"in use by process {os.getpid()}"):
        Lease(tmp_path)
    lease.check()
    lease.release()


def test_one_that_was_killed_here_is_followed_at_once(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from surefoot.io.lease import Lease\n"
        "Lease(Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=60)
    assert leases(tmp_path) == [".lease-000001"]
    start = time.monotonic()
    lease = Lease(tmp_path)
    assert time.monotonic() - start < 5
    assert (lease.epoch, leases(tmp_path)) == (2, [".lease-000002"])
    lease.release()


def test_another_machine_that_renews_its_lease_keeps_it(tmp_path):
    path, stop = of_another_machine(tmp_path), threading.Event()

    def renew():
        while not stop.wait(SECONDS / 8):
            os.utime(path)

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        with pytest.raises(RunError, match="in use by process 12 on far-away"):
            Lease(tmp_path, seconds=SECONDS)
    finally:
        stop.set()
        thread.join()
    assert leases(tmp_path) == [path.name]
    path.unlink()
    Lease(tmp_path).release()  # this machine's lock was given back


def test_one_that_is_silent_is_followed_after_the_time(tmp_path, caplog):
    of_another_machine(tmp_path)
    start = time.monotonic()
    lease = Lease(tmp_path, seconds=SECONDS)
    assert time.monotonic() - start > SECONDS / 2
    assert "in use by process 12 on far-away" in caplog.text
    assert (lease.epoch, leases(tmp_path)) == (8, [".lease-000008"])
    lease.release()
    of_another_machine(tmp_path, age=1000.0)
    Lease(tmp_path).release()  # at once: no wait of a minute


def test_who_was_taken_for_dead_writes_nothing_more(tmp_path):
    with Run.open(tmp_path, command="test", config={}) as run:
        shards, journal = run.shards("pieces", Problem), run.journal("small", Problem)
        shards.write(0, [Problem(text="before")])
        with journal:
            journal.write(0, [Problem(text="before")])
            for path in tmp_path.glob(".lease-*"):
                path.unlink()
            there = of_another_machine(tmp_path)
            for write in (
                lambda: shards.write(1, [Problem(text="late")]),
                lambda: journal.write(1, [Problem(text="late")]),
                lambda: run.finish("pieces"),
                run.check,
            ):
                with pytest.raises(RunError, match=r"taken over by process 12 on far-away \(epoch 7\)"):
                    write()
        assert [one.text for one in shards.read()] == ["before"]
        assert [one.text for one in journal.read()] == ["before"]
    assert there.exists(), "another's lease is not given back"


def test_of_many_that_ask_at_once_one_gets_it(tmp_path):
    # without this machine's lock, as on as many machines
    code = (
        "import sys; from pathlib import Path; import surefoot.io.lease as m\n"
        "m.fcntl, m.NODE = None, sys.argv[1]\n"
        "try:\n"
        "    m.Lease(Path(sys.argv[2]), seconds=3); print('mine', flush=True); sys.stdin.read()\n"
        "except m.RunError as error: print(error)\n"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, f"node{n}", str(tmp_path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for n in range(4)
    ]  # fmt: skip
    try:
        said = [one.stdout.readline().strip() for one in running]
    finally:
        for one in running:
            one.kill()
            one.communicate()
    assert said.count("mine") == 1, said
    assert all("in use by process" in one for one in said if one != "mine")
