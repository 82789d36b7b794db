"""The two texts of a Math-Shepherd row, taken apart and put together to the last character."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from surefoot.errors import RecordError

TAG = "ки"
_FIRST = "Step 1: "


@dataclass(frozen=True, kw_only=True)
class Tagged:
    """A row: question, steps without white space around them, and a mark a step."""

    question: str
    steps: tuple[str, ...]
    marks: tuple[str, ...]
    """``+``, ``-``, or nothing for a step without a tag."""
    spaces: tuple[str, ...]
    """Before and after the question; before and after the mark of each step; at the end of ``label``."""


def plain(question: str, steps: Sequence[str], marks: Sequence[str]) -> Tagged:
    """A row with the usual white space: a space before each tag, a line break after it."""
    spaces = ["", " "]
    for mark in marks:
        spaces += [" " if mark else "", "\n"]
    return Tagged(question=question, steps=tuple(steps), marks=tuple(marks), spaces=(*spaces[:-1], "", ""))


def render(row: Tagged) -> tuple[str, str]:
    """``input`` and ``label``."""
    before, after, *spaces, end = row.spaces
    tagged, signed = [before, row.question, after], [before, row.question, after]
    for number, (step, mark) in enumerate(zip(row.steps, row.marks, strict=True)):
        gap, rest = spaces[2 * number : 2 * number + 2]
        last = number == len(row.steps) - 1
        tagged += [step, gap, TAG if mark else "", rest]
        signed += [step, gap, mark, end if last else rest]
    return "".join(tagged), "".join(signed)


def parse(text: str, label: str) -> Tagged:
    """Take a row apart; a line that begins with the number of the next step begins an untagged step.

    Raises ``RecordError`` where ``label`` does not follow ``text`` or there is no question.
    """
    pieces, signs, ends = _aligned(text, label)
    start = pieces[0].rfind(_FIRST)
    head = pieces[0][: max(start, 0)]
    question = head.strip()
    if not question:
        raise RecordError(f"field 'input': no question before '{_FIRST.strip()}'")
    lead = head[: len(head) - len(head.lstrip())]
    spaces = [lead, head[len(lead) + len(question) :]]
    steps: list[str] = []
    marks: list[str] = []
    for piece, sign in zip([pieces[0][start:], *pieces[1:]], signs, strict=True):
        chunks = _chunks(piece, len(steps) + 1)
        for number, chunk in enumerate(chunks, start=1):
            step = chunk.strip()
            left = chunk[: len(chunk) - len(chunk.lstrip())] if step else ""
            spaces[-1] += left
            right = chunk[len(left) + len(step) :]
            tagged = number == len(chunks)
            spaces += [right, ""] if tagged else ["", right]
            steps.append(step)
            marks.append(sign if tagged else "")
    spaces[-1] = ends[0]
    return Tagged(question=question, steps=tuple(steps), marks=tuple(marks), spaces=(*spaces, ends[1]))


def _chunks(piece: str, number: int) -> list[str]:
    """A tagged piece, cut before each line that begins with the number of the step after it."""
    chunks: list[str] = []
    while True:
        number += 1
        cut = piece.find(f"\nStep {number}:", 1)
        if cut < 0 or not piece[:cut].strip():
            return [*chunks, piece]
        chunks.append(piece[: cut + 1])
        piece = piece[cut + 1 :]


def _aligned(text: str, label: str) -> tuple[list[str], list[str], tuple[str, str]]:
    """Text of each tagged piece and its sign, and the ends of both texts.

    Signs are found by position, as steps may hold ``+`` and ``-``.
    """
    *pieces, rest = text.split(TAG)
    signs: list[str] = []
    place = 0
    for piece in pieces:
        place += len(piece)
        sign = label[place : place + 1]
        if label[place - len(piece) : place] != piece or sign not in ("+", "-"):
            raise RecordError(f"field 'label': does not follow 'input' near character {place}")
        signs.append(sign)
        place += 1
    if not pieces or rest.strip() or label[place:].strip():
        raise RecordError(f"field 'input': its text does not end with the tag '{TAG}'")
    return pieces, signs, (rest, label[place:])
