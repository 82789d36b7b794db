"""Labels from rules: any :class:`surefoot.protocols.StepVerifier`, or several, as a labeller.

A verifier has a ``name`` and a ``verify`` that gives one verdict per step: -1, 0 or +1, or ``None`` where it
cannot check, always with a reason. It sees whole traces with their problems, so that it can keep a state (a
game, a running value), run a program against the tests in ``problem.meta``, or look at the tool calls of
``trace.messages``. It must be deterministic, bound its own time, and answer ``None`` rather than guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from surefoot.errors import LabelError
from surefoot.lab.world import check_steps
from surefoot.labelling.arithmetic import ArithmeticVerifier
from surefoot.labelling.game24 import Game24Verifier
from surefoot.protocols import ProblemTrace, StepVerifier, Verdict
from surefoot.records import Evidence, StepLabel


@dataclass(frozen=True, kw_only=True)
class VerifierLabeller:
    """A :class:`surefoot.protocols.Labeller` of kind ``correctness``.

    Of several verifiers the lowest verdict counts, and those that cannot check a step abstain: -1 if any
    says -1, else 0 if any says 0, else +1 if any says +1. If all abstain the value is ``None`` and the
    reason holds each verifier's own. ``source`` is the verifiers' names, joined by ``+``; the evidence names
    the verifier that decided, and its reason.
    """

    verifiers: tuple[StepVerifier, ...]

    def __post_init__(self) -> None:
        if not self.verifiers:
            raise LabelError("verifiers is empty; give at least one")

    async def label(self, items: Sequence[ProblemTrace]) -> list[list[StepLabel]]:
        """One list per item, one label per step.

        Raises ``LabelError`` if a verifier does not give one verdict per step, and what a verifier raises.
        """
        given = [_verified(verifier, items) for verifier in self.verifiers]
        return [
            [
                self._label(item.trace.id, step, [verdicts[number][step] for verdicts in given])
                for step in range(len(item.trace.steps))
            ]
            for number, item in enumerate(items)
        ]

    def _label(self, trace_id: str, step: int, verdicts: Sequence[Verdict]) -> StepLabel:
        names = [verifier.name for verifier in self.verifiers]
        deciding: tuple[float, str, Verdict] | None = None
        for name, verdict in zip(names, verdicts, strict=True):
            if verdict.value is not None and (deciding is None or verdict.value < deciding[0]):
                deciding = (float(verdict.value), name, verdict)
        source = "+".join(names)
        if deciding is None:
            several = len(names) > 1
            reasons = [
                f"{n}: {v.reason}" if several else v.reason for n, v in zip(names, verdicts, strict=True)
            ]
            return StepLabel(
                trace_id=trace_id,
                step=step,
                kind="correctness",
                value=None,
                reason="; ".join(reasons),
                source=source,
            )
        return StepLabel(
            trace_id=trace_id,
            step=step,
            kind="correctness",
            value=deciding[0],
            source=source,
            evidence=Evidence(rater=deciding[1], message=deciding[2].reason),
        )


def _verified(verifier: StepVerifier, items: Sequence[ProblemTrace]) -> list[list[Verdict]]:
    verdicts = verifier.verify(items)
    wanted = [len(item.trace.steps) for item in items]
    if [len(row) for row in verdicts] != wanted:
        raise LabelError(
            f"verifier {verifier.name!r} gave {sum(map(len, verdicts))} verdicts in {len(verdicts)} lists "
            f"for {sum(wanted)} steps of {len(items)} traces; 'verify' must return one verdict per step"
        )
    return verdicts


class LabVerifier:
    """The lab's exact checker. Problems that are not of its world raise ``RecordError``."""

    name = "lab-checker"

    def verify(self, items: Sequence[ProblemTrace]) -> list[list[Verdict]]:
        """One list per item, one verdict per step, each against the running value of the trace itself."""
        return [check_steps(item.problem, item.trace) for item in items]


VERIFIERS: Mapping[str, Callable[[], StepVerifier]] = MappingProxyType(
    {"arithmetic": ArithmeticVerifier, "game24": Game24Verifier, "lab": LabVerifier}
)
"""Verifiers by the name that the command line knows."""


def open_verifier(name: str) -> StepVerifier:
    """A verifier by name. Raises ``LabelError`` for one that is not in ``VERIFIERS``."""
    if name not in VERIFIERS:
        raise LabelError(f"no verifier is called {name!r}; choose from {', '.join(VERIFIERS)}")
    return VERIFIERS[name]()
