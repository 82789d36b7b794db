"""Records that cross boundaries: problems, traces, steps, labels, scores, usage.

Every record is a frozen pydantic model with a ``schema_version``; identities are content hashes.
Free-form ``meta`` is written as a JSON string, so that every line of a file has the same columns and
``datasets.load_dataset`` reads it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationInfo,
    model_validator,
)
from pydantic_core import from_json, to_json

from surefoot.messages import message_fields

SCHEMA_VERSION: Final = 2

Ending = Literal["finished", "truncated", "filtered", "tool_call", "unknown"]
"""How a text ended: its writer ended it, a limit or a failure cut it off, a provider's filter withheld the
rest, its writer called a tool, or unknown."""

CUT_OFF: Final = frozenset({"truncated", "filtered"})
"""Endings of a text that its writer did not end."""

_FINISH_REASONS: Final[dict[Ending, str]] = {
    "finished": "stop stop_unknown stop_sequence end_turn eos eos_token complete completed",
    "truncated": "length max_tokens max_output_tokens max_completion_tokens max_new_tokens max_length "
    "incomplete model_length model_context_window_exceeded context_length_exceeded pause_turn abort aborted "
    "cancelled user_cancel error error_limit failed timeout time_limit token_limit not_finished "
    "insufficient_system_resource malformed_function_call malformed_response malformed_model_output "
    "malformed_tool_use unexpected_tool_call too_many_tool_calls missing_thought_signature",
    "filtered": "content_filter content_filtered refusal safety recitation blocklist prohibited_content spii "
    "guardrail_intervened error_toxic image_safety image_prohibited_content image_recitation language",
    "tool_call": "tool_calls tool_call tool_use function_call",
}
"""Words of OpenAI, Anthropic, Google, Mistral, Cohere, Amazon, IBM, DeepSeek, vLLM, SGLang, TGI, Inspect."""
_ENDINGS: Final = {word: ending for ending, words in _FINISH_REASONS.items() for word in words.split()}


def ending_of(finish_reason: str | None) -> Ending:
    """The ending that a provider's word means; a word that no provider is known for is ``unknown``."""
    return _ENDINGS.get((finish_reason or "").lower().replace("-", "_"), "unknown")


class Ended:
    """What has ended for the reason in ``finish_reason``."""

    if TYPE_CHECKING:

        @property
        def finish_reason(self) -> str | None: ...

    @property
    def ending(self) -> Ending:
        """How the text ended."""
        return ending_of(self.finish_reason)

    @property
    def cut_off(self) -> bool:
        """Whether a limit, a failure or a filter ended it, not its writer."""
        return self.ending in CUT_OFF


LabelKind = Literal["correctness", "value", "advantage"]
"""correctness: is this step valid; value: chance of the right answer from here; advantage: did it help."""


def content_id(*parts: object, plain: bool = False) -> str:
    """Hash ``parts`` (rendered as JSON) into 16 hexadecimal characters.

    ``plain`` promises that they hold no floats and no other types than JSON's, which takes less time.
    """
    plain = plain or _PLAIN.issuperset(map(type, parts))
    if not plain and type(first := parts[0]) is dict and {*map(type, first)} == {str}:
        plain = _PLAIN.issuperset(map(type, (*first.values(), *parts[1:])))
    if plain:
        with suppress(ValueError):  # half a surrogate pair
            return id_of_json(to_json(parts))
    return id_of_json(as_json(parts).encode("utf-8", "surrogatepass"))


_PLAIN: Final = frozenset((str, int, bool, type(None)))
"""Types that pydantic writes as the standard library does, in less time; it writes floats differently."""


def content_id_of(parts: Iterable[object]) -> str:
    """``content_id(*parts)`` for parts that need not fit in memory together."""
    digest = hashlib.blake2b(b"[", digest_size=8)
    for number, part in enumerate(parts):
        digest.update(b"," * bool(number) + as_json(part).encode("utf-8", "surrogatepass"))
    digest.update(b"]")
    return digest.hexdigest()


