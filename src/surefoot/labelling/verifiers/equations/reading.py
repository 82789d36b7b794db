"""Where equations are in a step, and what around them allows another reading.

A false alarm is worse than a miss. So an equation may *hold* in any context in which it can be parsed, but it
is *wrong* only if nothing around it allows another reading.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from surefoot.labelling.verifiers.equations.parsing import Side, Token, parse_side, tokenize
from surefoot.maths import words

MAX_CHARS = 20_000
"""Longest step that is parsed."""
MAX_EQUATIONS = 60
"""Equations of one step that are read; the others are ignored."""


_IN_EXPRESSION = frozenset(
    {"num", "frac", "op", "open", "close", "cmd", "sym", "post", "of", "unit", "func", "abs", "step"}
)
_RELATION = frozenset({"eq", "rel"})

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\\$*#-])|\n[ \t]*\n|\n(?=[ \t]*(?:[-*#]|[0-9]{1,3}[.)]))")
_SCALED = re.compile(r"\b(?:thousand|million|billion|hundred|dozen|cents?|percent)", re.IGNORECASE)


class Equation(NamedTuple):
    """``left = right`` in a step."""

    left: Side
    right: Side
    text: str
    """The equation as written."""
    start: int
    end: int
    """Where it is in the step."""
    before: str
    """The part of its sentence or list item before it, up to 200 characters."""
    after: str
    """The rest of that sentence, up to 80 characters."""
    following: str
    """The next sentence, up to 80 characters."""
    doubt: str | None
    """What allows another reading; ``None`` = it can hold or be wrong."""
    number_doubt: str | None
    """Why it cannot be wrong as a statement about numbers; it may still relate unknowns."""
    approximate: bool
    """The relation is ``≈``."""
    measured: bool
    """It has a unit of measure, or a unit follows, so it may be a conversion."""
    scaled: bool
    """The step mentions thousands, cents and the like."""


def find_equations(text: str) -> tuple[Equation, ...]:
    """The first ``MAX_EQUATIONS`` equations in ``text``, in order; each link of a chain is an equation.

    A text longer than ``MAX_CHARS`` has none.
    """
    if len(text) > MAX_CHARS:
        return ()
    equations: list[Equation] = []
    if "<<" in text:
        for match in _ANNOTATION.finditer(text):
            equations += _equations(" " * match.start(1) + match[1])
        text = _ANNOTATION.sub(lambda m: " " * len(m.group()), text)
    equations += _equations(text)
    return tuple(equations[:MAX_EQUATIONS])


_ANNOTATION = re.compile(r"<<([^<>\n]*)>>")
_BEFORE, _AROUND = 200, 80


def _equations(text: str) -> list[Equation]:
    tokens = tokenize(text)
    if "eq" not in [token.kind for token in tokens]:
        return []
    tokens = _join_rows(_open_brackets(tokens))
    scaled = _SCALED.search(text) is not None
    bounds = [0, *(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]
    return [
        equation
        for start, end in _chunks(tokens)
        for equation in _links(text, tokens, start, end, scaled, bounds)
    ]


def _join_rows(tokens: list[Token]) -> list[Token]:
    """Leave out a line break before ``=``, where a chain continues, and the dollars in ``$a$ = $b$``."""
    joined = []
    for index, token in enumerate(tokens):
        if token.kind == "break":
            following = next((t for t in tokens[index + 1 : index + 3] if t.kind != "break"), None)
            if following is not None and following.kind == "eq":
                continue
        elif token.kind == "delim":
            neighbours = {
                t.kind for t in (*tokens[max(index - 1, 0) : index], *tokens[index + 1 : index + 2])
            }
            if neighbours & _RELATION and "delim" not in neighbours:
                continue
        joined.append(token)
    return joined


def _open_brackets(tokens: list[Token]) -> list[Token]:
    """Turn brackets around equations or words, and unmatched brackets, into bounds of equations."""
    bounds: set[int] = set()
    stack: list[tuple[int, bool]] = []
    for index, token in enumerate(tokens):
        if token.kind == "open":
            stack.append((index, False))
        elif token.kind == "close":
            if not stack:
                bounds.add(index)
                continue
            start, foreign = stack.pop()
            if foreign:
                bounds |= {start, index}
                if stack:
                    stack[-1] = (stack[-1][0], True)
        elif stack and token.kind not in _IN_EXPRESSION:
            stack[-1] = (stack[-1][0], True)
    bounds |= {start for start, _ in stack}
    if not bounds:
        return tokens
    return [
        token._replace(kind=_bracket_kind(tokens, index)) if index in bounds else token
        for index, token in enumerate(tokens)
    ]


def _bracket_kind(tokens: Sequence[Token], index: int) -> str:
    """A bracket next to an operator belongs to an expression that is cut off there."""
    neighbour = index - 1 if tokens[index].kind == "open" else index + 1
    by_operator = 0 <= neighbour < len(tokens) and tokens[neighbour].kind == "op"
    return "opaque" if tokens[index].name in "{}" or by_operator else "bound"


def _chunks(tokens: Sequence[Token]) -> Iterator[tuple[int, int]]:
    """Longest runs of expressions and relations that hold an equals sign."""
    start = None
    has_equals = False
    for index in range(len(tokens) + 1):
        kind = tokens[index].kind if index < len(tokens) else "end"
        if kind in _IN_EXPRESSION or kind in _RELATION:
            start = index if start is None else start
            has_equals = has_equals or kind == "eq"
            continue
        if start is not None and has_equals:
            yield start, index
        start, has_equals = None, False


def _links(
    text: str, tokens: Sequence[Token], start: int, end: int, scaled: bool, bounds: Sequence[int]
) -> Iterator[Equation]:
    """The links of the chain in ``tokens[start:end]``."""
    left_broken, left_doubt, drop = _left_context(tokens, start)
    right_broken, right_doubt = _right_context(tokens, end)
    start += drop
    cuts = [start - 1, *(i for i in range(start, end) if tokens[i].kind in _RELATION), end]
    pieces = [tokens[a + 1 : b] for a, b in pairwise(cuts)]
    sides = [parse_side(piece) for piece in pieces]
    units = {token.name for token in tokens[start:end] if token.kind == "unit"}
    following = _next(tokens, end)
    follows = following.name.casefold() if following is not None and following.kind == "word" else ""
    unit_doubt = _unit_doubt(units, follows)
    measured = bool(units & MEASURES) or follows.split(" ")[0] in MEASURES
    if left_broken:
        sides[0] = Side(tree=None, problem=left_broken)
    if right_broken:
        sides[-1] = Side(tree=None, problem=right_broken)
    before_start = max(bisect_right(bounds, tokens[start].start) - 1, 0)
    after_end = min(bisect_left(bounds, tokens[end - 1].end), len(bounds) - 1)
    sentence_start, sentence_end = bounds[before_start], bounds[after_end]
    next_end = bounds[min(after_end + 1, len(bounds) - 1)]
    for number, (lhs, rhs) in enumerate(pairwise(sides)):
        if tokens[cuts[number + 1]].kind != "eq" or not pieces[number] or not pieces[number + 1]:
            continue
        doubt = lhs.doubt or rhs.doubt or unit_doubt
        number_doubt = None
        if number == 0:
            doubt = doubt or left_doubt
            named = any(t.kind == "unit" for t in pieces[0]) or (
                start > 0 and tokens[start - 1].kind == "word"
            )
            if lhs.places is not None and (named or _has_sum(rhs)):
                number_doubt = "it begins with a number, which may be a value to test"
        if any(token.kind == "of" for token in pieces[number + 1]):
            doubt = doubt or "'of' on the right side"
        if number == len(sides) - 2:
            doubt = doubt or right_doubt
        at, to = pieces[number][0].start, pieces[number + 1][-1].end
        if lhs.places is not None and rhs.places is not None:
            number_doubt = "two numbers without an operation"
        yield Equation(
            left=lhs,
            right=rhs,
            text=_quote(text, at, to),
            start=at,
            end=to,
            before=text[max(sentence_start, at - _BEFORE) : at],
            after=text[to:sentence_end][:_AROUND],
            following=text[sentence_end:next_end][:_AROUND],
            doubt=doubt,
            number_doubt=number_doubt,
            approximate=tokens[cuts[number + 1]].name == "≈",
            measured=measured,
            scaled=scaled,
        )


def _quote(text: str, start: int, end: int) -> str:
    previous = text[max(0, start - 8) : start].rstrip()
    return ("\\left" if previous.endswith("\\left") else "") + text[start:end]


def _left_context(tokens: Sequence[Token], start: int) -> tuple[str | None, str | None, int]:
    """Why the first side is cut off, what makes it doubtful, and tokens to drop (a list's bullet)."""
    previous = tokens[start - 1] if start else None
    first = tokens[start]
    opens = previous is not None and previous.kind == "delim"
    displayed = previous is not None and previous.name in _DISPLAYS
    if opens:
        previous = _previous(tokens, start)
        if displayed:
            return None, None, 0
        if previous is not None and previous.kind in _IN_EXPRESSION | _RELATION:
            return "it continues outside the formula", None, 0
    if previous is not None and previous.kind == "bound":
        if (
            previous.name in ")]"
            and not opens
            and (first.kind == "op" or first.math or first.start == previous.end)
        ):
            return "a bracket with words before it", None, 0
        listed = start >= 2 and previous.name == "," and tokens[start - 2].kind == "num"
        return None, "a list of numbers precedes it" if listed else None, 0
    if previous is None or previous.kind == "break":
        spaced = start + 1 < len(tokens) and tokens[start + 1].start > first.end
        return None, None, int(first.kind == "op" and first.name in "-*+" and spaced)
    if previous.kind == "opaque":
        return f"{previous.name!r} before it cannot be parsed", None, 0
    if first.kind == "op" and not opens:
        return "an operator after a word", None, 0
    word = previous.name.casefold().split(" ")[-1]
    earlier = tokens[start - 2] if start >= 2 else None
    if word in BEFORE:
        return None, f"{word!r} precedes it", 0
    if (
        earlier is not None
        and not (first.kind == "sym" and tokens[start + 1].kind == "eq")
        and earlier.kind in ("num", "post", "frac", "unit")
        and word in BEFORE_AFTER_NUMBER
    ):
        return None, f"a number and {word!r} precede it", 0
    return None, None, 0


_DISPLAYS = frozenset(("\\[", "\\]", "$$"))
"""Delimiters of formulas that stand alone."""


def _right_context(tokens: Sequence[Token], end: int) -> tuple[str | None, str | None]:
    following = tokens[end] if end < len(tokens) else None
    last = tokens[end - 1]
    if following is not None and following.kind == "delim":
        if following.name in _DISPLAYS:
            return None, None
        following = _next(tokens, end)
        if following is not None and following.kind in _IN_EXPRESSION | _RELATION:
            return "it continues outside the formula", None
    if following is not None and following.kind == "opaque":
        return f"{following.name!r} after it cannot be parsed", None
    if (
        following is not None
        and following.name in ("(", "[")
        and (following.math or following.start == last.end)
    ):
        return "a bracket with words after it", None
    if last.kind == "post" and last.name == "!":
        return None, "it ends with '!'"
    if following is None or following.kind != "word":
        question = following is not None and following.name == "?"
        return None, "it is part of a question" if question else None
    word = following.name.casefold().split(" ")[0]
    return None, f"{word!r} follows it" if word in AFTER else None


def _previous(tokens: Sequence[Token], start: int) -> Token | None:
    return next((tokens[i] for i in range(start - 1, -1, -1) if tokens[i].kind != "delim"), None)


def _next(tokens: Sequence[Token], end: int) -> Token | None:
    return next((tokens[i] for i in range(end, len(tokens)) if tokens[i].kind != "delim"), None)


def _unit_doubt(units: set[str], follows: str) -> str | None:
    if (units | {follows}) & SCALES:
        return "a word such as 'dozen' scales a number"
    if follows.split(" ")[0] in MEASURES:
        units = units | {follows.split(" ")[0]}
    return "several units" if len({unit.rstrip("s") for unit in units}) > 1 else None


def _has_sum(side: Side) -> bool:
    """Whether there is a sum or a root, so that this is not a plain factorisation."""
    nodes = side.tree.walk() if side.tree is not None else ()
    return any((node.kind == "+" and node.text != "mixed") or node.text == "sqrt" for node in nodes)


BEFORE = words(
    """of half twice double triple thrice times plus minus by over third thirds quarter quarters fourth
    fifth percent root square squared cube cubed log ln sin cos tan mod modulo base dozen hundred
    thousand million billion per more less fewer than sum product difference quotient average mean add
    subtract multiply divide remaining other another day days week weeks month months year years step
    steps page pages chapter grade number question problem part case row level age ages"""
)
"""Right before an equation, these may be part of its left side."""

BEFORE_AFTER_NUMBER = words("and or to from than by with in")
"""These too, with a number before them."""

AFTER = words(
    """times of squared cubed remainder plus minus multiplied divided more less fewer percent over choose
    factorial mod modulo point dozen hundred thousand million billion pair pairs half halves r rem"""
)
"""Right after an equation, these may be part of its right side."""

SCALES = words("dozen dozens hundred thousand million billion pair pairs half k score percent")
"""As units, these multiply the number before them."""

MEASURES = words(
    """second seconds sec secs minute minutes min mins hour hours hr hrs day days week weeks month months
    year years decade decades cent cents dollar dollars penny pennies nickel nickels dime dimes quarter
    quarters inch inches foot feet yard yards mile miles meter meters metre metres centimeter
    centimeters cm mm m km kilometer kilometers gram grams g kg kilogram kilograms pound pounds lb lbs
    ounce ounces oz ton tons liter liters litre litres ml milliliter milliliters gallon gallons quart
    quarts pint pints cup cups degree degrees"""
)
"""Units that are converted into one another."""
