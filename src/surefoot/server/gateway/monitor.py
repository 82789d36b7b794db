"""Is the deployed model still the one that was tested? Recent scores against earlier ones; and metrics."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from surefoot.guard import GuardDecision, Review
from surefoot.records import Usage
from surefoot.server.gateway.admission import Admission
from surefoot.server.gateway.connections import ConnectionTable
from surefoot.server.gateway.records import ScoreHistory
from surefoot.server.gateway.settings import MonitorSettings

Share = Literal["accepted", "abstained", "unparsed", "unscored"]
"""accepted: steps, or solutions of clients, that were accepted; abstained: answers withheld or missing;
unparsed: answers of a search without a final answer in them; unscored: of a search with a scorer, answers
with a step that has no score."""

SMOOTHING = 0.5
"""Added to each bin's count, so that an empty bin does not make the index infinite."""


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Recent scores beside the reference; ``None`` = too few."""

    psi: float | None
    ks: float | None
    """Kolmogorov and Smirnov's statistic, in [0, 1]."""
    ks_critical: float | None
    """What it exceeds by chance once in a thousand."""
    alarm: bool
    """The index is above its bound, and the statistic above its critical value."""


@dataclass
class Observations:
    """What the monitor learns from a request."""

    scores: list[float] = field(default_factory=list)
    events: list[tuple[Share, bool, int]] = field(default_factory=list)
    """Share, whether it happened, how often."""

    def score(self, values: Sequence[float | None]) -> None:
        """Step scores of an answer; unknown ones are skipped."""
        self.scores.extend(value for value in values if value is not None and math.isfinite(value))

    def count(self, share: Share, happened: bool, times: int = 1) -> None:
        """An event of a share, so many times."""
        self.events.append((share, happened, times))

    def tally(self) -> dict[str, float]:
        """For counters by the hour: ``accepted`` of ``accepted_of`` …, and ``score_sum`` over ``scores``."""
        tally: dict[str, float] = {}
        for share, happened, times in self.events:
            tally[share] = tally.get(share, 0) + happened * times
            tally[f"{share}_of"] = tally.get(f"{share}_of", 0) + times
        if self.scores:
            tally |= {"scores": len(self.scores), "score_sum": math.fsum(self.scores)}
        return tally


