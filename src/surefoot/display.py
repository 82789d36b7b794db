"""Shows the steps of a trace with scores, and the first score below a threshold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Final

from surefoot.answers.grading import extract_answer
from surefoot.errors import MissingExtraError, RecordError, counted
from surefoot.images import embedded, is_inline, is_kept
from surefoot.printable import printable
from surefoot.records import StepScores, Trace
from surefoot.scores import require_fit
from surefoot.segment import segment_trace, trace_blocks

_MOST_SHOWN: Final = 20 * 2**20
"""Characters of data URLs in one view."""
_MOST_READ: Final = 100
"""Images that one view reads."""
_TEXT: Final = 300
"""Longest description of an image, in characters."""


@dataclass(frozen=True, kw_only=True)
class ShownImage:
    """An image of a trace, checked by :func:`surefoot.images.embedded`."""

    next_step: int
    """The step that follows it; the number of steps after the last one."""
    text: str
    """Its name, or why it is not shown."""
    sha256: str | None = None
    """Hash of its bytes, as recorded."""
    url: str = field(default="", repr=False)
    """Its bytes as a data URL; empty for an image that is named alone."""


@dataclass(frozen=True, kw_only=True)
class TraceView:
    """Result of :func:`show`; prints one step a line, numbered from 1."""

    title: str
    steps: tuple[str, ...]
    scores: tuple[float | None, ...]
    """One per step; empty for a trace without scores."""
    first_below: int | None
    """0-based index of the first step with a score below the threshold. It need not be an error."""
    threshold: float
    images: tuple[ShownImage, ...] = ()

    def __str__(self) -> str:
        lines = [self.title]
        for step in range(len(self.steps) + 1):
            lines += [f"     [{image.text}]" for image in self.images if image.next_step == step]
            lines += [self._line(step)] if step < len(self.steps) else []
        return printable("\n".join(lines))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The same as a table of a notebook, with the images; the first low score is in bold."""
        lines = [""] * (len(self.steps) + 1)
        for image in self.images:
            text = escape(printable(image.text))
            picture = f'<img src="{image.url}" alt="{text}" style="max-width: 100%; max-height: 24em">'
            lines[image.next_step] += f"<tr><td>{picture if image.url else f'<pre>[{text}]</pre>'}</td></tr>"
        for step in range(len(self.steps)):
            line = f"<pre>{escape(printable(self._line(step)))}</pre>"
            line = f"<b>{line}</b>" if step == self.first_below else line
            lines[step] += f"<tr><td>{line}</td></tr>"
        rows = "".join(lines)
        return f"<table><caption>{escape(printable(self.title))}</caption>{rows}</table>"

    def _line(self, step: int) -> str:
        mark = f"  ▽ first score below {self.threshold:g}" if step == self.first_below else ""
        value = self.scores[step] if self.scores else None
        score = "" if not self.scores else "  n/a  " if value is None else f"{value:.3f}  "
        return f"{step + 1:3}  {score}{self.steps[step].strip()}{mark}"


def show(
    solution: Trace | str,
    scores: StepScores | None = None,
    *,
    threshold: float = 0.5,
    images: Path | str | None = None,
) -> TraceView:
    """The steps of a trace with their ``scores``, and the first step that scores below ``threshold``.

    A text is cut into steps as in ``prm.score``. Scores learned from Monte Carlo labels predict success, so
    a correct early step of a hard problem may score below ½: choose the threshold on problems with known
    errors. ``images`` is the folder of the records' file: the trace's images there stand before the step that
    follows, in a notebook the first 100 and at most 20 MB. Raises ``ScoreError`` for another trace's scores.
    """
    if isinstance(solution, str):
        name = scores.trace_id if scores else ""
        solution = segment_trace(Trace(id=name, problem_id="", text=solution))
    trace = solution
    if trace.answer is None and trace.text:
        trace = trace.model_copy(update={"answer": extract_answer(trace.text, ("boxed", "hash", "phrase"))})
    title, values = str(trace), scores.scores if scores else ()
    if scores is not None:
        require_fit(scores, trace)
        title += f", scored by {scores.scorer}"
        if missing := values.count(None):
            title += f"\n{counted(missing, 'step')} without a score: {scores.unscored_reason}"
    return TraceView(
        title=title,
        steps=tuple(trace.step_text(step).strip("\n") for step in range(len(trace.steps))),
        scores=values,
        threshold=threshold,
        images=() if images is None else tuple(shown_images(trace, Path(images), most=_MOST_SHOWN)),
        first_below=next(
            (step for step, value in enumerate(values) if value is not None and value < threshold), None
        ),
    )


def shown_images(trace: Trace, folder: Path, *, most: int, each: int = _MOST_SHOWN) -> Iterator[ShownImage]:
    """The images of a trace in reading order, with their bytes where ``folder`` keeps them within bounds.

    A data URL has at most ``each`` characters, and all together ``most``; at most 100 images are read. The
    others are named, with the reason.
    """
    steps, read, room = 0, 0, most
    for block in trace_blocks(trace):
        steps = steps if block.step is None else block.step + 1
        held = block.attachment
        if held is None or held.kind != "image":
            continue
        name = held.name or held.media_type or ("" if is_inline(held) else held.uri) or "no name"
        text, url = f"image: {name[:200]}", ""
        if is_kept(held):
            read += 1
            try:
                url = embedded(held, folder).uri or "" if read <= _MOST_READ else ""
            except (RecordError, MissingExtraError) as error:
                text = str(error)
            else:
                if not 0 < len(url) <= min(each, room):
                    text, url = f"{text}: too {'large' if url else 'many'} to be shown here", ""
        room -= len(url)
        yield ShownImage(next_step=steps, text=text[:_TEXT], sha256=held.sha256, url=url)
