"""Prometheus metrics, and the chart of changes after a restart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from surefoot.answers.checker import TOO_LARGE, UNREADABLE
from surefoot.guard import Review
from surefoot.records import Usage
from surefoot.scores import is_scored
from surefoot.server.gateway.admission import Admission
from surefoot.server.gateway.changes import ChangeChart
from surefoot.server.gateway.choice import Choice
from surefoot.server.gateway.people import GoldStream
from surefoot.server.gateway.plan import PLAIN, Plan
from surefoot.server.gateway.request_log import Recorder
from surefoot.server.gateway.settings import MonitorSettings

if TYPE_CHECKING:
    from surefoot.server.store.requests import GoldSamples, RequestLog


def resume_chart(
    settings: MonitorSettings, log: RequestLog, *, policy: str, gold: GoldSamples | None = None
) -> ChangeChart:
    """A chart that resumes from a log, so that a change does not become the reference after a restart.

    Raises ``StoreError``.
    """
    chart, project = ChangeChart(settings), settings.gold_project
    results = gold.results(project) if gold is not None and project is not None else ()
    of_request = {result.request_id: result for result in results}
    for record in log.history(policy=policy, since=settings.since, first=settings.reference):
        if (result := of_request.get(record.request_id)) is not None:
            chart.add_result(result)
        chart.add(record)
    return chart


Event = Literal["accepted", "abstained", "unparsed", "unscored"]
"""accepted: accepted steps; abstained: answers withheld or missing; unparsed: searched answers without a
final answer; unscored: searched answers, and clients' solutions, with a step that was not scored."""
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_SAMPLES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_EVIDENCE = "A change is claimed from the requests per false alarm on."


