"""Monitoring: shares of the latest events, changes against a reference, and Prometheus metrics."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from surefoot.guard import Review
from surefoot.records import Usage
from surefoot.scores import is_scored
from surefoot.server.gateway.admission import Admission
from surefoot.server.gateway.changes import ChangeChart
from surefoot.server.gateway.choice import Choice
from surefoot.server.gateway.people import GoldStream
from surefoot.server.gateway.plan import Plan
from surefoot.server.gateway.request_log import Recorder
from surefoot.server.gateway.settings import MonitorSettings
from surefoot.stats.intervals import Interval, wilson_interval

if TYPE_CHECKING:
    from surefoot.server.store.requests import GoldSamples, RequestLog

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
_EVIDENCE = "A change is claimed from the requests per false alarm on."


class Metrics:
    """Counters and histograms; the arguments are read on each scrape."""

    def __init__(
        self,
        admission: Admission,
        monitor: Monitor,
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
        for name, text, read in (
            ("running", "Requests that are worked on.", lambda: admission.running),
            ("waiting", "Requests that wait.", lambda: admission.waiting),
            ("stopping", "1 = the server is stopping.", lambda: admission.draining),
            ("record_queue", "Records that wait to be written.", lambda: recorder.waiting),
            ("change_evidence", _EVIDENCE, lambda: monitor.chart.change.evidence),
        ):
            Gauge(f"surefoot_{name}", text, registry=self.registry).set_function(read)
        self.registry.register(_Read(admission, monitor, gold, answer_failures))

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

    def count_review(self, review: Review) -> None:
        """Count a person's decision about a held call."""
        self.guard_reviews.labels("approved" if review.approved else "denied").inc()

    def text(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self.registry)


class _Read(Collector):
    """Metrics that are counted elsewhere, and those whose labels are known only then."""

    def __init__(
        self,
        admission: Admission,
        monitor: Monitor,
        gold: GoldStream | None,
        answer_failures: Mapping[str, int],
    ) -> None:
        self._admission, self._monitor, self._gold = admission, monitor, gold
        self._answer_failures = answer_failures

    def collect(self) -> Iterator[Metric]:
        monitor, gold = self._monitor, self._gold
        text = "Comparisons of answers that algebra could not make; they were compared as text."
        failures = CounterMetricFamily("surefoot_answer_failures", text, labels=["reason"])
        for reason, count in sorted(dict(self._answer_failures).items()):
            failures.add_metric([reason], count)
        text = "Clients that disconnected before their answer."
        left = CounterMetricFamily("surefoot_clients_left", text, self._admission.disconnects)
        shares = GaugeMetricFamily("surefoot_share", "Share of the latest events.", labels=["of"])
        alarms = GaugeMetricFamily("surefoot_alarm", "1 = beyond its bound.", labels=["of"])
        for share in get_args(Share):
            if (part := monitor.share(share)) is not None:
                shares.add_metric([share], part)
            alarms.add_metric([share], float(monitor.alarm(share)))
        alarms.add_metric(["change"], float(monitor.chart.change.alarm))
        yield from (failures, left, shares, alarms)
        if gold is None:
            return
        yield CounterMetricFamily("surefoot_gold_queued", "Answers sent to people.", gold.queued)
        text = "Chosen answers that could not be queued."
        yield CounterMetricFamily("surefoot_gold_lost", text, gold.lost)
        if gold.last_label is not None:
            age = (datetime.now(UTC) - gold.last_label).total_seconds()
            yield GaugeMetricFamily("surefoot_gold_age_seconds", "Age of people's last label.", age)
