"""Every alarm in closed form, patience, and the rule that ends a run."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from rl_logs import evaluation_row, healthy_log, update_row

from surefoot.rl.log import Guards, stop_reason, watch

GUARDS = Guards(patience=2, evaluation_patience=2)


def rows(field, values):
    return [update_row(number, **{field: value}) for number, value in enumerate(values, start=1)]


def evaluations(*points, half=0.05):
    """One a ten updates, each (accuracy, proxy)."""
    return [evaluation_row(10 * n, accuracy, proxy, half=half) for n, (accuracy, proxy) in enumerate(points)]


def only(alarms):
    [alarm] = alarms
    return alarm


def test_no_alarm_on_a_healthy_history():
    log = healthy_log()
    assert watch(log.updates, log.evaluations, Guards(patience=1, evaluation_patience=1)) == []
    assert watch([], [], Guards()) == []


@pytest.mark.parametrize(
    ("name", "field", "values", "measured", "threshold"),
    [
        ("length", "tokens", [40, 60, 79, 80, 100], 2.5, 2.0),
        ("entropy", "entropy", [0.5, 0.3, 0.06, 0.05, 0.02], 0.04, 0.1),
    ],
)
def test_alarms_on_rollouts(name, field, values, measured, threshold):
    """Each series reaches its threshold, which counts, at update 4 and is raised at update 5."""
    alarm = only(watch(rows(field, values), [], GUARDS))
    assert (alarm.name, alarm.update, alarm.raised, alarm.until) == (name, 4, 5, None)
    assert alarm.measured == pytest.approx(measured)
    assert alarm.threshold == threshold
    assert watch(rows(field, values[:4]), [], GUARDS) == []  # patience


@pytest.mark.parametrize("name", ["length", "entropy"])
def test_an_alarm_can_be_turned_off(name):
    fields = {
        "length": ("tokens", [40, 400, 400]),
        "entropy": ("entropy", [0.5, 0.0, 0.0]),
    }
    history = rows(*fields[name])
    assert [alarm.name for alarm in watch(history, [], GUARDS)] == [name]
    assert watch(history, [], GUARDS.model_copy(update={name: None})) == []


def test_the_message_gives_the_numbers_and_a_remedy():
    alarm = only(watch(rows("tokens", [40, 100, 120]), [], GUARDS))
    assert "120 tokens" in alarm.message
    assert "40 at the start" in alarm.message
    assert "clip" in alarm.message


def test_patience_wants_updates_in_a_row_and_a_new_episode_is_a_new_alarm():
    high, low = 100.0, 40.0
    assert watch(rows("tokens", [low, high, low, high, low, high]), [], GUARDS) == []
    found = watch(rows("tokens", [low, high, high, high, low, high, high]), [], GUARDS)
    assert [(alarm.update, alarm.raised, alarm.until) for alarm in found] == [(2, 3, 4), (6, 7, None)]


def test_an_update_that_measured_nothing_neither_raises_nor_ends_an_alarm():
    found = only(watch(rows("entropy", [None, 0.5, None, 0.01, None, 0.01]), [], GUARDS))
    assert (found.update, found.raised) == (4, 6)
    assert found.measured == pytest.approx(0.02)  # the start is the first update that was measured
    assert watch(rows("tokens", [None, None, None]), [], GUARDS) == []


def test_a_start_of_zero_gives_no_ratio():
    assert watch(rows("entropy", [0.0, 0.0, 0.0]), [], GUARDS) == []
    assert watch(rows("tokens", [0.0, 50.0, 50.0]), [], GUARDS) == []


def test_proxy_and_gold_part():
    """Best at update 10; chance explains sqrt(0.05² + 0.05²) = 0.0707 of a fall."""
    found = watch([], evaluations((0.4, 0.5), (0.6, 0.7), (0.55, 0.8), (0.5, 0.85), (0.3, 0.95)), GUARDS)
    alarm = only(found)
    assert (alarm.name, alarm.update, alarm.raised) == ("overoptimization", 30, 40)
    assert alarm.measured == pytest.approx(0.3)
    assert alarm.threshold == pytest.approx(0.05 * 2**0.5)
    assert "30.0%, 60.0% at update 10" in alarm.message
    assert "Go back to update 10" in alarm.message


def test_a_fall_within_chance_is_none():
    points = (0.6, 0.7), (0.55, 0.8), (0.54, 0.85), (0.54, 0.9)
    assert watch([], evaluations(*points), GUARDS) == []
    assert only(watch([], evaluations(*points, half=0.01), GUARDS)).name == "overoptimization"
    assert (
        watch([], evaluations((0.6, 0.7), (0.59, 0.8), (0.59, 0.9), half=0.0), GUARDS) == []
    )  # below 'fall'


def test_gold_falls_with_the_proxy_or_without_one():
    falls = (0.6, 0.7), (0.3, 0.5), (0.2, 0.4)
    assert only(watch([], evaluations(*falls), GUARDS)).name == "gold"
    alarm = only(watch([], evaluations((0.6, None), (0.3, None), (0.2, None)), GUARDS))
    assert alarm.name == "gold"
    assert "give a scorer" in alarm.message
    assert watch([], evaluations(*falls), GUARDS.model_copy(update={"fall": None})) == []


def test_a_recovery_ends_the_alarm():
    points = (0.6, 0.7), (0.3, 0.8), (0.3, 0.8), (0.62, 0.8), (0.61, 0.9)
    alarm = only(watch([], evaluations(*points), GUARDS))
    assert (alarm.update, alarm.raised, alarm.until) == (10, 20, 20)


@given(st.lists(st.floats(0, 200), min_size=1, max_size=12), st.integers(1, 4))
def test_alarms_of_the_past_do_not_change(lengths, patience):
    """What was raised before stays raised, at the same updates and with the same numbers."""
    guards = Guards(patience=patience)
    history = rows("tokens", lengths)
    known: dict[tuple[str, int], tuple[int, float]] = {}
    for end in range(len(history) + 1):
        now = {(a.name, a.update): (a.raised, a.measured) for a in watch(history[:end], [], guards)}
        assert now.items() >= known.items()
        assert all(raised == end for key, (raised, _) in now.items() if key not in known)
        known = now


def test_the_stop_rule():
    points = evaluations((0.6, 0.7), (0.3, 0.8), (0.3, 0.9))
    history = rows("tokens", [40, 100, 100])
    alarms = watch(history, points, GUARDS)
    assert [alarm.name for alarm in alarms] == [
        "length",
        "overoptimization",
    ]  # in the order in which they were raised
    assert "alarm 'overoptimization' at update 20" in (stop_reason(alarms, Guards()) or "")
    assert "alarm 'length' at update 3" in (
        stop_reason(alarms, Guards(stop_on=("overoptimization", "length"))) or ""
    )
    assert stop_reason(alarms, Guards(stop_on=())) is None
    assert stop_reason([], Guards()) is None


def test_settings_that_cannot_be_meant_are_refused():
    with pytest.raises(ValidationError, match="'stop_on' names 'length', but 'length' is off"):
        Guards(length=None, stop_on=("length",))
    with pytest.raises(ValidationError, match="'fall' is off"):
        Guards(fall=None)
    with pytest.raises(ValidationError):
        Guards.model_validate({"stop_on": ["lenght"]})
    assert Guards(fall=None, stop_on=()).fall is None
    assert Guards.model_validate_json(Guards().model_dump_json()) == Guards()


def test_guards_need_neither_torch_nor_matplotlib():
    code = "import sys, surefoot.rl.log; sys.exit(bool({'torch', 'matplotlib'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
