"""Words that change what an equation beside them means."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


BEFORE = _words(
    """of half twice double triple thrice times plus minus by over third thirds quarter quarters fourth fifth
    percent root square squared cube cubed log ln sin cos tan mod modulo base dozen hundred thousand million
    billion per more less fewer than sum product difference quotient average mean add subtract multiply divide
    remaining other another day days week weeks month months year years step steps page pages chapter grade
    number question problem part case row level age ages"""
)
"""Right before an equation, these may be part of its left side."""

BEFORE_AFTER_NUMBER = _words("and or to from than by with in")
"""These too, with a number before them."""

AFTER = _words(
    """times of squared cubed remainder plus minus multiplied divided more less fewer percent over choose
    factorial mod modulo point dozen hundred thousand million billion pair pairs half halves r rem"""
)
"""Right after an equation, these may be part of its right side."""

SCALES = _words("dozen dozens hundred thousand million billion pair pairs half k score percent")
"""As units, these multiply the number before them."""

MEASURES = _words(
    """second seconds sec secs minute minutes min mins hour hours hr hrs day days week weeks month months year
    years decade decades cent cents dollar dollars penny pennies nickel nickels dime dimes quarter quarters
    inch inches foot feet yard yards mile miles meter meters metre metres centimeter centimeters cm mm m km
    kilometer kilometers gram grams g kg kilogram kilograms pound pounds lb lbs ounce ounces oz ton tons
    liter liters litre litres ml milliliter milliliters gallon gallons quart quarts pint pints cup cups
    degree degrees"""
)
"""Units that are converted into one another."""

CONJUNCTIONS = _words(
    """because so and then is are was were which that this thus therefore since or but if as when while where
    hence giving gives equals means for to from in on at with by"""
)
"""After a number, these are no unit."""

RELATIONS = _words(
    "approx le leq ge geq ne neq lt gt sim simeq Rightarrow rightarrow implies to iff Leftrightarrow"
)
"""LaTeX's relations other than equality."""

GREEK = _words("alpha beta gamma delta theta lambda mu phi rho sigma omega pi")
