"""What is promised to be on the disk, in the order in which the disk has to get it.

A kill is not a power cut: after a kill the kernel still writes what it was given. So the order of the calls
is observed (``os.fsync`` and the renames, which do their work), and the kill is tried apart.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from surefoot.io import Run, atomic_directory, atomic_file, write_json
from surefoot.io.atomic import make_directory, sync_tree
from surefoot.records import Problem


@pytest.fixture
def calls(monkeypatch, tmp_path):
    """("sync" or "rename", name) in order; a name is relative to ``tmp_path``, without its random part."""
    seen = []

    def name(path):
        parts = Path(path).resolve().relative_to(tmp_path).as_posix()
        return "unfinished" if parts.endswith(".part") else parts

    fsync, replace, rename = os.fsync, Path.replace, Path.rename

    def spy_fsync(handle):
        seen.append(("sync", name(f"/proc/self/fd/{handle}")))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    for method, call in (("replace", replace), ("rename", rename)):

        def spy_rename(self, target, call=call):
            seen.append(("rename", name(target)))
            return call(self, target)

        monkeypatch.setattr(Path, method, spy_rename)
    return seen


needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc to name descriptors")


@needs_proc
def test_a_file_is_synced_before_its_name_and_the_name_before_all_that_follows(tmp_path, calls):
    with atomic_file(tmp_path / "f") as stream:
        stream.write(b"whole")
    assert calls == [("sync", "unfinished"), ("rename", "f"), ("sync", ".")]


@needs_proc
def test_a_directory_is_synced_with_all_in_it_before_it_takes_the_place_of_the_old_one(tmp_path, calls):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "before").touch()
    with atomic_directory(tmp_path / "d") as new:
        (new / "part").mkdir()
        (new / "part" / "weights").write_bytes(b"whole")
    first = calls.index(("rename", ".d.old"))
    assert set(calls[:first]) == {("sync", f".d.new{rest}") for rest in ("/part/weights", "/part", "")} | {
        ("sync", ".")
    }
    assert calls[first:] == [("rename", ".d.old"), ("rename", "d"), ("sync", ".")]
    assert [path.name for path in tmp_path.rglob("*")] == ["d", "part", "weights"]


def test_a_directory_that_fails_leaves_the_old_one_and_a_kill_between_renames_loses_none(tmp_path):
    target = tmp_path / "d"
    with atomic_directory(target) as new:
        (new / "one").touch()
    with pytest.raises(ZeroDivisionError), atomic_directory(target) as new:
        raise ZeroDivisionError
    assert [path.name for path in tmp_path.rglob("*")] == ["d", "one"]
    target.rename(tmp_path / ".d.old")  # as a kill between the renames leaves it
    with pytest.raises(ZeroDivisionError), atomic_directory(target) as new:
        raise ZeroDivisionError
    assert [path.name for path in tmp_path.rglob("*")] == ["d", "one"]


@needs_proc
def test_new_directories_are_synced_in_their_parents_and_known_ones_cost_nothing(tmp_path, calls):
    make_directory(tmp_path / "a" / "b")
    assert calls == [("sync", "."), ("sync", "a")]
    make_directory(tmp_path / "a" / "b")
    assert len(calls) == 2


@needs_proc
def test_a_run_has_its_manifest_and_pieces_on_the_disk_before_it_says_so(tmp_path, calls):
    with Run.open(tmp_path / "run", command="test", config={}) as run:
        assert calls == [
            ("sync", "."),
            ("sync", "unfinished"),
            ("rename", "run/manifest.json"),
            ("sync", "run"),
        ]
        calls.clear()
        run.journal("s", Problem).write(0, [])
        run.finish("s")
    assert calls == [
        ("sync", "run"),
        ("sync", "unfinished"),
        ("rename", "run/pieces/s.journal"),
        ("sync", "run/pieces"),
        ("sync", "run/pieces/s.journal"),
        ("sync", "run"),
        ("sync", "unfinished"),
        ("rename", "run/done/s.json"),
        ("sync", "run/done"),
        ("sync", "run/pieces/s.journal"),
    ]


@needs_proc
def test_a_journal_has_its_name_first_and_syncs_when_it_is_closed(tmp_path, calls):
    with Run.open(tmp_path / "run", command="test", config={}) as run:
        journal = run.journal("j", Problem)
        calls.clear()
        for number in range(100):
            journal.write(number, [])
        assert len(calls) <= 3  # in batches, a second or more apart
    assert calls[-1] == ("sync", "run/pieces/j.journal")
    journal.close()


@needs_proc
def test_a_card_says_complete_after_the_weights_are_on_the_disk(tmp_path, calls):
    from surefoot.models.card import CheckpointCard, write_card

    (tmp_path / "c" / "reference").mkdir(parents=True)
    (tmp_path / "c" / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "c" / "reference" / "model.safetensors").write_bytes(b"weights")
    write_card(tmp_path / "c", CheckpointCard(kind="prm", label_source="test", base="test"))
    before = calls[: calls.index(("rename", "c/surefoot.json"))]
    there = {name for _, name in before}
    assert {"c/model.safetensors", "c/reference/model.safetensors", "c/reference", "c", "."} <= there


def test_a_tree_that_cannot_be_synced_is_an_error(tmp_path):
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError):
        sync_tree(tmp_path)


def test_a_kill_at_any_moment_leaves_a_whole_file_or_the_one_before(tmp_path):
    """Not a power cut: this is about the order of writing and renaming alone."""
    path = tmp_path / "state.json"
    write_json(path, [0] * 1000)
    script = (
        "import sys; from pathlib import Path; from surefoot.io.atomic import write_json\n"
        "print('begun', flush=True)\n"
        "for n in range(1, 10**9): write_json(Path(sys.argv[1]), [n] * 1000)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            while not sum(1 for _ in tmp_path.iterdir()) > 1:
                assert process.poll() is None
        finally:
            process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)
    numbers = json.loads(path.read_text())
    assert len(numbers) == 1000
    assert len(set(numbers)) == 1
