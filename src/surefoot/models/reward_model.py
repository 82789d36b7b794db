"""The discriminative reward model: a transformers trunk and a linear head with one output.

A PRM and an ORM differ in what they are trained on and in nothing else (Lightman et al., arXiv
2305.20050, appendix E): both read the hidden state at a step's last token and give the logit of "good".
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from surefoot.errors import CheckpointError
from surefoot.models.card import CARD, CheckpointCard
from surefoot.models.encoding import EncodedTrace, encode_traces
from surefoot.protocols import ProblemTrace
from surefoot.store import write_json

HEAD = "head.safetensors"


class RewardModel(nn.Module):
    """Trunk and head. Call it with right-padded token ids; see :meth:`forward`."""

    def __init__(
        self, trunk: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, card: CheckpointCard
    ) -> None:
        super().__init__()
        self.trunk, self.tokenizer, self.card = trunk, tokenizer, card
        self.head = nn.Linear(trunk.config.get_text_config().hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @classmethod
    def initialise(
        cls,
        base: str | Path,
        card: CheckpointCard,
        *,
        dtype: str = "float32",
        trust_remote_code: bool = False,
    ) -> RewardModel:
        """A new reward model on the trunk of any transformers checkpoint, with a zero head (score ½).

        A tokenizer without a pad token is fine: padding is masked and never read.
        """
        trunk, tokenizer, _ = _load_trunk(base, dtype=dtype, trust_remote_code=trust_remote_code)
        limit = getattr(trunk.config.get_text_config(), "max_position_embeddings", None)
        if limit and card.encoding.max_length > limit:
            card = card.model_copy(
                update={"encoding": card.encoding.model_copy(update={"max_length": limit})}
            )
        return cls(trunk, tokenizer, card)

    @classmethod
    def load(cls, directory: str | Path, *, trust_remote_code: bool = False) -> RewardModel:
        """Load what :meth:`save` wrote. Raises ``CheckpointError`` naming the missing or bad file."""
        directory = Path(directory)
        if absent := [name for name in (CARD, HEAD) if not (directory / name).is_file()]:
            raise CheckpointError(f"{directory} is no surefoot checkpoint: {absent[0]} is missing")
        try:
            card = CheckpointCard.model_validate_json((directory / CARD).read_bytes())
        except ValidationError as error:
            raise CheckpointError(f"{directory / CARD}: {error}") from error
        if card.family != "surefoot":
            raise CheckpointError(f"{directory / CARD}: family {card.family!r} is not one trained here")
        trunk, tokenizer, missing = _load_trunk(directory, dtype="auto", trust_remote_code=trust_remote_code)
        if missing:
            # transformers would go on with random numbers in their place
            raise CheckpointError(f"{directory}: weights of the trunk are missing: {', '.join(missing[:5])}")
        model = cls(trunk, tokenizer, card)
        try:
            model.head.load_state_dict(load_file(directory / HEAD))
        except (SafetensorError, RuntimeError, OSError) as error:
            raise CheckpointError(f"{directory / HEAD} is not the head of this model: {error}") from error
        return model.eval()

    def save(self, directory: Path) -> None:
        """Write ``config.json``, trunk and head as safetensors, tokenizer and ``surefoot.json``.

        ``surefoot.json`` comes last and atomically: a directory that has it is complete.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self.trunk.save_pretrained(directory)
        self.tokenizer.save_pretrained(directory)
        save_file(
            {name: tensor.contiguous() for name, tensor in self.head.state_dict().items()}, directory / HEAD
        )
        write_json(directory / CARD, self.card.model_dump())

    def encode(self, items: Sequence[ProblemTrace]) -> list[EncodedTrace]:
        """Tokens as the checkpoint's card describes them. Raises ``ScoreError``."""
        return encode_traces(self.tokenizer, self.card.encoding, items)

    def read(self, hidden_sh: torch.Tensor) -> torch.Tensor:
        """Scores ``[S]`` in [0, 1] from hidden states ``[S, H]`` at the steps' last tokens."""
        return torch.sigmoid(self.head(hidden_sh.float())[:, 0])

    def forward(
        self, ids_bt: torch.Tensor, mask_bt: torch.Tensor, rows_s: torch.Tensor, at_s: torch.Tensor
    ) -> torch.Tensor:
        """Logits ``[S]`` for S steps of B traces of at most T tokens.

        ``ids_bt`` and ``mask_bt`` are ``[B, T]``, right-padded (mask 0 on padding); step s is read in row
        ``rows_s[s]`` at token ``at_s[s]``.
        """
        hidden = self.trunk(input_ids=ids_bt, attention_mask=mask_bt, use_cache=False).last_hidden_state
        return self.head(hidden[rows_s, at_s].float())[:, 0]


def _load_trunk(
    path: str | Path, *, dtype: str, trust_remote_code: bool
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, list[str]]:
    """Trunk, tokenizer, and the names of weights that the checkpoint does not have."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
        trunk, info = AutoModel.from_pretrained(
            path,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
            use_safetensors=True,
            output_loading_info=True,
        )
    except SafetensorError as error:
        raise CheckpointError(f"{path}: model.safetensors cannot be read: {error}") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{str(path)!r} could not be loaded as a transformers checkpoint: {error}"
        ) from error
    return trunk, tokenizer, sorted(info["missing_keys"])


def pad_batch(sequences: list[tuple[int, ...]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-pad token ids to ``[B, T]``; returns ids and mask. Padding is id 0, masked, never read."""
    width = max(map(len, sequences))
    ids = torch.zeros((len(sequences), width), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(sequence)
        mask[row, : len(sequence)] = 1
    return ids, mask
