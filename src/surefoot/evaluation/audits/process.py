"""Audits of solutions as they are: do their scores follow the process?

*Collapse to the outcome*: does the scorer judge steps, or only predict the final answer? A model trained on
final answers, or on values of prefixes, may look like a process model on average and still wait for the last
step. Four measures show it: where the minimum lies; the effect of a wrong step in traces whose answer is
correct anyway; the score of the last step alone; the score of the steps in random order.
*False process confidence*: solutions with a hidden wrong step and a correct answer. Three groups are
compared: *right* (correct steps and answer), *rationalised* (a wrong step, but a correct answer) and *wrong*
(both wrong). A scorer of outcomes separates the first from the third only; a scorer of steps separates it
from both.
*Granularity*: the same traces cut into fewer, longer steps: how many first errors does each cut find? Steps
are merged in groups of k (the last group takes the rest), so labels of coarse steps follow from those of
fine ones: a group is bad if one of its steps is. No text changes; only where scores are read.
*Path dependence*: does the scorer prefer the usual among correct solutions of one problem? A solution is
usual if it shares many three-word sequences with the other correct ones (Jaccard index). No text changes, so
stored scores will do. Correct are solutions without a wrong step by the labels; without labels, those whose
answer or program is right.
*Over-optimisation*: the maximised score (proxy) and the truth (gold) against the optimisation pressure. Best
of N is KL = log N - (N - 1) / N away from the policy. The proxy keeps rising; gold rises and, if the proxy
can be fooled, falls again (Gao et al. 2022, arXiv 2210.10760).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import ScoreError, counted
from surefoot.evaluation.audits.cases import AuditedScorer, Case
from surefoot.evaluation.audits.perturbations import Piece, cores, edit_stream, pieces, rebuilt
from surefoot.evaluation.measures import Measured, means
from surefoot.evaluation.report import Plot, Rival, Section
from surefoot.evaluation.splits import half_of
from surefoot.evaluation.verdict import SMALLEST_GAIN, Conclusion, chosen, measured
from surefoot.protocols import ProblemTrace
from surefoot.records import Step, Trace, Usage, content_id
from surefoot.search.estimators import Method, Pool, RandomOrders, best_of_n, pass_at_k, pool_curve
from surefoot.stats.bootstrap import Bootstrap, FloatArray
from surefoot.stats.intervals import FEWEST_UNITS, Interval

OFFSETS = range(-2, 3)
"""Steps around the first error that are reported."""


def audit_outcome(
    audited: AuditedScorer, cases: Sequence[Case], *, draws: int = 1000, seed: int = 0
) -> Measured:
    """Audit one scorer on traces with known outcomes; labels are used where available.

    By outcome ("right answer", "wrong answer"): ``lowest_last``, the share of the traces of two steps or more
    that are scored throughout whose lowest score is the last step's (one that ties counts its part), with its
    ``chance`` in a random order; ``around_error`` of wrong processes, the ``drop`` from the step before the
    first error to it, and the mean score by distance from it. ``controls`` compare the trace scores of
    altered texts ("last step only", "shuffled steps") and of the "whole" with the outcome (``auc``,
    ``correlation``) and with the score of the whole, over the traces that have all these scores; without
    them, ``without_controls`` says why. ``not_in_controls`` counts chats, traces of one step and those
    without a score of each text; ``unscored`` the traces with an outcome but without an aggregated score.

    Raises ``ScoreError`` if no trace has an outcome.
    """
    judged = [case for case in cases if case.outcome is not None]
    if not judged:
        raise ScoreError(f"none of {len(cases)} traces has an 'outcome'; grade the answers first")
    scores = audited.score([case.item for case in judged])
    by_outcome = {
        name: [(case, row) for case, row in zip(judged, scores.steps, strict=True) if case.outcome is outcome]
        for name, outcome in (("right answer", True), ("wrong answer", False))
    }
    bootstrap = Bootstrap(draws=draws, seed=seed)
    without = "stored scores: no new text can be scored" if audited.stored else None
    if not without and not any(map(_alterable, judged)):
        without = "no trace is a text of two steps or more"
    texts, usage = ({}, Usage()) if without else _altered(audited, judged, seed)
    controls = _controls(judged, {"whole": scores.traces} | texts, bootstrap)
    return Measured(
        scorer=audited.name,
        rule=audited.rule,
        lowest_last={name: _lowest_last(rows, bootstrap) for name, rows in by_outcome.items()},
        around_error={name: _around_error(rows, bootstrap) for name, rows in by_outcome.items()},
        controls=controls,
        without_controls=without,
        not_in_controls=len(judged) - controls["whole"].traces,
        no_outcome=len(cases) - len(judged),
        unscored=int(np.isnan(scores.traces).sum()),
        usage=scores.usage + usage,
    )


def last_step_only(trace: Trace) -> Trace:
    """The trace reduced to its last step."""
    parts = pieces(trace)
    return rebuilt(trace, "last step only", parts[-1:], step=0, was=len(parts) - 1).trace


def shuffled_steps(trace: Trace, rng: np.random.Generator) -> Trace:
    """The steps before the last in random order, never the old one if two of them differ; the last stays.

    White space at the ends of steps stays in place.
    """
    parts = pieces(trace)
    texts = [cores(piece.text) for piece in parts]
    middles = [core for _, core, _ in texts[:-1]]
    order = np.arange(len(middles))
    while len(set(middles)) > 1 and [middles[at] for at in order] == middles:
        order = rng.permutation(len(middles))
    moved = [
        Piece(text=head + middles[at] + tail, gap=piece.gap)
        for at, (head, _, tail), piece in zip(order, texts, parts, strict=False)
    ]
    return rebuilt(trace, "shuffled steps", [*moved, parts[-1]], step=len(moved), was=len(moved)).trace


def _lowest_last(rows: Sequence[tuple[Case, FloatArray]], bootstrap: Bootstrap) -> Measured:
    usable = [(case, row) for case, row in rows if len(row) > 1 and not np.isnan(row).any()]
    ties = [row == row.min() for _, row in usable]
    last = [float(tied[-1]) / int(tied.sum()) for tied in ties]
    figures = means(
        bootstrap,
        [case.problem_id for case, _ in usable],
        share=last,
        chance=[1 / len(tied) for tied in ties],
    )
    return Measured(figures, chance=figures.chance.value, traces=len(usable))


def _around_error(rows: Sequence[tuple[Case, FloatArray]], bootstrap: Bootstrap) -> Measured:
    erring = [(case, row, error) for case, row in rows if (error := case.first_error) is not None]
    problems = [case.problem_id for case, _, _ in erring]

    def at(offset: int) -> FloatArray:
        positions = [(row, error + offset) for _, row, error in erring]
        return np.array(
            [row[position] if 0 <= position < len(row) else math.nan for row, position in positions]
        )

    drop = at(-1) - at(0)
    return Measured(
        drop=bootstrap.mean(drop, problems),
        by_offset={offset: bootstrap.mean(at(offset), problems) for offset in OFFSETS},
        traces=len(erring),
        with_drop=int((~np.isnan(drop)).sum()),
    )


def _alterable(case: Case) -> bool:
    return case.item.trace.text is not None and len(case.item.trace.steps) > 1


def _altered(audited: AuditedScorer, cases: Sequence[Case], seed: int) -> tuple[dict[str, FloatArray], Usage]:
    """Trace scores of each control's texts, [cases], NaN without such a text; and the cost."""
    rows = [n for n, case in enumerate(cases) if _alterable(case)]
    traces = [cases[n].item.trace for n in rows]
    altered = {
        "last step only": [last_step_only(trace) for trace in traces],
        "shuffled steps": [shuffled_steps(trace, edit_stream(seed, "shuffle", trace.id)) for trace in traces],
    }
    scores, usage = {}, Usage()
    for name, texts in altered.items():
        reading = audited.score(
            [
                ProblemTrace(problem=cases[n].item.problem, trace=text)
                for n, text in zip(rows, texts, strict=True)
            ]
        )
        usage += reading.usage
        scores[name] = np.full(len(cases), math.nan)
        scores[name][rows] = reading.traces
    return scores, usage


