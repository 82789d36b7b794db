r"""Mathematics in text: where formulas are (``$…$``, ``\[…\]``), and numbers with their units.

Everything here is pattern matching that takes time linear in the text; algebra is in ``surefoot.answers``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

MAX_CHARS = 2000
"""Longest answer that is compared as more than text."""

BLANK_LINE = re.compile(r"(?:\r\n|\r(?!\n)|\n)[ \t]*(?:\r\n|\r(?!\n)|\n)")

# The pairs "\\" and "\$" come first, so that "\\[2pt]" opens no display and "\$" no formula.
_DISPLAY = re.compile(
    r"\\\\|\\begin\{(?P<begin>[a-zA-Z]+\*?)\}|\\end\{(?P<end>[a-zA-Z]+\*?)\}|\\\[|\\\]|\\\$|\$\$"
)
_INLINE = re.compile(rf"\\\\|\\\(|\\\)|\\\$|\$\$|\$|{BLANK_LINE.pattern}")
_DOLLARS = re.compile(r"(?<!\\)\$\$?")


class Formula(NamedTuple):
    """A formula with its delimiters, ``text[start:end]``."""

    start: int
    end: int
    mark: str
    r"""The opening delimiter: ``$``, ``\(``, ``$$``, ``\[`` or ``\begin``."""


def displayed_formulas(text: str) -> Iterator[Formula]:
    """Closed ``$$..$$``, ``\\[..\\]`` and environments, in one pass, by their ends; they can be nested."""
    opened: dict[str, int] = {}
    environments: list[tuple[str, int]] = []
    waiting: Counter[str] = Counter()
    for match in _DISPLAY.finditer(text):
        mark, start, end = match.group(), match.start(), match.end()
        if match["begin"]:
            environments.append((match["begin"], start))
            waiting[match["begin"]] += 1
        elif match["end"] and waiting[match["end"]]:
            name = ""
            while name != match["end"]:  # environments that are still open inside this one are dropped
                name, start = environments.pop()
                waiting[name] -= 1
            yield Formula(start, end, r"\begin")
        elif mark == "$$":
            if mark in opened:
                yield Formula(opened.pop(mark), end, mark)
            else:
                opened[mark] = start
        elif mark == r"\[":
            opened.setdefault(mark, start)
        elif mark == r"\]" and r"\[" in opened:
            yield Formula(opened.pop(r"\["), end, r"\[")


def inline_formulas(text: str) -> Iterator[Formula]:
    """Closed ``$..$`` and ``\\(..\\)`` within a paragraph.

    The rule is Pandoc's: an opening dollar stands before a visible character, a closing one after a visible
    character and not before a digit. So "$5 and $6" are prices.
    """
    dollar: int | None = None
    parenthesis: int | None = None
    for match in _INLINE.finditer(text):
        mark, start, end = match.group(), match.start(), match.end()
        if mark == r"\(":
            parenthesis = start
        elif mark == r"\)":
            if parenthesis is not None:
                yield Formula(parenthesis, end, r"\(")
            parenthesis = None
        elif mark == "$":
            closes = not text[start - 1].isspace() and not text[end : end + 1].isdigit()
            if dollar is not None and closes:
                yield Formula(dollar, end, mark)
                dollar = None
            else:
                dollar = start if text[end : end + 1].strip() else None
        elif mark.isspace():
            dollar = parenthesis = None


def dollars_delimit(text: str) -> bool:
    """Whether every dollar sign delimits a formula, so that none is a currency."""
    marks = len(_DOLLARS.findall(text))
    if not marks or marks % 2:
        return False
    formulas = [*inline_formulas(text), *displayed_formulas(text)]
    return 2 * sum(formula.mark[0] == "$" for formula in formulas) == marks


@lru_cache(32)
def variables_of(text: str) -> frozenset[str]:
    """The letters that stand alone in the formulas of ``text``."""
    formulas = [*inline_formulas(text), *displayed_formulas(text)]
    sources = (_TEXT.sub("", text[formula.start : formula.end]) for formula in formulas)
    return frozenset(letter for source in sources for letter in _LETTER.findall(source))


def as_product(answer: str, variables: frozenset[str]) -> str:
    """``answer`` without the space between a number and a letter that is a variable."""
    spaced = _LETTER_AFTER_NUMBER.fullmatch(answer) if len(answer) <= MAX_CHARS else None
    return f"{spaced[1]}{spaced[2]}{spaced[3]}" if spaced and spaced[2] in variables else answer


_LETTER = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z])")
_LETTER_AFTER_NUMBER = re.compile(r"(.*[0-9]) +([a-zA-Z])((?:\^\{?[23]\}?)?)")


def words(text: str) -> frozenset[str]:
    """The words of ``text``."""
    return frozenset(text.split())


def _number_pattern(separator: str) -> str:
    return rf"(?:(?:[0-9]{{1,3}}(?:{separator}[0-9]{{3}})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"


DIGITS = _number_pattern(",")
"""A number as pattern: thousands separators and decimals, no sign."""
LATEX_DIGITS = _number_pattern(r"(?:,|\{,\}|,?\\[!,])")
r"""The same with LaTeX's thousands separators too: ``1{,}000``, ``1\,000``."""

PERCENT, DOZEN = "%", "dozen"
FACTORS = {PERCENT: Fraction(1, 100), DOZEN: Fraction(12)}
"""Units that may be a factor, or the unit of a number that the reference gives without one."""
_MULTIPLES = {
    name: Fraction(10**power)
    for name, power in (("hundred", 2), ("thousand", 3), ("million", 6), ("billion", 9), ("trillion", 12))
}
_DECIMALS = 6
"""Places that a rounded number needs at least."""


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A number and its unit."""

    number: Fraction
    """As written: 50 for "50%", 5,000,000 for "5 million"."""
    step: Fraction = Fraction(0)
    """The unit of its last decimal, if it has decimals and so is perhaps rounded."""
    unit: frozenset[str] = frozenset()
    """Significant words of the unit, a measure by its canonical name; empty = no unit."""

    @property
    def value(self) -> Fraction:
        """The number times the factor of a percent sign or a dozen."""
        factors = self.unit & FACTORS.keys()
        return self.number * FACTORS[next(iter(factors))] if factors else self.number

    @property
    def fingerprint(self) -> str:
        """See :meth:`surefoot.answers.AnswerChecker.fingerprint`."""
        return print_number(self.value)

    def without_unit(self) -> Quantity:
        """The value alone."""
        return Quantity(number=self.value, step=self.step_of(self.value))

    def step_of(self, reading: Fraction) -> Fraction:
        """``step`` of one of the readings."""
        return self.step * abs(reading / self.number) if self.number else self.step

    def readings(self, other: Quantity) -> tuple[Fraction, ...]:
        """Possible values in a comparison: "50%" is 0.5, or 50 if ``other`` is a bare number."""
        return (self.value,) if other.unit or self.value == self.number else (self.value, self.number)


def units_agree(left: frozenset[str], right: frozenset[str]) -> bool:
    """Whether two units may be the same: one of them is missing, or they share a significant word."""
    return not left or not right or bool(left & right)


def same_quantity(left: Quantity, right: Quantity) -> bool:
    """Whether the units agree and the numbers are equal, or one is the other rounded."""
    if not units_agree(left.unit, right.unit):
        return False
    pairs = [(x, y) for x in left.readings(right) for y in right.readings(left)]
    return any(x == y or same_rounded(x, y, left.step_of(x), right.step_of(y)) for x, y in pairs)


def same_rounded(x: Fraction, y: Fraction, x_step: Fraction, y_step: Fraction) -> bool:
    """Whether one of two numbers is the other rounded.

    The steps are the units of their last decimals, 0 if they have none. A decimal needs six digits if the
    other number is exact, else six places and five digits: fewer are an approximation, which is another
    number.
    """
    for decimal, step, other_step in ((x, x_step, y_step), (y, y_step, x_step)):
        if step and abs(x - y) <= step / 2:
            digits, six_places = abs(decimal) / step, step <= Fraction(1, 10**_DECIMALS)
            if (six_places and digits >= 10**4) or (not other_step and digits >= 10**5):
                return True
    return False


def print_number(value: Fraction) -> str:
    """A text that is the same for numbers that are equal to six places, or in twelve digits."""
    if abs(value) < 10**_DECIMALS:
        if value.denominator == 1:
            return str(value.numerator)
        return f"{float(round(value, _DECIMALS)) + 0.0:.12g}"
    try:
        return f"{float(value):.11e}"
    except OverflowError:
        return "huge"


_SPELLINGS = (
    (re.compile(r"\\[!,;:]|~|\\(?:left|right)(?![a-zA-Z])"), ""),
    (re.compile(r"\\[dt]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"(?<![\w.,/^)}])([0-9]+) ([0-9]+)/([0-9]+)(?![0-9.,/])"), r"\1\\frac{\2}{\3}"),
)
# "2**10" is a power: emphasis never touches a digit, letter or bracket
_EMPHASIS = re.compile(r"(?<![\w)\]}])(\*\*|__)(?=[^\s*_])([^*]+?)(?<=\S)\1(?![\w(\[{\\])")
_BOLD = re.compile(r"\\(?:mathbf|boldsymbol|bm|textbf|mathrm|text|textrm|mbox)\s*\{([^{}]*)\}")
_TEXT = re.compile(r"\\(?:text|textbf|textrm|textit|textnormal|mathrm|mbox|operatorname)\s*\{([^{}]*)\}")

_EATEN = {"\x07": "a", "\b": "b", "\f": "f", "\v": "v", "\n": "n", "\r": "r", "\t": "t"}
LOST_BACKSLASH = re.compile(
    "\x07(?=lpha|pprox|ngle)|\b(?=ar|egin|eta|inom|mod|oxed|oldsymbol|f)|\f(?=rac|box|loor|orall)|\v(?=ec|ert|ar)"
    "|\n(?=abla|eq|ot|u[^a-z])|\r(?=ight|angle|ho|floor|ceil|vert)"
    "|\t(?=ext|imes|frac|heta|an[^a-z]|au|o[^a-z]|riangle|binom|ilde)"
)
"""A character that JSON made of a backslash and a letter, before the rest of the command."""


def restore_backslashes(text: str) -> str:
    """``text`` with the commands of LaTeX whose backslash JSON took as an escape: a form feed for ``\\f``."""
    return LOST_BACKSLASH.sub(lambda mark: f"\\{_EATEN[mark[0]]}", text)


def normalise(answer: str) -> str:
    """``answer`` without outer dollars, full stop, emphasis and spacing, which never change its meaning."""
    if answer.isascii() and answer.isalnum():
        return answer
    text = restore_backslashes(answer).replace("\u2212", "-").replace("\u00a0", " ")
    text = " ".join(text.split()).rstrip(".").rstrip()
    for opening, closing in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        inner = text[len(opening) : len(text) - len(closing)]
        wrapped = text.startswith(opening) and text.endswith(closing) and len(text) > len(opening + closing)
        if wrapped and "$" not in inner.replace("\\$", ""):
            text = inner.strip().rstrip(".").rstrip()
            break
    text = without_emphasis(text)
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    return text.strip().rstrip(".").rstrip()


def without_emphasis(text: str) -> str:
    """``text`` without Markdown's bold; a text longer than any answer is returned unchanged."""
    marked = ("**" in text or "__" in text) and len(text) <= MAX_CHARS
    return _EMPHASIS.sub(r"\2", text) if marked else text


def unwrap(text: str) -> str:
    """``text`` without a text or bold command around the whole of it."""
    wrapped = _BOLD.fullmatch(text)
    return wrapped[1].strip() if wrapped else text


def unwrap_all(text: str) -> str:
    """``text`` without the text commands inside it, and with single spaces."""
    return " ".join(_TEXT.sub(r"\1", unwrap(text)).split())


_CURRENCIES = {"$": "dollar", "£": "pound", "€": "euro", "¥": "yen", "₹": "rupee", "Rs": "rupee"}
_CURRENCY = r"(?P<currency>(?:US)?\\?\$|[£€¥₹]|Rs\.?(?![a-zA-Z])|USD(?![a-zA-Z])|EUR(?![a-zA-Z]))"
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)\s*{_CURRENCY}?\s*(?P<sign2>[+-]?)"
    r"(?:(?P<mixed>[0-9]+)\s*(?=\\frac))?"
    rf"(?:\\frac\s*(?:\{{(?P<over>{DIGITS})\}}|(?P<over1>[0-9]))\s*(?:\{{(?P<under>{DIGITS})\}}|(?P<under1>[0-9]))"
    r"|(?P<whole>[0-9]*)\.(?P<fixed>[0-9]*)\\(?:overline|bar)\s*(?:\{(?P<period>[0-9]+)\}|(?P<digit>[0-9]))"
    rf"|(?P<top>{DIGITS}\.?(?:[eE][+-]?[0-9]{{1,3}}(?![a-zA-Z0-9]))?)(?:\s*/\s*(?P<bottom>{DIGITS}))?)"
)


