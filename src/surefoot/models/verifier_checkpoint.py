"""Checkpoints of generative verifiers: a causal language model, or an adapter of one, its format and card."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from surefoot.errors import CheckpointError
from surefoot.io import write_json
from surefoot.models.card import CARD, CheckpointCard, read_card
from surefoot.models.causal import load_causal, save_causal
from surefoot.models.lora import base_of, load_adapter
from surefoot.models.verifier_format import VerifierFormat

FAMILY = "generative"
FORMAT = "verifier.json"


@dataclass(frozen=True, kw_only=True)
class VerifierCheckpoint:
    """A language model that criticises, and how it is asked."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    form: VerifierFormat
    card: CheckpointCard

    def save(self, directory: Path) -> None:
        """Write weights, tokenizer, ``verifier.json`` and ``surefoot.json``; of an adapter its weights alone.

        ``surefoot.json`` comes last and atomically: a directory that has it is complete.
        """
        save_causal(self.model, self.tokenizer, directory)
        write_json(directory / FORMAT, self.form.model_dump())
        write_json(directory / CARD, self.card.model_dump())


def read_verifier(
    directory: Path,
    *,
    base: str | Path | None = None,
    dtype: str = "auto",
    trust_remote_code: bool = False,
) -> VerifierCheckpoint:
    """What :meth:`VerifierCheckpoint.save` wrote; ``base`` is where an adapter's model is now.

    Raises ``CheckpointError`` naming the missing or bad file.
    """
    card = read_card(directory)
    if card.family != FAMILY:
        raise CheckpointError(f"{directory / CARD}: family {card.family!r} is not {FAMILY!r}")
    try:
        form = VerifierFormat.model_validate_json((directory / FORMAT).read_bytes())
    except OSError as error:
        raise CheckpointError(f"{directory} is no generative checkpoint: {FORMAT} is missing") from error
    except ValidationError as error:
        raise CheckpointError(f"{directory / FORMAT}: {error}") from error
    stated = base_of(directory)
    if stated is None:
        model, tokenizer = load_causal(directory, dtype=dtype, trust_remote_code=trust_remote_code)
    else:
        model, _ = load_causal(base or stated, dtype=dtype, trust_remote_code=trust_remote_code)
        load_adapter(model, directory)
        tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=trust_remote_code)
    return VerifierCheckpoint(model=model.eval(), tokenizer=tokenizer, form=form, card=card)
