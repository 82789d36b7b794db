from __future__ import annotations

import json

import pytest

from surefoot.answers import AnswerChecker
from surefoot.errors import ScoreError
from surefoot.evaluation.best_of_n import (
    BestOfNCurves,
    best_of_n_section,
    evaluate_best_of_n,
    judged_candidates,
)
from surefoot.evaluation.report import Report, to_json
from surefoot.records import Step, StepScores, Trace, Usage

RIGHT = (1, 3, 0, 2, 3, 3)
"""Right traces of four, by problem; wrong ones all answer differently."""


def traces(*, tokens: int = 10) -> list[Trace]:
    return [
        Trace(
            problem_id=f"p{problem}",
            sample=sample,
            text="ab",
            steps=(Step(start=0, end=1), Step(start=1, end=2)),
            answer="right" if sample < right else f"wrong {sample}",
            outcome=sample < right,
            usage=Usage(completion_tokens=tokens, prompt_tokens=5 if sample == 0 else 0),
        )
        for problem, right in enumerate(RIGHT)
        for sample in range(4)
    ]


def scores(given: list[Trace], right: float, wrong: float, *, tokens: int = 7) -> list[StepScores]:
    return [
        StepScores(
            trace_id=one.id,
            scorer="s",
            scores=(0.95, right if one.outcome else wrong),
            usage=Usage(verifier_tokens=tokens),
        )
        for one in given
    ]


def evaluate(given: list[Trace], by: dict[str, list[StepScores]], **options: object) -> BestOfNCurves:
    candidates = judged_candidates(given, AnswerChecker("exact"))
    return evaluate_best_of_n(candidates, by, bootstrap=400, **options)


@pytest.fixture(scope="module")
def result() -> BestOfNCurves:
    given = traces()
    return evaluate(given, {"good": scores(given, 0.9, 0.1), "bad": scores(given, 0.1, 0.9)})


def values(result: BestOfNCurves, name: str) -> list[float]:
    return [interval.value for interval in result.curve(name).accuracy.values()]


def test_closed_forms_of_hand_made_pools(result):
    # pass@2 with c of 4 right is 1 - C(4 - c, 2) / 6
    ceiling = [2 / 4, (0.5 + 1 + 0 + 5 / 6 + 1 + 1) / 6, 5 / 6]
    assert values(result, "pass@N") == pytest.approx(ceiling)
    for how in ("min", "product", "last", "mean"):
        assert values(result, f"good best-of-N {how}") == pytest.approx(ceiling)
        # a wrong trace is chosen wherever there is one: right only if all drawn are right
        all_right = [2 / 4, (0 + 0.5 + 0 + 1 / 6 + 0.5 + 0.5) / 6, 0]
        assert values(result, f"bad best-of-N {how}") == pytest.approx(all_right)
    # of four samples, three right ones win, two beat single ones, one ties with three others
    assert values(result, "majority")[-1] == pytest.approx((0.25 + 1 + 0 + 1 + 1 + 1) / 6)
    assert len(result.curves) == 2 + 2 * 2 * 5
    assert result.sizes == [1, 2, 4]


def test_differences_are_paired_with_majority(result):
    for curve in result.curves:
        if curve.scorer is None:
            assert not curve.minus_majority
            continue
        for size, gap in curve.minus_majority.items():
            expected = curve.accuracy[size].value - result.curve("majority").accuracy[size].value
            assert gap.value == pytest.approx(expected)
            assert gap.low <= gap.value <= gap.high
        gap = curve.minus_majority[1]
        assert (gap.value, gap.low, gap.high) == (0, 0, 0), "one sample leaves no choice"


def test_tokens_count_the_prompt_once_and_the_verifier_apart(result):
    assert result.curve("pass@N").tokens == {1: 15, 2: 25, 4: 45}
    assert result.curve("majority").tokens == {1: 15, 2: 25, 4: 45}
    assert result.curve("good weighted vote last").tokens == {1: 22, 2: 39, 4: 73}
    assert not result.unknown


def test_unknown_tokens_are_said_and_not_zero():
    given = traces(tokens=0)
    found = evaluate(given, {"s": scores(given, 0.9, 0.1)})
    assert not any(curve.tokens for curve in found.curves)
    assert found.unknown["tokens of the policy"].startswith("24 of 24 traces without")
    given = traces()
    found = evaluate(given, {"s": scores(given, 0.9, 0.1, tokens=0)})
    assert found.curve("majority").tokens
    assert not found.curve("s best-of-N min").tokens
    assert list(found.unknown) == ["tokens of s"]


def test_each_scorer_is_compared_with_majority_by_a_rule_fixed_beforehand(result):
    verdicts = best_of_n_section(result).verdicts
    assert list(verdicts) == list(result.scorers)
    assert result.free[result.rival].value == max(value.value for value in result.free.values())
    for name, [selects] in verdicts.items():
        curve = result.curve(f"{name} weighted vote min")
        best = result.free[result.rival].value
        assert selects.estimate.value == pytest.approx(curve.accuracy[4].value - best)
        assert selects.detail.startswith(f"of problems: {name} weighted vote min")
        assert "at least one is right for 83.3%" in selects.detail
        assert selects.tone == "open"  # six problems decide nothing


def test_scores_that_an_aggregation_does_not_allow_are_left_out_by_name():
    given = traces()
    found = evaluate(given, {"s": scores(given, 0.5, -2.0)})
    names = {curve.name for curve in found.curves}
    assert {name for name in names if name.startswith("s ")} == {
        "s best-of-N min",
        "s best-of-N last",
        "s best-of-N mean",
        "s best-of-N sum",
    }
    assert set(found.scorers["s"].left_out) == {"product", "weighted_vote"}
    outcome = [
        one.model_copy(update={"steps": one.steps[:1]}) for one in given
    ]  # one score a trace: the aggregations are one
    single = [record.model_copy(update={"scores": record.scores[1:]}) for record in scores(given, 0.9, 0.1)]
    found = evaluate(outcome, {"s": single})
    assert [curve.name for curve in found.curves[2:]] == ["s best-of-N last", "s weighted vote last"]


def test_unscored_and_foreign_records_are_counted():
    given = traces()
    records = scores(given, 0.9, 0.1)
    foreign = records[0].model_copy(update={"trace_id": "elsewhere"})
    found = evaluate(given, {"s": [*records[3:], foreign]})
    assert (found.scorers["s"].unscored, found.scorers["s"].foreign) == (3, 1)
    assert found.curve("s best-of-N min").accuracy[4].value < found.curve("pass@N").accuracy[4].value


def test_sizes_must_fit_the_pools():
    given = traces()
    candidates = judged_candidates(given, AnswerChecker("exact"))
    for sizes in ([8], [0, 1]):
        with pytest.raises(ScoreError, match="sizes must lie between 1 and 4"):
            evaluate_best_of_n(candidates, {}, sizes=sizes)


def test_json_is_plain(result):
    text = json.dumps(to_json(result), allow_nan=False)
    assert json.loads(text)["curves"][0]["accuracy"]["4"]["value"] == pytest.approx(5 / 6)


def test_the_page_needs_nothing_and_is_the_same_again(tmp_path):
    given = traces()
    found = evaluate(given, {"s": scores(given, 0.9, 0.1)})
    for name in ("a.html", "b.html"):
        Report("Best-of-N").section(best_of_n_section(found)).write(tmp_path / name)
    page = (tmp_path / "a.html").read_text()
    assert page == (tmp_path / "b.html").read_text()
    assert page.count("<figure>") == 1, "the decisive curves"
    assert "http" not in page.replace("http://www.w3.org", "").replace("<meta http-equiv=", "")
