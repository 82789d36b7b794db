"""Text of a step into tokens of arithmetic, LaTeX and words, at their places in the text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from surefoot.labelling._parser import MAX_DIGITS, Token
from surefoot.labelling._words import CONJUNCTIONS, GREEK, RELATIONS

_SAME_LENGTH = str.maketrans("×✕·⋅∙÷∕⁄−–‒＝", "****" + "*" + "///" + "---" + "=")
_SUPERSCRIPTS = {"²": "2", "³": "3"}
_FRACTIONS = {"½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅙": "1/6", "⅛": "1/8"}

_TOKEN = re.compile(
    r"""
    (?P<delim>\\[\[\]()]|\$\$?)
  | (?P<break>\\\\(?:\[[^\]\n]{0,9}\])?|\n)
  | (?P<rows>\\(?:begin|end)\{(?:align|aligned|equation|gather|gathered|split|multline|eqnarray)\*?\})
  | (?P<skip>\\[,;:!\ \$]|\\(?:q?quad|left|right|displaystyle|[bB]igg?[lr]?)(?![a-zA-Z])|[\s~&£€])
  | (?P<num>[0-9]{1,3}(?:(?:,|\{,\}|,?\\[!,])[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)
  | (?P<text>\\(?:text|mbox|mathrm|textbf|mathbf|textit)\s?\{(?P<words>[^{}]*)\})
  | (?P<percent>\\?%)
  | (?P<degree>\^\s?\{?\s?\\circ\s?\}?|°)
  | (?P<command>\\[a-zA-Z]+)
  | (?P<dots>\.\.+|…)
  | (?P<bold>(?<![\w)\]}])\*\*(?=\S)|(?<=\S)\*\*(?![\w(]))
  | (?P<op>\*\*|[-+*/^])
  | (?P<rel>!=|<=|>=|=>|->|:=|[<>≤≥≠≈→⇒∼]|=\?)
  | (?P<eq>==?)
  | (?P<sup>[²³])
  | (?P<frac>[½⅓⅔¼¾⅕⅙⅛])
  | (?P<open>[(\[{])
  | (?P<close>[)\]}])
  | (?P<fact>!)
  | (?P<sub>[^\W\d_]_(?:\{[A-Za-z0-9]{1,8}\}|[A-Za-z0-9]))
  | (?P<word>[^\W\d_]{2,}(?:[-'’][^\W\d_]+)*|[^\W\d_])
  | (?P<punct>[,;.:?"“”])
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)

_OPERATORS = {"times": "*", "cdot": "*", "ast": "*", "div": "/"}
_COMMANDS = {"frac": "frac", "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "sqrt": "sqrt"}
_COMMANDS |= {"binom": "binom", "dbinom": "binom", "tbinom": "binom", "boxed": "boxed", "fbox": "boxed"}
_SPOKEN = {"times": "*", "plus": "+", "minus": "-"}
_ENDS_OPERAND = frozenset({"num", "close", "post", "frac", "sym", "unit"})
_STARTS_OPERAND = frozenset({"num", "open", "frac", "sym", "cmd"})


def tokenize(text: str) -> list[Token]:
    """Tokens of ``text``; white space, currency and LaTeX's spacing are left out.

    Kinds: num, frac (½), op, open, close, cmd (frac, sqrt, binom, boxed), sym (a letter), post (``%``,
    ``!``, a superscript), of, unit, eq, rel (other relations), word, bound (punctuation), break (line),
    delim (of LaTeX) and opaque (what cannot be read).
    """
    return _resolve(list(_raw(text.translate(_SAME_LENGTH))))


def dollars_delimit(text: str) -> bool:
    """Whether ``$`` opens and closes mathematics here, and is no currency.

    The rule is Pandoc's: no space follows an opening one, no space precedes a closing one and no digit
    follows it.
    """
    places = [match.start() for match in re.finditer(r"(?<!\\)\$\$?", text)]
    if not places or len(places) % 2:
        return False
    for opening, closing in zip(places[::2], places[1::2], strict=True):
        width = 2 if text.startswith("$$", opening) else 1
        inner = text[opening + width : closing]
        after = text[closing + width : closing + width + 1]
        if not inner.strip() or after.isdigit():
            return False
        if width == 1 and (inner[0].isspace() or inner[-1].isspace()):
            return False
    return True


def _raw(text: str) -> Iterator[Token]:
    dollars = dollars_delimit(text)
    latex = dollars or "\\(" in text or "\\[" in text
    inside = False
    last_number = -1
    for match in _TOKEN.finditer(text):
        kind, found, start, end = match.lastgroup or "other", match.group(), match.start(), match.end()
        if match["text"] is not None:
            kind = "text"
        name = found
        match kind:
            case "skip":
                continue
            case "delim":
                if found.startswith("$") and not dollars:
                    continue  # currency
                inside = found in ("\\(", "\\[") or (found.startswith("$") and not inside)
            case "rows":
                kind = "break"
            case "num":
                name = re.sub(r"[,{}\\!]", "", found)
                if len(name) > MAX_DIGITS or start == last_number:
                    kind = "opaque"  # 1.2.3
                last_number = end
            case "text":
                name = match["words"].strip()
                kind = "opaque" if len(name) < 2 else "word"  # \mathbf{v} is a vector
            case "percent" | "sup" | "fact":
                kind, name = "post", "%" if kind == "percent" else _SUPERSCRIPTS.get(found, found)
            case "degree":
                kind, name = "unit", "degree"
            case "command":
                kind, name = _command(found[1:])
            case "dots" | "other":
                kind = "opaque"
            case "bold":
                continue
            case "op":
                name = "^" if found == "**" else found
            case "frac":
                name = _FRACTIONS[found]
            case "sub":
                kind = "sym" if inside or not latex else "word"
            case "word":
                if inside and found.isascii():
                    for place, letter in enumerate(found):
                        if letter.isalpha():
                            yield Token("sym", letter, start + place, start + place + 1, True)
                        else:
                            yield Token("opaque", letter, start + place, start + place + 1, True)
                    continue
                if found == "π":
                    kind, name = "sym", "pi"
                elif len(found) == 1 and not found.isascii():
                    kind = "opaque"
                elif len(found) == 1 and not latex:
                    kind = "letter"
                elif start == last_number and found in ("st", "nd", "rd", "th"):
                    kind = "opaque"  # "1st - 5"
            case "punct":
                tight = start == last_number and text[end : end + 1].isdigit()
                kind = "opaque" if tight and found in ",:." else "bound"
                if found == "." and text[max(0, start - 4) : start].rstrip().endswith(("+", "-", "*", "/")):
                    kind = "opaque"  # "3 + . 84"
        yield Token(kind, name, start, end, inside)


def _command(name: str) -> tuple[str, str]:
    if name in _OPERATORS:
        return "op", _OPERATORS[name]
    if name in _COMMANDS:
        return "cmd", _COMMANDS[name]
    if name in RELATIONS:
        return "rel", name
    return ("sym", name) if name in GREEK else ("opaque", name)


def _resolve(tokens: list[Token]) -> list[Token]:
    """Settle what depends on the neighbours: ``x`` for times, units, ``of``, spoken operators, letters."""
    done: list[Token] = []
    for index, token in enumerate(tokens):
        before = done[-1] if done else None
        after = tokens[index + 1] if index + 1 < len(tokens) else None
        if token.kind == "letter":
            token = token._replace(kind=_letter(token, before, after))
            if token.kind == "op":
                token = token._replace(name="*")
        elif token.kind == "word" and before is not None and after is not None:
            token = _word(token, before, after, tokens[index + 1 : index + 5])
        if token.kind == "unit" and before is not None and before.kind == "op" and before.name == "/":
            done.pop()  # "10 dollars/hour"
        done.append(token)
    return done


def _letter(token: Token, before: Token | None, after: Token | None) -> str:
    tight_before = before is not None and before.end == token.start and before.kind in _ENDS_OPERAND
    tight_after = (
        after is not None and after.start == token.end and after.kind in ("open", "num", "letter", "sup")
    )
    if token.name in "xX" and before is not None and after is not None and before.kind in _ENDS_OPERAND:
        spaced = before.end < token.start and after.start > token.end
        if before.kind != "sym" and (after.kind == "num" or (after.kind == "open" and spaced)):
            return "op"
    beside = ("op", "eq")
    if tight_before or tight_after or (before is not None and before.kind in beside):
        return "sym"
    if after is not None and (after.kind in beside or (after.kind == "post" and after.start == token.end)):
        return "sym"
    return "word"


def _word(token: Token, before: Token, after: Token, ahead: list[Token]) -> Token:
    word = token.name.casefold()
    if word in _SPOKEN and before.kind in _ENDS_OPERAND and after.kind in _STARTS_OPERAND:
        return token._replace(kind="op", name=_SPOKEN[word])
    if (
        word == "of"
        and after.kind in ("num", "open")
        and (before.kind in ("post", "frac") or before.kind == "num")
    ):
        return token._replace(kind="of", name="of")
    if word in ("equals", "equal") and before.kind in _ENDS_OPERAND and after.kind in _STARTS_OPERAND:
        return token._replace(kind="eq", name="=")
    if before.kind == "op" and before.name == "/":
        return token._replace(kind="unit", name=word)
    if before.kind in ("num", "close", "post", "unit", "frac"):
        # "5 red apples *": at most three words, then an operator, an equals sign or a closing bracket
        if word in CONJUNCTIONS:
            return token
        for number, coming in enumerate(ahead):
            times = coming.name in ("x", "X") and number + 1 < len(ahead)
            if times and ahead[number + 1].kind in ("num", "open"):
                return token._replace(kind="unit", name=word)
            if coming.kind in ("op", "eq", "rel", "close"):
                return token._replace(kind="unit", name=word)
            if coming.kind != "word":
                break
    return token