def _controls(
    cases: Sequence[Case], scores: dict[str, FloatArray], bootstrap: Bootstrap
) -> dict[str, Measured]:
    """Every control over the traces that have all scores, so that the controls are comparable."""
    rows = np.flatnonzero(~np.isnan(list(scores.values())).any(axis=0)).tolist()
    outcome = [float(cases[n].outcome is True) for n in rows]
    problems = [cases[n].problem_id for n in rows]
    return {
        name: Measured(
            auc=bootstrap.auc(values[rows], outcome, problems),
            correlation=bootstrap.correlation(values[rows], outcome, problems),
            with_whole=bootstrap.correlation(values[rows], scores["whole"][rows], problems),
            traces=len(rows),
        )
        for name, values in scores.items()
    }


def outcome_section(audits: Sequence[Measured]) -> Section:
    """Position of the minimum, effect of an error, and scores of altered texts."""
    return Section(
        title="Collapse to the outcome",
        tested="outcome leakage",
        about="A scorer of steps drops at the error, whether the answer is correct or wrong, and cannot "
        "predict the outcome from the last step alone or from steps in random order.",
        results={"outcome": audits},
        verdicts={audit.scorer: _drops(audit) for audit in audits},
        limits=[f"{counted(audits[0].no_outcome, 'trace')} without an outcome left out."]
        * (audits[0].no_outcome > 0),
        plots=[
            Plot(
                "outcome.around_error.by_offset",
                "Mean step score by distance from the first error, with a correct and a wrong answer.",
            )
        ],
    )


