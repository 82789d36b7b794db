"""Over-optimisation: the maximised score (proxy) and the truth (gold) against the optimisation pressure.

Best of N is KL = log N - (N - 1) / N away from the policy. The proxy keeps rising; gold rises and, if the
proxy can be fooled, falls again (Gao et al. 2022, arXiv 2210.10760). For best-of-N their law is
gold(d) - gold(0) = d (alpha - beta d) with d = sqrt(KL), highest at d = alpha / (2 beta).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from surefoot.errors import ScoreError
from surefoot.evaluation.audits.cases import AuditedScorer
from surefoot.evaluation.frame import SMALLEST_GAIN, Card, card
from surefoot.evaluation.report import Plot, Section
from surefoot.evaluation.splits import half_of
from surefoot.evaluation.step_layout import FloatArray
from surefoot.protocols import ProblemTrace
from surefoot.records import Trace, Usage
from surefoot.search.estimators import best_of_n, pass_at_k
from surefoot.stats.bootstrap import bootstrap_mean
from surefoot.stats.intervals import Interval


@dataclass(frozen=True, kw_only=True)
class Pressure:
    """Best of ``n``: expected proxy and gold, mean over problems with intervals."""

    n: int
    kl: float
    """log n - (n - 1) / n, in nats."""
    proxy: Interval
    gold: Interval
    """Share of correct answers."""
    ceiling: float
    """pass@n: no choice does better."""


@dataclass(frozen=True, kw_only=True)
class OverOptimisationAudit:
    """One scorer's curves, and where proxy and gold diverge."""

    scorer: str
    rule: str
    points: list[Pressure]
    peak: int
    """N of the highest gold; the lowest N among equals."""
    peak_interval: tuple[int, int]
    """95 % of the bootstrap draws of problems have their peak within."""
    peak_at_end: float
    """Share of the draws whose gold is highest at the largest N: no sign of a fall so far."""
    gain: Interval
    """Gold at the largest N less gold at N = 1, paired by problem."""
    fall: Interval
    """Gold at the peak less gold at the largest N. The peak is located on one half of the problems and the
    fall measured on the other, both ways; otherwise the highest of noisy points would look like a peak."""
    alpha: float
    """Of Gao's law, by least squares; NaN with fewer than three sizes."""
    beta: Interval
    """Above 0: gold bends down."""
    problems: int
    too_small: int
    """Problems left out because they have fewer than ``samples_needed`` scored traces."""
    samples_needed: int
    unscored: int
    """Traces left out for lack of an aggregated score."""
    no_outcome: int
    """Traces left out for lack of an outcome."""
    usage: Usage


def best_of_n_kl(n: int) -> float:
    """KL from the policy to best-of-n of its samples, log n - (n - 1) / n nats; an upper bound with ties."""
    return math.log(n) - (n - 1) / n


