from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from surefoot.errors import RunError
from surefoot.io import Run, write_records
from surefoot.io.files import write_lines
from surefoot.records import Problem

CONFIG = {"seed": 3, "n": 8, "sampling": {"temperature": 0.7, "stop": ["\n"]}}


def opened(directory: Path, **changes) -> Run:
    return Run.open(directory, **({"command": "label", "config": CONFIG} | changes))


def test_manifest_says_what_the_run_is(tmp_path: Path):
    data = tmp_path / "problems.jsonl"
    data.write_bytes(b"abc")
    with opened(tmp_path / "run", inputs={"problems": data}):
        manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["command"] == "label"
    assert manifest["config"] == CONFIG
    assert manifest["seed"] == 3
    assert manifest["inputs"]["problems"]["sha256"] == hashlib.sha256(b"abc").hexdigest()
    assert {"surefoot", "python", "platform", "created"} <= manifest.keys()


def test_the_same_run_goes_on_and_keeps_its_manifest(tmp_path: Path):
    with opened(tmp_path / "run", config={"layers": (1, 2)}) as run:
        first = run.manifest
    with opened(tmp_path / "run", config={"layers": [1, 2]}) as run:
        assert run.manifest == first


def test_each_differing_field_is_named(tmp_path: Path):
    data = tmp_path / "problems.jsonl"
    data.write_text("one")
    opened(tmp_path / "run", inputs={"problems": data}).close()
    data.write_text("two")
    changed = {"seed": 3, "n": True, "sampling": {"temperature": 0.9, "stop": ["\n"]}, "extra": None}
    with pytest.raises(RunError) as caught:
        opened(tmp_path / "run", command="score", config=changed, inputs={"problems": data})
    message = str(caught.value)
    for part in (
        'command: "label" there, "score" asked',
        "config.n: 8 there, true asked",
        "config.sampling.temperature: 0.7 there, 0.9 asked",
        "config.extra: absent there, null asked",
        f'inputs.problems: "{hashlib.sha256(b"one").hexdigest()}" there',
        "use another --out, or delete the directory",
    ):
        assert part in message
    assert "stop" not in message
    assert "seed" not in message


def test_moved_inputs_with_equal_content_are_the_same_run(tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "weights").write_bytes(b"w")
    opened(tmp_path / "run", inputs={"model": tmp_path / "a"}).close()
    opened(tmp_path / "run", inputs={"model": tmp_path / "b"}).close()
    (tmp_path / "b" / "sub" / "weights").rename(tmp_path / "b" / "weights")
    with pytest.raises(RunError, match=r"inputs\.model"):
        opened(tmp_path / "run", inputs={"model": tmp_path / "b"})


def test_refused_directories_and_configurations(tmp_path: Path):
    with pytest.raises(RunError, match="input 'problems' cannot be read"):
        opened(tmp_path / "run", inputs={"problems": tmp_path / "absent"})
    with pytest.raises(RunError, match="config is not JSON"):
        opened(tmp_path / "run", config={"path": tmp_path})
    assert not (tmp_path / "run").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be a run directory"):
        opened(tmp_path / "file")
    (tmp_path / "old" / "pieces").mkdir(parents=True)
    with pytest.raises(RunError, match=r"has pieces of a run but no manifest\.json"):
        opened(tmp_path / "old")
    for text in ("{", "{}", "[]"):
        (tmp_path / "odd").mkdir(exist_ok=True)
        (tmp_path / "odd" / "manifest.json").write_text(text)
        with pytest.raises(RunError, match="delete the directory"):
            opened(tmp_path / "odd")


def test_two_runs_cannot_share_a_directory(tmp_path: Path):
    with opened(tmp_path / "run"):
        with pytest.raises(RunError, match=f"in use by process {os.getpid()}"):
            opened(tmp_path / "run")
        program = (
            "import sys; from pathlib import Path; from surefoot.io import Run\n"
            "Run.open(Path(sys.argv[1]), command='label', config={})"
        )
        other = subprocess.run([sys.executable, "-c", program, tmp_path / "run"], capture_output=True)
        assert b"RunError" in other.stderr
        assert b"in use by process" in other.stderr
    opened(tmp_path / "run").close()


def test_a_failed_open_gives_the_lock_back(tmp_path: Path):
    opened(tmp_path / "run").close()
    for _ in range(2):
        with pytest.raises(RunError, match="holds another run"):
            opened(tmp_path / "run", command="score")
    opened(tmp_path / "run").close()


def test_pieces_in_any_order_are_read_in_number_order(tmp_path: Path):
    with opened(tmp_path / "run") as run:
        journal = run.journal("sample", Problem)
        assert journal.missing(4) == [0, 1, 2, 3]
        for number in (2, 0, 3):
            journal.write(number, [Problem(text=f"{number}-{item}") for item in range(number)])
        assert journal.missing(4) == [1]
        assert run.journal("sample", Problem) is journal
    with opened(tmp_path / "run") as run:
        journal = run.journal("sample", Problem)
        assert journal.missing(4) == [1]
        journal.write(1, [Problem(text="once")])
        journal.write(1, [Problem(text="1-0")])  # a repeated piece replaces, it does not add
        assert [problem.text for problem in journal.read()] == ["1-0", "2-0", "2-1", "3-0", "3-1", "3-2"]


