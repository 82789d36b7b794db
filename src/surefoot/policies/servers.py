"""A look at a server before work starts: its address, the key, and the models that it serves.

A wrong address, key or model is one sentence here, in place of the same failure for each request later.
"""

from __future__ import annotations

import os
import re
from typing import Any, Literal

from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError, OpenAI
from pydantic import BaseModel, ValidationError

from surefoot.errors import PolicyError
from surefoot.policies import deadlines

KEY = "OPENAI_API_KEY"
"""Environment variable with the key of every server."""

_WAIT_S = 15.0
"""Seconds until a server that does not list its models counts as down."""
_SHOWN = 200
"""Characters of a server's own words that go into an error."""
_PATHS = {"chat": "/chat/completions", "completions": "/completions"}


class ServedModel(BaseModel):
    """One entry of ``GET /v1/models``; ``root`` and ``max_model_len`` are vLLM's and SGLang's."""

    id: str
    owned_by: str = ""
    root: str | None = None
    """Directory or hub name that the model was loaded from."""
    max_model_len: int | None = None
    """Longest prompt and answer together, in tokens."""


class _ModelList(BaseModel):
    data: list[ServedModel]


def api_key(given: str | None = None) -> str:
    """``given``, else the environment's key, else a word that servers without keys ignore."""
    return given or os.environ.get(KEY) or "none"


def checked_url(url: str) -> str:
    """``url`` without slashes at its end. Raises :class:`PolicyError` for one that no request can go to."""
    if not re.match(r"https?://[^/\s]+", url):
        hint = url.split("://")[-1].lstrip("/")
        raise PolicyError(f"{url}: an address begins with http:// or https://; write http://{hint}")
    return url.rstrip("/")


def list_models(base_url: str, *, key: str | None = None) -> tuple[ServedModel, ...]:
    """What the server at ``base_url`` (with ``/v1``) serves.

    Raises :class:`PolicyError`, one sentence with the address, if nobody answers there, the key is refused,
    or the answer is no list of models.
    """
    models = _listed(checked_url(base_url), key)
    if models is None:
        raise PolicyError(
            f"{base_url} is no OpenAI-compatible server: there is no list of models at {base_url}/models"
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

    A model that is not listed may be served all the same, under another name or from a list that the server
    does not give: then one token is asked for, and the server's answer decides. An empty list says nothing.
    """
    url = checked_url(base_url)
    models = _listed(url, key)
    names = [served.id for served in models or ()]
    if model in names or models == ():
        return
    body: dict[str, Any] = {"model": model, "max_tokens": 1}
    body |= {"messages": [{"role": "user", "content": "1"}]} if mode == "chat" else {"prompt": "1"}
    with _client(url, key, timeout_s) as client:
        try:
            client.post(_PATHS[mode], cast_to=str, body=body)
        except APIStatusError as error:
            if error.status_code not in (400, 404, 422):
                raise PolicyError(f"{url}{_said(error, key)}") from error
            if models is None:
                what = "neither lists models nor answers for the model"
            else:
                what = f"serves {', '.join(names[:5])} and not the model"
            raise PolicyError(
                f"{url} {what} {model!r} (status {error.status_code}{_reason(error)})"
            ) from error
        except APIError as error:
            raise PolicyError(f"{url}{_said(error, key)}") from error


def _listed(url: str, key: str | None) -> tuple[ServedModel, ...] | None:
    """The models of a server; ``None`` = it answers, but has no list. Raises :class:`PolicyError`."""
    with _client(url, key, _WAIT_S) as client:
        try:
            return _models(client)
        except APIStatusError as error:
            if error.status_code not in (404, 405):
                raise PolicyError(f"{url}{_said(error, key)}") from error
        except APIError as error:
            raise PolicyError(f"{url}{_said(error, key)}") from error
        except ValidationError as error:
            raise PolicyError(
                f"{url} is no OpenAI-compatible server: GET {url}/models gives no list of models"
            ) from error
    if not url.endswith("/v1") and _lists(f"{url}/v1", key):
        raise PolicyError(f"{url} serves its models at {url}/v1; write {url}/v1")
    return None


def _client(url: str, key: str | None, timeout_s: float) -> OpenAI:
    return deadlines.client(base_url=url, api_key=api_key(key), timeout_s=timeout_s, max_retries=1)


def _models(client: OpenAI) -> tuple[ServedModel, ...]:
    return tuple(_ModelList.model_validate_json(client.get("/models", cast_to=str)).data)


def _lists(url: str, key: str | None) -> bool:
    with _client(url, key, _WAIT_S) as client:
        try:
            _models(client)
        except APIStatusError as error:
            return error.status_code in (401, 403)
        except (APIError, ValidationError):
            return False
        return True


def _said(error: APIError, key: str | None) -> str:
    """What went wrong, as the end of a sentence that begins with the address."""
    if isinstance(error, APITimeoutError):
        return ": the server does not answer in time; see whether it is still starting"
    if isinstance(error, APIConnectionError):
        return f": no server answers ({_root_of(error)}); start it, or correct the address"
    if isinstance(error, APIStatusError):
        if error.status_code in (401, 403):
            given = key or os.environ.get(KEY)
            what = f"refuses the key in {KEY}" if given else f"wants a key; put it into {KEY}"
            return f" {what} (status {error.status_code}{_reason(error)})"
        return f": status {error.status_code}{_reason(error)}"
    return f": {error}"


def _root_of(error: BaseException) -> str:
    """What the system said in the first place."""
    while (earlier := error.__cause__ or error.__context__) is not None:
        error = earlier
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


def _reason(error: APIStatusError) -> str:
    words = " ".join(error.response.text.split())[:_SHOWN]
    return f": {words}" if words else ""
