"""Compare the calls of an agent run with the gold calls of its task, by name and argument.

Unlike state replay this works without an environment, also on the published runs of tau-bench and tau2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from surefoot.labelling.verifiers.state_replay import gold_calls, step_verdicts
from surefoot.labelling.verifiers.tool_policy import CallResult, call_results, json_text
from surefoot.messages import call_arguments
from surefoot.protocols import ProblemTrace, Verdict
from surefoot.records import ToolCall

_READS: Final = re.compile(
    r"(?:calculate|check(?!_?(?:in|out))|compute|count|describe|fetch|find|get|glob|grep|inspect|list|look|lookup|ls"
    r"|poll|preview|query|read|retrieve|search|show|stat|status|think|validate|verify|view|wait)(?![a-z])",
    re.IGNORECASE,
)
_PROSE_WORDS = 6
"""Words from which on a text is prose."""
_QUOTED = 80
"""Characters of an argument's value in a reason."""


def only_reads(name: str) -> bool:
    """Whether the name of a tool says that it changes nothing: ``get_user``, ``search``, ``calculate``."""
    return _READS.match(re.split(r"__|\.", name)[-1]) is not None


@dataclass(frozen=True, kw_only=True)
class GoldComparison:
    """The calls of a run next to the gold calls."""

    verdicts: dict[tuple[int, int | None], Verdict]
    """By message and call."""
    missing: tuple[ToolCall, ...]
    """Gold calls that change something and that the run does not make, with whatever arguments."""


def compare_gold_calls(item: ProblemTrace) -> GoldComparison | None:
    """What the gold calls say of each call; ``None`` if they are not known. Raises ``LabelError``.

    A successful run blames no call and misses none: it reached the goal in another way.
    """
    gold = gold_calls(item)
    if gold is None:
        return None
    reached = item.trace.outcome is True
    results = list(call_results(item.trace.messages))
    open_gold = list(gold)
    needed: dict[tuple[int, int], Verdict] = {}
    for result in results:
        match = next((call for call in open_gold if _same_call(call, result.call)), None)
        if match is not None and result.succeeded:
            open_gold.remove(match)
            other_order = item.trace.outcome is False and _differences(match, result.call, any_order=False)
            needed[result.message, result.number] = (
                Verdict(value=None, reason="a gold call with a list in another order, in a run that failed")
                if other_order
                else Verdict(value=1, reason="a gold call")
            )
    verdicts: dict[tuple[int, int | None], Verdict] = {}
    for result in results:
        at = (result.message, result.number)
        if at in needed:
            verdicts[at] = needed[at]
        else:
            verdict = _of_other_call(result, [call for call in gold if call.name == result.call.name])
            if verdict.value == -1 and reached:
                verdict = Verdict(value=None, reason=f"the run reached the goal, though {verdict.reason}")
            verdicts[at] = verdict
    wrong = {result.call.name for result in results if verdicts[result.message, result.number].value == -1}
    missing = [call for call in open_gold if _changes_something(call) and call.name not in wrong]
    return GoldComparison(verdicts=verdicts, missing=() if reached else tuple(missing))


def _changes_something(call: ToolCall) -> bool:
    """As far as a call shows: it is not a lookup, and does more than to pass prose on to a person."""
    values = (call_arguments(call) or {}).values()
    return not only_reads(call.name) and not (values and all(map(_is_prose, values)))


def _of_other_call(result: CallResult, gold: Sequence[ToolCall]) -> Verdict:
    """The verdict on a call that is not a gold call; ``gold`` are the gold calls of its tool."""
    if not result.succeeded:
        return Verdict(value=None, reason="the call failed or was not answered")
    if only_reads(result.call.name) or not gold:
        return Verdict(value=None, reason="not a gold call")
    if any(_same_call(call, result.call) for call in gold):
        return Verdict(value=-1, reason=f"gold call {result.call.name} made more often than in the gold run")
    differences = min((_differences(call, result.call) for call in gold), key=len)
    return Verdict(value=-1, reason="; ".join(differences[:3]))


def _differences(gold: ToolCall, call: ToolCall, *, any_order: bool = True) -> list[str]:
    expected, actual = call_arguments(gold), call_arguments(call)
    if expected is None or actual is None:
        return [f"the arguments{' of the gold call' if expected is None else ''} cannot be read"]
    extra = [
        f"{name} is {_quoted(actual[name])}, absent in the gold call" for name in actual.keys() - expected
    ]
    if any_order:
        expected, actual = _in_order(expected), _in_order(actual)
    return [*_unlike("", expected, actual), *sorted(extra)]


def _in_order(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with lists of ids in one order: a call means the same in any. Lists of one length may
    belong together (each item and what replaces it), so they are ordered as one."""
    by_length: dict[int, list[str]] = {}
    for name, value in sorted(arguments.items()):
        if isinstance(value, list) and all(
            isinstance(item, str | int) and not _is_prose(item) for item in value
        ):
            by_length.setdefault(len(value), []).append(name)
    ordered = dict(arguments)
    for names in by_length.values():
        rows = sorted(zip(*(arguments[name] for name in names), strict=True), key=json_text)
        ordered |= {name: [row[column] for row in rows] for column, name in enumerate(names)}
    return ordered


def _unlike(path: str, expected: Any, actual: Any) -> Iterator[str]:
    """The parts of ``actual`` that are not as expected; objects in it may have more fields.

    Two texts of prose count as equal: two summaries of one request never have the same words.
    """
    if isinstance(expected, dict) and isinstance(actual, dict):
        for name, value in expected.items():
            if name in actual:
                yield from _unlike(f"{path}.{name}" if path else name, value, actual[name])
            else:
                yield f"{path}.{name} is absent".removeprefix(".")
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for number, values in enumerate(zip(expected, actual, strict=True)):
            yield from _unlike(f"{path}[{number}]", *values)
    elif not (_is_prose(expected) and _is_prose(actual)) and json_text(expected) != json_text(actual):
        yield f"{path} is {_quoted(actual)}, in the gold call {_quoted(expected)}"


def _is_prose(value: object) -> bool:
    return isinstance(value, str) and len(value.split()) >= _PROSE_WORDS


def _quoted(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…"


def _same_call(gold: ToolCall, call: ToolCall) -> bool:
    return gold.name == call.name and not _differences(gold, call)


@dataclass(frozen=True, kw_only=True)
class GoldCallVerifier:
    """A :class:`surefoot.protocols.StepVerifier` for runs with ``meta["gold_actions"]`` (or their problems).

    A successful call is right (+1) if it is a gold call, and wrong (-1) if it changes something, the gold run
    calls its tool, and no gold call has these arguments; in a run that reached the goal none is wrong.
    Whether a call changes something is read off the tool's name (:func:`only_reads`). All else is unknown,
    among it calls that fail and calls of other tools.
    A step of several calls has the lowest verdict.
    """

    reads = frozenset({"calls", "observations"})
    name: str = "gold-calls"

    def verify(self, items: Sequence[ProblemTrace]) -> list[list[Verdict]]:
        """One list per item, one verdict per step. Raises ``LabelError`` for invalid gold calls."""
        return [self._verify(item) for item in items]

    def _verify(self, item: ProblemTrace) -> list[Verdict]:
        comparison = compare_gold_calls(item)
        if comparison is None:
            return [Verdict(value=None, reason="no gold calls are known")] * len(item.trace.steps)
        return step_verdicts(item.trace, comparison.verdicts, Verdict(value=None, reason="no call"))