def test_lines_of_a_journal_are_the_bytes_of_its_records(tmp_path: Path):
    with Run.open(tmp_path / "run", command="x", config={}) as run:
        journal = run.journal("work", Problem)
        journal.write(1, [Problem(text="b \u2028 ≤")])
        journal.write(0, [Problem(text="a"), Problem(text="c", meta={"k": 0.1})])
        for name in ("joined.jsonl", "joined.jsonl.gz"):
            assert write_lines(tmp_path / name, journal.lines()) == 3
            write_records(tmp_path / f"parsed-{name}", journal.read())
            assert (tmp_path / name).read_bytes() == (tmp_path / f"parsed-{name}").read_bytes()


def test_finished_stages_and_their_results(tmp_path: Path):
    with opened(tmp_path / "run") as run:
        assert not run.done("sample")
        with pytest.raises(RunError, match="stage 'sample' is not finished"):
            run.result("sample")
        run.finish("sample", {"kept": 3, "dropped": {"empty": 1}})
        run.finish("plain")
    with opened(tmp_path / "run") as run:
        assert run.done("sample")
        assert run.result("sample") == {"kept": 3, "dropped": {"empty": 1}}
        assert run.result("plain") is None
        with pytest.raises(RunError, match="cannot name a stage"):
            run.finish("../escape")


def test_time_adds_up_across_restarts_and_exceptions(tmp_path: Path):
    with opened(tmp_path / "run") as run, run.timed("sample"):
        time.sleep(0.02)
    with opened(tmp_path / "run") as run:
        first = run.seconds["sample"]
        assert first >= 0.02

        @run.timed("sample")
        def interrupted():
            time.sleep(0.02)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        with run.timed("label"):
            pass
        assert run.seconds["sample"] >= first + 0.02
        assert run.seconds["label"] < 0.02


WORKER = """
import sys, time
from pathlib import Path
from surefoot.records import Problem
from surefoot.io import Run
from surefoot.io.files import write_lines

directory, pause = Path(sys.argv[1]), float(sys.argv[2])
with Run.open(directory, command="work", config={"seed": 1}) as run:
    journal = run.journal("work", Problem)
    def piece(number):
        for item in range(40):
            time.sleep(pause)
            yield Problem(text=f"{number}.{item} " + "x" * 500)
    for number in journal.missing(25):
        with run.timed("work"):
            journal.write(number, piece(number))
    write_lines(directory / "work.jsonl", journal.lines())
    run.finish("work", 25 * 40)
"""


def test_killed_at_random_moments_nothing_is_lost_or_doubled(tmp_path: Path):
    def start(name: str, pause: float) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path / name), str(pause)])

    assert start("whole", 0).wait() == 0
    chance, killed = random.Random(5), tmp_path / "killed"
    done: list[int] = []

    def finished() -> int:
        path = killed / "pieces" / "work.journal"
        return path.read_bytes().count(b'{"piece":') if path.exists() else 0

    for _ in range(4):
        worker = start("killed", 0.0002)
        before = finished()
        while finished() <= before and worker.poll() is None:
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.04))
        worker.send_signal(signal.SIGKILL)
        assert worker.wait() == -signal.SIGKILL
        done.append(finished())
    assert done == sorted(done)
    assert 0 < done[-1] < 25
    assert start("killed", 0).wait() == 0
    assert (killed / "work.jsonl").read_bytes() == (tmp_path / "whole" / "work.jsonl").read_bytes()
    assert not list(killed.rglob("*.part"))
    with Run.open(killed, command="work", config={"seed": 1}) as run:
        assert run.result("work") == 1000
        assert run.seconds["work"] > 0


def test_a_refused_directory_keeps_its_files(tmp_path: Path):
    mine, deep = tmp_path / ".film.mkv.part", tmp_path / "deep" / ".film.mkv.part"
    deep.parent.mkdir()
    for path in (mine, deep):
        path.write_text("half")
    (tmp_path / "pieces").mkdir()
    with pytest.raises(RunError, match="no manifest"):
        Run.open(tmp_path, command="c", config={})
    (tmp_path / "pieces").rmdir()
    Run.open(tmp_path, command="c", config={}).close()
    assert mine.exists()
    assert deep.exists()
    with Run.open(tmp_path / "run", command="c", config={}) as run:
        run.finish("stage")
    unfinished = tmp_path / "run" / "done" / ".stage.json.host.12.ab.part"
    unfinished.write_text("half")
    with pytest.raises(RunError, match="another run"):
        Run.open(tmp_path / "run", command="d", config={})
    assert unfinished.exists()
    Run.open(tmp_path / "run", command="c", config={}).close()
    assert not unfinished.exists()


@pytest.mark.parametrize("text", ['{"a":' * 100_000, "[]", "9" * 5_000, '{"config": 1}', "\udcff"])
def test_a_broken_manifest_is_named(text, tmp_path):
    with opened(tmp_path / "run"):
        pass
    (tmp_path / "run" / "manifest.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(RunError, match=r"manifest\.json"):
        opened(tmp_path / "run")
