"""A route as one line: method, path, function, permission."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_type_hints

from pydantic import BaseModel
from starlette.convertors import Convertor, register_url_convertor

from surefoot.server.permissions import Action


class NumberConvertor(Convertor[int]):
    """A number in an address: at most 15 digits, which a column can hold; anything longer is not found."""

    regex = "[0-9]{1,15}"

    def convert(self, value: str) -> int:
        """The number."""
        return int(value)

    def to_string(self, value: int) -> str:
        """Its digits."""
        return str(value)


register_url_convertor("number", NumberConvertor())


@dataclass(frozen=True)
class Route:
    """What a method of a path calls, and who may call it."""

    method: str
    """``*`` = every method. Other methods of a gateway's path are answered 405."""
    path: str
    function: Callable[..., Any]
    """Of the gateway: ``async (gateway, request, …)``; of a page: ``(page, …)``."""
    action: Action | None
    """``None`` = open to everybody; the function makes its own checks."""
    twin: bool = False
    """Also served as JSON, at ``path.json``."""
    files: int = 0
    """Most files of a form."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The path, and the path of the JSON twin."""
        return (self.path, f"{self.path}.json") if self.twin else (self.path,)

    @property
    def body(self) -> type[BaseModel] | None:
        """Type of the JSON body."""
        kind: type[BaseModel] | None = get_type_hints(self.function).get("body")
        return kind
