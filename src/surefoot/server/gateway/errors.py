"""Errors in OpenAI's form, ``{"error": {"message", "type", "param", "code"}}``, or Anthropic's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from surefoot.errors import SurefootError
from surefoot.printable import writable

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_MESSAGES = "/v1/messages"
CLIENT_DISCONNECTED = 499
"""Status in metrics and log if the client disconnected; never sent."""
_MAX_QUOTED = 300
"""Characters of what a client sent that go into a message."""


class ApiError(SurefootError):
    """A request that is answered with an error. ``message`` names the field and the fix."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        allow: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, writable(message), param, code
        self.retry_after_s, self.allow = retry_after_s, allow

    @property
    def body(self) -> dict[str, Any]:
        """The answer's body."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def anthropic_body(self) -> dict[str, Any]:
        """The answer's body in Anthropic's form, ``{"type": "error", "error": {"type", "message"}}``."""
        kind = self.body["error"]["type"]
        kind = "api_error" if kind == "server_error" else kind
        return {"type": "error", "error": {"type": kind, "message": self.message}}

    @property
    def headers(self) -> dict[str, str]:
        """The answer's headers."""
        headers = {}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
        if self.allow is not None:
            headers["Allow"] = self.allow
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers


def answered(answer: BaseModel | dict[str, Any]) -> Response:
    """The response with this body."""
    return Response(to_json(answer), media_type="application/json")


class ClientDisconnectedError(Exception):
    """The client has disconnected, so there is nothing to answer."""


EXPECTED_ERRORS = (ApiError, ClientDisconnectedError, ClientDisconnect, HTTPException)


def error_response(path: str, error: Exception) -> Response:
    """The answer for an error of the route ``path``: in OpenAI's form, or Anthropic's for its own."""
    headers: Mapping[str, str] = {}
    if isinstance(error, ClientDisconnectedError | ClientDisconnect):
        return Response(status_code=CLIENT_DISCONNECTED)
    if isinstance(error, HTTPException):
        headers, error = error.headers or {}, ApiError(error.status_code, str(error.detail))
    elif not isinstance(error, ApiError):
        error = ApiError(500, f"unexpected error: {type(error).__name__}")
    body = error.anthropic_body if path.startswith(_MESSAGES) else error.body
    return JSONResponse(body, status_code=error.status, headers={**error.headers, **headers})


def invalid(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """The first error that pydantic found, without what the client sent."""
    first = errors[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    problem = str(first["msg"]).removeprefix("Value error, ")
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    where = writable(where)[:_MAX_QUOTED]
    return ApiError(400, f"{where + ': ' if where else ''}{problem}{more}", param=where or None)
