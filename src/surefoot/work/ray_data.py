"""Step scores and verdicts as stages of a Ray Data pipeline, to combine with ``ray.data.llm``.

Use each class with ``Dataset.map_batches``: Ray Data starts it once per actor, sends it blocks of rows with
back-pressure, and repeats the block of a dead actor. The model reads a problem once for all its rows in a
batch, so sort by problem, or generate the samples of a problem one after another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from surefoot.policies.devices import LOADING, Loading
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Trace
from surefoot.segment import segment_trace, segmenter

if TYPE_CHECKING:
    from numpy.typing import NDArray

Batch = dict[str, "NDArray[Any]"]
"""Columns by name, B rows each."""


class _StepStage:
    """Reads the problem and the response of a row, and cuts the response into steps."""

    def __init__(self, *, segment: str, problem: str, response: str) -> None:
        self._segmenter = segmenter(segment)
        self._columns = problem, response

    def _items(self, batch: Mapping[str, NDArray[Any]]) -> list[ProblemTrace]:
        """The rows as traces with steps. Raises ``KeyError`` naming a column that is missing."""
        texts, responses = (batch[name] for name in self._columns)
        items = []
        for text, response in zip(texts, responses, strict=True):
            problem = Problem(text=str(text))
            trace = Trace(problem_id=problem.id, text=str(response))
            items.append(ProblemTrace(problem=problem, trace=segment_trace(trace, self._segmenter)))
        return items


class ScoreSteps(_StepStage):
    """Adds the steps of each response and a reward model's scores of them.

    It reads the columns ``problem`` and ``response`` (or as you name them). New columns are ``steps`` (list
    of texts), ``step_scores`` (list of floats; NaN = not scored), ``unscored_reason`` (may be empty) and
    ``verifier_tokens``.

        kwargs = {"model": "prm", "loading": Loading(device="cuda")}
        dataset.map_batches(ScoreSteps, fn_constructor_kwargs=kwargs, batch_size=64, num_gpus=1)
    """

    def __init__(
        self,
        model: str,
        *,
        segment: str = "line",
        problem: str = "problem",
        response: str = "response",
        loading: Loading = LOADING,
    ) -> None:
        """Load ``model``, a name or address for :func:`surefoot.load_prm`."""
        from surefoot.models import load_prm

        super().__init__(segment=segment, problem=problem, response=response)
        self._model = load_prm(model, loading=loading)

    def __call__(self, batch: Batch) -> Batch:
        """Add the new columns to a batch of rows."""
        items = self._items(batch)
        scored = self._model.score_traces(items)
        return batch | {
            "steps": _steps(items),
            "step_scores": _lists(
                [[float("nan") if score is None else score for score in row.scores] for row in scored]
            ),
            "unscored_reason": np.array([row.unscored_reason or "" for row in scored]),
            "verifier_tokens": np.array([row.usage.verifier_tokens for row in scored]),
        }


class VerifySteps(_StepStage):
    """Adds the steps of each response and a verifier's labels, on CPUs while scorers use the GPUs.

    New columns are ``steps`` and ``step_labels`` (list of floats: 1 good, 0 neutral, -1 bad; NaN = no label).

        kwargs = {"verifier": "arithmetic"}
        dataset.map_batches(VerifySteps, fn_constructor_kwargs=kwargs, num_cpus=1)
    """

    def __init__(
        self, verifier: str, *, segment: str = "line", problem: str = "problem", response: str = "response"
    ) -> None:
        """Open ``verifier``: ``arithmetic``, ``lab``, or ``module:Class``."""
        from surefoot.labelling.verifier import VerifierLabeller, open_verifier

        super().__init__(segment=segment, problem=problem, response=response)
        opened = open_verifier(verifier)
        self._open = ExitStack()  # as long as the actor lives
        if isinstance(opened, AbstractContextManager):
            self._open.enter_context(opened)
        self._labeller = VerifierLabeller(verifiers=(opened,))

    def __call__(self, batch: Batch) -> Batch:
        """Add the new columns to a batch of rows."""
        items = self._items(batch)
        labelled = asyncio.run(self._labeller.label(items))
        return batch | {
            "steps": _steps(items),
            "step_labels": _lists(
                [
                    [float("nan") if label.value is None else label.value for label in labels]
                    for labels in labelled
                ]
            ),
        }


def _steps(items: Sequence[ProblemTrace]) -> NDArray[Any]:
    return _lists([[item.trace.step_text(n) for n in range(len(item.trace.steps))] for item in items])


def _lists(rows: list[Any]) -> NDArray[Any]:
    """A column of lists of different lengths."""
    column = np.empty(len(rows), dtype=object)
    for number, row in enumerate(rows):
        column[number] = list(row)
    return column
