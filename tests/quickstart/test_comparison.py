import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest
from lab_traces import lab_item

from surefoot.evaluation.pools import sizes_up_to
from surefoot.lab.world import ExactLabeller, generate_problems
from surefoot.models.card import CheckpointCard
from surefoot.models.kinds.classifier import RewardModel
from surefoot.models.scorer import Scorer
from surefoot.protocols import ProblemTrace
from surefoot.quickstart import ScoredTraces, Summary, accuracy_curves, compare, first_screen, report_of
from surefoot.quickstart.summary import RULES, findings
from surefoot.records import Evidence, StepLabel, StepScores, Usage
from surefoot.stats import mean_over_runs
from surefoot.stats.intervals import Interval

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


def labels_of(items: list[ProblemTrace]) -> dict[str, list[list[StepLabel]]]:
    """Exact labels, and Monte Carlo labels that agree with them but for the very first step."""
    exact = asyncio.run(ExactLabeller(after_error="wrong").label(items))
    rollouts = [
        [
            StepLabel(
                trace_id=label.trace_id,
                step=label.step,
                kind="value",
                value=float(label.value > 0),
                source="mc",
                evidence=Evidence(usage=Usage(completion_tokens=2)),
            )
            for label in row
        ]
        for row in exact
    ]
    rollouts[0][0] = rollouts[0][0].model_copy(update={"value": 1.0 - rollouts[0][0].value})
    return {"exact": exact, "monte_carlo": rollouts}


@pytest.fixture(scope="module")
def summary(lab_base) -> Summary:
    scored = hand_made()
    scorers = {
        name: [
            Scorer(
                RewardModel.initialise(
                    lab_base, CheckpointCard(kind="prm", aggregation=rule, label_source="t", base="b")
                ),
                name=name,
            )
        ]
        for name, rule in READ.items()
    }
    by_id = {problem.id: problem for problem in PROBLEMS}
    items = [ProblemTrace(problem=by_id[trace.problem_id], trace=trace) for trace in scored.traces]
    return compare(
        scored,
        scorers=scorers,
        train_traces=scored.traces,
        labels=labels_of(items),
        training={"prm": {"tokens": 5}},
        seed=0,
    )


def test_the_summary_of_hand_made_scores(summary):
    assert {size: estimate.value for size, estimate in summary.pass_at.items()} == {
        1: 0.33333,
        2: 0.5,
        4: 0.66667,
    }
    assert summary.prm == summary.pass_at == summary.prm_gold
    assert summary.differences["prm - orm @ 4"].value == pytest.approx(2 / 3, abs=1e-5)
    assert summary.differences["prm_gold - prm @ 4"] == Interval(value=0, low=0, high=0)
    assert summary.policy["accuracy"] == pytest.approx(4 / 12, abs=1e-5)
    assert summary.policy["lucky_fraction"] == 0
    assert summary.counts["test_traces"] == summary.counts["train_traces"] == 12
    assert summary.tokens["test_traces"].completion_tokens == 120
    assert summary.tokens["scores_prm"].verifier_tokens == 84
    assert summary.tokens["monte_carlo_labels"].completion_tokens == 2 * summary.counts["labels"]
    assert 0 < summary.label_noise["precision"] <= 1
    assert summary.label_noise["first_error_accuracy"] == pytest.approx(11 / 12, abs=1e-5)
    assert {quality.probe_right.value for quality in summary.steps.values()} == {0.0}, "ties prefer nothing"
    assert len(summary.selectors) == 3 * 5 * 2, "best-of-N and weighted vote by five aggregations"


def test_both_models_are_read_by_every_rule(summary):
    assert tuple(summary.prm_against_orm) == RULES
    last = summary.prm_against_orm["best-of-N last"]
    assert (last.prm.value, last.orm.value, last.difference.value) == pytest.approx(
        (2 / 3, 0, 2 / 3), abs=1e-5
    )
    for rule, comparison in summary.prm_against_orm.items():
        assert comparison.prm == summary.selectors[f"prm {rule}"][4]
        assert comparison.orm == summary.selectors[f"orm {rule}"][4]
        assert comparison.verdict == "one training seed"
        assert comparison.by_seed == [comparison.difference.value]


def two_seeds(summary, first, second):
    """The summary as of two training seeds, whose models differ by these gaps."""
    gap = mean_over_runs([[first] * 12, [second] * 12], rng=np.random.default_rng(0))
    rules = {
        rule: replace(row, difference=gap, by_seed=[first, second])
        for rule, row in summary.prm_against_orm.items()
    }
    differences = summary.differences | {"prm - orm_lowest_step @ 4": gap}
    return replace(
        summary,
        training_seeds=2,
        prm_against_orm=rules,
        differences=differences,
        counts=summary.counts | {"test_problems": 12},
    )


def test_a_difference_is_real_only_over_training_seeds(summary):
    assert "no difference is called real." in " ".join(findings(summary))
    equal, unequal = two_seeds(summary, 0.2, 0.21), two_seeds(summary, 0.1, 0.3)
    assert {row.verdict for row in equal.prm_against_orm.values()} == {"PRM"}
    assert "better are PRM by best-of-N min" in " ".join(findings(equal))
    # the same mean, but the seeds disagree: problems alone would have called it real
    assert {row.verdict for row in unequal.prm_against_orm.values()} == {"not significant"}
    chips = [first_screen(one).three[1].chip for one in (summary, equal, unequal)]
    assert chips[:2] == ["cannot tell: one training seed", "yes"]
    assert chips[2].startswith("cannot tell: needs about")
    assert "one training seed cannot say" in first_screen(summary).sentence


def test_step_quality_follows_the_scores(summary):
    prm = summary.steps["prm"]
    assert prm.auc_less_position.value == pytest.approx(prm.auc - summary.position_auc, abs=1e-4)
    assert 0.5 < summary.position_auc < 1, "later steps are wrong more often"
    assert 0.5 < summary.steps["prm"].auc <= 1
    assert summary.steps["prm_gold"] == summary.steps["prm"]
    assert summary.steps["orm"].auc < summary.steps["prm"].auc


def test_what_is_undefined_is_null_in_the_file(summary):
    nothing = replace(summary, policy={"accuracy": 0.0, "lucky_fraction": math.nan})
    assert nothing.to_json()["policy"] == {"accuracy": 0.0, "lucky_fraction": None}
    assert nothing.to_json()["prm"]["4"]["value"] == summary.prm[4].value
    report_of(nothing).html()


def test_equal_summaries_give_equal_pages(summary, tmp_path):
    for name in ("a.html", "b.html"):
        report_of(summary).write(tmp_path / name)
    page = (tmp_path / "a.html").read_bytes()
    assert page == (tmp_path / "b.html").read_bytes()
    assert all(finding.encode()[:20] in page for finding in findings(summary))
