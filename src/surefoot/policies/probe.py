"""What a server serves and can do, asked before work starts.

A wrong address, key or model gives one clear error here instead of the same failure for every request.
Servers take fields that they do not know and ignore them, so a status of 200 says nothing: each capability is
decided by what came back to one of eight short requests.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from surefoot.errors import PolicyError
from surefoot.policies.capabilities import Capabilities, Capability
from surefoot.policies.http_client import API_KEY_VARIABLE, CallError, HttpClient, RemoteServer
from surefoot.policies.openai_requests import PATHS
from surefoot.policies.openai_responses import Mode, ResponseBody, ResponseChoice
from surefoot.printable import quoted
from surefoot.records import Count, Message


class ServedModel(BaseModel):
    """One entry of ``GET /v1/models``; ``root`` and ``max_model_len`` come from vLLM and SGLang."""

    id: str
    owned_by: str = ""
    root: str | None = None
    """Directory or hub name from which the model was loaded."""
    max_model_len: Count | None = None
    """Most tokens of prompt and completion together."""


class _ModelList(BaseModel):
    data: tuple[ServedModel, ...]


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
    models = _listed_models(checked_url(base_url), key)
    if models is None:
        raise PolicyError(
            f"{base_url} is not an OpenAI-compatible server: it does not list models at {base_url}/models"
        )
    return models


def check_model(
    base_url: str, model: str, *, mode: Mode, key: str | None = None, timeout_s: float = 120.0
) -> None:
    """Make sure that the server answers for ``model``; raises :class:`PolicyError` as :func:`list_models`.

    A server may answer for a model that it does not list, for example under an alias. So an unlisted model is
    tried with a request for one token. An empty list is not evidence: the model is then accepted untried.
    """
    url = checked_url(base_url)
    models = _listed_models(url, key)
    names = [served.id for served in models or ()]
    if model in names or models == ():
        return
    body: dict[str, Any] = {"model": model, "max_tokens": 1}
    body |= {"messages": [{"role": "user", "content": "1"}]} if mode == "chat" else {"prompt": "1"}
    try:
        _ask_once(url, key, PATHS[mode], body, timeout_s=timeout_s)
    except CallError as error:
        if error.status not in (400, 404, 422):
            raise _explained(url, error, key) from error
        problem = f"serves {', '.join(names[:5])} and not the model"
        if models is None:
            problem = "neither lists models nor answers for the model"
        raise PolicyError(f"{url} {problem} {model!r} (status {error.status}{_body_of(error)})") from error


def _listed_models(url: str, key: str | None) -> tuple[ServedModel, ...] | None:
    """The server's models; ``None`` if it does not list them. Raises :class:`PolicyError`."""
    try:
        return _ModelList.model_validate_json(_ask_once(url, key, "/models")).data
    except CallError as error:
        if error.status not in (404, 405):
            raise _explained(url, error, key) from error
    except ValidationError as error:
        raise PolicyError(
            f"{url} is not an OpenAI-compatible server: GET {url}/models does not list models"
        ) from error
    if not url.endswith("/v1") and _lists_models(f"{url}/v1", key):
        raise PolicyError(f"{url} serves its models at {url}/v1; write {url}/v1")
    return None


def _lists_models(url: str, key: str | None) -> bool:
    try:
        _ModelList.model_validate_json(_ask_once(url, key, "/models"))
    except CallError as error:
        return error.status in (401, 403)
    except ValidationError:
        return False
    return True


def _ask_once(
    url: str, key: str | None, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = 15.0
) -> bytes:
    return RemoteServer(base_url=url, api_key=key, timeout_s=timeout_s, max_retries=1).request(path, body)


def _explained(url: str, error: CallError, key: str | None) -> PolicyError:
    """Why the server at ``url`` did not answer, in one sentence."""
    if isinstance(error.__cause__, TimeoutError):
        return PolicyError(f"{url}: the server does not answer in time; it may still be starting")
    if error.status is None:
        return PolicyError(
            f"{url}: no server answers ({_root_cause(error)}); start it, or correct the address"
        )
    status = f"status {error.status}{_body_of(error)}"
    if error.status in (401, 403):
        sent = key or os.environ.get(API_KEY_VARIABLE)
        problem = f"refuses the key in {API_KEY_VARIABLE}" if sent else f"needs a key; set {API_KEY_VARIABLE}"
        return PolicyError(f"{url} {problem} ({status})")
    return PolicyError(f"{url}: {status}")


def _root_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


def _body_of(error: CallError) -> str:
    """The server's message, shortened, after a colon."""
    text = quoted(" ".join(error.body[:800].split()), 200)
    return f": {text}" if text else ""


