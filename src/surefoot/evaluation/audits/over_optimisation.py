"""Over-optimisation: the maximised score (proxy) and the truth (gold) against the optimisation pressure.

Best of N is KL = log N - (N - 1) / N away from the policy. The proxy keeps rising; gold rises and, if the
proxy can be fooled, falls again (Gao et al. 2022, arXiv 2210.10760).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from surefoot.errors import ScoreError, counted
from surefoot.evaluation.audits.cases import AuditedScorer
from surefoot.evaluation.frame import Rival
from surefoot.evaluation.measures import Measured
from surefoot.evaluation.report import Plot, Section
from surefoot.evaluation.splits import half_of
from surefoot.evaluation.verdict import SMALLEST_GAIN, Conclusion, chosen, measured
from surefoot.protocols import ProblemTrace
from surefoot.records import Trace
from surefoot.search.estimators import Method, Pool, RandomOrders, best_of_n, pass_at_k, pool_curve
from surefoot.stats.bootstrap import FloatArray, bootstrap_mean
from surefoot.stats.intervals import Interval

_ONE, _MAJORITY = "one sample", "majority voting"
_FREE: Mapping[str, Callable[[Trace], float]] = {
    _MAJORITY: lambda _: 0.0,
    "the shortest": lambda trace: len(trace.text or "") + sum(len(m.content or "") for m in trace.messages),
    "fewest steps": lambda trace: len(trace.steps),
}
"""Choices that cost nothing, and what each minimises."""
_ORDERS = 200
"""Random orders for majority among fewer samples than a problem has."""


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
) -> Measured:
    """Gold and proxy for best of 1, 2, 3, 4, 6, 8, 12 … of each problem's scored traces (unbiased estimates).

    ``points`` have for best of ``n`` the KL in nats and ``ceiling``, pass@n. The ``peak`` is the N of the
    highest gold (the lowest of equals), with 95 % of the draws of problems in ``peak_interval``.
    ``free`` are choices that cost nothing among the largest N, ``rival`` the best of them, ``gain`` gold at
    the largest N less the rival's. ``fall`` is gold at the peak less gold at the largest N: the peak is
    located on one half of the problems and the fall measured on the other, both ways; otherwise the highest
    of noisy points would look like a peak.

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
    choices: dict[str, list[float]] = {name: [] for name in (_ONE, *_FREE)}
    for row, pool in enumerate(large.values()):
        values, right = [score for score, _ in pool], [trace.outcome is True for _, trace in pool]
        answers = [trace.answer for _, trace in pool]
        gold[row] = [best_of_n(values, right, n, answers=answers) for n in sizes]
        proxy[row] = [best_of_n(values, values, n, answers=answers) for n in sizes]
        ceiling[row] = [pass_at_k(len(pool), sum(right), n) for n in sizes]
        choices[_ONE].append(sum(right) / len(right))
        for name, cost in _FREE.items():
            free = Pool(answers=answers, correct=right, scores=[-cost(trace) for _, trace in pool])
            method: Method = "majority" if name == _MAJORITY else "best_of_n"
            orders = RandomOrders(len(pool), _ORDERS, np.random.default_rng((seed, row)))
            choices[name] += pool_curve(free, method, sizes[-1:], orders)
    rival = max(choices, key=lambda name: sum(choices[name]))
    margin = gold[:, -1] - np.array(choices[rival])
    even = np.full(len(gold), 1 / len(gold))
    counts = np.random.default_rng(seed).multinomial(len(gold), even, size=draws)
    peaks = _peaks(np.asarray(counts @ gold / len(gold)))
    peak_low, peak_high = np.quantile(peaks, [0.025, 0.975], method="nearest")
    return Measured(
        scorer=audited.name,
        rule=audited.rule,
        points=[
            Measured(
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
        free={
            name: bootstrap_mean(np.array(values), draws=draws, rng=np.random.default_rng(seed))
            for name, values in choices.items()
        },
        rival=rival,
        gain=bootstrap_mean(margin, draws=draws, rng=np.random.default_rng(seed)),
        fall=bootstrap_mean(_falls(gold, list(large)), draws=draws, rng=np.random.default_rng(seed)),
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


def over_optimisation_section(audits: Sequence[Measured]) -> Section:
    """Gold and proxy against the pressure of selection."""
    first, last = audits[0], [audit.points[-1] for audit in audits]
    best = Interval(value=last[0].ceiling, low=last[0].ceiling, high=last[0].ceiling)
    return Section(
        title="Over-optimisation",
        tested="over-optimisation",
        about="Best of N by score. Distance from the policy: KL = log N - (N - 1) / N.",
        results={"over_optimisation": audits},
        rivals=[
            *(Rival(name=name, value=value) for name, value in first.free.items()),
            *(
                Rival(name=audit.scorer, value=point.gold, kind="ours")
                for audit, point in zip(audits, last, strict=True)
            ),
            Rival(name="some sample is right", value=best, kind="ceiling"),
        ],
        measure=f"share of problems answered correctly, out of {counted(last[0].n, 'sample')}.",
        verdicts={audit.scorer: _verdicts(audit) for audit in audits},
        limits=[
            f"Best of N: {counted(audits[0].problems, 'problem')}; {audits[0].too_small} with fewer than "
            f"{counted(audits[0].samples_needed, 'scored trace')} left out."
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


def _verdicts(audit: Measured) -> list[Conclusion]:
    last = audit.points[-1].n
    options: Any = {"smallest": SMALLEST_GAIN, "spec": "+.1p", "peak": audit.peak, "last": last}
    falls = f"of accuracy are lost between the best N, {audit.peak}, and N = {last}."
    gain = f"of problems: the best of {last} by its {audit.rule} less {audit.rival}."
    return [
        chosen(audit.points[-1].gold, audit.free, audit.gain, gain, audit.problems),
        measured("keeps", audit.fall, falls, audit.problems, harm=True, **options),
    ]
