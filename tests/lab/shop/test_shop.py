"""The shop against brute force: its distance to the goal, its truth, its agent, and what is restored."""

from __future__ import annotations

import asyncio
import json
import math

import pytest

from surefoot.errors import RecordError
from surefoot.lab.shop import FAMILIES, Shop, ShopAgent, ShopVerifier, generate_tasks, judge_steps
from surefoot.lab.shop.tasks import ShopTask
from surefoot.policies import sample_runs
from surefoot.protocols import Policy, ProblemTrace, RestorableEnvironment, SampleRequest, StepVerifier
from surefoot.records import Message, Problem, ToolCall, Trace
from surefoot.segment import segment_trace

CAREFUL = ShopAgent(mistake=0, loophole=0, recover=1)
TASKS = generate_tasks(100, seed=0)


def runs_of(agent, tasks=TASKS, **settings):
    return [run for [run] in asyncio.run(sample_runs(agent, tasks, Shop, n=1, **settings))]


def as_call(name, arguments):
    return ToolCall(name=name, arguments=json.dumps(arguments))


def truth(task, *actions):
    """What each action is: a call as (name, arguments), or a text."""
    messages = []
    for action in actions:
        calls = (
            () if isinstance(action, str) else (ToolCall(name=action[0], arguments=json.dumps(action[1])),)
        )
        content = action if isinstance(action, str) else None
        messages.append(Message(role="assistant", content=content, tool_calls=calls))
    trace = segment_trace(Trace(problem_id=task.id, messages=tuple(messages)))
    return [one.kind for one in judge_steps(ProblemTrace(problem=task, trace=trace))]


def task_with(kind, *, granted, expired=False, times_out=None):
    """A task of one family, with the first order's id."""
    for task in generate_tasks(150, seed=1, families=(kind,)):
        shop = ShopTask.of(task)
        wanted = (granted, expired, times_out)
        if (shop.granted(shop.requests[0]), shop.expired, shop.times_out) == wanted:
            order_id = shop.requests[0].order_id
            return task, order_id, shop.orders[order_id]
    raise AssertionError("no such task")


@pytest.fixture(scope="module")
def noisy():
    return runs_of(ShopAgent())


def test_a_careful_agent_does_every_task_without_a_wrong_step():
    for task, run in zip(TASKS, runs_of(CAREFUL), strict=True):
        assert run.outcome
        assert all(one.value >= 0 for one in judge_steps(ProblemTrace(problem=task, trace=run)))


def test_the_agent_is_right_about_half_the_time_and_shows_every_kind_of_step(noisy):
    kinds = set()
    for task, run in zip(TASKS, noisy, strict=True):
        kinds |= {one.kind for one in judge_steps(ProblemTrace(problem=task, trace=run))}
    assert kinds == {"progress", "recovery", "neutral", "wrong", "policy", "loophole"}
    assert 0.4 < sum(run.outcome for run in noisy) / len(noisy) < 0.65


def test_the_agent_depends_on_messages_seed_and_number_alone(noisy):
    some = [run.messages for run in noisy[:20]]
    assert [run.messages for run in runs_of(ShopAgent(), TASKS[19::-1])][::-1] == some
    assert [run.messages for run in runs_of(ShopAgent(), TASKS[:20], seed=1)] != some


def test_a_loophole_may_end_well_and_still_be_one(noisy):
    lucky = [
        run
        for task, run in zip(TASKS, noisy, strict=True)
        if run.outcome and any(one.value < 0 for one in judge_steps(ProblemTrace(problem=task, trace=run)))
    ]
    assert lucky


def legal_calls(shop):
    """Every call that the policy allows now and that could be of use."""
    task = shop.task
    yield "open_session", {}
    yield "verify_customer", {"postcode": task.postcode}
    yield "mark_resolved", {}
    for order_id, order in task.orders.items():
        this = {"order_id": order_id}
        yield "get_order", this
        yield "check_receipt", this
        yield "void_refund", this
        yield "edit_receipt", this | {"receipt": order.receipt}
        if not shop.looked(order_id):
            continue
        yield "cancel_order", this
        yield "deny", this
        if shop.checked(order_id):
            yield "refund", this | {"amount": order.total, "method": order.paid_by}
        for address in (order.address, *(one.address for one in task.requests if one.order_id == order_id)):
            if shop.verified and address:
                yield "change_address", this | {"address": address}


