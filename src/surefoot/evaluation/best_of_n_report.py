"""The best-of-N curves as one HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefoot.evaluation.best_of_n import CEILING, MAJORITY, BestOfNResult, SelectorCurve
from surefoot.evaluation.plots import (
    legend,
    line_style,
    new_figure,
    panel_grid,
    panel_legend,
    shade,
    size_ticks,
)
from surefoot.evaluation.report import Report
from surefoot.stats.intervals import Cell, Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def write_best_of_n_report(result: BestOfNResult, path: Path) -> Report:
    """One page: findings, curves of each scorer, differences from majority, tokens, counts."""
    report = Report("Best-of-N: accuracy against samples and tokens")
    for sentence in best_of_n_findings(result):
        report.text(sentence, printed=True)
    baselines = [curve for curve in result.curves if curve.scorer is None]
    if len(result.scorers) > 1:
        report.heading("Scorers side by side")
        report.figure(side_by_side_figure(result.curves), "Best-of-N of every scorer on the same samples")
    for scorer in result.scorers:
        _scorer(report, scorer, baselines, [curve for curve in result.curves if curve.scorer == scorer])
    _tables(report, result)
    _counts(report, result)
    return report.write(path)


def _scorer(
    report: Report, name: str, baselines: Sequence[SelectorCurve], curves: Sequence[SelectorCurve]
) -> None:
    report.heading(name)
    report.figure(
        _selector_figure([*baselines, *curves]), f"Accuracy against N, {name}; majority's 95 % band"
    )
    report.figure(
        _difference_figure(curves),
        f"{name} less majority, paired by problem, with 95 % intervals; below 0 majority is better",
    )
    if any(curve.tokens for curve in curves):
        report.figure(
            _token_figure([*baselines, *curves]), f"Accuracy against mean tokens per problem, {name}"
        )


def _tables(report: Report, result: BestOfNResult) -> None:
    report.heading("All numbers")
    heads = ["selector", *(f"N={size}" for size in result.sizes)]
    report.table(
        heads,
        [[curve.name, *curve.accuracy.values()] for curve in result.curves],
        f"{result.problems} problems, {result.traces} samples: share answered correctly, with 95 % intervals "
        "over problems",
        spec=".1%",
        printed=len(heads),
    )
    paired = [curve for curve in result.curves if curve.minus_majority]
    if paired:
        report.table(
            heads,
            [[curve.name, *(100 * gap for gap in curve.minus_majority.values())] for curve in paired],
            "Difference from majority, in points, paired by problem",
            spec="+.1f",
            printed=len(heads),
        )
    counted = [curve for curve in result.curves if curve.tokens]
    if counted:
        rows: list[list[Cell]] = [
            [curve.name, *(round(curve.tokens[size]) for size in result.sizes)] for curve in counted
        ]
        report.table(heads, rows, "Mean tokens per problem, policy and verifier", printed=len(heads))


def _counts(report: Report, result: BestOfNResult) -> None:
    report.heading("Counts")
    rows: list[list[Cell]] = [["problems", result.problems], ["candidates", result.traces]]
    rows += [[f"left out: {reason}", count] for reason, count in result.dropped.items()]
    rows += [[f"{name}: unscored candidates", counts.unscored] for name, counts in result.scorers.items()]
    rows += [
        [f"{name}: scores of other traces", counts.foreign]
        for name, counts in result.scorers.items()
        if counts.foreign
    ]
    report.table(["item", "count"], rows)
    for quantity, reason in result.unknown.items():
        report.text(f"Unknown: {quantity}; {reason}.")
    for name, counts in result.scorers.items():
        for rule, reason in counts.left_out.items():
            report.text(f"Left out: {name} {rule}; {reason}.")


def best_of_n_findings(result: BestOfNResult) -> list[str]:
    """One sentence on the pool, then for each scorer its best rule and the comparison with majority.

    "Beats" means that the whole 95 % interval of the paired difference is on that side of 0. The best rule is
    chosen in hindsight on the same problems, so its lead is optimistic.
    """
    top = result.sizes[-1]
    ceiling, majority = result.curve(CEILING).accuracy[top], result.curve(MAJORITY).accuracy[top]
    sentences = [
        f"{result.problems} problems. Of {top} samples, at least one is correct for {ceiling.value:.1%} "
        f"(pass@{top}); majority is correct for {majority.value:.1%}."
    ]
    for scorer in result.scorers:
        curves = [curve for curve in result.curves if curve.scorer == scorer]
        best = max(curves, key=lambda curve: curve.accuracy[top].value)
        sentences.append(
            f"{scorer} with {top} samples does best, in hindsight, with {_rule(best)}: "
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
        return f"No difference found in favour of majority against {scorer} for any rule at any N."
    return f"Majority beats {scorer} with " + "; ".join(parts) + "."


def _beating(scorer: str, curves: Sequence[SelectorCurve]) -> str:
    won = [f"{_rule(curve)} at N = {_listed(won_sizes(curve))}" for curve in curves if won_sizes(curve)]
    if not won:
        return f"No difference found in favour of {scorer} against majority for any rule at any N."
    return f"{scorer} beats majority with " + "; ".join(won) + "."


def _rule(curve: SelectorCurve) -> str:
    return curve.name.removeprefix(f"{curve.scorer} ")


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes))


_AGGREGATIONS = {"min": "C0", "product": "C1", "last": "C2", "mean": "C3", "sum": "C4"}
_RULES: Mapping[str, dict[str, Any]] = {
    "pass": {"color": "#000000", "marker": "o", "linestyle": ":"},
    "majority": {"color": "#777777", "marker": "X", "linestyle": "-", "linewidth": 2.2},
    "best_of_n": {"marker": "s", "linestyle": "-"},
    "weighted_vote": {"marker": "^", "linestyle": "--"},
    "confidence_vote_10": {"marker": "v", "linestyle": "-."},
    "confidence_vote_90": {"marker": "<", "linestyle": "-."},
    "agreement": {"marker": ">", "linestyle": "--"},
    "knockout": {"marker": "D", "linestyle": ":"},
}


def _selector_figure(curves: Sequence[SelectorCurve]) -> Figure:
    """Accuracy against N: colour is the aggregation, the line and marker the rule; majority is shaded.

    The other intervals overlap, so only the table shows them.
    """
    figure, axes = _log_figure("samples (N)", "accuracy")
    for curve in curves:
        axes.plot(list(curve.accuracy), _values(curve.accuracy), label=curve.name, **_look(curve))
        if curve.rule == "majority":
            shade(axes, list(curve.accuracy), list(curve.accuracy.values()), "#777777", alpha=0.15)
    size_ticks(axes, sorted({size for curve in curves for size in curve.accuracy}))
    legend(figure)
    return figure


def _token_figure(curves: Sequence[SelectorCurve]) -> Figure:
    """Accuracy against mean tokens per problem, for the curves whose tokens are known."""
    figure, axes = _log_figure("mean tokens per problem, policy and verifier", "accuracy")
    for curve in curves:
        if curve.tokens:
            x = [curve.tokens[size] for size in curve.accuracy]
            axes.plot(x, _values(curve.accuracy), label=curve.name, **_look(curve))
    legend(figure)
    return figure


def _difference_figure(curves: Sequence[SelectorCurve]) -> Figure:
    """Accuracy less majority's, paired by problem, with 95 % intervals; below 0 majority is better."""
    figure, axes = _log_figure("samples (N)", "accuracy less majority's")
    axes.axhline(0, color="#777777", linewidth=1)
    for number, curve in enumerate(curves):
        # shifted, so that the error bars of one N do not overlap
        shift = 2 ** (0.06 * (number - (len(curves) - 1) / 2))
        gaps = curve.minus_majority
        errors = [
            [gap.value - gap.low for gap in gaps.values()],
            [gap.high - gap.value for gap in gaps.values()],
        ]
        x = [size * shift for size in gaps]
        axes.errorbar(x, _values(gaps), yerr=errors, label=curve.name, capsize=2, **_look(curve))
    size_ticks(axes, sorted({size for curve in curves for size in curve.minus_majority}))
    legend(figure)
    return figure


