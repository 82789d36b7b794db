"""What the texts of a run support: where the arguments of a call come from, and what an answer says was done.

A claim is read off its grammar ("has been moved", "I transferred"), and belongs to a tool by the words of the
tool's name; other languages than English make no claim and admit nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, permutations
from typing import Any, Final, Literal

_WORD: Final = re.compile(r"[^\W\d_]+")
_TOLD: Final = re.compile(r"[^\W\d_]{4,}|\d{2,}")
_CODE: Final = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
_SENTENCE: Final = re.compile(r"[^.!?\n;]+(?:\.(?=\S)[^.!?\n;]*)*[.!?]?")
_IDIOMS: Final = re.compile(
    r"\b(?:no (?:worries|problem|need)|(?:do not|don't) (?:worry|hesitate)|not (?:to worry|only))\b"
)
_ADMITS: Final = re.compile(
    r"n[o']t\b|\b(?:un(?:able|successful\w*|available|fortunately)|fail\w*|errors?|problems?|issues?|trouble"
    r"|wrong|reject\w*|declin\w*|denied|refus\w*|block\w*|invalid|missing|exceed\w*|sorry|apolog\w*|impossible"
    r"|never|cannot|instead|regret|yet|retry|tried|attempted)\b"
)
_REQUEST: Final = re.compile(
    r"(?:please|could|can|would|may|shall|should|let me know|which|what|who|when|if|feel free|is there|i will"
    r"|i'll|let me|let's|i need|i would|i'd|hello|hi|thank)\b"
)
_ENGLISH: Final = re.compile(
    r"\b(?:the|you|your|has|have|been|done|it's|i've|this|that|with|all set|i [a-z]+ed)\b"
)
_UNREAL: Final = re.compile(
    r"\b(?:if|once|when|after|before|until|unless|would|will|should|could|can|may|might|to be|need|must"
    r"|let me|i'll|shall|not|never|no|nothing|none|nobody|cannot)\b|n't\b"
)
_ADVERBS: Final = r"(?:(?:now|just|also|already|all|both|then|successfully|been) )*"
_PARTICIPLE: Final = r"([a-z]{2,}ed|done|sent|made|set|paid|bought|sold|written|frozen|put|taken|given|built)"
_BY_AGENT: Final = re.compile(rf"\b(?:i|we)(?:'ve| have)? {_ADVERBS}{_PARTICIPLE}\b")
_PASSIVE: Final = re.compile(
    rf"(?<!i )(?<!we )\b(?:has|have|was|were|is|are|'s) {_ADVERBS}{_PARTICIPLE}\b|^{_PARTICIPLE} "
)
_IRREGULAR: Final = {
    "sent": "send", "made": "make", "paid": "pay", "bought": "buy", "sold": "sell", "written": "write",
    "frozen": "freeze", "taken": "take", "given": "give", "built": "build",
}  # fmt: skip
_READING: Final = {
    "attempt", "ask", "base", "check", "compar", "confirm", "consider", "determin", "examin", "explor",
    "gather", "identifi", "inspect", "list", "locat", "look", "mention", "need", "not", "notic", "obtain",
    "receiv", "request", "retriev", "review", "search", "stat", "tri", "us", "verifi", "want",
}  # fmt: skip
"""Stems of what an agent does without changing anything."""
_MAX_TEXT: Final = 20_000
"""Characters of an answer that are read."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence that says that something was done."""

    sentence: str
    stem: str
    """Of its verb."""
    by_agent: bool
    """The agent says that it did it; otherwise the sentence may repeat a tool's result."""
    past: bool
    """It may speak of actions before the run."""

    @property
    def stems(self) -> set[str]:
        """Of all words."""
        return set(map(stem, _WORD.findall(self.sentence)))


def stem(word: str) -> str:
    """A word without its ending, equal for ``cancel``, ``cancels``, ``cancelled`` and ``canceled``."""
    word = _IRREGULAR.get(word.lower(), word.lower())
    for ending in ("ing", "ied", "ies", "ed", "es", "s", "e", "y"):
        if word.endswith(ending) and len(word) - len(ending) >= 2 and not word.endswith("ss"):
            word = word.removesuffix(ending) + "i" * (ending in ("ied", "ies", "y"))
            break
    return word[:-1] if len(word) > 2 and word[-1] == word[-2] else word