def _drops(audit: Measured) -> list[Conclusion]:
    """The drop at the first error: with a correct answer, if there are enough, which no outcome explains."""
    lucky, wrong = (audit.around_error[name] for name in ("right answer", "wrong answer"))
    around, answer = (lucky, "correct") if lucky.with_drop >= FEWEST_UNITS else (wrong, "wrong")
    traces = counted(around.with_drop, "trace")
    text = f"is the drop of the score at the first error, with a {answer} answer ({traces})."
    return [measured("drops", around.drop, text, around.with_drop, "such traces")] if around.with_drop else []


Group = Literal["right", "rationalised", "wrong"]

GROUPS: tuple[Group, ...] = get_args(Group)


def audit_clean(
    audited: AuditedScorer, cases: Sequence[Case], *, threshold: float = 0.5, draws: int = 1000, seed: int = 0
) -> Measured:
    """Whether a scorer detects rationalised solutions.

    By group the ``mean`` score and the share ``cleared``, with at least the threshold. AUCs are the shares of
    pairs in which the correct solution scores higher. ``ungrouped`` traces are left out: outcome or process
    unknown, or the process is right and the answer wrong.

    Raises ``ScoreError`` if no trace is right, or none is rationalised: there is nothing to compare.
    """
    groups = [group_of(case) for case in cases]
    for needed in ("right", "rationalised"):
        if needed not in groups:
            raise ScoreError(f"none of {len(cases)} traces is {needed!r} by its outcome and its labels")
    grouped = [(case, group) for case, group in zip(cases, groups, strict=True) if group is not None]
    scores = audited.score([case.item for case, _ in grouped])
    values, owners = scores.traces, np.array([case.problem_id for case, _ in grouped])
    rows = {name: [n for n, (_, group) in enumerate(grouped) if group == name] for name in GROUPS}
    bootstrap = Bootstrap(draws=draws, seed=seed)

    def auc(bad: Group) -> Interval:
        used = [*rows["right"], *rows[bad]]
        good = [1.0] * len(rows["right"]) + [0.0] * len(rows[bad])
        return bootstrap.auc(values[used], good, owners[used].tolist())

    def group_scores(used: list[int]) -> Measured:
        score = values[used]
        cleared = np.where(np.isnan(score), math.nan, score >= threshold)
        figures = means(bootstrap, owners[used].tolist(), mean=score, cleared=cleared)
        return Measured(figures, traces=int((~np.isnan(score)).sum()))

    return Measured(
        scorer=audited.name,
        rule=audited.rule,
        threshold=threshold,
        groups={name: group_scores(used) for name, used in rows.items()},
        right_over_rationalised=auc("rationalised"),
        right_over_wrong=auc("wrong"),
        unscored=int(np.isnan(values).sum()),
        ungrouped=len(cases) - len(grouped),
        usage=scores.usage,
    )


