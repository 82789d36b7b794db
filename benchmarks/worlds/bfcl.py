"""Tasks of BFCL's multi-turn categories, with its own executable back ends: real tools, and gold calls.

Needs the package ``bfcl-eval`` (Apache-2.0), of which only the back ends are imported; its dependencies pin
old versions, so install it alone: ``pip install --no-deps bfcl-eval``. Calls are made by name with JSON
arguments, and only those that the task declares. Berkeley Function-Calling Leaderboard, Patil et al. 2025.
"""

from __future__ import annotations

import ast
import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pydantic import JsonValue, ValidationError

from surefoot.errors import MissingExtraError, RecordError
from surefoot.formats.tau_bench import GOLD_KEY
from surefoot.labelling.verifiers.state_replay import TURNS_KEY
from surefoot.messages import call_arguments, call_error
from surefoot.protocols import Observation
from surefoot.records import FrozenModel, Message, Problem, Tool, ToolCall, as_json

SOURCE: Final = "bfcl"
CATEGORIES: Final = ("multi_turn_base", "multi_turn_miss_param", "multi_turn_long_context")
"""Multi-turn categories in which the same tools are offered from the first turn to the last."""
_BACK_ENDS: Final = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
_MODULES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "GorillaFileSystem": "gorilla_file_system",
        "MathAPI": "math_api",
        "MessageAPI": "message_api",
        "TwitterAPI": "posting_api",
        "TicketAPI": "ticket_api",
        "TradingBot": "trading_bot",
        "TravelAPI": "travel_booking",
        "VehicleControlAPI": "vehicle_control",
    }
)
_TYPES: Final = {"dict": "object", "float": "number", "tuple": "array", "any": None}
"""Types of BFCL that JSON schema calls otherwise, or not at all."""
_DEEPEST: Final = 32
"""Levels of a back end's state."""


class BFCLTask(FrozenModel):
    """One task, in ``Problem.meta["bfcl"]``."""

    turns: tuple[tuple[str, ...], ...]
    """What the user says, turn by turn."""
    classes: tuple[str, ...]
    """Back ends that are involved."""
    config: dict[str, Any]
    """State in which each begins."""
    excluded: tuple[str, ...] = ()
    """Tools that are not offered."""
    long_context: bool = False
    """The back ends begin with much more data than the task needs."""


def read_bfcl(category: str = "multi_turn_base", *, folder: Path | str | None = None) -> Iterator[Problem]:
    """Tasks of one of ``CATEGORIES`` with their gold calls, from the package's own data or those in a folder.

    ``meta["gold_actions"]`` has the calls of all turns, ``meta["gold_turns"]`` how many each turn has. Raises
    ``RecordError`` for another category and files that are missing or none of BFCL's, ``MissingExtraError``
    without the package.
    """
    if category not in CATEGORIES:
        raise RecordError(
            f"BFCL's category {category!r} cannot be played; choose from {', '.join(CATEGORIES)}"
        )
    data = Path(folder) if folder else _package() / "data"
    try:
        rows = _rows(data / f"BFCL_v4_{category}.json")
        answers = {
            row["id"]: row["ground_truth"] for row in _rows(data / f"possible_answer/BFCL_v4_{category}.json")
        }
    except (OSError, ValueError, KeyError) as error:
        raise RecordError(f"{data}: no files of BFCL's category {category!r}: {error}") from error
    for row in rows:
        task = BFCLTask(
            turns=tuple(tuple(item["content"] for item in turn) for turn in row["question"]),
            classes=tuple(item for item in row["involved_classes"] if item in _MODULES),
            config=row.get("initial_config") or {},
            excluded=tuple(row.get("excluded_function") or ()),
            long_context=category.endswith("long_context"),
        )
        signatures = {tool["name"]: list(tool["parameters"]["properties"]) for tool in _declared(task)}
        turns = [[_gold(text, signatures, row["id"]) for text in turn] for turn in answers[row["id"]]]
        meta = {
            "bfcl": task.model_dump(mode="json"),
            GOLD_KEY: [call for turn in turns for call in turn],
            TURNS_KEY: [len(turn) for turn in turns],
        }
        text = "\n\n".join("\n".join(turn) for turn in task.turns)
        yield Problem(id=row["id"], text=text, source=SOURCE, meta=meta)