_TASK = "Write the numbers from one to twenty as English words, separated by commas, and nothing else."
_BEGINNING = "one, two, three, four, five, six, seven, eight, nine, ten, eleven, twel"
"""Ends within a word: what continues it begins with ``ve``, and a new answer with a whole word."""
_REST = "ve"
_CLOSED_REASONING = "<think>\nTwenty words are wanted.\n</think>\n\n"
_MIN_GROWTH = 6
"""Tokens by which the beginning, of twelve words, lengthens the prompt at least."""
_RAW_PROMPT = 4
"""Most tokens of a prompt of one character; a chat template adds more."""
_TOOL = {
    "type": "function",
    "function": {
        "name": "record_number",
        "description": "Record a number in the table of measurements. " * 8,
        "parameters": {
            "type": "object",
            "properties": {"number": {"type": "integer", "description": "The number to record."}},
            "required": ["number"],
        },
    },
}
_REFUSED = frozenset({400, 404, 405, 415, 422, 500, 501})
"""Statuses of a server that does not take a field; others are failures."""
_QUOTED = 60


async def probe_server(
    client: HttpClient, model: str, mode: Mode, extra_body: Mapping[str, Any] | None = None
) -> Capabilities:
    """Probe one server; ``extra_body`` goes into every request. Failures make capabilities unknown."""
    probe = _Probe(client, model, mode, dict(extra_body or {}))
    return await (probe.chat() if mode == "chat" else probe.completions())


class _Probe:
    def __init__(self, client: HttpClient, model: str, mode: Mode, extra_body: dict[str, Any]) -> None:
        self._client, self._mode = client, mode
        shaping = ("tools", "tool_choice", "response_format", "n", "stop", "stream")
        self._common = {name: value for name, value in extra_body.items() if name not in shaping}
        self._common["model"] = model

    async def chat(self) -> Capabilities:
        task = Message(role="user", content=_TASK)
        plain = await self._ask([task])
        thinks = isinstance(plain, _Reply) and bool(plain.reasoning or plain.thinks_in_text)
        beginning = (_CLOSED_REASONING if thinks else "") + _BEGINNING
        started = [task, Message(role="assistant", content=beginning)]
        request = Message(role="user", content="Record 7 with the tool.")
        continued, answered, called, shared = await asyncio.gather(
            self._ask(started, continue_final_message=True, add_generation_prompt=False),
            self._ask(started),
            self._ask([request], max_tokens=128, tools=[_TOOL]),
            self._shared([task]),
        )
        return Capabilities(
            continuation=_judged(partial(_continues, answered), plain, continued),
            tool_calls=_judged(partial(_calls_tools, plain), called),
            **shared,
        )

    async def completions(self) -> Capabilities:
        digit, begun, shared = await asyncio.gather(
            self._ask("1", max_tokens=1), self._ask(_BEGINNING), self._shared(f"{_TASK}\n")
        )
        none = _no("/completions takes text, not messages")
        return Capabilities(continuation=_judged(_reads_raw_text, digit, begun), tool_calls=none, **shared)

    async def _shared(self, prompt: Any) -> dict[str, Capability]:
        """Capabilities that both endpoints may have."""
        logprobs = {"logprobs": True, "top_logprobs": 0} if self._mode == "chat" else {"logprobs": 0}
        several, probable, stopped, numbered = await asyncio.gather(
            self._ask(prompt, temperature=1.5, max_tokens=16, n=2, seed=1),
            self._ask(prompt, max_tokens=2, **logprobs),
            self._ask(prompt, stop=[","]),
            self._ask(prompt, max_tokens=2, return_token_ids=True),
        )
        return {
            "n": _judged(_counts_samples, several),
            "logprobs": _judged(partial(_has_field, "logprobs"), probable),
            "stop_strings": _judged(_names_stops, stopped),
            "token_ids": _judged(partial(_has_field, "token_ids"), numbered),
        }

    async def _ask(self, prompt: str | list[Message], **fields: Any) -> _Reply | Capability:
        """A reply with its counts bounded; without one, the capability that the request asked for."""
        sent = (
            {"prompt": prompt}
            if isinstance(prompt, str)
            else {"messages": [{"role": message.role, "content": message.content} for message in prompt]}
        )
        body = {**self._common, "temperature": 0, "max_tokens": 24, **sent, **fields}
        try:
            data = await self._client.request_once(PATHS[self._mode], body, max_bytes=4_000_000)
            reply = ResponseBody.model_validate_json(data)
        except CallError as error:
            message = quoted(" ".join((error.body or str(error)).split()), _QUOTED)
            status = f"status {error.status}: " if error.status else ""
            refused = error.status in _REFUSED
            return Capability(status="no" if refused else "unknown", evidence=f"{status}{message}")
        except (ValidationError, UnicodeError):
            return _unknown("the reply is not one of an OpenAI-compatible server")
        if not reply.choices:
            return _unknown("the reply is without choices")
        reply.usage.limit(body, completion=body["max_tokens"] * body.get("n", 1))
        return _Reply(reply, reply.choices[0])