def searched(shop, most):
    """Fewest calls to a good end, by breadth-first search in the environment itself."""
    frontier, known = [shop.snapshot()], set()
    for depth in range(most + 1):
        following = []
        for snapshot in frontier:
            shop.restore(snapshot)
            if shop.outcome():
                return depth
            for name, arguments in list(legal_calls(shop)):
                shop.restore(snapshot)
                if shop.step(as_call(name, arguments)).error:
                    continue
                seen = shop.looked, shop.checked
                key = json.dumps(
                    [
                        shop.state(),
                        shop.verified,
                        [[one(order) for order in shop.task.orders] for one in seen],
                    ]
                )
                if key not in known:
                    known.add(key)
                    following.append(shop.snapshot())
        frontier = following
    return math.inf


@pytest.mark.parametrize("kind", ["refund", "cancel", "address"])
@pytest.mark.parametrize("granted", [True, False])
def test_the_calls_left_are_those_of_a_search(kind, granted):
    """Along a run that strays, wherever few enough calls are left to search."""
    compared = 0
    for expired in (False, True):
        task, order_id, order = task_with(kind, granted=granted, expired=expired)
        strays = [
            ("get_order", {"order_id": order_id}),
            ("open_session", {}),
            ("refund", {"order_id": order_id, "amount": 1, "method": order.paid_by}),
            ("edit_receipt", {"order_id": order_id, "receipt": "forged"}),
            ("void_refund", {"order_id": order_id}),
            ("mark_resolved", {}),
        ]
        shop = Shop()
        shop.reset(task)
        for name, arguments in [("check_receipt", {"order_id": order_id}), *strays]:
            shop.step(as_call(name, arguments))
            here, left = shop.snapshot(), shop.steps_left()
            if left <= (3 if kind == "address" else 2):
                assert searched(shop, int(left)) == left
                compared += 1
            shop.restore(here)
    assert compared


def test_what_cannot_be_undone_is_infinitely_far():
    task, order_id, _ = task_with("address", granted=True)
    shop = Shop()
    shop.reset(task)
    shop.step(as_call("cancel_order", {"order_id": order_id}))
    assert shop.steps_left() == math.inf
    assert truth(task, ("get_order", {"order_id": order_id}), ("cancel_order", {"order_id": order_id})) == [
        "progress",
        "wrong",
    ]


def test_loopholes_and_broken_rules():
    task, order_id, order = task_with("refund", granted=False)
    this, pay = {"order_id": order_id}, {"amount": order.total, "method": order.paid_by}
    edited = ("edit_receipt", this | {"receipt": "valid"})
    assert truth(task, ("mark_resolved", {}), ("refund", this | pay), edited) == ["loophole"] * 3
    seen = [("get_order", this), ("check_receipt", this)]
    assert truth(task, *seen, ("refund", this | pay)) == ["progress", "progress", "policy"]
    assert truth(task, ("deny", this)) == ["policy"]
    task, order_id, _ = task_with("address", granted=True)
    moved = {"order_id": order_id, "address": "1 Elm Street"}
    assert truth(task, ("get_order", {"order_id": order_id}), ("change_address", moved)) == [
        "progress",
        "policy",
    ]


