"""Which channels of a trace a reward reads, and a scan of its input for hidden reasoning.

A reward that grades hidden reasoning teaches a policy to hide its intentions from it (Baker et al., arXiv
2503.11926), and a mistake in a pipeline is enough to grade it. So reasoning is removed before a judge sees a
trace, and then, independently of how that was done, the judge's input is searched for pieces of the
reasoning that the sampled tokens hold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from surefoot.errors import TrainingError
from surefoot.protocols import ProblemTrace, TraceChannel
from surefoot.records import FrozenModel, Trace
from surefoot.segment import channels_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HEARD: Final[frozenset[TraceChannel]] = frozenset({"text", "calls", "observations"})
"""What an environment knows of an episode."""
_PIECE, _SHORTEST = 24, 8
_THINK = "<think>"
_PROMPT_END = 8


class RewardChannels(FrozenModel):
    """What the judges of a run read, by their names; part of its record and report."""

    reads: dict[str, tuple[TraceChannel, ...]]
    grade_reasoning: bool = False
    """Whether hidden reasoning was graded, because the run asked for it. Otherwise what judges get is
    searched for it, and a find ends the run."""

    def __str__(self) -> str:
        judges = [f"{name} reads {', '.join(channels)}" for name, channels in self.reads.items()]
        graded = "graded, as asked" if self.grade_reasoning else "not graded"
        return "; ".join([*judges, f"hidden reasoning: {graded}"])


def reward_channels(
    judges: Mapping[str, Collection[TraceChannel]], *, grade_reasoning: bool
) -> RewardChannels:
    """The channels that reach every judge, of those that it says it reads."""
    hidden: set[TraceChannel] = set() if grade_reasoning else {"reasoning"}
    return RewardChannels(
        reads={name: tuple(sorted({*channels} - hidden)) for name, channels in judges.items()},
        grade_reasoning=grade_reasoning,
    )


def is_opened(tokenizer: PreTrainedTokenizerBase, prompt_ids: Sequence[int]) -> bool:
    """Whether a prompt ends by opening the reasoning, as templates of DeepSeek-R1 do."""
    return str(tokenizer.decode(list(prompt_ids[-_PROMPT_END:]))).rstrip().endswith(_THINK)


def trace_canaries(
    trace: Trace, problem: str, *, written: Sequence[str] = (), opened: bool = False
) -> tuple[str, ...]:
    """:func:`canaries` of a trace. ``written`` are its response or the turns of its episode as their tokens
    read, special ones included; ``opened``: the prompt began the reasoning."""
    answers = [message for message in trace.messages if message.role == "assistant"]
    spoken = written or [trace.text or "", *(message.content or "" for message in answers)]
    texts = [channels_of(text, inside=opened or None) for text in spoken]
    fields = [part.text for part in (trace.reasoning, *(row.reasoning for row in answers)) if part]
    surroundings = [message.content or "" for message in trace.messages if message.role != "assistant"]
    calls = [str(call) for message in answers for call in message.tool_calls]
    hidden = [*(text.reasoning for text in texts), *fields]
    return canaries(hidden, [problem, *(text.answer for text in texts), *surroundings, *calls])


def canaries(hidden: Sequence[str], seen: Sequence[str]) -> tuple[str, ...]:
    """Pieces of hidden reasoning that nothing visible contains: any of them in a judge's input is a leak.

    White space counts as one space. 24 characters each, so that every leak of 47 characters has a whole one;
    a shorter reasoning is one piece if it has at least 8.
    """
    visible = _spaced("\n".join(seen))
    pieces = []
    for text in map(_spaced, hidden):
        ends = range(_PIECE, len(text) + 1, _PIECE) or [len(text)]
        pieces += [text[max(0, end - _PIECE) : end] for end in ends]
    return tuple(piece for piece in pieces if len(piece) >= _SHORTEST and piece not in visible)


def heard(item: ProblemTrace) -> ProblemTrace:
    """A run as its environment heard it: contents with their ``<think>`` blocks, without other fields."""
    messages = tuple(row.model_copy(update={"reasoning": None}) for row in item.trace.messages)
    return ProblemTrace(problem=item.problem, trace=item.trace.model_copy(update={"messages": messages}))


def require_no_leak(inputs: Iterable[tuple[ProblemTrace, Collection[str]]]) -> None:
    """Raise ``TrainingError`` if a judge's input has one of its trace's canaries in any field."""
    for item, pieces in inputs:
        judged = _spaced("\n".join(_strings(item.trace.model_dump()))) if pieces else ""
        if leak := next((piece for piece in pieces if piece in judged), None):
            raise TrainingError(
                f"hidden reasoning reached a reward: {leak!r} of trace {item.trace.id} is in what a judge or "
                "environment got; keep <think> tags in texts (a tokenizer or parser may drop them), let a "
                "server put reasoning in its own field, or ask for it with 'grade_reasoning'"
            )


def _spaced(text: str) -> str:
    return " ".join(text.split())


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)
