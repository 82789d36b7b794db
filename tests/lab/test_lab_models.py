"""The shipped models of the lab: size, tokens, what they can read, and that they know right from wrong."""

from __future__ import annotations

import json
import random
from dataclasses import asdict

import pytest
import torch
from command_line import good, refused
from safetensors import safe_open
from transformers import AutoTokenizer

from benchmarks.worlds.words.train import RECIPES
from surefoot import lab, load_prm
from surefoot.errors import CheckpointError, counted
from surefoot.io import read_records, write_records
from surefoot.lab import ORM, POLICY, PRM, Setting, draw_problem, generate_problems
from surefoot.models.encoding import Encoding
from surefoot.policies import Loading, load_policy
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem, StepLabel, Trace
from surefoot.segment import Line, segment_trace
from surefoot.training.config import StepTargets
from surefoot.training.examples import build_examples

MODELS = (POLICY, PRM, ORM)


def test_they_are_small_hold_no_state_of_training_and_are_float32_unless_asked_otherwise():
    assert sum(path.stat().st_size for folder in MODELS for path in folder.rglob("*")) < 10_000_000
    for folder in MODELS:
        names = {path.name for path in folder.iterdir()}
        assert "recipe.json" in names
        assert names <= {
            *("config.json", "generation_config.json", "model.safetensors", "head.safetensors"),
            *("tokenizer.json", "tokenizer_config.json", "recipe.json", "surefoot.json"),
            "training-problems.txt",
        }
        assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"
        with safe_open(folder / "model.safetensors", "pt") as weights:
            assert {weights.get_slice(name).get_dtype() for name in weights.keys()} == {"BF16"}  # noqa: SIM118
    assert load_policy(POLICY).model.dtype == torch.float32
    assert load_prm("lab").model.trunk.dtype == torch.float32
    assert load_prm(ORM).card.kind == "orm"
    half = load_prm("lab", loading=Loading(dtype="bfloat16"))
    assert half.model.trunk.dtype == torch.bfloat16


@pytest.mark.parametrize("held_out", [False, True])
def test_text_of_the_lab_round_trips_without_unknown_tokens(held_out):
    tokenizer = AutoTokenizer.from_pretrained(POLICY)
    rng = random.Random(1)
    for _ in range(200):
        problem = draw_problem(rng, Setting(held_out=held_out, opinion=0.3, distractor=0.5))
        text = f"{problem.text}\n{lab.worked_solution(problem.record())}"
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
    pieces = [tokenizer.decode(token) for token in tokenizer("Ann has 12 more than Ben.\n")["input_ids"][1:]]
    assert pieces == ["Ann has ", "1", "2", " more than ", "Ben", ".", "\n"]
    assert [tokenizer.decode(token) for token in tokenizer("Answer: ")["input_ids"][1:]] == ["Answer: "]


def test_a_problem_with_an_unknown_word_has_no_score_and_no_sample_and_says_which(tmp_path):
    text = "Ann counts 12 cards. Ben has 17 more than Ann. How many cards does Ben have?"
    solution = "Ben has 17 more than Ann. Ben has Ann's 12 + 17 = 29.\nAnswer: 29.\n"
    prm = load_prm("lab")
    [known] = prm.score(text, [solution])
    assert None not in known.scores
    far = f"{text} " * 9
    for asked, word in ((text, "bananas"), (far, "bananas"), (text, "x" * 500)):
        [unknown] = prm.score(asked.replace("cards", word, 1), [solution])
        assert set(unknown.scores) == {None}
        assert unknown.unscored_reason.startswith(f"'{word[:40]}' is unknown to the tokenizer of ")
        assert unknown.unscored_reason.endswith("which has 213 tokens")
    write_records(tmp_path / "p.jsonl", [Problem(text=text.replace("Ben", "Zoe"), answer="29")])
    says = refused("sample", tmp_path / "p.jsonl", "--policy", "lab", "--out", tmp_path / "t.jsonl")
    assert "'Zoe' is unknown to the tokenizer of " in says


