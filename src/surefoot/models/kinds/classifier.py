"""The discriminative reward model: a transformers trunk and a linear head.

A PRM and an ORM differ only in their training labels (Lightman et al., arXiv
2305.20050, appendix E): both read the hidden state at a step's last token, or at a marker after it, and
give the logit of "good" (or what else the card's ``head`` says).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase

from surefoot.errors import CheckpointError
from surefoot.io.hub import checkpoint_directory, is_hub_name, pinned, reading_checkpoint
from surefoot.models.card import CLASSIFIER, HEAD, CheckpointCard, verified_card, write_card
from surefoot.models.encoding import EncodedTrace, encode_traces
from surefoot.models.engine.causal import save_causal
from surefoot.models.lora import add_marker, load_adapted
from surefoot.policies.devices import FLOAT32, LOADING, Loading
from surefoot.policies.pretrained import context_length, load_pretrained, require_finite
from surefoot.protocols import ProblemTrace


class RewardModel(nn.Module):
    """Trunk and head. Call it with right-padded token ids; see :meth:`forward`."""

    family: ClassVar[str] = CLASSIFIER

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
    def initialise(cls, base: str | Path, card: CheckpointCard, *, loading: Loading = FLOAT32) -> Self:
        """A new reward model on the trunk of any transformers checkpoint, with a zero head (score ½).

        A tokenizer without a pad token is fine: padding is masked and never read. A marker of the card's
        encoding that is not a single token becomes a new special token, whose embedding starts as the
        mean of the others.
        """
        trunk, tokenizer = load_pretrained(AutoModel, base, loading, complete=False)
        if is_hub_name(base):
            card = card.model_copy(update={"base": pinned(base)})
        if card.encoding.marker:
            add_marker(trunk, tokenizer, card.encoding.marker)
        encoding = card.encoding.within(context_length(trunk))
        return cls(trunk, tokenizer, card.model_copy(update={"encoding": encoding}))

    @classmethod
    def load(
        cls, directory: str | Path, *, base: str | Path | None = None, loading: Loading = LOADING
    ) -> Self:
        """Load what :meth:`save` wrote, from a directory or hub name (``owner/name@revision``).

        A checkpoint that holds an adapter alone loads its trunk from ``base``, by default from where it was
        when the adapter was trained. Raises ``CheckpointError`` naming the missing or bad file.
        """
        directory = checkpoint_directory(directory) if is_hub_name(directory) else Path(directory)
        card = verified_card(directory, family=cls.family)
        if not (directory / HEAD).is_file():
            raise CheckpointError(f"{directory} is not a surefoot checkpoint: {HEAD} is missing")
        trunk, tokenizer = load_adapted(AutoModel, directory, loading, base=base, marker=card.encoding.marker)
        model = cls(trunk, tokenizer, card)
        with reading_checkpoint(f"{directory / HEAD} is not the head of this model"):
            model.head.load_state_dict(load_file(directory / HEAD))
        require_finite(model.head, directory / HEAD)
        return model.eval()

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
        save_causal(self.trunk, self.tokenizer, directory, state=trunk)
        save_file({name: tensor.contiguous() for name, tensor in head.items()}, directory / HEAD)
        write_card(directory, self.card)

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
        **shared_rows: Any,
    ) -> torch.Tensor:
        """Outputs ``[S, C]`` of the head for S steps of B traces of at most T tokens.

        ``ids_bt`` and ``mask_bt`` are ``[B, T]``, right-padded (mask 0 on padding); step s is read in row
        ``rows_s[s]`` at token ``at_s[s]``. Traces may also share one row: ``mask_bt`` is ``None`` then, and
        ``shared_rows`` are the trunk's arguments that keep them apart.
        """
        hidden = self.trunk(input_ids=ids_bt, attention_mask=mask_bt, use_cache=False, **shared_rows)
        read = hidden.last_hidden_state[rows_s, at_s].float()
        with torch.autocast(read.device.type, enabled=False):  # the head is small: keep its precision
            return self.head(read)