def id_of_json(text: bytes) -> str:
    """The :func:`content_id` of parts whose JSON array, written by :func:`as_json`, is ``text``."""
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def _plain(value: object) -> object:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else str(value)


as_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_plain).encode
"""JSON text without spaces; records become objects, other types that JSON lacks become strings."""


def now() -> datetime:
    """Current time in UTC; ``SOURCE_DATE_EPOCH`` fixes it, so that runs can be compared byte by byte."""
    fixed = os.environ.get("SOURCE_DATE_EPOCH")
    moment = datetime.fromtimestamp(int(fixed), UTC) if fixed else datetime.now(UTC)
    return moment.replace(microsecond=0)


def _number_as_text(value: object) -> object:
    """A JSON number as its text: ``7`` is the answer ``"7"``."""
    return json.dumps(value) if isinstance(value, int | float) else value


Answer = Annotated[str | None, BeforeValidator(_number_as_text)]


def _number_no_bool(value: object) -> object:
    """Raise ``ValueError`` for true and false, which Python treats as 1 and 0."""
    if isinstance(value, bool):
        raise ValueError(f"a number is needed, not {json.dumps(value)}")  # noqa: TRY004 - pydantic catches it
    return value


Number = Annotated[float, BeforeValidator(_number_no_bool)]
"""A finite number (records refuse NaN and infinities), not a bool."""


# json.dumps makes an encoder for every call with options
_finite_json = json.JSONEncoder(allow_nan=False, default=str).encode


def _meta_from_text(value: object) -> object:
    meta = from_json(value) if isinstance(value, str) else value
    try:
        _finite_json(meta)
    except (ValueError, RecursionError) as error:
        raise ValueError("cannot be written as JSON: NaN, an infinity, or too many levels") from error
    return meta


_meta_json = json.JSONEncoder(ensure_ascii=False, sort_keys=True).encode

Meta = Annotated[
    dict[str, Any],
    BeforeValidator(_meta_from_text),
    PlainSerializer(lambda meta: _meta_json(meta) if meta else "{}", when_used="json"),
]


def _in_utc(moment: datetime) -> datetime:
    """Programs that drop the offset of a time mean UTC."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


class FrozenModel(BaseModel):
    """Base of immutable models without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Record(BaseModel):
    """Base of all records: frozen, no unknown fields, versioned."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    schema_version: Literal[2] = SCHEMA_VERSION

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"


M = TypeVar("M", bound=BaseModel)


def trusted_copy(record: M, changes: dict[str, Any], kind: type[M] | None = None) -> M:
    """``record`` with ``changes`` that are known to be valid: nothing is checked, other values are shared.

    The class of the copy is ``kind``, with the same fields, or as for ``record``. For readers of
    millions of records: ``model_copy`` copies more, which takes three times as long.
    """
    return _made(kind or type(record), {**record.__dict__, **changes}, record.__pydantic_fields_set__)


# The setters of a model's slots, which object.__setattr__ would look up each time.
_put_fields, _put_fields_set, _put_extra, _put_private = (
    BaseModel.__dict__[name].__set__
    for name in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)


def _made(kind: type[M], fields: dict[str, Any], given: set[str]) -> M:
    record = object.__new__(kind)
    _put_fields(record, fields)
    _put_fields_set(record, given)
    _put_extra(record, None)
    _put_private(record, None)
    return record


MAX_COUNT: Final = 2**40
"""Largest count that a record holds: databases and file formats can store it, and sums of many."""

Count = Annotated[int, Field(ge=0), AfterValidator(partial(min, MAX_COUNT))]
"""A count that may come from another program; a larger number than ``MAX_COUNT`` is recorded as that."""


def reported_count(value: object, most: int = MAX_COUNT) -> int:
    """A count that another program reported, between 0 and ``most``; 0 (unknown) if it is not a number.

    A larger number counts as ``most``, the most that the work could have used, so that a false report is
    never cheaper than the truth.
    """
    try:
        number = value if isinstance(value, int) else float(value or 0)  # type: ignore[arg-type]
        return int(min(max(number, 0), most))
    except (TypeError, ValueError):  # also NaN
        return 0


class Usage(FrozenModel):
    """Tokens spent, separately for policy and verifier; ``+`` adds field by field."""

    prompt_tokens: Count = 0
    """Tokens the policy read; a prompt shared by n samples counts once."""
    completion_tokens: Count = 0
    """Tokens the policy wrote."""
    verifier_tokens: Count = 0
    """Tokens read by a reward model or judge."""
    cached_tokens: Count = 0
    """Of the tokens read, those that a server says it had in its cache of prefixes."""
    verifier_written: Count = 0
    """Of the verifier's tokens, those that it wrote."""
    calls: Count = 0
    """Requests made (batched in process, or over the network)."""

    @property
    def tokens(self) -> int:
        """All tokens, read or written, by policy or verifier."""
        return self.prompt_tokens + self.completion_tokens + self.verifier_tokens

    @property
    def by_verifier(self) -> Usage:
        """The same, spent by a judge: all its tokens are the verifier's."""
        spent = {"cached_tokens": self.cached_tokens, "verifier_written": self.completion_tokens}
        return Usage(verifier_tokens=self.tokens, calls=self.calls, **spent)

    def cost(self, price: Sequence[float]) -> float:
        """By the ``price`` of a million tokens: read, of these read from a cache, written."""
        written = self.completion_tokens + self.verifier_written
        each = (self.tokens - written - self.cached_tokens, self.cached_tokens, written)
        return sum(tokens * of_million for tokens, of_million in zip(each, price, strict=True)) / 1e6

    def __add__(self, other: Usage) -> Usage:
        mine, theirs = self.__dict__, other.__dict__
        return trusted_copy(self, {name: min(mine[name] + theirs[name], MAX_COUNT) for name in mine})


