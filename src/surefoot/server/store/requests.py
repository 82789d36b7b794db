"""The gateway's rows: requests with all their candidates, tool calls held until a person decides, and answers
chosen at random for people to label, with the chance of being chosen.

Ids of keys and projects lack foreign keys: a row outlives the key that it names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal, get_args

import sqlalchemy as sa

from surefoot.concurrency import in_share
from surefoot.errors import ConflictError, NotFoundError, StoreError
from surefoot.guard import Review
from surefoot.server.records import GatewayRecord, GoldResult, HeldCall
from surefoot.server.store.engine import Repository, changed_by, insert_missing
from surefoot.server.store.labels import Labels
from surefoot.server.store.queue import Items
from surefoot.server.store.schema import (
    Count,
    Mark,
    ProjectId,
    UserId,
    as_data,
    checked_name,
    checked_text,
    columns_of,
    json_text,
    matching,
    payload_of,
    table,
)
from surefoot.server.store.traces import Traces, prompt_of, request_images, storable_text
from surefoot.stats.prediction_powered import CorrectedMean, prediction_powered_mean


@dataclass(frozen=True, kw_only=True)
class GatewayRow:
    """A request in a list; ``RequestLog.get`` returns all of it."""

    request_id: Annotated[str, Mark.KEY]
    created: datetime
    endpoint: str
    model: str
    strategy: str
    policy: str | None
    scorer: str | None
    status: Count
    failed: bool
    latency_ms: float
    candidates: Count
    tokens: int
    key_id: int | None
    project_id: int | None
    session: str | None
    turn: int | None
    title: str
    """Start of the prompt; without one, the endpoint and the id."""
    held: bool
    """Whether the guard held a call of it."""
    scores: tuple[float | None, ...]
    """Scores of the steps of its answer."""
    steps: Count


gateway_requests = table(
    "gateway_requests",
    GatewayRow,
    sa.Column("score", sa.Float),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Index(None, "created"),
    sa.Index(None, "strategy", "created"),
    # most requests have neither, and are in none of these
    *(
        sa.Index(None, *names, "created", sqlite_where=present, postgresql_where=present)
        for names, present in (
            (("project_id",), sa.text("project_id IS NOT NULL")),
            (("session", "key_id"), sa.text("session IS NOT NULL")),
        )
    ),
)

_AT_ONCE: Final = 50
_TITLE: Final = 300
_MOST_PREDICTED = 20_000
_G = gateway_requests.c


class RequestLog(Repository):
    """Repository of the gateway's requests."""

    def write_all(self, records: Sequence[GatewayRecord]) -> None:
        """Store requests with their candidates in one transaction: on disk when this returns.

        Existing ids are left unchanged, and the first of an id counts. Several requests in one call cost one
        flush to disk. Raises ``StoreError`` for text that cannot be stored; then none of the requests is
        stored.
        """
        if rows := [_row(record) for record in records]:
            self._connections.append(gateway_requests, rows)

    def keep_images(self, project_id: int | None, images: Mapping[str, tuple[str, bytes]]) -> None:
        """Keep media types and bytes, by hash, of a request of this project's key. Raises ``StoreError``."""
        now = self._now
        with self._connections.write() as connection:
            for digest, (media_type, content) in images.items():
                keys = {"project_id": project_id or 0, "sha256": digest}
                where = matching(request_images, **keys)
                if not changed_by(connection, sa.update(request_images).where(*where).values(used=now)):
                    row = {**keys, "media_type": media_type, "content": content, "used": now}
                    connection.execute(insert_missing(connection, request_images).values(row))

    def prune(self, before: datetime, *, project_id: int | None = None, most: int = 1000) -> int:
        """Delete the oldest requests before a time, at most ``most``, with their candidates; their number.
        Images that no later request has are deleted, too.

        ``project_id``: only requests of this project's keys.

        Call it until it returns 0, so that others get their turn in between.
        """
        image = request_images.c
        unused = (image.used < before, *matching(request_images, project_id=project_id))
        oldest = sa.select(image.project_id, image.sha256).where(*unused).order_by(image.used).limit(_AT_ONCE)
        these = sa.tuple_(image.project_id, image.sha256).in_(oldest)
        while self._change(sa.delete(request_images).where(these, *unused)):
            pass  # the next in a transaction of their own
        old = sa.select(_G.request_id).where(_G.created < before)
        old = old.where(*matching(gateway_requests, project_id=project_id)).order_by(_G.created).limit(most)
        return self._change(sa.delete(gateway_requests).where(_G.request_id.in_(old)))

    def get(self, request_id: str) -> GatewayRecord:
        """The whole record. Raises ``NotFoundError``."""
        for record in self._records(sa.select(_G.payload).where(_G.request_id == request_id)):
            return record
        raise NotFoundError(f"request '{request_id}' does not exist")

    def session(self, name: str, *, key_id: int | None, limit: int = 1000) -> list[GatewayRecord]:
        """The latest turns of a session that this key (``None``: no key) had recorded, oldest first; other
        keys' sessions of the same name are others."""
        turns = sa.select(_G.payload).where(_G.session == name, _G.key_id == key_id)
        return self._records(turns.order_by(_G.created.desc(), _G.request_id.desc()).limit(limit))[::-1]

    def sessions(self) -> list[tuple[str, int | None]]:
        """Names and keys of the sessions, by their first turn."""
        keys = _G.session, _G.key_id
        query = sa.select(*keys).where(_G.session.is_not(None)).group_by(*keys)
        rows = self._all(query.order_by(sa.func.min(_G.created), *keys))
        return [(row.session, row.key_id) for row in rows]

    def find(
        self, *, before: str | None = None, limit: int = 100, **equal: str | int | None
    ) -> list[GatewayRow]:
        """Requests, newest first, those that follow the request ``before``.

        ``equal``: values that fields of the row must have (``model``, ``strategy``, ``failed`` …); ``None`` =
        any.
        """
        query = sa.select(gateway_requests).where(*matching(gateway_requests, **equal))
        if before is not None:
            created = sa.select(_G.created).where(_G.request_id == before).scalar_subquery()
            query = query.where((_G.created < created) | ((_G.created == created) & (_G.request_id < before)))
        query = query.order_by(_G.created.desc(), _G.request_id.desc()).limit(limit)
        return self._rows(GatewayRow, query.with_only_columns(*columns_of(GatewayRow, gateway_requests)))

    def history(
        self, *, policy: str, since: datetime | None = None, first: int = 1000, latest: int = 1000
    ) -> Iterator[GatewayRecord]:
        """The ``first`` requests since ``since``, then the ``latest`` of the others, oldest first.

        A few records at a time are in memory.
        """
        query = sa.select(_G.request_id).where(_G.policy == policy)
        if since is not None:
            query = query.where(_G.created >= since)
        oldest = self._all(query.order_by(_G.created, _G.request_id).limit(first))
        newest = self._all(query.order_by(_G.created.desc(), _G.request_id.desc()).limit(latest))
        ids = list(dict.fromkeys(row.request_id for row in (*oldest, *reversed(newest))))
        for start in range(0, len(ids), _AT_ONCE):
            page = ids[start : start + _AT_ONCE]
            records = self._records(sa.select(_G.payload).where(_G.request_id.in_(page)))
            yield from sorted(records, key=lambda record: page.index(record.request_id))

    def _records(self, query: sa.Select[str]) -> list[GatewayRecord]:
        return [GatewayRecord.model_validate_json(row.payload) for row in self._all(query)]


