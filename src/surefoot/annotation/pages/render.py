"""One answer for people and programs: each page is a template over the same data that its JSON twin gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from pydantic_core import to_jsonable_python

from surefoot.annotation.pages.context import Place, Visitor, pages_of

H = TypeVar("H", bound=Callable[..., Any])

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def twin(router: APIRouter, path: str) -> Callable[[H], H]:
    """Answer GET at ``path``, and at ``path.json`` for its JSON twin."""

    def register(handler: H) -> H:
        router.get(path)(handler)
        router.get(f"{path}.json", name=f"{handler.__name__}_json")(handler)
        return handler

    return register


def wants_json(request: Request) -> bool:
    """Whether a program asks: by the address's ending, or by what it accepts."""
    accept = request.headers.get("accept", "")
    return request.url.path.endswith(".json") or ("application/json" in accept and "text/html" not in accept)


def plain(data: object) -> Any:
    """``data`` as JSON has it: records and dataclasses as objects, times as ISO text, NaN as null."""
    return _without_nan(to_jsonable_python(data))


def show(
    request: Request,
    visitor: Visitor | None,
    template: str,
    data: Mapping[str, Any],
    *,
    place: Place | None = None,
    status: int = 200,
    extra: Mapping[str, Any] | None = None,
) -> Response:
    """The page, or its JSON twin. ``extra`` is for the page's forms alone: tokens, lists of choices."""
    content = plain(data)
    if wants_json(request):
        return JSONResponse(content, status_code=status, headers=HEADERS)
    found = pages_of(request).templates.get_template(template)
    page = found.render(
        data=content,
        visitor=visitor,
        csrf=visitor.csrf if visitor else None,
        place=place,
        open_flags=_open_flags(request, place),
        root=request.scope.get("root_path", ""),
        here=request.url.path,
        **(extra or {}),
    )
    return HTMLResponse(page, status_code=status, headers=HEADERS)


def done(request: Request, to: str, data: Mapping[str, Any] | None = None) -> Response:
    """Answer to a form: on to a page (303), so that a reload sends nothing twice. A program gets ``data``."""
    if wants_json(request):
        return JSONResponse(plain(data or {}), headers=HEADERS)
    return RedirectResponse(request.scope.get("root_path", "") + to, status_code=303, headers=HEADERS)


def _open_flags(request: Request, place: Place | None) -> int:
    """What the project's tab "Flags" counts, which administrators alone have."""
    if place is None or place.role != "admin":
        return 0
    return pages_of(request).db.comments.open_flags(place.project.id)


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_nan(inner) for inner in value]
    return value
