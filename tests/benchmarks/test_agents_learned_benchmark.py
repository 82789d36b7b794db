"""The benchmark of scorers of agents' steps: areas from pairs inside a task, and steps without a score."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.agents import learned
from surefoot.stats import roc_auc


def test_pairs_inside_a_task_are_counted_alone() -> None:
    scores = np.array([0.1, 0.2, 0.8, 0.9, 0.5])
    wrong = [0.0, 1.0, 0.0, 1.0, 0.0]  # the third task has no wrong step, and so no pair
    found = learned.within_tasks(scores, wrong, [0, 0, 1, 1, 2], draws=50)
    assert found.value == 1
    assert roc_auc(scores, wrong).value == pytest.approx(4 / 6)
    three = learned.within_tasks(np.array([0.3, 0.2, 0.1, 0.9, 0.1]), [0, 1, 0, 1, 0], [0, 0, 0, 1, 1], 50)
    assert three.value == pytest.approx(2 / 3)
