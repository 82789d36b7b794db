"""Gives a server the weights of the policy in training, and verifies that it then samples from them.

A server that kept its old weights, or some of them, or their keys and values in its prefix cache, would
corrupt training silently. So every publication ends with a probe: the server writes a few tokens, and their
log-probabilities are compared with the model's own.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from surefoot.errors import PolicyError
from surefoot.io import atomic_directory
from surefoot.models.lora import has_adapter, save_adapter
from surefoot.policies.http_client import CallError, RemoteServer
from surefoot.rl.learners import Actor
from surefoot.rl.sample import Sample

PROBE = " ".join(map(str, range(1, 41)))
"""Text that the probe continues: longer than a block of the prefix cache, so that a stale one shows."""

PROBE_TOKENS = 16
"""Tokens whose log-probabilities are compared."""


class ServerWeights:
    """Makes a vLLM server that sees this machine's files sample from new weights. Run against vLLM 0.32.

    **Whole weights** go to ``directory/weights``; the server waits for running requests, reads them in place
    (``/collective_rpc`` with ``reload_weights``), and clears its prefix cache. It must run with
    ``VLLM_SERVER_DEV_MODE=1``. ``model`` is its name for the model.

    **An adapter** (a model with LoRA) goes to ``directory/adapters/DIGEST`` and is loaded under the name
    ``model``, which must differ from the base model's name. The server must run with ``--enable-lora``, a
    sufficient ``--max-lora-rank``, and ``VLLM_ALLOW_RUNTIME_LORA_UPDATING=True``. vLLM knows cached
    prefixes by the adapter's name and path, so every adapter gets a new path. vLLM's ``load_inplace``
    is not used: it makes vLLM read the files again at every step.

    Both sets of endpoints let anyone who reaches the port load weights into the server, and vLLM's
    ``--api-key`` guards only paths under ``/v1``: bind the server to this machine or a private network.
    """

    def __init__(
        self,
        *,
        model: str,
        base_url: str,
        untie: bool = False,
        probe: str = PROBE,
        tolerance: float = 0.1,
        api_key: str | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        """``base_url`` is the policy's URL (``http://localhost:8000/v1``).

        ``untie``: see :func:`surefoot.rl.server_weights.write_weights`. ``probe`` is a text,
        ``tolerance`` the largest accepted gap in nats; 16-bit arithmetic alone causes a gap. ``api_key``
        defaults to ``OPENAI_API_KEY``.
        """
        self._model = model
        self._untie = untie
        self._probe = probe
        self._tolerance = tolerance
        root = base_url.rstrip("/").removesuffix("/v1")
        # no retries: a reload that is slow must not be started twice
        self._server = RemoteServer(base_url=root, api_key=api_key, timeout_s=timeout_s)

    def publish(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, directory: Path) -> float:
        """Make the server sample from ``model`` from now on; the files are written to ``directory``.

        Returns the mean absolute difference, in nats, of the server's log-probabilities of the probe from the
        model's. Raises :class:`PolicyError` if the server refuses, or if it is above the tolerance.
        """
        adapter = has_adapter(model)
        if adapter:
            path = write_adapter(model, directory / "adapters")
        else:
            path = directory / "weights"
            write_weights(model, tokenizer, path, untie=self._untie)
        # whole: vLLM interprets a path that does not exist as a name on the hub
        (self._load_adapter if adapter else self._reload)(str(path.resolve()))
        if adapter:
            for other in path.parent.iterdir():  # the server may have had to read it again
                if other != path:
                    shutil.rmtree(other)
        gap = self._gap(model, tokenizer)
        if not gap <= self._tolerance:
            raise PolicyError(
                f"the server does not sample from the weights in {path}: the log-probabilities of "
                f"{self._server.base_url} are {gap:.3g} nats from the model's, but 'tolerance' is "
                f"{self._tolerance:g} (a server on a CPU needs 'untie' for tied embeddings; a 16-bit server "
                "may need more tolerance)"
            )
        return gap

    def _load_adapter(self, path: str) -> None:
        hint, server = "start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True", self._server
        _post(server, "/v1/unload_lora_adapter", {"lora_name": self._model}, hint=hint, allow_missing=True)
        _post(server, "/v1/load_lora_adapter", {"lora_name": self._model, "lora_path": path}, hint=hint)

    def _reload(self, path: str) -> None:
        """Make the server read the weights in place, between requests, and clear its prefix cache."""
        hint, server = "start vLLM with VLLM_SERVER_DEV_MODE=1", self._server
        _post(server, "/pause", {}, hint=hint, params={"mode": "wait"})
        try:
            _post(
                server,
                "/collective_rpc",
                {"method": "reload_weights", "kwargs": {"weights_path": path}},
                hint="a server whose reload failed is without weights: restart it where it can read this "
                "path",
            )
            reply = _post(server, "/reset_prefix_cache", {}, hint=hint)
            if not (isinstance(reply, dict) and reply.get("success")):
                raise PolicyError("the server did not clear its prefix cache, which the old weights filled")
        finally:
            _post(server, "/resume", {}, hint=hint)

    def _gap(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> float:
        body = {
            "model": self._model,
            "prompt": self._probe,
            "max_tokens": PROBE_TOKENS,
            "temperature": 1.0,
            "seed": 0,
            "ignore_eos": True,
            "logprobs": 0,
            "return_token_ids": True,
        }
        reply = _post(
            self._server, "/v1/completions", body, hint="the probe was refused; give another 'probe'"
        )
        try:
            (choice,) = reply["choices"]  # type: ignore[index]
            read, tokens = list(map(int, choice["prompt_token_ids"])), list(map(int, choice["token_ids"]))
            logprobs = list(map(float, choice["logprobs"]["token_logprobs"]))
        except (LookupError, TypeError, ValueError) as error:
            raise PolicyError(f"the server's response to the probe is malformed: {error!r}") from error
        prompt = list(tokenizer(self._probe)["input_ids"])
        if read != prompt:
            raise PolicyError(
                "the server's tokenizer is not the model's: it splits the probe into different tokens"
            )
        if not tokens or len(logprobs) != len(tokens):
            raise PolicyError(
                f"the probe returned {len(tokens)} tokens and {len(logprobs)} log-probabilities"
            )
        probe = Sample(tokens=len(tokens), prompt_ids=tuple(prompt), ids=tuple(tokens))
        training = model.training
        model.eval()
        [mine] = Actor(model).logprobs([probe], microbatch_tokens=len(prompt) + len(tokens))
        model.train(training)
        return float(np.abs(np.asarray(logprobs) - mine).mean())


def _post(
    server: RemoteServer,
    path: str,
    body: Mapping[str, Any],
    *,
    hint: str,
    params: Mapping[str, str] | None = None,
    allow_missing: bool = False,
) -> object:
    """The server's response, parsed if it is JSON; with ``allow_missing``, ``None`` for status 404."""
    try:
        text = server.request(path, body, params=params)
    except CallError as error:
        if allow_missing and error.status == 404:
            return None
        reason = f"weights could not be published: {server.base_url}{path}: {error} ({hint})"
        raise PolicyError(reason) from error
    try:
        return json.loads(text)
    except ValueError:
        return text.decode(errors="replace")


