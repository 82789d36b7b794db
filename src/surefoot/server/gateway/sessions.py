"""Sessions: the turns of one conversation, by the name that the client gives, put together again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from surefoot.guard import GuardDecision
from surefoot.records import Message, Problem, StepScores, Tool, Trace, as_json, content_id
from surefoot.segment import cut_trace
from surefoot.server.gateway.errors import ApiError
from surefoot.server.gateway.records import GatewayCandidate, GatewayRecord, SampledTokens, SessionTurn

_HEADER = "X-Session-Id"
_FIELD = "metadata.session_id"
_MOST_CHARACTERS = 200


def session_name(headers: Mapping[str, str], metadata: Mapping[str, Any] | None) -> str | None:
    """The session that a request names, in the header ``X-Session-Id`` or in ``metadata.session_id``.

    ``None`` if it names none: nothing is guessed. Raises :class:`ApiError` for a name that is none, and for
    two that differ.
    """
    names = {}
    for field, name in ((_HEADER, headers.get(_HEADER)), (_FIELD, (metadata or {}).get("session_id"))):
        if name is None:
            continue
        if not (isinstance(name, str) and name.strip() and name.isprintable()):
            raise ApiError(400, f"{field}: must be printable text", param=field)
        if len(name) > _MOST_CHARACTERS:
            raise ApiError(400, f"{field}: at most {_MOST_CHARACTERS} characters", param=field)
        names[field] = name
    if len(set(names.values())) > 1:
        raise ApiError(400, f"{_HEADER} and {_FIELD} name different sessions; send one", param=_FIELD)
    return next(iter(names.values()), None)


def session_turn(name: str, messages: Sequence[Message], tools: Sequence[Tool]) -> SessionTurn:
    """Where a request with these messages stands in its session: behind the answers that it repeats."""
    answers = sum(message.role == "assistant" for message in messages)
    return SessionTurn(session=name, turn=answers, messages=tuple(messages), tools=tuple(tools))


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One answer of a session, as it went to the client."""

    request_id: str
    message: int
    """Its place among the messages."""
    before: tuple[Message, ...]
    """The conversation that it answers."""
    reply: Message
    score: float | None
    """What the strategy ranked it by, or else the guard's reward model, the lowest of its calls'."""
    decisions: tuple[GuardDecision, ...]
    """Of the guard, one for each message that was drawn; the last is about this one."""
    candidate: GatewayCandidate
    scorer: str | None
    finish_reason: str | None

    @property
    def tokens(self) -> SampledTokens:
        """What is known of its tokens."""
        return self.candidate.tokens or SampledTokens()

    @property
    def at_once(self) -> bool | None:
        """Whether the guard released the first message that was drawn; ``None`` without a guard's word."""
        return self.decisions[0].action == "release" if self.decisions else None


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """One line of a session, from its beginning to an answer that nothing follows."""

    session: str
    problem: Problem
    """What the first request asked."""
    trace: Trace
    """The whole line, cut into steps."""
    turns: tuple[Turn, ...]
    """Its answers, but those that a longer line has: each answer of a session is in one line."""

    def scores(self) -> list[StepScores]:
        """Step scores of its turns, a record for each scorer; steps that it did not score have none.

        Where the gateway cut a message otherwise than the whole line is cut, the score of the message stands
        at its last step.
        """
        places = [step.message for step in self.trace.steps]
        found: dict[str, list[float | None]] = {}
        for turn in self.turns:
            steps = [number for number, place in enumerate(places) if place == turn.message]
            if turn.scorer is None or turn.score is None or not steps:
                continue
            row = found.setdefault(turn.scorer, [None] * len(places))
            its = _new_scores(turn.candidate)
            if len(its) != len(steps):
                its = [*[None] * (len(steps) - 1), turn.score]
            for number, score in zip(steps, its, strict=True):
                row[number] = score
        return [
            StepScores(
                trace_id=self.trace.id,
                scorer=scorer,
                scores=tuple(row),
                unscored_reason="no step of a turn that was scored" if None in row else None,
            )
            for scorer, row in found.items()
        ]


