"""Check a server before work starts: its address, the key, and the models that it serves.

A wrong address, key or model gives one clear error here instead of the same failure for every request.
"""

from __future__ import annotations

import os
import re
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from surefoot.errors import PolicyError
from surefoot.policies.http_client import API_KEY_VARIABLE, CallError, RemoteServer
from surefoot.printable import quoted
from surefoot.records import Count

_TIMEOUT_S = 15.0
"""Seconds for the list of models."""
_QUOTED = 200
"""Characters of a server's error message that are quoted."""
_PATHS = {"chat": "/chat/completions", "completions": "/completions"}


class ServedModel(BaseModel):
    """One entry of ``GET /v1/models``; ``root`` and ``max_model_len`` come from vLLM and SGLang."""

    id: str
    owned_by: str = ""
    root: str | None = None
    """Directory or hub name from which the model was loaded."""
    max_model_len: Count | None = None
    """Most tokens of prompt and completion together."""


class _ModelList(BaseModel):
    data: list[ServedModel]


def checked_url(url: str) -> str:
    """``url`` without trailing slashes. Raises :class:`PolicyError` unless it is an HTTP address."""
    if not re.match(r"https?://[^/\s]+", url):
        hint = url.split("://")[-1].lstrip("/")
        raise PolicyError(f"{url}: an address begins with http:// or https://; write http://{hint}")
    return url.rstrip("/")


def list_models(base_url: str, *, key: str | None = None) -> tuple[ServedModel, ...]:
    """The models of the server at ``base_url`` (with ``/v1``).

    Raises :class:`PolicyError`, one sentence with the address, if no server answers, the key is refused, or
    the response does not list models.
    """
    models = _models_or_none(checked_url(base_url), key)
    if models is None:
        raise PolicyError(
            f"{base_url} is not an OpenAI-compatible server: there is no list of models at {base_url}/models"
        )
    return models


def check_model(
    base_url: str,
    model: str,
    *,
    mode: Literal["chat", "completions"],
    key: str | None = None,
    timeout_s: float = 120.0,
) -> None:
    """Make sure that the server answers for ``model``; raises :class:`PolicyError` as :func:`list_models`.

    A server may answer for a model that it does not list, for example under an alias. So an unlisted model is
    tried with a request for one token. An empty list is not evidence: the model is then accepted untried.
    """
    url = checked_url(base_url)
    models = _models_or_none(url, key)
    names = [served.id for served in models or ()]
    if model in names or models == ():
        return
    body: dict[str, Any] = {"model": model, "max_tokens": 1}
    body |= {"messages": [{"role": "user", "content": "1"}]} if mode == "chat" else {"prompt": "1"}
    try:
        _server(url, key, timeout_s).request(_PATHS[mode], body)
    except CallError as error:
        if error.status not in (400, 404, 422):
            raise PolicyError(f"{url}{_explanation(error, key)}") from error
        problem = f"serves {', '.join(names[:5])} and not the model"
        if models is None:
            problem = "neither lists models nor answers for the model"
        raise PolicyError(f"{url} {problem} {model!r} (status {error.status}{_quoted(error)})") from error


def _models_or_none(url: str, key: str | None) -> tuple[ServedModel, ...] | None:
    """The server's models; ``None`` if it does not list them. Raises :class:`PolicyError`."""
    try:
        return _models(url, key)
    except CallError as error:
        if error.status not in (404, 405):
            raise PolicyError(f"{url}{_explanation(error, key)}") from error
    except ValidationError as error:
        raise PolicyError(
            f"{url} is not an OpenAI-compatible server: GET {url}/models does not list models"
        ) from error
    if not url.endswith("/v1") and _lists_models(f"{url}/v1", key):
        raise PolicyError(f"{url} serves its models at {url}/v1; write {url}/v1")
    return None


def _lists_models(url: str, key: str | None) -> bool:
    try:
        _models(url, key)
    except CallError as error:
        return error.status in (401, 403)
    except ValidationError:
        return False
    return True


def _models(url: str, key: str | None) -> tuple[ServedModel, ...]:
    return tuple(_ModelList.model_validate_json(_server(url, key, _TIMEOUT_S).request("/models")).data)


def _server(url: str, key: str | None, timeout_s: float) -> RemoteServer:
    return RemoteServer(base_url=url, api_key=key, timeout_s=timeout_s, max_retries=1)


def _explanation(error: CallError, key: str | None) -> str:
    """The problem, worded to follow the address."""
    if isinstance(error.__cause__, TimeoutError):
        return ": the server does not answer in time; it may still be starting"
    if error.status is None:
        return f": no server answers ({_root_cause(error)}); start it, or correct the address"
    if error.status in (401, 403):
        sent = key or os.environ.get(API_KEY_VARIABLE)
        problem = f"refuses the key in {API_KEY_VARIABLE}" if sent else f"needs a key; set {API_KEY_VARIABLE}"
        return f" {problem} (status {error.status}{_quoted(error)})"
    return f": status {error.status}{_quoted(error)}"


def _root_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


def _quoted(error: CallError) -> str:
    text = quoted(" ".join(error.body[: _QUOTED * 4].split()), _QUOTED)
    return f": {text}" if text else ""
