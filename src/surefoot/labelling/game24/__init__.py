"""The Game of 24, checked exactly: four numbers, each used once, make 24 by ``+ - * /``.

The form of Yao et al. (Tree of Thoughts, arXiv 2305.10601) is read, one move a line::

    10 - 4 = 6 (left: 5 6 6)
    5 * 6 = 30 (left: 6 30)
    30 - 6 = 24 (left: 24)
    Answer: (10 - 4) * 5 - 6 = 24
"""

from __future__ import annotations

from surefoot.labelling.game24.game import Judged, play
from surefoot.labelling.game24.labeller import Game24Labeller, Game24Verifier
from surefoot.labelling.game24.numbers import TARGET, problem_numbers, reachable

__all__ = ["TARGET", "Game24Labeller", "Game24Verifier", "Judged", "play", "problem_numbers", "reachable"]
