"""The shipped models of the lab: size, tokens, what they can read, and that they know right from wrong."""

from __future__ import annotations

import json
import random

import pytest
import torch
from command_line import good, refused
from safetensors import safe_open
from transformers import AutoTokenizer

from surefoot import lab, load_prm
from surefoot.errors import CheckpointError
from surefoot.io import read_records, write_records
from surefoot.lab import ORM, POLICY, PRM, Setting, draw_problem, generate_problems
from surefoot.policies import Loading, load_policy
from surefoot.records import Problem, StepLabel, Trace

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


def test_a_problem_with_an_unknown_word_has_no_score_and_no_sample_and_says_why(tmp_path):
    text = "Ann counts 12 cards. Ben has 17 more than Ann. How many cards does Ben have?"
    solution = "Ben has 17 more than Ann. Ben has Ann's 12 + 17 = 29.\nAnswer: 29.\n"
    prm = load_prm("lab")
    [known] = prm.score(text, [solution])
    assert None not in known.scores
    refusals = (
        (text.replace("cards", "bananas"), solution, "limit 0%"),
        (
            text,
            "Therefore we conclude beyond reasonable doubt that nobody else could own 29.\nAnswer: 29.\n",
            "limit 15%",
        ),
    )
    for asked, answered, limit in refusals:
        [unknown] = prm.score(asked, [answered])
        assert set(unknown.scores) == {None}
        assert "of the tokens are unknown to the tokenizer of " in unknown.unscored_reason
        assert f"which has 213 tokens ({limit})" in unknown.unscored_reason
    [few] = prm.score(text, [solution.replace("Answer:", "Result:")])
    assert None not in few.scores  # a word or two of a solution, as of any model
    write_records(tmp_path / "p.jsonl", [Problem(text=text.replace("Ben", "Zoe"), answer="29")])
    says = refused("sample", tmp_path / "p.jsonl", "--policy", "lab", "--out", tmp_path / "t.jsonl")
    assert "are unknown to the tokenizer of " in says


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
            if score is None:  # the policy wrote what is not of the world: the trace has no scores
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
