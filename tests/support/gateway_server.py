"""A gateway on a real socket of this machine, for tests with real clients."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import contextmanager
from http.client import HTTPConnection
from urllib.parse import urlsplit

from starlette.routing import Route

from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.records import StepScores, Usage
from surefoot.server import Gateway, GatewaySettings, create_app, make_server
from surefoot.server.gateway.settings import ServerLimits, ServerSettings


def routes_of(app):
    """Method and path of each route of an application, without JSON twins."""
    declared = {path for route in app.state.routes for path in route.paths}
    assert {route.path for route in app.routes if isinstance(route, Route)} == declared
    return {f"{route.method} {route.path}" for route in app.state.routes}


class LineScorer:
    """A line scores by what it holds: 0.1 with ``bad``, ``None`` with ``odd``, else 0.9; a token a word."""

    name = "lines"

    def __init__(self, wait_s=0.0):
        self.wait_s, self.batches = wait_s, []

    def score_traces(self, items):
        time.sleep(self.wait_s)
        self.batches.append(len(items))
        if any("raise" in (item.trace.text or "") for item in items):
            raise ValueError("cannot read this")
        return [self._record(item.trace) for item in items]

    def _record(self, trace):
        texts = [trace.step_text(step) for step in range(len(trace.steps))]
        scores = tuple(0.1 if "bad" in text else None if "odd" in text else 0.9 for text in texts)
        return StepScores(
            trace_id=trace.id,
            scorer=self.name,
            scores=scores,
            unscored_reason="odd" if None in scores else None,
            usage=Usage(verifier_tokens=len((trace.text or "").split()), calls=1),
        )


def echo(request, sample):
    """The last words of the prompt, and the sample's number."""
    prompt = request.prompt if isinstance(request.prompt, str) else request.prompt[-1].content
    return f"you said {prompt.strip()} ({request.seed}/{sample})"


def lines(request, sample):
    """Three lines and an answer; a sample of odd number has a bad second line, until one has been written."""
    written = request.prefix.count("\n")
    made = [
        f"line {at} bad\n" if at == 1 and sample % 2 == 0 else f"line {at} good\n" for at in range(written, 3)
    ]
    return "".join(made) + "The answer is 7"


def ask(url, data=None, headers=None):
    """Status and answer of a request, which is a POST if there is ``data``."""
    parts = urlsplit(url)
    link = HTTPConnection(parts.hostname, parts.port, timeout=20)
    try:
        method = "GET" if data is None else "POST"
        link.request(method, parts.path, data, {"Content-Type": "application/json", **(headers or {})})
        answer = link.getresponse()
        text = answer.read().decode()
        return answer.status, json.loads(text) if "json" in answer.headers["content-type"] else text
    finally:
        link.close()


def wait_until(true, seconds=10):
    """Return once ``true()`` is."""
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


class Served:
    """A running gateway: ``url`` ends in ``/v1``, ``root`` does not."""

    def __init__(self, gateway, server):
        self.gateway, self.server = gateway, server
        self.loop = None

    @property
    def root(self):
        [listener] = self.server.servers[0].sockets
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    @property
    def url(self):
        return f"{self.root}/v1"


@contextmanager
def served(
    policy=None,
    scorer=None,
    *,
    settings=None,
    limits=None,
    db=None,
    log=None,
    pages=None,
    require_key=False,
    **more,
):
    """Run a gateway in a thread for the time of the block; with ``db``, its record is there, and keys are."""
    limits = limits or ServerLimits()
    policy = policy or ScriptedPolicy(echo)
    made = {}
    server_settings = ServerSettings(port=0, limits=limits, require_key=require_key)

    def work():
        async def main():
            gateway = Gateway(
                policy,
                scorer,
                settings=settings or GatewaySettings(),
                limits=limits,
                log=log or (db.gateway if db else None),
                **more,
            )
            made["gateway"] = gateway
            made["server"] = make_server(
                create_app(server_settings, gateway=gateway, pages=pages, keys=db.keys if db else None),
                server_settings,
            )
            made["loop"] = asyncio.get_running_loop()
            await made["server"].serve()

        asyncio.run(main())

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    until = time.monotonic() + 20
    while not (made.get("server") and made["server"].started):
        assert thread.is_alive(), "the server ended at once"
        assert time.monotonic() < until
        time.sleep(0.01)
    found = Served(made["gateway"], made["server"])
    found.loop, found.thread = made["loop"], thread
    try:
        yield found
    finally:
        made["server"].should_exit = True
        thread.join(30)
        assert not thread.is_alive()
