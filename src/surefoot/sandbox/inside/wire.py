"""Plain values over a pipe between the tests and the program under test.

A message is its length as four bytes, then JSON. Only values of exact built-in types come out of ``decode``:
None, bool, int, float, complex, str, bytes, list, tuple, set, frozenset and dict. So nothing that the other
side sends can run code here, not even through ``__eq__``. Instances of subclasses, such as ``Counter``, are
sent as the type that they derive from.
"""

from __future__ import annotations

import json
import math
import os
import select
import struct
import time
from typing import Any

MAX_BYTES = 16 << 20
MAX_DEPTH = 100
_JSON_INT = 1 << 63
"""Integers from here on go as hexadecimal text, which Python reads in linear time."""

_CONTAINERS: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}


class WireError(Exception):
    """A value that cannot be sent, or bytes that are not a value."""


class NotPlainError(WireError):
    """A value of a type that cannot be sent, which therefore cannot have come over the channel."""


def escaped(text: str) -> str:
    """The text with its surrogates and control characters as escapes: a verdict is read as strict JSON."""
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode()
        for char in text
    )


def encode(value: Any, depth: int = 0) -> Any:
    """A value as JSON's types; containers but lists are objects with one key. Raises ``WireError``."""
    if depth > MAX_DEPTH:
        raise WireError(f"a value is nested more than {MAX_DEPTH} levels deep")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        number = int.__int__(value)
        return number if -_JSON_INT < number < _JSON_INT else {"int": hex(number)}
    if isinstance(value, float):
        real = float.__float__(value)
        return real if math.isfinite(real) else {"float": repr(real)}
    if isinstance(value, complex):
        return {"complex": [encode(value.real), encode(value.imag)]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, dict):
        pairs = [[encode(key, depth + 1), encode(item, depth + 1)] for key, item in dict.items(value)]
        return {"dict": pairs}
    if isinstance(value, list):
        return [encode(item, depth + 1) for item in list.__iter__(value)]
    for kind, container in _CONTAINERS.items():
        if isinstance(value, container):
            return {kind: [encode(item, depth + 1) for item in container.__iter__(value)]}
    raise NotPlainError(f"a value of type {type(value).__name__} is not plain, so it cannot be compared")


def decode(data: Any) -> Any:
    """The value that ``encode`` wrote. Raises ``WireError``."""
    if isinstance(data, list):
        return [decode(item) for item in data]
    if not isinstance(data, dict):
        return data
    if len(data) != 1:
        raise WireError("an object has one key, the type")
    ((kind, content),) = data.items()
    try:
        match kind:
            case "int":
                return int(content, 16)
            case "float":
                return float(content)
            case "complex":
                return complex(*[decode(part) for part in content])
            case "bytes":
                return bytes.fromhex(content)
            case "tuple" | "set" | "frozenset":
                return _CONTAINERS[kind](decode(item) for item in content)
            case "dict":
                return {decode(key): decode(item) for key, item in content}
    except (TypeError, ValueError) as problem:
        raise WireError(f"no {kind}: {problem}") from None
    raise WireError("an object of an unknown type")


class Channel:
    """Messages both ways over two descriptors.

    ``receive`` waits until ``deadline`` (seconds of ``time.monotonic``; ``None``: for ever).
    """

    def __init__(self, reader: int, writer: int) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, value: Any) -> None:
        """Raises ``WireError``; ``OSError``: the other side is gone."""
        try:
            text = json.dumps(encode(value)).encode("ascii")
        except (RecursionError, ValueError) as problem:
            raise WireError(f"a value cannot be sent: {problem}") from None
        if len(text) > MAX_BYTES:
            raise WireError(f"a value takes more than {MAX_BYTES} bytes")
        data = memoryview(struct.pack("<I", len(text)) + text)
        while data:
            data = data[os.write(self.writer, data) :]

    def receive(self, deadline: float | None = None) -> Any:
        """Raises ``WireError``, ``EOFError`` (the other side is gone), ``TimeoutError``."""
        (length,) = struct.unpack("<I", self._read(4, deadline))
        if length > MAX_BYTES:
            raise WireError(f"a message says that it takes more than {MAX_BYTES} bytes")
        try:
            return decode(json.loads(self._read(length, deadline)))
        except (RecursionError, ValueError) as problem:
            raise WireError(f"a message is not JSON: {problem}") from None

    def _read(self, size: int, deadline: float | None) -> bytes:
        parts = []
        while size:
            if deadline is not None:
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not select.select([self.reader], [], [], remaining)[0]:
                    raise TimeoutError
            part = os.read(self.reader, min(size, 1 << 16))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def take_streams() -> Channel:
    """The channel that standard input and output are. What is read and printed goes nowhere after."""
    channel = Channel(os.dup(0), os.dup(1))
    nowhere = os.open("/dev/null", os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return channel
