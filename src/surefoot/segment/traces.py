"""Traces with their steps filled in, and texts made of given steps."""

from __future__ import annotations

from collections.abc import Sequence

from surefoot.errors import SegmentError
from surefoot.protocols import Segmenter
from surefoot.records import Step, Trace
from surefoot.segment.tiling import Span


def segment_trace(trace: Trace, segmenter: Segmenter | None) -> Trace:
    """Copy of ``trace`` (same ``id``) with its steps filled in, in place of any it had.

    A text trace is cut by ``segmenter``. In a chat trace each assistant message is one step, its whole
    content; ``segmenter`` is not used. The messages of other roles are observations, not steps. An assistant
    message that only calls tools has the span (0, 0).

    Raises:
        SegmentError: a text trace without a segmenter, or spans that do not tile the text.
    """
    if trace.text is None:
        steps = tuple(
            Step(start=0, end=len(message.content or ""), message=number)
            for number, message in enumerate(trace.messages)
            if message.role == "assistant"
        )
        return trace.model_copy(update={"steps": steps})
    if segmenter is None:
        raise SegmentError(f"trace {trace.id} is text, so 'segmenter' must not be None")
    spans = segmenter.segment(trace.text)
    ends = [0, *(end for _, end in spans)]
    tiles = all(start == before <= end for (start, end), before in zip(spans, ends, strict=False))
    if not tiles or (ends[-1] != len(trace.text) if spans else bool(trace.text.strip())):
        raise SegmentError(f"{segmenter!r} returned spans that do not tile the text of trace {trace.id}")
    return trace.model_copy(update={"steps": tuple(Step(start=start, end=end) for start, end in spans)})


def join_steps(parts: Sequence[str], separator: str, final_separator: str = "") -> tuple[str, list[Span]]:
    """Text made of the given steps, and their spans: one a part, tiling the text, empty parts included.

    A separator belongs to the step before it; ``final_separator`` follows the last step.
    """
    pieces = [part + separator for part in parts[:-1]] + [part + final_separator for part in parts[-1:]]
    spans: list[Span] = []
    end = 0
    for piece in pieces:
        spans.append((end, end + len(piece)))
        end += len(piece)
    return "".join(pieces), spans
