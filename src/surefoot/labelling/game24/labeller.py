"""The game's rules as a verifier and as a labeller."""

from __future__ import annotations

from collections.abc import Sequence

from surefoot.errors import LabelError
from surefoot.labelling.game24.game import Judged, play
from surefoot.protocols import ProblemTrace, Verdict
from surefoot.records import Evidence, LabelKind, StepLabel


class Game24Verifier:
    """A :class:`surefoot.protocols.StepVerifier`: is each move legal, is the answer right.

    A move is legal if it takes numbers that are left, each once, its result is exact, and its list of
    numbers left (if it has one) is right. A decimal with two or more digits after its point may stand for a
    fraction less than one unit of the last digit away (``10 / 6 = 1.666``). A move is judged against the
    numbers that the trace itself has left, so an error counts where it is made. An answer is right if it uses
    each of the problem's numbers once and is exactly 24; "no solution" is right if there is none.
    """

    name = "game24"

    def verify(self, items: Sequence[ProblemTrace]) -> list[list[Verdict]]:
        """One list per item, one verdict per step; ``None`` for a line that is neither move nor answer."""
        return [[judged.verdict for judged in play(item)] for item in items]


class Game24Labeller:
    """A :class:`surefoot.protocols.Labeller` with up to two labels a step.

    ``correctness`` is the verdict of :class:`Game24Verifier`. ``value`` is 1 if 24 can still be made from
    the numbers left after the step, else 0: the value under perfect play. After an illegal step it stays 0 up
    to the answer, which is judged by itself.

    Raises ``LabelError`` for other kinds, or none.
    """

    def __init__(self, kinds: Sequence[LabelKind] = ("correctness", "value")) -> None:
        if not kinds or set(kinds) - {"correctness", "value"}:
            raise LabelError(f"kinds is {tuple(kinds)}; choose from correctness, value")
        self.kinds = tuple(kinds)

    async def label(self, items: Sequence[ProblemTrace]) -> list[list[StepLabel]]:
        """One list per item; for each step one label of each kind."""
        return [
            [
                self._label(item.trace.id, step, kind, judged)
                for step, judged in enumerate(play(item))
                for kind in self.kinds
            ]
            for item in items
        ]

    @staticmethod
    def _label(trace_id: str, step: int, kind: LabelKind, judged: Judged) -> StepLabel:
        found = judged.verdict.value if kind == "correctness" else judged.value
        return StepLabel(
            trace_id=trace_id,
            step=step,
            kind=kind,
            value=found,
            reason=judged.verdict.reason if found is None else None,
            source=Game24Verifier.name,
            evidence=Evidence(message=judged.verdict.reason),
        )
