"""Monitoring: shares of the latest events, changes against a reference, and Prometheus metrics."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from surefoot.guard import GuardDecision, Review
from surefoot.records import Usage
from surefoot.scores import is_scored
from surefoot.server.gateway.admission import Admission
from surefoot.server.gateway.changes import ChangeChart
from surefoot.server.gateway.choice import Choice
from surefoot.server.gateway.gold import GoldStream
from surefoot.server.gateway.plan import Plan
from surefoot.server.gateway.request_log import Recorder
from surefoot.server.gateway.settings import MonitorSettings
from surefoot.stats.intervals import Interval, wilson_interval

if TYPE_CHECKING:
    from surefoot.server.store.gold import GoldSamples
    from surefoot.server.store.requests import RequestLog

Share = Literal["accepted", "abstained", "unparsed", "unscored"]
"""accepted: accepted steps; abstained: answers withheld or missing; unparsed: searched answers without a
final answer; unscored: searched answers, and clients' solutions, with a step that was not scored."""


class Monitor:
    """Watches answered requests: the latest events of each share, and a chart of changes.

    Changes in the clients' questions are changes, too: ``chart.change`` names the signals that changed.
    """

    def __init__(self, settings: MonitorSettings | None = None) -> None:
        self.settings = settings or MonitorSettings()
        self.chart = ChangeChart(self.settings)
        self._events: dict[Share, deque[bool]] = {share: deque() for share in get_args(Share)}
        self._happened: dict[Share, int] = dict.fromkeys(get_args(Share), 0)
        """Number of true events."""

    def count(self, share: Share, happened: bool, times: int = 1) -> None:
        """Add an event of a share, which happened, or not, so many times."""
        events, most = self._events[share], self.settings.window
        times = min(times, most)
        events.extend([happened] * times)
        self._happened[share] += happened * times
        while len(events) > most:
            self._happened[share] -= events.popleft()

    def add_choices(self, plan: Plan, choices: Sequence[Choice]) -> None:
        """Add the answers of a search; answers of the policy alone are not counted."""
        if plan.strategy.search is None:
            return
        for choice in choices:
            self.count("abstained", choice.abstained)
            best = choice.best
            if best is None:
                continue
            if not choice.tool_calls:
                self.count("unparsed", best.trace.answer is None)
            if best.scores is None:
                continue
            scores, threshold = best.new_scores, plan.strategy.threshold
            self.count("unscored", not is_scored(scores, plan.aggregation))
            if threshold is not None:
                accepted = sum(score is not None and score >= threshold for score in scores)
                self.count("accepted", True, accepted)
                self.count("accepted", False, len(scores) - accepted + len(choice.dropped))

    def share(self, share: Share) -> float | None:
        """Share of the latest events; ``None`` without events."""
        events = self._events[share]
        return self._happened[share] / len(events) if events else None

    def interval(self, share: Share) -> Interval | None:
        """The share with its 95 % interval, as if the events were independent; ``None`` without events."""
        events = self._events[share]
        return wilson_interval(self._happened[share], len(events)) if events else None

    def alarm(self, share: Share) -> bool:
        """Whether a share is beyond its bound, if there are enough events."""
        value, bounds = self.share(share), self.settings
        if value is None or len(self._events[share]) < bounds.least:
            return False
        if share == "accepted":
            return value < bounds.accepted_below
        limit: float = getattr(bounds, f"{share}_above")
        return value > limit


def resume_monitor(
    settings: MonitorSettings, log: RequestLog, *, policy: str, gold: GoldSamples | None = None
) -> Monitor:
    """A monitor that resumes from a log, so that a change does not become the reference after a restart.

    The shares start empty. Raises ``StoreError``.
    """
    monitor = Monitor(settings)
    project = settings.gold_project
    results = gold.results(project) if gold is not None and project is not None else ()
    of_request = {result.request_id: result for result in results}
    for record in log.history(policy=policy, since=settings.since, first=settings.reference):
        if (result := of_request.get(record.request_id)) is not None:
            monitor.chart.add_result(result)
        monitor.chart.add(record)
    return monitor


_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_SAMPLES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_ALARMS = "1 = beyond its bound."


