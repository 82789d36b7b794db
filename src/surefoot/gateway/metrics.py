"""Prometheus metrics of one gateway, in a separate registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from surefoot.gateway.admission import Admission
from surefoot.gateway.monitor import Monitor, Share
from surefoot.records import Usage

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_SAMPLES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_ALARMS = "1 = beyond its bound."


class Metrics:
    """Counters and histograms; gauges are read from ``admission`` and ``monitor`` when they are asked for."""

    def __init__(self, admission: Admission, monitor: Monitor) -> None:
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
        registry.register(_Gauges(lambda: _gauges(admission, monitor)))

    def add_usage(self, usage: Usage) -> None:
        """Count tokens."""
        self.tokens.labels("prompt").inc(usage.prompt_tokens)
        self.tokens.labels("completion").inc(usage.completion_tokens)
        self.tokens.labels("verifier").inc(usage.verifier_tokens)

    def text(self) -> bytes:
        """All of them in Prometheus's text format."""
        return generate_latest(self.registry)


class _Gauges(Collector):
    def __init__(self, read: Callable[[], Iterator[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        return self._read()


def _gauges(admission: Admission, monitor: Monitor) -> Iterator[Metric]:
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
