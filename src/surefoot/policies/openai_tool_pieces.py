"""Tool calls of a streamed answer, and text that is cut anywhere: pieces put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, InstanceOf

Text = InstanceOf[str]
"""Text that may begin or end with half a character: a server may cut a JSON string between surrogates."""


class NewFunction(BaseModel):
    """Function of a piece."""

    name: str | None = None
    arguments: Text | None = None


class NewCall(BaseModel):
    """A piece of a tool call."""

    index: int | None = None
    id: str | None = None
    function: NewFunction | None = None


class BegunCalls:
    """The tool calls of a choice, as far as they have come, in the order in which they began.

    Pieces of a call have the same number; a server that numbers none sends each call whole. Some servers
    give all calls the number 0: a piece with another id then begins the next call. Other servers make a new
    id for each piece, so that arguments without a name go on with the call before, whatever their id.
    """

    def __init__(self) -> None:
        self._all: list[_BegunCall] = []
        self._latest: dict[int, _BegunCall] = {}
        """The latest call of each number."""

    def add(self, pieces: Sequence[NewCall]) -> None:
        """Take in what is new."""
        for new in pieces:
            begun = None if new.index is None else self._latest.get(new.index)
            if begun is None or begun.ended_by(new):
                begun = _BegunCall()
                self._all.append(begun)
                if new.index is not None:
                    self._latest[new.index] = begun
            begun.add(new)

    @property
    def whole(self) -> list[dict[str, Any]]:
        """All of them, as an answer in one piece has them."""
        return [call.whole for call in self._all]


@dataclass
class _BegunCall:
    """A tool call, as far as it has come: its first piece has the name, all have arguments."""

    id: str | None = None
    name: str | None = None
    arguments: list[str] = field(default_factory=list)

    def ended_by(self, new: NewCall) -> bool:
        """Whether a piece of the same number begins another call."""
        more = new.function and new.function.arguments and not new.function.name
        return bool(self.id and new.id and new.id != self.id and not more)

    def add(self, new: NewCall) -> None:
        self.id = self.id or new.id
        if new.function:
            self.name = self.name or new.function.name
            self.arguments += [] if new.function.arguments is None else [new.function.arguments]

    @property
    def whole(self) -> dict[str, Any]:
        given = {"arguments": whole_characters("".join(self.arguments))[0]} if self.arguments else {}
        return {"id": self.id, "function": {"name": self.name, **given}}


def whole_characters(text: str) -> tuple[str, str]:
    """Text with its surrogates joined, and half a character that it may end with.

    Raises ``UnicodeDecodeError`` for half a character anywhere else.
    """
    half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
    whole = text[: len(text) - len(half)]
    return whole.encode("utf-16-le", "surrogatepass").decode("utf-16-le"), half
