"""What a message tells the customer of each request, and whether that is so."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.worlds.shop.tasks import Kind, Request, ShopTask

CONFIRMATION: Final = re.compile(r"\bCN-\d+", re.ASCII)
CHANGED: Final[Mapping[Kind, str]] = {"refund": "refunded", "cancel": "cancelled", "address": "changed"}
"""The verb that reports a granted request."""
_SENTENCES = re.compile(r"[.;!?\n]+")
_DENIED = re.compile(r"\b(?:denied|refused|rejected|declined)\b", re.IGNORECASE)
_NOT_DONE = re.compile(
    r"(?:\b(?:not|no|nothing|none|never|neither|cannot|unable|failed)|n't)(?!\s+(?:else|other|further))"
    r"(?:\s+[\w-]+){0,4}?\s+(?:done|made|refund|cancel|chang|updat|sen[dt]|redirect)|\bunchanged\b",
    re.IGNORECASE,
)
_DONE = re.compile(
    r"\b(?:done|refunded|cancell?ed|changed|updated|sent|redirected)\b|\bCN-\d+", re.IGNORECASE | re.ASCII
)
_WORDS: Final[Mapping[Kind, re.Pattern[str]]] = {
    "refund": re.compile(r"refund", re.IGNORECASE),
    "cancel": re.compile(r"cancel", re.IGNORECASE),
    "address": re.compile(r"address|redirect|\bsen[dt]\b", re.IGNORECASE),
}


def false_claim(
    text: str, task: ShopTask, orders: Mapping[str, Mapping[str, Any]], numbers: Mapping[str, Sequence[str]]
) -> str | None:
    """What of a message is false; ``None`` = nothing.

    Each sentence is about the requests whose order it names, else about those whose kind it names, else about
    all. It says of them that they are denied, or not done, or done; the first of these that its words show.
    ``numbers`` are the confirmation numbers that were issued for each order: others are false there.
    """
    for sentence in _SENTENCES.split(text):
        requests, claim = _about(sentence, task.requests), _claim(sentence)
        order_ids = [order_id for order_id in task.orders if order_id in sentence] or list(task.orders)
        for number in CONFIRMATION.findall(sentence):
            if not any(number in numbers.get(order_id, ()) for order_id in order_ids):
                return f"{number} was not issued for that"
        for request in requests if claim else ():
            if not _holds(claim, request, task, orders[request.order_id]):
                return (
                    f"{request.order_id} is not {claim}"
                    if claim != "not done"
                    else f"{request.order_id} was changed"
                )
    return None


def unreported(text: str, task: ShopTask, numbers: Mapping[str, Sequence[str]]) -> str | None:
    """The order of a request that a message does not report, with its latest confirmation number if there is
    one; ``None`` = it reports all."""
    reported = {
        request.order_id
        for sentence in _SENTENCES.split(text)
        if _claim(sentence)
        for request in _about(sentence, task.requests)
    }
    for request in task.requests:
        latest = numbers.get(request.order_id, ())[-1:]
        if request.order_id not in reported or not all(number in text for number in latest):
            return request.order_id
    return None


def _about(sentence: str, requests: Sequence[Request]) -> Sequence[Request]:
    if "ORD-" in sentence:
        return [request for request in requests if request.order_id in sentence]
    return [request for request in requests if _WORDS[request.kind].search(sentence)] or requests


def _claim(sentence: str) -> str:
    if _DENIED.search(sentence):
        return "denied"
    return "not done" if _NOT_DONE.search(sentence) else "done" if _DONE.search(sentence) else ""


def _holds(claim: str, request: Request, task: ShopTask, now: Mapping[str, Any]) -> bool:
    order = task.orders[request.order_id]
    if claim == "denied":
        return bool(now["denied"])
    if request.kind == "refund":
        done = (now["refunded"], now["refunded_to"]) == (order.total, order.paid_by)
        untouched = not now["refunded"]
    elif request.kind == "cancel":
        done = now["status"] == "cancelled"
        untouched = not done
    else:
        done = now["address"] == request.address
        untouched = now["address"] == order.address
    return done if claim == "done" else untouched
