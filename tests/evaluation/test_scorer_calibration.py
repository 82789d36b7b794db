from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from benchmarks.readers.fover import read_fover_scores
from surefoot.errors import ScoreError
from surefoot.evaluation.calibration import audit_calibration, calibration_section
from surefoot.evaluation.labels import label_set
from surefoot.evaluation.measures import Measured
from surefoot.evaluation.report import Report, to_json
from surefoot.evaluation.splits import half_of
from surefoot.evaluation.step_scores import labelled_system, scored_system
from surefoot.formats import read_processbench
from surefoot.models.kinds.derived import PlattMap
from surefoot.records import Problem, Step, StepLabel, StepScores, Trace, content_id
from surefoot.stats.calibration import reliability
from surefoot.stats.reading import step_facts

DATA = Path(__file__).parents[2] / "../shared/data"
TEMPERATURE = 3.0


def made(problems: int = 150, steps: int = 12) -> tuple[list[Trace], list[StepLabel], list[float]]:
    """Traces whose steps are good with the chances returned, two traces a problem; every ninth unlabelled."""
    rng = np.random.default_rng(0)
    traces, labels, chances = [], [], []
    for number in range(2 * problems):
        one = Trace(
            problem_id=f"p{number // 2}",
            sample=number % 2,
            text="x" * steps,
            steps=tuple(Step(start=at, end=at + 1) for at in range(steps)),
        )
        traces.append(one)
        for step in range(steps):
            chance = float(rng.uniform(0.05, 0.95))
            chances.append(chance)
            known = (number * steps + step) % 9
            labels.append(
                StepLabel(
                    trace_id=one.id,
                    step=step,
                    kind="correctness",
                    value=(1.0 if rng.random() < chance else -1.0) if known else None,
                    reason=None if known else "open",
                    source="t",
                )
            )
    return traces, labels, chances


TRACES, LABELS, CHANCES = made()
TRUTH = label_set("truth", LABELS, TRACES)
SHARP = PlattMap(slope=TEMPERATURE, intercept=0).apply(CHANCES).tolist()


def records(name: str, scores: list[float], traces: list[Trace] = TRACES) -> list[StepScores]:
    rows = iter(scores)
    return [StepScores(trace_id=t.id, scorer=name, scores=tuple(next(rows) for _ in t.steps)) for t in traces]


@pytest.fixture(scope="module")
def audit() -> Measured:
    systems = [scored_system(n, records(n, s), TRACES) for n, s in (("true", CHANCES), ("sharp", SHARP))]
    return audit_calibration(systems, TRUTH, draws=200)


def test_true_chances_are_calibrated_and_sharpened_ones_are_not(audit):
    true, sharp = audit.scorers
    assert true.overall.calibration.ece < 0.05 < 0.14 < sharp.overall.calibration.ece
    assert true.overall.brier.value < sharp.overall.brier.value


def test_intervals_are_about_the_published_quantities(audit):
    good = np.array([np.nan if g is None else float(g) for row in TRUTH.good for g in row])
    for scorer, scores in zip(audit.scorers, (CHANCES, SHARP), strict=True):
        whole = reliability(scores, good)
        assert scorer.overall.calibration == whole
        assert scorer.overall.ece.value == pytest.approx(whole.ece)
        assert scorer.overall.brier.value == pytest.approx(whole.brier)
        assert scorer.overall.brier.low < whole.brier < scorer.overall.brier.high
        assert whole.dropped == audit.labels["unknown"] == 400


def test_positions_hold_every_step_once(audit):
    for scorer in audit.scorers:
        steps = scorer.overall.calibration.steps
        assert list(scorer.by_part) == ["1", "2", "3", "4", "5"]
        assert sum(row.steps for row in scorer.by_part.values()) == steps


def test_a_slope_is_found_on_one_half_and_helps_on_the_other(audit):
    fit = next(fit for fit in audit.scorers[1].fits if fit.kind == "platt")
    assert fit.fitted.map.slope == pytest.approx(1 / TEMPERATURE, rel=0.15)
    halves = [half_of(trace.problem_id) for trace in TRACES]
    ids = [t.id for t, half in zip(TRACES, halves, strict=True) if half == 0]
    assert fit.fitted.split_hash == content_id("split", *sorted(ids))
    here = np.repeat([half == 1 for half in halves], 12)
    good = np.array([np.nan if g is None else float(g) for row in TRUTH.good for g in row])[here]
    before, after = (
        reliability(np.array(SHARP)[here], good),
        reliability(fit.fitted.map.apply(SHARP)[here], good),
    )
    assert (fit.before.calibration, fit.after.calibration) == (before, after)
    assert fit.ece_change.value == pytest.approx(after.ece - before.ece)
    assert fit.brier_change.value == pytest.approx(after.brier - before.brier)
    assert fit.ece_change.high < 0
    assert fit.brier_change.high < 0
    assert after.ece < 0.06


def test_isotonic_helps_the_sharp_scores_and_is_no_gain_for_the_true_ones(audit):
    kinds = [{fit.kind: fit for fit in scorer.fits} for scorer in audit.scorers]
    assert kinds[1]["isotonic"].ece_change.high < 0
    assert kinds[0]["isotonic"].brier_change.high > 0