class BFCL:
    """A :class:`surefoot.protocols.RestorableEnvironment` of one task at a time.

    A text of the agent ends its turn: the user's next message is the answer to it, or the episode is over.
    ``state`` is what BFCL compares: the public attributes of the back ends. The back ends' own random numbers
    are seeded, so a run can be replayed.
    """

    name = SOURCE

    def __init__(self) -> None:
        """Raises ``MissingExtraError`` without the package."""
        _package()
        self.tools: tuple[Tool, ...] = ()
        self._gold: Sequence[Mapping[str, Any]] = ()
        self._task: BFCLTask | None = None
        self._now: dict[str, Any] = {}

    def reset(self, problem: Problem, seed: int = 0) -> tuple[Message, ...]:  # noqa: ARG002
        """The user's first message. ``seed`` changes nothing: the task decides all."""
        try:
            self._task = BFCLTask.model_validate(problem.meta.get("bfcl"))
        except ValidationError as error:
            raise RecordError(f"problem {problem.id} is not a BFCL task: meta['bfcl'] {error}") from error
        if strange := [item for item in self._task.classes if item not in _MODULES]:
            raise RecordError(f"problem {problem.id}: unknown BFCL back end {strange[0]!r}")
        self._gold = problem.meta.get(GOLD_KEY) or ()
        self.tools = tuple(_tool(item) for item in _declared(self._task))
        self._now = {"turn": 0, "back_ends": _opened(self._task)}
        return tuple(Message(role="user", content=text) for text in self._task.turns[0])

    def step(self, action: ToolCall | str) -> Observation:
        """A call's result, or the user's next message."""
        task = self._require()
        if self._now["turn"] >= len(task.turns):
            return Observation(text="Error: the conversation is over", error=True, done=True)
        if isinstance(action, str):
            self._now["turn"] += 1
            over = self._now["turn"] == len(task.turns)
            return Observation(text="" if over else "\n".join(task.turns[self._now["turn"]]), done=over)
        if wrong := call_error(self.tools, action):
            return Observation(text=f"Error: {wrong}", error=True)
        return _called(self._now["back_ends"], action)

    def outcome(self) -> bool | None:
        """Whether the state is that after the gold calls; ``None`` without them."""
        if not self._gold:
            return None
        back_ends = _opened(self._require())
        for item in self._gold:
            _called(back_ends, ToolCall(name=item["name"], arguments=as_json(item["arguments"])))
        return bool(_state(back_ends) == self.state())

    def state(self) -> JsonValue:
        """By back end, without what only says where one is, such as the current directory."""
        self._require()
        return _state(self._now["back_ends"])

    def snapshot(self) -> object:
        return copy.deepcopy((self._task, self._gold, self.tools, self._now))

    def restore(self, snapshot: object) -> None:
        self._task, self._gold, self.tools, self._now = copy.deepcopy(snapshot)  # type: ignore[misc]

    def _require(self) -> BFCLTask:
        if self._task is None:
            raise RecordError("no episode has begun: call reset first")
        return self._task


def _package() -> Path:
    spec = find_spec("bfcl_eval")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(
            "BFCL's back ends need the package bfcl_eval: pip install --no-deps bfcl-eval"
        )
    return Path(next(iter(spec.submodule_search_locations)))


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _declared(task: BFCLTask) -> list[dict[str, Any]]:
    """Descriptions of the tools that a task offers, in BFCL's own form."""
    docs = _package() / "data" / "multi_turn_func_doc"
    tools = [tool for name in task.classes for tool in _rows(docs / f"{_MODULES[name]}.json")]
    return [tool for tool in tools if tool["name"] not in task.excluded]


def _tool(described: Mapping[str, Any]) -> Tool:
    schema = _schema(described["parameters"]) | {"additionalProperties": False}
    return Tool(name=described["name"], description=described["description"], parameters=as_json(schema))


def _schema(schema: Any) -> Any:
    """BFCL's description of parameters as a JSON schema."""
    if isinstance(schema, list):
        return [_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    converted = {
        key: _schema(value) for key, value in schema.items() if key not in ("default", "optional", "format")
    }
    if isinstance(kind := schema.get("type"), str):
        converted["type"] = _TYPES.get(kind, kind)
        if converted["type"] is None:
            del converted["type"]
        elif converted["type"] == "integer":
            converted["type"] = "number"  # gold calls give numbers of either kind
    return converted


def _gold(text: str, signatures: Mapping[str, Sequence[str]], task: str) -> dict[str, Any]:
    """A gold call, which BFCL writes as Python: parsed, never evaluated."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise TypeError("not a call")
        names = signatures[call.func.id]
        arguments = {name: ast.literal_eval(value) for name, value in zip(names, call.args, strict=False)}
        arguments |= {
            keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg
        }
    except (SyntaxError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise RecordError(f"task {task}: the gold call {text!r} cannot be read: {error!r}") from error
    return {"name": call.func.id, "arguments": arguments}


def _opened(task: BFCLTask) -> dict[str, Any]:
    """The back ends of a task as they begin."""
    instances: dict[str, Any] = {}
    for name in task.classes:
        instances[name] = getattr(import_module(f"{_BACK_ENDS}.{_MODULES[name]}"), name)()
        if hasattr(instances[name], "_load_scenario"):
            config = copy.deepcopy(task.config.get(name, {}))
            instances[name]._load_scenario(config, long_context=task.long_context)
    return instances


def _called(back_ends: Mapping[str, Any], call: ToolCall) -> Observation:
    """A call of a declared tool. What the back end raises is the agent's mistake."""
    owner = next((item for item in back_ends.values() if hasattr(type(item), call.name)), None)
    method = getattr(type(owner), call.name, None)
    if owner is None or not callable(method) or call.name.startswith("_"):
        return Observation(text=f"Error: there is no tool {call.name}", error=True)
    try:
        result = method(owner, **(call_arguments(call) or {}))
    except Exception as problem:  # of code that is not ours, on arguments of a model
        return Observation(text=f"Error: {type(problem).__name__}: {problem}"[:2000], error=True)
    text = result if isinstance(result, str) else as_json(result)
    failed = isinstance(result, dict) and "error" in result
    return Observation(text=text, error=failed)


def _state(back_ends: Mapping[str, Any]) -> dict[str, JsonValue]:
    return {name: _plain(back_end, 0) for name, back_end in back_ends.items()}


def _plain(value: Any, depth: int) -> JsonValue:
    """Public attributes as JSON data; parents are left out, since their children say it."""
    if depth > _DEEPEST:
        return "…"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((_plain(item, depth + 1) for item in value), key=as_json)
    if not hasattr(value, "__dict__"):
        return str(value)
    return {
        name: _plain(var, depth + 1)
        for name, var in vars(value).items()
        if not name.startswith("_") and name != "parent"
    }
