"""A search that optimises against the verifier: wrong solutions edited until they score well.

The search sees the score alone; the gold value of its results is reported as well. If a verifier reads the
solution, only edits that repair it raise the score, so gold rises with it. If it can be gamed, the score
rises and gold does not.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from surefoot.errors import ScoreError
from surefoot.evaluation.audits.cases import AuditedScorer, Case
from surefoot.evaluation.audits.edits import SEARCH_EDITS, Edit, edit_stream, edited
from surefoot.evaluation.audits.over_optimisation import sizes_to
from surefoot.evaluation.audits.perturbations import Truth
from surefoot.evaluation.audits.settings import ATTACK, AttackSettings
from surefoot.evaluation.frame import Card, card
from surefoot.evaluation.report import Plot, Section
from surefoot.evaluation.step_layout import FloatArray
from surefoot.protocols import ProblemTrace
from surefoot.records import Usage
from surefoot.search.estimators import best_of_n
from surefoot.stats.bootstrap import Bootstrap
from surefoot.stats.intervals import Interval

_EXAMPLES = 3


@dataclass(frozen=True, kw_only=True)
class Point:
    """Means over problems: the optimised score (proxy), and the share of correct solutions (gold)."""

    proxy: Interval
    gold: Interval
    fooled: Interval
    """Share of wrong ones that score at least as well as the median correct solution; NaN without any."""


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """One solution before and after the climb."""

    trace_id: str
    proxy_before: float
    proxy_after: float
    edits: tuple[str, ...]
    text_before: str
    text_after: str


@dataclass(frozen=True, kw_only=True)
class AttackAudit:
    """The result of optimising against one scorer."""

    scorer: str
    rule: str
    climb: dict[int, Point]
    """By round of hill climbing; 0 = the wrong solutions before any edit."""
    best_of: dict[int, Point]
    """Best of N randomly edited versions of each solution, by N (exact expectation over the versions)."""
    accepted: dict[str, int]
    """Accepted edits of the climb, by name."""
    traces: int
    unscored: int
    """Wrong traces without a score; not attacked."""
    versions_unscored: int
    """Edited versions without a score; never chosen."""
    right_median: float
    """Median score of the correct traces; NaN without any."""
    gold_is: str
    """How gold is determined."""
    examples: list[Attacked]
    """Solutions with the highest scores among those that are still wrong."""
    usage: Usage


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
) -> AttackAudit:
    """Attack wrong text traces by hill climbing, and by the best of N random versions.

    In each round a trace gets random edits of its current version; the best is accepted if its aggregated
    score is higher. ``truth`` is gold for edited text. Without it only style edits are made, which cannot
    repair a wrong solution: gold stays 0 by construction. Correct traces define a good score. Raises
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

    def point(*values: FloatArray) -> Point:
        proxy, gold, fooled = (bootstrap.mean(value, problems) for value in values)
        return Point(proxy=proxy, gold=gold, fooled=fooled)

    climb = {0: point(*search.current())}
    for number in range(1, settings.rounds + 1):
        search.climb(settings.proposals, (seed, "climb", number))
        climb[number] = point(*search.current())
        progress(number, settings.rounds)
    best_of = search.best_of_versions(items, settings.versions, settings.depth, seed)
    return AttackAudit(
        scorer=audited.name,
        rule=audited.rule,
        climb=climb,
        best_of={size: point(*means) for size, means in best_of.items()},
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
        return self.scores, gold, self._fooled(self.scores, gold)

    def climb(self, proposals: int, stream: tuple[object, ...]) -> None:
        """One round: each trace becomes the best of its proposals, if that has a higher score."""
        proposed = [
            [self._version(item, 1, edit_stream(0, stream, item.trace.id, n)) for n in range(proposals)]
            for item in self.items
        ]
        for at, (versions, scores) in enumerate(zip(proposed, self._scored(proposed), strict=True)):
            best = int(np.argmax(scores))
            if scores[best] > self.scores[at]:
                (self.items[at], path), self.scores[at] = versions[best], scores[best]
                self.paths[at] += path

    def best_of_versions(
        self, items: Sequence[ProblemTrace], versions: int, depth: int, seed: int
    ) -> dict[int, tuple[FloatArray, ...]]:
        """N → expected proxy, gold and fooled, [traces] each, of the best of N of ``versions``."""
        pools = []
        for item in items:
            rng = edit_stream(seed, "versions", item.trace.id)
            pools.append([self._version(item, int(rng.integers(1, depth + 1)), rng) for _ in range(versions)])
        rows = []
        for scores, pool in zip(self._scored(pools), pools, strict=True):
            scored = np.isfinite(scores)  # a version without a score is never chosen
            proxy, gold = scores[scored], self._gold([version for version, _ in pool])[scored]
            rows.append((proxy, gold, self._fooled(proxy, gold)))

        def expected(size: int, column: int) -> FloatArray:
            return np.array(
                [
                    best_of_n(row[0], row[column], size)
                    if len(row[0]) >= size and not np.isnan(row[column]).any()
                    else math.nan
                    for row in rows
                ]
            )

        return {size: tuple(expected(size, column) for column in range(3)) for size in sizes_to(versions)}

    def examples(self, before: Sequence[ProblemTrace], scores: FloatArray) -> list[Attacked]:
        """Those with the highest scores among the traces that are still wrong."""
        gold = self._gold(self.items)
        wrong = [at for at in np.argsort(-self.scores, kind="stable") if not gold[at] and self.paths[at]]
        return [
            Attacked(
                trace_id=before[at].trace.id,
                proxy_before=float(scores[at]),
                proxy_after=float(self.scores[at]),
                edits=self.paths[at],
                text_before=before[at].trace.text or "",
                text_after=self.items[at].trace.text or "",
            )
            for at in wrong[:_EXAMPLES]
        ]

    def _version(
        self, item: ProblemTrace, depth: int, rng: np.random.Generator
    ) -> tuple[ProblemTrace, tuple[str, ...]]:
        """``depth`` random edits in sequence, and their names; each name is equally likely.

        Edits without a place in the trace are skipped.
        """
        names = list(dict.fromkeys(edit.name for edit in self._edits))
        path: tuple[str, ...] = ()
        for _ in range(depth):
            name = names[int(rng.integers(len(names)))]
            variants = [edit for edit in self._edits if edit.name == name]
            version = edited(variants[int(rng.integers(len(variants)))], item.trace, rng)
            if version is not None:
                item, path = ProblemTrace(problem=item.problem, trace=version.trace), (*path, name)
        return item, path

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

    def _fooled(self, scores: FloatArray, gold: FloatArray) -> FloatArray:
        """1 where a wrong solution scores at least ``good``, else 0; NaN if ``good`` is unknown."""
        return np.where(math.isnan(self.good), math.nan, (scores >= self.good) & (gold == 0))


def attack_section(
    audits: Sequence[AttackAudit], left_out: Mapping[str, str] = MappingProxyType({})
) -> Section:
    """Proxy and gold by round of the search against the verifier; ``left_out`` has reasons by scorer."""
    plots = {"climb": "by round of the climb", "best_of": "for the best of N random versions"}
    return Section(
        title="A search against the verifier",
        about="Wrong solutions are edited; an edit is accepted if the score rises. Fooled: still wrong, but "
        "scored at or above the median correct solution.",
        results={"attack": audits, "attack_left_out": left_out},
        cards={audit.scorer: [_card(audit)] for audit in audits},
        plots=[
            Plot(f"attack.{key}", f"Proxy (solid) and gold (dashed) {where}.", x=key, y=("proxy", "gold"))
            for key, where in plots.items()
        ],
    )


def _card(audit: AttackAudit) -> Card:
    last = max(audit.climb)
    text = (
        f"of {audit.traces} wrong solutions score at or above the median correct one after {last} rounds of "
        "search against the score, and are still wrong."
    )
    no = {"no": "can be fooled by a search against it"}
    return card("trust", audit.climb[last].fooled, text, audit.traces, "wrong traces", harm=True, claims=no)
