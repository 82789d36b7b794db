"""Arithmetic and algebra in a step, checked exactly: equations that hold, do not hold, cannot be checked.

A false alarm is worse than a miss. So an equation can *hold* in any context in which it can be parsed, but it
*fails* only if nothing around it allows another reading.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Literal, Self

from surefoot.errors import LabelError
from surefoot.io.workers import WorkerPool
from surefoot.labelling.verifiers.expressions import (
    Expression,
    Notation,
    NotRationalError,
    Side,
    Token,
    TooLargeError,
    as_json,
    bounds,
    half_unit,
    load_algebra,
    may_differ_by_a_constant,
    parse_side,
    symbols,
    tokenize,
    value,
)
from surefoot.maths import words
from surefoot.protocols import ProblemTrace, Verdict

MAX_CHARS = 20_000
"""Longest step that is parsed."""

EquationState = Literal["holds", "rounded", "fails", "unchecked"]


@dataclass(frozen=True, kw_only=True)
class EquationCheck:
    """The result for one equation."""

    text: str
    """The equation as written."""
    state: EquationState
    """``rounded`` counts as holding."""
    reason: str


class ArithmeticVerifier:
    """A :class:`surefoot.protocols.StepVerifier` for the equations in a step.

    It parses plain text (``48/2 = 24``, ``2 x $3 = $6``), GSM8K's calculator marks (``<<48/2=24>>``) and
    LaTeX, chains included. Each equation

    - *holds* if both sides are equal exactly, or are identical for all values of their letters;
    - holds *rounded* if one side is a single decimal number (at least one digit after the point) and the
      other differs from it by at most half a unit of its last shown digit: ``10/3 = 3.33``, or by the error
      of floating-point arithmetic: ``17 * .1 = 1.7000000000000002``;
    - *does not hold* if the sides differ otherwise and no other reading is plausible;
    - *cannot be checked* in all other cases. Among them: equations to solve and definitions (``x = 5``); an
      integer instead of a fraction less than 1 away, or a decimal less than one unit of its last digit away
      (rounded up, down or cut off on purpose); a result within the rounding of the decimals on the other side
      (``3 * 3.33 = 10.00``); a chain that continues with the result (``5 + 5 = 10 + 2 = 12``); units that may
      be converted; steps that refute or suppose (``0 = 1, a contradiction``), other number bases.

    A step is -1 if an equation does not hold, +1 if one was checked and all that were checked hold, and
    ``None`` otherwise. Letters and roots go to SymPy, in a process limited to ``timeout_s`` seconds an
    equation and ``memory_mb`` MiB; most equations need none. Use as a context manager, or call ``close``.
    """

    name = "arithmetic"

    def __init__(self, *, timeout_s: float = 5.0, memory_mb: int = 1024) -> None:
        """Raises ``LabelError`` for a limit that is not positive."""
        if timeout_s <= 0 or memory_mb <= 0:
            raise LabelError(f"timeout_s={timeout_s} and memory_mb={memory_mb} must be positive")
        self._worker = WorkerPool(load_algebra, timeout_s=timeout_s, memory_mb=memory_mb, error=LabelError)
        self._algebra = lru_cache(maxsize=20_000)(self._ask)

    def verify(self, items: Sequence[ProblemTrace]) -> list[list[Verdict]]:
        """One list per item, one verdict per step. Raises ``LabelError`` if the process cannot start."""
        return [
            [
                self._verdict(item.trace.step_text(step), item.problem.text)
                for step in range(len(item.trace.steps))
            ]
            for item in items
        ]

    def check(self, text: str, *, problem: str = "") -> list[EquationCheck]:
        """The result for each equation of one step, in order.

        ``problem`` is the problem's text: if it defines number bases or operations, a false equation cannot
        be checked. A step longer than ``MAX_CHARS`` is not parsed.
        """
        if len(text) > MAX_CHARS:
            return []
        checks = [self._check(equation) for equation in find_equations(text)]
        failed = any(check.state == "fails" for check in checks)
        context = _context_doubt(text, problem) if failed else None
        if context is None:
            return checks
        return [
            replace(check, state="unchecked", reason=f"{check.reason}, but {context}")
            if check.state == "fails"
            else check
            for check in checks
        ]

    def close(self) -> None:
        """Stop the process for algebra. Can be repeated; a later check starts another."""
        self._worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _verdict(self, text: str, problem: str) -> Verdict:
        checks = self.check(text, problem=problem)
        if not checks:
            long = len(text) > MAX_CHARS
            return Verdict(value=None, reason="the step is too long" if long else "nothing to check")
        failed = [check for check in checks if check.state == "fails"]
        if failed:
            return Verdict(value=-1, reason=f"does not hold: {failed[0].text} ({failed[0].reason})")
        held = [check for check in checks if check.state in ("holds", "rounded")]
        if not held:
            return Verdict(value=None, reason=f"cannot be checked: {checks[0].reason}")
        rounded = sum(check.state == "rounded" for check in held)
        note = f", {rounded} of them rounded" if rounded else ""
        return Verdict(value=1, reason=f"{len(held)} of {len(checks)} equations hold{note}")

    def _check(self, equation: Equation) -> EquationCheck:
        left, right = equation.left, equation.right
        if left.tree is None or right.tree is None:
            problem = left.problem or right.problem or "it cannot be parsed"
            return EquationCheck(text=equation.text, state="unchecked", reason=problem)
        try:
            state, reason = self._compare(equation, left.tree, right.tree)
        except TooLargeError as error:
            state, reason = "unchecked", str(error)
        except ZeroDivisionError:
            state, reason = "unchecked", "a division by zero"
        if state == "fails" and equation.doubt:
            state, reason = "unchecked", f"{equation.doubt}, else {reason}"
        return EquationCheck(text=equation.text, state=state, reason=reason)

    def _compare(self, equation: Equation, left: Expression, right: Expression) -> tuple[EquationState, str]:
        try:
            return _compare_numbers(equation, left, right)
        except NotRationalError:
            pass
        names = symbols(left) | symbols(right)
        if names - {"pi"} and not may_differ_by_a_constant(left, right):
            return "unchecked", "an equation to solve or a definition"
        relation, values = self._algebra(left, right)
        if relation == "identity":
            return "holds", "equal for all values" if names - {"pi"} else "equal"
        if values is not None:
            return _compare_values(equation, *values)
        if relation == "never":
            return "fails", "true for no value"
        failed = relation.startswith("algebra")
        return "unchecked", relation if failed else "an equation to solve or a definition"

    def _ask(self, left: Expression, right: Expression) -> tuple[str, tuple[Fraction, Fraction] | None]:
        reply = self._worker.ask({"left": as_json(left), "right": as_json(right)})
        if reply.failure:
            return f"algebra failed: {reply.failure}", None
        values = reply.answer.get("values")
        return reply.answer["relation"], (Fraction(values[0]), Fraction(values[1])) if values else None


def _compare_numbers(equation: Equation, left: Expression, right: Expression) -> tuple[EquationState, str]:
    """Compare two sides without letters. Raises ``NotRationalError`` if there are any."""
    x, y = value(left, Notation()), value(right, Notation())
    if x == y:
        return "holds", "equal"
    if _rounds(equation.left, x, y) or _rounds(equation.right, y, x):
        return "rounded", "equal when rounded to the digits shown"
    if (equation.left.places or equation.right.places) and abs(x - y) <= _FLOAT_ERROR * abs(y):
        return "rounded", "equal in floating-point arithmetic"
    for note, readings in _READINGS:
        for left_reading, right_reading in readings:
            u, v = value(left, left_reading), value(right, right_reading)
            if u == v:
                return "holds", f"equal, {note}"
            if _rounds(equation.left, u, v, left_reading) or _rounds(equation.right, v, u, right_reading):
                return "rounded", f"equal when rounded to the digits shown, {note}"
    difference = f"{_shown(x)}, not {_shown(y)}"
    reason = _excuse(equation, left, right, x, y)
    return ("unchecked", f"{difference}, but {reason}") if reason else ("fails", difference)


def _compare_values(equation: Equation, x: Fraction, y: Fraction) -> tuple[EquationState, str]:
    """Compare roots and pi by their decimals."""
    if _rounds(equation.left, x, y) or _rounds(equation.right, y, x):
        return "rounded", "equal when rounded to the digits shown"
    if ("pi" in _names(equation.left)) != ("pi" in _names(equation.right)):
        return "unchecked", "an approximation of pi, or degrees"
    difference = f"{_shown(x)}, not {_shown(y)}"
    if _nearly(equation.left, x, y) or _nearly(equation.right, y, x):
        return "unchecked", f"{difference}, but it may be rounded"
    return "fails", difference


def _names(side: Side) -> set[str]:
    return symbols(side.tree) if side.tree else set()


_FLOAT_ERROR = Fraction(1, 2**48)
"""Relative error of a few floating-point operations: ``17 * .1 = 1.7000000000000002``."""
_PLAIN, _BY_UNIT, _AS_FACTOR = Notation(), Notation(percent=Fraction(1)), Notation(mixed=False)
_READINGS = (
    ("'%' read as a unit", ((_BY_UNIT, _PLAIN), (_PLAIN, _BY_UNIT), (_BY_UNIT, _BY_UNIT))),
    ("a number before a fraction read as a factor", ((_AS_FACTOR, _AS_FACTOR),)),
)


def _rounds(side: Side, x: Fraction, y: Fraction, reading: Notation = _PLAIN) -> bool:
    """Whether ``side``, of value ``x``, is ``y`` rounded to the digits it shows."""
    return bool(side.places) and abs(x - y) <= _unit(side, reading) / 2


def _nearly(side: Side, x: Fraction, y: Fraction) -> bool:
    """Whether ``y`` lies within one unit of the last digit of ``side``, and has more digits than it shows."""
    return side.places is not None and abs(x - y) < _unit(side) and (y / _unit(side)).denominator != 1


def _unit(side: Side, reading: Notation = _PLAIN) -> Fraction:
    unit = 2 * half_unit(side.places or 0)
    return unit * reading.percent if side.tree is not None and _is_percent(side.tree) else unit


def _is_percent(node: Expression) -> bool:
    return node.kind == "%" or (node.kind == "neg" and _is_percent(node.parts[0]))


def _excuse(equation: Equation, left: Expression, right: Expression, x: Fraction, y: Fraction) -> str | None:
    """Why the equation might still be right in another reading."""
    if _nearly(equation.left, x, y) or _nearly(equation.right, y, x):
        return "it may be rounded on purpose"
    try:
        (low, high), (low2, high2) = bounds(left, Notation()), bounds(right, Notation())
        if low <= high2 and low2 <= high:
            return "that is within the rounding of its decimals"
    except (NotRationalError, ZeroDivisionError):
        return "a decimal in it may be rounded"
    if equation.right.places is None and value(leading_number(right), Notation()) == x:
        return "the chain continues with the result"
    if equation.measured and x and y and (x / y in _CONVERSIONS or y / x in _CONVERSIONS):
        return "a unit may be converted"
    if equation.scaled and x and y and (x / y in _SCALES or y / x in _SCALES):
        return "the step scales its numbers"
    return None


_CONVERSIONS = frozenset((2, 3, 4, 5, 7, 8, 10, 12, 14, 16, 20, 24, 25, 28, 30, 31, 36, 48, 50, 52, 60, 100))
_CONVERSIONS |= {128, 168, 180, 360, 365, 366, 1000, 1440, 1760, 2000, 3600, 5280, 86400, 10**6}
"""Ratios of common units of time, money, length, weight and volume."""
_SCALES = frozenset((12, 100, 1000, 10**6, 10**9))


def _shown(number: Fraction) -> str:
    if number.denominator == 1:
        return str(number) if abs(number) < 10**15 else f"{float(number):.6g}"
    exact = f"{float(number):.10g}"
    return exact if Fraction(exact) == number else f"{float(number):.6g}..."


_REFUTED = re.compile(
    r"\b(?:contradict\w*|impossible|not possible|no solutions?|cannot|can't|false|never|incorrect|wrong|"
    r"absurd|not true|not equal|does ?n[o']t|is ?n[o']t|not (?:a )?(?:valid|work)|suppose|assum\w+|if|guess|"
    r"try|mistake|oops|wait|instead|should|would)\b|\?",
    re.IGNORECASE,
)
_OTHER_ARITHMETIC = re.compile(
    r"\b(?:bases?|mod|modulo|modul\w+|binary|octal|hexadecimal|ternary|congruen\w+|clock|o'clock|remainders?)\b|"
    r"\\p?b?mod\b|≡|\\equiv|[0-9]_\{?[0-9]",
    re.IGNORECASE,
)
_OWN_OPERATION = re.compile(
    r"\b(?:defined?|operation|digit stands|letter)\b|[@#♠♣♥♦⊕⊗◇△]|\\(?:star|oplus|otimes|diamond|\w+suit)",
    re.IGNORECASE,
)


def _context_doubt(text: str, problem: str) -> str | None:
    if match := _REFUTED.search(text):
        return f"the step says {match.group()!r}"
    if match := _OTHER_ARITHMETIC.search(text) or _OTHER_ARITHMETIC.search(problem):
        return f"{match.group()!r} may mean another arithmetic"
    if match := _OWN_OPERATION.search(problem):
        return f"the problem may define its own operation ({match.group()!r})"
    return None


_IN_EXPRESSION = frozenset({"num", "frac", "op", "open", "close", "cmd", "sym", "post", "of", "unit"})
_RELATION = frozenset({"eq", "rel"})

_SCALED = re.compile(r"\b(?:thousand|million|billion|hundred|dozen|cents?|percent)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Equation:
    """``left = right`` in a step."""

    left: Side
    right: Side
    text: str
    """The equation as written."""
    doubt: str | None
    """Why it cannot fail; ``None`` = it can hold or fail."""
    measured: bool
    """It has a unit of measure, or a unit follows, so it may be a conversion."""
    scaled: bool
    """The step mentions thousands, cents and the like."""


def find_equations(text: str) -> list[Equation]:
    """All equations in ``text``, in order; each link of a chain ``a = b = c`` is an equation."""
    equations: list[Equation] = []
    for match in _ANNOTATION.finditer(text):
        equations += _equations(match[1])
    return equations + _equations(_ANNOTATION.sub(lambda m: " " * len(m.group()), text))


_ANNOTATION = re.compile(r"<<([^<>\n]*)>>")


def _equations(text: str) -> list[Equation]:
    tokens = tokenize(text)
    if not any(token.kind == "eq" for token in tokens):
        return []
    tokens = _join_rows(_open_brackets(tokens))
    scaled = _SCALED.search(text) is not None
    return [
        equation for start, end in _chunks(tokens) for equation in _links(text, tokens, start, end, scaled)
    ]


def _join_rows(tokens: list[Token]) -> list[Token]:
    """Leave out a line break before ``=``, where a chain continues in the next row."""
    joined = []
    for index, token in enumerate(tokens):
        following = next((t for t in tokens[index + 1 : index + 3] if t.kind != "break"), None)
        if token.kind == "break" and following is not None and following.kind == "eq":
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
        elif token.kind not in _IN_EXPRESSION and stack:
            stack[-1] = (stack[-1][0], True)
    bounds |= {start for start, _ in stack}
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


def _links(text: str, tokens: Sequence[Token], start: int, end: int, scaled: bool) -> Iterator[Equation]:
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
    for number, (left, right) in enumerate(pairwise(sides)):
        if tokens[cuts[number + 1]].kind != "eq" or not pieces[number] or not pieces[number + 1]:
            continue
        doubt = left.doubt or right.doubt or unit_doubt
        if number == 0:
            doubt = doubt or left_doubt
            named = any(t.kind == "unit" for t in pieces[0]) or (
                start > 0 and tokens[start - 1].kind == "word"
            )
            if left.places is not None and (named or _has_sum(right)):
                doubt = doubt or "it begins with a number, which may be a value to test"
        if any(token.kind == "of" for token in pieces[number + 1]):
            doubt = doubt or "'of' on the right side"
        if number == len(sides) - 2:
            doubt = doubt or right_doubt
        if left.places is not None and right.places is not None:
            doubt = doubt or "two numbers without an operation"
        yield Equation(
            left=left,
            right=right,
            text=_quote(text, pieces[number][0].start, pieces[number + 1][-1].end),
            doubt=doubt,
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
    if opens:
        previous = _previous(tokens, start)
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
        and earlier.kind in ("num", "post", "frac", "unit")
        and word in BEFORE_AFTER_NUMBER
    ):
        return None, f"a number and {word!r} precede it", 0
    return None, None, 0


def _right_context(tokens: Sequence[Token], end: int) -> tuple[str | None, str | None]:
    following = tokens[end] if end < len(tokens) else None
    last = tokens[end - 1]
    if following is not None and following.kind == "delim":
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
    pending = [side.tree] if side.tree is not None else []
    while pending:
        node = pending.pop()
        if node.kind in ("+", "-", "sqrt"):
            return True
        pending += node.parts
    return False


def leading_number(node: Expression) -> Expression:
    """The leftmost operand of an expression."""
    while node.parts:
        node = node.parts[0]
    return node


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
