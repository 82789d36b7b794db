"""Answered requests for a monitor, with some noise by their number."""

from __future__ import annotations

from datetime import UTC, datetime

from surefoot.records import Problem, StepScores, Trace
from surefoot.segment import segment_trace
from surefoot.server import ChangeChart, GatewayCandidate, GatewayRecord, MonitorSettings


def request_of(number: int, score: float) -> GatewayRecord:
    noise = number % 7
    problem = Problem(text=f"What is it{' now' * noise}?")
    text = f"{'so ' * noise}it\nis 4."
    trace = segment_trace(Trace(problem_id=problem.id, text=text, answer="4"))
    score += 0.01 * noise
    scores = StepScores(trace_id=trace.id, scorer="prm", scores=(score,) * len(trace.steps))
    return GatewayRecord(
        request_id=f"r{number}", created=datetime.now(UTC), endpoint="/v1/chat/completions", model="m",
        strategy="best-of-n:n=2", policy="p", status=200, latency_ms=1, problem=problem,
        candidates=(GatewayCandidate(trace=trace, chosen=True, score=score, scores=scores),),
    )  # fmt: skip


def changed_monitor() -> ChangeChart:
    """A monitor whose answers' scores fell 30 requests ago."""
    monitor = ChangeChart(MonitorSettings(reference=100, run_length=1000))
    for number in range(180):
        monitor.add(request_of(number, 0.8 if number < 150 else 0.2))
    return monitor
