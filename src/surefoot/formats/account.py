"""Names what of a row no record holds, so that nothing is lost in silence, whatever its format."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from pydantic_core import from_json

from surefoot.messages.dialects import FAILED_STATES, OUTPUT_TYPES, PART_KINDS, ROLES
from surefoot.messages.reading import embedded_hash

_WORDS: Final = {
    *PART_KINDS, *ROLES, *OUTPUT_TYPES, *FAILED_STATES,
    "ChatGeneration", "agent", "constructor", "custom", "error", "message", "success",
}  # fmt: skip
"""Words for the kind of a message, part or field."""
_UNREAD: Final = frozenset({"steps", "created", "usage"})
"""Fields of records without text of the row."""
_MAX_NAMES: Final = 1_000
_SHOWN: Final = 24
"""Names that are counted, and at most shown."""
_SEARCHED, _ALWAYS = 10, 10**9
"""Texts of one path of a row that are looked for before one is found, and afterwards."""
_EMBEDDED: Final = 100
"""Characters from which a text may be an embedded attachment."""
_SAME_IN_JSON: Final = re.compile(r"[\w .:+-]*", re.ASCII)
"""Texts that every writer of JSON writes as they are, so that they need not be looked for in its values."""


def count_fields(row: Any, items: Sequence[Any], counts: Counter[str]) -> None:
    """Count in ``counts`` the fields of ``row`` with a text that occurs in none of ``items``, by their path.

    JSON text, in the row or in a record, is compared by the texts that it contains. A bound on the names
    keeps objects whose names are data small.
    """
    texts = _Texts(items)
    leaves = list[tuple[str, str]]()
    _add_leaves(row, "", leaves, texts.exact)
    for path, text in leaves:
        if text in _WORDS or not text or texts.contain(path, text):
            continue
        inner = list[tuple[str, str]]()
        _add_leaves(parsed(text), path, inner)
        missing = [name for name, part in inner if part not in _WORDS and not texts.contain(name, part)]
        missing = missing if inner else [path]
        for name in missing:
            counts[name if name in counts or len(counts) < _MAX_NAMES else "other fields"] += 1


def fields_summary(counts: Mapping[str, int]) -> str:
    """The names with their counts; many are grouped by their beginnings."""
    depth = max((name.count(".") for name in counts), default=0) + 1
    groups = Counter(counts)
    while len(groups) > _SHOWN and depth > 1:
        depth -= 1
        groups = Counter()
        for name, count in counts.items():
            groups[".".join(name.split(".")[:depth])] += count
    names = [f"{name} ({count:,})" for name, count in groups.most_common(_SHOWN)]
    if len(groups) > _SHOWN:
        names.append(f"and {len(groups) - _SHOWN:,} more")
    return ", ".join(names)


def _add_leaves(
    value: Any, path: str, leaves: list[tuple[str, str]], known: Container[str] = frozenset()
) -> None:
    """Add the texts in an object or list that are not ``known``, with the names above them."""
    is_object = type(value) is dict
    for name, item in value.items() if is_object else enumerate(value if type(value) is list else ()):
        kind = item.__class__
        if kind is str and item in known:
            continue
        if kind is str or kind is list or kind is dict:
            below = path if not is_object else f"{path}.{name}" if path else str(name)
            if kind is str:
                leaves.append((below, item))
            else:
                _add_leaves(item, below, leaves, known)


def parsed(value: Any) -> Any:
    """The value of JSON text that is an object or a list; any other value as it is."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        with suppress(ValueError):
            return from_json(value)
    return value


class _Texts:
    """The texts of records."""

    def __init__(self, items: Sequence[Any]) -> None:
        texts, self._arguments = list[str](), list[str]()
        _add_texts(items, texts, self._arguments)
        self._texts = dict.fromkeys(texts)
        self.exact = self._texts.keys()
        self._in_arguments: set[str] | None = None
        self._inner: set[str] | None = None
        """Texts inside JSON texts; first those inside the arguments of calls, which are fewer."""
        self._joined = ""
        self._at = 0
        """Where the latest text was: a row's texts have the order of the record's."""
        self._misses, self._missing = Counter[str](), set[str]()

    def contain(self, path: str, text: str) -> bool:
        """Whether a text is one of them, a part of one, or an attachment of which they have the hash.

        If the first texts of a path are part of none, later ones are not searched for.
        """
        if self._in_arguments is None:
            self._in_arguments = _texts_inside(self._arguments)
            self._joined = "\0".join(self._texts)
        if text in self.exact or text in self._in_arguments or text.isspace():
            return True
        if text in self._missing:
            return False
        if self._misses[path] < _SEARCHED:
            if self._finds(text) or self._finds(json.dumps(text, ensure_ascii=False)[1:-1]):
                self._misses[path] = -_ALWAYS
                return True
            self._misses[path] += 1
            if len(text) <= _EMBEDDED and _SAME_IN_JSON.fullmatch(text):
                self._missing.add(text)
                return False
        if self._inner is None:
            self._inner = _texts_inside(self.exact)
        return text in self._inner or (len(text) > _EMBEDDED and embedded_hash(text) in self.exact)

    def _finds(self, text: str) -> bool:
        at = self._joined.find(text, self._at)
        at = self._joined.find(text, 0, self._at + len(text)) if at < 0 else at
        self._at = max(at, 0)
        return at >= 0


def _texts_inside(texts: Iterable[str]) -> set[str]:
    """The texts in the JSON texts among these."""
    inner = list[tuple[str, str]]()
    for text in texts:
        _add_leaves(parsed(text), "", inner)
    return {text for _, text in inner}


def _add_texts(value: Any, texts: list[str], arguments: list[str]) -> None:
    """Add the texts in records of any depth; add the arguments of calls to ``arguments``, too."""
    kind = value.__class__
    if kind is tuple or kind is list:
        fields: Iterable[tuple[str, Any]] = (("", item) for item in value)
    else:  # an object, a record, or an object of records
        fields = (value if kind is dict else getattr(value, "__dict__", {})).items()
    for name, item in fields:
        if item.__class__ is str:
            texts.append(item)
            if name == "arguments":
                arguments.append(item)
        elif item and name not in _UNREAD:
            _add_texts(item, texts, arguments)
