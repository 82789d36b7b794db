"""Text or messages into steps (spans), and spans into token positions.

Every segmenter returns spans ``[start, end)`` in characters that tile the text: joined, they give it back.
White space and separators belong to the step before them, and white space at the very beginning to the
first step, so no step is white space alone. Text of white space alone gives an empty list. A step is never
cut inside a code fence (``` or ~~~; one left open runs to the end) or a closed LaTeX display
(``\\begin{..}..\\end{..}``, ``$$..$$``, ``\\[..\\]``).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
