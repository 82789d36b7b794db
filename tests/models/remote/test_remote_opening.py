"""A reward model by the address of its server: families, interfaces, and servers that are not right."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from published_checkpoints import BATCH, PIECES, SPECIAL, close, save_math_shepherd, save_qwen_prm, scores_of
from scoring_server import ScoringEngine, address, served

from surefoot import load_prm
from surefoot.cli.options import separator
from surefoot.errors import CheckpointError
from surefoot.models.remote.opening import check_server, find_tokenizer, server_command
from surefoot.models.remote.wires import VllmPooling
from surefoot.models.scorer import CheckpointScorer

EXTRA, TAG = SPECIAL + 3, PIECES.index("▁ки")


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("hub") / "Qwen2.5-Math-PRM-7B"
    save_qwen_prm(directory)
    return directory


@pytest.fixture(scope="module")
def shepherd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("hub") / "math-shepherd-mistral-7b-prm"
    save_math_shepherd(directory)
    return directory


def hold_equal(remote: CheckpointScorer, checkpoint: Path) -> None:
    """Scores and rule of the checkpoint in this process."""
    local = load_prm(checkpoint)
    close(scores_of(remote, BATCH), scores_of(local, BATCH), tolerance=1e-5)
    assert remote.card.family == local.card.family
    assert remote.card.aggregation == local.card.aggregation
    [record] = local.score("7-3?", ["so\n\n4"])
    assert remote.score("7-3?", ["so\n\n4"])[0].scores == pytest.approx(record.scores, abs=1e-5)


@pytest.mark.parametrize("tag", [EXTRA, None])
def test_a_head_with_step_pooling_and_without(qwen, tag):
    with served(ScoringEngine(qwen, "/pooling", tag=tag), qwen) as server:
        remote = load_prm(address(server))
        hold_equal(remote, qwen)
        assert remote.wire.step_tag_id == tag
        assert remote.name == "Qwen2.5-Math-PRM-7B"
        assert {path for path, _ in server.seen} == {"/pooling"}


@pytest.mark.parametrize(
    ("path", "owner", "settings"),
    [
        ("/pooling", "vllm", {"tag": TAG, "single": True}),
        ("/pooling", "vllm", {"single": True}),
        ("/pooling", "somebody", {"single": True}),
    ],
)
def test_a_language_model_by_each_interface(shepherd, path, owner, settings):
    with served(ScoringEngine(shepherd, path, **settings), shepherd, owner=owner) as server:
        hold_equal(load_prm(address(server)), shepherd)


def test_a_solution_is_cut_as_the_family_s_training_data_were(qwen, shepherd):
    text = "a\nb\n\nc\n"
    [record] = load_prm(qwen).score("1?", [text])
    assert len(record.scores) == 2, "at blank lines"
    [record] = load_prm(shepherd).score("1?", [text])
    assert len(record.scores) == 3, "at line ends"
    with served(ScoringEngine(qwen, "/pooling", tag=EXTRA), qwen) as server:
        remote = load_prm(address(server))
        assert len(remote.score("1?", ["a\nb"])[0].scores) == 1
        assert separator(None, remote) == "\n\n"
        assert separator(r"\n", remote) == separator(None, None) == "\n"


def test_scores_that_know_the_future_are_refused(qwen):
    with (
        served(ScoringEngine(qwen, "/pooling", tag=EXTRA, blur=3.0), qwen) as server,
        pytest.raises(CheckpointError, match="later steps change the scores of earlier ones"),
    ):
        load_prm(address(server))


def test_family_model_and_tokenizer_can_be_named(qwen, tmp_path):
    elsewhere = tmp_path / "model-7"
    shutil.copytree(qwen, elsewhere)
    with served(ScoringEngine(qwen, "/pooling", tag=EXTRA), "/models/prm") as server:
        url = address(server)
        server.models.append({"id": "other", "owned_by": "vllm"})
        with pytest.raises(CheckpointError, match=r"serves /models/prm, other; name one: .*\?model=NAME"):
            load_prm(url)
        with pytest.raises(CheckpointError, match="and not the model 'third'"):
            load_prm(f"{url}?model=third")
        one = f"{url}?model=/models/prm"
        with pytest.raises(
            CheckpointError, match="whose name does not show its family; name it with family="
        ):
            load_prm(one)
        with pytest.raises(CheckpointError, match=r"its tokenizer is not here .*--prm-tokenizer"):
            load_prm(f"{one}#qwen-prm")
        for words in ({"family": "qwen-prm"}, {}):
            spec = one if words else f"{one}#qwen-prm"
            hold_equal(load_prm(spec, tokenizer=elsewhere, **words), qwen)
        with pytest.raises(CheckpointError, match=r"tokenizer=.* is for models behind a server"):
            load_prm(qwen, tokenizer=elsewhere)


def test_a_server_without_step_scores_says_what_it_was_asked(shepherd):
    with served(ScoringEngine(shepherd), shepherd) as server:
        with pytest.raises(CheckpointError) as caught:
            load_prm(address(server))
        said = str(caught.value)
    for path in ("/pooling (STEP)", "/pooling"):
        assert f"{path}: status 404" in said
    assert "docs/how-to/other-reward-models.md shows how to start it" in said


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("localhost:8000", "write http://localhost:8000"),
        ("http://127.0.0.1:9", "http://127.0.0.1:9/v1: no server answers"),
        ("http://127.0.0.1:9#odd", "family='odd' is not known"),
    ],
)
def test_wrong_addresses(url, said):
    with pytest.raises(CheckpointError, match=said):
        load_prm(url)


def test_commands(qwen, shepherd):
    words = find_tokenizer(str(qwen))
    command = server_command(words, "Qwen/Qwen2.5-Math-PRM-7B", port=8001)
    assert command[:3] == ["vllm", "serve", "Qwen/Qwen2.5-Math-PRM-7B"]
    assert f'"tok_pooling_type": "STEP", "step_tag_id": {EXTRA}}}' in command[-1]
    command = server_command(find_tokenizer(str(shepherd)), "x")
    assert '"classifier_from_token": ["▁-", "▁+"], "method": "from_2_way_softmax"' in " ".join(command)
    assert f'"step_tag_id": {TAG}' in command[-1]


def test_the_check_passes_a_right_server_and_no_other(qwen, tmp_path):
    words, local = find_tokenizer(str(qwen)), load_prm(qwen)
    with served(ScoringEngine(qwen, "/pooling", tag=EXTRA), qwen) as server:
        assert check_server(address(server), words, reference=local) == "/pooling"
        changed = tmp_path / "Qwen2.5-Math-PRM-7B"
        save_qwen_prm(changed, initializer_range=0.4)
        with pytest.raises(CheckpointError, match="where the same weights in this process give"):
            check_server(address(server), words, reference=load_prm(changed))
    # vLLM before its fix of September 2026: STEP is asked for and ignored
    with (
        served(ScoringEngine(qwen, "/pooling"), qwen) as server,
        pytest.raises(CheckpointError, match=f"for every token, not for each step's tag {EXTRA}.*September"),
    ):
        check_server(address(server), words, reference=local)


def test_long_traces_are_cut_at_the_server_s_context(qwen):
    with served(ScoringEngine(qwen, "/pooling", tag=EXTRA), qwen) as server:
        server.models[0]["max_model_len"] = 150
        remote = load_prm(address(server))
        [record] = remote.score("1+1?", ["2\n\n" * 40])
    assert isinstance(remote.wire, VllmPooling)
    assert record.scores[0] is not None
    assert record.scores[-1] is None
    assert "beyond the model's context" in record.unscored_reason
