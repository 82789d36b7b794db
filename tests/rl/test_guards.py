"""Every alarm in closed form, patience, and the rule that ends a run."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from rl_logs import evaluation_row, healthy_log

from surefoot.rl.log import Guards, stop_reason, watch

GUARDS = Guards(evaluation_patience=2)


def evaluations(*points, half=0.05):
    """One a ten updates, each (accuracy, proxy)."""
    return [evaluation_row(10 * n, accuracy, proxy, half=half) for n, (accuracy, proxy) in enumerate(points)]


def only(alarms):
    [alarm] = alarms
    return alarm


def test_no_alarm_on_a_healthy_history():
    log = healthy_log()
    assert watch(log.evaluations, Guards(evaluation_patience=1)) == []
    assert watch([], Guards()) == []


def test_patience_wants_evaluations_in_a_row_and_a_new_episode_is_a_new_alarm():
    high, low = (0.6, None), (0.3, None)
    assert watch(evaluations(high, low, high, low, high, low), GUARDS) == []
    found = watch(evaluations(high, low, low, low, high, low, low), GUARDS)
    assert [(alarm.update, alarm.raised) for alarm in found] == [(10, 20), (50, 60)]


def test_proxy_and_gold_part():
    """Best at update 10; chance explains sqrt(0.05² + 0.05²) = 0.0707 of a fall."""
    found = watch(evaluations((0.4, 0.5), (0.6, 0.7), (0.55, 0.8), (0.5, 0.85), (0.3, 0.95)), GUARDS)
    alarm = only(found)
    assert (alarm.name, alarm.update, alarm.raised) == ("overoptimization", 30, 40)
    assert alarm.measured == pytest.approx(0.3)
    assert alarm.threshold == pytest.approx(0.05 * 2**0.5)
    assert "30.0%, 60.0% at update 10" in alarm.message
    assert "Go back to update 10" in alarm.message


def test_a_fall_within_chance_is_none():
    points = (0.6, 0.7), (0.55, 0.8), (0.54, 0.85), (0.54, 0.9)
    assert watch(evaluations(*points), GUARDS) == []
    assert only(watch(evaluations(*points, half=0.01), GUARDS)).name == "overoptimization"
    assert watch(evaluations((0.6, 0.7), (0.59, 0.8), (0.59, 0.9), half=0.0), GUARDS) == []  # below 'fall'


def test_gold_falls_with_the_proxy_or_without_one():
    falls = (0.6, 0.7), (0.3, 0.5), (0.2, 0.4)
    assert only(watch(evaluations(*falls), GUARDS)).name == "gold"
    alarm = only(watch(evaluations((0.6, None), (0.3, None), (0.2, None)), GUARDS))
    assert alarm.name == "gold"
    assert "give a scorer" in alarm.message


def test_a_recovery_ends_the_alarm():
    points = (0.6, 0.7), (0.3, 0.8), (0.3, 0.8), (0.62, 0.8), (0.3, 0.9), (0.3, 0.9)
    found = watch(evaluations(*points), GUARDS)
    assert [(alarm.update, alarm.raised) for alarm in found] == [(10, 20), (40, 50)]


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1) | st.none()), min_size=1, max_size=12),
    st.integers(1, 4),
)
def test_alarms_of_the_past_do_not_change(points, patience):
    """What was raised before stays raised, at the same evaluations and with the same numbers."""
    guards = Guards(evaluation_patience=patience)
    rows = evaluations(*points)
    known: dict[tuple[str, int], tuple[int, float]] = {}
    for end in range(1, len(rows) + 1):
        now = {(a.name, a.update): (a.raised, a.measured) for a in watch(rows[:end], guards)}
        assert now.items() >= known.items()
        assert all(raised == 10 * (end - 1) for key, (raised, _) in now.items() if key not in known)
        known = now


def test_the_stop_rule():
    points = evaluations((0.6, 0.7), (0.3, 0.6), (0.3, 0.6), (0.3, 0.8), (0.3, 0.9))
    alarms = watch(points, GUARDS)
    # in the order in which they were raised
    assert [alarm.name for alarm in alarms] == ["gold", "overoptimization"]
    assert "alarm 'overoptimization' at update 40" in (stop_reason(alarms, Guards()) or "")
    both = Guards(stop_on=("overoptimization", "gold"))
    assert "alarm 'gold' at update 20" in (stop_reason(alarms, both) or "")
    assert stop_reason(alarms, Guards(stop_on=())) is None
    assert stop_reason([], Guards()) is None


def test_settings_that_cannot_be_meant_are_refused():
    with pytest.raises(ValidationError, match="fall"):
        Guards(fall=0)
    with pytest.raises(ValidationError):
        Guards.model_validate({"stop_on": ["golden"]})
    assert Guards.model_validate_json(Guards().model_dump_json()) == Guards()


def test_guards_need_neither_torch_nor_matplotlib():
    code = "import sys, surefoot.rl.log; sys.exit(bool({'torch', 'matplotlib'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
