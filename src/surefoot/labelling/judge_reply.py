"""What a judge answers: the forms it is asked for, their JSON schema for servers, and strict reading."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from surefoot.labelling.judge_prompt import JudgeMode

_FENCED = re.compile(r"```[a-zA-Z]*[ \t]*\n((?:(?!```).)*)```\Z", re.S)
_BOXED = re.compile(r"\\boxed\s*\{([^{}]*)\}")
_INDEX = re.compile(r"[-−]?[0-9]{1,9}")
_REFUSAL = re.compile(
    r"(?:i['’]?m |i am )?(?:so |very )?sorry\b|as an ai\b"
    r"|i (?:can['’]?t|cannot|won['’]?t|will not) (?:help|assist|comply|fulfil)"
    r"|i(?: am|['’]m) (?:unable|not able) to (?:help|assist|comply|fulfil)",
    re.I,
)
"""How a refusal begins. It matters where a schema forces a verdict onto one; else it names the failure."""


def _writable(text: str) -> str:
    """JSON can spell half of a surrogate pair, which no file takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("half of a surrogate pair") from error
    return text


Critique = Annotated[str, AfterValidator(_writable)]


class _Reply(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class StepVerdict(_Reply):
    """One step; the critique comes first, so that it is written before the verdict that it leads to."""

    step: int
    critique: Critique
    verdict: Literal["correct", "incorrect", "neutral"]


class StepVerdicts(_Reply):
    """Reply in mode ``per-step``."""

    verdicts: list[StepVerdict]


class FirstError(_Reply):
    """Reply in mode ``first-error``; −1 = no step is wrong."""

    critique: Critique
    first_error: int


class ReplyError(Exception):
    """A reply that gives no vote; the message is the reason to count it under."""


def structured_output(mode: JudgeMode) -> dict[str, Any]:
    """``extra_body`` of an ``OpenAIPolicy`` that holds the server to the reply's form.

    It is the ``response_format`` ``json_schema`` of OpenAI, which vLLM, SGLang and llama.cpp know too. A
    server may refuse it or ignore it; replies are read with the same strictness either way.
    """
    form = StepVerdicts if mode == "per-step" else FirstError
    schema = {"name": mode.replace("-", "_"), "strict": True, "schema": form.model_json_schema()}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def read_reply(text: str, *, mode: JudgeMode, steps: int, boxed: bool) -> StepVerdicts | FirstError:
    """The vote in a judge's reply on a trace of ``steps`` steps.

    The JSON object may be the whole reply, or its end, in a code fence or not; a reasoning part up to
    ``</think>`` is passed over. An object with words after it is no vote: it may be quoted from a step. With
    ``boxed``, a first error in the last ``\\boxed{}`` is read too, with the reply as its critique. A refusal
    is no vote even where a schema has forced a verdict onto it. Raises :class:`ReplyError`.
    """
    answer = _after_reasoning(text)
    form = StepVerdicts if mode == "per-step" else FirstError
    found = next((vote for part in _candidates(text, answer, form) if (vote := _parsed(part, form))), None)
    if found is None and boxed and mode == "first-error":
        found = _boxed(answer)
    if found is None:
        if not answer:
            raise ReplyError("empty reply")
        if _REFUSAL.match(answer):
            raise ReplyError("refused")
        raise ReplyError("no box with a step number" if boxed else "not the JSON that was asked for")
    _check(found, steps)
    return found


def _after_reasoning(text: str) -> str:
    """Without what comes before ``</think>``; nothing if the reasoning never ends."""
    answer = text.rpartition("</think>")[2].strip()
    return "" if answer.startswith("<think>") else answer


def _candidates(text: str, answer: str, form: type[StepVerdicts] | type[FirstError]) -> Iterator[str]:
    yield text
    yield answer
    if fenced := _FENCED.search(answer):
        yield fenced[1]
    # The object that ends the reply, whatever stands before it. It begins where its form is last seen to
    # begin: inside its strings the quotes are escaped.
    for opening in list(re.finditer(rf'\{{\s*"(?:{"|".join(form.model_fields)})"', answer))[-1:]:
        yield answer[opening.start() :]


def _parsed(text: str, form: type[StepVerdicts] | type[FirstError]) -> StepVerdicts | FirstError | None:
    try:
        return form.model_validate(json.loads(text, object_pairs_hook=_distinct))
    except (ValueError, RecursionError):  # ValidationError is a ValueError
        return None


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names occur once; JSON readers disagree on which of two values counts."""
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a name occurs twice")
    return dict(pairs)


def _boxed(answer: str) -> FirstError | None:
    boxes = _BOXED.findall(answer)
    if not boxes or not _INDEX.fullmatch(boxes[-1].strip()):
        return None
    try:
        return FirstError(critique=answer, first_error=int(boxes[-1].strip().replace("−", "-")))
    except ValidationError:
        return None


def _check(vote: StepVerdicts | FirstError, steps: int) -> None:
    said = [vote] if isinstance(vote, FirstError) else vote.verdicts
    if any(_REFUSAL.match(part.critique) for part in said):
        raise ReplyError("refused")
    if isinstance(vote, FirstError):
        if not -1 <= vote.first_error < steps:
            raise ReplyError("step number out of range")
        return
    if len(vote.verdicts) != steps:
        raise ReplyError("wrong number of verdicts")
    if [verdict.step for verdict in vote.verdicts] != list(range(steps)):
        raise ReplyError("verdicts misnumbered")