class Metrics:
    """Counters and histograms; ``admission``, ``monitor`` and ``answer_failures`` are read on each scrape."""

    def __init__(
        self,
        admission: Admission,
        monitor: Monitor,
        answer_failures: Mapping[str, int] = MappingProxyType({}),
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
        self.generated = counter("choices", "Choices returned, by method.", "method")
        unscored = "Choices among candidates of which none has a score, by method."
        self.unscored_choices = counter("unscored_choices", unscored, "method")
        self.scorer_failures = counter("scorer_failures", "Traces for which the reward model raised.")
        unscored = "Steps of clients' solutions that the reward model gave no finite score."
        self.unscored_steps = counter("unscored_steps", unscored)
        self.log_failures = counter("log_failures", "Answers that could not be recorded.")
        self.verdicts = counter("verdicts", "Solutions of /v1/score.", "decision")
        self.batches = histogram("policy_batch_samples", "Samples of a call of the policy.", _SAMPLES)
        refused = "Requests refused because of their key: invalid, or its role, scopes or rate."
        self.key_refusals = counter("key_refusals", refused, "reason")
        seconds = "Time of all stages for a message with calls, without people's."
        self.guard_seconds = histogram("guard_seconds", seconds, _SECONDS)
        decided = "Messages with tool calls, by action and deciding stage."
        self.guard_decisions = counter("guard_decisions", decided, "action", "stage")
        self.guard_errors = counter("guard_errors", "Stages that could not check a call.", "stage")
        reviewed = "People's decisions on held calls; the approved share estimates false blocks."
        self.guard_reviews = counter("guard_reviews", reviewed, "decision")
        self.registry.register(_Gauges(lambda: _gauges(admission, monitor, answer_failures)))

    def watch_itself(
        self, recorder: Recorder, gold: GoldStream | None, threshold: float, fitted_on: str
    ) -> None:
        """Also measure what the monitor depends on; ``fitted_on`` says where the threshold comes from."""
        self.registry.register(_Gauges(lambda: _own_gauges(recorder, gold, threshold, fitted_on)))

    def count_request(self, endpoint: str, status: int, seconds: float) -> None:
        """Count an answered request of a route."""
        self._of(self.requests, endpoint, str(status)).inc()
        self._of(self.seconds, endpoint).observe(seconds)

    def add_usage(self, usage: Usage) -> None:
        """Count tokens."""
        self._of(self.tokens, "prompt").inc(usage.prompt_tokens)
        self._of(self.tokens, "completion").inc(usage.completion_tokens)
        self._of(self.tokens, "verifier").inc(usage.verifier_tokens)

    def add_choices(self, method: str, choices: Sequence[Choice]) -> None:
        """Count the choices of a request, those among candidates without a score, and the guard's
        decisions."""
        for choice in choices:
            self.add_decisions(choice.decisions)
        self._of(self.generated, method).inc(len(choices))
        if unscored := sum(choice.finish == "unscored" for choice in choices):
            self.unscored_choices.labels(method).inc(unscored)

    def add_decisions(self, decisions: Sequence[GuardDecision]) -> None:
        """Count decisions of the guard, and its time."""
        for decision in decisions:
            self.guard_seconds.observe(decision.latency_ms / 1000)
            self.guard_decisions.labels(decision.action, decision.by_stage or "none").inc()
            for verdict in {
                stage.checker: stage for call in decision.calls for stage in call.stages
            }.values():
                if verdict.finding == "error":
                    self.guard_errors.labels(verdict.stage).inc()

    def count_review(self, review: Review) -> None:
        """Count a person's decision about a held call."""
        self.guard_reviews.labels("approved" if review.approved else "denied").inc()

    def key_refused(self, reason: str) -> None:
        """Count a refusal by its code."""
        self.key_refusals.labels(reason).inc()

    def text(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self.registry)


class _Gauges(Collector):
    def __init__(self, read: Callable[[], Iterator[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        return self._read()


def _own_gauges(
    recorder: Recorder, gold: GoldStream | None, threshold: float, fitted_on: str
) -> Iterator[Metric]:
    yield GaugeMetricFamily("surefoot_record_queue", "Records that wait to be written.", recorder.waiting)
    bound = GaugeMetricFamily("surefoot_threshold", "A step below this is bad.", labels=["fitted_on"])
    bound.add_metric([fitted_on], threshold)
    yield bound
    if gold is None:
        return
    yield CounterMetricFamily("surefoot_gold_queued", "Answers sent to people.", gold.queued)
    yield CounterMetricFamily("surefoot_gold_lost", "Chosen answers that could not be queued.", gold.lost)
    if gold.last_label is not None:
        age = (datetime.now(UTC) - gold.last_label).total_seconds()
        yield GaugeMetricFamily("surefoot_gold_age_seconds", "Age of people's last label.", age)


def _gauges(admission: Admission, monitor: Monitor, answer_failures: Mapping[str, int]) -> Iterator[Metric]:
    failures = CounterMetricFamily(
        "surefoot_answer_failures",
        "Comparisons of answers that algebra could not make; they were compared as text.",
        labels=["reason"],
    )
    for reason, count in sorted(dict(answer_failures).items()):
        failures.add_metric([reason], count)
    yield failures
    text = "Clients that disconnected before their answer."
    yield CounterMetricFamily("surefoot_clients_left", text, admission.disconnects)
    yield GaugeMetricFamily("surefoot_running", "Requests that are worked on.", admission.running)
    yield GaugeMetricFamily("surefoot_waiting", "Requests that wait.", admission.waiting)
    yield GaugeMetricFamily("surefoot_stopping", "1 = the server is stopping.", admission.draining)
    shares = GaugeMetricFamily("surefoot_share", "Share of the latest events.", labels=["of"])
    alarms = GaugeMetricFamily("surefoot_alarm", _ALARMS, labels=["of"])
    for share in get_args(Share):
        value = monitor.share(share)
        if value is not None:
            shares.add_metric([share], value)
        alarms.add_metric([share], float(monitor.alarm(share)))
    change = monitor.chart.change
    alarms.add_metric(["change"], float(change.alarm))
    yield shares
    yield alarms
    yield GaugeMetricFamily(
        "surefoot_change_evidence",
        f"A change is claimed from {monitor.settings.run_length:g}, the requests per false alarm.",
        change.evidence,
    )