class Problem(Record):
    """A task given to a policy. ``id`` defaults to the hash of text and answer."""

    id: str = ""
    text: str = Field(min_length=1)
    answer: Answer = None
    """Reference final answer, if known; a number is converted to text."""
    source: str | None = None
    """Data set that the problem comes from."""
    meta: Meta = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fill_id(self) -> Self:
        if not self.id:
            object.__setattr__(self, "id", content_id("problem", self.text, self.answer))
        return self

    def __str__(self) -> str:
        answer = "" if self.answer is None else f" (answer {_short(self.answer)})"
        return f"{self.id}: {_short(self.text)}{answer}"


TestVisibility = Literal["visible", "hidden"]
"""``visible`` tests may be used by policies and to select programs; ``hidden`` tests only for grading."""


class CodeTest(FrozenModel):
    """A test of a program: statements that raise if the program is wrong."""

    name: str = Field(min_length=1)
    code: str
    visibility: TestVisibility


class CodeTask(FrozenModel):
    """A programming task in ``Problem.meta["code"]``: the function to write, and its tests.

    ``Problem.text``, which prompts are made from, contains only visible tests.
    """

    language: Literal["python"] = "python"
    entry_point: str = Field(min_length=1)
    """The function that the tests call, by this name or as ``candidate``."""
    prompt: str = ""
    """Beginning of the program, which a solution continues; empty if a solution is a whole program."""
    setup: str = ""
    """Trusted code that the tests need, run before them and separately from the program."""
    tests: tuple[CodeTest, ...] = ()
    reference: str | None = None
    """A passing solution, which continues ``prompt``. Only graders may see it."""

    @classmethod
    def of(cls, problem: Problem) -> CodeTask | None:
        """The task of a problem; ``None`` if its solutions are not programs.

        Raises ``ValueError`` if ``meta["code"]`` is invalid.
        """
        task = problem.meta.get("code")
        return None if task is None else cls.model_validate(task)

    def that_are(self, visibility: TestVisibility) -> tuple[CodeTest, ...]:
        """The tests with this visibility."""
        return tuple(test for test in self.tests if test.visibility == visibility)


ShortText = Annotated[str, Field(max_length=500)]


