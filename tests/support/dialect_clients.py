"""A gateway before a scripted server, and the clients of both makers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from gateway_server import Served, served
from openai import OpenAI
from openai_server import OpenAIServer, Reply, pieces, serve
from openai_streams import words

from surefoot.policies.openai import OpenAIPolicy
from surefoot.server import GatewaySettings


@contextmanager
def dialects(*said: dict[str, Any], **options: Any) -> Iterator[tuple[Served, OpenAI, Any, OpenAIServer]]:
    """A gateway whose policy says these answers in turn, and then the last again; clients of both makers."""
    answers, lock = list(said), threading.Lock()

    def answer(body: dict[str, Any]) -> Reply:
        with lock:
            whole = answers.pop(0) if len(answers) > 1 else answers[0]
        return Reply(events=pieces(whole, words)) if body.get("stream") else Reply(payload=whole)

    # here, so that the processes that run other tests do not wait for it
    anthropic = pytest.importorskip("anthropic", reason="Anthropic's client is not installed")
    settings = GatewaySettings(chat=True, **options.pop("more", {}))
    key = options.pop("key", "none")
    with serve(answer) as upstream:
        policy = OpenAIPolicy(model="tiny", base_url=upstream.url, max_retries=0, concurrency=1)
        with (
            served(policy, settings=settings, **options) as gateway,
            OpenAI(base_url=gateway.url, api_key=key, max_retries=0, timeout=30) as one,
            anthropic.Anthropic(base_url=gateway.root, api_key=key, max_retries=0, timeout=30) as other,
        ):
            yield gateway, one, other, upstream
