"""The makers of the lab's models: pupils err in known ways, and tokens round-trip."""

from __future__ import annotations

import json
import random

import pytest
from transformers import AutoTokenizer

from benchmarks.worlds.words.pupils import EXACT, pupil_solution, slipped
from benchmarks.worlds.words.ship import ship
from benchmarks.worlds.words.tokens import NO, build_words_tokenizer, decode, encode
from benchmarks.worlds.words.train import RECIPES, Recipe, new_model, save, training_row, wrong_line
from surefoot import load_prm
from surefoot.lab import POLICY, PRM, Setting, check_steps, draw_problem, generate_problems, worked_solution
from surefoot.models import RewardModel
from surefoot.records import Trace
from surefoot.segment import Line, segment_trace


def judged(text, problem):
    return check_steps(problem, segment_trace(Trace(problem_id=problem.id, text=text), Line()))


def test_a_pupil_without_mistakes_writes_the_solution_and_others_err_in_known_ways():
    rng = random.Random(9)
    kinds = []
    for _ in range(400):
        problem = draw_problem(rng)
        assert pupil_solution(rng, problem, EXACT) == worked_solution(problem.record())
        truths = judged(pupil_solution(rng, problem), problem.record())
        kinds.append(next((truth.kind for truth in truths if not truth.right), None))
    shares = {kind: kinds.count(kind) / len(kinds) for kind in set(kinds)}
    assert set(shares) == {None, "slip", "reasoning"}
    assert shares["slip"] > 0.02
    assert shares["reasoning"] > 0.25


@pytest.mark.parametrize(
    ("left", "symbol", "right", "result"),
    [
        *((52, "-", 17, 45), (40, "-", 3, 43), (133, "-", 28, 115), (58, "-", 17, 41)),
        *((27, "+", 5, 22), (22, "+", 5, 27), (27, "*", 4, 88), (12, "*", 4, 48), (51, "/", 3, 17)),
    ],
)
def test_a_slip_forgets_the_carry_or_takes_the_smaller_digit_from_the_larger(left, symbol, right, result):
    assert slipped(left, symbol, right) == result


def test_the_shipped_tokenizer_is_the_one_that_is_built_here_and_tokens_round_trip():
    built, shipped = build_words_tokenizer(), AutoTokenizer.from_pretrained(POLICY)
    assert built.backend_tokenizer.to_str() == shipped.backend_tokenizer.to_str()
    rng = random.Random(6)
    for held_out in (False, True):
        for _ in range(200):
            problem = draw_problem(rng, Setting(held_out=held_out, opinion=0.3))
            text = f"{problem.text}\n{worked_solution(problem.record())}"
            ids = encode(text)
            assert decode(ids) == text
            assert shipped(text)["input_ids"] == [1, *ids]


def test_a_wrong_line_of_the_trunk_is_wrong_and_has_no_loss():
    rng = random.Random(7)
    kinds = []
    for _ in range(400):
        problem = draw_problem(rng)
        label = rng.choice(problem.needed)
        earlier = problem.needed[: problem.needed.index(label)]
        before = "".join(problem.quantities[each].line(each) for each in earlier)
        truth = judged(before + wrong_line(rng, problem, label), problem.record())[-1]
        kinds.append(truth.kind if truth.value == -1 else "right")
    shares = {kind: kinds.count(kind) / len(kinds) for kind in set(kinds)}
    assert shares["slip"] > 0.3
    assert shares["reasoning"] > 0.3
    assert shares.get("right", 0) < 0.02
    ids, labels = training_row(rng, Recipe(phase="trunk", updates=1, schedule=1, wrong=1.0))
    taken_back = encode(NO)[0]
    text = decode(ids[1:])
    assert ids.count(taken_back) == text.count("\n") - 1
    assert all(wanted in (-100, token) for token, wanted in zip(ids, labels, strict=True))
    assert all(
        labels[at] == taken_back and labels[at - 1] == -100
        for at, token in enumerate(ids)
        if token == taken_back
    )


def test_a_policy_keeps_the_recipe_of_the_model_that_it_goes_on_from(tmp_path):
    model = new_model(RECIPES["start"])
    save(model, RECIPES["start"], tmp_path / "start", None)
    save(model, RECIPES["policy"], tmp_path / "policy", tmp_path / "start")
    ship(tmp_path / "policy", tmp_path / "shipped")
    assert json.loads((tmp_path / "shipped/recipe.json").read_text()) == json.loads(
        (POLICY / "recipe.json").read_text()
    )


def test_a_trained_model_is_shipped_in_half_the_size_and_scores_the_same(tmp_path):
    trained, shipped = tmp_path / "trained", tmp_path / "shipped"
    model = RewardModel.load(PRM)
    model.save(trained)
    (trained / "curves.jsonl").write_text("{}\n")
    inputs = {"labels": {"path": "l.jsonl", "sha256": "0"}}
    manifest = {"command": "train prm", "config": {"base": "x", "training": {"epochs": 2}}, "inputs": inputs}
    (trained / "manifest.json").write_text(json.dumps(manifest))
    ship(trained, shipped)
    assert not {"curves.jsonl", "manifest.json"} & {path.name for path in shipped.iterdir()}
    small, large = ((at / "model.safetensors").stat().st_size for at in (shipped, trained))
    assert small < 0.51 * large
    assert json.loads((shipped / "recipe.json").read_text()) == {
        "command": "surefoot train prm",
        "settings": {"base": "lab", "training": {"epochs": 2}},
        "inputs": {"labels": "0"},
    }
    [problem] = generate_problems(1, seed=1)
    [found], [same] = (load_prm(at).score(problem, [worked_solution(problem)]) for at in (shipped, "lab"))
    assert found.scores == same.scores
