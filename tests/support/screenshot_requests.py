"""What the pages of the gateway show in pictures: requests, and two days of figures by the hour."""

from __future__ import annotations

from datetime import timedelta

from held_calls import held_call
from inspection_site import NOON, add_request

from surefoot.records import Message, Problem, StepScores, Trace
from surefoot.server import Database, GatewayCandidate


def add_requests(db: Database, problem: Problem, traces: list[Trace]) -> None:
    """Requests with candidates, one that failed, and some of the plain policy."""
    rows = ((0.91, True, None), (0.34, False, None), (0.12, False, "step 3 below 0.5"))
    scores = ((0.98, 0.95, 0.93, 0.92, 0.91), (0.97, 0.9, 0.34, 0.4, 0.36), (0.12, 0.3, 0.28))
    candidates = tuple(
        GatewayCandidate(
            trace=trace,
            chosen=chosen,
            score=score,
            reason=reason,
            scores=StepScores(trace_id=trace.id, scorer="prm-7b", scores=steps),
        )
        for trace, (score, chosen, reason), steps in zip(traces, rows, scores, strict=True)
    )
    parameters = {"n": 1, "temperature": 0.8, "seed": 1, "max_tokens": 512}
    add_request(
        db,
        "chatcmpl-shown-0",
        problem=problem,
        candidates=candidates,
        model="surefoot",
        strategy="beam",
        policy="policy-7b",
        scorer="prm-7b",
        latency_ms=4210.0,
        request=parameters,
    )
    plain = {"strategy": "plain", "candidates": ()}
    for number in range(1, 9):
        failed = {"status": 504, "error": "the request took longer than 60 s"} if number == 3 else {}
        add_request(
            db,
            f"chatcmpl-shown-{number}",
            problem=problem,
            model="policy-7b/best-of-16",
            created=NOON - timedelta(minutes=number),
            latency_ms=800.0 + 311 * number,
            **{**({"strategy": "best-of-n"} if number % 2 else plain), **failed},
        )
    for order in ("W17", "W18"):
        asked = (Message(role="user", content=f"Please refund my order {order}, today."),)
        db.held_calls.hold(
            held_call(arguments=f'{{"order": "{order}"}}', request_id="chatcmpl-shown-1", run=asked), most=9
        )
    db.held_calls.decide(1, None, approved=True, comment="A known customer.")