def test_sentences_say_which_way_it_went(audit):
    [advice] = calibration_section(audit).advice  # none for the true scores
    best = min(audit.scorers[1].fits, key=lambda fit: fit.after.ece.value)
    assert advice.startswith(f"sharp: `calibration:fit={best.kind},store=true` lowers the calibration error")


def test_what_cannot_be_fitted_is_said(audit):
    inverted = scored_system("inverted", records("i", [1 - c for c in CHANCES]), TRACES)
    found = audit_calibration([inverted], TRUTH, fits=["platt"], draws=20)
    assert "slope is -" in found.scorers[0].unfitted["platt"]
    assert not found.scorers[0].fits


def test_a_scorer_ranks_bad_above_good_only_where_the_auc_says_so(audit):
    inverted = [1 - c for c in CHANCES]
    low = [0.5 + c / 4 for c in CHANCES]  # in order, and too high
    few = [0.5] * len(CHANCES)
    few[:2] = [0.4, 0.6]
    named = {"inverted": inverted, "low": low, "few": few}
    systems = [scored_system(name, records(name, scores), TRACES) for name, scores in named.items()]
    found = audit_calibration(systems, TRUTH, fits=["platt"], draws=100)
    good = np.array([np.nan if g is None else float(g) for row in TRUTH.good for g in row])
    for scorer, scores in zip(found.scorers, named.values(), strict=True):
        known = ~np.isnan(good)
        assert scorer.auc.value == pytest.approx(roc_auc_score(good[known], np.array(scores)[known]))
    assert [scorer.auc.high < 0.5 for scorer in found.scorers] == [True, False, False]
    assert "Platt's slope is -" in found.scorers[0].unfitted["platt"]
    assert {fit.kind for fit in found.scorers[1].fits} >= {"platt"}
    platt = found.scorers[1].fits[-1]
    assert platt.ece_change.high < 0
    assert platt.after.ece.value < 0.06


def test_traces_that_no_scorer_knows_are_left_out_and_counted():
    some = scored_system("some", records("s", CHANCES, TRACES[:40]), TRACES)
    found = audit_calibration([some], TRUTH, fits=[], draws=20)
    assert (found.traces, found.traces_without_record, found.problems) == (40, 260, 20)
    assert found.scorers[0].system.traces_without_record == 0


def test_sources_that_give_no_calibration_are_refused():
    with pytest.raises(ScoreError, match="judge holds labels, not scores"):
        audit_calibration([labelled_system("judge", LABELS, TRACES)], TRUTH)
    logits = scored_system("logits", records("l", [5.0] * len(CHANCES)), TRACES)
    with pytest.raises(ScoreError, match=r"logits: scores\[0\] is 5; calibration needs scores in \[0, 1\]"):
        audit_calibration([logits], TRUTH)


def test_json_and_page_are_plain_and_repeatable(audit, tmp_path):
    json.dumps(to_json(audit), allow_nan=False)
    for name in ("a.html", "b.html"):
        Report("Calibration").section(calibration_section(audit)).write(tmp_path / name)
    page = (tmp_path / "a.html").read_text()
    assert page == (tmp_path / "b.html").read_text()
    assert page.count("<figure>") == 1


@pytest.mark.skipif(not DATA.exists(), reason="the shared data set is not here")
def test_published_scores_against_the_experts():
    files = [DATA / "processbench" / name for name in ("gsm8k.json.gz", "math.fixed.json.gz")]
    items = [item for file in files for item in read_processbench(file)]
    traces = [item.trace for item in items]
    scores = list(read_fover_scores(DATA / "calib/fover_processbench_scores.jsonl.gz"))
    names = ("Qwen2.5-Math-PRM-7B", "Skywork-o1-Open-PRM-Qwen-2.5-7B")
    systems = [scored_system(n, [one for one in scores if one.scorer == n], traces) for n in names]
    truth = label_set("human", [label for item in items for label in item.labels], traces)
    found = audit_calibration(systems, truth, draws=50)
    qwen, skywork = found.scorers
    assert (found.traces, qwen.overall.calibration.steps) == (500, 2102)
    assert qwen.overall.calibration.ece == pytest.approx(0.010, abs=0.0006)
    assert skywork.overall.calibration.bias == pytest.approx(-0.219, abs=0.0006)
    isotonic = next(fit for fit in skywork.fits if fit.kind == "isotonic")
    assert isotonic.ece_change.high < 0


def test_a_scorer_reads_only_if_it_knows_more_than_length_and_position() -> None:
    known = np.split((TRUTH.codes >= 0), TRUTH.layout.starts[1:-1])
    facts = [
        fact
        for trace, chosen in zip(TRACES, known, strict=True)
        for fact in step_facts(Problem(id=trace.problem_id, text="?"), trace, chosen)
    ]
    assert len(facts) == TRUTH.counts.used
    constant = [0.5 + 0.001 * (at % 12) for at in range(len(CHANCES))]
    systems = [scored_system(n, records(n, s), TRACES) for n, s in (("true", CHANCES), ("place", constant))]
    audit = audit_calibration(systems, TRUTH, facts=facts, fits=[], draws=200)
    assert [scorer.reading.reads for scorer in audit.scorers] == [True, False]
    verdicts = calibration_section(audit).verdicts
    assert verdicts["true"][0].tone == "good"
    assert verdicts["place"][0].tone in ("wrong", "open")
    assert verdicts["place"][0].detail == "is the AUC among continuations of one prefix minus its AUC."