_COMPUTED = (
    "failed", "candidates", "tokens", "session", "turn", "title", "held", "scores", "steps",
)  # fmt: skip
_COPIED = tuple(field.name for field in fields(GatewayRow) if field.name not in _COMPUTED)


def _row(record: GatewayRecord) -> dict[str, Any]:
    """The row of a request. Raises ``StoreError`` for text that cannot be stored."""
    checked_name("request_id", record.request_id)
    for field in ("endpoint", "model", "strategy"):
        checked_text(field, getattr(record, field))
    if record.created.tzinfo is None:
        raise StoreError("'created' lacks a time zone; use datetime.now(UTC)")
    scores = [answer.score for answer in record.candidates if answer.chosen and answer.score is not None]
    candidate = next((answer for answer in record.candidates if answer.chosen), None)
    candidate = candidate or next(iter(record.candidates), None)
    prompt = record.problem and prompt_of(record.problem, candidate.trace if candidate else None)
    return {
        **{name: getattr(record, name) for name in _COPIED},
        "title": storable_text((prompt or "").lstrip()[:_TITLE]) or f"{record.endpoint}: {record.request_id}",
        "held": any(decision.held for decisions in record.guard.values() for decision in decisions),
        "scores": candidate.scores.scores if candidate and candidate.scores else (),
        "steps": len(candidate.trace.steps) if candidate else 0,
        "failed": record.error is not None or record.status >= 400,
        "candidates": len(record.candidates),
        "tokens": record.usage.tokens,
        "session": checked_name("session", record.session.session) if record.session else None,
        "turn": record.session.turn if record.session else None,
        "score": scores[-1] if scores else None,
        "payload": payload_of(record),
    }


HeldState = Literal["waiting", "approved", "delivered", "denied", "abandoned"]
"""delivered: approved, and the client has the call, which no request gets a second time; abandoned: the
client disconnected before a decision, or a day passed without one."""
_LONGEST_WAIT: Final = timedelta(days=1)
_DECIDED: tuple[HeldState, ...] = ("approved", "delivered", "denied")