def session_conversations(records: Sequence[GatewayRecord]) -> list[Conversation]:
    """The turns of one session as lines of a conversation, the longest first.

    A request continues the answer that its messages repeat last: roles, contents and calls must be equal;
    reasoning, which many clients leave out, and ids of calls need not be. Where two requests continue the
    same answer, or a client has changed what was said, there are several lines. Requests without an answer
    are left out.
    """
    nodes = [node for record in records for node in _nodes(record)]
    by_end = {node.end: place for place, node in enumerate(nodes)}
    parents = [next((by_end[key] for key in reversed(node.keys) if key in by_end), None) for node in nodes]
    continued = set(parents)
    paths: list[list[int]] = []
    for place in range(len(nodes)):
        if place not in continued:
            path = [place]
            while (parent := parents[path[-1]]) is not None:
                path.append(parent)
            paths.append(path[::-1])
    taken: set[int] = set()
    lines = []
    for path in sorted(paths, key=lambda path: (-len(path), path)):
        turns = [nodes[place].turn for place in path if place not in taken]
        taken.update(path)
        lines.append(_conversation(nodes[path[0]].record, nodes[path[-1]], turns))
    return lines


@dataclass(frozen=True, kw_only=True)
class _Node:
    """An answer, with keys of the conversation up to each of its messages."""

    record: GatewayRecord
    turn: Turn
    keys: tuple[str, ...]
    """Before the answer."""
    end: str
    """With the answer."""


def _nodes(record: GatewayRecord) -> list[_Node]:
    if record.session is None or record.status != 200:
        return []
    before = record.session.messages
    keys = _keys("", before)
    nodes = []
    for one in record.candidates:
        if not one.chosen or one.choice is None:
            continue
        reply = _reply(one.trace)
        decisions = record.guard.get(one.choice, ())
        score, scorer = one.score, record.scorer
        if score is None:
            score, scorer = _guard_score(decisions)
        turn = Turn(
            request_id=record.request_id,
            message=len(before),
            before=before,
            reply=reply,
            score=score,
            decisions=decisions,
            candidate=one,
            scorer=scorer,
            finish_reason=one.trace.finish_reason,
        )
        [end] = _keys(keys[-1] if keys else "", [reply])
        nodes.append(_Node(record=record, turn=turn, keys=tuple(keys), end=end))
    return nodes


def _keys(start: str, messages: Sequence[Message]) -> list[str]:
    """One for the conversation up to each message; equal conversations have equal ones."""
    keys = []
    for message in messages:
        calls = [(call.name, call.arguments) for call in message.tool_calls]
        start = content_id("turn", start, message.role, message.content or "", as_json(calls))
        keys.append(start)
    return keys


def _reply(trace: Trace) -> Message:
    if trace.text is None:
        return trace.messages[-1]
    return Message(role="assistant", content=trace.text, reasoning=trace.reasoning)


def _guard_score(decisions: Sequence[GuardDecision]) -> tuple[float | None, str | None]:
    found = [
        (stage.score, stage.checker)
        for decision in decisions[-1:]
        for call in decision.calls
        for stage in call.stages
        if stage.score is not None
    ]
    return min(found, default=(None, None), key=lambda one: one[0])


def _new_scores(one: GatewayCandidate) -> list[float | None]:
    """Of the steps that a message adds to its run."""
    if one.scores is None:
        return []
    last = len(one.trace.messages) - 1 if one.trace.text is None else None
    return [
        score for score, step in zip(one.scores.scores, one.trace.steps, strict=False) if step.message == last
    ]


def _conversation(first: GatewayRecord, last: _Node, turns: Sequence[Turn]) -> Conversation:
    assert last.record.session is not None and first.problem is not None  # noqa: S101, PT018 - of a node
    of_last = last.record.session
    trace = Trace(
        problem_id=first.problem.id,
        messages=(*of_last.messages, last.turn.reply),
        tools=of_last.tools,
        policy=last.record.policy,
        finish_reason=last.turn.finish_reason,
        meta={"session": of_last.session},
    )
    return Conversation(
        session=of_last.session, problem=first.problem, trace=cut_trace(trace), turns=tuple(turns)
    )


TurnReward = Literal["score", "guard"]


def turn_reward(turn: Turn, by: TurnReward) -> float | None:
    """score: what the reward model says of the message; guard: 1 if the guard released the first message that
    was drawn, 0 if another had to be drawn. ``None`` where nobody said anything."""
    if by == "score":
        return turn.score
    return None if turn.at_once is None else float(turn.at_once)