class ProofTask(FrozenModel):
    """A theorem to prove, in ``Problem.meta["proof"]``. A solution is only the proof."""

    system: Literal["rocq", "lean"]
    name: str = Field(min_length=1)
    """Name of the theorem."""
    statement: str = Field(min_length=1)
    """The theorem without its proof: in Rocq a sentence (``Theorem t : 1 + 1 = 2.``), in Lean everything
    before ``:= by``."""
    preamble: str = ""
    """Imports and definitions before the theorem."""
    axioms: tuple[str, ...] = ()
    """Axioms that the proof may use. In Lean the three axioms of its core library are always allowed."""

    @classmethod
    def of(cls, problem: Problem) -> ProofTask | None:
        """The task of a problem, or ``None``. Raises ``ValueError`` if ``meta["proof"]`` is invalid."""
        task = problem.meta.get("proof")
        return None if task is None else cls.model_validate(task)


Visibility = Literal["visible", "summarised", "encrypted", "withheld"]
"""How a provider shows its model's reasoning: in full, summarised, as an opaque blob, or not at all."""

StepPart = Literal["reasoning", "content", "tool_call", "message"]
"""The part of a message that a step spans: its reasoning, its content, one of its calls, or all of it."""

StepKind = Literal[
    "reasoning",
    "thought",
    "code",
    "plan",
    "tool_call",
    "edit",
    "command",
    "recovery",
    "reply",
    "final_answer",
    "message",
]
"""Kinds of steps. ``edit`` and ``command`` are a coding agent's calls that change files or run something in a
shell or interpreter; ``tool_call`` is any other call. ``recovery`` is an assistant's text right after an
observation that reports an error; ``reply`` ends a turn of a run that continues, ``final_answer`` the run;
``message`` is a whole assistant message."""


class Reasoning(FrozenModel):
    """The reasoning of a message, or of a text that does not contain it, as far as it is known."""

    text: str = ""
    """The reasoning, its summary, or the provider's encrypted blob; empty if it is withheld."""
    visibility: Visibility = "visible"
    tokens: Count | None = None
    """Tokens that the provider billed for it, if reported."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.visibility == "withheld" and self.text:
            raise ValueError("withheld reasoning has no 'text'; call it summarised or encrypted")
        return self

    @property
    def readable(self) -> str:
        """The text if it is visible or summarised, or an empty string."""
        return self.text if self.visibility in ("visible", "summarised") else ""

    def __str__(self) -> str:
        tokens = "" if self.tokens is None else f", {self.tokens} tokens"
        text = f": {_short(self.readable)}" if self.readable else ""
        return f"reasoning ({self.visibility}{tokens}){text}"


class Attachment(FrozenModel):
    """An image, sound or file that is part of a message: a reference with the hash of its bytes."""

    kind: Literal["image", "audio", "file"]
    uri: str | None = None
    """URL, which may hold the bytes (``data:``), or path relative to the file that holds the record."""
    sha256: str | None = None
    """Hash of the bytes, in hexadecimal; ``None`` for a URL that was not downloaded."""
    media_type: str | None = None
    name: str | None = None
    at: int = Field(default=0, ge=0)
    """Its position in the message's content, in characters."""
    detail: str | None = None
    """How closely the model is to look at an image: ``low``, ``high`` or ``original``."""


class Tool(FrozenModel):
    """A tool that the assistant could call; ``parameters`` is its JSON schema, as JSON text."""

    name: str
    description: str | None = None
    parameters: str | None = None


class ToolCall(FrozenModel):
    """A tool call of an assistant message; ``arguments`` is JSON text, as the model wrote it."""

    id: str | None = None
    name: str
    arguments: str = "{}"

    def __str__(self) -> str:
        return f"{self.name}({self.arguments})"


_Role = Literal["system", "developer", "user", "assistant", "tool"]
ALREADY_READ: Final = object()
"""Context of the validation of messages whose fields :func:`surefoot.messages.read_messages` made."""


