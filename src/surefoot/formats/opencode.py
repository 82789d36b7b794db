"""Sessions of OpenCode: its database ``opencode.db``, and ``opencode export``.

Both hold messages with parts; a part ``tool`` is a call together with its result.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from surefoot.errors import RecordError
from surefoot.formats.imports import ChatRows, ImportContext, ImportedTrace, reader_of_runs, run_of
from surefoot.formats.rows import Row, raw_rows
from surefoot.io.files import FileLimits, RowSize

_FAILED: Final = {"completed": False, "error": True}
"""Whether a call failed, by the status of its part; others are not finished."""
_TABLES: Final = {"session", "message", "part"}
_STEPS: Final = 10_000
"""Instructions of SQLite between two looks at its work, of which there are at most ``_LOOKS``."""
_LOOKS: Final = 100_000


def is_opencode(row: Mapping[str, Any]) -> bool:
    """Whether a row is an exported session."""
    return isinstance(row["info"], Mapping) and {"info", "parts"} <= row["messages"][0].keys()


def is_opencode_database(path: Path) -> bool:
    """Whether a file is a database of OpenCode 1. Raises ``RecordError`` for any other ``.db``."""
    if path.suffix != ".db" or not path.is_file():
        return False
    try:
        with closing(_open(path)) as database:
            tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    except sqlite3.Error as error:
        raise RecordError(f"{path}: not a readable database: {error}") from error
    if not {name for (name,) in tables} >= _TABLES:
        raise RecordError(f"{path}: not a database of OpenCode 1; write the session with opencode export")
    return True


def _sessions(path: Path | str) -> Iterator[Row]:
    if is_opencode_database(Path(path)):
        yield from enumerate(_stored(Path(path)), start=1)
    else:
        yield from raw_rows(path)


def _open(path: Path) -> sqlite3.Connection:
    """The database, read only, with bounds on its work: a view in its place could run for ever."""
    looks = 0

    def look() -> int:
        nonlocal looks
        looks += 1
        return looks > _LOOKS

    database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(FileLimits.from_environment().max_piece_bytes, 2**30))
    database.set_progress_handler(look, _STEPS)
    database.execute("PRAGMA trusted_schema = OFF")
    return database


def _stored(path: Path) -> Iterator[dict[str, Any]]:
    """The sessions of a database in the form of ``opencode export``. Raises ``RecordError``."""
    try:
        with closing(_open(path)) as database:
            sessions = database.execute(
                "SELECT id, parent_id FROM session ORDER BY time_created, id"
            ).fetchall()
            for session, parent in sessions:
                size = RowSize(FileLimits.from_environment())
                messages: dict[str, dict[str, Any]] = {}
                for message, info, part in database.execute(
                    "SELECT m.id, m.data, p.data FROM message AS m "
                    "LEFT JOIN part AS p ON p.message_id = m.id "
                    "WHERE m.session_id = ? ORDER BY m.time_created, m.id, p.id",
                    (session,),
                ):
                    size.add(len(info) + len(part or ""))
                    row = messages.setdefault(message, {"info": json.loads(info), "parts": []})
                    row["parts"] += [json.loads(part)] if part else []
                yield {"info": {"id": session, "parentID": parent}, "messages": list(messages.values())}
    except (sqlite3.Error, ValueError, TypeError) as error:
        raise RecordError(f"{path}: not a readable database of OpenCode: {error}") from error


@reader_of_runs("opencode", _sessions)
def read_opencode(row: Mapping[str, Any], note: Mapping[str, Any], context: ImportContext) -> ImportedTrace:
    """One trace per session; parts without a part in the conversation, such as snapshots, are counted."""
    chat, usage = ChatRows(), list[Mapping[str, Any]]()
    infos = [message["info"] for message in row["messages"]]
    for message in row["messages"]:
        info, parts = message["info"], message["parts"]
        if info.get("role") == "user":
            chat.say("system", info.get("system"))
            chat.say("user", [_content(part) for part in parts if _is_content(part, context)])
            continue
        for part in parts:
            _add_part(chat, part, context)
        tokens = (source["tokens"] for source in (info, *reversed(parts)) if source.get("tokens"))
        usage.append(next(tokens, {}))
    last, session = infos[-1] if infos else {}, row.get("info") or {}
    error = last.get("error") or {}
    if session.get("parentID"):
        note = {**note, "subagent": str(session.get("id"))}
    return run_of(
        chat.rows,
        context,
        note,
        id=str(session.get("id") or ""),
        policy=next((info["modelID"] for info in infos if info.get("modelID")), None),
        finish_reason=last.get("finish"),
        error=str((error.get("data") or {}).get("message") or error.get("name")) if error else None,
        usage=usage,
        calls=len(usage),
    )


def _is_content(part: Mapping[str, Any], context: ImportContext) -> bool:
    """Whether a part belongs to the message; others are counted."""
    kind = part.get("type")
    if kind in ("text", "reasoning", "file", "subtask"):
        return True
    context.report.left_out[f"parts {kind}"] += 1
    return False


def _content(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] == "file":
        names = {"media_type": "mime", "filename": "filename", "url": "url"}
        return {"type": "file", "file": {name: part.get(field) for name, field in names.items()}}
    return {
        "type": "text" if part["type"] == "subtask" else part["type"],
        "text": part.get("text", part.get("prompt")),
    }


def _add_part(chat: ChatRows, part: Mapping[str, Any], context: ImportContext) -> None:
    if part.get("type") != "tool":
        if _is_content(part, context):
            chat.part(_content(part))
        return
    state = part.get("state") or {}
    chat.call(str(part.get("tool")), state.get("input") or {}, str(part.get("callID")))
    if state.get("status") in _FAILED:
        failed = _FAILED[state["status"]]
        code = (state.get("metadata") or {}).get("exit")
        failed = failed or (isinstance(code, int) and code != 0)
        content = [{"type": "text", "text": str(state.get("error" if "error" in state else "output") or "")}]
        files = [_content(file) for file in state.get("attachments") or ()]
        chat.result(str(part.get("callID")), content + files, failed)
