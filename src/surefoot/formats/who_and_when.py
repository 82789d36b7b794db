"""Who&When (arXiv 2505.00212): failed multi-agent runs, with the agent and the step that people blame.

Every entry of a run's history is a step, so step indices are the data set's own. Only the decisive error is
marked; whether the steps before and after it are correct is unknown.
"""

from __future__ import annotations

from surefoot.errors import RecordError
from surefoot.formats.agent_processbench import whole_message
from surefoot.formats.rows import FileRow, TraceBuilder, reader_of
from surefoot.protocols import LabelledTrace
from surefoot.records import Message, Problem, Trace


class _Turn(FileRow):
    role: str
    content: str | None = None
    name: str | None = None


class _Row(FileRow):
    question: str
    question_ID: str  # noqa: N815 - as the data set spells it
    ground_truth: str | None = None
    history: list[_Turn]
    mistake_agent: str
    mistake_step: str | int
    mistake_reason: str | None = None


@reader_of(_Row)
def read_who_and_when(row: _Row, builder: TraceBuilder) -> LabelledTrace:
    """Failed runs with one label: −1 at the step that people blame, with their reason as its evidence.

    Entries of agents become assistant messages with the agent as ``name`` (:func:`agent_name` removes what
    the hand-crafted runs add to it); entries of the person who asks become user messages. A file may be a
    single object, as in the data set.
    """
    messages = tuple(_message(turn) for turn in row.history)
    blamed = str(row.mistake_step)
    if not blamed.isdecimal() or int(blamed) >= len(messages):
        raise RecordError(f"field 'mistake_step': {blamed!r}, but there are {len(messages)} steps")
    problem = Problem(text=row.question, answer=row.ground_truth, source="who-and-when")
    trace = Trace(
        problem_id=problem.id,
        messages=messages,
        steps=tuple(whole_message(number, message) for number, message in enumerate(messages)),
        granularity="message",
        outcome=False,
        meta={"who_and_when": row.model_dump(include={"question_ID", "mistake_agent", "mistake_step"})},
    )
    label = builder.label(trace.id, int(blamed), -1, "human", message=row.mistake_reason)
    return LabelledTrace(problem=problem, trace=trace, labels=(label,))


def agent_name(message: Message) -> str | None:
    """The speaking agent: ``Orchestrator`` for ``Orchestrator (thought)``; ``None`` for other roles."""
    if message.role != "assistant":
        return None
    return (message.name or "assistant").split(" (")[0]


def _message(turn: _Turn) -> Message:
    if turn.name is None and turn.role in ("human", "user"):
        return Message(role="user", content=turn.content)
    return Message(role="assistant", content=turn.content, name=turn.name or turn.role)
