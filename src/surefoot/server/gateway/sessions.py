"""Sessions: the turns of one conversation, by the client's name for it, joined into traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import Any

from surefoot.guard import GuardDecision
from surefoot.images import is_kept
from surefoot.policies.openai_requests import openai_message
from surefoot.records import Attachment, Message, Problem, Reasoning, StepScores, Trace, as_json, content_id
from surefoot.segment import channels_of, cut_trace, visible_part
from surefoot.server.gateway.errors import ApiError
from surefoot.server.records import GatewayCandidate, GatewayRecord, SampledTokens

_HEADER = "X-Session-Id"
_FIELD = "metadata.session_id"
_MOST_CHARACTERS = 200


def session_name(headers: Mapping[str, str], metadata: Mapping[str, Any] | None) -> str | None:
    """The session in the header ``X-Session-Id``, else in ``metadata.session_id``; ``None`` without one.

    Raises :class:`ApiError` for an invalid name.
    """
    name = headers.get(_HEADER)
    name, field = ((metadata or {}).get("session_id"), _FIELD) if name is None else (name, _HEADER)
    if name is None:
        return None
    if not (isinstance(name, str) and name.strip() and name.isprintable()):
        raise ApiError(400, f"{field}: must be printable text", param=field)
    if len(name) > _MOST_CHARACTERS:
        raise ApiError(400, f"{field}: at most {_MOST_CHARACTERS} characters", param=field)
    return name


@dataclass(frozen=True, kw_only=True)
class ConversationTurn:
    """One answer of a session, as the client received it."""

    record: GatewayRecord
    candidate: GatewayCandidate
    context: tuple[Message, ...]
    """The conversation before the answer."""
    reply: Message
    score: float | None
    """Aggregated score from the strategy, or else the lowest score from the guard's reward model."""
    scorer: str | None
    keys: tuple[str, ...]
    """A hash of the conversation up to each message, the last of them the answer."""

    @property
    def guard(self) -> float | None:
        """1 if the guard released the first sampled message, else 0; ``None`` without a guard."""
        decisions = self.record.guard.get(self.candidate.choice, ())
        return float(decisions[0].action == "release") if decisions else None

    def row(self) -> dict[str, Any]:
        """The turn in an episode: the fields of ``surefoot.rl.engines.RecordedTurn``. The reward is the
        score; ``None`` if there is none, or if the reward model read hidden reasoning for it."""
        trace, tokens = self.candidate.trace, self.candidate.tokens or SampledTokens()
        return {
            "prompt": [openai_message(message, is_kept) for message in self.context],
            "completion": openai_message(self.reply, is_kept),
            "reward": self.score if visible_part(trace).trace is trace else None,
            "truncated": trace.cut_off,
            "prompt_ids": tokens.prompt_ids,
            "completion_ids": tokens.ids,
            "logprobs": tokens.logprobs,
        }


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """One branch of a session, from its beginning to an answer without a continuation."""

    session: str
    problem: Problem
    """The problem of the first request."""
    trace: Trace
    """The whole branch, cut into steps."""
    turns: tuple[ConversationTurn, ...]
    """Its answers, except the answers of a longer branch: each answer of a session is in one conversation."""

    def episode(self) -> dict[str, Any]:
        """The answers with their rewards, for a trainer; ``guard`` has :attr:`ConversationTurn.guard`."""
        return {
            "session": self.session,
            "problem_id": self.problem.id,
            "trace_id": self.trace.id,
            "guard": [turn.guard for turn in self.turns],
            "turns": [turn.row() for turn in self.turns],
        }

    def with_attachments(self, change: Callable[[Attachment], Attachment]) -> Conversation:
        """The conversation with what ``change``, called once for each, makes of its messages' attachments."""
        change = cache(change)  # each turn's context repeats earlier turns
        turns = []
        for turn in self.turns:
            context = tuple(message.with_attachments(change) for message in turn.context)
            turns.append(replace(turn, context=context, reply=turn.reply.with_attachments(change)))
        return replace(self, trace=self.trace.with_attachments(change), turns=tuple(turns))

    def scores(self) -> list[StepScores]:
        """Step scores of its turns, one record per scorer; other steps stay unscored.

        If the gateway cut a message into other steps than the trace, the message's score belongs to its last
        step.
        """
        owners = [step.message for step in self.trace.steps]
        rows: dict[str, list[float | None]] = {}
        for turn in self.turns:
            steps = [number for number, owner in enumerate(owners) if owner == len(turn.context)]
            if turn.scorer is None or turn.score is None or not steps:
                continue
            scores: Sequence[float | None] = turn.candidate.new_scores
            if len(scores) != len(steps):
                scores = [*[None] * (len(steps) - 1), turn.score]
            row = rows.setdefault(turn.scorer, [None] * len(owners))
            for number, score in zip(steps, scores, strict=True):
                row[number] = score
        return [
            StepScores(
                trace_id=self.trace.id,
                scorer=scorer,
                scores=tuple(row),
                unscored_reason="no step of a turn that was scored" if None in row else None,
            )
            for scorer, row in rows.items()
        ]


