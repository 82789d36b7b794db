"""Disk or memory ends, or somebody ends the command: one sentence, and the same command resumes."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
import torch
from command_line import good, refused, run
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from surefoot.cli.endings import TERMINATED, plain_endings
from surefoot.errors import RunError
from surefoot.io import write_records


def said(error: Exception, *options: str) -> str:
    with pytest.raises(RunError) as caught, plain_endings([], options):
        raise error
    assert caught.value.__cause__ is error
    return str(caught.value)


@pytest.fixture
def files(tmp_path, lab_items) -> Path:
    write_records(tmp_path / "p.jsonl", [item.problem for item in lab_items])
    write_records(tmp_path / "t.jsonl", [item.trace for item in lab_items])
    return tmp_path


@pytest.fixture
def train(files, lab_base):
    """The words of a training whose output is still to be named; a checkpoint after every update."""
    data = ("--problems", files / "p.jsonl", files / "t.jsonl")
    few = (
        "--epochs=2",
        "--batch-size=2",
        "--max-length=100",
        "--set",
        "checkpoint_every=1",
        "--head-epochs=0",
    )
    return ("train", "orm", *data, "--base", lab_base, *few, "--out")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 kB."""
    place = tmp_path / "small"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs rights that this process lacks")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_training_on_a_full_disk_resumes_when_there_is_room(train, small_disk, tmp_path):
    message = refused(*train, small_disk / "orm")
    assert "the disk is full: free some of it" in message
    assert "then start the same command again" in message
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    good(*train, small_disk / "orm")
    good(*train, tmp_path / "orm")
    name = "model.safetensors"
    assert (small_disk / "orm" / name).read_bytes() == (tmp_path / "orm" / name).read_bytes()


@pytest.mark.parametrize("ending", ["memory", "SIGTERM", "interrupt"])
def test_a_training_that_is_ended_resumes_from_its_checkpoint(train, tmp_path, monkeypatch, ending):
    backward, calls = torch.Tensor.backward, []

    def third_ends(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            if ending == "memory":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB.")
            os.kill(os.getpid(), signal.SIGTERM if ending == "SIGTERM" else signal.SIGINT)
        return backward(self, *args, **kwargs)

    good(*train, tmp_path / "whole")
    monkeypatch.setattr(torch.Tensor, "backward", third_ends)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        ended = run(*train, tmp_path / "orm")
    finally:
        signal.signal(signal.SIGINT, before)
    assert "Traceback" not in ended.err
    last = ended.err.splitlines()[-1]
    if ending == "memory":
        assert ended.status == 1
        assert "the memory of the device is used up: try " in last
        assert "a smaller --microbatch-tokens or --gradient-checkpointing" in last
    else:
        assert ended.status == (TERMINATED if ending == "SIGTERM" else 130)
        assert last == "surefoot: interrupted; start the same command again to resume"
    good(*train, tmp_path / "orm", *(["--microbatch-tokens=64"] if ending == "memory" else []))
    parts = [load_file(tmp_path / name / "model.safetensors") for name in ("orm", "whole")]
    close = 1e-4 if ending == "memory" else 0.0  # smaller microbatches round in another way
    torch.testing.assert_close(*parts, rtol=0, atol=close)
    curves = (tmp_path / "orm" / "curves.jsonl").read_text()
    assert (curves.count('"update"'), len(calls)) == (12, 13) or ending == "memory", "two were not done again"


def fill_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE t (x)")
        database.execute("INSERT INTO t VALUES (zeroblob(400000))")
        database.commit()


def test_what_libraries_say_of_a_full_disk(small_disk):
    full = "the disk is full"
    named = said(OSError(errno.ENOSPC, "No space", str(small_disk / "x")))
    assert named.startswith(f"{small_disk / 'x'}: {full}")
    with pytest.raises(RunError, match=full), plain_endings([small_disk / "new" / "f"], []):
        save_file({"a": torch.zeros(200_000)}, small_disk / "new.safetensors")
    with pytest.raises(RunError, match=full), plain_endings([small_disk], []):
        fill_database(small_disk / "d")


def test_quotas_and_limits_of_files_are_told_apart():
    assert "the quota of the disk is used up" in said(OSError(errno.EDQUOT, "Quota"))
    assert "ulimit -f" in said(OSError(errno.EFBIG, "File too large"))
    assert "ulimit -f" in said(SafetensorError("I/O error: Os { code: 27 } (os error 27)"))


def test_what_cannot_be_written_is_a_sentence():
    said_of = said(OSError(errno.EROFS, "Read-only file system", "/out/.traces.jsonl.0123.part"))
    assert said_of.startswith("/out: the file system is read-only: choose another --out")
    said_of = said(PermissionError(errno.EACCES, "Permission denied", "/out/traces"))
    assert said_of.startswith("/out/traces: this user may not write or read it: change its rights")
    assert "Errno" not in said_of


def test_memory_of_the_machine():
    fix = "the memory of the machine is used up: try fewer --workers, then start the same command again"
    assert said(MemoryError(), "fewer --workers").startswith(fix)
    assert "the memory of the machine is used up: free some" in said(OSError(errno.ENOMEM, "Cannot"))
    with pytest.raises(RunError, match="used up"), plain_endings([], []):
        torch.empty(10**15)


def test_a_cause_is_seen_behind_other_errors():
    error = ValueError("could not save")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert "is full" in said(error)


def test_other_errors_stay_what_they_are():
    with pytest.raises(ValueError, match="no"), plain_endings([], []):
        raise ValueError("no")


def test_sigterm_is_again_what_it_was(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end, plain_endings([tmp_path], []):
        signal.raise_signal(signal.SIGTERM)
    assert end.value.code == TERMINATED
    assert signal.getsignal(signal.SIGTERM) == before
