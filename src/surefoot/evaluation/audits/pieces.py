"""A text trace taken apart into its steps and what stands between them, and put together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from surefoot.records import Step, Trace, content_id


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One step's text, and the text between it and the next step (after the last: the end of the trace)."""

    text: str
    gap: str
    origin: int | None = None
    """Step of the original trace that this is, unchanged; ``None`` = a new or changed one."""


@dataclass(frozen=True, kw_only=True)
class Edited:
    """A trace after an edit, and which steps to compare."""

    trace: Trace
    """The new trace: an id of its own, no outcome."""
    step: int
    """The edited step, in the new trace."""
    was: int
    """The step of the original whose score it is compared with."""
    origin: tuple[int | None, ...]
    """For each new step the original one with the same text, ``None`` for a new or changed one."""


def pieces(trace: Trace) -> list[Piece]:
    """The steps of a text trace in order; raises ``ValueError`` for a chat trace."""
    if trace.text is None:
        raise ValueError(f"trace {trace.id} is a chat; edits are for text traces")
    ends = [*(step.start for step in trace.steps[1:]), len(trace.text)]
    return [
        Piece(text=trace.step_text(number), gap=trace.text[step.end : end], origin=number)
        for number, (step, end) in enumerate(zip(trace.steps, ends, strict=True))
    ]


def rebuilt(trace: Trace, name: str, parts: Sequence[Piece], *, step: int, was: int) -> Edited:
    """``trace`` made of other pieces by the edit ``name``; what comes before the first step stays."""
    text, steps = trace.prefix(0), []
    for part in parts:
        steps.append(Step(start=len(text), end=len(text) + len(part.text)))
        text += part.text + part.gap
    # two edits can give the same text with other steps, which the usual id would not tell apart
    new = Trace(
        id=content_id("edit", trace.id, name, text, [(s.start, s.end) for s in steps]),
        problem_id=trace.problem_id,
        text=text,
        steps=tuple(steps),
        answer=trace.answer,
        policy=trace.policy,
        meta={"edit": name, "of": trace.id},
    )
    return Edited(trace=new, step=step, was=was, origin=tuple(part.origin for part in parts))


def cores(text: str) -> tuple[str, str, str]:
    """White space before, what is visible, white space after; joined, they give ``text`` back."""
    core = text.strip()
    if not core:
        return "", "", text
    start = text.index(core)
    return text[:start], core, text[start + len(core) :]


def inserted(trace: Trace, name: str, place: int, text: str) -> Edited:
    """A step of ``text`` after step ``place``, compared with the step before it."""
    found = pieces(trace)
    found.insert(place + 1, Piece(text=text, gap=found[place].gap))
    return rebuilt(trace, name, found, step=place + 1, was=place)


def replaced(trace: Trace, name: str, place: int, text: str) -> Edited:
    """``text`` for step ``place``, compared with what it was."""
    found = pieces(trace)
    found[place] = Piece(text=text, gap=found[place].gap)
    return rebuilt(trace, name, found, step=place, was=place)


def visible(trace: Trace) -> list[int]:
    """Steps with something in them."""
    return [number for number, piece in enumerate(pieces(trace)) if piece.text.strip()]
