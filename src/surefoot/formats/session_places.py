"""Where coding agents keep their sessions, and the newest of these."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MOST_FILES: Final = 100_000


@dataclass(frozen=True, kw_only=True)
class SessionFile:
    """A file with a session, or a database with several."""

    path: Path
    format: str
    changed_s: float
    """Time of its last change, in seconds since 1970."""
    size: int
    """Bytes."""


def session_places() -> dict[str, tuple[Path, str]]:
    """The folder of each agent, by the name of its format, and the pattern of the files there."""
    home = Path.home()

    def folder(variable: str, default: str) -> Path:
        return Path(os.environ.get(variable) or home / default)

    return {
        "claude-code": (folder("CLAUDE_CONFIG_DIR", ".claude") / "projects", "*/*.jsonl"),
        "codex": (folder("CODEX_HOME", ".codex") / "sessions", "*/*/*/rollout-*.jsonl"),
        "gemini-cli": (home / ".gemini/tmp", "*/chats/session-*.json*"),
        "opencode": (folder("XDG_DATA_HOME", ".local/share") / "opencode", "opencode*.db"),
        "mini-swe-agent": (folder("XDG_CONFIG_HOME", ".config") / "mini-swe-agent", "*.traj.json"),
    }


def newest_sessions(count: int) -> list[SessionFile]:
    """The newest sessions, the last changed one first."""
    sessions = []
    for name, (folder, pattern) in session_places().items():
        for path, _ in zip(folder.glob(pattern), range(_MOST_FILES), strict=False):
            with suppress(OSError):
                facts = path.stat()
                file = SessionFile(path=path, format=name, changed_s=facts.st_mtime, size=facts.st_size)
                sessions.append(file)
    return sorted(sessions, key=lambda session: (-session.changed_s, session.path))[:count]