class Message(FrozenModel):
    """One chat message; OpenAI's shape is accepted, too (:mod:`surefoot.messages`)."""

    role: _Role
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """In a tool's message: the call that it answers."""
    name: str | None = None
    reasoning: Reasoning | None = None
    """In an assistant's message: the reasoning before its content."""
    attachments: tuple[Attachment, ...] = ()
    error: bool | None = None
    """In a tool's message: whether the tool failed, if reported."""

    @model_validator(mode="before")
    @classmethod
    def _of_any_shape(cls, row: object, info: ValidationInfo) -> object:
        return message_fields(row) if isinstance(row, dict) and info.context is not ALREADY_READ else row

    @classmethod
    def of_text(cls, role: _Role, content: str) -> Self:
        """A message of text alone. Nothing is checked, which takes a tenth of the time."""
        return _made(cls, {**_MESSAGE_DEFAULTS, "role": role, "content": content}, {"role", "content"})

    @property
    def readable_reasoning(self) -> str:
        """The readable reasoning, or an empty string."""
        return self.reasoning.readable if self.reasoning else ""

    def with_attachments(self, change: Callable[[Attachment], Attachment]) -> Message:
        """The message with what ``change``, which is trusted, makes of each attachment."""
        held = self.attachments
        return trusted_copy(self, {"attachments": tuple(map(change, held))}) if held else self


_MESSAGE_DEFAULTS: Final = {name: field.default for name, field in Message.model_fields.items()}


class Step(FrozenModel):
    """A span ``[start, end)``, in characters, of one part of the trace."""

    start: int = Field(ge=0)
    end: int = Field(ge=0)
    message: int | None = Field(default=None, ge=0)
    """Index into ``Trace.messages``; ``None`` for a text trace."""
    part: StepPart = "content"
    """The part that the span counts characters of: a tool call's arguments, or for a whole message its
    content, which the span covers."""
    call: int | None = Field(default=None, ge=0)
    """Index into the message's ``tool_calls``, for the part ``tool_call``."""
    kind: StepKind = "thought"

    @classmethod
    def trusted(
        cls,
        start: int,
        end: int,
        kind: StepKind,
        message: int | None = None,
        part: StepPart = "content",
        call: int | None = None,
    ) -> Self:
        """A step whose fields are known to be valid: nothing is checked, which takes half the time."""
        fields = {"start": start, "end": end, "message": message, "part": part, "call": call, "kind": kind}
        return _made(cls, fields, _STEP_FIELDS)


_STEP_FIELDS: Final = set(Step.model_fields)


