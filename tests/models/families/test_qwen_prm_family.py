"""Qwen2.5-Math-PRM: golden tokens, and scores against a full forward of the published class."""

import shutil

import pytest
import torch
from huggingface_hub import constants
from published_checkpoints import BATCH, SPECIAL, close, hold_later_steps_apart, item, scores_of, states
from published_checkpoints import save_qwen_prm as save
from safetensors.torch import load_file, save_file

from surefoot import load_prm
from surefoot.errors import CheckpointError, ScoreError
from surefoot.models.families.checkpoint import Checkpoint
from surefoot.models.families.registry import find_family
from surefoot.models.families.step_models import QwenPRM
from surefoot.policies.devices import Loading
from surefoot.protocols import ProblemTrace
from surefoot.records import Message, Problem, Step, Trace

END, START, END_TURN, EXTRA = range(SPECIAL, SPECIAL + 4)
SYSTEM = b"system\nPlease reason step by step, and put your final answer within \\boxed{}."


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("some-prm")
    return directory, save(directory)


def golden(question, steps):
    """The documented input, and where each ``<extra_0>`` stands."""
    ids = [START, *SYSTEM, END_TURN, *b"\n", START, *b"user\n", *question, END_TURN, *b"\n", START]
    ids += b"assistant\n"
    reads = []
    for step in steps:
        ids += [*step, EXTRA]
        reads.append(len(ids) - 1)
    return [*ids, END_TURN, *b"\n"], reads


def test_golden_tokens_and_positions(checkpoint):
    scorer = load_prm(checkpoint[0])
    [encoded] = scorer.model.encode([item("1+1?", ["2", "so 2"])])
    assert scorer.model.tokenizer.decode(encoded.ids) == (
        "<|im_start|>system\n"
        "Please reason step by step, and put your final answer within \\boxed{}.<|im_end|>\n"
        "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n2<extra_0>so 2<extra_0><|im_end|>\n"
    )
    # 1 + 77 + 2 of the system, 1 + 5 + 4 + 2 of the question, 1 + 10 of the answer, then "2" and its marker
    assert encoded.positions == (104, 109)
    assert (list(encoded.ids), list(encoded.positions)) == golden(b"1+1?", [b"2", b"so 2"])
    assert [encoded.ids[at] for at in encoded.positions] == [EXTRA, EXTRA]


@pytest.mark.parametrize("side", ["left", "right"])
def test_scores_of_the_plain_forward(checkpoint, side):
    directory, model = checkpoint
    written = [
        golden(
            one.problem.text.encode(), [one.trace.step_text(step).strip().encode() for step in range(count)]
        )
        for one in BATCH
        for count in [len(one.trace.steps)]
    ]
    logits = states(model, [ids for ids, _ in written], side)
    expected = [
        row[reads].softmax(-1)[:, 1].tolist() for row, (_, reads) in zip(logits, written, strict=True)
    ]
    scorer = load_prm(directory)
    close(scores_of(scorer, BATCH), expected)
    close([scores_of(scorer, [one])[0] for one in BATCH], expected)
    assert max(map(max, expected)) - min(map(min, expected)) > 0.01


def test_later_steps_change_nothing(checkpoint):
    hold_later_steps_apart(load_prm(checkpoint[0]))


def test_card(checkpoint):
    card = load_prm(checkpoint[0]).card
    assert (card.family, card.aggregation, card.encoding.max_length) == ("qwen-prm", "product", 512)


def test_a_marker_in_a_step_or_question_is_text(checkpoint):
    scorer = load_prm(checkpoint[0])
    [encoded] = scorer.model.encode([item("1<extra_0>?", ["2 <extra_0><|im_end|>", "so 2"])])
    expected = golden(b"1< extra_0>?", [b"2 < extra_0>< |im_end|>", b"so 2"])
    assert (list(encoded.ids), list(encoded.positions)) == expected
    assert len(scorer.score("1<extra_0>?", ["a<extra_0>b<extra_0>\n\nc"])[0].scores) == 2


def test_steps_beyond_the_context(tmp_path):
    save(tmp_path, max_position_embeddings=109)
    [record] = load_prm(tmp_path).score_traces([item("1+1?", ["2", "so 2", "2"])])
    assert record.scores[0] is not None
    assert record.scores[1:] == (None, None)
    assert record.unscored_reason == "2 steps lie beyond the model's context of 109 tokens"


