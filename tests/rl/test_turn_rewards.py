"""One reward a turn, compared with the rule as the documentation says it; the files of engines."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import good, refused

from surefoot.errors import ScoreError
from surefoot.io import write_records
from surefoot.records import Message, Step, StepLabel, StepScores, ToolCall, Trace
from surefoot.rl import reward_row, turn_rewards
from surefoot.rl.engines import set_turn_rewards, skyrl_turn_rewards, verl_turn_rewards
from surefoot.rl.engines.turns import TOKEN_REWARDS

CALL = ToolCall(id="c", name="look", arguments='{"at":1}')
RUN = Trace(
    problem_id="p",
    messages=(
        Message(role="system", content="rules"),
        Message(role="user", content="task"),
        Message(role="assistant", content="I look", tool_calls=(CALL,)),
        Message(role="tool", content="seen", tool_call_id="c"),
        Message(role="assistant", content="so"),
        Message(role="user", content="go on"),
        Message(role="assistant", content="it is 7"),
    ),
    steps=(
        Step(start=0, end=6, message=2),
        Step(start=0, end=8, message=2, part="tool_call", call=0, kind="tool_call"),
        Step(start=0, end=2, message=4),
        Step(start=0, end=7, message=6, kind="final_answer"),
    ),
    outcome=False,
)
"""Three turns of two, one and one steps; it ends in an answer."""


@pytest.mark.parametrize("scores", list(itertools.product((0.0, 0.25, 1.0, None), repeat=4)))
def test_rules_by_their_words(scores: tuple[float | None, ...]) -> None:
    turns = [scores[:2], scores[2:3], scores[3:]]
    lowest, last, mean = ([], [], [])
    for turn in turns:
        known = [score for score in turn if score is not None]
        whole = len(known) == len(turn)
        lowest.append(min(known) if whole or 0.0 in known else None)
        last.append(turn[-1])
        mean.append(sum(known) / len(known) if whole else None)
    assert turn_rewards(RUN, scores) == lowest
    assert turn_rewards(RUN, scores, "last") == last
    assert turn_rewards(RUN, scores, "mean") == mean
    first_error, state = [], 1.0
    for turn in turns:
        wrong = any(score is not None and score < 0.5 for score in turn)
        first_error.append(0.0 if wrong and state else 1.0 if None not in turn and state else None)
        state = state and 1.0 if not wrong and None not in turn else None
    assert turn_rewards(RUN, scores, "first-error") == first_error


@pytest.mark.parametrize("rule", ["lowest", "last", "mean", "first-error"])
def test_an_unknown_score_is_never_better_than_a_failed_one(rule: Any) -> None:
    for scores in itertools.product((0.0, 1.0, None), repeat=4):
        rewards = turn_rewards(RUN, scores, rule)
        numbers = reward_row(RUN, rewards, "trl")["turn_rewards"]
        for at, score in enumerate(scores):
            if score is None:
                failed = turn_rewards(RUN, (*scores[:at], 0.0, *scores[at + 1 :]), rule)
                turn = (0, 0, 1, 2)[at]
                assert numbers[turn] <= (failed[turn] or 0.0)


def test_what_has_no_turns_or_does_not_fit_is_refused() -> None:
    with pytest.raises(ScoreError, match="is a text"):
        turn_rewards(Trace(problem_id="p", text="7"), [])
    with pytest.raises(ScoreError, match="3 scores for the 4 steps"):
        turn_rewards(RUN, [1, 1, 1])
    with pytest.raises(ScoreError, match="2 rewards for the 3 turns"):
        reward_row(RUN, [1.0, None], "jsonl")
    with pytest.raises(ScoreError, match="unknown rule"):
        turn_rewards(RUN, [1] * 4, "sum")  # type: ignore[arg-type]


def mask_of(row: dict[str, Any]) -> list[int]:
    """1 at the words of the agent's messages, as an engine's chat template marks them."""
    words: list[int] = []
    for message in row["completion"]:
        agent = message["role"] == "assistant"
        words += [0] + [int(agent)] * len((message.get("content") or "").split())
    return words


def test_rewards_arrive_at_the_tokens_of_verl_and_skyrl() -> None:
    rewards = [0.5, None, 1.0]
    row = reward_row(RUN, rewards, "verl")
    assert row["extra_info"]["turn_rewards"] == [0.5, 0.0, 1.0]
    tokens = verl_turn_rewards(mask_of(row), row["extra_info"]["turn_rewards"])[TOKEN_REWARDS]
    assert json.loads(tokens) == [0, 0, 0.5, *[0] * 10, 1.0]
    row = reward_row(RUN, rewards, "skyrl")
    output = {"loss_masks": [mask_of(row)], "rewards": [0.0]}
    placed = skyrl_turn_rewards(output, [row["env_extras"]["turn_rewards"]])["rewards"]
    assert placed == [json.loads(tokens)]


def test_columns_for_trl_hold_the_whole_run() -> None:
    row = reward_row(RUN, [0.5, None, 0.25], "trl")
    assert row["turn_rewards"] == [0.5, 0.0, 0.25]
    assert row["reward"] == 0.25
    assert reward_row(RUN, [None] * 3, "trl")["reward"] is None  # TRL leaves it out of its group
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    roles = [message["role"] for message in row["completion"]]
    assert roles == ["assistant", "tool", "assistant", "user", "assistant"]


@pytest.mark.parametrize("number", [-1.0, -1e-9, 1.5, float("nan"), float("inf")])
def test_a_number_on_another_scale_is_refused(number: float) -> None:
    with pytest.raises(ScoreError, match="a signed score s from -1 to 1"):
        turn_rewards(RUN, [number, None, 1.0, 1.0])
    with pytest.raises(ScoreError, match="has the reward"):
        reward_row(RUN, [0.5, None, number], "verl")


def test_a_verifiers_trace_has_a_reward_or_null_for_each_sampled_node() -> None:
    row = reward_row(RUN, [0.5, None, 1.0], "prime-rl")
    assert row["info"] == {"turn_rewards": [0.5, None, 1.0]}
    assert row["rewards"] == {"outcome": {"score": 0.0}}
    open_run = RUN.model_copy(update={"outcome": None})
    assert reward_row(open_run, [0.5, None, 1.0], "prime-rl")["rewards"] == {"turns": {"score": 0.5}}
    assert reward_row(open_run, [None] * 3, "prime-rl")["rewards"] == {"turns": None}
    nodes = [SimpleNamespace(sampled=node.get("sampled", False)) for node in row["nodes"]]
    set_turn_rewards(SimpleNamespace(id=row["id"], nodes=nodes, info={}), row["info"]["turn_rewards"])
    contents = [node["message"].get("content") for node in row["nodes"]]
    assert contents == ["rules", "task", "I look", "seen", "so", "go on", "it is 7"]  # each message once


def test_the_command_takes_labels_first_and_scores_where_they_are_silent(tmp_path) -> None:
    write_records(tmp_path / "runs.jsonl", [RUN])
    label = {"trace_id": RUN.id, "kind": "correctness", "source": "people"}
    labels = [
        StepLabel(step=2, value=-1, **label),  # type: ignore[arg-type]
        StepLabel(step=3, value=None, reason="?", **label),  # type: ignore[arg-type]
    ]
    write_records(tmp_path / "labels.jsonl", labels)
    scores = StepScores(trace_id=RUN.id, scorer="s", scores=(0.9, 0.8, 0.7, 0.6))
    write_records(tmp_path / "scores.jsonl", [scores])
    words = ["reward", tmp_path / "runs.jsonl", "--labels", tmp_path / "labels.jsonl"]
    said = good(*words, "--out", tmp_path / "alone.jsonl").err
    assert "1 of 3 turns of 1 run rewarded by 'lowest'; 2 unknown and null" in said
    assert json.loads((tmp_path / "alone.jsonl").read_text()) == {
        "trace_id": RUN.id,
        "problem_id": "p",
        "outcome": False,
        "turns": [2, 4, 6],
        "turn_rewards": [None, 0.0, None],
    }
    good(*words, "--scores", tmp_path / "scores.jsonl", "--out", tmp_path / "both.jsonl")
    assert json.loads((tmp_path / "both.jsonl").read_text())["turn_rewards"] == [0.8, 0.0, 0.6]


@pytest.mark.parametrize("rule", ["lowest", "last", "mean", "first-error"])
def test_labels_decide_and_all_is_on_one_scale(tmp_path, rule) -> None:
    """All pairs of a label (none, without a value, -1, 0, 1) and a score, plain and signed, each way."""
    values = (None, "silent", -1, 0, 1)
    for signed in (False, True):
        scores = (None, *((-1.0, -0.5, 0.0, 1.0) if signed else (0.0, 0.25, 0.5, 1.0)))
        pairs = list(itertools.product(values, scores))
        runs = [RUN.model_copy(update={"id": f"r{n}"}) for n in range(len(pairs))]
        write_records(tmp_path / "runs.jsonl", runs)
        labels = [
            StepLabel(
                trace_id=run.id, step=3, kind="correctness", source="people",
                **({"value": None, "reason": "?"} if label == "silent" else {"value": label}),  # type: ignore[arg-type]
            )
            for run, (label, _) in zip(runs, pairs, strict=True) if label is not None
        ]  # fmt: skip
        write_records(tmp_path / "labels.jsonl", labels)
        ones = (1.0, 1.0, 1.0)
        records = [
            StepScores(trace_id=run.id, scorer="s", scores=(*ones, score))
            for run, (_, score) in zip(runs, pairs, strict=True)
        ]
        write_records(tmp_path / "scores.jsonl", records)
        words = ["reward", tmp_path / "runs.jsonl", "--labels", tmp_path / "labels.jsonl"]
        words += ["--scores", tmp_path / "scores.jsonl", "--rule", rule]
        said = good(*words, "--out", tmp_path / "out.jsonl", "--force").err
        assert ("the scores are signed, so that -1 counts as 0" in said) == signed
        good(*words, "--to", "verl", "--out", tmp_path / "verl.jsonl", "--force")
        lines = [(tmp_path / name).read_text().splitlines() for name in ("out.jsonl", "verl.jsonl")]
        for (label, score), line, dense in zip(pairs, *lines, strict=True):
            if isinstance(label, int):
                wanted: float | None = {-1: 0.0, 0: 0.5, 1: 1.0}[label]
            else:
                wanted = (1 + score) / 2 if signed and score is not None else score
            if rule == "first-error" and wanted is not None:
                wanted = float(wanted >= 0.5)
            assert json.loads(line)["turn_rewards"][2] == wanted
            assert json.loads(dense)["extra_info"]["turn_rewards"][2] == (wanted or 0.0)


def test_scores_on_no_known_scale_are_refused(tmp_path) -> None:
    write_records(tmp_path / "runs.jsonl", [RUN])
    scores = StepScores(trace_id=RUN.id, scorer="s", scores=(-1.5, -1.5, 0.1, 0.2))
    write_records(tmp_path / "scores.jsonl", [scores])
    said = refused("reward", tmp_path / "runs.jsonl", "--scores", tmp_path / "scores.jsonl")
    assert "scores from -1.5 to 1, but rewards go from 0 (failed) to 1 (right)" in said


def test_nothing_to_reward_writes_nothing(tmp_path) -> None:
    write_records(tmp_path / "runs.jsonl", [RUN])
    write_records(tmp_path / "scores.jsonl", [StepScores(trace_id=RUN.id, scorer="s", scores=(None,) * 4)])
    words = ("reward", tmp_path / "runs.jsonl", "--scores", tmp_path / "scores.jsonl")
    assert "no turn of 1 runs got a reward" in refused(*words, "--out", tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()
    assert "give --labels, --scores or both" in refused("reward", tmp_path / "runs.jsonl")


@pytest.mark.parametrize("command", ["reward", "select"])
def test_scores_of_other_steps_are_refused(tmp_path, command) -> None:
    write_records(tmp_path / "runs.jsonl", [RUN])
    scores = [StepScores(trace_id=RUN.id, scorer="s", scores=(0.9, 0.1))]
    write_records(tmp_path / "scores.jsonl", scores)
    said = refused(command, tmp_path / "runs.jsonl", "--scores", tmp_path / "scores.jsonl")
    assert "do not fit the 4 steps" in said
