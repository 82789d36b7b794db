"""Traces along the paths of a tree, whose prefixes they share."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import takewhile
from typing import Any, NamedTuple

from surefoot.formats._rows import SEPARATOR_KEY
from surefoot.protocols import LabelledTrace
from surefoot.records import Evidence, Problem, Step, StepLabel, Trace, as_json, id_of_json, trusted_copy


class Rated(NamedTuple):
    """One rated completion: where it stands in its trace, and what has no place in a label."""

    step: int
    rating: float | None
    """-1, 0, 1, or ``None`` for not rated: the row that it comes from is checked."""
    row: dict[str, Any]
    """Fields of the source row, kept in ``trace.meta["rows"]``, one object per label."""


class PathTraces:
    """Makes the labelled traces of one tree of PRM800K.

    The spans and the text of a prefix, and what all traces and all labels have in common, are made once.
    What differs was checked in the rows, so a trace costs no validation, and most of its spans are the
    objects that the traces before it have.
    """

    def __init__(
        self, problem: Problem, *, separator: str, created: datetime, rater: str | None = None
    ) -> None:
        """``separator`` is put between steps and belongs to the step before it."""
        self._problem, self._separator = problem, separator
        self._trace = Trace(problem_id=problem.id, text="")
        self._label = StepLabel(
            trace_id="",
            step=0,
            kind="correctness",
            value=0.0,
            source="human",
            evidence=Evidence(rater=rater),
            created=created,
        )
        self._prefix: list[str] = []
        self._steps: list[Step] = []
        self._text = ""
        self._json, self._json_ends = b"", [0]
        """The prefix as JSON, with a comma after each part, and where each number of parts ends."""

    def labelled(
        self,
        prefix: list[str],
        last: str,
        rated: Sequence[Rated],
        *,
        branch: str,
        identity: str,
        answer: str | None,
        finish_reason: str | None,
        meta: dict[str, Any],
    ) -> LabelledTrace:
        """The path of ``prefix`` and ``last``, with the labels of ``rated``.

        ``identity`` tells the path from equal ones: items of a JSON array, as ``as_json`` writes them, which
        are part of the id. ``meta`` is JSON, without NaN, and becomes the trace's own.
        """
        self._follow(prefix)
        before = len(prefix)
        start = self._steps[before - 1].end if before else 0
        # content_id("prm800k", branch, …, [*prefix, last]), without encoding the prefix again
        head, tail = f'["prm800k","{branch}",{identity},[', f"{as_json(last)}]]"
        trace_id = id_of_json(head.encode() + self._json[: self._json_ends[before]] + tail.encode())
        meta["branch"], meta["rows"] = branch, [entry.row for entry in rated]
        meta[SEPARATOR_KEY] = self._separator
        trace = trusted_copy(
            self._trace,
            {
                "id": trace_id,
                "text": self._text[:start] + last,
                "steps": (*self._steps[:before], _span(start, start + len(last))),
                "answer": answer,
                "finish_reason": finish_reason,
                "meta": meta,
            },
        )
        labels = [
            trusted_copy(
                self._label,
                {
                    "trace_id": trace_id,
                    "step": entry.step,
                    "value": entry.rating,
                    "reason": _reason(entry) if entry.rating is None else None,
                },
            )
            for entry in rated
        ]
        return LabelledTrace(problem=self._problem, trace=trace, labels=tuple(labels))

    def _follow(self, prefix: list[str]) -> None:
        """Let what is known begin with ``prefix``."""
        if self._prefix[: len(prefix)] == prefix:
            return
        pairs = zip(prefix, self._prefix, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        del self._prefix[shared:], self._steps[shared:], self._json_ends[shared + 1 :]
        end = self._steps[-1].end if shared else 0
        new = [part + self._separator for part in prefix[shared:]]
        self._prefix += prefix[shared:]
        self._text = "".join([self._text[:end], *new])
        for whole in new:
            self._steps.append(_span(end, end + len(whole)))
            end += len(whole)
        encoded = [f"{as_json(part)},".encode() for part in prefix[shared:]]
        self._json = b"".join([self._json[: self._json_ends[-1]], *encoded])
        for one in encoded:
            self._json_ends.append(self._json_ends[-1] + len(one))


_NO_SPAN = Step(start=0, end=0)


def _span(start: int, end: int) -> Step:
    return trusted_copy(_NO_SPAN, {"start": start, "end": end})


def _reason(entry: Rated) -> str:
    return "written by the labeller, not rated" if entry.row["is_human_response"] else "not rated"
