"""Formal proofs into steps: sentences of Rocq, tactics of Lean. Nothing is run."""

from __future__ import annotations

import re
from dataclasses import dataclass

from surefoot.segment.spans import Span, tile_at

_ROCQ = re.compile(
    r"""(?P<string>"(?:[^"]|"")*(?:"|\Z))"""
    r"""|(?P<open>\(\*)|(?P<close>\*\))"""
    r"""|(?P<dots>\.{2,})|(?P<dot>\.)"""
)
_CLOSING = re.compile(r"(?:\s*\})+")
_LEAN_COMMENT = re.compile(r"--[^\n]*|/-.*?(?:-/|\Z)", re.DOTALL)


@dataclass(frozen=True)
class RocqSentences:
    """A step is a sentence of Rocq (formerly Coq), which ends with a period before white space.

    Bullets and ``{`` go with the sentence after them, ``}`` with the one before. Periods in comments and
    strings end nothing, nor do the two of ``..``; three end a sentence after ``Proof with``.
    """

    def segment(self, text: str) -> list[Span]:
        """Spans that tile ``text``."""
        return tile_at(text, _rocq_ends(text))


def _rocq_ends(text: str) -> list[int]:
    ends, depth, at = [], 0, 0
    while match := _ROCQ.search(text, at):
        at = match.end()
        match match.lastgroup:
            case "open":
                depth += 1
            case "close":
                depth = max(depth - 1, 0)
            case "dot" | "dots" if not depth and len(match[0]) != 2 and not text[at : at + 1].strip():
                closing = _CLOSING.match(text, at)
                at = closing.end() if closing else at
                ends.append(at)
    return ends


@dataclass(frozen=True)
class LeanTactics:
    """A step is a tactic of a Lean proof: a line of the least indentation, with the deeper lines after it."""

    def segment(self, text: str) -> list[Span]:
        """Spans that tile ``text``."""
        hidden = [False] * len(text)
        for comment in _LEAN_COMMENT.finditer(text):
            hidden[comment.start() : comment.end()] = [True] * (comment.end() - comment.start())
        starts, at = [], 0
        for line in text.splitlines(keepends=True):
            first = at + len(line) - len(line.lstrip())
            if line.strip() and not hidden[first]:
                starts.append((at, first - at))
            at += len(line)
        least = min((indent for _, indent in starts), default=0)
        return tile_at(text, [start for start, indent in starts if indent == least and start])
