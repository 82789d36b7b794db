"""Steps given as a list, as one text with spans, and back."""

from __future__ import annotations

from collections.abc import Sequence

from surefoot.records import Step, Trace

SEPARATOR_KEY = "separator"
"""Where ``Trace.meta`` notes what a reader put between steps, so that a writer can take it out again."""


def join_parts(parts: Sequence[str], separator: str) -> tuple[str, tuple[Step, ...]]:
    """Text and tiling spans of ``parts``; a separator belongs to the step before it."""
    steps: list[Step] = []
    end = 0
    for number, part in enumerate(parts, start=1):
        length = len(part) + (len(separator) if number < len(parts) else 0)
        steps.append(Step(start=end, end=end + length))
        end += length
    return separator.join(parts), tuple(steps)


def step_parts(trace: Trace) -> list[str]:
    """The steps of a text trace without what parts them.

    For a trace that one of this package's readers joined these are the very parts; for any other, the
    white space around each step is taken off.
    """
    texts = [trace.step_text(index) for index in range(len(trace.steps))]
    separator = trace.meta.get(SEPARATOR_KEY)
    if not isinstance(separator, str):
        return [text.strip() for text in texts]
    return [text.removesuffix(separator) for text in texts[:-1]] + texts[-1:]
