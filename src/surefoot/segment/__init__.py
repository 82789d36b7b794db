"""Text or messages into steps (spans), and spans into token positions.

Every segmenter returns spans ``[start, end)`` in characters that tile the text: joined, they give it back.
White space and separators belong to the step before them, and white space at the very beginning to the
first step, so no step is white space alone. Text without a visible character has no steps. A step is never
cut inside a code fence (``` or ~~~; one left open runs to the end) or a closed LaTeX display
(``\\begin{..}..\\end{..}``, ``$$..$$``, ``\\[..\\]``).
"""

from __future__ import annotations

from surefoot.segment.segmenters import BlankLine, Line, Marker, Sentence, segmenter
from surefoot.segment.token_ends import token_positions
from surefoot.segment.traces import join_steps, segment_trace

__all__ = [
    "BlankLine",
    "Line",
    "Marker",
    "Sentence",
    "join_steps",
    "segment_trace",
    "segmenter",
    "token_positions",
]
