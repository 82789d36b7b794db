"""Streams of :class:`OpenAIPolicy` from a scripted server."""

from __future__ import annotations

import asyncio

from openai_server import serve

from surefoot.policies.openai import OpenAIPolicy
from surefoot.protocols import SampleRequest

HI = SampleRequest(prompt="Hi")


def policy_of(server, **options):
    """A policy that speaks to ``server`` and tries nothing again unless told to."""
    given = {"mode": "completions", "max_retries": 0, "timeout_s": 60.0, "api_key": "key"} | options
    return OpenAIPolicy(model="tiny", base_url=server.url, **given)


def stream(answer, request=HI, **options):
    """Result, what was shown in order, and the server."""
    shown = []
    with serve(answer) as server:
        result = asyncio.run(
            policy_of(server, **options).stream(request, lambda number, text: shown.append((number, text)))
        )
    return result, shown, server


def words(text):
    """Each word with the space after it."""
    return text.replace(" ", " \0").split("\0")


def joined(shown, number=0):
    """All that was shown of a sample."""
    return "".join(text for at, text in shown if at == number)
