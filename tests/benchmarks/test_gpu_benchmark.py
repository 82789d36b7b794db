"""benchmarks/performance/gpu.py: the program on tiny shapes on the CPU, and the figures that it writes."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks.performance import gpu


@pytest.mark.slow
def test_every_part_runs_on_tiny_shapes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--quick", "--json", str(tmp_path / "gpu.json")])
    gpu.main()
    written = json.loads((tmp_path / "gpu.json").read_text())
    figures = {figure["name"]: figure for figure in written["figures"]}
    assert written["setting"]["small"]
    assert written["setting"]["machine"]
    assert figures["numerics_tree_sdpa_float32_small"]["value"] < 1e-5
    assert 0 < figures["numerics_tree_sdpa_bfloat16_small"]["value"] < 0.1
    assert figures["training_layouts_apart_small"]["value"] < 1e-4
    assert figures["ddp_gradient_apart_small"]["value"] < 1e-5
    if "fsdp2_losses_apart_small" in figures:  # accelerate is there
        assert figures["fsdp2_losses_apart_small"]["value"] < 1e-4
    else:
        assert "left out: fsdp2" in capsys.readouterr().out
    for part in ("matmul", "scoring_sdpa_tokens", "generation", "generation_top_p", "training_packed"):
        assert figures[f"{part}_small"]["value"] > 0
    for rival in ("scoring_vs_padded", "scoring_vs_per_step", "beam_vs_padded", "training_vs_padded"):
        assert figures[f"{rival}_small"]["ratio"] > 0


def test_the_shapes_are_those_of_the_published_models():
    def weights(shape: dict) -> float:
        """Of the layers and embeddings, in billions."""
        hidden, wide = shape["hidden_size"], shape["intermediate_size"]
        shared = hidden * shape["num_key_value_heads"] // shape["num_attention_heads"]
        layer = 2 * hidden * hidden + 2 * hidden * shared + 3 * hidden * wide
        embeddings = shape["vocab_size"] * hidden * (1 if shape["tie_word_embeddings"] else 2)
        return (shape["num_hidden_layers"] * layer + embeddings) / 1e9

    # the models' own cards: 1.54 and 7.61 billion
    assert weights(gpu.SHAPES["1.5B"]) == pytest.approx(1.54, abs=0.01)
    assert weights(gpu.SHAPES["7B"]) == pytest.approx(7.61, abs=0.01)


def test_candidates_share_their_prompt_and_some_fork_later():
    items, encoded = gpu.candidates(gpu.SMALL, 600)
    ids = [encoded[item.trace.id].ids for item in items]
    assert {len(one) for one in ids} == {gpu.SMALL.tokens}
    assert len({one[: gpu.SMALL.prompt] for one in ids}) == 1
    assert len({one[: gpu.SMALL.prompt + 1] for one in ids}) < len(ids)
    assert all(len(item.trace.steps) == gpu.SMALL.steps for item in items)