@dataclass(frozen=True)
class _Reply:
    """A reply to one request of the probe, read at one of its choices."""

    body: ResponseBody
    choice: ResponseChoice

    @property
    def prompt_tokens(self) -> int:
        return self.body.usage.prompt_tokens

    @property
    def text(self) -> str:
        message = self.choice.message
        return (message.content if message else self.choice.text) or ""

    @property
    def reasoning(self) -> str:
        message = self.choice.message
        if message is None:
            return ""
        details = "".join(part.text or part.summary or "" for part in message.reasoning_details or ())
        return message.reasoning_content or message.reasoning or details

    @property
    def thinks_in_text(self) -> bool:
        return self.text.lstrip().startswith("<think>")


def _yes(evidence: str) -> Capability:
    return Capability(status="yes", evidence=evidence)


def _no(evidence: str) -> Capability:
    return Capability(status="no", evidence=evidence)


def _unknown(evidence: str) -> Capability:
    return Capability(status="unknown", evidence=evidence)


def _judged(judge: Callable[..., Capability], *replies: _Reply | Capability) -> Capability:
    """What ``judge`` says of the replies; without one of them, what its request says."""
    return next((reply for reply in replies if isinstance(reply, Capability)), None) or judge(*replies)


def _continues(answered: _Reply | Capability, plain: _Reply, continued: _Reply) -> Capability:
    """Whether a chat continues the last message, from the lengths of prompts and from the text.

    Unless the fields are ignored, the prompt is longer than without the beginning, and shorter than with the
    beginning as a finished message and the opening of the next one.
    """
    plain_tokens, begun = plain.prompt_tokens, continued.prompt_tokens
    if begun < plain_tokens + _MIN_GROWTH:
        return _no(f"the prompt has {plain_tokens} tokens without a beginning and {begun} with one")
    grown = f"the beginning makes the prompt grow from {plain_tokens} to {begun} tokens"
    if continued.reasoning or continued.thinks_in_text:
        return _no("reasoning starts again after a beginning that has closed it")
    text = continued.text
    continuation = f"{quoted(text, _QUOTED)!r} follows {_BEGINNING[-6:]!r}"
    if text.startswith(_REST):
        return _yes(f"{grown}, and {continuation}")
    took_effect = isinstance(answered, _Reply) and begun < answered.prompt_tokens
    if re.match(r"\W*(one|twelve)\b", text, re.IGNORECASE):
        return Capability(status="unknown" if took_effect else "no", evidence=f"starts again: {continuation}")
    if isinstance(answered, _Reply) and took_effect:
        return _yes(f"{grown}, and a finished message would have made it {answered.prompt_tokens}")
    return _unknown(continuation)


def _reads_raw_text(digit: _Reply, begun: _Reply) -> Capability:
    """Whether ``/completions`` continues the prompt as it stands, without a chat template around it."""
    short, long = digit.prompt_tokens, begun.prompt_tokens
    counts = f"prompts of 1 and {len(_BEGINNING)} characters have {short} and {long} tokens"
    if long < short + _MIN_GROWTH:
        return _unknown(counts)
    return _no(counts) if short > _RAW_PROMPT else _yes(counts)


def _calls_tools(plain: _Reply | Capability, called: _Reply) -> Capability:
    message, tokens = called.choice.message, called.prompt_tokens
    calls = [call.function.name for call in (message and message.tool_calls) or () if call.function]
    if "record_number" in calls:
        return _yes("a tool was called")
    if isinstance(plain, _Reply) and tokens <= plain.prompt_tokens:
        return _no(f"the prompt has {tokens} tokens, fewer than the tool needs")
    return _unknown(f"answers {quoted(called.text, _QUOTED)!r}")


def _counts_samples(several: _Reply) -> Capability:
    samples = [_Reply(several.body, choice) for choice in several.body.choices]
    if len(samples) != 2:
        return _no(f"{len(samples)} of 2 samples came")
    if len({sample.reasoning + sample.text for sample in samples}) == 1:
        # a server that gives each choice the same seed: votes would count one sample several times
        return _unknown("two samples of one request are equal")
    return _yes("2 of 2 samples came, and they differ")


def _names_stops(stopped: _Reply) -> Capability:
    choice = stopped.choice
    if "," in (choice.stop_reason, choice.matched_stop):
        return _yes("the stop text is named")
    if "," in stopped.text.rstrip(","):
        return _no("the text continues after a stop text")
    if choice.finish_reason == "stop" and not choice.model_fields_set & {"stop_reason", "matched_stop"}:
        return _no("no field says why the text ended")
    return _unknown("no sample reached a stop text")


def _has_field(field: Literal["logprobs", "token_ids"], reply: _Reply) -> Capability:
    return _no(f"{field} did not come") if getattr(reply.choice, field) is None else _yes(f"{field} came")