def read_quantity(text: str) -> Quantity | None:
    """Parse ``text`` as a number with its unit; ``None`` if it is anything else."""
    return None if len(text) > MAX_CHARS else _read_quantity(text)


@lru_cache(1024)
def _read_quantity(text: str) -> Quantity | None:
    if text.isascii() and text.isdigit():
        return Quantity(number=Fraction(int(text)))
    text = unwrap(normalise(text))
    match = _NUMBER.match(text)
    if match is None or (match["sign"] and match["sign2"]):
        return None
    number = _value(match)
    unit = read_unit(text[match.end() :])
    if number is None or unit is None:
        return None
    multiple = next(iter(unit & _MULTIPLES.keys()), None)
    if multiple is not None:
        number, unit = number * _MULTIPLES[multiple], unit - _MULTIPLES.keys()
    if match["currency"]:
        sign = match["currency"].removeprefix("US").replace("\\", "").rstrip(".")
        unit = frozenset({_CURRENCIES.get(sign) or _MEASURES[sign.casefold()]})
    if "-" in (match["sign"], match["sign2"]):
        number = -number
    decimals = _DECIMAL.search(match["top"] or "")
    step = Fraction(10) ** (int(decimals[2] or 0) - len(decimals[1])) if decimals else Fraction(0)
    return Quantity(number=number, step=step * _MULTIPLES.get(multiple or "", 1), unit=unit)