def side_by_side_figure(curves: Sequence[SelectorCurve]) -> Figure:
    """Best-of-N of all scorers, one panel per aggregation; a colour and marker per scorer."""
    rules = [how for how in _AGGREGATIONS if any(curve.aggregation == how for curve in curves)]
    scorers = list(dict.fromkeys(curve.scorer for curve in curves if curve.scorer))
    figure, panels = panel_grid(len(rules), columns=min(2, len(rules)))
    for how, axes in zip(rules, panels, strict=True):
        axes.set_title(f"best-of-N, {how}")
        for curve in curves:
            baseline = curve.rule in ("pass", "majority")
            if baseline or (curve.rule == "best_of_n" and curve.aggregation == how):
                look = _look(curve) if baseline else line_style(scorers.index(curve.scorer or ""))
                label = curve.scorer or curve.name
                axes.plot(list(curve.accuracy), _values(curve.accuracy), label=label, **look)
        axes.set_xscale("log", base=2)
        size_ticks(axes, sorted({size for curve in curves for size in curve.accuracy}))
    panel_legend(figure, panels)
    return figure


def _log_figure(xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    figure, axes = new_figure(xlabel, ylabel, height=4.8)
    axes.set_xscale("log", base=2)
    return figure, axes


def _look(curve: SelectorCurve) -> dict[str, Any]:
    colour = {"color": _AGGREGATIONS[curve.aggregation]} if curve.aggregation else {}
    return {"markersize": 4, **_RULES[curve.rule], **colour}


def _values(curve: Mapping[int, Interval]) -> list[float]:
    return [interval.value for interval in curve.values()]