def group_of(case: Case) -> Group | None:
    """The group of a trace by its outcome and labels; ``None`` if it has none."""
    if case.outcome is None or case.right is None:
        return None
    if case.right:
        return "right" if case.outcome else None
    return "rationalised" if case.outcome else "wrong"


def clean_section(audits: Sequence[Measured]) -> Section:
    """Correct, rationalised and wrong solutions."""
    return Section(
        title="False process confidence",
        tested="correct answers with a wrong step",
        about="Rationalised solutions have a wrong step and the correct answer. Cleared: a trace score of "
        f"{audits[0].threshold:g} or more.",
        results={"clean": audits},
        verdicts={audit.scorer: [_hidden_error(audit)] for audit in audits},
        limits=[f"Groups: {', '.join(f'{g.traces} {n}' for n, g in audits[0].groups.items())} traces."],
    )


def _hidden_error(audit: Measured) -> Conclusion:
    text = (
        "of pairs: a correct solution scores higher than one with a hidden wrong step and the same correct "
        "answer. Chance is 0.5."
    )
    traces = min(audit.groups["right"].traces, audit.groups["rationalised"].traces)
    estimate = audit.right_over_rationalised
    return measured("hidden error", estimate, text, traces, "traces of each kind", null=0.5)


CUTS = (1, 2, 4, 0)
"""Steps per group; 0 = the whole trace."""


