"""Labels from rules: any :class:`surefoot.protocols.StepVerifier`, or several, as a labeller.

A verifier has a ``name`` and a method ``verify`` that returns one verdict per step: -1, 0 or +1, or ``None``
if it cannot check the step, always with a reason. It sees whole traces with their problems, so it can track
a state (a game, a running value), run a program against the tests in ``problem.meta``, or check the tool
calls of ``trace.messages``. It must be deterministic, bound its time, and return ``None`` rather than guess.
If it raises on a trace, the steps of that trace are unchecked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from surefoot.errors import LabelError
from surefoot.labelling.verifiers.programs import SandboxedVerifier
from surefoot.policies.loading import class_named
from surefoot.protocols import ProblemTrace, StepVerifier, TraceChannel, Verdict, verify_each
from surefoot.records import Evidence, StepLabel
from surefoot.scores import channels_read


@dataclass(frozen=True, kw_only=True)
class VerifierLabeller:
    """A :class:`surefoot.protocols.Labeller` of kind ``correctness``.

    The lowest verdict of several verifiers counts; ``None`` abstains. If all abstain, the value is ``None``
    and the reason lists the reasons of all. ``source`` is the verifiers' names, joined by ``+``; the evidence
    has the deciding verifier and its reason.
    """

    @property
    def reads(self) -> frozenset[TraceChannel]:
        return frozenset[TraceChannel]().union(*map(channels_read, self.verifiers))

    verifiers: tuple[StepVerifier, ...]
    overlaps: ClassVar[bool] = True
    """Verifiers may be called from several threads at once."""

    def __post_init__(self) -> None:
        if not self.verifiers:
            raise LabelError("verifiers is empty; give at least one")

    async def label(self, items: Sequence[ProblemTrace]) -> list[list[StepLabel]]:
        """One list per item, one label per step. A verifier that fails on an item abstains there."""
        verdicts = [verify_each(verifier, items) for verifier in self.verifiers]
        return [
            [
                self._label(item.trace.id, step, [rows[number][step] for rows in verdicts])
                for step in range(len(item.trace.steps))
            ]
            for number, item in enumerate(items)
        ]

    def _label(self, trace_id: str, step: int, verdicts: Sequence[Verdict]) -> StepLabel:
        names = [verifier.name for verifier in self.verifiers]
        judged = [pair for pair in zip(names, verdicts, strict=True) if pair[1].value is not None]
        # the first of the lowest
        rater, lowest = min(judged, key=lambda pair: pair[1].value or 0, default=(None, None))
        value, reason, message = None, None, None
        if lowest is None:
            reasons = [verdict.reason for verdict in verdicts]
            several = (f"{name}: {text}" for name, text in zip(names, reasons, strict=True))
            reason = "; ".join(several) if len(names) > 1 else reasons[0]
        else:
            value, message = lowest.value, lowest.reason
        return StepLabel(
            trace_id=trace_id,
            step=step,
            kind="correctness",
            value=value,
            reason=reason,
            source="+".join(names),
            evidence=Evidence(
                rater=rater,
                message=message,
                execution=next((verdict.execution for verdict in verdicts if verdict.execution), None),
                clause=next((verdict.clause for verdict in verdicts if verdict.clause), None),
            ),
        )


VERIFIERS: Mapping[str, str] = MappingProxyType(
    {
        "compile": "surefoot.labelling.verifiers.programs:CompileVerifier",
        "equations": "surefoot.labelling.verifiers.equations.verifier:EquationVerifier",
        "gold-calls": "surefoot.labelling.verifiers.gold_calls:GoldCallVerifier",
        "lab": "surefoot.lab.truth:LabVerifier",
        "python-tests": "surefoot.labelling.verifiers.programs:PythonTestsVerifier",
        "lean": "surefoot.labelling.verifiers.proofs:LeanVerifier",
        "repair": "surefoot.labelling.verifiers.repairs:RepairVerifier",
        "rocq": "surefoot.labelling.verifiers.proofs:RocqVerifier",
        "state-replay": "surefoot.labelling.verifiers.state_replay:StateReplayVerifier",
        "tool-calls": "surefoot.labelling.verifiers.tool_calls:ToolCallVerifier",
        "visible-tests": "surefoot.labelling.verifiers.programs:VisibleTestsVerifier",
    }
)
"""Verifiers by name: the module and class of each."""


def open_verifier(name: str, *, sandbox: str = "bubblewrap") -> StepVerifier:
    """A verifier by its name in ``VERIFIERS``, or your class as ``module:Class``.

    A :class:`surefoot.labelling.verifiers.programs.SandboxedVerifier` runs programs in ``sandbox``; other
    classes are called without arguments. Raises ``LabelError`` for an unknown name, a module or class that
    cannot be found, and a class that is not a :class:`surefoot.protocols.StepVerifier`.
    """
    kind = class_named(name, VERIFIERS, "verifier", LabelError)
    try:
        sandboxed = isinstance(kind, type) and issubclass(kind, SandboxedVerifier)
        verifier = kind(sandbox=sandbox) if sandboxed else kind()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise LabelError(f"verifier {name!r} cannot be opened: {error}") from error
    if not isinstance(verifier, StepVerifier):
        raise LabelError(f"{name!r} is not a verifier: it needs a 'name' and a method 'verify'")
    return verifier
