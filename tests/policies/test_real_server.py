"""The OpenAI client against ``transformers serve`` with a tiny random model, over HTTP on this machine."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from surefoot.policies.openai import OpenAIPolicy
from surefoot.protocols import SampleRequest, Sampling
from surefoot.records import Message

MISSING = [name for name in ("transformers", "fastapi", "uvicorn") if not importlib.util.find_spec(name)]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"'transformers serve' needs {', '.join(MISSING)}"),
]
TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
START_S = 300.0


def save_tiny_model(folder: Path) -> None:
    """A tokenizer of ASCII characters with a chat template, and a random Llama of two layers."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    # The byte-level names of space and line end, then the printable characters, which name themselves.
    symbols = ["Ġ", "Ċ", *map(chr, range(33, 127))]
    vocabulary = {symbol: number for number, symbol in enumerate(["<pad>", "<s>", "</s>", *symbols])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>", chat_template=TEMPLATE
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        # Wide weights make the greedy continuation depend on the prompt.
        initializer_range=0.3,
    )
    model = LlamaForCausalLM(config)
    model.generation_config.do_sample = True
    model.save_pretrained(folder)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """``(address, model folder)`` of a running server."""
    folder = tmp_path_factory.mktemp("served") / "tiny"
    save_tiny_model(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("transformers")), "serve", str(folder)]
    log = folder.with_suffix(".log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--device", "cpu", "--host", "127.0.0.1", "--port", str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
        )
        try:
            wait_until_healthy(f"http://127.0.0.1:{port}/health", process, log)
            yield f"http://127.0.0.1:{port}/v1", folder
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own address
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    pytest.fail(f"the server did not start:\n{log.read_text(errors='replace')[-3000:]}")


def run(server, requests, **options):
    address, folder = server
    policy = OpenAIPolicy(model=str(folder), base_url=address, concurrency=2, max_retries=0, **options)
    return asyncio.run(policy.sample(requests))


def greedy(folder: Path, ids: list[int], new: int) -> str:
    """What the same model says in this process."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder)
    given = torch.tensor([ids])
    written = model.generate(
        given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=new
    )
    return AutoTokenizer.from_pretrained(folder).decode(written[0, len(ids) :], skip_special_tokens=True)


def tokenize(folder: Path, text: str) -> list[int]:
    from transformers import AutoTokenizer

    return list(AutoTokenizer.from_pretrained(folder)(text)["input_ids"])


def test_completions_continue_the_prefix_as_the_model_in_process_does(server):
    _, folder = server
    requests = [
        SampleRequest(prompt="2 + 3 = ", prefix=prefix, sampling=Sampling(temperature=0.0, max_tokens=8))
        for prefix in ("", "abc", "xyz")
    ]
    for request, result in zip(requests, run(server, requests, mode="completions"), strict=True):
        ids = tokenize(folder, f"{request.prompt}{request.prefix}")
        (answer,) = result.completions
        assert result.error is None
        assert answer.text == greedy(folder, ids, 8)
        assert result.usage.prompt_tokens == len(ids)
        assert result.usage.completion_tokens == answer.tokens <= 8
        assert result.usage.calls == 1


def test_several_samples_have_exact_usage(server):
    request = SampleRequest(prompt="Say: ", n=3, seed=1, sampling=Sampling(max_tokens=6))
    (result,) = run(server, [request], mode="completions")
    assert result.error is None
    assert len(result.completions) == 3
    assert result.usage.completion_tokens == sum(answer.tokens for answer in result.completions)
    assert (result.usage.prompt_tokens, result.usage.calls) == (5, 3)


def test_a_stop_text_ends_the_completion_and_is_kept(server):
    _, folder = server
    whole = greedy(folder, tokenize(folder, "2 + 3 = "), 8)
    stop = whole[len(whole) // 2]
    sampling = Sampling(temperature=0.0, max_tokens=8, stop=(stop,))
    (result,) = run(server, [SampleRequest(prompt="2 + 3 = ", sampling=sampling)], mode="completions")
    (answer,) = result.completions
    assert answer.text == whole[: whole.index(stop) + 1]
    assert answer.finish_reason == "stop"


def test_chat_goes_through_the_template(server):
    _, folder = server
    messages = (Message(role="system", content="Add."), Message(role="user", content="2 + 3"))
    request = SampleRequest(prompt=messages, sampling=Sampling(temperature=0.0, max_tokens=8))
    (result,) = run(server, [request], mode="chat")
    ids = tokenize(folder, "[system]Add.\n[user]2 + 3\n[assistant]")
    assert result.error is None
    assert result.usage.prompt_tokens == len(ids)
    assert result.completions[0].text == greedy(folder, ids, 8)


@pytest.mark.parametrize("mode", ["chat", "completions"])
def test_a_stream_gives_what_one_piece_gives_piece_by_piece(server, mode):
    address, folder = server
    policy = OpenAIPolicy(model=str(folder), base_url=address, max_retries=0, mode=mode)
    sampling = Sampling(temperature=0.0, max_tokens=8)
    request, shown = SampleRequest(prompt="2 + 3 = ", sampling=sampling), []
    [whole] = asyncio.run(policy.sample([request]))
    result = asyncio.run(policy.stream(request, lambda number, text: shown.append(text)))
    assert result == whole
    assert "".join(shown) == whole.completions[0].text
    assert len(shown) > 1


def test_continued_chat_that_the_server_does_not_know_is_an_error_of_that_request(server):
    sampling = Sampling(temperature=0.0, max_tokens=4)
    requests = [SampleRequest(prompt="2 + 3", prefix=prefix, sampling=sampling) for prefix in ("5", "")]
    continued, fresh = run(server, requests, mode="chat")
    # This server refuses unknown fields, 'continue_final_message' among them; vLLM and SGLang take it.
    assert continued.completions == ()
    assert "status 422" in continued.error
    assert "continue_final_message" in continued.error
    assert fresh.error is None