def write_weights(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, directory: Path, *, untie: bool = False
) -> None:
    """Write a checkpoint to ``directory``, in the place of the one before; for a model without adapter.

    ``untie`` writes separate weights for the output head, equal to the embeddings to which it is tied. vLLM
    on a CPU needs that, in the checkpoint it is started with and in all that follow: it keeps a packed copy
    of a head, which a reload does not renew if the head is tied.
    """
    state, tied = dict(model.state_dict()), model.config.tie_word_embeddings
    if untie and tied:
        head = model.get_output_embeddings()
        (name,) = (f"{name}.weight" for name, module in model.named_modules() if module is head)
        state[name] = state[name].clone()
        model.config.tie_word_embeddings = False
    try:
        with atomic_directory(directory) as new:
            model.save_pretrained(new, state_dict=state)
            tokenizer.save_pretrained(new)
    finally:
        model.config.tie_word_embeddings = tied


def write_adapter(model: PreTrainedModel, directory: Path) -> Path:
    """Write the adapter of ``model`` to a directory in ``directory`` that is named after its weights."""
    with atomic_directory(directory / "new") as new:
        save_adapter(model, new, model.state_dict())
    weights = (directory / "new" / "adapter_model.safetensors").read_bytes()
    path = directory / hashlib.blake2b(weights, digest_size=8).hexdigest()
    shutil.rmtree(path, ignore_errors=True)
    return (directory / "new").rename(path)
