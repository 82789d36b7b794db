"""Step labels from the critique of a language model (LLM as a judge), by vote.

Zhang et al. (arXiv 2501.07301) let a judge label every step; ProcessBench (Zheng et al., arXiv 2412.06559)
asks for the first error, greedily or as the majority of 8 replies.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator

from surefoot.errors import LabelError
from surefoot.labelling.judge_prompt import AgentFailure, JudgeMode, JudgePrompt
from surefoot.labels import AFTER_FIRST_ERROR, up_to_first_error
from surefoot.protocols import Completion, Policy, ProblemTrace, SampleRequest, SampleResult, Sampling
from surefoot.records import Evidence, StepLabel, Usage

SOURCE: Final = "judge"

V = TypeVar("V", str, int)

_VALUES = {"correct": 1.0, "neutral": 0.0, "incorrect": -1.0}


@dataclass(frozen=True, kw_only=True)
class JudgeLabeller:
    """A :class:`surefoot.protocols.Labeller` that asks ``policy`` for ``votes`` critiques of each trace.

    **Labels** are of kind *correctness*. In mode ``per-step`` each step gets the verdict with the most votes
    (correct +1, neutral 0, incorrect −1). In mode ``first-error`` the index with the most votes counts: +1
    before it, −1 there, ``None`` after it; +1 throughout if it is −1. If two verdicts or indexes tie for the
    most votes, the label is ``None``. The evidence holds the votes for the winner (``successes``) and the
    valid votes (``trials``).

    **Critiques.** The evidence's ``message`` is the critique of the first vote for the winner: on every
    step of mode ``per-step``, in mode ``first-error`` on the wrong step, or on the last one if none is wrong.
    If the prompt asks to name failures, the critique of a wrong step begins with its kind: ``loophole: …``.

    **Failures.** A reply that was cut off, refused, has another form, or names missing steps is not counted;
    ``failures`` counts such replies by reason, over all calls. A trace without any vote gets labels without
    value, with the reasons.

    **Rater** is the policy's name, ``#`` and :attr:`JudgePrompt.version`: the same model with other rules is
    another rater. **Cost** counts as verifier tokens, on the first label of each trace; traces with the same
    prompt are judged once. Traces without steps get no labels and cost nothing.

    To make a server enforce the JSON form, pass ``structured_output(mode, …)`` to
    ``OpenAIPolicy(extra_body=...)``.

    Raises ``LabelError`` for fewer than one vote, or several at temperature 0, which would all be the same.
    """

    policy: Policy
    prompt: JudgePrompt = field(default_factory=JudgePrompt)
    votes: int = 1
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0.0, max_tokens=2048))
    seed: int = 0
    failures: Counter[str] = field(default_factory=Counter, init=False, compare=False)

    def __post_init__(self) -> None:
        if self.votes < 1:
            raise LabelError(f"votes must be at least 1, not {self.votes}")
        if self.votes > 1 and self.sampling.temperature == 0:
            raise LabelError(
                f"{self.votes} votes at temperature 0 would be equal; raise the temperature, or ask once"
            )

    async def label(self, items: Sequence[ProblemTrace]) -> list[list[StepLabel]]:
        """One list per item, one label per step.

        Raises ``LabelError`` if the reference answer should be shown and the problem has none.
        """
        requests = [self._request(item) if item.trace.steps else None for item in items]
        items_by_request = {request: item for request, item in zip(requests, items, strict=True) if request}
        results = await self.policy.sample(list(items_by_request))
        outcomes, costs = {}, {}
        for (request, item), result in zip(items_by_request.items(), results, strict=True):
            outcomes[request] = self._read(result, len(item.trace.steps))
            # a judge's tokens, read and written, count as verification
            costs[request] = Usage(verifier_tokens=result.usage.tokens, calls=result.usage.calls)
        return [
            self._labels(item, *outcomes[request], costs.pop(request, Usage())) if request else []
            for item, request in zip(items, requests, strict=True)
        ]

    def _request(self, item: ProblemTrace) -> SampleRequest:
        return SampleRequest(
            prompt=self.prompt.render(item), n=self.votes, seed=self.seed, sampling=self.sampling
        )

    def _read(self, result: SampleResult, steps: int) -> tuple[int, list[_Outcome]]:
        """The number of valid votes in the replies to one request, and their result for each step."""
        votes: list[Vote] = []
        failed: Counter[str] = Counter()
        for completion in result.completions:
            try:
                votes.append(self._vote(completion, steps))
            except ReplyError as error:
                failed[str(error)] += 1
        if missing := self.votes - len(result.completions):
            failed["request failed"] += missing
        self.failures.update(failed)
        if votes:
            return len(votes), _count(votes, steps)
        reasons = ", ".join(f"{count} {reason}" for reason, count in failed.most_common())
        reason = f"no vote: {reasons}" + (f" ({result.error})" if result.error else "")
        return 0, [_Outcome(value=None, votes=0, reason=reason)] * steps

    def _vote(self, completion: Completion, steps: int) -> Vote:
        if completion.ending == "truncated":
            raise ReplyError("cut off at max_tokens")
        if completion.ending == "filtered":
            raise ReplyError("refused")
        return read_reply(completion.text, prompt=self.prompt, steps=steps)

    def _labels(
        self, item: ProblemTrace, trials: int, outcomes: list[_Outcome], usage: Usage
    ) -> list[StepLabel]:
        return [
            StepLabel(
                trace_id=item.trace.id,
                step=step,
                kind="correctness",
                value=outcome.value,
                reason=outcome.reason,
                source=SOURCE,
                evidence=Evidence(
                    successes=outcome.votes,
                    trials=trials,
                    usage=usage if step == 0 else Usage(),
                    rater=f"{self.policy.name}#{self.prompt.version}",
                    message=outcome.critique,
                ),
            )
            for step, outcome in enumerate(outcomes)
        ]


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    """The result of the votes on one step."""

    value: float | None
    votes: int
    reason: str | None = None
    critique: str | None = None


def _count(votes: list[Vote], steps: int) -> list[_Outcome]:
    """The result of the votes for each step."""
    if firsts := [vote for vote in votes if isinstance(vote, FirstErrorReply)]:
        return _up_to_first_error(firsts, steps)
    verdicts = [vote.verdicts for vote in votes if isinstance(vote, StepVerdicts)]
    return [_step([reply[step] for reply in verdicts]) for step in range(steps)]


def _step(votes: list[StepVerdict]) -> _Outcome:
    """The verdict on one step that has the most votes."""
    leading, most = _leaders([vote.verdict for vote in votes])
    if len(leading) > 1:
        return _Outcome(value=None, votes=most, reason=f"votes tied: {', '.join(sorted(leading))}")
    (verdict,) = leading
    critique = next(vote.evidence for vote in votes if vote.verdict == verdict)
    return _Outcome(value=_VALUES[verdict], votes=most, critique=critique)


def _up_to_first_error(votes: list[FirstErrorReply], steps: int) -> list[_Outcome]:
    """All steps by the index that has the most votes."""
    leading, most = _leaders([vote.first_error for vote in votes])
    if len(leading) > 1:
        names = ["no error" if index == -1 else f"step {index + 1}" for index in sorted(leading)]
        return [_Outcome(value=None, votes=most, reason=f"votes tied: {', '.join(names)}")] * steps
    (index,) = leading
    critique = next(vote.evidence for vote in votes if vote.first_error == index)
    shown_at = steps - 1 if index == -1 else index
    return [
        _Outcome(
            value=value,
            votes=most,
            reason=AFTER_FIRST_ERROR if value is None else None,
            critique=critique if step == shown_at else None,
        )
        for step, value in enumerate(up_to_first_error(index, steps))
    ]


def _leaders(votes: list[V]) -> tuple[list[V], int]:
    """The options with the most votes, and the number of their votes."""
    counts = Counter(votes)
    most = max(counts.values())
    return [value for value, count in counts.items() if count == most], most


_FENCED = re.compile(r"```[a-zA-Z]*[ \t]*\n((?:(?!```).)*)```\Z", re.S)
_BOXED = re.compile(r"\\boxed\s*\{([^{}]*)\}")
_INDEX = re.compile(r"[-−]?[0-9]{1,9}")
_REFUSAL = re.compile(
    r"(?:i['’]?m |i am )?(?:so |very )?sorry\b|as an ai\b"
    r"|i (?:can['’]?t|cannot|won['’]?t|will not) (?:help|assist|comply|fulfil)"
    r"|i(?: am|['’]m) (?:unable|not able) to (?:help|assist|comply|fulfil)",
    re.I,
)
"""How a refusal begins. A schema can force a verdict onto a refusal."""


def _writable(text: str) -> str:
    """JSON can contain half of a surrogate pair, which cannot be written to a file."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("half of a surrogate pair") from error
    return text


