"""Checkpoints in the format of transformers: from the hub or a directory, loaded, and pushed back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import create_repo, snapshot_download, upload_folder
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError
from torch import nn
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
        # transformers would use random numbers in their place
        raise CheckpointError(f"{path}: weights are missing: {', '.join(missing[:5])}")
    require_finite(model, path)
    return model, words


def require_finite(module: nn.Module, where: str | Path) -> None:
    """Raise ``CheckpointError`` naming a weight of ``module``, from ``where``, that is NaN or infinite.

    A model with such a weight computes NaN for every step, which is no score.
    """
    for name, weight in module.named_parameters():
        if weight.is_floating_point() and not bool(weight.isfinite().all()):
            raise CheckpointError(
                f"{where}: weight {name!r} has values that are not finite (NaN or infinity); fetch the "
                "checkpoint again, or go back to an earlier one"
            )


def fetch_checkpoint(name: str | Path, revision: str | None = None) -> Path:
    """The directory ``name``, or the hub's repository of that name, downloaded unless it is in the cache.

    Raises ``CheckpointError`` if there is neither.
    """
    if Path(name).is_dir():
        return Path(name)
    try:
        return Path(snapshot_download(str(name), revision=revision))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise CheckpointError(
            f"{str(name)!r} is no directory and could not be loaded from the hub: {error}"
        ) from error


def push_checkpoint(
    save: Callable[[Path], None], name: str, *, private: bool, message: str, **options: Any
) -> str:
    """What ``save`` writes, as one commit to ``owner/name``, which is made if absent; returns its address.

    Raises ``CheckpointError`` if the hub refuses.
    """
    token = options.get("token")
    with TemporaryDirectory() as folder:
        save(Path(folder))
        try:
            create_repo(name, private=private, exist_ok=True, token=token)
            commit = upload_folder(repo_id=name, folder_path=folder, commit_message=message, **options)
        except (HfHubHTTPError, HFValidationError, OSError) as error:
            raise CheckpointError(f"could not push to {name!r}: {error}") from error
    return str(commit.commit_url)
