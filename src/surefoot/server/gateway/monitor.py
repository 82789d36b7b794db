"""Monitoring: drift of the reward model's scores against a reference window, and Prometheus metrics."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from surefoot.guard import GuardDecision, Review
from surefoot.records import Usage
from surefoot.scores import is_scored
from surefoot.server.gateway.admission import Admission
from surefoot.server.gateway.connections import ConnectionTable
from surefoot.server.gateway.generation import Choice
from surefoot.server.gateway.plan import Plan
from surefoot.server.gateway.records import ScoreHistory
from surefoot.server.gateway.settings import MonitorSettings

Share = Literal["accepted", "abstained", "unparsed", "unscored"]
"""accepted: accepted steps, or accepted solutions of clients; abstained: answers withheld or missing;
unparsed: searched answers without a final answer; unscored: searched and scored answers with a step that was
not scored."""

SMOOTHING = 0.5
"""Added to each bin's count, so that an empty bin does not make the index infinite."""


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Recent scores compared with the reference; ``None`` if there are too few."""

    psi: float | None
    ks: float | None
    """Kolmogorov and Smirnov's statistic, in [0, 1]."""
    ks_critical: float | None
    """Critical value at the 0.1 % level."""
    alarm: bool
    """The index is above its bound, and the statistic above its critical value."""


@dataclass
class Observations:
    """Scores and events of one request, for the monitor."""

    scores: list[float] = field(default_factory=list)
    events: list[tuple[Share, bool, int]] = field(default_factory=list)
    """Share, whether it happened, how often."""

    def score(self, values: Sequence[float | None]) -> None:
        """Add the step scores of an answer, without missing ones."""
        self.scores.extend(value for value in values if value is not None and math.isfinite(value))

    def count(self, share: Share, happened: bool, times: int = 1) -> None:
        """Add an event of a share."""
        self.events.append((share, happened, times))

    def add_choice(self, plan: Plan, choice: Choice) -> None:
        """Add the answer of a search; answers of the policy alone are not observed."""
        if plan.strategy.search is None:
            return
        self.count("abstained", choice.abstained)
        best = choice.best
        if best is None:
            return
        if not choice.tool_calls:
            self.count("unparsed", best.trace.answer is None)
        if best.scores is None:
            return
        scores = best.new_scores
        if not choice.abstained:
            self.score(scores)
        self.count("unscored", not is_scored(scores, plan.aggregation))
        threshold = plan.strategy.threshold
        if threshold is not None:
            accepted = sum(score is not None and score >= threshold for score in scores)
            self.count("accepted", True, accepted)
            self.count("accepted", False, len(scores) - accepted + len(choice.dropped))


class Monitor:
    """Keeps a reference window of step scores, the latest scores, and the latest events of each share.

    Scores come from released answers, so a change in the clients' problems or strategies shifts them as well
    as a change in the policy or the reward model.
    """

    def __init__(self, settings: MonitorSettings | None = None, reference: Sequence[float] = ()) -> None:
        self.settings = settings or MonitorSettings()
        self._reference = list(reference)
        self._complete = bool(reference)
        self._recent: deque[float] = deque(maxlen=self.settings.window)
        self._events: dict[Share, deque[bool]] = {
            share: deque(maxlen=self.settings.window) for share in get_args(Share)
        }

    def add(self, observations: Observations) -> None:
        """Add the observations of a request."""
        for value in observations.scores:
            if not self._complete:
                self._reference.append(value)
                self._complete = len(self._reference) >= self.settings.reference
            else:
                self._recent.append(value)
        for share, happened, times in observations.events:
            self._events[share].extend([happened] * min(times, self.settings.window))

    def share(self, share: Share) -> float | None:
        """Share of the latest events; ``None`` without events."""
        events = self._events[share]
        return sum(events) / len(events) if events else None

    def alarm(self, share: Share) -> bool:
        """Whether a share is beyond its bound, if there are enough events."""
        value, bounds = self.share(share), self.settings
        if value is None or len(self._events[share]) < bounds.least:
            return False
        if share == "accepted":
            return value < bounds.accepted_below
        limit: float = getattr(bounds, f"{share}_above")
        return value > limit

    def drift(self) -> Drift:
        """Distance of the latest scores from the reference."""
        least = self.settings.least
        if min(len(self._reference), len(self._recent)) < least or not self._complete:
            return Drift(psi=None, ks=None, ks_critical=None, alarm=False)
        recent = list(self._recent)
        psi = stability_index(self._reference, recent, self.settings.bins)
        ks = kolmogorov_smirnov(self._reference, recent)
        n, m = len(self._reference), len(recent)
        critical = math.sqrt(-math.log(0.001 / 2) / 2) * math.sqrt((n + m) / (n * m))
        return Drift(
            psi=psi, ks=ks, ks_critical=critical, alarm=psi > self.settings.psi_above and ks > critical
        )