Critique = Annotated[str, AfterValidator(_writable)]


class _Reply(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _Critique(_Reply):
    """The critique comes first, so that the model reasons before its verdict."""

    @property
    def wrong(self) -> bool:
        raise NotImplementedError

    @property
    def evidence(self) -> str:
        """The message in a label's evidence."""
        critique, failure = getattr(self, "critique"), getattr(self, "failure", None)  # noqa: B009
        return f"{failure}: {critique}" if failure and self.wrong else str(critique)


class StepVerdict(_Critique):
    """One step."""

    step: int
    critique: Critique
    verdict: Literal["correct", "incorrect", "neutral"]

    @property
    def wrong(self) -> bool:
        return self.verdict == "incorrect"


class StepVerdicts(_Reply):
    """Reply in mode ``per-step``."""

    verdicts: Sequence[StepVerdict]


class FirstErrorReply(_Critique):
    """Reply in mode ``first-error``; −1 = no step is wrong."""

    critique: Critique
    first_error: int

    @property
    def wrong(self) -> bool:
        return self.first_error != -1


class _NamesFailure(_Critique):
    """The kind of failure, or ``none``."""

    failure: Literal[AgentFailure, "none"]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.wrong != (self.failure != "none"):
            raise ValueError("exactly the wrong steps have a failure")
        return self


class NamedStepVerdict(_NamesFailure, StepVerdict):
    """One step, with the kind of its failure."""


class NamedStepVerdicts(StepVerdicts):
    """Reply in mode ``per-step`` that names failures."""

    verdicts: Sequence[NamedStepVerdict]


class NamedFirstErrorReply(_NamesFailure, FirstErrorReply):
    """Reply in mode ``first-error`` that names the failure."""


Vote: TypeAlias = StepVerdicts | FirstErrorReply


class ReplyError(Exception):
    """An invalid reply; the message is the reason under which it is counted."""


def structured_output(mode: JudgeMode, *, name_failures: bool = False) -> dict[str, Any]:
    """``extra_body`` of an ``OpenAIPolicy`` that makes the server enforce the reply's form.

    It is OpenAI's ``response_format`` ``json_schema``, which vLLM, SGLang and llama.cpp support too. A server
    may refuse or ignore it; replies are parsed equally strictly either way.
    """
    form = _form(mode, name_failures=name_failures)
    schema = {"name": mode.replace("-", "_"), "strict": True, "schema": form.model_json_schema()}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _form(mode: JudgeMode, *, name_failures: bool) -> type[Vote]:
    if mode == "per-step":
        return NamedStepVerdicts if name_failures else StepVerdicts
    return NamedFirstErrorReply if name_failures else FirstErrorReply


def read_reply(text: str, *, prompt: JudgePrompt, steps: int) -> Vote:
    """The vote in a judge's reply on a trace of ``steps`` steps.

    The JSON object may be the whole reply, or its end, in a code fence or not; reasoning up to ``</think>``
    is skipped. An object followed by words is invalid: it may be quoted from a step. If the prompt asks for
    a box, a first error in the last ``\\boxed{}`` is valid too, with the reply as its critique. A refusal is
    invalid even if a schema forced a verdict onto it. Raises :class:`ReplyError`.
    """
    answer = _after_reasoning(text)
    form = _form(prompt.mode, name_failures=prompt.name_failures)
    reply = next((vote for part in _candidates(text, answer, form) if (vote := _parsed(part, form))), None)
    if reply is None and prompt.boxed:
        reply = _boxed(answer)
    if reply is None:
        if not answer:
            raise ReplyError("empty reply")
        if _REFUSAL.match(answer):
            raise ReplyError("refused")
        raise ReplyError("no box with a step number" if prompt.boxed else "not the JSON that was asked for")
    _check(reply, steps)
    return reply


def _after_reasoning(text: str) -> str:
    """The text after ``</think>``; empty if the reasoning never ends."""
    answer = text.rpartition("</think>")[2].strip()
    return "" if answer.startswith("<think>") else answer


def _candidates(text: str, answer: str, form: type[Vote]) -> Iterator[str]:
    yield text
    yield answer
    if fenced := _FENCED.search(answer):
        yield fenced[1]
    # The object at the end of the reply begins at the last match: inside its strings the quotes are escaped.
    for opening in list(re.finditer(rf'\{{\s*"(?:{"|".join(form.model_fields)})"', answer))[-1:]:
        yield answer[opening.start() :]


def _parsed(text: str, form: type[Vote]) -> Vote | None:
    try:
        return form.model_validate(json.loads(text, object_pairs_hook=_distinct))
    except (ValueError, RecursionError):  # ValidationError is a ValueError
        return None


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object with distinct names; JSON parsers disagree about which of two equal names wins."""
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a name occurs twice")
    return dict(pairs)


def _boxed(answer: str) -> FirstErrorReply | None:
    boxes = _BOXED.findall(answer)
    if not boxes or not _INDEX.fullmatch(boxes[-1].strip()):
        return None
    try:
        return FirstErrorReply(critique=answer, first_error=int(boxes[-1].strip().replace("−", "-")))
    except ValidationError:
        return None


def _check(vote: Vote, steps: int) -> None:
    critics = [vote] if isinstance(vote, FirstErrorReply) else vote.verdicts
    if any(_REFUSAL.match(part.critique) for part in critics):
        raise ReplyError("refused")
    if isinstance(vote, FirstErrorReply):
        if not -1 <= vote.first_error < steps:
            raise ReplyError("step number out of range")
        return
    if len(vote.verdicts) != steps:
        raise ReplyError("wrong number of verdicts")
    if [verdict.step for verdict in vote.verdicts] != list(range(steps)):
        raise ReplyError("verdicts misnumbered")
