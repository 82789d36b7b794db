"""Checkpoints of transformers: the one way in which this package loads its own and a base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from surefoot.errors import CheckpointError

_KINDS = {"AutoModel": "transformers checkpoint", "AutoModelForCausalLM": "causal language model"}


def load_pretrained(
    auto: Any,
    path: str | Path,
    *,
    dtype: str,
    trust_remote_code: bool,
    tokenizer: str | Path | None = None,
    complete: bool = True,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer of a directory or hub name; ``auto`` is the Auto class that makes the model.

    The tokenizer comes from ``tokenizer`` where that is given. Weights are read from safetensors alone. With
    ``complete=False`` the checkpoint may lack weights, which start at random: a base need not have all.

    Raises ``CheckpointError`` naming what is missing or cannot be read.
    """
    try:
        words = AutoTokenizer.from_pretrained(tokenizer or path, trust_remote_code=trust_remote_code)
        model, info = auto.from_pretrained(
            path,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
            use_safetensors=True,
            output_loading_info=True,
        )
    except SafetensorError as error:
        raise CheckpointError(f"{path}: model.safetensors cannot be read: {error}") from error
    except (OSError, ValueError, RuntimeError) as error:
        kind = _KINDS.get(auto.__name__, auto.__name__)
        raise CheckpointError(f"{str(path)!r} could not be loaded as a {kind}: {error}") from error
    if complete and (missing := sorted(info["missing_keys"])):
        # transformers would go on with random numbers in their place
        raise CheckpointError(f"{path}: weights are missing: {', '.join(missing[:5])}")
    return model, words
