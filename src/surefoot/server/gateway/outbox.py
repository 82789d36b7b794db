"""What leaves the gateway besides answers: alerts to a webhook, requests as OpenTelemetry; and redaction.

Requests are spans of operation ``chat`` with one ``gen_ai.evaluation.result`` event for each step's score, as
OTLP over HTTP in JSON (GenAI semantic conventions, in development as of 2026-11). Prompts and answers are not
sent.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import aiohttp

from surefoot.errors import StoreError
from surefoot.formats.otel_spans import evaluation_event, otlp_attributes
from surefoot.policies.http_client import CallError, HttpClient
from surefoot.server.gateway.admission import cancel
from surefoot.server.gateway.settings import PRIVATE, OutboxSettings
from surefoot.server.records import GatewayRecord

if TYPE_CHECKING:
    from surefoot.server.store.incidents import Incidents

_MOST_WAITING = 1000
_TIMEOUT_S = 10.0
_LOG = logging.getLogger("surefoot.server")

_Post = tuple[str, str, dict[str, Any]]
"""Server, path, body."""


class Outbox:
    """Sends in the background; if ``_MOST_WAITING`` posts wait, the oldest is dropped and counted."""

    def __init__(self, settings: OutboxSettings, incidents: Incidents | None = None) -> None:
        self._settings, self._incidents = settings, incidents
        self._posts: deque[_Post] = deque()
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._firing: frozenset[str] = frozenset()
        self._opening: set[asyncio.Task[None]] = set()
        self.sent = self.lost = 0

    def alerts(self, firing: frozenset[str], describe: Callable[[], dict[str, Any]]) -> None:
        """Post each alarm that begins or ends, with the fields of ``describe``, and open an incident for each
        that begins."""
        changed, self._firing = sorted(firing ^ self._firing), firing
        details = describe() if changed else {}
        for name in changed:
            state = "firing" if name in firing else "resolved"
            body = {"alert": name, "state": state, "created": datetime.now(UTC).isoformat(), **details}
            if self._settings.webhook:
                self._put((self._settings.webhook, "", body))
            if self._incidents is not None and state == "firing":
                cause = details.get("cause") if name == "change" else None
                title = f"alarm {name}" + (f": {cause}" if cause else "")
                task = asyncio.create_task(self._open(self._incidents, title, name, details["request_id"]))
                self._opening.add(task)
                task.add_done_callback(self._opening.discard)

    async def _open(self, store: Incidents, title: str, alert: str, request_id: str) -> None:
        try:
            await asyncio.to_thread(store.open, title, "monitor", request_id=request_id, alert=alert)
        except StoreError as error:
            _LOG.warning("an incident could not be opened: %s", error)

    def export(self, record: GatewayRecord) -> None:
        """Send a request as OpenTelemetry, if there is a collector."""
        if url := self._settings.otlp:
            span, events = otlp_of(record)
            scope = {"name": "surefoot"}
            resource = {"attributes": otlp_attributes({"service.name": "surefoot"})}
            spans = {"resource": resource, "scopeSpans": [{"scope": scope, "spans": [span]}]}
            self._put((url, "/v1/traces", {"resourceSpans": [spans]}))
            if events:
                logs = {"resource": resource, "scopeLogs": [{"scope": scope, "logRecords": events}]}
                self._put((url, "/v1/logs", {"resourceLogs": [logs]}))

    async def close(self) -> None:
        """Stop; what waits gets a last chance of some seconds."""
        await asyncio.gather(*self._opening)
        if self._task is not None:
            until = time.monotonic() + _TIMEOUT_S
            while self._posts and time.monotonic() < until:
                await asyncio.sleep(0.02)
            await cancel(self._task)

    def _put(self, post: _Post) -> None:
        if len(self._posts) >= _MOST_WAITING:
            self._posts.popleft()
            self.lost += 1
        self._posts.append(post)
        self._arrived.set()
        if self._task is None:
            self._task = asyncio.create_task(self._send())

    async def _send(self) -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                await self._arrived.wait()
                while self._posts:
                    server, path, body = self._posts[0]
                    # a key is always given, or the client would send the policy's to another server
                    key = self._settings.token or "none"
                    client = HttpClient(session, server, api_key=key, timeout_s=_TIMEOUT_S, max_retries=2)
                    try:
                        await client.request(path, body)
                        self.sent += 1
                    except CallError as error:
                        self.lost += 1
                        _LOG.warning("%s was not delivered: %s", path or "an alert", error)
                    if self._posts and self._posts[0][2] is body:
                        self._posts.popleft()
                self._arrived.clear()


def otlp_of(record: GatewayRecord) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The span of a request, and an event for each step score of its answers."""
    digest = hashlib.sha256(record.request_id.encode()).hexdigest()
    trace_id, span_id = digest[:32], digest[32:48]
    start = int(record.created.timestamp() * 1e9)
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "surefoot",
        "gen_ai.request.model": record.model,
        "gen_ai.response.model": record.policy or record.model,
        "gen_ai.response.id": record.request_id,
        "gen_ai.usage.input_tokens": record.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": record.usage.completion_tokens,
        "surefoot.strategy": record.strategy,
    }
    if record.session is not None:
        attributes["gen_ai.conversation.id"] = record.session.session
    failed = record.status >= 400
    span = {
        "traceId": trace_id,
        "spanId": span_id,
        "name": f"chat {record.model}",
        "kind": 2,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + int(record.latency_ms * 1e6)),
        "attributes": otlp_attributes(attributes | ({"error.type": str(record.status)} if failed else {})),
        "status": {"code": 2} if failed else {},
    }
    events = []
    for candidate in record.candidates:
        if not (candidate.chosen or candidate.choice is None):
            continue
        about = {"gen_ai.response.id": record.request_id, "surefoot.choice": candidate.choice or 0}
        scorer = candidate.scores.scorer if candidate.scores else ""
        for step, score in enumerate(candidate.new_scores, start=candidate.first_step):
            attributes = about | {"surefoot.step": step}
            events.append(evaluation_event(trace_id, span_id, f"{scorer}.step", score, None, attributes))
        for flag in candidate.flags:
            attributes = about | ({} if flag.step is None else {"surefoot.step": flag.step})
            attributes |= {"gen_ai.evaluation.score.label": "raised"}
            events.append(evaluation_event(trace_id, span_id, flag.name, None, flag.reason, attributes))
    return span, events


def redacted(record: GatewayRecord, names: Sequence[str], patterns: Sequence[str]) -> GatewayRecord:
    """The record with private texts masked, character by character, so that steps keep their places."""
    rules = [re.compile(pattern) for pattern in (*(PRIVATE[name] for name in names), *patterns)]

    def masked(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: masked(item, name) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [masked(item, key) for item in value]
        if not isinstance(value, str) or key == "id" or key.endswith("_id"):
            return value
        for rule in rules:
            value = rule.sub(lambda match: "█" * len(match[0]), value)
        return value

    return GatewayRecord.model_validate(masked(record.model_dump(mode="python")))