def audit_over_optimisation(
    audited: AuditedScorer,
    items: Sequence[ProblemTrace],
    *,
    largest: int | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> OverOptimisationAudit:
    """Gold and proxy for best of 1, 2, 3, 4, 6, 8, 12 … of each problem's scored traces (unbiased estimates).

    The selector is :class:`surefoot.search.BestOfN`, so traces without a final answer come last.
    ``largest`` is the largest N; problems with fewer traces are left out and counted. Without it, it is the
    size that at least nine in ten problems have. Raises ``ScoreError`` if no problem has two scored traces.
    """
    judged = [item for item in items if item.trace.outcome is not None]
    scores = audited.score(judged)
    pools: dict[str, list[tuple[float, Trace]]] = {}
    for item, score in zip(judged, scores.traces.tolist(), strict=True):
        if not math.isnan(score):
            pools.setdefault(item.problem.id, []).append((score, item.trace))
    needed = largest or (int(np.quantile([len(p) for p in pools.values()], 0.1)) if pools else 0)
    large = {name: pool for name, pool in pools.items() if len(pool) >= max(needed, 2)}
    if not large:
        raise ScoreError(
            f"{audited.name}: no problem has {max(needed, 2)} traces with score and outcome; sample more"
        )
    sizes = sizes_to(needed)
    gold, proxy, ceiling = (np.empty((len(large), len(sizes))) for _ in range(3))
    for row, pool in enumerate(large.values()):
        values, right = [score for score, _ in pool], [trace.outcome is True for _, trace in pool]
        answers = [trace.answer for _, trace in pool]
        gold[row] = [best_of_n(values, right, n, answers=answers) for n in sizes]
        proxy[row] = [best_of_n(values, values, n, answers=answers) for n in sizes]
        ceiling[row] = [pass_at_k(len(pool), sum(right), n) for n in sizes]
    resampled = _resampled(gold, draws, np.random.default_rng(seed))
    peaks = _peaks(resampled)
    peak_low, peak_high = np.quantile(peaks, [0.025, 0.975], method="nearest")
    distance = np.sqrt([best_of_n_kl(n) for n in sizes])
    alpha, beta = fit_law(distance, gold.mean(axis=0)[None])[0].tolist()
    beta_low, beta_high = np.quantile(fit_law(distance, resampled)[:, 1], [0.025, 0.975]).tolist()
    return OverOptimisationAudit(
        scorer=audited.name,
        rule=audited.rule,
        points=[
            Pressure(
                n=n,
                kl=best_of_n_kl(n),
                proxy=bootstrap_mean(proxy[:, at], draws=draws, rng=np.random.default_rng(seed)),
                gold=bootstrap_mean(gold[:, at], draws=draws, rng=np.random.default_rng(seed)),
                ceiling=float(ceiling[:, at].mean()),
            )
            for at, n in enumerate(sizes)
        ],
        peak=sizes[int(_peaks(gold.mean(axis=0)[None])[0])],
        peak_interval=(sizes[int(peak_low)], sizes[int(peak_high)]),
        peak_at_end=float((peaks == len(sizes) - 1).mean()),
        gain=bootstrap_mean(gold[:, -1] - gold[:, 0], draws=draws, rng=np.random.default_rng(seed)),
        fall=bootstrap_mean(_falls(gold, list(large)), draws=draws, rng=np.random.default_rng(seed)),
        alpha=alpha,
        beta=Interval(value=beta, low=beta_low, high=beta_high),
        problems=len(large),
        too_small=len({item.problem.id for item in items}) - len(large),
        samples_needed=max(needed, 2),
        unscored=int(np.isnan(scores.traces).sum()),
        no_outcome=len(items) - len(judged),
        usage=scores.usage,
    )


def sizes_to(largest: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, 16 … below ``largest``, and ``largest``."""
    doubling = {1 << power for power in range(largest.bit_length())}
    return sorted({n for n in doubling | {3 * n // 2 for n in doubling} if n < largest} | {largest})


def fit_law(distance: FloatArray, gold: FloatArray) -> FloatArray:
    """``alpha`` and ``beta`` of gold(d) - gold(0) = d (alpha - beta d) by least squares, [curves, 2].

    ``distance`` [sizes] is sqrt(KL), rising from 0; ``gold`` is [curves, sizes]. NaN with fewer than three
    sizes.
    """
    if len(distance) < 3:
        return np.full((len(gold), 2), math.nan)
    terms = np.stack([distance[1:], -(distance[1:] ** 2)], axis=1)
    return np.asarray(np.linalg.lstsq(terms, (gold[:, 1:] - gold[:, :1]).T, rcond=None)[0].T)


def _resampled(gold: FloatArray, draws: int, rng: np.random.Generator) -> FloatArray:
    """Mean curves of bootstrap samples of problems, [draws, sizes]."""
    counts = rng.multinomial(len(gold), np.full(len(gold), 1 / len(gold)), size=draws)
    return np.asarray(counts @ gold / len(gold))


def _peaks(curves: FloatArray) -> np.ndarray:
    """Index of each curve's maximum, [curves]; the first of those equal but for rounding."""
    return np.asarray((curves >= curves.max(axis=1, keepdims=True) - 1e-12).argmax(axis=1))


def _falls(gold: FloatArray, problems: Sequence[str]) -> FloatArray:
    """Each problem's gold at the peak of the other half less its gold at the largest size, [problems]."""
    halves = np.array([half_of(problem) for problem in problems])
    falls = np.zeros(len(gold))
    for half in (0, 1):
        other = gold[halves != half]
        if len(other):
            peak = int(_peaks(other.mean(axis=0)[None])[0])
            falls[halves == half] = gold[halves == half, peak] - gold[halves == half, -1]
    return falls


def over_optimisation_section(audits: Sequence[OverOptimisationAudit]) -> Section:
    """Gold and proxy against the pressure of selection."""
    return Section(
        title="Over-optimisation",
        tested="over-optimisation",
        about="Best of N by score. Distance from the policy: KL = log N - (N - 1) / N.",
        results={"over_optimisation": audits},
        cards={audit.scorer: _cards(audit) for audit in audits},
        limits=[
            f"Best of N: {audits[0].problems} problems; {audits[0].too_small} with fewer than "
            f"{audits[0].samples_needed} scored traces were left out."
        ],
        plots=[
            Plot(
                "over_optimisation.points",
                "Gold (solid) and proxy (dashed) for best of N.",
                x="n",
                y=("gold", "proxy"),
                log=True,
            )
        ],
    )


def _cards(audit: OverOptimisationAudit) -> list[Card]:
    last = audit.points[-1].n
    selects = f"of accuracy: the best of {last} by its {audit.rule} less a single sample, not less majority."
    falls = f"of accuracy is lost between the best N, {audit.peak}, and N = {last}."
    options: Any = {"smallest": SMALLEST_GAIN, "spec": "+.1p"}
    words: Any = {
        "claims": {"no": f"is over-optimised beyond {audit.peak} samples"},
        "chips": {"no": f"not beyond {audit.peak} samples", "yes": f"up to {last} samples"},
    }
    better = {"yes": "selects better answers than a single sample"}
    return [
        card("selects", audit.gain, selects, audit.problems, claims=better, **options),
        card("trust", audit.fall, falls, audit.problems, harm=True, **words, **options),
    ]
