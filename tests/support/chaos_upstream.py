"""The policy's server of the chaos run, which scores, too, and can be made to fail in every way."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

from openai_server import Body, OpenAIServer, Reply, chat, serve

FAULTS = (
    *("dead", "trickles", "garbage", "status 500", "status 429", "scores that are none", "huge bodies"),
    *("false counts", "false lengths", "long reasons", "endless streams", "gzip bombs", "redirects"),
    *(
        "endless text",
        "endless words",
        "endless line",
        "endless data",
        "endless comments",
        "many parts",
        "deep events",
    ),
)
_STREAMS = {
    "endless streams": b'data: {"choices": []}\n\n',
    "endless text": b'data: {"choices": [{"index": 0, "delta": {"content": "' + b"x" * 1000 + b'"}}]}\n\n',
    "endless words": b'data: {"choices": [{"index": 0, "delta": {"reasoning": "a "}}]}\n\n' * 20,
    "endless line": b"data: " + b"x" * 65_536,
    "endless data": b"data: x\n" * 5000,
    "endless comments": b": keep-alive\n\n" * 500,
    "many parts": b'data: {"choices": ['
    + b",".join([b'{"delta": {"tool_calls": [{}]}}'] * 20_000)
    + b"]}\n\n",
    "deep events": b'data: {"choices": ' + b"[" * 500_000 + b"\n\n",
}
"""What each sends until the client leaves."""
LIE = 10**30
REASON = "\x1b]0;owned\x07\x1b[2J" + "no score " * 550_000
"""5 MB."""


@cache
def gzip_bomb() -> bytes:
    """Some megabytes that unpack to 4.5 GB."""
    return gzip.compress(bytes(45_000_000), 9) * 100


class Upstream:
    """Answers depend on prompt and seed alone, scores on the text; ``fault`` is what goes wrong now."""

    def __init__(self) -> None:
        self.fault: str | None = None
        self.only = ""
        """Text of the requests that the fault meets."""
        self.most_sent = 0
        """Bytes of the longest stream so far."""
        self.port = 0
        self._socket = ExitStack()
        self.stolen: list[object] = []
        """Bodies that a client sent to the address of a redirect."""
        self.trap = self._socket.enter_context(serve(self._steal))
        self._changed = threading.Event()

    def open(self) -> None:
        """Listen, on the same port as before."""
        server: OpenAIServer = self._socket.enter_context(serve(self._answer, self.port))
        server.models = [{"id": "fake", "object": "model", "owned_by": "surefoot"}]
        self.port = server.server_address[1]

    def close(self) -> None:
        """Refuse connections, as a process that died."""
        self._socket.close()

    @contextmanager
    def failing(self, fault: str, only: str = "") -> Iterator[None]:
        """Fail so for the time of the block, where a request has the text ``only``."""
        self._changed.clear()
        self.fault, self.only, self.most_sent = fault, only, 0
        if fault == "dead":
            self.close()
        try:
            yield
        finally:
            self.fault = None
            self._changed.set()
            if fault == "dead":
                self.open()

    @property
    def root(self) -> str:
        """Its address without ``/v1``."""
        return f"http://127.0.0.1:{self.port}"

    def _answer(self, body: Body) -> Reply:
        scoring = "items" in body
        fault = self.fault if self.only in str(body) else None
        match fault:
            case "dead":
                return Reply(payload=" " * 100, drop=True)  # connections that were open
            case "trickles":
                return Reply(events=self._trickle(), headers={"Content-Type": "application/json"}, drop=True)
            case "garbage":
                return Reply(payload=random.Random(str(body)).choice(["", "<html>", "[]", '{"choices": 3}']))
            case "status 500":
                return Reply(status=500, payload={"error": {"message": "Traceback: key sk-secret"}})
            case "status 429":
                return Reply(status=429, payload={"error": "later"}, headers={"Retry-After": "1"})
            case "false counts":
                counts = {"prompt_tokens": LIE, "completion_tokens": LIE, "verifier_tokens": LIE}
                return Reply(
                    payload={**(_scores(body) if scoring else chat([written(body)])), "usage": counts}
                )
            case "false lengths":
                texts = [written(body)] * 1000
                return Reply(payload=_scores({"items": body["items"] * 1000}) if scoring else chat([*texts]))
            case "long reasons" if scoring:
                return Reply(payload=_unscored(body))
            case "long reasons":
                return Reply(status=500, payload={"error": {"message": REASON}})
            case str() if fault in _STREAMS:
                return Reply(
                    events=self._endless(_STREAMS[fault], pause_s=fault == "endless streams" and 0.002)
                )
            case "gzip bombs":
                headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
                return Reply(events=[gzip_bomb()], headers=headers, drop=True)
            case "redirects":
                return Reply(status=307, headers={"Location": f"{self.trap.url}/chat/completions"})
            case "huge bodies":
                return Reply(
                    events=self._endless(b" " * 1_000_000),
                    headers={"Content-Type": "application/json"},
                    drop=True,
                )
            case "scores that are none" if scoring:
                none = random.Random(str(body)).choice(["NaN", "1e999", "-Infinity", "true", '"0.9"', "7"])
                return Reply(payload=re.sub(r"\b0\.\d+", none, json.dumps(_scores(body)), count=1))
        return Reply(payload=_scores(body) if scoring else chat([written(body)]))

    def _trickle(self) -> Iterator[bytes]:
        while not self._changed.wait(0.05):
            yield b" "

    def _steal(self, body: Body) -> Reply:
        self.stolen.append(body)
        return Reply(payload=_scores(body) if "items" in body else chat([written(body)]))

    def _endless(self, piece: bytes, pause_s: float = 0) -> Iterator[bytes]:
        sent = 0
        while not self._changed.wait(pause_s):
            yield piece
            sent += len(piece)
            self.most_sent = max(self.most_sent, sent)


def score_of(step: str) -> float:
    """The score of a step, in (0, 1)."""
    return (1 + int(hashlib.sha256(step.encode("utf-8", "replace")).hexdigest()[:6], 16)) / (2 + 16**6)


def _scores(body: Body) -> Body:
    results = [
        {"scores": [score_of(step) for step in item["steps"]], "unscored_reason": None}
        for item in body["items"]
    ]
    return {"model": "fake", "results": results, "usage": {"verifier_tokens": 3}}


def _unscored(body: Body) -> Body:
    results = [{"scores": [None] * len(item["steps"]), "unscored_reason": REASON} for item in body["items"]]
    return {"model": "fake", "results": results, "usage": {"verifier_tokens": 3}}


def written(body: Body) -> str:
    """Sums that no algebra can reduce and no two of which are equal, or one of two forms of one answer."""
    prompt, seed = body["messages"][-1]["content"], body["seed"]
    number = random.Random(prompt).randrange(10**6)
    if "hostile" in prompt:
        return rf"So \boxed{{\sum_{{k=1}}^{{10^{{100}}}} k^{{k+{seed}i}}}}"
    return rf"We add.{chr(10)}So \boxed{{{(f'x+{number}', f'{number}+x')[seed % 2]}}}"
