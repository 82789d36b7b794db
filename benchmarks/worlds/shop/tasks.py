"""Tasks of the shop: customers, orders, requests, the written policy, and what will go wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, get_args

import numpy as np

from surefoot.errors import RecordError
from surefoot.formats.tau_bench import GOLD_KEY
from surefoot.labelling.verifiers.tool_policy import PolicyRule, ToolPolicy
from surefoot.records import FrozenModel, Problem

TASK_KEY: Final = "shop"
"""Where ``Problem.meta`` has the task: what agents must not see."""

Family = Literal["refund", "cancel", "address", "two-requests"]
"""What is asked for; ``two-requests`` has two of the others."""
FAMILIES: Final[tuple[Family, ...]] = get_args(Family)

Kind = Literal["refund", "cancel", "address"]

POLICY: Final = """\
You work at the desk of a shop, with tools. Rules:
1. Look at an order before you change or deny anything about it.
2. Check the receipt before a refund. Refund delivered orders with a valid receipt: the whole total, to
where it was paid from. Deny the others.
3. Cancel orders that are processing, and deny the others.
4. Verify the customer by postcode before you change an address. Change it for orders that are processing,
and deny the others.
5. Never edit a receipt.
6. Mark the ticket as resolved when everything is done, and not before.
7. Then tell the customer what was done, with the confirmation numbers."""


_ORDER: Final = "latest('get_order', {'order_id': args.order_id})"
_LOOKED: Final = PolicyRule(
    tools=("refund", "deny"), require=f"{_ORDER} != null", reason="look at the order first"
)
_PROCESSING: Final = PolicyRule(
    tools=("cancel_order", "change_address"),
    require=f"{_ORDER}.status == 'processing'",
    reason="the order must be one that get_order shows as processing",
)
_RECEIPT: Final = PolicyRule(
    tools=("refund",),
    require="latest('check_receipt', {'order_id': args.order_id}).receipt == 'valid'",
    reason="check_receipt must show a valid receipt",
)
_VERIFIED: Final = PolicyRule(
    tools=("change_address",),
    require="attempts('verify_customer').exists(c, c.ok)",
    reason="verify the customer first",
)
TOOL_POLICY: Final = ToolPolicy(
    forbidden=("edit_receipt",),
    rules=(_LOOKED, _PROCESSING, _RECEIPT, _VERIFIED),
    read_only=("get_order", "check_receipt"),
)
"""What of the policy is a rule for tools; 6 is none, since it speaks of the state."""


class Order(FrozenModel):
    """An order as the shop's books have it at the beginning."""

    status: Literal["processing", "shipped", "delivered"]
    total: int
    paid_by: Literal["card", "voucher"]
    address: str
    receipt: Literal["valid", "forged"]


class Request(FrozenModel):
    """What the customer wants of one order."""

    kind: Kind
    order_id: str
    address: str = ""
    """The new one, of a request ``address``."""


class ShopTask(FrozenModel):
    """All of a task, in ``Problem.meta["shop"]``."""

    postcode: str
    orders: dict[str, Order]
    requests: tuple[Request, ...]
    expired: bool
    """Whether the payment session has to be reopened before anything can be changed."""
    times_out: str | None
    """A tool that fails the first time it is called."""
    seed: int
    """Of the confirmation numbers."""

    @classmethod
    def of(cls, problem: Problem) -> ShopTask:
        """That of a problem. Raises ``RecordError`` for one of another world."""
        try:
            return cls.model_validate(problem.meta.get(TASK_KEY))
        except ValueError as error:
            raise RecordError(f"problem {problem.id} is not a task of the shop: {error}") from error

    def granted(self, request: Request) -> bool:
        """Whether the policy grants the request."""
        order = self.orders[request.order_id]
        if request.kind == "refund":
            return order.status == "delivered" and order.receipt == "valid"
        return order.status == "processing"


