"""A PostgreSQL server of the tests' own: a new cluster in a folder, reached by a socket in it only."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def postgres_programs() -> Path | None:
    """Folder of ``initdb`` and ``pg_ctl``: on the path, or where Debian puts them."""
    folders = [Path(found).resolve().parent for name in ("pg_ctl",) if (found := shutil.which(name))]
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


class Postgres:
    """A cluster in a folder."""

    def __init__(self, programs: Path, folder: Path) -> None:
        # the tests kill clients and the server, never the machine, so nothing need survive a loss of power
        options = "-c fsync=off -c full_page_writes=off "
        options += f"-c listen_addresses='' -c unix_socket_directories='{folder}' -c max_connections=60"
        self._folder, self._options = folder, options
        self._pg_ctl = [programs / "pg_ctl", "-D", folder / "data", "-w"]
        self._user = _not_root(folder)
        initdb = [programs / "initdb", "-D", folder / "data", "-U", "surefoot", "-A", "trust"]
        _run([*initdb, "-E", "UTF8", "--locale=C", "--wal-segsize=1"], self._user)

    def url(self, name: str) -> str:
        """URL of a database."""
        return f"postgresql://surefoot@/{name}?host={self._folder}"

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        _run([*self._pg_ctl, "-l", self._folder / "log", "-o", self._options, "start"], self._user)

    def stop(self) -> None:
        """Stop it as a crash would."""
        _run([*self._pg_ctl, "-m", "immediate", "stop"], self._user)

    def restart(self) -> None:
        """Start it again, whether or not it still runs."""
        if self.running:
            self.stop()
        self.start()

    @property
    def running(self) -> bool:
        """Whether it runs; it may end by itself, such as on a full disk."""
        return (self._folder / "data" / "postmaster.pid").exists()


@contextmanager
def running_postgres(programs: Path, folder: Path | None = None) -> Iterator[Postgres]:
    """A new cluster, in ``folder`` if there is one; it runs for the time of the block."""
    # not below pytest's folder: only root may enter that, and the path of a socket is short
    made = folder or Path(tempfile.mkdtemp(prefix="surefoot-pg-"))
    try:
        server = Postgres(programs, made)
        server.start()
        try:
            yield server
        finally:
            if server.running:
                server.stop()
    finally:
        if folder is None:
            shutil.rmtree(made, ignore_errors=True)


def _not_root(folder: Path) -> dict[str, Any]:
    """PostgreSQL refuses to run as root: another user's id, to whom ``folder`` is given."""
    if os.getuid() != 0:
        return {}
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = names.get("postgres") or names["nobody"]
    os.chown(folder, entry.pw_uid, entry.pw_gid)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _run(command: list[Any], who: dict[str, Any]) -> None:
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.DEVNULL,  # a pipe would stay open in the server
        stderr=subprocess.DEVNULL,
        cwd="/",
        check=False,
        timeout=60,
        **who,
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}")
