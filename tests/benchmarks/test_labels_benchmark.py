"""Costs of labellers of which some label or spend nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.labels.run import Outcome, ratio, table


def outcome(read: list[float], labels: list[float]) -> Outcome:
    """Of a labeller that writes nothing."""
    nothing = np.zeros(len(read))
    counts = np.array(labels)
    return Outcome(
        read=np.array(read), written=nothing, labels=counts, distinct=counts, found=nothing, seconds=1.0
    )


def test_ratios_of_few_problems_are_defined_or_said_not_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    rival, ours = outcome([8.0, 8.0], [1.0, 1.0]), outcome([0.0, 2.0], [1.0, 1.0])
    assert ratio([rival], [rival], "tokens", "labels").value == 1.0
    found = ratio([rival], [ours], "tokens", "labels")  # a quarter of all draws spends nothing
    assert (found.value, found.low, found.high) == (8.0, 4.0, 8.0)
    assert 200 < found.undefined < 300
    assert ratio([rival], [outcome([2.0, 2.0], [0.0, 0.0])], "tokens", "labels").value == 0.0
    nothing = outcome([2.0, 2.0], [0.0, 0.0])
    assert math.isnan(ratio([nothing], [rival], "tokens", "labels").value)
    table([{"all": rival, "none": nothing}])
    assert "none" in capsys.readouterr().out