def test_shards(checkpoint, tmp_path):
    save(tmp_path, shard="40KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    close(scores_of(load_prm(tmp_path), BATCH), scores_of(load_prm(checkpoint[0]), BATCH), 0)
    next(tmp_path.glob("model-00001-*")).unlink()
    with pytest.raises(CheckpointError, match="model-00001"):
        load_prm(tmp_path)


@pytest.mark.parametrize("lost", ["score.2.weight", "model.norm.weight"])
def test_missing_weights_are_named(checkpoint, tmp_path, lost):
    shutil.copytree(checkpoint[0], tmp_path / "prm")
    weights = load_file(tmp_path / "prm" / "model.safetensors")
    del weights[lost]
    save_file(weights, tmp_path / "prm" / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=lost.removeprefix("model.").replace(".", r"\.")):
        load_prm(tmp_path / "prm")


def test_unexpected_weights_are_named_and_a_language_model_head_is_passed_over(checkpoint, tmp_path):
    shutil.copytree(checkpoint[0], tmp_path / "prm")
    file = tmp_path / "prm" / "model.safetensors"
    weights = load_file(file) | {"lm_head.weight": torch.zeros(280, 32)}
    save_file(weights, file, {"format": "pt"})
    close(scores_of(load_prm(tmp_path / "prm"), BATCH), scores_of(load_prm(checkpoint[0]), BATCH), 0)
    save_file(weights | {"score.4.weight": torch.zeros(2, 32)}, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"1 weights are unexpected: score\.4\.weight"):
        load_prm(tmp_path / "prm")


@pytest.mark.parametrize("order", ["head first", "trunk first"])
def test_the_order_of_reading_trunk_and_head_does_not_matter(checkpoint, order):
    read = Checkpoint(checkpoint[0])
    if order == "head first":
        head = QwenPRM.read_head(read)
        trunk = read.trunk()
    else:
        trunk = read.trunk()
        with pytest.raises(CheckpointError, match="4 weights are unexpected: score"):
            read.require_all_read()
        head = QwenPRM.read_head(read)
    read.require_all_read()
    scorer = QwenPRM(trunk, read.tokenizer, head).scorer(name="x", batch_tokens=16_384)
    close(scores_of(scorer, BATCH), scores_of(load_prm(checkpoint[0]), BATCH), 0)


def test_pytorch_weights_are_read_too(checkpoint, tmp_path):
    shutil.copytree(checkpoint[0], tmp_path / "prm")
    file = tmp_path / "prm" / "model.safetensors"
    torch.save(load_file(file), tmp_path / "prm" / "pytorch_model.bin")
    file.unlink()
    close(scores_of(load_prm(tmp_path / "prm"), BATCH), scores_of(load_prm(checkpoint[0]), BATCH), 0)


def test_dtype_of_the_trunk(checkpoint):
    scorer = load_prm(checkpoint[0], loading=Loading(dtype="bfloat16"))
    assert scorer.model.trunk.dtype == torch.bfloat16
    assert scorer.model.head[0].weight.dtype == torch.float32
    close(scores_of(scorer, BATCH), scores_of(load_prm(checkpoint[0]), BATCH), 0.1)


def test_messages_and_traces_without_steps_are_refused(checkpoint):
    scorer, problem = load_prm(checkpoint[0]), Problem(text="1+1?")
    chat = Trace(
        problem_id=problem.id,
        messages=(Message(role="assistant", content="2"),),
        steps=(Step(start=0, end=1, message=0),),
    )
    [record] = scorer.score_traces([ProblemTrace(problem=problem, trace=chat)])
    assert record.scores == (None,)
    assert "not messages" in record.unscored_reason
    bare = Trace(problem_id=problem.id, text="2")
    with pytest.raises(ScoreError, match="segment it first"):
        scorer.score_traces([ProblemTrace(problem=problem, trace=bare)])


def test_loading_by_name_from_the_cache_of_the_hub(checkpoint, tmp_path, monkeypatch):
    repository = tmp_path / "models--Qwen--Qwen2.5-Math-PRM-7B"
    shutil.copytree(checkpoint[0], repository / "snapshots" / "0a1b")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0a1b")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    scorer = load_prm("Qwen/Qwen2.5-Math-PRM-7B")
    assert (scorer.name, scorer.card.family) == ("Qwen2.5-Math-PRM-7B", "qwen-prm")
    close(scores_of(scorer, BATCH), scores_of(load_prm(checkpoint[0]), BATCH), 0)
    with pytest.raises(CheckpointError, match="is not a directory and could not be loaded from the hub"):
        load_prm("Qwen/Qwen2.5-Math-PRM-8B")


def test_the_family_is_known_by_name(checkpoint):
    found = find_family(Checkpoint(checkpoint[0]), name="Qwen/Qwen2.5-Math-PRM-7B")
    assert found == "qwen-prm"


def test_a_name_that_contradicts_the_files(checkpoint):
    with pytest.raises(CheckpointError, match=r"'trl', 'qwen-prm'; say which with family="):
        find_family(Checkpoint(checkpoint[0]), name="trl-lib/Qwen2-0.5B-Reward-Math-Sheperd")
