"""Which of a long stream of ids came before, without keeping them in memory."""

from __future__ import annotations

import sqlite3
from typing import Final

_CACHE_KIB: Final = 16_384


class Seen:
    """Counts ids in a temporary SQLite database, which is in memory while it is small; close it."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        for setting in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{_CACHE_KIB}"):
            self._database.execute(f"PRAGMA {setting}")
        self._database.execute("CREATE TABLE seen (id TEXT PRIMARY KEY, times INTEGER) WITHOUT ROWID")
        self._database.execute("BEGIN")

    def times(self, id_: str) -> int:
        """How often ``id_`` was asked for before this."""
        [(times,)] = self._database.execute(
            "INSERT INTO seen VALUES (?, 0) ON CONFLICT DO UPDATE SET times = times + 1 RETURNING times",
            (id_,),
        )
        return int(times)

    def close(self) -> None:
        """Forget all; a second call does nothing."""
        self._database.close()
