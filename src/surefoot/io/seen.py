"""Which of a long stream of ids came before, without keeping them in memory."""

from __future__ import annotations

import hashlib
import sqlite3
from typing import Final

CACHE_KIB: Final = 2_048
"""Memory that SQLite may use for the pages of one database. More was no faster with millions of rows."""
_DIGEST_BYTES: Final = 16


class Seen:
    """Counts ids in a temporary SQLite database, which is in memory while it is small; close it."""

    def __init__(self) -> None:
        self._database = _temporary("CREATE TABLE seen (id TEXT PRIMARY KEY, times INTEGER) WITHOUT ROWID")

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


class SeenByKey:
    """Knows the texts that came before of each key, in such a database.

    Texts of a key that follow one another, as labels of one trace do, take one look-up together: with one for
    each, of millions of labels in no order, the time grows faster than their number.
    """

    def __init__(self) -> None:
        self._database = _temporary("CREATE TABLE seen (key TEXT PRIMARY KEY, digests BLOB) WITHOUT ROWID")
        self._key: str | None = None
        self._digests: set[bytes] = set()

    def again(self, key: str, text: str) -> bool:
        """Whether ``text`` was asked for with ``key`` before this."""
        if key != self._key:
            self._store()
            self._key, self._digests = key, self._stored(key)
        digest = hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()
        before = digest in self._digests
        self._digests.add(digest)
        return before

    def _stored(self, key: str) -> set[bytes]:
        found = self._database.execute("SELECT digests FROM seen WHERE key = ?", (key,)).fetchone()
        digests = found[0] if found else b""
        return {digests[at : at + _DIGEST_BYTES] for at in range(0, len(digests), _DIGEST_BYTES)}

    def _store(self) -> None:
        if self._key is not None:
            row = (self._key, b"".join(self._digests))
            self._database.execute("INSERT OR REPLACE INTO seen VALUES (?, ?)", row)

    def close(self) -> None:
        """Forget all; a second call does nothing."""
        self._database.close()


def _temporary(table: str) -> sqlite3.Connection:
    database = sqlite3.connect("", isolation_level=None)
    for setting in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{CACHE_KIB}"):
        database.execute(f"PRAGMA {setting}")
    database.execute(table)
    database.execute("BEGIN")
    return database
