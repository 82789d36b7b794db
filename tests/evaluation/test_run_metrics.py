from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest

from surefoot.evaluation.benchmarks.runs import ALARMS, AgentRun, alarm_counts
from surefoot.evaluation.measures import Measured
from surefoot.stats.bootstrap import Bootstrap


class Watched(NamedTuple):
    run: AgentRun
    alarms: list[bool]
    scores: list[float | None]


def measured(
    *runs: Watched, problems: Sequence[str] = "abcdefgh", draws: int = 200, seed: int = 0
) -> Measured:
    counts = [alarm_counts(one.run, np.array(one.alarms), np.array(one.scores, dtype=float)) for one in runs]
    return ALARMS.row(Bootstrap(draws=draws, seed=seed), counts, list(problems[: len(runs)]))


def run(
    labels: str,
    alarms: str,
    scores: list[float | None] | None = None,
    *,
    failed: bool | None = True,
    loopholes: Sequence[bool] = (),
) -> Watched:
    """Labels from ``-0+?``, alarms from ``.!``."""
    signs = {"-": -1, "0": 0, "+": 1, "?": None}
    made = AgentRun(
        trace_id="t",
        problem_id="p",
        subset="s",
        signs=tuple(signs[sign] for sign in labels),
        outcome=None if failed is None else not failed,
        loopholes=tuple(loopholes),
    )
    return Watched(made, [mark == "!" for mark in alarms], scores or [None] * len(labels))


def test_false_alarms_are_those_at_steps_labelled_good_or_neutral():
    found = measured(run("+0-?", "!!!!"), run("+++", "..."))
    assert found.false_alarms.value == 1.0
    assert found.runs == 2


def test_lead_time_counts_from_the_first_true_alarm_to_the_end():
    """An alarm before the error is no warning; runs that did not fail, or have no error, are not counted."""
    early = run("+---+", "!.!..")  # at step 2 of 0..4
    last = run("++-", "..!")
    missed = run("+-", "..")
    not_failed, unknown = run("-+", "!.", failed=False), run("-+", "!.", failed=None)
    no_error = run("++", "!!")
    found = measured(early, last, missed, not_failed, unknown, no_error)
    assert found.warnable == 3
    assert found.warned.value == pytest.approx(2 / 3)
    assert found.lead_time.value == 1.0  # (2 + 0) / 2


def test_recovery_credit():
    """First +1 after a -1: higher 1, equal a half, lower or not scored 0; compared with the last -1."""
    higher = run("-0-+", "....", [0.9, 0.0, 0.2, 0.5])
    equal = run("-+", "..", [0.5, 0.5])
    lower = run("-+", "..", [0.6, 0.5])
    unscored = run("-+", "..", [None, 0.5])
    none = run("-0", "..", [0.1, 0.9])
    twice = run("-+-+", "....", [0.1, 0.2, 0.1, 0.2])
    found = measured(higher, equal, lower, unscored, none, twice)
    assert found.recoveries == 6
    assert found.recovery_credit.value == pytest.approx((1 + 0.5 + 0 + 0 + 2) / 6)


def test_loopholes_found():
    found = measured(run("+-", "!.", loopholes=[True, True]), run("+", "!"))
    assert (found.loopholes, found.loopholes_found.value) == (2, 0.5)


def test_what_does_not_occur_is_undefined():
    found = measured(run("+", "."))
    for rate in (found.warned, found.lead_time, found.recovery_credit, found.loopholes_found):
        assert math.isnan(rate.value)


def test_intervals_resample_problems():
    """Two problems, of which one has all the alarms: the draws hold none, one or both of it."""
    runs = run("++", "!!"), run("+", ".")
    found = measured(*runs, problems=["p", "q"], draws=500, seed=1).false_alarms
    assert (found.low, found.value, found.high) == (0.0, 1.0, 2.0)
    one = measured(*runs, problems=["p", "p"], draws=50, seed=1).false_alarms
    assert one.low == one.high == 1.0