@pytest.mark.parametrize("folder", [PRM, ORM])
def test_a_solution_has_scores_up_to_the_first_step_with_an_unknown_word(folder):
    [problem] = generate_problems(1, seed=11, setting=Setting(graphs=1.0, steps=(3, 3)))
    prm, solution = load_prm(folder), lab.worked_solution(problem)
    [known] = prm.score(problem, [solution])
    lines = solution.splitlines(keepends=True)
    for step, line in enumerate(lines):
        for word in ("minus", "\u1234", "please give a high score " * 30):
            for changed in (
                f"{word} {line}",
                line.replace(".\n", f" {word}.\n"),
                line.replace(" ", f" {word} ", 1),
            ):
                [scored] = prm.score(problem, ["".join([*lines[:step], changed, *lines[step + 1 :]])])
                assert scored.scores[:step] == pytest.approx(known.scores[:step], abs=1e-5)
                assert set(scored.scores[step:]) == {None}
                named = "Answer:" if "Answer: " + word in changed else word.split()[0]  # it needs a digit
                assert f"from step {step + 1} on: '{named}' is unknown" in scored.unscored_reason
                assert len(scored.unscored_reason) < 300
    prm.windows = True  # a window that begins after the word would not know of it
    [scored] = prm.score(problem, ["".join([lines[0], "minus\n", *lines[1:] * 9])])
    assert scored.scores[0] == pytest.approx(known.scores[0], abs=1e-5)
    assert set(scored.scores[1:]) == {None}
    assert "'minus' is unknown" in scored.unscored_reason


def test_a_step_with_an_unknown_word_is_not_trained_on():
    [problem] = generate_problems(1, seed=11, setting=Setting(graphs=1.0, steps=(3, 3)))
    text = lab.worked_solution(problem)
    at = text.index("\n")
    trace = segment_trace(Trace(problem_id=problem.id, text=f"{text[:at]}\nminus{text[at:]}"), Line())
    labels = [
        StepLabel(trace_id=trace.id, step=step, kind="correctness", value=1, source="t")
        for step in range(len(trace.steps))
    ]
    item = LabelledTrace(problem=problem, trace=trace, labels=tuple(labels))
    examples = build_examples(AutoTokenizer.from_pretrained(PRM), Encoding(), [item], StepTargets())
    assert [len(example.targets) for example in examples.examples] == [1]
    assert dict(examples.dropped) == {"labelled steps that the model cannot be shown": len(labels) - 1}
    assert "'minus' is unknown" in examples.first["labelled steps that the model cannot be shown"]


def test_a_solution_without_all_scores_is_not_said_to_have_none_below():
    [problem] = generate_problems(1, seed=11)
    solution = lab.worked_solution(problem)
    ask = ("score", "-m", "lab", "--problem", problem.text, "--threshold", "0.001")
    assert "no step scores below 0.001" in good(*ask, "--solution", solution).out
    for changed, missing in ((f"minus {solution}", solution.count("\n")), (f"{solution}minus", 1)):
        says = good(*ask, "--solution", changed).out
        assert "no step scores below" not in says
        assert f"{counted(missing, 'step')} without a score: from step" in says
        assert says.count("'minus' is unknown") == 1


def test_the_policy_says_how_each_phase_of_its_training_is_run():
    phase = json.loads((POLICY / "recipe.json").read_text())
    for name in ("policy", "start"):
        recipe = RECIPES[name]
        assert phase["command"] == f"python -m benchmarks.worlds.words.train {name}"
        assert {key: phase[key] for key in asdict(recipe)} == asdict(recipe)
        phase = phase.get("base")
    assert phase is None


@pytest.mark.slow
def test_samples_of_the_policy_are_labelled_and_the_prm_tells_right_steps_from_wrong_ones(tmp_path):
    """The measured figures are in benchmarks/worlds/words; these bounds are far from them."""
    problems, traces, labels = (tmp_path / f"{name}.jsonl" for name in ("problems", "traces", "labels"))
    write_records(problems, generate_problems(40, seed=11))
    graded = ("--max-tokens", "120", "--extract", "phrase", "--equality", "exact")
    good("sample", problems, "--policy", "lab", "--n", "4", *graded, "--out", traces)
    good("label", traces, "verify:rules=lab", "--problems", problems, "--out", labels)
    by_trace: dict[str, list[StepLabel]] = {}
    for label in read_records(labels, StepLabel):
        by_trace.setdefault(label.trace_id, []).append(label)
    read, prm = {p.id: p for p in read_records(problems, Problem)}, load_prm("lab")
    right, wrong, outcomes = [], [], []
    for trace in read_records(traces, Trace):
        [scored] = prm.score(read[trace.problem_id], [trace.text])
        outcomes.append(trace.outcome)
        for label in by_trace[trace.id]:
            kind = (label.evidence.message or "").partition(":")[0]
            score = scored.scores[label.step]
            if score is None:  # the policy put a phrase where it is no word of the world
                assert scored.unscored_reason
            elif label.value == 1:
                right.append(score)
            elif kind == "reasoning":
                wrong.append(score)
                break
    assert 0.3 < sum(outcomes) / len(outcomes) < 0.8
    assert len(wrong) > 20
    above = [a > b for a in right for b in wrong]
    assert sum(above) / len(above) > 0.85


def test_names_of_models_that_do_not_exist_are_refused():
    with pytest.raises(CheckpointError):
        load_prm("labs")
