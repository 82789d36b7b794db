"""A linear probe on a policy whose hidden states have a planted direction, on any trunk, and its refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from command_line import good, refused
from safetensors.torch import load_file

from benchmarks.worlds.digits import TRUNK, generate_problems, note_problems, worked_solution
from benchmarks.worlds.digits.audits import NOTE
from benchmarks.worlds.digits.world import Difficulty, parse_problem
from benchmarks.worlds.organisms import SHIPPED
from surefoot.errors import CheckpointError, TrainingError
from surefoot.evaluation.audits.interventions import HINTS
from surefoot.io import write_records
from surefoot.models import CheckpointCard, RewardModel, load_prm
from surefoot.models.engine.packing import read_states
from surefoot.models.kinds.classifier import (
    LinearProbe,
    ProbeScorer,
    ProbeSettings,
    chosen_steps,
    reading_layers,
)
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.records import StepLabel, Trace
from surefoot.search import score_held_out, trust_of
from surefoot.segment import Line, segment_trace
from surefoot.training import ProbeConfig
from surefoot.training.probe import fit_probe, outcome_at_each_step, train_probe

CARD = CheckpointCard(family="probe", kind="prm", label_source="test", base="tiny", frozen_trunk=True)


def labelled(count: int, *, seed: int = 5) -> list[LabelledTrace]:
    """Correct solutions; a step is called good if its result is 5 or more, an outcome if the answer is."""
    problems = generate_problems(count, seed=seed, difficulty=Difficulty(min_operations=2, max_operations=4))
    items = []
    for problem in problems:
        trace = Trace(problem_id=problem.id, text=worked_solution(parse_problem(problem.text)))
        trace = segment_trace(trace.model_copy(update={"outcome": int(problem.answer) >= 5}), Line())
        digits = [int(trace.step_text(step).strip()[-1]) for step in range(len(trace.steps))]
        labels = tuple(
            StepLabel(trace_id=trace.id, step=step, kind="correctness", value=1 if d >= 5 else -1, source="t")
            for step, d in enumerate(digits)
        )
        items.append(LabelledTrace(problem=problem, trace=trace, labels=labels))
    return items


@pytest.fixture(scope="module", params=["lab_base", "gpt2_base"])
def fitted(request) -> LinearProbe:
    probe = LinearProbe.initialise(request.getfixturevalue(request.param), CARD)
    fit_probe(probe, labelled(60), ProbeConfig(strength=1.0))
    return probe


def test_finds_the_digit_where_it_is_read(fitted):
    """The embedding of the digit is there at the last token alone: anywhere else is chance."""
    assert (fitted.settings.position, fitted.settings.steps) == ("last", "every")
    trust = trust_of(score_held_out(ProbeScorer(fitted, name="p"), labelled(40, seed=6)))
    assert trust is not None
    assert trust.auc[0] > 0.95
    assert trust.rival == "a bag of words", "the digit is a word of the step"


def test_a_planted_direction_is_recovered(lab_base):
    """Labels are the sign of a random direction of one layer at one token; the weights are that direction."""
    probe, items = LinearProbe.initialise(lab_base, CARD), labelled(80)
    direction = torch.randn(32, generator=torch.Generator().manual_seed(3))
    pairs = [ProblemTrace(problem=item.problem, trace=item.trace) for item in items]
    probe.settings = ProbeSettings(layer=1, position="late", steps="every", training_auc=0.5)
    encoded = probe.encode(pairs)
    states: dict[int, torch.Tensor] = {}
    with reading_layers(probe.trunk, [1]):
        for out in read_states(
            probe.trunk, [trace.ids for trace in encoded], [trace.positions for trace in encoded]
        ):
            states |= out.states
    everything = torch.cat([states[number] for number in range(len(items))])
    middle = (everything @ direction).median()
    planted = [
        LabelledTrace(
            problem=item.problem,
            trace=item.trace,
            labels=tuple(
                StepLabel(trace_id=item.trace.id, step=step, kind="value", value=float(on), source="t")
                for step, on in enumerate((states[number] @ direction > middle).tolist())
            ),
        )
        for number, item in enumerate(items)
    ]
    fresh = LinearProbe.initialise(lab_base, CARD)
    fit_probe(fresh, planted, ProbeConfig(layers=(0, 1, 2), strength=10.0))
    assert (fresh.settings.layer, fresh.settings.position) == (1, "late")
    spread = everything.T.cov()  # directions in which the states do not differ cannot be told apart
    first, second = fresh.head.weight[0].detach(), direction
    cosine = first @ spread @ second / ((first @ spread @ first) * (second @ spread @ second)).sqrt()
    assert cosine > 0.95


def test_random_labels_give_chance_on_other_problems(lab_base):
    rng = np.random.default_rng(1)

    def shuffled(items):
        return [
            LabelledTrace(
                problem=item.problem,
                trace=item.trace,
                labels=tuple(
                    label.model_copy(update={"value": float(rng.choice([-1, 1]))}) for label in item.labels
                ),
            )
            for item in items
        ]

    probe = LinearProbe.initialise(lab_base, CARD)
    fit_probe(probe, shuffled(labelled(60)), ProbeConfig())
    trust = trust_of(score_held_out(ProbeScorer(probe, name="p"), shuffled(labelled(60, seed=6))))
    assert trust is not None
    assert trust.auc[1] < 0.5 < trust.auc[2]


def test_saved_and_loaded_scores_are_the_same(fitted, lab_items, tmp_path):
    fitted.save(tmp_path / "probe")
    loaded = load_prm(tmp_path / "probe")
    first = ProbeScorer(fitted, name="probe").score_traces(lab_items)
    assert loaded.score_traces(lab_items) == first
    assert all(None not in record.scores for record in first)
    assert set(load_file(tmp_path / "probe" / "head.safetensors")) == {"weight", "bias"}
    with pytest.raises(CheckpointError, match="'probe' is not 'surefoot'"):
        RewardModel.load(tmp_path / "probe")


def test_outcomes_are_read_at_chosen_steps(lab_base, tmp_path):
    items = [outcome_at_each_step(item) for item in labelled(60)]
    probe = LinearProbe.initialise(lab_base, CARD)
    tried = ProbeConfig(strength=1.0, steps=("every", "opening", "middle", "closing"))
    train_probe(probe, items, tried, tmp_path / "probe")
    assert probe.settings.steps == "closing"
    [record] = load_prm(tmp_path / "probe").score_traces(
        [ProblemTrace(problem=items[0].problem, trace=items[0].trace)]
    )
    assert [score is None for score in record.scores] == [True] * (len(record.scores) - 1) + [False]
    assert record.unscored_reason == "the probe reads the closing step alone"


def test_steps_by_name():
    assert [list(chosen_steps(5, which)) for which in ("every", "opening", "middle", "closing")] == [
        [0, 1, 2, 3, 4], [0], [2], [4],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("items", "config", "message"),
    [
        (labelled(3), {}, "3 problems have labelled steps, fewer than 'folds' (5)"),
        (labelled(8), {"layers": (7,)}, "'layers' has 7; the model has layers 0 to 2"),
        ([], {}, "0 problems"),
    ],
)
def test_refusals(lab_base, items, config, message):
    with pytest.raises(TrainingError) as error:
        fit_probe(LinearProbe.initialise(lab_base, CARD), items, ProbeConfig(**config))
    assert message in str(error.value)


def test_one_kind_of_label_is_refused(lab_base):
    items = [item for item in map(outcome_at_each_step, labelled(60)) if item.trace.outcome]
    with pytest.raises(TrainingError, match=r"all \d+ labelled steps are good"):
        fit_probe(LinearProbe.initialise(lab_base, CARD), items, ProbeConfig())


def test_the_command_trains_on_labels_outcomes_and_interventions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    items = labelled(60)
    write_records("p.jsonl", [item.problem for item in items])
    write_records("t.jsonl", [item.trace for item in items])
    write_records("l.jsonl", [label for item in items for label in item.labels])
    data = ("t.jsonl", "--problems", "p.jsonl", "--base", TRUNK)
    ended = good("train", "probe", *data, "--labels", "l.jsonl", "--out", "by-label")
    assert "token of every step in layer" in ended.err
    assert load_prm("by-label").card.trust.auc[1] > 0.95
    ended = good("train", "probe", *data, "--out", "by-outcome")
    assert "token of closing step in layer" in ended.err
    assert "give TRACES and --problems, or --interventions" in refused(
        "train", "probe", "--base", TRUNK, "--out", "x"
    )


def test_an_audit_teaches_a_probe_who_follows(tmp_path, monkeypatch):
    """The alternating organism follows the note after an odd start, which its states know from the start."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(HINTS, "opinion", NOTE)  # the organism reads no other hint
    digits = {"choices": list("0123456")}  # the answers that a note can name
    problems = note_problems(90, seed=4, note="none")
    write_records("notes.jsonl", [problem.model_copy(update={"meta": digits}) for problem in problems])
    test = "faithfulness:hint=opinion,cue=Answer: ,mistakes=0"
    policy = SHIPPED / "alternating"
    good(
        "audit",
        "--test",
        test,
        "--problems",
        "notes.jsonl",
        "--policy",
        policy,
        "--out",
        "audit",
        "--draws",
        100,
    )
    train = ("train", "probe", "--interventions", "audit/interventions.jsonl", "--base", policy)
    ended = good(*train, "--out", "follows")
    assert load_prm("follows").card.trust.auc[1] > 0.9, ended.err
    ended = good(*train, "--target", "known", "--out", "known")
    assert "held-out problems its step AUC" in ended.err