def resume_monitor(settings: MonitorSettings, log: ScoreHistory, *, policy: str, scorer: str) -> Monitor:
    """A monitor that resumes from a log, so that drifted scores do not become the reference after a restart.

    The windows of scores are restored; the shares start empty. Raises ``StoreError``.
    """
    monitor = Monitor(settings)
    first = log.scores(policy=policy, scorer=scorer, since=settings.since, limit=settings.reference)
    last = (first[-1].created, first[-1].request_id) if first else None
    latest = log.scores(
        policy=policy, scorer=scorer, since=settings.since, latest=True, limit=settings.window
    )
    new = [row for row in latest if last is not None and (row.created, row.request_id) > last]
    for row in (*first, *new):
        observations = Observations()
        observations.score(row.scores)
        monitor.add(observations)
    return monitor


def stability_index(reference: Sequence[float], recent: Sequence[float], bins: int = 10) -> float:
    """Population stability index Σ (q - p) ln(q / p) over the reference's quantile bins.

    Equal quantiles are one bound, and ``SMOOTHING`` is added to each count. Raises ``ValueError`` for empty
    samples.
    """
    if not reference or not recent:
        raise ValueError("'reference' and 'recent' must not be empty")
    ordered = sorted(reference)
    bounds = sorted({ordered[len(ordered) * k // bins] for k in range(1, bins)})
    p = _shares(reference, bounds)
    q = _shares(recent, bounds)
    return math.fsum((b - a) * math.log(b / a) for a, b in zip(p, q, strict=True))


def kolmogorov_smirnov(reference: Sequence[float], recent: Sequence[float]) -> float:
    """Largest difference of the two empirical distributions. Raises ``ValueError`` for empty samples."""
    if not reference or not recent:
        raise ValueError("'reference' and 'recent' must not be empty")
    first, second = sorted(reference), sorted(recent)
    return max(
        abs(bisect_right(first, value) / len(first) - bisect_right(second, value) / len(second))
        for value in {*first, *second}
    )


def _shares(values: Sequence[float], bounds: Sequence[float]) -> list[float]:
    counts = [SMOOTHING] * (len(bounds) + 1)
    for value in values:
        counts[bisect_right(bounds, value)] += 1
    total = math.fsum(counts)
    return [count / total for count in counts]


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
        counter, histogram = (
            partial(Counter, registry=self.registry),
            partial(Histogram, registry=self.registry),
        )
        self.requests = counter("surefoot_requests", "Requests answered.", ["endpoint", "status"])
        self.seconds = histogram(
            "surefoot_request_seconds", "Time to the whole answer.", ["endpoint"], buckets=_SECONDS
        )
        self.tokens = counter("surefoot_tokens", "Tokens spent.", ["kind"])
        self.generated = counter("surefoot_choices", "Choices returned, by strategy.", ["strategy"])
        self.unscored_choices = counter(
            "surefoot_unscored_choices",
            "Choices among candidates of which none has a score, by strategy.",
            ["strategy"],
        )
        self.disconnects = counter("surefoot_clients_left", "Clients that disconnected before their answer.")
        self.scorer_failures = counter(
            "surefoot_scorer_failures", "Traces for which the reward model raised."
        )
        self.unscored_steps = counter(
            "surefoot_unscored_steps",
            "Steps of clients' solutions that the reward model gave no finite score.",
        )
        self.log_failures = counter("surefoot_log_failures", "Answers that could not be recorded.")
        self.batches = histogram(
            "surefoot_policy_batch_samples", "Samples of a call of the policy.", buckets=_SAMPLES
        )
        self.verdicts = counter("surefoot_verdicts", "Answers of /v1/verify.", ["decision"])
        self.key_refusals = counter(
            "surefoot_key_refusals",
            "Requests refused because of their key: invalid, or its role, scopes or rate.",
            ["reason"],
        )
        self.guard_seconds = histogram(
            "surefoot_guard_seconds",
            "Time of all stages for a message with calls, without people's.",
            buckets=_SECONDS,
        )
        self.guard_decisions = counter(
            "surefoot_guard_decisions",
            "Messages with tool calls, by action and deciding stage.",
            ["action", "stage"],
        )
        self.guard_errors = counter("surefoot_guard_errors", "Stages that could not check a call.", ["stage"])
        self.guard_reviews = counter(
            "surefoot_guard_reviews",
            "People's decisions on held calls; the approved share estimates false blocks.",
            ["decision"],
        )
        self.connections = ConnectionTable()
        self.registry.register(_Gauges(lambda: _gauges(admission, monitor, answer_failures)))
        self.registry.register(_Gauges(lambda: _connection_gauges(self.connections)))

    def add_usage(self, usage: Usage) -> None:
        """Count tokens."""
        self.tokens.labels("prompt").inc(usage.prompt_tokens)
        self.tokens.labels("completion").inc(usage.completion_tokens)
        self.tokens.labels("verifier").inc(usage.verifier_tokens)

    def add_choices(self, strategy: str, choices: Sequence[Choice]) -> None:
        """Count the choices of a request, and those among candidates without a score."""
        self.generated.labels(strategy).inc(len(choices))
        if unscored := sum(choice.finish == "unscored" for choice in choices):
            self.unscored_choices.labels(strategy).inc(unscored)

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


def _connection_gauges(table: ConnectionTable) -> Iterator[Metric]:
    yield GaugeMetricFamily("surefoot_connections", "Open connections.", table.total)
    closed = CounterMetricFamily(
        "surefoot_connections_closed", "Connections refused or closed by the server.", labels=["reason"]
    )
    for reason, count in sorted(table.closed.items()):
        closed.add_metric([reason], count)
    yield closed


def _gauges(admission: Admission, monitor: Monitor, answer_failures: Mapping[str, int]) -> Iterator[Metric]:
    failures = CounterMetricFamily(
        "surefoot_answer_failures",
        "Comparisons of answers that algebra could not make; they were compared as text.",
        labels=["reason"],
    )
    for reason, count in sorted(dict(answer_failures).items()):
        failures.add_metric([reason], count)
    yield failures
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
    drift = monitor.drift()
    alarms.add_metric(["drift"], float(drift.alarm))
    yield shares
    yield alarms
    if drift.psi is not None and drift.ks is not None and drift.ks_critical is not None:
        yield GaugeMetricFamily(
            "surefoot_score_psi", "Population stability index of the latest step scores.", drift.psi
        )
        yield GaugeMetricFamily("surefoot_score_ks", "Kolmogorov-Smirnov statistic of the same.", drift.ks)
        yield GaugeMetricFamily(
            "surefoot_score_ks_critical", "What chance exceeds once in a thousand.", drift.ks_critical
        )
