"""Fused scorers: trees as arrays, features of a prefix, parts that are worth something, and refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from command_line import good, refused
from fixed_scorer import FixedScorer
from lab_traces import lab_item
from safetensors.numpy import load_file, save_file
from sklearn.ensemble import HistGradientBoostingClassifier

from surefoot.cli.runs import is_held_out
from surefoot.errors import CheckpointError, TrainingError
from surefoot.io import read_records, write_records
from surefoot.io.runs import load_object
from surefoot.lab import generate_problems
from surefoot.lab.world import LabVerifier
from surefoot.models import load_prm
from surefoot.models.kinds import fused as fused_scorers
from surefoot.models.kinds.fused import LAYOUT, TEXT, Trees, step_features
from surefoot.models.loading import training_problems
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.records import Problem, StepLabel, Trace, content_id
from surefoot.search.trust import HeldOutStep
from surefoot.segment import Line, segment_trace
from surefoot.training import FusionConfig, fit_fused
from surefoot.training.fusion import _trees

CONFIG = FusionConfig(trees=20, steps_per_leaf=5, folds=3)


def labelled(count: int, *, seed: int) -> list[LabelledTrace]:
    """Lab solutions, every other one with a wrong step, under exact labels."""
    rng = np.random.default_rng(seed)
    problems = generate_problems(count, seed=seed)
    items = [lab_item(problem, wrong=number % 2 == 0, rng=rng) for number, problem in enumerate(problems)]
    rows = LabVerifier().verify(items)
    return [
        LabelledTrace(
            problem=item.problem,
            trace=item.trace,
            labels=tuple(
                StepLabel(
                    trace_id=item.trace.id, step=step, kind="correctness", value=verdict.value, source="t"
                )
                for step, verdict in enumerate(verdicts)
                if verdict.value is not None
            ),
        )
        for item, verdicts in zip(items, rows, strict=True)
    ]


def fused(items, verifiers=("lab",), **models):
    return fit_fused(items, CONFIG, models=models, verifiers=verifiers, name="f", label_source="t")


@pytest.fixture(scope="module")
def scorer():
    return fused(labelled(60, seed=1))


@pytest.mark.parametrize("seed", range(4))
def test_arrays_compute_what_the_boosted_trees_compute(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(400, 5)).round(1)
    x[rng.random(x.shape) < 0.2] = np.nan
    y = (np.nan_to_num(x[:, 0]) * np.nan_to_num(x[:, 1], nan=1) + rng.normal(size=400)) > 0
    model = HistGradientBoostingClassifier(max_iter=15, random_state=0).fit(x, y)
    fresh = rng.normal(size=(500, 5)).round(1)
    fresh[rng.random(fresh.shape) < 0.3] = np.nan
    odds = _trees(model).sum(fresh) + model._baseline_prediction.item()
    assert np.allclose(odds, model.decision_function(fresh))


def test_features_of_a_step_by_hand():
    problem = Problem(text="Tom has 3 apples and 12 pears.")
    text = "Tom has 3 + 12 = 15.\nSo 15 / 4 = 3.75 pears each.\n"
    trace = segment_trace(Trace(problem_id=problem.id, text=text), Line())
    [rows], _ = step_features([ProblemTrace(problem=problem, trace=trace)], (), ())
    assert (*LAYOUT, *TEXT[:5]) == (
        *("characters", "position", "repeated", "equations", "numbers", "new_numbers"),
        "numbers_of_last_step",
    )
    assert TEXT[5:] == ("words", "new_words", "words_of_problem", "words_of_last_step")
    assert rows.tolist() == [[20, 0, 0, 1, 3, 1, 0, 2, 0, 2, 0], [28, 1, 0, 1, 3, 2, 1, 2, 1, 1, 0]]


def test_a_score_does_not_depend_on_later_steps(scorer):
    [item] = labelled(1, seed=7)
    steps = item.trace.steps
    whole = ProblemTrace(problem=item.problem, trace=item.trace)
    part = ProblemTrace(
        problem=item.problem, trace=item.trace.model_copy(update={"steps": steps[: len(steps) - 1]})
    )
    long, short = scorer.score_traces([whole, part])
    assert long.scores[:-1] == short.scores


def test_finds_wrong_steps_by_the_verifier_and_says_so(scorer):
    auc = scorer.settings.auc
    assert auc["all"] == pytest.approx(1, abs=0.01)
    assert auc["lab alone"] > 0.95 > auc["without lab"]
    items = labelled(20, seed=2)
    records = scorer.score_traces([ProblemTrace(problem=i.problem, trace=i.trace) for i in items])
    for item, record in zip(items, records, strict=True):
        for label in item.labels:
            assert (record.scores[label.step] > 0.5) == (label.value > -1)


def test_saved_scores_are_the_same_and_damage_is_refused(tmp_path, scorer, monkeypatch):
    scorer.save(tmp_path / "f")
    items = [ProblemTrace(problem=item.problem, trace=item.trace) for item in labelled(5, seed=3)]
    assert [r.scores for r in load_prm(tmp_path / "f").score_traces(items)] == [
        r.scores for r in scorer.score_traces(items)
    ]
    settings = scorer.settings.model_copy(update={"models": (str(tmp_path / "f"),)})
    type(scorer)(settings, scorer.trees, scorer.card, models=(), name="g").save(tmp_path / "g")
    with pytest.raises(CheckpointError, match="fused scorer itself"):
        load_prm(tmp_path / "g")
    member = scorer.settings.model_copy(update={"models": ("lab",)})
    monkeypatch.setattr(fused_scorers, "_weights", lambda _: {"lab": {"head.safetensors": "1"}})
    type(scorer)(member, scorer.trees, scorer.card, models=(), name="h").save(tmp_path / "h")
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="other weights than when the trees were fitted"):
        load_prm(tmp_path / "h")
    trees = load_file(tmp_path / "f" / "trees.safetensors")
    for name, value in (("left", 10_000), ("feature", -1), ("value", np.nan)):
        damaged = {key: array.copy() for key, array in trees.items()}
        damaged[name].flat[0] = value
        with pytest.raises(ValueError, match=name):
            Trees.checked(damaged, features=13)
    with pytest.raises(ValueError, match="whole numbers"):
        Trees.checked({**trees, "left": trees["left"].astype(float)}, features=13)
    with pytest.raises(ValueError, match="of one shape"):
        Trees.checked({key: array[:, :0] for key, array in trees.items()}, features=13)
    save_file(
        {key: array for key, array in trees.items() if key != "left"}, tmp_path / "f" / "trees.safetensors"
    )
    with pytest.raises(CheckpointError, match="damaged"):
        load_prm(tmp_path / "f")


def test_a_model_is_a_part_and_may_leave_gaps():
    items = labelled(30, seed=4)
    scores = {item.trace.text or "": [label.value for label in item.labels] for item in items}
    for row in list(scores.values())[::2]:
        row[0] = None
    scorer = fused(items, verifiers=(), exact=FixedScorer(scores))
    assert (scorer.settings.models, scorer.settings.complete) == (("exact",), ("layout", "text"))
    assert scorer.settings.auc["exact alone"] > scorer.settings.auc["without exact"]
    [record] = scorer.score_traces([ProblemTrace(problem=items[0].problem, trace=items[0].trace)])
    assert record.usage.verifier_tokens == 10
    assert None not in record.scores
    complete = {item.trace.text or "": [label.value for label in item.labels] for item in items}
    scorer = fused(items, verifiers=(), exact=FixedScorer(complete))
    assert scorer.settings.complete == ("layout", "text", "exact")
    scorer.models = (FixedScorer(scores),)
    [record] = scorer.score_traces([ProblemTrace(problem=items[0].problem, trace=items[0].trace)])
    assert [score is None for score in record.scores] == [
        value is None for value in scores[items[0].trace.text]
    ]
    assert record.unscored_reason == "no value of exact"
    silent = FixedScorer({text: [None] * len(row) for text, row in scores.items()})
    with pytest.raises(TrainingError, match="'silent' says nothing"):
        fused(items, silent=silent)
    text, row = next((text, row) for text, row in complete.items() if len(row) > 1)
    rare = fused(items, rare=FixedScorer({**silent.scores, text: row}))
    assert rare.settings.complete == ("layout", "text", "lab"), "some folds were fitted without its values"


def test_refuses_labels_that_cannot_be_learned_from():
    items = labelled(9, seed=5)
    right = [
        replace(item, labels=tuple(label for label in item.labels if label.value == 1)) for item in items
    ]
    with pytest.raises(TrainingError, match="are good"):
        fused(right)
    with pytest.raises(TrainingError, match="fewer than 'folds'"):
        fused(items[:2])
    with pytest.raises(TrainingError, match="no step has a known label"):
        fused([replace(item, labels=()) for item in items])


def test_from_the_command_line(tmp_path):
    items = labelled(60, seed=6)
    write_records(tmp_path / "p.jsonl", [item.problem for item in items])
    write_records(tmp_path / "t.jsonl", [item.trace for item in items])
    write_records(tmp_path / "l.jsonl", [label for item in items for label in item.labels])
    files = [tmp_path / "t.jsonl", "--problems", tmp_path / "p.jsonl", "--labels", tmp_path / "l.jsonl"]
    ended = good(
        *["train", "fused", *files, "--verifier", "lab", "--steps-per-leaf", "5", "--out", tmp_path / "f"],
        *["--validation", "0.1"],
    )
    assert "by lab" in ended.err
    card = load_prm(tmp_path / "f").card
    assert card.trust is not None
    assert card.trust.auc[0] > 0.95
    assert "no verifier is called" in refused(
        *["train", "fused", *files, "--verifier", "nothing", "--out", tmp_path / "g"]
    )


def test_training_problems_have_labels_and_are_not_tested(tmp_path):
    items = labelled(60, seed=6)

    def is_tested(item):
        return is_held_out(item.problem.id, 0.3, "held out from fusion")

    first, second = [item for item in items if not is_tested(item)][:2]
    items[items.index(second)] = replace(second, labels=())
    twin = next(item for item in items if is_tested(item))
    text = first.problem.text
    items[items.index(twin)] = replace(twin, problem=twin.problem.model_copy(update={"text": text}))
    write_records(tmp_path / "p.jsonl", [item.problem for item in items])
    write_records(tmp_path / "t.jsonl", [item.trace for item in items])
    write_records(tmp_path / "l.jsonl", [label for item in items for label in item.labels])
    files = [tmp_path / "t.jsonl", "--problems", tmp_path / "p.jsonl", "--labels", tmp_path / "l.jsonl"]
    fuse = ["train", "fused", *files, "--verifier", "lab", "--steps-per-leaf", "5", "--validation", "0.3"]
    ended = good(*fuse, "--out", tmp_path / "f")
    assert "1 held-out traces left out: their problems were trained on" in ended.err
    of = [item.problem.text for item in items if item.labels and not is_tested(item)]
    assert training_problems(tmp_path / "f") == {content_id(text) for text in of}
    rows = read_records(tmp_path / "f" / "held-out-steps.jsonl", HeldOutStep)
    assert {row.problem_id for row in rows} == {
        item.problem.id for item in items if is_tested(item) and item.problem.id != twin.problem.id
    }


def test_a_member_is_not_fused_on_problems_that_it_was_trained_on(tmp_path, gpt2_base):
    items = labelled(60, seed=8)
    seen = items[:25]
    for name, of in (("seen", seen), ("all", items)):
        write_records(tmp_path / f"{name}-p.jsonl", [item.problem for item in of])
        write_records(tmp_path / f"{name}-t.jsonl", [item.trace for item in of])
        write_records(tmp_path / f"{name}-l.jsonl", [label for item in of for label in item.labels])

    def train(kind, name, out, *options):
        files = [f"{name}-t.jsonl", "--problems", f"{name}-p.jsonl", "--labels", f"{name}-l.jsonl"]
        files = [tmp_path / word if word.endswith("jsonl") else word for word in files]
        return ["train", kind, *files, "--out", tmp_path / out, *options]

    small = ("--batch-size", 16, "--epochs", 1, "--validation", 0.2)
    good(*train("prm", "seen", "prm", "--base", gpt2_base, *small))
    hashes = training_problems(tmp_path / "prm")
    assert hashes
    assert hashes < {content_id(item.problem.text) for item in seen}
    fuse = ("--verifier", "lab", "--steps-per-leaf", 5, "--model", tmp_path / "prm")
    ended = good(*train("fused", "all", "fused", *fuse, "--validation", 0.2))
    left_out = sum(content_id(item.problem.text) in hashes for item in items)
    assert f"{left_out} traces left out: {tmp_path / 'prm'} was trained on their problems" in ended.err
    by_all = training_problems(tmp_path / "fused")
    assert hashes < by_all < {content_id(item.problem.text) for item in items}
    tested = {
        row.problem_id for row in read_records(tmp_path / "fused" / "held-out-steps.jsonl", HeldOutStep)
    }
    assert tested.isdisjoint(item.problem.id for item in items if content_id(item.problem.text) in by_all)

    files = ["--problems", tmp_path / "all-p.jsonl", "--out", tmp_path / "scores.jsonl"]
    of_seen = f"prm was trained on {len(hashes)} of 25 problems", tmp_path / "seen-t.jsonl"
    words = ["score", of_seen[1], *files[:2], "--out", tmp_path / "seen.jsonl"]
    assert of_seen[0] in good(*words, "--model", tmp_path / "prm").err, "the file has problems without traces"
    words = ["evaluate", "best-of-n", f"prm={tmp_path / 'prm'}", "--traces", of_seen[1], *files[:2]]
    assert of_seen[0] in good(*words, "--out", tmp_path / "curves", "--draws", 20, "--bootstrap", 20).err
    warning = f"prm was trained on {len(hashes)} of 60 problems: its scores are too good there"
    assert warning in good("score", tmp_path / "all-t.jsonl", *files, "--model", tmp_path / "prm").err
    report = tmp_path / "report"
    files = ["--traces", tmp_path / "all-t.jsonl", "--labels", tmp_path / "all-l.jsonl", *files[:2]]
    good("evaluate", "calibration", f"prm={tmp_path / 'prm'}", *files, "--out", report, "--draws", 20)
    [limit] = [x for x in load_object(report / "calibration.json")["first_screen"]["limits"] if warning in x]
    assert limit in (report / "calibration.html").read_text()

    listed = tmp_path / "prm" / "training-problems.txt"
    not_held_out = [item.problem for item in items if not is_held_out(item.problem.id, 0.5)]
    listed.write_text("\n".join(content_id(problem.text) for problem in not_held_out))
    good(*train("fused", "all", "rest", *fuse, "--validation", 0.5))
    listed.write_text("\n".join(content_id(item.problem.text) for item in seen))
    assert "was trained on every problem that is left" in refused(*train("fused", "seen", "none", *fuse))
    listed.unlink()
    ended = good(*train("fused", "seen", "unsure", *fuse))
    assert "prm does not say on which problems it was trained" in ended.err
    assert training_problems(tmp_path / "unsure") is None
    good(*train("fused", "seen", "lab", "--verifier", "lab", "--steps-per-leaf", 5, "--model", "lab"))
    assert training_problems(tmp_path / "lab") is None