_DECIMAL = re.compile(r"\.([0-9]+)(?:[eE]([+-]?[0-9]+))?$")


def _value(match: re.Match[str]) -> Fraction | None:
    repeated = match["period"] or match["digit"]
    if repeated is not None:
        start = Fraction(f"0{match['whole']}.{match['fixed'] or '0'}")
        scale = Fraction(1, int(10 ** len(match["fixed"]) * (10 ** len(repeated) - 1)))
        return start + int(repeated) * scale
    numerator, denominator = (
        Fraction("0" + digits.replace(",", "").rstrip("."))
        for digits in (
            match["over"] or match["over1"] or match["top"],
            match["under"] or match["under1"] or match["bottom"] or "1",
        )
    )
    if not denominator or (match["mixed"] and numerator >= denominator):
        return None
    return Fraction(match["mixed"] or 0) + numerator / denominator


def split_unit(answer: str) -> tuple[str, frozenset[str]]:
    """An answer as normalised expression and unit: ``2\\sqrt{3} cm`` is ``2\\sqrt{3}`` and {"centimetre"}.

    A percent sign, a dozen and the like belong to the expression.
    """
    text = normalise(answer)
    if len(text) > MAX_CHARS:
        return text, frozenset()
    quantity = read_quantity(text)
    if quantity is not None:
        number = _NUMBER.match(unwrap(text))
        if number is None or quantity.unit & FACTORS.keys() or _MULTIPLE.search(text):
            return text, frozenset()
        return number.group(), quantity.unit
    match = _TRAILING_UNIT.fullmatch(text)
    if match is None or _TEXT.search(match["body"]) or not _MATHEMATICS.search(match["body"]):
        return text, frozenset()
    unit = read_unit(" " + match["unit"])
    return (match["body"], unit) if unit and not unit & FACTORS.keys() else (text, frozenset())