class Trace(Record, Ended):
    """One solution (``text``) or agent run (``messages``), with its steps as spans of the original.

    ``id`` defaults to the hash of problem, policy, seed, sample number and content, so two equal texts
    sampled twice stay two traces.
    """

    id: str = ""
    problem_id: str
    text: str | None = None
    messages: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()
    """Tools that the assistant could call."""
    reasoning: Reasoning | None = None
    """Reasoning that ``text`` does not contain: a summary, a blob, or the number of withheld tokens. Visible
    reasoning is part of the text, between ``<think>`` and ``</think>``."""
    steps: tuple[Step, ...] = ()
    granularity: str | None = None
    """How the steps were cut: ``part`` or ``message`` for messages, then the segmenter's name."""
    answer: Answer = None
    """Extracted final answer; ``None`` if there is none."""
    outcome: bool | None = None
    """Whether the final answer is correct; ``None`` = not graded."""
    policy: str | None = None
    seed: int | None = None
    sample: int = 0
    """Number of this sample among samples of the same problem, policy and seed."""
    finish_reason: str | None = None
    """Why the text ended, in the provider's own word."""
    error: str | None = None
    """Error during sampling, with the boundary that failed; such a trace is kept and counted."""
    usage: Usage = Usage()
    meta: Meta = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.text is None) == (not self.messages):
            raise ValueError("give either 'text' or a non-empty 'messages', not both and not neither")
        if self.reasoning is not None and self.text is None:
            raise ValueError("'reasoning' is for 'text'; in a chat trace each message has its own")
        if not self._cuts_text():
            self._check_steps()
        if not self.id:
            content = self.text if self.text is not None else [_identity(m) for m in self.messages]
            parts = (self.problem_id, self.policy, self.seed, self.sample, content)
            object.__setattr__(self, "id", content_id("trace", *parts, plain=True))
        return self

    def with_attachments(self, change: Callable[[Attachment], Attachment]) -> Trace:
        """The trace with what ``change``, which is trusted, makes of its messages' attachments."""
        messages = tuple(message.with_attachments(change) for message in self.messages)
        return trusted_copy(self, {"messages": messages})

    def _cuts_text(self) -> bool:
        """Whether the steps are consecutive spans of ``text``: a quick check for the usual case."""
        end = 0
        for step in self.steps:
            if step.message is not None or step.call is not None or step.part != "content":
                return False
            if not end <= step.start <= step.end:
                return False
            end = step.end
        return self.text is not None and end <= len(self.text)

    def _check_steps(self) -> None:
        """Raise ``ValueError`` naming the first step whose span is invalid or overlaps the step before it."""
        previous = ((-1, 1, 0), 0)
        for number, step in enumerate(self.steps):
            where = self._position(number, step)
            if where < previous[0]:
                raise ValueError(f"steps[{number}] goes back to {_named(step)}")
            if step.end < step.start or step.end > len(self.part_text(step)):
                raise ValueError(f"steps[{number}] spans [{step.start}, {step.end}) outside its text")
            covers_all = where[1] == 0 or previous[0][1] == 0
            if (where[0] == previous[0][0] and covers_all) or (
                where == previous[0] and step.start < previous[1]
            ):
                raise ValueError(f"steps[{number}] starts at {step.start}, inside the step before it")
            previous = (where, step.end)

    def _position(self, number: int, step: Step) -> tuple[int, int, int]:
        """Position of a step's part in reading order. Raises ``ValueError`` if that part does not exist."""
        if step.message is None:
            if self.text is None:
                raise ValueError(f"steps[{number}].message must be set for 'messages' and absent for 'text'")
            if step.part != "content" or step.call is not None:
                raise ValueError(f"steps[{number}].part must be 'content' in a text trace")
            return (-1, 1, 0)
        if self.text is not None:
            raise ValueError(f"steps[{number}].message must be set for 'messages' and absent for 'text'")
        if step.message >= len(self.messages):
            raise ValueError(
                f"steps[{number}].message={step.message}, but there are {len(self.messages)} messages"
            )
        message = self.messages[step.message]
        if (step.call is not None) != (step.part == "tool_call"):
            raise ValueError(f"steps[{number}].call must be set for the part 'tool_call' and for no other")
        if step.call is not None and step.call >= len(message.tool_calls):
            raise ValueError(
                f"steps[{number}].call={step.call}, but message {step.message} has "
                f"{len(message.tool_calls)} calls"
            )
        if step.part == "reasoning" and message.reasoning is None:
            raise ValueError(f"steps[{number}] is reasoning, but message {step.message} has none")
        return (step.message, _PART_ORDER[step.part], step.call or 0)

    def __str__(self) -> str:
        outcome = {True: "correct", False: "incorrect", None: "not graded"}[self.outcome]
        answer = "no answer" if self.answer is None else f"answer {_short(self.answer)}"
        writer = "" if self.policy is None else f" by {self.policy}"
        return f"{self.id}{writer}: {len(self.steps)} steps, {answer}, {outcome}"

    def part_text(self, step: Step) -> str:
        """The original text of the part that ``step`` is a span of."""
        if step.message is None:
            return self.text or ""
        message = self.messages[step.message]
        if step.part == "reasoning":
            return message.reasoning.text if message.reasoning else ""
        return message.content or "" if step.call is None else message.tool_calls[step.call].arguments

    def step_text(self, index: int) -> str:
        """The exact characters of step ``index``.

        A tool call reads ``name(arguments)``; a whole message reads as its reasoning, content and calls, on
        separate lines.
        """
        step = self.steps[index]
        span = self.part_text(step)[step.start : step.end]
        if step.message is None or step.part in ("content", "reasoning"):
            return span
        message = self.messages[step.message]
        if step.call is not None:
            return str(message.tool_calls[step.call])
        return "\n".join(filter(None, (message.readable_reasoning, span, *map(str, message.tool_calls))))

    def calls_of(self, index: int) -> tuple[ToolCall, ...]:
        """The tool calls of step ``index``: one, none, or all calls of a whole message."""
        step = self.steps[index]
        if step.message is None or step.part in ("content", "reasoning"):
            return ()
        calls = self.messages[step.message].tool_calls
        return calls if step.call is None else (calls[step.call],)

    def prefix(self, steps: int) -> str:
        """Text up to and including the first ``steps`` steps (0 = the text before the first step).

        Raises ``ValueError`` for a chat trace, whose prefix is a list of messages.
        """
        if self.text is None:
            raise ValueError("chat traces lack a text prefix; cut its messages at the step's message index")
        if not self.steps:
            return ""
        return self.text[: self.steps[steps - 1].end] if steps else self.text[: self.steps[0].start]