@dataclass(frozen=True, kw_only=True)
class HeldRow:
    """A held call as the queue lists it; ``HeldCalls.held`` returns all of it."""

    id: Annotated[int, Mark.KEY]
    created: datetime
    key_id: int | None
    """Key of the request."""
    state: HeldState
    comment: str
    """Comment of the person who decided; after a denial, the model sees it."""
    decided: datetime | None
    """When it was decided, or the client disconnected."""
    user_id: UserId | None
    """The person who decided."""

    @property
    def review(self) -> Review | None:
        """The decision, if there is one."""
        by = "" if self.user_id is None else f"user {self.user_id}"
        approved = self.state in ("approved", "delivered")
        return Review(approved=approved, comment=self.comment, by=by) if self.state in _DECIDED else None


held_calls = table(
    "held_calls",
    HeldRow,
    sa.Column("payload", sa.Text, nullable=False),
    sa.Index(None, "state", "id"),
)
_H = held_calls.c


class HeldCalls(Repository):
    """Repository of held calls."""

    def hold(self, held: HeldCall, *, most: int) -> int | None:
        """Add a call and return its number; ``None`` where ``most`` calls wait already, unless its key has
        less than an equal share of them (:class:`surefoot.concurrency.Shares`).

        A call that waits for more than a day leaves the queue first: its client has gone.
        """
        now = self._now
        waiting = sa.select(_H.key_id, sa.func.count()).where(_H.state == "waiting").group_by(_H.key_id)
        late = _from_waiting("abandoned", now).where(_H.created < now - _LONGEST_WAIT)
        row = {"created": held.created, "key_id": held.key_id, "state": "waiting", "comment": ""}
        with self._connections.write() as connection:
            connection.execute(late)
            by_key = {row[0]: int(row[1]) for row in connection.execute(waiting)}
            running, owners = by_key.get(held.key_id, 0), by_key.keys() | {held.key_id}
            if not in_share(most, 1, sum(by_key.values()), running, len(owners)):
                return None
            new = sa.insert(held_calls).values(**row, payload=payload_of(held)).returning(_H.id)
            return int(connection.execute(new).scalar_one())

    def reviews(self, numbers: Sequence[int]) -> dict[int, Review]:
        """Decisions about these calls, as far as there are any."""
        rows = self._rows(HeldRow, sa.select(held_calls).where(_H.id.in_(numbers), _H.state.in_(_DECIDED)))
        return {row.id: row.review for row in rows if row.review is not None}

    def held(self, number: int, *, key_id: int | None) -> HeldCall:
        """A call that a request with this key waits for. Raises ``NotFoundError``, also for another key."""
        call, row = self.get(number)
        if row.key_id != key_id:
            raise NotFoundError(f"held call {number} does not exist")
        return call

    def get(self, number: int) -> tuple[HeldCall, HeldRow]:
        """A call with its review, and its row. Raises ``NotFoundError``."""
        for stored in self._all(sa.select(held_calls).where(_H.id == number)):
            row = as_data(HeldRow, stored._mapping)
            call = HeldCall.model_validate_json(stored.payload)
            return call.model_copy(update={"review": row.review}), row
        raise NotFoundError(f"held call {number} does not exist")

    def of_request(self, request_id: str) -> list[tuple[HeldCall, HeldRow]]:
        """The calls of a request, in order, undecided ones included."""
        start = f'{{"request_id":{json_text(request_id)},'
        query = sa.select(_H.id).where(_H.payload.startswith(start, autoescape=True)).order_by(_H.id)
        return [self.get(row.id) for row in self._all(query)]

    def abandon(self, number: int) -> None:
        """The client of a call has disconnected: an undecided call can no longer be decided."""
        self._change(_from_waiting("abandoned", self._now).where(_H.id == number))

    def deliver(self, number: int) -> bool:
        """Mark an approved call as delivered; ``False`` if it is not approved, or was delivered before."""
        approved = sa.update(held_calls).where(_H.id == number, _H.state == "approved")
        return bool(self._change(approved.values(state="delivered")))

    def find(
        self, *, state: HeldState | None = None, past: int | None = None, limit: int = 50
    ) -> list[HeldRow]:
        """Calls in order, those after the number ``past``: waiting ones oldest first, others newest first."""
        queue = state == "waiting"
        query = sa.select(held_calls).where(*matching(held_calls, state=state))
        if past is not None:
            query = query.where(_H.id > past if queue else _H.id < past)
        return self._rows(HeldRow, query.order_by(_H.id.asc() if queue else _H.id.desc()).limit(limit))

    def count(self) -> dict[HeldState, int]:
        """Calls by state."""
        rows = self._all(sa.select(_H.state, sa.func.count()).group_by(_H.state))
        return {**dict.fromkeys(get_args(HeldState), 0), **{row[0]: row[1] for row in rows}}

    def decide(self, number: int, user_id: int | None, *, approved: bool, comment: str = "") -> None:
        """Decide about a call, once. Raises ``NotFoundError``, or ``ConflictError`` if it is decided."""
        decision = _from_waiting("approved" if approved else "denied", self._now).where(_H.id == number)
        if self._change(decision.values(comment=checked_text("comment", comment), user_id=user_id)):
            return
        _, row = self.get(number)
        if row.state == "abandoned":
            raise ConflictError(f"held call {number} cannot be delivered: its client has disconnected")
        raise ConflictError(f"held call {number} has been {row.state} already")

    def prune(self, before: datetime) -> int:
        """Delete the calls that were held before a time, decided or not; their number."""
        return self._change(sa.delete(held_calls).where(_H.created < before))