class Metrics:
    """Counters and histograms; the arguments are read on each scrape."""

    def __init__(
        self,
        admission: Admission,
        chart: ChangeChart,
        recorder: Recorder,
        gold: GoldStream | None,
        answer_failures: Mapping[str, int],
    ) -> None:
        self.registry = CollectorRegistry()
        self._of: Callable[..., Any] = cache(lambda metric, *labels: metric.labels(*labels))
        """A metric with these labels."""

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"surefoot_{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
            return Histogram(f"surefoot_{name}", text, labels, registry=self.registry, buckets=buckets)

        self.requests = counter("requests", "Requests answered.", "endpoint", "status")
        self.seconds = histogram("request_seconds", "Time to the whole answer.", _SECONDS, "endpoint")
        self.tokens = counter("tokens", "Tokens spent.", "kind")
        self.add_usage(Usage())  # 0 from the start, so that the first use is an increase
        self.generated = counter("choices", "Choices returned, by method.", "method")
        unscored = "Choices among candidates of which none has a score, by method."
        self.unscored_choices = counter("unscored_choices", unscored, "method")
        self.scorer_failures = counter("scorer_failures", "Traces for which the reward model raised.")
        unscored = "Steps of clients' solutions that the reward model gave no finite score."
        self.unscored_steps = counter("unscored_steps", unscored)
        self.log_failures = counter("log_failures", "Answers that could not be recorded.")
        events = "What steps and answers came to; each kind either happened or did not."
        self.events = counter("events", events, "of", "happened")
        self.verdicts = counter("verdicts", "Solutions of /v1/score.", "decision")
        self.batches = histogram("policy_batch_samples", "Samples of a call of the policy.", _SAMPLES)
        refused = "Requests refused because of their key: invalid, or its role or rate."
        self.key_refusals = counter("key_refusals", refused, "reason")
        seconds = "Time of all stages for a message with calls, without people's."
        self.guard_seconds = histogram("guard_seconds", seconds, _SECONDS)
        decided = "Messages with tool calls, by action and deciding stage."
        self.guard_decisions = counter("guard_decisions", decided, "action", "stage")
        self.guard_errors = counter("guard_errors", "Stages that could not check a call.", "stage")
        reviewed = "People's decisions on held calls; the approved share estimates false blocks."
        self.guard_reviews = counter("guard_reviews", reviewed, "decision")
        gauges: list[tuple[str, str, Callable[[], float]]] = [
            ("running", "Requests that are worked on.", lambda: admission.running),
            ("waiting", "Requests that wait.", lambda: admission.waiting),
            ("stopping", "1 = the server is stopping.", lambda: admission.draining),
            ("record_queue", "Records that wait to be written.", lambda: recorder.waiting),
            ("clients_left_total", "Clients that disconnected before it.", lambda: admission.disconnects),
            ("change_evidence", _EVIDENCE, lambda: chart.change.evidence),
            ("change_alarm", "1 = a change is claimed.", lambda: chart.alarm),
        ]
        if gold is not None:
            gauges += [
                ("gold_queued_total", "Answers sent to people.", lambda: gold.queued),
                ("gold_lost_total", "Chosen answers that could not be queued.", lambda: gold.lost),
                ("gold_age_seconds", "Age of people's last label; NaN without one.", lambda: gold.age_s),
            ]
        for name, text, read in gauges:
            Gauge(f"surefoot_{name}", text, registry=self.registry).set_function(read)
        text = "Comparisons of answers that algebra could not make; they were compared as text."
        failures = Gauge("surefoot_answer_failures_total", text, ["reason"], registry=self.registry)
        for reason in (UNREADABLE, TOO_LARGE, "too_long", "error"):
            read = partial(answer_failures.__getitem__, reason)
            failures.labels(reason).set_function(read)

    def count_request(self, endpoint: str, status: int, seconds: float) -> None:
        """Count an answered request of a route."""
        self._of(self.requests, endpoint, str(status)).inc()
        self._of(self.seconds, endpoint).observe(seconds)

    def add_usage(self, usage: Usage) -> None:
        """Count tokens."""
        for kind in ("prompt", "completion", "verifier"):
            self._of(self.tokens, kind).inc(getattr(usage, f"{kind}_tokens") or 0)

    def count(self, event: Event, happened: bool, times: int = 1) -> None:
        """Count what happened, or did not, so many times."""
        self._of(self.events, event, "yes" if happened else "no").inc(times)

    def add_choices(self, plan: Plan, choices: Sequence[Choice]) -> None:
        """Count the choices of a request, what those of a search came to, and the guard's decisions."""
        method = plan.strategy.method
        for decision in (decision for choice in choices for decision in choice.decisions):
            self.guard_seconds.observe(decision.latency_ms / 1000)
            self.guard_decisions.labels(decision.action, decision.by_stage or "none").inc()
            stages = {stage.checker: stage for call in decision.calls for stage in call.stages}
            for verdict in stages.values():
                if verdict.finding == "error":
                    self.guard_errors.labels(verdict.stage).inc()
        self._of(self.generated, method).inc(len(choices))
        if unscored := sum(choice.finish == "unscored" for choice in choices):
            self.unscored_choices.labels(method).inc(unscored)
        for choice in choices if plan.strategy is not PLAIN else ():
            self._add_searched(plan, choice)

    def _add_searched(self, plan: Plan, choice: Choice) -> None:
        self.count("abstained", choice.abstained)
        if (best := choice.best) is None:
            return
        if not choice.tool_calls:
            self.count("unparsed", best.trace.answer is None)
        if best.scores is None:
            return
        scores, threshold = best.new_scores, plan.threshold
        self.count("unscored", not is_scored(scores, plan.aggregation))
        if threshold is not None:
            accepted = sum(score is not None and score >= threshold for score in scores)
            self.count("accepted", True, accepted)
            self.count("accepted", False, len(scores) - accepted + len(choice.dropped))

    def count_review(self, review: Review) -> None:
        """Count a person's decision about a held call."""
        self.guard_reviews.labels("approved" if review.approved else "denied").inc()

    def text(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self.registry)