_PART_ORDER: Final = {"message": 0, "reasoning": 1, "content": 2, "tool_call": 3}


def _named(step: Step) -> str:
    if step.part in ("content", "message"):
        return f"message {step.message}"
    what = "the reasoning" if step.call is None else f"call {step.call}"
    return f"{what} of message {step.message}"


def _identity(message: Message) -> dict[str, Any]:
    """The fields that are part of the trace's id: four of them always, the others only if they are set."""
    calls = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    always = {"role": message.role, "content": message.content, "tool_calls": calls}
    always["tool_call_id"] = message.tool_call_id
    if (message.name, message.reasoning, message.error, message.attachments) == (None, None, None, ()):
        return always
    return always | message.model_dump(exclude=set(always), exclude_defaults=True)


class Execution(FrozenModel):
    """Why a program fails: the evidence of a label by the verifier ``repair``.

    The program controls a part of this text, so treat it as untrusted.
    """

    repair: Annotated[str, Field(max_length=4_000)] | None = None
    """The change with which all tests pass, as lines of a unified diff."""
    test: ShortText | None = None
    """The first hidden test that fails."""
    result: ShortText | None = None
    """How it ended, such as ``raised: IndexError: list index out of range``."""


ExecutionField = Annotated[
    Execution | None,
    BeforeValidator(lambda value: from_json(value) if isinstance(value, str) else value),
    # as text, like meta: every line of a file has the same columns
    PlainSerializer(lambda value: value and value.model_dump_json(exclude_defaults=True), when_used="json"),
]


