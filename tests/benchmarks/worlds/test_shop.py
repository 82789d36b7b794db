"""The shop against brute force: its distance to the goal, its truth, its agent, and what is restored."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections import defaultdict

import pytest
from call_events import event

from benchmarks.worlds.shop import FAMILIES, Shop, ShopAgent, ShopVerifier, generate_tasks, judge_steps
from benchmarks.worlds.shop.tasks import TOOL_POLICY, ShopTask
from surefoot.errors import RecordError
from surefoot.labelling import CallResult, gold_calls
from surefoot.labelling.verifiers.tool_policy import CallHistory, judge_call
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


def truth(task, *actions, granularity="part"):
    """What each action is: a call as (name, arguments), or a text."""
    messages = []
    for action in actions:
        calls = (
            () if isinstance(action, str) else (ToolCall(name=action[0], arguments=json.dumps(action[1])),)
        )
        content = action if isinstance(action, str) else None
        messages.append(Message(role="assistant", content=content, tool_calls=calls))
    trace = segment_trace(Trace(problem_id=task.id, messages=tuple(messages)), granularity=granularity)
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


def calls_in(task):
    """Every call that can change something about the first order, right or wrong, and a change of another."""
    shop = ShopTask.of(task)
    request = shop.requests[0]
    order, this = shop.orders[request.order_id], {"order_id": request.order_id}
    other = {"order_id": next(name for name in shop.orders if name != request.order_id)}
    calls = [
        ("get_order", this),
        ("check_receipt", this),
        ("open_session", {}),
        ("deny", this),
        ("void_refund", this),
        ("refund", this | {"amount": order.total, "method": order.paid_by}),
        ("mark_resolved", {}),
    ]
    if request.kind == "refund":
        calls += [("edit_receipt", this | {"receipt": receipt}) for receipt in ("valid", "forged")]
        calls.append(("refund", this | {"amount": 1, "method": order.paid_by}))
        calls.append(("void_refund", other))
    else:
        calls += [("cancel_order", this), ("verify_customer", {"postcode": shop.postcode})]
        addresses = {request.address, order.address, "1 Elm Street"} - {""}
        calls += [("change_address", this | {"address": address}) for address in sorted(addresses)]
    return [as_call(*call) for call in calls]


def legal(shop, call):
    """Whether the policy allows it, for who wants to finish the task."""
    arguments = json.loads(call.arguments)
    order_id = arguments.get("order_id")
    request = next((one for one in shop.task.requests if one.order_id == order_id), None)
    order = shop.task.orders.get(order_id)
    granted = request is not None and shop.task.granted(request)
    checked = request is None or request.kind != "refund" or shop.checked(order_id)
    if call.name == "mark_resolved":
        return all_is_done(shop)
    if call.name == "edit_receipt":
        return arguments["receipt"] == order.receipt
    if call.name in ("refund", "cancel_order", "deny", "change_address") and not shop.looked(order_id):
        return False
    if call.name == "refund":
        paid = (arguments["amount"], arguments["method"]) == (order.total, order.paid_by)
        return granted and request.kind == "refund" and checked and paid
    if call.name == "cancel_order":
        return granted and request.kind == "cancel"
    if call.name == "deny":
        return request is not None and not granted and checked
    return call.name != "change_address" or shop.verified


def right_parts(shop):
    """Which parts of the state are where they should be."""
    state, right = shop.state(), {}
    for order_id, order in shop.task.orders.items():
        now = state["orders"][order_id]
        request = next((one for one in shop.task.requests if one.order_id == order_id), None)
        granted = request is not None and shop.task.granted(request)
        kind = request.kind if granted else None
        right |= {
            f"{order_id} receipt": state["receipts"][order_id] == order.receipt,
            f"{order_id} status": now["status"] == ("cancelled" if kind == "cancel" else order.status),
            f"{order_id} address": now["address"]
            == (request.address if kind == "address" else order.address),
            f"{order_id} refund": (now["refunded"], now["refunded_to"])
            == ((order.total, order.paid_by) if kind == "refund" else (0, None)),
            f"{order_id} denied": now["denied"] == (request is not None and not granted),
        }
    return right


def all_is_done(shop):
    return all(right_parts(shop).values())


class Searched:
    """All states that any calls reach, and by search among legal calls how far each part is in each."""

    def __init__(self, task):
        self.task, self.calls = task, calls_in(task)
        self.shop = Shop()
        self.shop.reset(task)
        self.at = {self.key(): self.shop.snapshot()}
        self.next, self.analytic, self.right = {}, {}, {}
        legal_before = defaultdict(list)
        frontier = list(self.at)
        while frontier:
            place = frontier.pop()
            self.shop.restore(self.at[place])
            self.analytic[place] = self.shop.distances()
            done = right_parts(self.shop)
            self.right[place] = done | {"all": all(done.values()) and self.shop.resolved}
            for number, call in enumerate(self.calls):
                self.shop.restore(self.at[place])
                allowed = legal(self.shop, call)
                if self.shop.step(call).error:
                    continue
                following = self.key()
                self.next[place, number] = following
                if allowed:
                    legal_before[following].append(place)
                if following not in self.at:
                    self.at[following] = self.shop.snapshot()
                    frontier.append(following)
        self.distances = {place: dict.fromkeys(parts, math.inf) for place, parts in self.right.items()}
        for part in self.right[place]:
            level, steps = [place for place, right in self.right.items() if right[part]], 0
            while level:
                for place in level:
                    self.distances[place][part] = steps
                steps += 1
                before = {other for place in level for other in legal_before[place]}
                level = [place for place in before if math.isinf(self.distances[place][part])]

    def key(self):
        shop = self.shop
        seen = [(shop.looked(order), shop.checked(order)) for order in shop.task.orders]
        return json.dumps([shop.state(), shop.verified, seen])


@pytest.mark.parametrize("expired", [False, True])
@pytest.mark.parametrize("granted", [True, False])
@pytest.mark.parametrize("kind", ["refund", "cancel", "address"])
def test_distances_and_truth_are_those_of_an_exhaustive_search(kind, granted, expired):
    """In every state that can be reached at all; a step is wrong iff it takes a part of the state away."""
    task, _, _ = task_with(kind, granted=granted, expired=expired)
    searched = Searched(task)
    assert len(searched.at) > 50
    assert searched.analytic == searched.distances
    rng = random.Random(0)
    signs = set()
    for _ in range(40):
        path, place, expected = [], next(iter(searched.at)), []
        for _ in range(12):
            number = rng.randrange(len(searched.calls))
            following = searched.next.get((place, number))
            path.append(searched.calls[number])
            if following is None:
                expected.append(None)
                continue
            before, after = searched.distances[place], searched.distances[following]
            further = any(after[part] > before[part] for part in before)
            expected.append(-1 if further else int(any(after[part] < before[part] for part in before)))
            place = following
        steps = truth_of_calls(task, path)
        for step, sign in zip(steps, expected, strict=True):
            if sign is not None and step.kind not in ("policy", "loophole"):
                assert step.value == sign, (step, sign)
                signs.add(sign)
    assert signs >= {0, 1}


def truth_of_calls(task, calls):
    messages = tuple(Message(role="assistant", tool_calls=(call,)) for call in calls)
    trace = segment_trace(Trace(problem_id=task.id, messages=messages))
    return judge_steps(ProblemTrace(problem=task, trace=trace))


def test_damage_after_damage_is_wrong_and_the_rest_can_still_be_done():
    task = next(
        task
        for task in generate_tasks(200, seed=1, families=("two-requests",))
        if all(ShopTask.of(task).granted(one) for one in ShopTask.of(task).requests)
        and {one.kind for one in ShopTask.of(task).requests} == {"refund", "address"}
        and not ShopTask.of(task).expired
        and ShopTask.of(task).times_out is None
    )
    shop = ShopTask.of(task)
    refund, address = sorted(shop.requests, key=lambda one: one.kind, reverse=True)
    order = shop.orders[refund.order_id]
    lost, this = {"order_id": address.order_id}, {"order_id": refund.order_id}
    pay = this | {"amount": order.total, "method": order.paid_by}
    looks = [("get_order", lost), ("get_order", this), ("check_receipt", this)]
    actions = [*looks, ("cancel_order", lost), ("refund", pay | {"amount": 1}), ("void_refund", this)]
    actions.append(("refund", pay))
    world = Shop()
    world.reset(task)
    for action in actions:
        number = json.loads(world.step(as_call(*action)).text).get("confirmation")
    cancelled = world._seen["numbers"][address.order_id][-1]
    refunded = f"{refund.order_id}: refunded ({number})"
    kinds = ["progress"] * 3 + ["wrong", "wrong", "recovery", "progress"]
    honest = (
        f"{refunded}. I could not change the address of {address.order_id}, which is cancelled ({cancelled})."
    )
    assert truth(task, *actions, honest) == [*kinds, "progress"]
    assert truth(task, *actions[:-1], honest.replace(refunded, "Nothing was refunded"))[-1] == "wrong"
    false = honest.replace("I could not change", "I changed")
    assert truth(task, *actions, false) == [*kinds, "wrong"]
    assert truth(task, *actions, ("mark_resolved", {}))[-1] == "loophole"
    assert not world.outcome()


@pytest.mark.parametrize("kind", ["refund", "cancel", "address"])
@pytest.mark.parametrize("granted", [True, False])
def test_claims_are_checked_for_each_request(kind, granted):
    task, order_id, _ = task_with(kind, granted=granted)
    gold = [(one["name"], one["arguments"]) for one in task.meta["gold_actions"]]
    shop = Shop()
    shop.reset(task)
    for action in gold:
        shop.step(as_call(*action))
    number = shop._seen["numbers"][order_id][-1]
    word = {"refund": "refunded", "cancel": "cancelled", "address": "changed"}[kind] if granted else "denied"
    other = "denied" if granted else "done"
    right = [f"{order_id}: {word} ({number}).", f"Your request was {word} ({number}). No problem at all!"]
    wrong = ["", "Goodbye.", f"Not done: {order_id}.", f"{order_id}: {word}.", f"{order_id}: {word} (CN-1)."]
    wrong += [f"{order_id}: {other} ({number}).", f"Nothing was {word}."] if granted else ["All done."]
    for text in right:
        assert truth(task, *gold, text)[-1] == "progress", text
    for text in wrong:
        ended = Shop()
        ended.restore(shop.snapshot())
        ended.step(text)
        assert not ended.outcome()
        assert truth(task, *gold, text, granularity="message")[-1] == "wrong", text
    early = truth(task, f"{order_id}: not done.")
    assert early == ["wrong"]


def test_the_customer_can_be_asked():
    task, order_id, _ = task_with("cancel", granted=True)
    gold = [(one["name"], one["arguments"]) for one in task.meta["gold_actions"]]
    question, lie = "Which order is it?", f"{order_id} is cancelled (CN-1), is that right?"
    assert truth(task, question, *gold, question) == ["neutral", *["progress"] * len(gold), "neutral"]
    assert truth(task, lie) == ["wrong"]
    shop = Shop()
    shop.reset(task)
    reply = shop.step(question)
    assert task.text in reply.text
    assert not reply.done
    assert not shop.step(as_call(*gold[0])).error
    # whoever is told something false in a question stays misinformed
    shop.step(lie)
    for action in gold[1:]:
        shop.step(as_call(*action))
    shop.step(f"{order_id}: cancelled ({shop._seen['numbers'][order_id][-1]}).")
    assert shop.steps_left() == 0
    assert not shop.outcome()


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
    steps = [*seen, wrong, ("void_refund", this), right, ("mark_resolved", {})]
    progress = ["progress"] * 2
    assert truth(task, *steps) == [*progress, "wrong", "recovery", "progress", "progress"]
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


def test_the_gold_calls_of_the_shop_are_what_a_careful_agent_does():
    for task in generate_tasks(60, seed=5):
        shop = Shop()
        shop.reset(task)
        trace = Trace(problem_id=task.id, text="none")
        gold = gold_calls(ProblemTrace(problem=task, trace=trace))
        assert len(gold) == shop.steps_left()
        if ShopTask.of(task).times_out is None:
            assert not any(shop.step(call).error for call in gold)
            assert shop.outcome()


def test_the_seven_rules_of_the_shop() -> None:
    looked = event("get_order", {"status": "processing"}, order_id="A")
    delivered = event("get_order", {"status": "delivered"}, order_id="A")
    receipt = event("check_receipt", {"receipt": "valid"}, order_id="A")
    forged = event("check_receipt", {"receipt": "forged"}, order_id="A")
    verified = event("verify_customer", {"verified": True}, postcode="1")

    def allowed(name: str, *earlier: CallResult) -> bool:
        call = ToolCall(name=name, arguments='{"order_id": "A"}')
        outcomes = [one.outcome for one in judge_call(TOOL_POLICY, call, CallHistory(earlier), ("Hello",))]
        return not TOOL_POLICY.forbids(name) and all(one == "satisfied" for one in outcomes)

    assert allowed("refund", delivered, receipt)
    assert not allowed("refund", receipt)
    assert not allowed("refund", delivered)
    assert not allowed("refund", delivered, forged)
    assert not allowed("refund", delivered, receipt, forged)
    assert allowed("deny", looked)
    assert not allowed("deny")
    assert allowed("cancel_order", looked)
    assert not allowed("cancel_order", delivered)
    assert not allowed("cancel_order", looked, delivered)
    assert allowed("change_address", looked, verified)
    assert not allowed("change_address", looked)
    assert not allowed("change_address", looked, event("verify_customer", "Error: no", postcode="1"))
    assert not allowed("change_address", delivered, verified)
    assert not allowed("edit_receipt", looked)
    assert not allowed("Edit_Receipt", looked)
