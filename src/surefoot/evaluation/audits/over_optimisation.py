"""Over-optimisation: the maximised score (proxy) and the truth (gold) against the optimisation pressure.

Best of N is KL = log N - (N - 1) / N away from the policy. The proxy keeps rising; gold rises and, if the
proxy can be fooled, falls again (Gao et al. 2022, arXiv 2210.10760).

A search that optimises against the verifier: wrong solutions edited until they score well.

The search sees the score alone; the gold value of its results is reported as well. If a verifier reads the
solution, only edits that repair it raise the score, so gold rises with it. If it can be gamed, the score
rises and gold does not.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from surefoot.errors import ScoreError, counted
from surefoot.evaluation.audits.cases import AuditedScorer, Case
from surefoot.evaluation.audits.perturbations import SEARCH_EDITS, Edit, Truth, edit_stream, edited
from surefoot.evaluation.audits.settings import ATTACK, AttackSettings
from surefoot.evaluation.frame import Rival
from surefoot.evaluation.measures import Measured, means
from surefoot.evaluation.report import Plot, Section
from surefoot.evaluation.splits import half_of
from surefoot.evaluation.step_layout import FloatArray
from surefoot.evaluation.verdict import SMALLEST_GAIN, Conclusion, chosen, measured
from surefoot.protocols import ProblemTrace
from surefoot.records import Trace, Usage
from surefoot.search.estimators import Method, Pool, RandomOrders, best_of_n, pass_at_k, pool_curve
from surefoot.stats.bootstrap import Bootstrap, bootstrap_mean
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


_EXAMPLES = 3


def audit_attack(
    audited: AuditedScorer,
    cases: Sequence[Case],
    settings: AttackSettings = ATTACK,
    *,
    truth: Truth | None = None,
    edits: Sequence[Edit] = SEARCH_EDITS,
    draws: int = 1000,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Measured:
    """Attack wrong text traces by hill climbing.

    In each round a trace gets random edits of its current version; the best is accepted if its aggregated
    score is higher. ``truth`` is gold for edited text. Without it only style edits are made, which cannot
    repair a wrong solution: gold stays 0 by construction. Correct traces define a good score. ``climb`` has
    by round (0 = before any edit) the mean score (``proxy``), the share of correct solutions (``gold``), and
    the share of wrong ones that score at least as well as the median correct one (``fooled``). Raises
    ``ScoreError`` for stored scores and without a wrong text trace.
    """
    audited.require_live()
    wrong = [case for case in cases if case.right is False and case.item.trace.text is not None]
    wrong = wrong[: settings.attacked]
    right = audited.score([case.item for case in cases if case.right])
    start = audited.score([case.item for case in wrong])
    scored = [number for number, score in enumerate(start.traces) if not math.isnan(score)]
    if not scored:
        raise ScoreError(
            f"{audited.name}: no wrong text trace with a score among {len(cases)}: none to attack"
        )
    items = [wrong[number].item for number in scored]
    allowed = list(edits) if truth else [edit for edit in edits if edit.kind == "style"]
    search = _Search(audited, items, start.traces[scored], allowed, truth)
    search.usage += right.usage + start.usage
    if np.isfinite(right.traces).any():
        search.good = float(np.nanmedian(right.traces))
    bootstrap, problems = Bootstrap(draws=draws, seed=seed), [item.problem.id for item in items]

    def point(*values: FloatArray) -> Measured:
        return means(bootstrap, problems, **dict(zip(("proxy", "gold", "fooled"), values, strict=True)))

    climb = {0: point(*search.current())}
    for number in range(1, settings.rounds + 1):
        search.climb(settings.proposals, (seed, "climb", number))
        climb[number] = point(*search.current())
        progress(number, settings.rounds)
    return Measured(
        scorer=audited.name,
        rule=audited.rule,
        climb=climb,
        accepted=dict(Counter(name for path in search.paths for name in path).most_common()),
        traces=len(items),
        unscored=len(wrong) - len(items),
        versions_unscored=search.unscored,
        right_median=search.good,
        gold_is="exact truth"
        if truth
        else "0 by construction: edits of style cannot repair a wrong solution",
        examples=search.examples(items, start.traces[scored]),
        usage=search.usage,
    )


class _Search:
    """Current version, score and accepted edits of each attacked trace."""

    def __init__(
        self,
        audited: AuditedScorer,
        items: Sequence[ProblemTrace],
        scores: FloatArray,
        edits: Sequence[Edit],
        truth: Truth | None,
    ) -> None:
        self._audited, self._edits, self._truth = audited, edits, truth
        self.items, self.scores = list(items), scores.copy()
        self.paths: list[tuple[str, ...]] = [()] * len(items)
        self.good = math.nan
        self.usage, self.unscored = Usage(), 0

    def current(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Proxy, gold and fooled, [traces] each."""
        gold = self._gold(self.items)
        fooled = (self.scores >= self.good) & (gold == 0)  # a wrong solution scores like a good one
        return self.scores, gold, np.where(math.isnan(self.good), math.nan, fooled)

    def climb(self, proposals: int, stream: tuple[object, ...]) -> None:
        """One round: each trace becomes the best of its proposals, if that has a higher score."""
        proposed = [
            [self._version(item, edit_stream(0, stream, item.trace.id, n)) for n in range(proposals)]
            for item in self.items
        ]
        for at, (versions, scores) in enumerate(zip(proposed, self._scored(proposed), strict=True)):
            best = int(np.argmax(scores))
            if scores[best] > self.scores[at]:
                (self.items[at], path), self.scores[at] = versions[best], scores[best]
                self.paths[at] += path

    def examples(self, before: Sequence[ProblemTrace], scores: FloatArray) -> list[Measured]:
        """Those with the highest scores among the traces that are still wrong."""
        gold = self._gold(self.items)
        wrong = [at for at in np.argsort(-self.scores, kind="stable") if not gold[at] and self.paths[at]]
        return [
            Measured(
                trace_id=before[at].trace.id,
                proxy_before=float(scores[at]),
                proxy_after=float(self.scores[at]),
                edits=self.paths[at],
                text_before=before[at].trace.text or "",
                text_after=self.items[at].trace.text or "",
            )
            for at in wrong[:_EXAMPLES]
        ]

    def _version(self, item: ProblemTrace, rng: np.random.Generator) -> tuple[ProblemTrace, tuple[str, ...]]:
        """A random edit and its name; each name is equally likely. An edit without a place is skipped."""
        names = list(dict.fromkeys(edit.name for edit in self._edits))
        name = names[int(rng.integers(len(names)))]
        variants = [edit for edit in self._edits if edit.name == name]
        version = edited(variants[int(rng.integers(len(variants)))], item.trace, rng)
        if version is None:
            return item, ()
        return ProblemTrace(problem=item.problem, trace=version.trace), (name,)

    def _scored(self, versions: Sequence[Sequence[tuple[ProblemTrace, tuple[str, ...]]]]) -> list[FloatArray]:
        """Aggregated scores, -inf for missing ones, from one call of the scorer."""
        scores = self._audited.score([version for row in versions for version, _ in row])
        self.usage += scores.usage
        missing = np.isnan(scores.traces)
        self.unscored += int(missing.sum())
        ends = np.cumsum([len(row) for row in versions])[:-1]
        return np.split(np.where(missing, -np.inf, scores.traces), ends)

    def _gold(self, items: Sequence[ProblemTrace]) -> FloatArray:
        if self._truth is None:
            return np.zeros(len(items))
        return np.array([self._truth(item.problem, item.trace) for item in items], dtype=float)


def attack_section(audits: Sequence[Measured], left_out: Mapping[str, str] = MappingProxyType({})) -> Section:
    """Proxy and gold by round of the search against the verifier; ``left_out`` has reasons by scorer."""
    return Section(
        title="A search against the verifier",
        about="Wrong solutions are edited; an edit is accepted if the score rises. Fooled: still wrong, but "
        "scored at or above the median correct solution.",
        results={"attack": audits, "attack_left_out": left_out},
        verdicts={audit.scorer: [_attack_verdict(audit)] for audit in audits},
    )


def _attack_verdict(audit: Measured) -> Conclusion:
    last = max(audit.climb)
    text = (
        f"of {counted(audit.traces, 'wrong solution')} stay wrong and reach the median score of correct ones "
        f"after {counted(last, 'round')} of search against the score."
    )
    return measured("withstands", audit.climb[last].fooled, text, audit.traces, "wrong traces", harm=True)
