"""Supervised fine-tuning of a generative verifier: next-token loss on the critique, none on the prompt.

Updates, checkpoints and curves are those of the other reward models, so a killed run goes on with the losses
that it would have had.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from surefoot.models.card import CheckpointCard
from surefoot.models.kinds.generative import FAMILY, VerifierCheckpoint
from surefoot.models.kinds.verifier_format import VerifierFormat
from surefoot.training.config import TrainingLog, VerifierConfig
from surefoot.training.language import fit_tokens
from surefoot.training.targets import Example
from surefoot.training.updates import Progress


def train_verifier(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    form: VerifierFormat,
    config: VerifierConfig,
    directory: Path,
    *,
    base: str,
    label_source: str,
    progress: Progress | None = None,
) -> TrainingLog:
    """Fine-tune ``model`` (a causal language model) and save it as a generative checkpoint.

    ``examples`` are those of :func:`surefoot.training.generative_data.build_sft_set`. The loss is the mean
    over the critiques' tokens of an update. ThinkPRM (1.5B) had a learning rate of 6e-5, 32 critiques an
    update and 3 epochs. With ``config.lora`` an adapter is trained and saved in place of the whole model,
    which then has to stay where it was loaded from. One process.

    The directory can be loaded by :func:`surefoot.models.kinds.generative.load_verifier` and, as an ordinary
    transformers (or peft) checkpoint, by anything else. ``progress`` gets (updates done, updates in all,
    loss). Goes on from ``directory/checkpoint.safetensors`` if there is one.

    Raises ``TrainingError`` for no examples, one longer than the model's context,
    an adapter whose base could not be found again, or a loss or gradient that is not finite, naming the
    traces.
    """
    card = CheckpointCard(
        family=FAMILY,
        kind="prm",
        aggregation="last",
        score_means="correctness",
        label_source=label_source,
        base=base,
    )
    trained = VerifierCheckpoint(model=model, tokenizer=tokenizer, form=form, card=card)
    return fit_tokens(
        model,
        examples,
        config,
        directory,
        save=lambda: trained.save(directory),
        progress=progress,
    )
