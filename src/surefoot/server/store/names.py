"""Names of accounts that people can tell apart: what a name may hold, and which names look alike.

By Unicode's UTS #39: a name has letters of one script only ("highly restrictive": Latin may stand beside the
scripts of Chinese, Japanese and Korean), and two names look alike if their skeletons, in which each character
is replaced by the one that it may be taken for, are equal. Case and width make no difference either.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import cache
from typing import Final

from surefoot.errors import ConflictError, StoreError
from surefoot.server.store.schema import checked_name

_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
"""Categories of control and format characters (zero width, directions), unassigned and private ones."""
_BLANK: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters and marks that are drawn as nothing."""
_VARIATIONS: Final = (range(0x180B, 0x1810), range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0))
"""Selectors of a variant of the character before."""
_TOGETHER: Final = (
    frozenset({"LATIN", "HAN", "HIRAGANA", "KATAKANA"}),
    frozenset({"LATIN", "HAN", "BOPOMOFO"}),
    frozenset({"LATIN", "HAN", "HANGUL"}),
)
"""Scripts that are written together (UTS #39, section 5.2)."""


def checked_user_name(name: str) -> str:
    """``name``, if it can be told apart from others.

    Raises ``StoreError`` for characters that cannot be seen, spaces but single ones between words,
    compatibility characters (full-width letters and the like), and letters of several scripts.
    """
    checked_name("name", name)
    for character in name:
        if _invisible(character):
            where = f"U+{ord(character):04X} ({unicodedata.name(character, 'unnamed')})"
            raise StoreError(f"'name' contains {where}, which cannot be seen; leave it out")
    if name != " ".join(name.split()):
        raise StoreError("'name' may have single spaces between words, and no others")
    if name != unicodedata.normalize("NFKC", name):
        raise StoreError(
            f"'name' contains variants of characters; write {unicodedata.normalize('NFKC', name)!r}"
        )
    scripts = _scripts(name)
    if len(scripts) > 1 and not any(scripts <= allowed for allowed in _TOGETHER):
        listed = " and ".join(sorted(script.capitalize() for script in scripts))
        raise StoreError(f"'name' mixes letters of {listed}, which look alike; use one script")
    return name


def refuse_look_alikes(name: str, others: Iterable[str]) -> None:
    """Raise ``ConflictError`` if ``name`` is, or may be taken for, one of ``others``."""
    own = _skeletons(name)
    for other in others:
        if other == name:
            raise ConflictError(f"the name '{name}' is taken; choose another")
        if own & _skeletons(other):
            raise ConflictError(f"the name '{name}' looks like '{other}', which is taken; choose another")


def _invisible(character: str) -> bool:
    return (
        unicodedata.category(character) in _INVISIBLE
        or character in _BLANK
        or any(ord(character) in selectors for selectors in _VARIATIONS)
    )


def _scripts(name: str) -> frozenset[str]:
    from confusable_homoglyphs.categories import alias

    return frozenset(alias(character) for character in name) - {"COMMON", "INHERITED"}


def _skeletons(name: str) -> frozenset[str]:
    """The skeleton as written, in which a capital I is an l, and without case, in which it is an i."""
    plain = unicodedata.normalize("NFKC", name)
    return frozenset({_skeleton(plain), _skeleton(plain.casefold()).casefold()})


def _skeleton(text: str) -> str:
    parts = (_prototypes().get(one, one) for one in unicodedata.normalize("NFD", text) if not _invisible(one))
    return unicodedata.normalize("NFD", "".join(parts))


@cache
def _prototypes() -> dict[str, str]:
    """What each character may be taken for, the same for all that look alike.

    The library has Unicode's list in both directions: a character has one prototype, or is one itself and has
    those that look like it. Where both have one entry, the lesser of the two stands for both.
    """
    from confusable_homoglyphs.confusables import confusables_data

    found = {}
    for character, alike in confusables_data.items():
        if len(character) == 1 and len(alike) == 1:
            (other,) = (one["c"].strip("\u200e") for one in alike)
            back = confusables_data.get(other, ())
            found[character] = other if len(other) > 1 or len(back) > 1 else min(character, other)
    return found