def stems_of_name(name: str) -> list[str]:
    """The stems of a tool's name, verb first as a rule: ``mcp__bank__send_statement``, ``sendStatement``."""
    last = re.split(r"__|\.", name)[-1]
    return [stem(word) for word in _WORD.findall(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", last).replace("_", " "))]


def _sentences(text: str) -> Iterator[str]:
    prose = _CODE.sub(" ", text[:_MAX_TEXT]).replace("’", "'").replace("e-mail", "email").lower()
    yield from (sentence.strip(" \t*#>-_") for sentence in _SENTENCE.findall(_IDIOMS.sub("", prose)))


def admits(text: str, results: Sequence[str] = (), before: str = "") -> bool:
    """Whether a text says that something went wrong, or repeats a word of ``results`` that is not in
    ``before``."""
    sentences = " ".join(_sentences(text))
    if _ADMITS.search(sentences):
        return True
    words = {word for result in results for word in _TOLD.findall(result[:_MAX_TEXT].lower())}
    return bool((words - set(_TOLD.findall(before.lower()))) & set(_TOLD.findall(sentences)))


def asserts(text: str) -> bool:
    """Whether an English text says that something is done or, if it asks for nothing, anything at all."""
    sentences = list(_sentences(text))
    asks = any(sentence.endswith("?") or _REQUEST.match(sentence) for sentence in sentences)
    return any(claims(text)) if asks else any(map(_ENGLISH.search, sentences))


def claims(text: str) -> Iterator[Claim]:
    """What a text says was done, without questions, plans, conditions and denials."""
    for sentence in _sentences(text):
        for pattern in () if sentence.endswith("?") else (_BY_AGENT, _PASSIVE):
            for match in pattern.finditer(sentence):
                verb = stem(next(filter(None, match.groups())))
                if verb in _READING or _UNREAL.search(sentence, 0, match.end()):
                    continue
                past = match.group().startswith(("was", "were"))
                yield Claim(sentence=sentence, stem=verb, by_agent=pattern is _BY_AGENT, past=past)


_PART: Final = re.compile(r"[^\W_]+")
_FIELD: Final = re.compile(r'"(\w{1,64})": ?"?([\w-]{0,64}\d{3}[\w-]{0,64})', re.ASCII)
_DIGITS: Final = re.compile(r"\d+", re.ASCII)
_SPACED: Final = re.compile(r"\d[\d ().-]{5,20}\d", re.ASCII)
"""Digits in groups, as of telephone numbers, cards and accounts."""
_NUMBER: Final = re.compile(
    r"(?<![\w.])(?<![A-Za-z]-)(?:\d{1,3}(?:[,.' ]\d{3})+(?:[.,]\d{1,2})?(?!\d)|\d+(?:[.,]\d+)?)", re.ASCII
)
_MULTIPLES: Final = re.compile(r"\d ?k\b|\b(?:hundred|thousand|million|dozen|half|double|twice|percent)\b|%")
_DATE: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:[T ].*)?", re.ASCII)
_RELATIVE: Final = re.compile(
    r"\b(?:today|tonight|tomorrow|yesterday|now|(?:next|last|this|in|past|coming) \w+|\w+day|week\w*|month\w*"
    r"|days?|years?)\b"
)
_ID: Final = re.compile(r"(?:^|_)(?:ids?|uuid|number|reference|account|iban|card|sku|isbn)$")
_OWN: Final = re.compile(
    r"(?:^|_)(?:idempotency|request|correlation|session|trace|client|thread|task|run|step|page|line|house|seat)_"
)
"""Names of ids and numbers that an agent chooses."""
_AMOUNT: Final = re.compile(r"(?:^|_)(?:amount|price|total|sum|cost|fee|payment|balance|limit_amount)(?:_|$)")
_PATH: Final = re.compile(r"(?:^|_)(?:path|file|filename|directory|folder|source|src)$")
_DESTROYS: Final = {"delet", "remov", "rm", "mov", "renam", "rmdir", "unlink"}
_FACTORS: Final = (1, 2, 3, 4, 12, 1 / 2, 1 / 3, 1 / 4, 1 / 12)
_CENT: Final = 0.006
_VALUES: Final = 200
"""Values of one call that are looked up."""
_SMALL, _SHORT, _MOST = 20, 1000, 40
"""Amounts up to here may be counted, integers below here may be places in a list; numbers that arithmetic
combines."""


@dataclass
class Provenance:
    """What a run has shown so far."""

    parts: set[str] = field(default_factory=set)
    digits: set[str] = field(default_factory=set)
    numbers: dict[float, None] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    """Texts of people, in lower case."""
    multiplies: bool = False
    """A person speaks of thousands, shares and the like, so amounts cannot be followed."""
    forms: set[tuple[str, str]] = field(default_factory=set)
    """Names and forms of the identifiers in results."""
    scrambled: set[str] = field(default_factory=set)
    """Digits of identifiers and numbers, in order of size."""

    def add(self, text: str, by: Literal["person", "tool", "call"] = "call") -> None:
        """Take in the text of a message, or the arguments or the schema of a call."""
        lower = text.lower()
        self.parts.update(_PART.findall(lower))
        self.digits.update(run.lstrip("0") for run in _DIGITS.findall(text))
        self.digits.update("".join(_DIGITS.findall(group)).lstrip("0") for group in _SPACED.findall(text))
        self.numbers.update(dict.fromkeys(map(_number, _NUMBER.findall(text))))
        self.scrambled.update("".join(sorted(run)) for run in _DIGITS.findall(text) if len(run) > 3)
        if by == "person":
            self.words.append(lower)
            self.multiplies |= _MULTIPLES.search(lower) is not None
        elif by == "tool":
            self.forms.update((name.lower(), _form(value)) for name, value in _FIELD.findall(text))

    def unknown(self, tool: str, arguments: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
        """``name value`` of each argument of a call that nothing has shown, and whether that is a fault.

        It is one if results have shown other values of this name and form, if the digits are a known one's
        in another order, if an amount is ten times or a tenth of a known one, or if a path is deleted.
        What is left may be known from elsewhere, or computed.
        """
        for name, value in islice(_leaves("", arguments), _VALUES):
            if isinstance(value, bool) or _OWN.search(name):
                continue
            if self._is_unknown(tool, name, value):
                yield f"{name} {str(value)[:80]}", self._is_fault(name, str(value))

    def _is_fault(self, name: str, value: str) -> bool:
        if _DATE.fullmatch(value):
            return False
        if _AMOUNT.search(name):
            amount = abs(float(value))
            return any(
                abs(factor * amount - number) < _CENT for number in self.numbers for factor in (10, 0.1)
            )
        if _PATH.search(name) or (name, _form(value)) in self.forms:
            return True
        return any("".join(sorted(run)) in self.scrambled for run in _DIGITS.findall(value) if len(run) > 3)

    def _is_unknown(self, tool: str, name: str, value: object) -> bool:
        if isinstance(value, str) and (date := _DATE.fullmatch(value)):
            return not self._knows_date(date)
        if _AMOUNT.search(name) and isinstance(value, int | float):
            return abs(value) > _SMALL and not self._computes(abs(float(value)))
        if isinstance(value, str) and _PATH.search(name):
            last = value.rstrip("/").rpartition("/")[2].lower()
            destroys = _DESTROYS & set(stems_of_name(tool))
            return bool(destroys) and not self.parts.issuperset(_PART.findall(last))
        if not _ID.search(name) or isinstance(value, float):
            return False
        if isinstance(value, int):
            return abs(value) >= _SHORT and not self._knows_id(str(abs(value)))
        return isinstance(value, str) and len(value) <= 64 and " " not in value and not self._knows_id(value)

    def _knows_id(self, value: str) -> bool:
        """Whether each part of an identifier that has a digit has been shown, or its digits have."""
        parts = [part for part in _PART.findall(value.lower()) if _DIGITS.search(part)]
        digits = "".join(_DIGITS.findall(value)).lstrip("0")
        if digits in self.digits or any(len(end) > 6 and digits.endswith(end) for end in self.digits):
            return True
        return all(
            part in self.parts
            or all(len(run) >= 3 and run.lstrip("0") in self.digits for run in _DIGITS.findall(part))
            for part in parts
        )

    def _knows_date(self, date: re.Match[str]) -> bool:
        """Whether its day of the month has been shown, or a person speaks of time in relation to now."""
        day = date[3].lstrip("0")
        return day in self.digits or any(
            _RELATIVE.search(words) or re.search(rf"\b{day}(?:st|nd|rd|th)\b", words) for words in self.words
        )

    def _computes(self, amount: float) -> bool:
        """Whether an amount has been shown, or is a sum, difference, product or quotient of two that have."""
        if self.multiplies or len(self.numbers) > _MOST:
            return True

        def equal(*values: float) -> bool:
            return any(abs(value - amount) < _CENT for value in values)

        return (
            any(equal(*(factor * a for factor in _FACTORS)) for a in self.numbers)
            or equal(sum(self.numbers))
            or any(
                equal(
                    a * b,
                    b and a / b,
                    *(b + sign * factor * a for factor in (1, 2, 3, 4) for sign in (1, -1)),
                )
                for a, b in permutations(self.numbers, 2)
            )
        )


def _form(text: str) -> str:
    """Letters and digits of an identifier by kind: ``CD-7718`` becomes ``aa-0000``."""
    return re.sub(r"[A-Za-z]", "a", re.sub(r"\d", "0", text))


def _number(text: str) -> float:
    """A number with separators of thousands in either style."""
    *groups, last = re.split(r"[,.' ]", text)
    if not groups:
        return float(text)
    return float("".join([*groups, last])) if len(last) == 3 else float(f"{''.join(groups)}.{last}")


def _leaves(name: str, value: object) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(key)).lower(), inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(name, inner)
    else:
        yield name, value
