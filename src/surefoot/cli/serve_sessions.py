"""``surefoot serve sessions``: what a gateway recorded of conversations, for training and for labels."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from surefoot.cli import options as o
from surefoot.cli.runs import RecordFiles
from surefoot.cli.settings import Command, Flag
from surefoot.cli.terminal import note
from surefoot.errors import RecordError, ScoreError
from surefoot.io import atomic_file
from surefoot.io.tables import Seen

if TYPE_CHECKING:
    from surefoot.rl.engines import RecordedTurn
    from surefoot.server import Conversation, ConversationTurn


class Sessions(Command):
    """Write the sessions that a gateway recorded as traces with scores and, for a trainer, as episodes.

    A session is what requests with the same `X-Session-Id` (or `metadata.session_id`) and key belong to. Its
    turns are put together again: a trace for the conversation, one more for each place where it was continued
    twice. `episodes.jsonl` has one line a trace, with a reward for every turn.

    Example: `surefoot serve sessions --database surefoot.db --out sessions`

    Example: `surefoot serve sessions --trainer verl --reward score --out sessions`
    """

    database: Annotated[
        str,
        Field(description="SQLite file or URL (`postgresql://user@host/name`) of the server's records."),
    ] = "surefoot.db"
    out: o.OutDirectory = Field(description="Directory for problems, traces, scores and episodes.")
    session: Annotated[tuple[str, ...], Flag()] = Field(default=(), description="Write these sessions alone.")
    trainer: Literal["verifiers", "verl", "skyrl"] | None = None
    """Write episodes in its form: verifiers (and prime-rl), verl's agent loop, or SkyRL."""
    reward: Literal["score", "guard"] = "score"
    """Reward of a turn: score, what the strategy or the guard's reward model gave it; guard, 1 if the guard
    released the first message, else 0."""
    missing: float | None = None
    """Reward of turns that have none; without it they are refused, never taken for 0."""
    grade_reasoning: bool = False
    """Also use scores of turns whose hidden reasoning the reward model read."""
    most_turns: int = Field(default=1000, ge=1, description="The latest so many of a session are read.")

    def run(self) -> None:
        from surefoot.server import open_database, session_conversations

        file = Path(self.database.removeprefix("sqlite:///"))
        if "://" not in str(file) and not file.exists():
            raise RecordError(f"{file}: database not found; give the server's database")
        counts = dict.fromkeys(("sessions", "traces", "turns", "scored"), 0)
        with open_database(self.database) as db, ExitStack() as files:
            names = [pair for pair in db.gateway.sessions() if not self.session or pair[0] in self.session]
            if not names:
                which = f"session {self.session[0]!r} is not" if self.session else "no session is"
                raise RecordError(
                    f"{which} in the database; requests need the header X-Session-Id to belong to one"
                )
            self.out.mkdir(parents=True, exist_ok=True)
            records = files.enter_context(RecordFiles(self.out))
            episodes = None
            if self.trainer is not None:
                episodes = files.enter_context(atomic_file(self.out / "episodes.jsonl"))
            seen = files.enter_context(closing(Seen()))
            for name, key_id in names:
                lines = session_conversations(db.gateway.session(name, key_id=key_id, limit=self.most_turns))
                counts["sessions"] += 1
                for line in lines:
                    new = [] if seen.times(line.problem.id) else [line.problem]
                    records.write(problems=new, traces=[line.trace], scores=line.scores())
                    counts["traces"] += 1
                    counts["turns"] += len(line.turns)
                    counts["scored"] += sum(turn.score is not None for turn in line.turns)
                    if episodes is not None:
                        episodes.write((json.dumps(self._episode(line)) + "\n").encode())
            if not counts["traces"]:
                raise RecordError(f"the database has {len(names)} sessions, and none has an answer")
        note(
            f"{self.out}: {counts['sessions']} sessions, {counts['traces']} traces, {counts['turns']} turns, "
            f"{counts['scored']} of them scored"
        )

    def _episode(self, line: Conversation) -> dict[str, Any]:
        from surefoot.rl.engines import skyrl_rows, verifiers_trace, verl_rows

        turns = self._rewarded(line)
        about = {"session": line.session, "problem_id": line.problem.id, "trace_id": line.trace.id}
        try:
            if self.trainer == "verl":
                return {**about, "samples": verl_rows(turns)}
            if self.trainer == "skyrl":
                return {**about, **skyrl_rows(turns)}
            return {**about, **verifiers_trace(turns, name=line.trace.id, task=line.problem.id)}
        except ScoreError as error:
            raise RecordError(f"session {line.session!r}: {error}") from error

    def _rewarded(self, line: Conversation) -> list[RecordedTurn]:
        from surefoot.segment import visible_part
        from surefoot.server import turn_reward

        if self.reward == "score" and not self.grade_reasoning:
            traces = {turn.request_id: turn.candidate.trace for turn in line.turns}
            hidden = [name for name, trace in traces.items() if visible_part(trace).trace is not trace]
            if hidden:
                raise RecordError(
                    f"session {line.session!r}: the scores of {len(hidden)} turns are of hidden reasoning, "
                    f"too, first request {hidden[0]}; choose --reward guard, or ask for them with "
                    "--grade-reasoning"
                )
        rewards = [turn_reward(turn, self.reward) for turn in line.turns]
        if self.missing is None and None in rewards:
            without = line.turns[rewards.index(None)]
            raise RecordError(
                f"session {line.session!r}: {rewards.count(None)} of {len(rewards)} turns have no "
                f"{self.reward}, the first of request {without.request_id}; choose another --reward, or set "
                "their reward with --missing"
            )
        return [
            _recorded(turn, self.missing if reward is None else reward)
            for turn, reward in zip(line.turns, rewards, strict=True)
        ]


def _recorded(turn: ConversationTurn, reward: float | None) -> RecordedTurn:
    from surefoot.policies.openai_requests import openai_message
    from surefoot.rl.engines import RecordedTurn

    assert reward is not None  # noqa: S101 - for the type checker
    return RecordedTurn(
        prompt=[openai_message(message) for message in turn.context],
        completion=openai_message(turn.reply),
        reward=reward,
        truncated=turn.candidate.trace.cut_off,
        prompt_ids=turn.tokens.prompt_ids,
        completion_ids=turn.tokens.ids,
        logprobs=turn.tokens.logprobs,
    )
