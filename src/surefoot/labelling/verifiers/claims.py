"""What an agent's answer says was done, in English; other languages make no claim and admit nothing.

A claim is read off its grammar ("has been moved", "I transferred"), and belongs to a tool by the words of the
tool's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

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
