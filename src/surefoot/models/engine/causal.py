"""Causal language models with their heads: loading, and log-probabilities of given tokens.

A vocabulary of 150,000 makes the float32 logits of one trace of 2,000 tokens 1.2 GB. Here the head is applied
to a few hundred positions at a time, and only where a token is wanted; with gradients, each piece is computed
again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from surefoot.errors import CheckpointError
from surefoot.models.engine.packing import read_states
from surefoot.models.lora import has_adapter, save_adapter
from surefoot.policies.devices import LOADING, Loading
from surefoot.policies.pretrained import load_pretrained

_LOGITS = 16_777_216
"""Logits (positions times vocabulary) held at a time: 64 MB in float32."""


def load_causal(
    path: str | Path, loading: Loading = LOADING
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model with its head, and tokenizer. Raises ``CheckpointError`` naming the missing or unreadable
    part."""
    return load_pretrained(AutoModelForCausalLM, path, loading)


def save_causal(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    directory: Path,
    *,
    state: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Write weights and tokenizer as transformers does; of an adapter its own weights, as peft does.

    ``state`` are the model's weights where it holds shards of them.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if has_adapter(model):
        save_adapter(model, directory, state or model.state_dict())
    else:
        model.save_pretrained(directory, state_dict=dict(state) if state else None)
    tokenizer.save_pretrained(directory)


def token_statistics(
    policy: PreTrainedModel,
    states_nh: torch.Tensor,
    targets_n: torch.Tensor,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    limit: int = _LOGITS,
) -> torch.Tensor:
    """Log-probabilities of ``targets_n`` and, if wanted, entropies (no gradient): ``[1, N]`` or ``[2, N]``.

    Both in nats, of the distribution that ``policy`` has at ``temperature`` after hidden states ``[N, H]``;
    computed for ``limit`` logits at a time.
    """
    head = policy.get_output_embeddings()
    device, dtype = head.weight.device, head.weight.dtype
    states, targets = states_nh.to(device, dtype), targets_n.to(device)

    def piece(part_nh: torch.Tensor, targets_n: torch.Tensor) -> torch.Tensor:
        logits = head(part_nh).float()
        if temperature != 1:
            logits = logits / temperature
        total = logits.logsumexp(1)
        statistics = [logits.gather(1, targets_n[:, None])[:, 0] - total]
        if entropy:
            with torch.no_grad():
                statistics.append(total - ((logits - total[:, None]).exp() * logits).sum(1))
        return torch.stack(statistics)

    rows = max(1, limit // head.weight.shape[0])
    pieces = []
    for start in range(0, len(targets), rows):
        part = (states[start : start + rows], targets[start : start + rows])
        # one piece fits into memory as it is; more are recomputed in the backward pass
        if torch.is_grad_enabled() and len(targets) > rows:
            pieces.append(checkpoint(piece, *part, use_reentrant=False))
        else:
            pieces.append(piece(*part))
    return torch.cat(pieces, dim=1) if pieces else states.new_zeros((1 + entropy, 0), dtype=torch.float32)


@torch.no_grad()
def read_logprobs(
    policy: PreTrainedModel,
    sequences: Sequence[tuple[int, ...]],
    first: Sequence[int],
    *,
    temperature: float = 1.0,
    batch_tokens: int = 16_384,
) -> tuple[list[torch.Tensor], list[int]]:
    """Log-probability of every token from ``first[k]`` (at least 1) on in ``sequences[k]``, on the CPU.

    Common beginnings are read once, ``batch_tokens`` at a time (:func:`read_states`). Also gives the tokens
    that each sequence cost: the sum is what went through the trunk.
    """
    positions = [range(start - 1, len(ids) - 1) for ids, start in zip(sequences, first, strict=True)]
    logprobs: dict[int, torch.Tensor] = {}
    cost = [0] * len(sequences)
    for reading in read_states(policy.base_model, sequences, positions, batch_tokens=batch_tokens):
        for number, states in reading.states.items():
            targets = torch.tensor(sequences[number][first[number] :], dtype=torch.long)
            logprobs[number] = token_statistics(policy, states, targets, temperature=temperature)[0].cpu()
            cost[number] = reading.new[number]
    return [logprobs[number] for number in range(len(sequences))], cost


@torch.no_grad()
def has_plain_head(model: PreTrainedModel) -> bool:
    """Whether the model's logits are its output embedding of its last state, by a trial.

    Some architectures scale or cap them in between (Gemma 2, Cohere), which is missed where the head alone is
    multiplied.
    """
    head, trunk = model.get_output_embeddings(), model.base_model
    if getattr(head, "weight", None) is None or trunk is model:
        return False
    ids = torch.arange(2, 8, device=model.device)[None] % head.weight.shape[0]
    training = model.training
    model.eval()
    try:
        expected = model(input_ids=ids, use_cache=False).logits
        states = getattr(trunk(input_ids=ids, use_cache=False), "last_hidden_state", None)
    finally:
        model.train(training)
    if states is None:  # a wrapper (an adapter's, say) whose base is a whole language model
        return False
    product = linear(states, head.weight, getattr(head, "bias", None))
    return torch.allclose(product.float(), expected.float(), atol=1e-3, rtol=1e-3)


def require_plain_head(policy: PreTrainedModel) -> None:
    """Raise ``CheckpointError`` unless the model's logits are its output embedding of its last state."""
    if policy.get_output_embeddings() is None:
        raise CheckpointError(f"{type(policy).__name__} lacks a language-model head; use a causal model")
    if not has_plain_head(policy):
        raise CheckpointError(
            f"{type(policy).__name__} changes its logits after the output embedding (a cap or a scale), "
            "which scores from its states do not reckon with; use another architecture"
        )