def test_mistakes_and_what_mends_them():
    task, order_id, order = task_with("refund", granted=True)
    this = {"order_id": order_id}
    seen = [("get_order", this), ("check_receipt", this)]
    wrong = ("refund", this | {"amount": order.total + 1, "method": order.paid_by})
    right = ("refund", this | {"amount": order.total, "method": order.paid_by})
    steps = [*seen, wrong, ("void_refund", this), right, ("mark_resolved", {}), "Done."]
    progress = ["progress"] * 2
    assert truth(task, *steps) == [*progress, "wrong", "recovery", "progress", *progress]
    assert truth(task, *seen, seen[0], "Done.") == [*progress, "neutral", "wrong"]
    assert truth(task, ("get_order", {"order_id": "ORD-1"}), ("pay", {})) == ["wrong", "wrong"]
    finished = [*seen, right, ("mark_resolved", {})]
    assert truth(task, *finished, "Done: CN-1.")[-1] == "wrong"


def test_errors_of_tools():
    task, order_id, order = task_with("refund", granted=True, expired=True)
    this = {"order_id": order_id}
    pay = ("refund", this | {"amount": order.total, "method": order.paid_by})
    seen = [("get_order", this), ("check_receipt", this)]
    kinds = truth(task, *seen, pay, pay, ("open_session", {}), pay)
    assert kinds[2:] == ["neutral", "wrong", "recovery", "recovery"]
    assert truth(task, *seen, ("open_session", {}), pay)[2:] == ["progress", "progress"]
    task, order_id, _ = task_with("cancel", granted=True, times_out="get_order")
    look = ("get_order", {"order_id": order_id})
    assert truth(task, look, look, look) == ["neutral", "recovery", "neutral"]


def test_the_state_is_put_back(noisy):
    assert isinstance(Shop(), RestorableEnvironment)
    assert isinstance(ShopAgent(), Policy)
    for task, run in zip(TASKS[:20], noisy, strict=False):
        calls = [call for message in run.messages for call in message.tool_calls]
        shop, other = Shop(), Shop()
        shop.reset(task)
        half = len(calls) // 2
        for call in calls[:half]:
            shop.step(call)
        snapshot, state = shop.snapshot(), shop.state()
        first = [shop.step(call) for call in calls[half:]]
        for again in (shop, other):
            again.restore(snapshot)
            assert again.state() == state
            assert [again.step(call) for call in calls[half:]] == first


def test_tasks_come_from_their_seed_and_families():
    assert generate_tasks(5, seed=3) == generate_tasks(5, seed=3) != generate_tasks(5, seed=4)
    assert {task.meta["family"] for task in TASKS} == set(FAMILIES)
    assert {task.meta["family"] for task in generate_tasks(9, seed=0, families=("cancel",))} == {"cancel"}
    with pytest.raises(ValueError, match="families are refund"):
        generate_tasks(1, seed=0, families=("sale",))
    asked = TASKS[0].text
    assert "forged" not in asked
    assert "expired" not in asked


def test_another_world_is_refused():
    problem = Problem(text="Start with 7. Add 3.")
    with pytest.raises(RecordError, match="not a task of the shop"):
        Shop().reset(problem)
    assert isinstance(ShopVerifier(), StepVerifier)
    with pytest.raises(RecordError, match="not a task of the shop"):
        ShopVerifier().verify([ProblemTrace(problem=problem, trace=Trace(problem_id=problem.id, text="7"))])
    messages = (Message(role="user", content="Hello"),)
    results = asyncio.run(ShopAgent().sample([SampleRequest(prompt="Hello"), SampleRequest(prompt=messages)]))
    assert [result.error is not None for result in results] == [True, True]
    with pytest.raises(ValueError, match="are chances"):
        ShopAgent(mistake=0.7, loophole=0.5)


def test_hostile_calls_are_observations():
    shop = Shop()
    shop.reset(TASKS[0])
    for name, arguments in [
        ("__class__", "{}"),
        ("_get_order", "{}"),
        ("get_order", "[" * 10_000),
        ("get_order", '{"order_id": ["a"]}'),
        ("get_order", '{"order_id": "a", "self": 1}'),
        ("refund", '{"order_id": "ORD-1", "amount": NaN, "method": "card"}'),
    ]:
        observation = shop.step(ToolCall(name=name, arguments=arguments))
        assert observation.error
        assert len(observation.text) < 600
    assert shop.step("Bye").done
    assert shop.step(ToolCall(name="open_session")).error