class Evidence(BaseModel):
    """The evidence for a label; fields that do not apply stay ``None``."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    successes: int | None = None
    trials: int | None = None
    interval: tuple[Number, Number] | None = None
    """Bounds on the success rate (Wilson, 95 %), if the label comes from trials."""
    usage: Usage = Usage()
    """Cost of this label; zero if it reuses work done for another label."""
    rater: str | None = None
    """Annotator (pseudonym), judge model or prover."""
    message: str | None = None
    """The verifier's reason or the judge's text."""
    execution: ExecutionField = None
    """Why a program fails, on the step that is blamed, otherwise on the last step."""
    clause: str | None = None
    """Id of the clause of a specification that the step cites."""


class StepLabel(Record):
    """Supervision for one step. An unknown value is ``None`` with a ``reason``, never 0."""

    trace_id: str
    step: int = Field(ge=0)
    kind: LabelKind
    value: Number | None
    """correctness in {-1, 0, +1}; value in [0, 1]; advantage in [-1, 1]."""
    reason: str | None = None
    source: str
    evidence: Evidence = Evidence()
    created: Annotated[datetime, AfterValidator(_in_utc)] = Field(default_factory=now)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.value is None:
            if not self.reason:
                raise ValueError("a label without a value needs a 'reason'")
            return self
        if self.kind == "correctness" and self.value not in (-1.0, 0.0, 1.0):
            raise ValueError(f"a correctness label is -1, 0 or 1, not {self.value}")
        low = 0.0 if self.kind == "value" else -1.0
        if not low <= self.value <= 1.0:
            raise ValueError(f"a label of kind '{self.kind}' lies in [{low:g}, 1], not {self.value}")
        return self

    def __str__(self) -> str:
        value = f"unknown ({self.reason})" if self.value is None else f"{self.value:g}"
        return f"{self.trace_id} step {self.step + 1}: {self.kind} {value}, from {self.source}"


class StepPair(Record):
    """Two alternative steps after one prefix, with their values: a preference for pairwise training."""

    problem_id: str
    prefix: str
    """Text of the solution before either step; empty at its beginning."""
    better: str
    worse: str
    better_value: Number = Field(ge=0, le=1)
    worse_value: Number = Field(ge=0, le=1)
    source: str

    @property
    def preference(self) -> float:
        """Probability that ``better`` is preferred, ½ (1 + p - q) (OmegaPRM, arXiv 2406.06592)."""
        return (1 + self.better_value - self.worse_value) / 2

    def __str__(self) -> str:
        better, worse = _short(self.better.strip()), _short(self.worse.strip())
        return f"{self.problem_id}: {better!r} ({self.better_value:g}) over {worse!r} ({self.worse_value:g})"


class StepScores(Record):
    """A reward model's output for one trace: one score per step, ``None`` for an unscored step.

    NaN and infinities are refused; :meth:`of_model` converts them to ``None``.
    """

    trace_id: str
    scorer: str
    scores: tuple[Number | None, ...]
    """In [0, 1] for probabilities; same length as the trace's steps."""
    unscored_reason: str | None = None
    """Why some scores are ``None``, e.g. the trace is longer than the model's context."""
    reasons: Annotated[
        tuple[str | None, ...],
        # a column of a Parquet file holds null in rows without the field
        BeforeValidator(lambda reasons: () if reasons is None else reasons),
    ] = Field(default=(), exclude_if=lambda reasons: not reasons)
    """The reason for each score, from scorers that give one, such as verifiers; otherwise empty."""
    usage: Usage = Usage()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if None in self.scores and not self.unscored_reason:
            # other programs write null without a reason: such a step is unscored, and its record is kept
            object.__setattr__(self, "unscored_reason", "no reason given")
        if self.reasons and len(self.reasons) != len(self.scores):
            raise ValueError(
                f"'reasons' has {len(self.reasons)} entries for {len(self.scores)} scores; give one a step"
            )
        return self

    @classmethod
    def of_model(
        cls,
        *,
        trace_id: str,
        scorer: str,
        scores: Sequence[float | None],
        unscored_reason: str | None = None,
        reasons: Sequence[str | None] = (),
        usage: Usage | None = None,
    ) -> StepScores:
        """The record of a model's output: a score that is not finite becomes ``None``, and the reason counts
        such scores."""
        finite = tuple(None if score is None or not math.isfinite(score) else score for score in scores)
        if broken := finite.count(None) - sum(score is None for score in scores):
            counted = f"{broken} of {len(finite)} scores were not finite (NaN or infinity)"
            unscored_reason = f"{unscored_reason}; {counted}" if unscored_reason else counted
        return cls(
            trace_id=trace_id,
            scorer=scorer,
            scores=finite,
            unscored_reason=unscored_reason,
            reasons=tuple(reasons),
            usage=usage or Usage(),
        )

    @classmethod
    def unscored(cls, trace: Trace, scorer: str, reason: str) -> StepScores:
        """The record of a trace that was not scored at all."""
        scores = (None,) * len(trace.steps)
        return cls(trace_id=trace.id, scorer=scorer, scores=scores, unscored_reason=reason)

    @property
    def are_verdicts(self) -> bool:
        """Whether a check gave them: each is 0, 1 or missing, and some have a reason."""
        return any(self.reasons) and set(self.scores) <= {0, 1, None}

    def refuted(self, first: int = 0) -> bool:
        """Whether a check found a step from ``first`` on wrong: its score is 0, and it has a reason."""
        return any(
            score == 0 and reason
            for score, reason in zip(self.scores[first:], self.reasons[first:], strict=False)
        )

    def __str__(self) -> str:
        values = " ".join("n/a" if value is None else f"{value:.3f}" for value in self.scores)
        return f"{self.trace_id} by {self.scorer}: {values}"


def _short(text: str, limit: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
