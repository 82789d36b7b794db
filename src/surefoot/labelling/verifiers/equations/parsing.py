"""Arithmetic, algebra, LaTeX and words in a step: text to tokens, tokens to trees of formulas.

Sides are parsed by the grammar of :mod:`surefoot.answers.formulas`. A reading that writers often
mean differently (``1/2x``) has a *doubt*. Nothing is evaluated here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, NoReturn

from surefoot.answers.formulas import (
    ANGLES,
    DEGREE,
    END,
    GREEK,
    OPERATORS,
    SHORT,
    FormulaNode,
    FormulaParser,
    FormulaToken,
    UnreadableError,
)
from surefoot.maths import LATEX_DIGITS, dollars_delimit, words

MAX_TOKENS = 200
"""Longest side of an equation; also bounds the depth of its tree."""
MAX_DIGITS = 300

_SAME_LENGTH = str.maketrans("×✕·⋅∙÷∕⁄−–‒＝", "****" + "*" + "///" + "---" + "=")
_FRACTIONS = {"½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅙": "1/6", "⅛": "1/8"}


FUNCTIONS = ANGLES | words("arcsin arccos arctan log ln exp cis")
"""Functions by name; the logarithm to a base is ``log_2``."""
_KNOWN = FUNCTIONS | words("sqrt abs floor ceil binom !")

_SYMBOLS = f"[²³{''.join(_FRACTIONS)}]"
"""Of the characters of words, the ones that are a token of their own at its beginning."""
_NAMES = "|".join(sorted(FUNCTIONS, key=len, reverse=True))
_TOKEN = re.compile(
    rf"""
    (?P<space>(?:[^\S\n]|[~&£€])+)
  | (?P<num>{LATEX_DIGITS})
  | (?P<sub>(?!{_SYMBOLS})[^\W\d_]_(?:\{{[A-Za-z0-9+,-]{{1,8}}\}}|[A-Za-z0-9]))
  | (?P<word>(?!{_SYMBOLS})[^\W\d_](?:[^\W\d_]+(?:[-'’][^\W\d_]+)*)?)
  | (?P<delim>\\[\[\]()]|\$\$?)
  | (?P<break>\\\\(?:\[[^\]\n]{{0,9}}\])?|\n
      |\\(?:begin|end)\{{(?:align|aligned|equation|gather|gathered|split|multline|eqnarray)\*?\}})
  | (?P<skip>\\[,;:!\ \$]|\\(?:q?quad|left|right|displaystyle|[bB]igg?[lr]?)(?![a-zA-Z])
      |(?<![\w)\]}}])\*\*(?=\S)|(?<=\S)\*\*(?![\w(]))          # the last two: Markdown's bold
  | (?P<logarithm>\\log_(?:\{{[0-9]{{1,3}}\}}|[0-9]))
  | (?P<named>\\(?:text|mathrm|operatorname)\s?\{{\s?(?:{_NAMES})\s?\}})
  | (?P<accent>\\(?:overline|overarc|widehat|hat|bar|tilde)\s?\{{[A-Za-z]{{1,4}}\}})
  | (?P<text>\\(?:text|mbox|mathrm|textbf|mathbf|textit)\s?\{{(?P<words>[^{{}}]*)\}})
  | (?P<percent>\\?%)
  | (?P<degree>\^\s?\{{?\s?\\circ\s?\}}?|°)
  | (?P<command>\\[a-zA-Z]+)
  | (?P<dots>\.\.+|…)
  | (?P<factorial>(?<=[0-9)\]}}])!(?==\s?[0-9\\(]))
  | (?P<op>\*\*|[-+*/^±])
  | (?P<rel>!=|<=|>=|=>|->|:=|[<>≤≥≠→⇒]|=\?)
  | (?P<eq>==?|[≈∼])
  | (?P<post>[²³!])
  | (?P<frac>[{"".join(_FRACTIONS)}])
  | (?P<open>[(\[{{])
  | (?P<close>[)\]}}])
  | (?P<punct>[,;.:?"“”])
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)

_NOT_A_UNIT = words(
    """because so and then is are was were which that this thus therefore since or but if as when while
    where hence giving gives equals means for to from in on at with by"""
)
"""Words after a number that are never its unit."""

_ARROWS = words("Rightarrow rightarrow implies to iff Leftrightarrow")
_COMMANDS = {
    **dict.fromkeys(("*", "/", "±", "choose"), "op"),
    **dict.fromkeys(("frac", "sqrt", "binom", "boxed"), "cmd"),
    **dict.fromkeys("⌊⌋⌈⌉", "step"),
    **dict.fromkeys("<>≤≥≠", "rel"),
    **{"≈": "eq", "|": "abs"},
}
"""Kinds of the commands of LaTeX that have these marks in formulas."""
_MARKS = OPERATORS | SHORT | {"sim": "≈", "simeq": "≈", "fbox": "boxed", "mp": "±"}
_SPOKEN = {"times": "*", "plus": "+", "minus": "-"}
_ENDS_OPERAND = frozenset({"num", "close", "post", "frac", "sym", "unit"})
_STARTS_OPERAND = frozenset({"num", "open", "frac", "sym", "cmd", "func"})


_IN_NUMBERS = str.maketrans("", "", ",{}\\!")
_SUPERSCRIPTS = str.maketrans("²³", "23")
_PRIMES = ("'", "’")


class Token(NamedTuple):
    """A part ``text[start:end]``; ``name`` is its canonical form (``*`` for LaTeX's ``\\times``).

    Kinds: num, frac (½), op, open, close, cmd (frac, sqrt, binom, boxed), func, abs (a bar), step (a floor
    or ceiling), sym (a letter), post (``%``, ``!``, a superscript), of, unit, eq, rel (other relations),
    word, bound (punctuation), break (line), delim (of LaTeX) and opaque (anything else).
    """

    kind: str
    name: str
    start: int
    end: int
    math: bool
    """Inside LaTeX delimiters."""


def tokenize(text: str) -> list[Token]:
    """Tokens of ``text`` without white space, currency and LaTeX's spacing."""
    return _resolve(list(_scan(text.translate(_SAME_LENGTH))))


def _scan(text: str) -> Iterator[Token]:
    """Tokens as they look without their neighbours; a single letter in plain text has the kind ``letter``."""
    dollars = dollars_delimit(text)
    latex = dollars or "\\(" in text or "\\[" in text
    inside = False
    number_end = -1
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "other"
        if kind in ("space", "skip"):
            continue
        raw, (start, end) = match.group(), match.span()
        after_number = start == number_end
        if kind == "delim":
            if raw[0] == "$" and not dollars:  # a currency
                continue
            inside = raw in ("\\(", "\\[") or (raw[0] == "$" and not inside)
        if kind == "num":
            number_end = end
        if kind == "word" and inside and raw.isascii():  # a product of letters
            if function := _LEADING_FUNCTION.match(raw):
                yield Token("func", function.group(), start, start + function.end(), True)
            for at, letter in enumerate(raw[function.end() if function else 0 :], start):
                yield Token("sym" if letter.isalpha() else "opaque", letter, at, at + 1, True)
            continue
        match kind:
            case "num":
                name = raw.translate(_IN_NUMBERS)
                kind = "opaque" if len(name) > MAX_DIGITS or after_number else "num"  # 1.2.3
            case "word":
                kind, name = _plain_word(raw, latex=latex, after_number=after_number)
                if text[end : end + 1] == "(" and (raw in FUNCTIONS or raw == "sqrt"):
                    kind = "cmd" if raw == "sqrt" else "func"
            case "op":
                name = "^" if raw == "**" else raw
            case "punct":
                name = raw
                in_number = after_number and text[end : end + 1].isdigit() and raw in ",:."
                in_number |= raw == "." and text.startswith(
                    ("\\overline", "\\bar"), end
                )  # a period of digits
                in_number |= (
                    inside and raw == ":" and (after_number or text[end : end + 2].strip().isdigit())
                )  # a ratio
                # "3 + . 84"
                cut_off = raw == "." and text[max(0, start - 4) : start].rstrip().endswith(tuple("+-*/"))
                kind = "opaque" if in_number or cut_off else "bound"
            case "eq":
                name = "≈" if raw in "≈∼" else "="
            case "text" | "words":
                name = match["words"].strip()
                kind = "opaque" if len(name) < 2 else "word"  # \mathbf{v} is a vector
            case "command":
                kind, name = _command(raw[1:])
            case "logarithm":
                kind, name = "func", "log_" + raw[5:].strip("{}")
            case "named":
                kind, name = "func", raw.partition("{")[2].strip("} ")
            case "accent":  # the segment AB, the conjugate of z
                letters = raw.partition("{")[2].strip("} ")
                kind, name = "sym", "".join(sorted(letters)) if len(letters) == 2 else raw
            case "factorial":
                kind, name = "post", "!"
            case "other" if raw == "|":
                kind, name = "abs", raw
            case "percent" | "degree":
                kind, name = ("post", "%") if kind == "percent" else ("unit", "degree")
            case "post" | "frac":
                name = _FRACTIONS.get(raw, raw).translate(_SUPERSCRIPTS)
            case "sub":
                kind, name = "sym" if inside or not latex else "word", raw.replace("{", "").replace("}", "")
            case _:
                kind, name = "opaque" if kind in ("dots", "other") else kind, raw
        yield Token(kind, name, start, end, inside)


def _command(name: str) -> tuple[str, str]:
    mark = _MARKS.get(name, name)
    if mark in _COMMANDS:
        return _COMMANDS[mark], mark
    if name in _ARROWS:
        return "rel", name
    if name in FUNCTIONS:
        return "func", name
    return ("sym", name) if name in GREEK or name in ("angle", "triangle") else ("opaque", name)


def _plain_word(word: str, *, latex: bool, after_number: bool) -> tuple[str, str]:
    """Kind and name of a word outside a formula; ``latex``: formulas of this text are delimited."""
    if word == "π":
        return "sym", "pi"
    if not word.isascii() and (len(word) == 1 or any("α" <= letter <= "ω" for letter in word)):
        return "opaque", word  # πr is not a unit
    if len(word) == 1 and not latex:
        return "letter", word
    ordinal = after_number and word in ("st", "nd", "rd", "th")  # "1st - 5"
    return "opaque" if ordinal else "word", word


def _resolve(tokens: list[Token]) -> list[Token]:
    """Decide what depends on the neighbours: ``x`` for times, units, ``of``, spoken operators, letters."""
    resolved: list[Token] = []
    for index, token in enumerate(tokens):
        previous = resolved[-1] if resolved else None
        if token.kind == "letter":
            kind = _letter_kind(token, previous, tokens[index + 1] if index + 1 < len(tokens) else None)
            token = token._replace(kind=kind, name="*" if kind == "op" else token.name)
        elif token.kind == "word" and previous is not None and index + 1 < len(tokens):
            if previous.kind == "op" and tokens[index + 1].kind == "num" and token.name[-2:] in ("'s", "’s"):
                continue  # whose number it is: "16 + Ann's 4"
            token = _resolve_word(token, previous, tokens[index + 1 : index + 5])
        if previous is not None:
            if token.name in _PRIMES and previous.kind == "sym" and previous.end == token.start:
                resolved[-1] = previous._replace(name=previous.name + "'", end=token.end)  # the derivative f'
                continue
            if token.kind == "unit" and previous[:2] == ("op", "/"):
                resolved.pop()  # "10 dollars/hour"
        resolved.append(token)
    return resolved


_LEADING_FUNCTION = re.compile(rf"(?:{_NAMES})(?=.?$)")
"""A function before at most one letter: ``sinx`` in a formula."""


def _letter_kind(token: Token, previous: Token | None, following: Token | None) -> str:
    """Operator (``3 x 4``), symbol (``2x``, ``x + 1``) or word ("a")."""
    if previous is not None and previous.kind in _ENDS_OPERAND:
        if token.name in "xX" and following is not None and previous.kind != "sym":
            spaced = previous.end < token.start and following.start > token.end
            if following.kind == "num" or (following.kind == "open" and spaced):
                return "op"
        if previous.end == token.start:
            return "sym"
    if previous is not None and previous.kind in ("op", "eq"):
        return "sym"
    if following is not None:
        touches = following.start == token.end
        if following.kind in ("op", "eq") or (
            touches and following.kind in ("open", "num", "letter", "post")
        ):
            return "sym"
    return "word"


def _resolve_word(token: Token, previous: Token, following: list[Token]) -> Token:
    """A spoken operator, ``of``, "equals", a unit, or the word itself."""
    word, first = token.name.casefold(), following[0]
    between_operands = previous.kind in _ENDS_OPERAND and first.kind in _STARTS_OPERAND
    if word in _SPOKEN and between_operands:
        return token._replace(kind="op", name=_SPOKEN[word])
    if word == "of" and first.kind in ("num", "open") and previous.kind in ("post", "frac", "num"):
        return token._replace(kind="of", name="of")
    if word in ("equals", "equal") and between_operands:
        return token._replace(kind="eq", name="=")
    if previous[:2] == ("op", "/"):
        return token._replace(kind="unit", name=word)
    if previous.kind not in ("num", "close", "post", "unit", "frac") or word in _NOT_A_UNIT:
        return token
    # "5 red apples *": at most three words, then an operator, an equals sign or a closing bracket
    for number, ahead in enumerate(following):
        times = ahead.name in ("x", "X") and number + 1 < len(following)
        if times and following[number + 1].kind in ("num", "open"):
            return token._replace(kind="unit", name=word)
        if ahead.kind in ("op", "eq", "rel", "close"):
            return token._replace(kind="unit", name=word)
        if ahead.kind != "word":
            break
    return token


class Side(NamedTuple):
    """One side of an equation."""

    tree: FormulaNode | None
    problem: str | None = None
    """Why it could not be parsed."""
    doubt: str | None = None
    """What writers may mean differently, such as ``1/2x``, ``-3^2`` or ``50 + 20%``."""

    @property
    def places(self) -> int | None:
        """Digits shown after the point if this is a single number (0 for an integer), else ``None``."""
        node = self.tree
        while node is not None and node.kind in ("neg", "%"):
            node = node.parts[0]
        single = node is not None and node.kind == "number" and (node.text or node.value.denominator == 1)
        return places(node) if node is not None and single else None


def parse_side(tokens: Sequence[Token]) -> Side:
    """Parse one side of an equation."""
    if not tokens:
        return Side(tree=None, problem="an empty side")
    if len(tokens) > MAX_TOKENS:
        return Side(tree=None, problem=f"more than {MAX_TOKENS} tokens")
    tokens = [token for token in tokens if token.kind != "unit" or token.name == "degree"]
    parser = _SideParser(list(_formula_tokens(_join_mixed(tokens))))
    if len(tokens) > 6 and any(token.kind == "of" for token in tokens):
        parser.doubt = "'of' next to other operations"
    if any(token.kind == "num" and re.match("0[0-9]", token.name) for token in tokens):
        parser.doubt = "a number that begins with 0"
    try:
        tree = parser.sum()
        return Side(tree=tree, doubt=parser.doubt) if parser.peek is END else parser.refuse()
    except UnreadableError as error:
        return Side(tree=None, problem=str(error))
    except RecursionError:
        return Side(tree=None, problem="nested too deeply")


def _join_mixed(tokens: Sequence[Token]) -> Iterator[Token]:
    """Make one number of ``2½`` and of ``2 1/2``."""
    at = 0
    while at < len(tokens):
        token, following = tokens[at], tokens[at + 1 : at + 4]
        length = _length_of_fraction(token, following) if token.kind == "num" and token.name.isdigit() else 0
        fraction = "".join(part.name for part in following[:length])
        yield token._replace(name=f"{token.name} {fraction}") if length else token
        at += 1 + length


def _length_of_fraction(number: Token, following: Sequence[Token]) -> int:
    """Tokens of a proper fraction after a number, with which it is a mixed number."""
    if following and following[0].kind == "frac":
        return 1
    if [token.kind for token in following] != ["num", "op", "num"] or following[0].start == number.end:
        return 0
    over, slash, under = (token.name for token in following)
    digits = slash == "/" and over.isdigit() and under.isdigit()
    return 3 if digits and 0 < int(over) < int(under) else 0


_KINDS = {"num": "number", "frac": "number", "sym": "name", "func": "function"}


def _formula_tokens(tokens: Iterator[Token]) -> Iterator[FormulaToken]:
    """The same in the kinds of :mod:`surefoot.answers.formulas`."""
    for token in tokens:
        kind, name = _KINDS.get(token.kind, "mark"), token.name
        name, _, base = name.partition("_") if kind == "function" else (name, "", "")
        if token.kind in ("of", "unit"):
            name = "*" if token.kind == "of" else "°"
        elif token.kind == "cmd" and name in ("sqrt", "binom"):
            kind = "function"
        elif token.kind == "post" and name.isdigit():
            yield FormulaToken("mark", "^", touches=True)
            kind = "number"
        yield FormulaToken(kind, name, touches=False)
        if base:
            yield FormulaToken("mark", "_", touches=True)
            yield FormulaToken("number", base, touches=True)


_CALLED = frozenset("fgFG")
"""Letters that are functions before a bracket."""
_PERHAPS_CALLED = frozenset("hpqHPQETNSC")
"""Letters before a bracket that are more often functions than factors."""


class _SideParser(FormulaParser):
    """Formulas in text, where "x 5" is more likely two things than a product."""

    most_depth = 40

    def refuse(self) -> NoReturn:
        token = self.peek
        raise UnreadableError("it ends too early" if token is END else f"cannot parse {token.text!r}")

    def sum(self) -> FormulaNode:
        node = super().sum()
        if node.kind == "+":
            percents = {(part.parts[0] if part.kind == "neg" else part).kind == "%" for part in node.parts}
            if len(percents) > 1:
                self.doubt = "a percentage added to a number"
        return node

    def begins(self) -> bool:
        previous = self.tokens[self.at - 1].text
        if self.peek.kind == "number":  # \frac{1}{5}24, 2!3!
            return previous == "}" or (previous == "!" and self.look(1).text == "!")
        return self.peek.text in ("[", "boxed") or (self.peek.text not in "⌊⌈" and super().begins())

    def primary(self) -> FormulaNode:
        return self.argument() if self.accept("boxed") else super().primary()

    def name(self, text: str) -> FormulaNode:
        """A symbol, or the call of a function."""
        function = text.rstrip("'")
        if function in _CALLED and self.peek.text == "^":
            raise UnreadableError(f"{text} may be an inverse function")
        if self.peek.text in ("(", "["):
            if text != function or function in _CALLED:
                return FormulaNode("call", (self.primary(),), text)
            number = self.look(1).kind == "number" and self.look(2).text in (")", "]")
            factor = function in ("h", "p", "q") and self.peek.text == "(" and not number
            if function in _PERHAPS_CALLED and not factor:
                raise UnreadableError(f"{text} may be a function")
        return FormulaNode("name", text=text)


def places(number: FormulaNode) -> int:
    """Digits that a number shows after the point."""
    return len(number.text.partition(".")[2])


def is_unknown(node: FormulaNode) -> bool:
    """Whether it is a letter, or the call of a function of the text."""
    return node.kind == "name" or (node.kind == "call" and node.text not in _KNOWN)


def has_decimals(*nodes: FormulaNode) -> bool:
    """Whether a number in them may be rounded."""
    return any(places(part) for node in nodes for part in node.walk() if part.kind == "number")


def has_angles(*nodes: FormulaNode) -> bool:
    """Whether there are functions or degrees."""
    return any(part.text in FUNCTIONS or part == DEGREE for node in nodes for part in node.walk())
