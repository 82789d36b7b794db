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


@contextmanager
def running_postgres(programs: Path) -> Iterator[str]:
    """Yield the start of a URL, to be completed by ``url.format(name=...)``; the server stops afterwards."""
    # not below pytest's folder: only root may enter that, and the path of a socket is short
    folder = Path(tempfile.mkdtemp(prefix="surefoot-pg-"))
    who = _not_root(folder)
    data = folder / "data"
    try:
        _run(
            [programs / "initdb", "-D", data, "-U", "surefoot", "-A", "trust", "-E", "UTF8", "--locale=C"],
            who,
        )
        # the tests kill clients, never the server, so nothing here needs to survive a loss of power
        options = "-c fsync=off -c full_page_writes=off "
        options += f"-c listen_addresses='' -c unix_socket_directories='{folder}' -c max_connections=60"
        log = folder / "log"
        _run([programs / "pg_ctl", "-D", data, "-l", log, "-o", options, "-w", "start"], who)
        try:
            yield f"postgresql://surefoot@/{{name}}?host={folder}"
        finally:
            _run([programs / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop"], who)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
