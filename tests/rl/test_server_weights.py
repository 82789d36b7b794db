"""Weights given to a server: a scripted one that holds a real tiny model (vLLM: ``test_vllm_weights.py``)."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch
from openai_server import Reply, serve
from rollouts import rolled
from transformers import AutoModelForCausalLM, AutoTokenizer

from surefoot.errors import PolicyError, TrainingError
from surefoot.models.lora import Lora, add_adapter
from surefoot.policies.openai import OpenAIPolicy
from surefoot.rl.server_weights import PROBE, ServerWeights, write_weights

SUCCESS = Reply(payload="Success: done.", headers={"Content-Type": "text/plain"})
READING = threading.Lock()
"""Models are read with state of the whole process, and servers here are threads."""
NOT_FOUND = Reply(payload={"detail": "Not Found"}, status=404)


class ScriptedVLLM:
    """The endpoints that are used, over a real model; ``faults`` gives what a path answers instead."""

    def __init__(self, directory: Path, *, lora_name: str | None = None) -> None:
        self.directory, self.lora_name = directory, lora_name
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.model = AutoModelForCausalLM.from_pretrained(directory).eval()
        self.faults: dict[str, Reply] = {}
        self.paths: list[str] = []
        self.adapters: list[str] = []
        self.server = None

    def __call__(self, body):
        path = self.server.seen[-1][0]
        self.paths.append(path.split("?")[0])
        if path.split("?")[0] in self.faults:
            return self.faults[path.split("?")[0]]
        match path:
            case "/pause?mode=wait" | "/resume":
                return Reply(payload={"status": "so"})
            case "/collective_rpc":
                assert body["method"] == "reload_weights"
                # vLLM puts what it reads into the model that it has
                with READING:
                    read = AutoModelForCausalLM.from_pretrained(body["kwargs"]["weights_path"])
                self.model.load_state_dict(read.state_dict())
                return Reply(payload={"results": [None]})
            case "/reset_prefix_cache":
                return Reply(payload={"success": True})
            case "/v1/unload_lora_adapter":
                return SUCCESS if self.adapters else NOT_FOUND
            case "/v1/load_lora_adapter":
                assert body["lora_name"] == self.lora_name
                self.adapters.append(body["lora_path"])
                self.model = AutoModelForCausalLM.from_pretrained(self.directory).eval()
                self.model.load_adapter(body["lora_path"])
                return SUCCESS
            case "/v1/completions":
                return Reply(payload=self.probe(body))
        return NOT_FOUND

    @torch.no_grad()
    def probe(self, body):
        prompt = self.tokenizer(body["prompt"])["input_ids"]
        ids, found = list(prompt), []
        for _ in range(body["max_tokens"]):
            logprobs = self.model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
            ids.append(int(logprobs.argmax()))
            found.append(float(logprobs.max()))
        choice = {"prompt_token_ids": prompt, "token_ids": ids[len(prompt) :], "text": ""}
        return {"choices": [choice | {"logprobs": {"token_logprobs": found}}]}


def changed(directory, *, seed=0, lora=None):
    """The model of ``directory`` after what could have been training."""
    model = AutoModelForCausalLM.from_pretrained(directory)
    if lora:
        add_adapter(model, lora, seed=0)
    return jolted(model, seed)


def jolted(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


@pytest.fixture
def vllm(lab_base):
    scripted = ScriptedVLLM(lab_base)
    with serve(scripted) as scripted.server:
        yield scripted


def publisher(vllm, **options):
    settings = {"model": "tiny", "base_url": vllm.server.url, "timeout_s": 30.0} | options
    return ServerWeights(**settings)


# Whole weights


def test_a_server_answers_with_the_weights_that_were_published_last(vllm, lab_base, tmp_path):
    for seed in (1, 2):
        model = changed(lab_base, seed=seed)
        published = publisher(vllm).publish(model, vllm.tokenizer, tmp_path)
        assert published < 1e-4
        pairs = zip(model.parameters(), vllm.model.parameters(), strict=True)
        assert all(torch.equal(given, held) for given, held in pairs)
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]


def test_weights_are_read_while_the_server_rests_and_its_prefixes_go_before_it_works_again(
    vllm, lab_base, tmp_path
):
    publisher(vllm).publish(changed(lab_base), vllm.tokenizer, tmp_path)
    reload = ["/pause", "/collective_rpc", "/reset_prefix_cache", "/resume"]
    assert vllm.paths == [*reload, "/v1/completions"]
    assert vllm.server.bodies[1]["kwargs"] == {"weights_path": str(tmp_path / "weights")}
    assert vllm.server.bodies[-1]["prompt"] == PROBE


def test_a_relative_directory_reaches_the_server_as_an_absolute_one(vllm, lab_base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    publisher(vllm).publish(changed(lab_base), vllm.tokenizer, Path("run"))
    assert vllm.server.bodies[1]["kwargs"] == {"weights_path": str(tmp_path / "run" / "weights")}


def test_files_of_a_publication_that_was_cut_short_do_no_harm(vllm, lab_base, tmp_path):
    for leftover in (".weights.new", ".weights.old"):
        (tmp_path / leftover).mkdir()
        (tmp_path / leftover / "model.safetensors").write_text("half")
    assert publisher(vllm).publish(changed(lab_base), vllm.tokenizer, tmp_path) < 1e-4
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]


def test_the_probe_is_read_without_dropout_and_leaves_the_model_in_its_mode(gpt2_base, tmp_path):
    scripted = ScriptedVLLM(gpt2_base)
    model = changed(gpt2_base).train()
    with serve(scripted) as scripted.server:
        published = publisher(scripted, probe="1 2 3").publish(model, scripted.tokenizer, tmp_path)
    assert published < 1e-4
    assert model.training


# Servers that would spoil a run


def test_a_server_that_keeps_its_weights_is_found_out(vllm, lab_base, tmp_path):
    vllm.faults["/collective_rpc"] = Reply(payload={"results": [None]})
    with pytest.raises(PolicyError, match="does not sample from the weights"):
        publisher(vllm).publish(changed(lab_base), vllm.tokenizer, tmp_path)
    publisher(vllm, tolerance=100.0).publish(changed(lab_base), vllm.tokenizer, tmp_path)


def test_a_server_that_keeps_a_part_of_its_weights_is_found_out(lab_base, tmp_path):
    scripted = ScriptedVLLM(lab_base)
    model = changed(lab_base)
    with serve(scripted) as scripted.server:
        publisher(scripted).publish(model, scripted.tokenizer, tmp_path)
        with torch.no_grad():
            jolted(model.get_output_embeddings(), 5)
        scripted.faults["/collective_rpc"] = Reply(payload={"results": [None]})
        with pytest.raises(PolicyError, match="does not sample from the weights"):
            publisher(scripted).publish(model, scripted.tokenizer, tmp_path)


def test_a_server_that_keeps_its_prefixes_is_not_used(vllm, lab_base, tmp_path):
    vllm.faults["/reset_prefix_cache"] = Reply(payload={"success": False})
    with pytest.raises(PolicyError, match="did not clear its prefix cache"):
        publisher(vllm).publish(changed(lab_base), vllm.tokenizer, tmp_path)
    assert vllm.paths[-1] == "/resume"


@pytest.mark.parametrize(
    ("path", "fault", "said"),
    [
        ("/pause", NOT_FOUND, "VLLM_SERVER_DEV_MODE=1"),
        (
            "/collective_rpc",
            Reply(payload={"error": {"message": "no such file"}}, status=500),
            "no such file",
        ),
        ("/collective_rpc", Reply(payload="{}", wait_s=3.0), "raise timeout_s"),
        ("/collective_rpc", Reply(payload="a long answer", drop=True), "connection failed"),
        ("/v1/completions", Reply(payload={"error": {"message": "too long"}}, status=400), "'probe'"),
        ("/v1/completions", Reply(payload={"choices": []}), "malformed"),
        ("/v1/completions", Reply(payload={"choices": [{"text": "a"}]}), "malformed"),
    ],
)
def test_a_refusal_is_told_with_the_servers_words_and_the_server_works_again(
    vllm, lab_base, tmp_path, path, fault, said
):
    vllm.faults[path] = fault
    with pytest.raises(PolicyError, match=said):
        publisher(vllm, timeout_s=1.5).publish(changed(lab_base), vllm.tokenizer, tmp_path)
    assert vllm.paths.count(path) == 1
    assert "/resume" in vllm.paths or path == "/pause"


def test_no_server_is_an_error_that_says_so(vllm, lab_base, tmp_path):
    absent = ServerWeights(model="tiny", base_url="http://127.0.0.1:1/v1")
    with pytest.raises(PolicyError, match="connection failed"):
        absent.publish(changed(lab_base), vllm.tokenizer, tmp_path)


def test_a_server_with_another_tokenizer_is_found_out(vllm, lab_base, gpt2_base, tmp_path):
    other = AutoTokenizer.from_pretrained(gpt2_base)
    with pytest.raises(PolicyError, match="tokenizer"):
        publisher(vllm).publish(changed(lab_base), other, tmp_path)


# Adapters


@pytest.fixture
def lora_vllm(lab_base):
    pytest.importorskip("peft")
    scripted = ScriptedVLLM(lab_base, lora_name="policy")
    with serve(scripted) as scripted.server:
        yield scripted


def test_an_adapter_replaces_the_one_before_under_the_same_name(lora_vllm, lab_base, tmp_path):
    model, gives = changed(lab_base, lora=Lora(rank=2)), publisher(lora_vllm, model="policy")
    for seed in (1, 2):
        published = gives.publish(jolted(model, seed), lora_vllm.tokenizer, tmp_path)
        assert published < 1e-4
        [path] = (tmp_path / "adapters").iterdir()
        assert not (path / "model.safetensors").exists()
    each = ["/v1/unload_lora_adapter", "/v1/load_lora_adapter", "/v1/completions"]
    assert lora_vllm.paths == 2 * each
    assert {body["lora_name"] for body in lora_vllm.server.bodies if "lora_name" in body} == {"policy"}
    # vLLM knows cached prefixes by name and path
    assert len(set(lora_vllm.adapters)) == 2


def test_the_same_adapter_keeps_its_path_so_its_cached_prefixes_stay_good(lora_vllm, lab_base, tmp_path):
    model, gives = changed(lab_base, lora=Lora(rank=2)), publisher(lora_vllm, model="policy")
    for _ in range(2):
        gives.publish(model, lora_vllm.tokenizer, tmp_path)
    [path] = (tmp_path / "adapters").iterdir()
    assert lora_vllm.adapters == [str(path)] * 2


def test_a_server_without_adapters_is_told_how_to_start(lora_vllm, lab_base, tmp_path):
    lora_vllm.faults = dict.fromkeys(("/v1/unload_lora_adapter", "/v1/load_lora_adapter"), NOT_FOUND)
    with pytest.raises(PolicyError, match="--enable-lora"):
        publisher(lora_vllm, model="policy").publish(
            changed(lab_base, lora=Lora(rank=2)), lora_vllm.tokenizer, tmp_path
        )


# Files


def test_an_untied_checkpoint_has_a_head_of_its_own_and_says_the_same(gpt2_base, tmp_path):
    model, tokenizer = changed(gpt2_base).eval(), AutoTokenizer.from_pretrained(gpt2_base)
    assert model.config.tie_word_embeddings
    write_weights(model, tokenizer, tmp_path / "untied", untie=True)
    assert model.config.tie_word_embeddings
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "untied").eval()
    assert not found.config.tie_word_embeddings
    head, embeddings = found.get_output_embeddings().weight, found.get_input_embeddings().weight
    assert head is not embeddings
    assert torch.equal(head, embeddings)
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    assert torch.equal(found(ids).logits, model(ids).logits)


def test_weights_without_untie_are_tied_as_they_were(gpt2_base, tmp_path):
    write_weights(changed(gpt2_base), AutoTokenizer.from_pretrained(gpt2_base), tmp_path / "tied")
    assert json.loads((tmp_path / "tied" / "config.json").read_text())["tie_word_embeddings"]


# Rollouts from a server


def test_rollouts_hold_the_tokens_that_the_server_drew(lab_base):
    tokenizer = AutoTokenizer.from_pretrained(lab_base)
    written = tokenizer("3 + 4 = 7\nAnswer: 7", add_special_tokens=False)["input_ids"]
    drawn = [*written, tokenizer.eos_token_id]
    text = tokenizer.decode(drawn, skip_special_tokens=True)

    def answer(body):
        told = {"token_ids": drawn} if body.get("return_token_ids") else {}
        choices = [
            {"index": i, "text": text, "finish_reason": "stop", **told} for i in range(body.get("n", 1))
        ]
        return Reply(payload={"choices": choices, "usage": {"prompt_tokens": 3, "completion_tokens": 9}})

    with serve(answer) as server:
        settings = {"model": "tiny", "base_url": server.url, "mode": "completions"}
        rollouts = rolled(OpenAIPolicy(**settings, dialect="vllm"), tokenizer, ["3 + 4"], n=2)
        assert [[rollout.ids for rollout in group] for group in rollouts.groups] == [[tuple(drawn)] * 2]
        assert rollouts.groups[0][0].ends[-1] == len(drawn) - 1
        with pytest.raises(TrainingError, match="does not say which tokens"):
            rolled(OpenAIPolicy(**settings, dialect="openai"), tokenizer, ["3 + 4"], n=2)
