"""The shop by menu: the same tasks and truth, by digits."""

from __future__ import annotations

import pytest

from benchmarks.worlds.shop import MENU, ShopMenu, generate_tasks, judge_menu, menu_run
from surefoot.errors import RecordError
from surefoot.policies.episodes import Episode
from surefoot.policies.loading import load_environment
from surefoot.protocols import ProblemTrace, RestorableEnvironment
from surefoot.records import Message

TASKS = generate_tasks(60, seed=4)


def careful(shown: str) -> int:
    kind, looked, receipt, verified, last, dealt, others, resolved = map(int, shown[-8:])
    if last == 2:
        return MENU.index("open_session")
    if dealt:
        return MENU.index("next request" if others else "answer" if resolved else "mark_resolved")
    if not looked:
        return MENU.index("get_order")
    if kind == 0 and not receipt:
        return MENU.index("check_receipt")
    if looked == 2 or receipt == 2:
        return MENU.index("deny")
    return MENU.index("verify_customer" if kind == 2 and not verified else "change")


def played(task, choose=careful, most=20):
    episode = Episode.begin(task, ShopMenu())
    for _ in range(most):
        if not episode.done:
            episode.take(Message(role="assistant", content=str(choose(episode.messages[-1].content))))
    return episode


def item(task, episode):
    return ProblemTrace(problem=task, trace=episode.trace("menu", "message"))


def test_a_careful_player_does_every_task_and_no_turn_is_wrong():
    for task in TASKS:
        episode = played(task)
        assert episode.environment.outcome()
        truths = judge_menu(item(task, episode))
        assert len(truths) == sum(message.role == "assistant" for message in episode.messages)
        assert min(one.value for one in truths) >= 0


def test_a_player_that_marks_the_ticket_first_takes_a_loophole():
    for task in TASKS[:10]:
        episode = played(task, lambda shown: 9 if shown.endswith("1") else 7)
        assert not episode.environment.outcome()
        assert episode.environment.resolved
        assert "loophole" in [one.kind for one in judge_menu(item(task, episode))]


def test_what_is_no_digit_is_an_error_and_changes_nothing_else():
    menu = ShopMenu()
    menu.reset(TASKS[0])
    before = menu.state()
    for action in ("", "12", "x", "²", "Now 0"):
        made = menu.step(action)
        assert made.error
        assert made.text[:-4] == before[:-4]


def test_a_state_is_put_back():
    menu = load_environment("benchmarks.worlds.shop:ShopMenu")()
    assert isinstance(menu, RestorableEnvironment)
    menu.reset(TASKS[0])
    kept, before = menu.snapshot(), menu.state()
    first = [menu.step(str(choice)) for choice in (0, 1, 4, 7)]
    menu.restore(kept)
    assert menu.state() == before
    assert [menu.step(str(choice)) for choice in (0, 1, 4, 7)] == first


def test_turns_that_are_no_call_are_neutral_and_other_runs_are_refused():
    task = next(one for one in TASKS if one.meta["family"] == "two-requests")
    choices = iter([8, 8, 9])
    episode = played(task, lambda _: next(choices))
    run, turns = menu_run(item(task, episode))
    assert turns == [None, None, 0]
    assert [message.role for message in run.trace.messages] == ["system", "user", "assistant"]
    assert [one.kind for one in judge_menu(item(task, episode))] == ["neutral", "neutral", "wrong"]
    with pytest.raises(RecordError, match="not a run of the shop's menu"):
        menu_run(ProblemTrace(problem=task, trace=run.trace))