class Monitor:
    """Keeps a reference window of step scores, the latest ones, and the latest events of each share.

    The scores are those of the answers that were handed out, so a change in what clients ask for (problems,
    strategies) moves them as well as a change in policy or reward model.
    """

    def __init__(self, settings: MonitorSettings | None = None, reference: Sequence[float] = ()) -> None:
        self.settings = settings or MonitorSettings()
        self._reference = list(reference)
        self._complete = bool(reference)
        self._recent: deque[float] = deque(maxlen=self.settings.window)
        self._events: dict[Share, deque[bool]] = {
            "accepted": deque(maxlen=self.settings.window),
            "abstained": deque(maxlen=self.settings.window),
            "unparsed": deque(maxlen=self.settings.window),
            "unscored": deque(maxlen=self.settings.window),
        }

    def add(self, observations: Observations) -> None:
        """Add what a request showed."""
        for value in observations.scores:
            if not self._complete:
                self._reference.append(value)
                self._complete = len(self._reference) >= self.settings.reference
            else:
                self._recent.append(value)
        for share, happened, times in observations.events:
            self._events[share].extend([happened] * min(times, self.settings.window))

    def share(self, share: Share) -> float | None:
        """Share of the latest events; ``None`` = there were none."""
        events = self._events[share]
        return sum(events) / len(events) if events else None

    def alarm(self, share: Share) -> bool:
        """Whether a share is beyond its bound, over enough events."""
        value, bounds = self.share(share), self.settings
        if value is None or len(self._events[share]) < bounds.least:
            return False
        if share == "accepted":
            return value < bounds.accepted_below
        above = {
            "abstained": bounds.abstained_above,
            "unparsed": bounds.unparsed_above,
            "unscored": bounds.unscored_above,
        }
        return value > above[share]

    def drift(self) -> Drift:
        """How far the latest scores are from the reference."""
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
    """A monitor that resumes from the answers in a log, so that a restart does not make drifted scores the
    reference.

    The windows of scores are filled as they were; the shares begin anew. Raises ``StoreError``.
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

    Equal quantiles are one bound. Each count is raised by ``SMOOTHING``. Raises ``ValueError`` for no values.
    """
    if not reference or not recent:
        raise ValueError("'reference' and 'recent' must not be empty")
    ordered = sorted(reference)
    bounds = sorted({ordered[len(ordered) * k // bins] for k in range(1, bins)})
    p = _shares(reference, bounds)
    q = _shares(recent, bounds)
    return math.fsum((b - a) * math.log(b / a) for a, b in zip(p, q, strict=True))


def kolmogorov_smirnov(reference: Sequence[float], recent: Sequence[float]) -> float:
    """Largest difference between the two empirical distribution functions. ``ValueError`` for no values."""
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
    """Counters and histograms; what ``admission``, ``monitor`` and ``answer_failures`` hold is read
    when it is asked for."""

    def __init__(
        self,
        admission: Admission,
        monitor: Monitor,
        answer_failures: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.requests = Counter(
            "surefoot_requests", "Requests answered.", ["endpoint", "status"], registry=registry
        )
        self.seconds = Histogram(
            "surefoot_request_seconds",
            "Time to the whole answer.",
            ["endpoint"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.tokens = Counter("surefoot_tokens", "Tokens spent.", ["kind"], registry=registry)
        self.generated = Counter(
            "surefoot_choices", "Choices handed out, by strategy.", ["strategy"], registry=registry
        )
        self.disconnects = Counter(
            "surefoot_clients_left", "Clients that disconnected before their answer.", registry=registry
        )
        self.scorer_failures = Counter(
            "surefoot_scorer_failures", "Traces for which the reward model raised.", registry=registry
        )
        self.unscored_steps = Counter(
            "surefoot_unscored_steps",
            "Steps of clients' solutions that the reward model gave no finite score.",
            registry=registry,
        )
        self.log_failures = Counter(
            "surefoot_log_failures", "Answers that could not be recorded.", registry=registry
        )
        self.batches = Histogram(
            "surefoot_policy_batch_samples",
            "Samples of a call of the policy.",
            buckets=_SAMPLES,
            registry=registry,
        )
        self.verdicts = Counter(
            "surefoot_verdicts", "Answers of /v1/verify.", ["decision"], registry=registry
        )
        self.key_refusals = Counter(
            "surefoot_key_refusals",
            "Requests refused because of their key: invalid, or its role, scopes or rate.",
            ["reason"],
            registry=registry,
        )
        self.guard_seconds = Histogram(
            "surefoot_guard_seconds",
            "Time of all stages for a message with calls, without people's.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.guard_decisions = Counter(
            "surefoot_guard_decisions",
            "Messages with tool calls, by what became of them and the stage that decided.",
            ["action", "stage"],
            registry=registry,
        )
        self.guard_errors = Counter(
            "surefoot_guard_errors", "Stages that could not check a call.", ["stage"], registry=registry
        )
        self.guard_reviews = Counter(
            "surefoot_guard_reviews",
            "People's decisions on held calls; the share approved is that of false blocks.",
            ["decision"],
            registry=registry,
        )
        self.connections = ConnectionTable()
        registry.register(_Gauges(lambda: _gauges(admission, monitor, answer_failures)))
        registry.register(_Gauges(lambda: _connection_gauges(self.connections)))

    def add_usage(self, usage: Usage) -> None:
        """Count tokens."""
        self.tokens.labels("prompt").inc(usage.prompt_tokens)
        self.tokens.labels("completion").inc(usage.completion_tokens)
        self.tokens.labels("verifier").inc(usage.verifier_tokens)

    def add_decisions(self, decisions: Sequence[GuardDecision]) -> None:
        """Count what the guard decided, and the time that it took."""
        for decision in decisions:
            self.guard_seconds.observe(decision.latency_ms / 1000)
            self.guard_decisions.labels(decision.action, decision.by_stage or "none").inc()
            for verdict in {one.checker: one for call in decision.calls for one in call.stages}.values():
                if verdict.finding == "error":
                    self.guard_errors.labels(verdict.stage).inc()

    def count_review(self, review: Review) -> None:
        """Count a person's decision."""
        self.guard_reviews.labels("approved" if review.approved else "denied").inc()

    def key_refused(self, reason: str) -> None:
        """Count a refusal by its code."""
        self.key_refusals.labels(reason).inc()

    def text(self) -> bytes:
        """All of them in Prometheus's text format."""
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
