"""The steps of many traces in flat arrays of a few bytes per step, without Python objects."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from surefoot.io.tables import Facts, facts_in
from surefoot.records import Trace
from surefoot.stats.bootstrap import FloatArray

T = TypeVar("T")

BoolArray = NDArray[np.bool_]
CodeArray = NDArray[np.int8]

GOOD, BAD, UNREAD, UNLABELLED = 1, 0, -1, -2
"""Codes of a step: good or bad by the label that counts; only labels that say neither; no label."""

_MEANING = {GOOD: True, BAD: False, UNREAD: None, UNLABELLED: None}


class StepLayout:
    """Positions of each trace's steps in flat arrays [steps], in the order of the traces.

    Memory grows by about 150 bytes per trace and 75 per problem, mostly for their ids.
    """

    def __init__(self, facts: Iterable[Facts], *, with_steps: bool = False) -> None:
        self.numbers: dict[str, int] = {}
        """Id → number of the trace, of the first where several share an id."""
        problems: dict[str, int] = {}
        lengths, problem = array("q"), array("i")
        self.repeated: list[tuple[int, int]] = []
        """Traces with the id of an earlier one: the number of the first, and of this trace."""
        self.left_out = 0
        """Traces without steps, if only those ``with_steps`` are asked for."""
        for trace in facts:
            if with_steps and not trace.size:
                self.left_out += 1
                continue
            number = len(lengths)
            first = self.numbers.setdefault(trace.key, number)
            if first != number:
                self.repeated.append((first, number))
            lengths.append(trace.size)
            problem.append(problems.setdefault(trace.parent or "", len(problems)))
        self._starts = array("q", accumulate(lengths, initial=0))
        self.problem_ids = list(problems)
        """[problems], in the order of their first trace."""
        self.problem: NDArray[np.int32] = np.array(problem, dtype=np.int32)
        """[traces]: index of the trace's problem."""
        self.lengths: NDArray[np.int64] = np.array(lengths, dtype=np.int64)
        """[traces]: steps."""

    @classmethod
    def of(cls, traces: Iterable[Trace]) -> StepLayout:
        """The layout of all steps of ``traces``; the text of traces on disk is not read."""
        return cls(facts_in(traces))

    @property
    def traces(self) -> int:
        return len(self.lengths)

    @property
    def steps(self) -> int:
        return self._starts[-1]

    @property
    def starts(self) -> NDArray[np.int64]:
        """[traces + 1]: the position of each trace's first step, and the end."""
        return np.frombuffer(self._starts, dtype=np.int64)

    def span(self, number: int) -> tuple[int, int]:
        """The positions of a trace's first step and of the step after its last."""
        return self._starts[number], self._starts[number + 1]

    def positions(
        self, trace_ids: Iterable[str], steps: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[n] each: the position of step i of a trace, and the trace's number; -1 if there is none."""
        numbers = np.array([self.numbers.get(name, -1) for name in trace_ids], dtype=np.int64)
        positions = self.starts[numbers] + steps
        inside = (numbers >= 0) & (positions < self.starts[numbers + 1])
        return np.where(inside, positions, -1), numbers

    def of_step(self, values: NDArray[Any]) -> NDArray[Any]:
        """[traces] → [steps]: repeat each trace's value for its steps."""
        return np.repeat(values, self.lengths)

    def step_numbers(self) -> NDArray[np.int32]:
        """[steps]: the index of each step in its trace."""
        positions = np.arange(self.steps, dtype=np.int64)
        positions -= self.of_step(self.starts[:-1])
        return positions.astype(np.int32)

    def parts(self, count: int) -> NDArray[np.int32]:
        """[steps]: the part of its trace in which a step lies; step i of T is in part floor(count i / T)."""
        positions = count * self.step_numbers().astype(np.int64)
        positions //= self.of_step(self.lengths)
        return positions.astype(np.int32)

    def first_errors(self, codes: CodeArray) -> FloatArray:
        """[traces]: the index of the first bad step, -1 for none, NaN if an unknown step hides it."""
        firsts = np.full(self.traces, -1.0)
        positions = np.flatnonzero(codes != GOOD)
        trace = np.searchsorted(self.starts, positions, "right") - 1
        positions = positions[np.r_[True, trace[1:] != trace[:-1]][: len(trace)]]
        trace = np.searchsorted(self.starts, positions, "right") - 1
        firsts[trace] = np.where(codes[positions] == BAD, positions - self.starts[trace], math.nan)
        return firsts


class StepRows(Generic[T]):
    """One list per trace with an entry for each step, created from a flat array on access.

    Of codes (int8) ``True`` is good and ``False`` bad, of scores each number is itself; ``None`` is unknown.
    """

    def __init__(self, flat: NDArray[Any], layout: StepLayout) -> None:
        self.flat = flat
        """[steps]"""
        self._layout = layout

    def __len__(self) -> int:
        return self._layout.traces

    def __getitem__(self, number: int) -> list[T | None]:
        part = self.flat[slice(*self._layout.span(range(len(self))[number]))]
        return [_MEANING[code] for code in part.tolist()] if part.dtype == np.int8 else optional(part)  # type: ignore[misc, return-value]

    def array(self, number: int) -> FloatArray:
        """The entries of a trace as numbers; NaN is unknown, good is 1 and bad is 0."""
        part = self.flat[slice(*self._layout.span(number))]
        return as_numbers(part) if part.dtype == np.int8 else part

    def __iter__(self) -> Iterator[list[T | None]]:
        return (self[number] for number in range(len(self)))


def optional(values: FloatArray) -> list[float | None]:
    """``values`` as a list, with ``None`` for NaN."""
    return [None if math.isnan(value) else value for value in values.tolist()]


def as_numbers(codes: CodeArray, good: float = 1.0, bad: float = 0.0) -> FloatArray:
    """Codes [steps] as numbers; NaN is unknown."""
    return np.array([math.nan, math.nan, bad, good])[codes - UNLABELLED]