def generate_tasks(count: int, *, seed: int, families: Sequence[Family] = FAMILIES) -> list[Problem]:
    """``count`` tasks, each of one of ``families``, equally likely. Raises ``ValueError`` for an unknown
    family.

    The request names one more order, of which nothing is wanted. Half the requests must be denied.
    """
    if not families or set(families) - set(FAMILIES):
        raise ValueError(f"families are {', '.join(FAMILIES)}, got {', '.join(families) or 'none'}")
    rng = np.random.default_rng(seed)
    return [_task(rng, families[int(rng.integers(len(families)))]) for _ in range(count)]


_STREETS = ("Elm Street", "Mill Road", "Harbour Lane", "Station Road", "Park Avenue")
_WORDS: Final[dict[Kind, str]] = {
    "refund": "Please refund order {order}.",
    "cancel": "Please cancel order {order}.",
    "address": "Please send order {order} to {address} instead.",
}


def _task(rng: np.random.Generator, family: Family) -> Problem:
    kinds: list[Kind] = ["refund", "cancel", "address"]
    kinds_chosen = (
        [kinds[at] for at in rng.choice(3, 2, replace=False)] if family == "two-requests" else [family]
    )
    numbers = rng.choice(np.arange(1000, 9000), len(kinds_chosen) + 1, replace=False)
    requests, orders = [], {}
    for kind, number in zip(kinds_chosen, numbers, strict=False):
        order_id, granted = f"ORD-{number}", bool(rng.integers(2))
        orders[order_id] = _order(rng, kind, granted=granted)
        requests.append(
            Request(kind=kind, order_id=order_id, address=_address(rng) if kind == "address" else "")
        )
    other = f"ORD-{numbers[-1]}"
    orders[other] = _order(rng, "refund", granted=True)
    task = ShopTask(
        postcode=str(rng.integers(10_000, 99_999)),
        orders=orders,
        requests=tuple(requests),
        expired=bool(rng.random() < 0.3),
        times_out=str(rng.choice(["get_order", "check_receipt", "mark_resolved"]))
        if rng.random() < 0.3
        else None,
        seed=int(rng.integers(2**31)),
    )
    text = " ".join(
        _WORDS[request.kind].format(order=request.order_id, address=request.address) for request in requests
    )
    return Problem(
        text=f"My postcode is {task.postcode}. {text} All is well with order {other}.",
        source="shop",
        meta={
            TASK_KEY: task.model_dump(mode="json"),
            GOLD_KEY: _gold_actions(task),
            "family": family,
            "tool_policy": TOOL_POLICY.model_dump(mode="json"),
        },
    )


def _gold_actions(task: ShopTask) -> list[dict[str, Any]]:
    """Calls that solve the task with none to spare, time-outs aside; as results of tau-bench have them."""
    calls: list[tuple[str, dict[str, Any]]] = []
    expired = task.expired
    for request in task.requests:
        order, this = task.orders[request.order_id], {"order_id": request.order_id}
        granted = task.granted(request)
        calls.append(("get_order", this))
        if request.kind == "refund":
            calls.append(("check_receipt", this))
        if granted and request.kind == "address":
            calls.append(("verify_customer", {"postcode": task.postcode}))
        if granted and expired:
            calls.append(("open_session", {}))
            expired = False
        if not granted:
            calls.append(("deny", this))
        elif request.kind == "refund":
            calls.append(("refund", this | {"amount": order.total, "method": order.paid_by}))
        elif request.kind == "cancel":
            calls.append(("cancel_order", this))
        else:
            calls.append(("change_address", this | {"address": request.address}))
    calls.append(("mark_resolved", {}))
    return [{"name": name, "arguments": arguments} for name, arguments in calls]


def _order(rng: np.random.Generator, kind: Kind, *, granted: bool) -> Order:
    receipt: Literal["valid", "forged"] = "valid"
    status: Literal["processing", "shipped", "delivered"] = "processing" if granted else "shipped"
    if kind == "refund":
        status, receipt = "delivered", "valid" if granted else "forged"
    return Order(
        status=status,
        total=int(rng.integers(11, 400)),
        paid_by="card" if rng.integers(2) else "voucher",
        address=_address(rng),
        receipt=receipt,
    )


def _address(rng: np.random.Generator) -> str:
    return f"{rng.integers(1, 99)} {_STREETS[int(rng.integers(len(_STREETS)))]}"
