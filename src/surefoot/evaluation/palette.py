"""Colours of plots, reports and pictures; all readers can tell them apart (Okabe and Ito 2008).

Nothing depends on red against green: blue means yes or right, orange means no or wrong, and each has a
word or a mark as well.
"""

SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f")
"""Colours of lines in order; the ninth line starts again with another marker. They work on white and dark."""

GREY = SERIES[-1]