def _from_waiting(state: HeldState, at: datetime) -> sa.Update:
    """Statement that ends the wait of calls."""
    return sa.update(held_calls).where(_H.state == "waiting").values(state=state, decided=at)


@dataclass(frozen=True, kw_only=True)
class GoldSample:
    """An answer in the annotation queue of a project."""

    id: Annotated[int, Mark.KEY]
    project_id: ProjectId
    request_id: str
    trace_id: str
    steps: int
    proxy: float
    """The answer's score."""
    chance: float
    """The chance with which it was chosen; its weight is the inverse."""
    created: datetime


gold_samples = table("gold_samples", GoldSample, sa.Index(None, "project_id", "id"))


class GoldSamples(Repository):
    """Repository of random samples of answers."""

    def add(self, project_id: int, record: GatewayRecord, chance: float) -> bool:
        """Put a request's answer into the project's queue; ``False`` for one without text or score.

        Raises ``StoreError``.
        """
        chosen = next((candidate for candidate in record.candidates if candidate.chosen), None)
        solution, proxy = (chosen.solution(), chosen.score) if chosen else (None, None)
        if record.problem is None or solution is None or proxy is None or not 0 <= proxy <= 1:
            return False
        trace, scores = solution
        traces = Traces(self._connections)
        traces.add_problems(project_id, [record.problem])
        traces.add_traces(project_id, [trace])
        traces.take_images(project_id, [trace])
        if scores is not None:
            traces.add_scores(project_id, [scores])
        Items(self._connections).add(project_id, [trace.id])
        row = {"project_id": project_id, "request_id": record.request_id, "trace_id": trace.id}
        row |= {"steps": len(trace.steps), "proxy": proxy, "chance": chance, "created": record.created}
        return bool(self._change(sa.insert(gold_samples).values(row)))

    def results(self, project_id: int, limit: int = 10_000) -> list[GoldResult]:
        """The latest samples whose first error people found, or all of whose steps they labelled."""
        s = gold_samples.c
        query = sa.select(gold_samples).where(s.project_id == project_id).order_by(s.id.desc()).limit(limit)
        samples = self._rows(GoldSample, query)[::-1]
        labels = Labels(self._connections).of_traces(project_id, {sample.trace_id for sample in samples})
        results = []
        for sample in samples:
            rows = [row.record for row in labels.get(sample.trace_id, ()) if row.item_id is not None]
            values = {row.step: row.value for row in rows if row.value is not None}
            wrong = any(value < 0 for value in values.values())
            if wrong or len(values) >= sample.steps:
                result = GoldResult(
                    sample=sample.id,
                    request_id=sample.request_id,
                    proxy=sample.proxy,
                    right=not wrong,
                    weight=1 / sample.chance,
                    labelled=max(row.created for row in rows),
                )
                results.append(result)
        return results

    def estimate(self, project_id: int) -> CorrectedMean:
        """Share of right answers since the first sample, from the scores of all and people's labels of some.

        Raises ``LabelError`` for fewer than two labelled answers.
        """
        results = {result.request_id: result for result in self.results(project_id)}
        start = sa.select(sa.func.min(gold_samples.c.created)).where(gold_samples.c.project_id == project_id)
        query = (
            sa.select(_G.request_id, _G.score)
            .where(_G.score.is_not(None), _G.created >= start.scalar_subquery())
            .order_by(_G.created.desc())
            .limit(_MOST_PREDICTED)
        )
        scores: dict[str, float] = {row.request_id: row.score for row in self._all(query)}
        scores |= {name: result.proxy for name, result in results.items()}
        gold = [float(results[name].right) if name in results else math.nan for name in scores]
        weights = [results[name].weight if name in results else 1.0 for name in scores]
        return prediction_powered_mean(list(scores.values()), gold, list(scores), weights=weights, rate=True)
