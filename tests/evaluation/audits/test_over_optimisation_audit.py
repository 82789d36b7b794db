"""Over-optimisation: closed forms, brute force, and pools whose proxy can or cannot be fooled."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.errors import ScoreError
from surefoot.evaluation import StoredScores
from surefoot.evaluation.audits import AuditedScorer, audit_over_optimisation
from surefoot.evaluation.audits.process import best_of_n_kl, over_optimisation_section, sizes_to
from surefoot.protocols import Candidate, ProblemTrace
from surefoot.records import Problem, Step, StepScores, Trace
from surefoot.search import BestOfN, Pool, selection_curve


def pool(rows):
    """Items and stored scores from [problems] of [(score, right)]."""
    items, records = [], []
    for number, row in enumerate(rows):
        problem = Problem(text=f"problem {number}")
        for sample, (score, right) in enumerate(row):
            trace = Trace(
                problem_id=problem.id, text="x", steps=(Step(start=0, end=1),), outcome=right, sample=sample
            )
            items.append(ProblemTrace(problem=problem, trace=trace))
            records.append(
                StepScores(
                    trace_id=trace.id,
                    scorer="s",
                    scores=(score,),
                    unscored_reason="lost" if score is None else None,
                )
            )
    return AuditedScorer(name="s", scorer=StoredScores(records), rule="min", stored=True), items


def test_the_choice_is_that_of_best_of_n_where_answers_are_missing():
    audited, items = pool([[(0.9, False), (0.8, False), (0.6, True), (0.3, True), (0.7, False)]])
    answers = [None, "4", "5", "5", None]
    items = [
        ProblemTrace(problem=item.problem, trace=item.trace.model_copy(update={"answer": answer}))
        for item, answer in zip(items, answers, strict=True)
    ]
    candidates = [
        Candidate(answer=a, score=s) for a, s in zip(answers, [0.9, 0.8, 0.6, 0.3, 0.7], strict=True)
    ]
    found = audit_over_optimisation(audited, items, largest=5, draws=50)
    curve = selection_curve(
        [
            Pool(
                answers=answers,
                correct=[item.trace.outcome for item in items],
                scores=[candidate.score for candidate in candidates],
            )
        ],
        "best_of_n",
        [point.n for point in found.points],
        rng=np.random.default_rng(0),
    )
    assert [point.gold.value for point in found.points] == pytest.approx(curve[0].tolist())
    for point in found.points:
        chosen = [
            subset[BestOfN().select([candidates[at] for at in subset])]
            for subset in itertools.permutations(range(5), point.n)
        ]
        assert point.gold.value == pytest.approx(np.mean([items[at].trace.outcome for at in chosen]))
        assert point.proxy.value == pytest.approx(np.mean([candidates[at].score for at in chosen]))


def drawn(rule, problems=100, samples=64, seed=0):
    rng = np.random.default_rng(seed)
    return pool([[rule(float(u), float(v)) for u, v in rng.random((samples, 2))] for _ in range(problems)])


def test_kl_of_best_of_n_is_the_published_figure():
    assert best_of_n_kl(1) == 0
    assert best_of_n_kl(16) == pytest.approx(1.835, abs=5e-4)


@given(st.integers(1, 200))
def test_sizes_rise_to_the_largest(largest):
    sizes = sizes_to(largest)
    assert sizes == sorted(set(sizes))
    assert (sizes[0], sizes[-1]) == (1, largest)


def test_points_equal_brute_force_over_all_subsets():
    rows = [
        [(0.1, True), (0.9, False), (0.5, True), (0.7, False)],
        [(0.2, False), (0.8, True), (0.3, True), (0.4, False)],
    ]
    audited, items = pool(rows)
    found = audit_over_optimisation(audited, items, largest=4, draws=50)
    for point in found.points:
        best = [[max(subset) for subset in itertools.combinations(row, point.n)] for row in rows]
        assert point.proxy.value == pytest.approx(np.mean([[s for s, _ in row] for row in best]))
        assert point.gold.value == pytest.approx(np.mean([[right for _, right in row] for row in best]))
        assert point.gold.value <= point.ceiling + 1e-12


def test_a_proxy_that_is_fooled_at_the_top_parts_from_gold():
    # the higher the score, the likelier right, but the best two in a hundred are fakes
    found = audit_over_optimisation(*drawn(lambda u, v: (u, v < u and u < 0.98)))
    assert found.fall.low > 0
    assert found.fall.value > 0.2
    assert 4 <= found.peak <= 24
    assert found.peak_interval[0] <= found.peak <= found.peak_interval[1] < 64
    proxy = [point.proxy.value for point in found.points]
    assert proxy == sorted(proxy)


def test_an_honest_proxy_does_not():
    found = audit_over_optimisation(*drawn(lambda u, v: (u, v < u)))
    assert found.fall.low <= 0
    assert found.peak_interval[1] == 64
    assert abs(found.fall.value) < 0.02
    exact = audit_over_optimisation(*drawn(lambda u, v: (float(v < 0.1), v < 0.1)))
    assert [p.gold.value for p in exact.points] == pytest.approx([p.ceiling for p in exact.points])
    assert exact.fall.low <= 0


def test_noise_alone_does_not_fall():
    """Scores that say nothing: the highest of noisy points must not look like a peak."""
    parted = [
        audit_over_optimisation(*drawn(lambda u, v: (u, v < 0.4), 40, 32, seed), draws=300).fall.low > 0
        for seed in range(8)
    ]
    assert sum(parted) <= 1
    flat = audit_over_optimisation(*drawn(lambda u, v: (0.5, v < 0.4)), draws=200)
    assert (flat.fall.value, flat.peak) == (0.0, 1)


def test_everything_left_out_is_counted():
    audited, items = pool(
        [[(0.1, True), (None, False), (0.3, False)], [(0.2, True)], [(0.2, True), (0.4, None), (0.6, False)]]
    )
    found = audit_over_optimisation(audited, items, largest=2, draws=20)
    assert (found.problems, found.too_small, found.samples_needed) == (2, 1, 2)
    assert (found.unscored, found.no_outcome) == (1, 1)
    with pytest.raises(ScoreError, match="sample more"):
        audit_over_optimisation(audited, items, largest=3)


def test_the_rival_is_the_best_choice_that_costs_nothing():
    """The proxy prefers the wrong outlier; a vote is right on each problem."""
    rows = [[(0.9, False), (0.5, True), (0.4, True), (0.3, number % 2 == 0)] for number in range(40)]
    audited, items = pool(rows)
    items = [
        ProblemTrace(
            problem=item.problem,
            trace=item.trace.model_copy(update={"answer": "5" if item.trace.outcome else str(at)}),
        )
        for at, item in enumerate(items)
    ]
    found = audit_over_optimisation(audited, items, largest=4, draws=50)
    assert found.rival == "majority voting"
    assert found.free["majority voting"].value == 1.0
    assert found.gain.value == -1.0
    section = over_optimisation_section([found])
    first, *_ = section.verdicts["s"]
    assert first.tone == "wrong"
    assert first.claim == "lowers accuracy from 62% (one sample) to 0%: worse than majority voting (100%)"
    assert {"one sample", "majority voting", "the shortest", "fewest steps", "s"} <= {
        one.name for one in section.rivals
    }
