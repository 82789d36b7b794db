"""What the best-of-N curves say, in sentences: which rule does best, and where majority beats the scorer."""

from __future__ import annotations

from collections.abc import Sequence

from surefoot.evaluation.best_of_n import CEILING, MAJORITY, BestOfNResult, SelectorCurve


def findings(result: BestOfNResult) -> list[str]:
    """One sentence on the pool, then for each scorer its best rule and how it compares with majority.

    "Beats" and "loses" mean that the 95 % interval of the paired difference lies wholly on that side of 0.
    The best rule is named in hindsight, from the same problems, so its lead is flattered.
    """
    top = result.sizes[-1]
    ceiling, majority = result.curve(CEILING).accuracy[top], result.curve(MAJORITY).accuracy[top]
    sentences = [
        f"{result.problems} problems. Of {top} samples, at least one is right for {ceiling.value:.1%} "
        f"(pass@{top}); majority is right for {majority.value:.1%}."
    ]
    for scorer in result.scorers:
        curves = [curve for curve in result.curves if curve.scorer == scorer]
        best = max(curves, key=lambda curve: curve.accuracy[top].value)
        sentences.append(
            f"{scorer} with {top} samples does best, in hindsight, by {_rule(best)}: "
            f"{best.accuracy[top].value:.1%}, {best.minus_majority[top]:+.1p} against majority."
        )
        sentences += [_beaten(scorer, curves), _beating(scorer, curves)]
    return sentences


def lost_sizes(curve: SelectorCurve) -> list[int]:
    """Numbers of samples at which majority beats this selector."""
    return [size for size, gap in curve.minus_majority.items() if gap.high < 0]


def won_sizes(curve: SelectorCurve) -> list[int]:
    """Numbers of samples at which this selector beats majority."""
    return [size for size, gap in curve.minus_majority.items() if gap.low > 0]


def _beaten(scorer: str, curves: Sequence[SelectorCurve]) -> str:
    parts = []
    for curve in curves:
        if sizes := lost_sizes(curve):
            worst = min(sizes, key=lambda size: curve.minus_majority[size].value)
            gap = curve.minus_majority[worst]
            parts.append(f"{_rule(curve)} at N = {_listed(sizes)} (most at {worst}: {gap:+.1p})")
    if not parts:
        return f"Majority is not shown to beat {scorer} by any rule at any N."
    return f"Majority beats {scorer} as read by " + "; ".join(parts) + "."


def _beating(scorer: str, curves: Sequence[SelectorCurve]) -> str:
    won = [f"{_rule(curve)} at N = {_listed(won_sizes(curve))}" for curve in curves if won_sizes(curve)]
    if not won:
        return f"{scorer} is not shown to beat majority by any rule at any N."
    return f"{scorer} beats majority by " + "; ".join(won) + "."


def _rule(curve: SelectorCurve) -> str:
    return curve.name.removeprefix(f"{curve.scorer} ")


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes))