_MULTIPLE = re.compile("|".join(_MULTIPLES), re.IGNORECASE)
_MATHEMATICS = re.compile(r"[0-9x-z]|\\pi")
_TRAILING_UNIT = re.compile(
    r"(?P<body>.*[0-9a-z})\]])\s*(?P<unit>\\(?:text|textrm|mathrm|mbox)\s*\{[^{}]*\}(?:\^\{?[23]\}?)?"
    r"|(?<=[0-9})\]])\s[a-zA-Z]{2}[a-zA-Z ]*(?:\^\{?[23]\}?)?)",
    re.DOTALL,
)

_DEGREE, _SCALES = "degree", ("fahrenheit", "celsius")
"""A degree without a scale may be of any."""
_NAMES = {
    "millimetre": "mm millimeter millimetre",
    "centimetre": "cm centimeter centimetre",
    "decimetre": "dm decimeter decimetre",
    "metre": "m meter metre",
    "kilometre": "km kilometer kilometre",
    "inch": "in inch",
    "foot": "ft foot feet",
    "yard": "yd yard",
    "mile": "mi mile",
    "milligram": "mg milligram",
    "gram": "g gm gram gramme",
    "kilogram": "kg kilo kilogram",
    "ounce": "oz ounce",
    "pound": "lb pound",
    "millilitre": "ml milliliter millilitre",
    "litre": "l liter litre",
    "gallon": "gal gallon",
    "second": "s sec second",
    "minute": "min minute",
    "hour": "h hr hour",
    "day": "d day",
    "week": "wk week",
    "month": "month",
    "year": "yr year",
    "dollar": "usd dollar buck",
    "euro": "eur euro",
    "cent": "cent penny pence",
    _DEGREE: "degree deg °",
    "kilometre/hour": "kmh kmph kph",
    "mile/hour": "mph",
    PERCENT: "% \\% percent percentage pct",
    DOZEN: "dozen",
}
_MEASURES = {name: unit for unit, names in _NAMES.items() for name in names.split()}
_UPPER = frozenset("L")
"""Measures of one capital letter; other capitals multiply ("5 M") or are names."""
_POWERS = {"square": "^2", "sq": "^2", "cubic": "^3", "cu": "^3"}
_RATES = words("per / a an every")
_FILLERS = words(
    """a an the total more less left remaining altogether together only each whole full other additional was
    were is are has have had been will be can his her its their my our your this that these those"""
)
_PREPOSITIONS = words(
    """in of for at on to from by with per than after before until so who which as away out between if
    because when and or but into over during not every"""
)
_NOT_A_UNIT = re.compile(
    r"(?:,|\b(?:and|or|to|plus|minus|times|by|than|of|not|over|x|is|equals|root))\s*[-$(]?[0-9]"
    r"|^(?!(?:in|per|for|at|on|every|after|before|until)\b)[^\W\d_]+\.?\s+[-$(]?[0-9]|[-\u2013]\s*[$(]?[0-9]"
    r"|\band\s+(?:an?|one|two|three|half)\b"
    r"|^(?:squared|cubed|factorial|hal(?:f|ves)|thirds?|fourths?|fifths?|sixths?|sevenths?|eighths?|ninths?|tenths?"
    r"|hundredths?|thousandths?|x|plus|minus|divided|mod|choose|pi|sqrt|root|sin|cos|tan|log|ln|exp)\b"
)
_WORDS_ALONE = re.compile(
    r"(?:\\?%|°|[^\W\d_])(?:[^\W_]|[\s%°/²³'\u2019.,()-]|(?<=[^\W\d_])\^[23](?![0-9]))*"
)
_WORD = re.compile(r"\\?%|°|/|[^\W\d_]+(?:['\u2019-][^\W\d_]+)*(?:\^[23]|[23²³](?![0-9]))?")
_DEGREES = re.compile(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degrees?(?![a-zA-Z])|\u00ba")


def read_unit(text: str) -> frozenset[str] | None:
    """Significant words of the text after a number; ``None`` = not a unit, it may change the number.

    A measure becomes one word, its canonical name (``centimetre^2``, ``mile/hour``). Of other words ("clips
    altogether") those before the first preposition are significant, in the singular. A letter is a unit only
    if it abbreviates one after a space, and so are letters that touch the digits ("5x", "5m" are products).
    """
    touching = text[:1].isalpha()
    text = re.sub(r"\^\{([23])\}", r"^\1", _TEXT.sub(r" \1", _DEGREES.sub("°", text)).replace("\\ ", " "))
    text = text.strip().rstrip(".").rstrip()
    if not text:
        return frozenset()
    if _NOT_A_UNIT.search(text.casefold()) or not _WORDS_ALONE.fullmatch(text):
        return None
    words = _WORD.findall(text)
    first, _ = _split_power(words[0])
    if len(first) == 1 and first.isupper() and first not in _UPPER:
        return None
    letter = len(first) == 1 and first.casefold() not in _FILLERS
    if (touching and (letter or len(first) > 3)) or ((letter or touching) and _measure(first) is None):
        return None
    if first in _MULTIPLES:
        return frozenset({first}) | _significant(words[1:])
    return _significant(words)


def _significant(words: list[str]) -> frozenset[str]:
    power = _POWERS.get(words[0].casefold(), "") if len(words) > 1 else ""
    words = words[1:] if power else words
    measure = _measure(words[0]) if words and (words[0] != "in" or len(words) == 1) else None
    if measure == _DEGREE:
        scale = next(
            (name for word in words[1:2] for name in _SCALES if name.startswith(word.casefold())), None
        )
        return frozenset({scale} if scale else {_DEGREE, *_SCALES})
    if measure is not None:
        rate = len(words) > 2 and words[1].casefold() in _RATES
        over = f"/{_measure(words[2]) or _singular(words[2])}" if rate else ""
        return frozenset({measure + ("" if "^" in measure else power) + over})
    folded = [word.casefold() for word in words]
    end = next((index for index, word in enumerate(folded) if word in _PREPOSITIONS), len(folded))
    return frozenset(_singular(word) for word in folded[:end] if word not in _FILLERS)


def _measure(word: str) -> str | None:
    name, power = _split_power(word.casefold())
    measure = _MEASURES.get(name) or _MEASURES.get(_singular(name))
    return None if measure is None else measure + power


def _split_power(word: str) -> tuple[str, str]:
    name = word.rstrip("23²³^")
    power = word[len(name) :].strip("^").translate(str.maketrans("²³", "23"))
    return name, f"^{power}" if power else ""


def _singular(word: str) -> str:
    word = word.casefold()
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("xes", "ches", "shes", "sses")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") and len(word) > 2 else word
