"""The discriminative reward model: a transformers trunk and a linear head.

A PRM and an ORM differ only in their training labels (Lightman et al., arXiv
2305.20050, appendix E): both read the hidden state at a step's last token, or at a marker after it, and
give the logit of "good" (or what else the card's ``head`` says).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase

from surefoot.errors import CheckpointError
from surefoot.io.hub import checkpoint_directory, is_hub_name, pinned
from surefoot.models.card import CARD, CheckpointCard, read_card, verified_card, write_card
from surefoot.models.checkpoint import load_pretrained, push_checkpoint, require_finite
from surefoot.models.encoding import EncodedTrace, encode_traces
from surefoot.models.engine.packed_attention import packed_inputs
from surefoot.models.lora import base_of, has_adapter, load_adapter, save_adapter
from surefoot.policies.devices import FLOAT32, LOADING, Loading
from surefoot.protocols import ProblemTrace

FAMILY = "surefoot"
HEAD = "head.safetensors"


class RewardModel(nn.Module):
    """Trunk and head. Call it with right-padded token ids; see :meth:`forward`."""

    def __init__(
        self, trunk: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, card: CheckpointCard
    ) -> None:
        super().__init__()
        self.trunk, self.tokenizer, self.card = trunk, tokenizer, card
        outputs = 3 if card.head == "classes" else 1
        self.head = nn.Linear(trunk.config.get_text_config().hidden_size, outputs, device=trunk.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @classmethod
    def initialise(
        cls,
        base: str | Path,
        card: CheckpointCard,
        *,
        loading: Loading = FLOAT32,
        trust_remote_code: bool = False,
    ) -> RewardModel:
        """A new reward model on the trunk of any transformers checkpoint, with a zero head (score ½).

        A tokenizer without a pad token is fine: padding is masked and never read. A marker of the card's
        encoding that is not a single token becomes a new special token, whose embedding starts as the
        mean of the others.
        """
        trunk, tokenizer = load_pretrained(
            AutoModel, base, loading, trust_remote_code=trust_remote_code, complete=False
        )
        if is_hub_name(base):
            card = card.model_copy(update={"base": pinned(base)})
        if card.encoding.marker:
            _add_marker(trunk, tokenizer, card.encoding.marker)
        limit = getattr(trunk.config.get_text_config(), "max_position_embeddings", None)
        if limit and card.encoding.max_length > limit:
            card = card.model_copy(
                update={"encoding": card.encoding.model_copy(update={"max_length": limit})}
            )
        return cls(trunk, tokenizer, card)

    @classmethod
    def load(
        cls,
        directory: str | Path,
        *,
        base: str | Path | None = None,
        loading: Loading = LOADING,
        trust_remote_code: bool = False,
    ) -> RewardModel:
        """Load what :meth:`save` wrote. Raises ``CheckpointError`` naming the missing or bad file.

        A checkpoint that holds an adapter alone loads its trunk from ``base``, by default from where it was
        when the adapter was trained.
        """
        directory = Path(directory)
        card = _read_card(directory)
        stated = base_of(directory)
        try:
            trunk, tokenizer = load_pretrained(
                AutoModel,
                (base or stated) if stated else directory,
                loading,
                tokenizer=directory,
                trust_remote_code=trust_remote_code,
            )
        except CheckpointError as error:
            if not stated:
                raise
            raise CheckpointError(
                f"{directory} holds an adapter alone, and its base {error}; say where that is with base="
            ) from error
        if stated:
            if card.encoding.marker:
                _add_marker(trunk, tokenizer, card.encoding.marker)
            load_adapter(trunk, directory)
            loading.cast(trunk)
        model = cls(trunk, tokenizer, card)
        try:
            model.head.load_state_dict(load_file(directory / HEAD))
        except (SafetensorError, RuntimeError, OSError) as error:
            raise CheckpointError(f"{directory / HEAD} is not the head of this model: {error}") from error
        require_finite(model.head, directory / HEAD)
        return model.eval()

    @classmethod
    def from_pretrained(
        cls, name: str | Path, *, loading: Loading = LOADING, trust_remote_code: bool = False
    ) -> RewardModel:
        """:meth:`load` by directory or hub name (``owner/name`` or ``owner/name@revision``)."""
        return cls.load(checkpoint_directory(name), loading=loading, trust_remote_code=trust_remote_code)

    def save(self, directory: Path, *, state: Mapping[str, torch.Tensor] | None = None) -> None:
        """Write ``config.json``, trunk and head as safetensors, tokenizer and ``surefoot.json``.

        ``surefoot.json`` comes last and atomically: a directory that has it is complete. ``state`` stands
        in for ``state_dict()`` where this process holds only parts of the weights.
        """
        state = self.state_dict() if state is None else state
        trunk, head = (
            {name.removeprefix(part): tensor for name, tensor in state.items() if name.startswith(part)}
            for part in ("trunk.", "head.")
        )
        directory.mkdir(parents=True, exist_ok=True)
        if has_adapter(self.trunk):
            save_adapter(self.trunk, directory, trunk)
        else:
            self.trunk.save_pretrained(directory, state_dict=trunk)
        self.tokenizer.save_pretrained(directory)
        save_file({name: tensor.contiguous() for name, tensor in head.items()}, directory / HEAD)
        write_card(directory, self.card)

    def save_pretrained(self, directory: str | Path) -> None:
        """:meth:`save`, by the name that other libraries have for it."""
        self.save(Path(directory))

    def push_to_hub(
        self, name: str, *, private: bool = False, message: str = "Upload reward model", **options: Any
    ) -> str:
        """Put the checkpoint on the Hugging Face hub as ``owner/name``; returns the commit's address.

        ``options`` go to ``huggingface_hub.upload_folder`` (``revision``, ``token``, ``create_pr`` ...).
        """
        return push_checkpoint(self.save, name, private=private, message=message, **options)

    def encode(self, items: Sequence[ProblemTrace]) -> list[EncodedTrace]:
        """Tokens as the checkpoint's card describes them. Raises ``ScoreError``."""
        return encode_traces(self.tokenizer, self.card.encoding, items)

    def read(self, hidden_sh: torch.Tensor) -> torch.Tensor:
        """Scores ``[S]`` from hidden states ``[S, H]`` at the read-out positions; see :meth:`scores`."""
        return self.scores(self.head(hidden_sh.float()))

    def scores(self, outputs_sc: torch.Tensor) -> torch.Tensor:
        """Scores ``[S]`` of the head's outputs ``[S, C]``: in [0, 1], but not bounded for ``linear``."""
        if self.card.head == "linear":
            return outputs_sc[:, 0]
        if self.card.head == "logit":
            return torch.sigmoid(outputs_sc[:, 0])
        chances = torch.softmax(outputs_sc, dim=-1)  # bad, neutral, good
        return chances[:, 2] + chances[:, 1] if self.card.neutral == "good" else chances[:, 2]

    def forward(
        self,
        ids_bt: torch.Tensor,
        mask_bt: torch.Tensor | None,
        rows_s: torch.Tensor,
        at_s: torch.Tensor,
        position_ids_bt: torch.Tensor | None = None,
        lengths: tuple[int, ...] = (),
    ) -> torch.Tensor:
        """Outputs ``[S, C]`` of the head for S steps of B traces of at most T tokens.

        ``ids_bt`` and ``mask_bt`` are ``[B, T]``, right-padded (mask 0 on padding); step s is read in row
        ``rows_s[s]`` at token ``at_s[s]``. For traces packed one after another into a row, ``mask_bt`` is
        ``None`` and ``position_ids_bt`` ``[B, T]`` counts from 0 in each trace, which keeps them apart;
        ``lengths`` are their tokens.
        """
        packed = packed_inputs(self.trunk, position_ids_bt, lengths)
        hidden = self.trunk(input_ids=ids_bt, attention_mask=mask_bt, use_cache=False, **packed)
        read = hidden.last_hidden_state[rows_s, at_s].float()
        with torch.autocast(read.device.type, enabled=False):  # the head is small: keep its precision
            return self.head(read)


def _read_card(directory: Path) -> CheckpointCard:
    card = read_card(directory)
    if card.family != FAMILY:
        raise CheckpointError(
            f"{directory / CARD}: family {card.family!r} is not a step classifier; load_prm opens every kind"
        )
    if not (directory / HEAD).is_file():
        raise CheckpointError(f"{directory} is not a surefoot checkpoint: {HEAD} is missing")
    return verified_card(directory, family=FAMILY)


def _add_marker(trunk: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, marker: str) -> None:
    """Make ``marker`` one token; its embedding is deterministic, so that a resumed run starts alike."""
    ids = tokenizer(marker, add_special_tokens=False)["input_ids"]
    if len(ids) != 1 or ids[0] == tokenizer.unk_token_id:
        tokenizer.add_special_tokens({"additional_special_tokens": [marker]})
    vocabulary = trunk.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > vocabulary:
        mean = trunk.get_input_embeddings().weight.detach().mean(0)
        trunk.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        with torch.no_grad():
            trunk.get_input_embeddings().weight[vocabulary:] = mean
