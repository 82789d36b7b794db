"""Reward models behind a real vLLM: tiny random weights of two published families, on the CPU.

``SUREFOOT_VLLM`` is the program that starts it: ``vllm``, or a Python interpreter that can import it (where
vLLM is built for a CPU, its program ends at once). Run against vLLM 0.32.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from published_checkpoints import BATCH, close, save_math_shepherd, save_qwen_prm, scores_of
from vllm_server import VLLM, WIDE, running

from surefoot import load_prm
from surefoot.models.remote.opening import check_server, find_tokenizer, server_command

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not VLLM, reason="SUREFOOT_VLLM names no vLLM program"),
]
ALL = ["--pooler-config", '{"task":"token_classify","tok_pooling_type":"ALL"}']
SAVE = {"Qwen2.5-Math-PRM-7B": save_qwen_prm, "math-shepherd-mistral-7b-prm": save_math_shepherd}


def options(checkpoint: Path) -> list[str]:
    """The options that start vLLM, after the model and its port."""
    return server_command(find_tokenizer(str(checkpoint)), str(checkpoint))[5:]


@pytest.fixture(scope="module", params=SAVE)
def checkpoint(request, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("hub") / request.param
    SAVE[request.param](directory, **WIDE)
    return directory


def test_the_printed_command_serves_the_scores_of_this_process(checkpoint):
    local = load_prm(checkpoint)
    with running(checkpoint, *options(checkpoint)) as url:
        remote = load_prm(url)
        assert remote.wire.step_tag_id is not None
        close(scores_of(remote, BATCH * 5), scores_of(local, BATCH * 5), tolerance=1e-4)
        assert check_server(url, find_tokenizer(str(checkpoint)), reference=local) == "/pooling"


def test_rows_for_every_token(tmp_path):
    checkpoint = tmp_path / "Qwen2.5-Math-PRM-7B"
    SAVE[checkpoint.name](checkpoint, **WIDE)
    with running(checkpoint, *options(checkpoint)[:-2], *ALL) as url:
        remote = load_prm(url)
        assert remote.wire.step_tag_id is None
        close(scores_of(remote, BATCH), scores_of(load_prm(checkpoint), BATCH), tolerance=1e-4)
