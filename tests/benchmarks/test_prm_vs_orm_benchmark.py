"""The curves of PRM against ORM, on scores whose accuracy is known."""

from __future__ import annotations

import numpy as np
import pytest
from lab_traces import lab_item

from benchmarks.prm_vs_orm.curves import RULES, ScoredTraces, accuracy_curves, step_aucs
from benchmarks.prm_vs_orm.run import of_one_seed
from benchmarks.worlds.digits import generate_problems
from surefoot.evaluation import sizes_up_to
from surefoot.records import StepScores, Usage

PROBLEMS = generate_problems(3, seed=11)
READ = {"orm": "last", "prm": "min", "prm_gold": "min"}


def hand_made() -> ScoredTraces:
    """Three problems, four traces each; PRM scores are perfect, the ORM's perfectly wrong.

    Problem 0 has one right trace, problem 1 three, problem 2 none.
    """
    traces, scores = [], {name: [] for name in READ}
    for problem, right in zip(PROBLEMS, (1, 3, 0), strict=True):
        for sample in range(4):
            wrong = sample >= right
            made = lab_item(problem, wrong=wrong, rng=np.random.default_rng(sample)).trace
            answer = problem.answer if not wrong else f"wrong {sample}"
            made = made.model_copy(
                update={
                    "id": f"{problem.id}-{sample}",
                    "sample": sample,
                    "answer": answer,
                    "usage": Usage(completion_tokens=10),
                }
            )
            traces.append(made)
            for name in READ:
                value = (0.2 if wrong else 0.8) if name != "orm" else (0.8 if wrong else 0.2)
                steps = (0.9,) * (len(made.steps) - 1) + (value,)
                scores[name].append(
                    StepScores(trace_id=made.id, scorer=name, scores=steps, usage=Usage(verifier_tokens=7))
                )
    return ScoredTraces(
        problems=PROBLEMS, traces=traces, scores={name: [records] for name, records in scores.items()}
    )


def test_sizes_are_the_powers_of_two():
    assert sizes_up_to(64) == [1, 2, 4, 8, 16, 32, 64]
    assert sizes_up_to(6) == [1, 2, 4]
    assert sizes_up_to(1) == [1]


def test_curves_of_hand_made_scores():
    curves = accuracy_curves(hand_made(), [1, 2, 4], seed=0)
    # one right of four: 1/4, 1/2, 1; three of four: 3/4, 1, 1; none: 0
    ceiling = [[0.25, 0.5, 1], [0.75, 1, 1], [0, 0, 0]]
    assert curves["pass_at"] == pytest.approx(np.array([ceiling]))
    assert curves["prm"] == pytest.approx(np.array([ceiling])), "a perfect scorer reaches the ceiling"
    # the ORM is right only where no wrong trace was drawn
    assert curves["orm"] == pytest.approx(np.array([[[0.25, 0, 0], [0.75, 0.5, 0], [0, 0, 0]]]))
    # four different answers are a tie; three equal ones win
    assert curves["majority"][0, :, -1] == pytest.approx([0.25, 1, 0])
    assert all((curve <= curves["pass_at"] + 1e-12).all() for curve in curves.values())


def test_pools_keep_what_has_no_score_unscored():
    scored = hand_made()
    [records] = scored.scores["prm"]
    first = records[0]
    partly = StepScores(
        trace_id=first.trace_id,
        scorer="prm",
        scores=(None, *first.scores[1:]),
        unscored_reason="too long",
    )
    pools = scored.pools([partly, *records[2:]], "min")
    assert pools[0].scores == pytest.approx([np.nan, np.nan, 0.2, 0.2], nan_ok=True)
    assert pools[0].correct.tolist() == [True, False, False, False]
    assert pools[1].scores.tolist() == [0.8, 0.8, 0.8, 0.2]


def test_both_models_are_read_by_every_rule(capsys):
    scored, sizes = hand_made(), [1, 2, 4]
    found = of_one_seed(accuracy_curves(scored, sizes, seed=0), scored, sizes, 0)
    assert {f"prm - orm, {rule}" for rule in RULES} <= found["differences"].keys()
    last = found["differences"]["prm - orm, best-of-N last"]
    assert (last["value"], last["by_seed"]) == (pytest.approx(2 / 3), [pytest.approx(2 / 3)])
    assert found["curves"]["prm"][4]["value"] == found["curves"]["pass_at"][4]["value"]
    assert "prm - majority @ 4: " in capsys.readouterr().out


def test_step_auc_of_a_perfect_and_of_a_reversed_scorer():
    aucs = step_aucs(hand_made(), seed=0)
    assert aucs["prm"][0] > aucs["orm"][0]  # both score all steps but the last alike
    assert aucs["prm"] == aucs["prm_gold"]
    assert aucs["prm"][1].value > aucs["orm"][1].value
