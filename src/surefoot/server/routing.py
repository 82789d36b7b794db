"""A route as one line (method, path, function, permission), and the OpenAPI document of a list of routes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_type_hints

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from starlette.convertors import Convertor, register_url_convertor

from surefoot import __version__
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
_PARAMETER = re.compile(r"\{(\w+)(?::(\w+))?\}")
_TYPES = {"number": "integer", "int": "integer"}


@dataclass(frozen=True)
class Route:
    """What a method of a path calls, and who may call it."""

    method: str
    """``*`` = every method that no other route of the path takes."""
    path: str
    function: Callable[..., Any]
    """Of the gateway: ``async (gateway, request, …)``; of a page: ``(page, …)``."""
    action: Action | None
    """``None`` = open to everybody; the function makes its own checks."""
    answer: type[BaseModel] | type[dict[str, Any]] | None = None
    """Type of the JSON answer; ``None`` = text."""
    errors: tuple[int, ...] = ()
    """Statuses of errors beyond those that every route of its kind has."""
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


MEANINGS: Final = {
    400: "The request is not valid.",
    401: "No key, or an unknown or expired one.",
    403: "The key's role or scopes do not allow this.",
    404: "Unknown model.",
    413: "The body is too large.",
    429: "Too many requests; try again after Retry-After seconds.",
    500: "An unexpected error, such as an answer that cannot be recorded.",
    502: "The policy or the model behind it failed.",
    503: "The server is stopping or not ready, or cannot record answers now.",
    504: "No answer in time.",
}
_TAGS = {"chat": "generate", "score": "score"}
_IN: Final[JsonSchemaMode] = "validation"
_OUT: Final[JsonSchemaMode] = "serialization"


def openapi_document(routes: Sequence[Route], *, with_keys: bool) -> dict[str, Any]:
    """The OpenAPI document. Answers in formats of OpenAI and Anthropic are objects without detail."""
    routes = [route for route in routes if route.method != "*" and route.path != "/openapi.json"]
    models = dict.fromkeys(
        (model, mode)
        for route in routes
        for model, mode in ((route.body, _IN), (route.answer, _OUT))
        if model is not None and issubclass(model, BaseModel)
    )
    template = "#/components/schemas/{model}"
    schemas, definitions = models_json_schema(list(models), ref_template=template)

    def content(kind: Any, mode: JsonSchemaMode = _OUT) -> dict[str, Any]:
        if kind is None:
            return {"text/plain": {"schema": {"type": "string"}}}
        schema = {"type": "object"} if kind is dict else schemas[kind, mode]
        return {"application/json": {"schema": schema}}

    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        name, body, answer = route.function.__name__, route.body, content(route.answer)
        statuses, meaning = (401, 403, 429, *route.errors), "The answer."
        operation: dict[str, Any] = {
            "tags": [_TAGS.get(route.action or "", "status")],
            "summary": name.replace("_", " ").capitalize(),
            "description": " ".join((route.function.__doc__ or "").split()),
        }
        if parameters := [_parameter(*match) for match in _PARAMETER.findall(route.path)]:
            operation["parameters"] = parameters
        if body is not None:
            statuses = tuple(MEANINGS)
            operation["requestBody"] = {"required": True, "content": content(body, _IN)}
            if "stream" in body.model_fields:
                meaning = "The answer; with `stream`, server-sent events."
                answer["text/event-stream"] = {}
        error = content(dict)
        operation["responses"] = {
            "200": {"description": meaning, "content": answer},
            **{str(code): {"description": MEANINGS[code], "content": error} for code in sorted(statuses)},
        }
        for path, suffix in zip(route.paths, ("", "_json"), strict=False):
            methods = paths.setdefault(_PARAMETER.sub(r"{\1}", path), {})
            methods[route.method.lower()] = {**operation, "operationId": name + suffix}
    about = "An OpenAI-compatible gateway that verifies as it generates."
    components: dict[str, Any] = {"schemas": definitions.get("$defs", {})}
    if with_keys:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "surefoot", "version": __version__, "description": about},
        "paths": paths,
        "components": components,
        **({"security": [{"key": []}]} if with_keys else {}),
    }


def _parameter(name: str, kind: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": _TYPES.get(kind, "string")}}