def session_conversations(records: Sequence[GatewayRecord]) -> list[Conversation]:
    """The branches of one session, the longest first.

    A request continues the last answer that its messages repeat, with equal roles, texts, images and calls;
    reasoning and call ids may differ. If two requests continue the same answer, or a client changes earlier
    messages, there are several branches. Requests without an answer are left out.
    """
    turns = [turn for record in records for turn in _turns(record)]
    by_end = {turn.keys[-1]: number for number, turn in enumerate(turns)}
    parents = [next((by_end[k] for k in turn.keys[-2::-1] if k in by_end), None) for turn in turns]
    paths: list[list[int]] = []
    for leaf in sorted(set(range(len(turns))) - set(parents)):
        path = [leaf]
        while (parent := parents[path[-1]]) is not None:
            path.append(parent)
        paths.append(path[::-1])
    used: set[int] = set()
    conversations = []
    for path in sorted(paths, key=lambda path: (-len(path), path)):
        new = [turns[number] for number in path if number not in used]
        used.update(path)
        conversations.append(_conversation(turns[path[0]].record, turns[path[-1]], new))
    return conversations


def _turns(record: GatewayRecord) -> Iterator[ConversationTurn]:
    if record.session is None or record.status != 200:
        return
    context = record.session.messages
    for candidate in record.candidates:
        if not candidate.chosen:
            continue
        trace = candidate.trace
        reply = trace.messages[-1] if trace.messages else None
        if trace.text is not None or reply is None:
            channels = channels_of(trace.text or "")
            thought = Reasoning(text=channels.reasoning) if channels.reasoning else None
            reply = Message(role="assistant", content=channels.answer, reasoning=trace.reasoning or thought)
        score, scorer = candidate.score, record.scorer
        if score is None:
            score, scorer = _guard_score(record.guard.get(candidate.choice, ()))
        yield ConversationTurn(
            record=record,
            candidate=candidate,
            context=context,
            reply=reply,
            score=score,
            scorer=scorer,
            keys=tuple(accumulate((*context, reply), _key, initial=""))[1:],
        )


def _key(before: str, message: Message) -> str:
    calls = [(call.name, call.arguments) for call in message.tool_calls]
    images = [held.sha256 for held in message.attachments]
    return content_id("turn", before, message.role, message.content or "", as_json(calls), *images)


def _guard_score(decisions: Sequence[GuardDecision]) -> tuple[float | None, str | None]:
    scores = [
        (stage.score, stage.checker)
        for decision in decisions[-1:]
        for call in decision.calls
        for stage in call.stages
        if stage.score is not None
    ]
    return min(scores, default=(None, None), key=lambda pair: pair[0])


def _conversation(
    first: GatewayRecord, last: ConversationTurn, turns: Sequence[ConversationTurn]
) -> Conversation:
    session = last.record.session
    assert session is not None and first.problem is not None  # noqa: S101, PT018 - of a turn
    trace = Trace(
        problem_id=first.problem.id,
        messages=(*last.context, last.reply),
        tools=session.tools,
        policy=last.record.policy,
        finish_reason=last.candidate.trace.finish_reason,
        meta={"session": session.session},
    )
    return Conversation(
        session=session.session, problem=first.problem, trace=cut_trace(trace), turns=tuple(turns)
    )