def audit_granularity(
    audited: AuditedScorer, cases: Sequence[Case], *, threshold: float = 0.5, draws: int = 1000, seed: int = 0
) -> Measured:
    """Score the traces under each cut.

    Of each: groups per trace (``labels``, what an annotator labels) and tokens read; the AUC of groups; the
    share of traces with an error whose first group below the threshold has it (``detected``); the share of
    the others with a group below it. ``unknown`` traces, whose first error is not known, are left out. Raises
    ``ScoreError`` for stored scores, and without a known error.
    """
    audited.require_live()
    usable = [case for case in cases if case.right is True or case.first_error is not None]
    if not any(case.first_error is not None for case in usable):
        raise ScoreError(f"none of {len(cases)} traces has a known first error: give labels")
    bootstrap, usage, cuts = Bootstrap(draws=draws, seed=seed), Usage(), []
    problems = [case.problem_id for case in usable]
    for steps in CUTS:
        merged = [_merged(case, steps) for case in usable]
        scores = audited.score([item for item, _ in merged])
        usage += scores.usage
        values = np.concatenate(scores.steps)
        good = np.concatenate([labels for _, labels in merged])
        counts = [len(row) for row in scores.steps]
        readable = ~np.isnan(good) & ~np.isnan(values)
        hits, alarms = [], []
        for case, row in zip(usable, scores.steps, strict=True):
            below = np.flatnonzero(row < threshold)
            first = int(below[0]) if below.size else None
            error = case.first_error
            size = steps or max(1, len(case.item.trace.steps))
            hits.append(math.nan if error is None else float(first == min(error // size, len(row) - 1)))
            alarms.append(float(first is not None) if error is None else math.nan)
        owners = np.repeat(np.array(problems), counts)[readable]
        cuts.append(
            Measured(
                steps=steps,
                labels=float(np.mean(counts)),
                tokens=scores.usage.verifier_tokens / len(usable),
                auc=bootstrap.auc(values[readable], good[readable], owners.tolist()),
                **means(bootstrap, problems, detected=hits, false_alarms=alarms),
            )
        )
    return Measured(
        scorer=audited.name,
        threshold=threshold,
        cuts=cuts,
        traces=len(usable),
        unknown=len(cases) - len(usable),
        usage=usage,
    )


def _merged(case: Case, size: int) -> tuple[ProblemTrace, np.ndarray]:
    """The trace with merged steps, and the labels of the groups: 1 good, 0 bad, NaN unknown."""
    trace = case.item.trace
    count = len(trace.steps)
    if size == 1 or not count:
        return case.item, np.array(case.good, dtype=float)
    size = size or count
    starts = list(range(0, max(1, count - count % size), size))
    groups = [range(a, b) for a, b in zip(starts, [*starts[1:], count], strict=True)]
    steps = tuple(Step(start=trace.steps[g[0]].start, end=trace.steps[g[-1]].end) for g in groups)
    labels = []
    for group in groups:
        values = [case.good[step] for step in group]
        labels.append(0.0 if False in values else math.nan if None in values else 1.0)
    name = content_id("merged", trace.id, size)
    return (
        ProblemTrace(problem=case.item.problem, trace=trace.model_copy(update={"id": name, "steps": steps})),
        np.array(labels),
    )


def granularity_section(audits: Sequence[Measured]) -> Section:
    """What each cut finds."""
    return Section(
        title="Granularity",
        about="The same traces with steps merged in groups. Detected: the first group below "
        f"{audits[0].threshold:g} has the first error.",
        results={"granularity": audits},
        verdicts={audit.scorer: [_finest(audit)] for audit in audits},
        limits=[
            f"{counted(audits[0].traces, 'trace')}; {audits[0].unknown} with unknown first error left out.",
            "Coarser groups need fewer labels and locate an error less exactly.",
            "The scorer was trained on one cut; a scorer trained on another may do better on it.",
        ],
    )


def _finest(audit: Measured) -> Conclusion:
    finest, *coarser = audit.cuts
    coarse = ", ".join(
        f"{cut.detected.value:.2f} " + (f"in groups of {cut.steps}" if cut.steps else "as bad traces")
        for cut in coarser
    )
    text = f"of first errors are found step by step; {coarse}. Chance is one step of {finest.labels:.1f}."
    null = 1 / max(1.0, finest.labels)
    return measured(
        "first errors", finest.detected, text, audit.traces, "traces", null=null, rival="a random step"
    )


FEWEST = 3  # different correct solutions that a problem needs


def audit_paths(
    audited: AuditedScorer, cases: Sequence[Case], *, draws: int = 1000, seed: int = 0
) -> Measured:
    """Compare the correct solutions of each problem.

    ``preference`` is the mean score of the more usual half minus the other half's; ``steps`` the same for the
    number of steps, a baseline, as unusual solutions may only be longer. Raises ``ScoreError`` if no problem
    has ``FEWEST`` with a score.
    """
    groups: dict[str, dict[str, Case]] = defaultdict(dict)
    for case in cases:
        if case.outcome if case.right is None else case.right:
            trace = case.item.trace
            text = "\n".join(map(trace.step_text, range(len(trace.steps))))
            groups[case.problem_id].setdefault(text, case)
    scores = audited.score([case.item for group in groups.values() for case in group.values()])
    values = iter(scores.traces.tolist())
    rows = []
    for group in groups.values():
        scored = [(text, len(case.item.trace.steps), next(values)) for text, case in group.items()]
        scored = [row for row in scored if not math.isnan(row[2])]
        if len(scored) < FEWEST:
            continue
        alike = _similarity([text for text, *_ in scored])
        columns = np.array([row[1:] for row in scored])
        order, half = np.argsort(alike.sum(axis=1), kind="stable"), len(scored) // 2
        longer, preferred = columns[order[-half:]].mean(axis=0) - columns[order[:half]].mean(axis=0)
        rows.append((preferred, longer, len(scored)))
    if not rows:
        raise ScoreError(
            f"no problem has {FEWEST} different correct solutions, by labels or outcomes: give more traces"
        )
    table, bootstrap = np.array(rows), Bootstrap(draws=draws, seed=seed)
    preference, steps, counts = table.T
    return Measured(
        scorer=audited.name,
        **means(bootstrap, range(len(rows)), preference=preference, steps=steps),
        problems=len(rows),
        solutions=int(counts.sum()),
        usage=scores.usage,
    )


def _similarity(texts: Sequence[str]) -> NDArray[np.float64]:
    """Jaccard index of the three-word sequences of each two texts, [texts, texts]."""
    words = [text.split() for text in texts]
    parts = [{tuple(row[at : at + 3]) for at in range(max(1, len(row) - 2))} for row in words]
    return np.array([[len(a & b) / len(a | b) for b in parts] for a in parts])


def paths_section(audits: Sequence[Measured]) -> Section:
    """Preference for usual solutions."""
    text = "is how much higher it scores the usual half of a problem's correct solutions."
    return Section(
        title="Path dependence",
        about="Correct solutions of one problem, by how many word sequences they share with the others.",
        results={"paths": audits},
        verdicts={
            audit.scorer: [measured("unusual", audit.preference, text, audit.problems, harm=True)]
            for audit in audits
        },
        limits=[
            f"{counted(audits[0].solutions, 'correct solution')}, {counted(audits[0].problems, 'problem')}; "
            f"others have fewer than {FEWEST}. Unusual wording counts as an unusual path."
        ],
    )


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
    even = np.full(len(gold), 1 / len(gold))
    counts = np.random.default_rng(seed).multinomial(len(gold), even, size=draws)
    peaks = _peaks(np.asarray(counts @ gold / len(gold)))
    peak_low, peak_high = np.quantile(peaks, [0.025, 0.975], method="nearest")
    bootstrap, problems = Bootstrap(draws=draws, seed=seed), list(large)
    return Measured(
        scorer=audited.name,
        rule=audited.rule,
        points=[
            Measured(
                n=n,
                kl=best_of_n_kl(n),
                **means(bootstrap, problems, proxy=proxy[:, at], gold=gold[:, at]),
                ceiling=float(ceiling[:, at].mean()),
            )
            for at, n in enumerate(sizes)
        ],
        peak=sizes[int(_peaks(gold.mean(axis=0)[None])[0])],
        peak_interval=(sizes[int(peak_low)], sizes[int(peak_high)]),
        free=dict(means(bootstrap, problems, **choices)),
        rival=rival,
        **means(
            bootstrap, problems, gain=gold[:, -1] - np.array(choices[rival]), fall=_falls(gold, problems)
        ),
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
        verdicts={audit.scorer: _choice_verdicts(audit) for audit in audits},
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


def _choice_verdicts(audit: Measured) -> list[Conclusion]:
    last = audit.points[-1].n
    options: Any = {"smallest": SMALLEST_GAIN, "spec": "+.1p", "peak": audit.peak, "last": last}
    falls = f"of accuracy are lost between the best N, {audit.peak}, and N = {last}."
    gain = f"of problems: the best of {last} by its {audit.rule} less {audit.rival}."
    return [
        chosen(audit.points[-1].gold, audit.free, audit.gain, gain, audit.problems),
        measured("keeps", audit.fall, falls, audit.problems, harm=True, **options),
    ]
