"""The discriminative reward model, a transformers trunk and a linear head; and the linear probe of a policy.

A PRM and an ORM differ only in their training labels (Lightman et al., arXiv
2305.20050, appendix E): both read the hidden state at a step's last token, or at a marker after it, and
give the logit of "good" (or what else the card's ``head`` says).

A probe (Alain and Bengio, arXiv 1610.01644) reads one layer of the policy at one token of a step, and is
linear: it finds what the policy represents in a direction, not what a deep model could compute from its
states. :mod:`surefoot.training.probe` chooses layer and token on training problems alone and fits the
direction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase

from surefoot.errors import CheckpointError
from surefoot.io import write_json
from surefoot.io.sources import checkpoint_directory, is_hub_name, pinned, reading_checkpoint
from surefoot.models.card import (
    CLASSIFIER,
    HEAD,
    PROBE,
    PROBE_SETTINGS,
    CheckpointCard,
    read_json,
    verified_card,
    write_card,
)
from surefoot.models.encoding import EncodedTrace, encode_traces
from surefoot.models.engine.causal import save_causal
from surefoot.models.lora import add_marker, load_adapted
from surefoot.models.scorer import Scorer
from surefoot.policies.devices import FLOAT32, LOADING, Loading
from surefoot.policies.pretrained import context_length, load_pretrained, require_finite
from surefoot.protocols import ProblemTrace
from surefoot.records import FrozenModel, StepScores, Trace


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


Position = Literal["before", "first", "middle", "late", "last"]
"""Token of a step: the one before its first, its first, the middle one, the one before its last visible one
(in whose state the last one is chosen), and the last visible one."""
StepChoice = Literal["every", "opening", "middle", "closing"]
"""Which steps of a trace are read."""


class ProbeSettings(FrozenModel):
    """``probe.json``: where the probe reads."""

    format: Literal[1] = 1
    layer: int = Field(ge=0)
    """0 = embeddings, then the output of each block; the last one after the final norm."""
    position: Position
    steps: StepChoice
    training_auc: float
    """Of the choice, on training problems that its direction was not fitted on; optimistic, because it is the
    highest of all choices."""


class LinearProbe(RewardModel):
    """A policy's trunk and a linear head on one of its layers (:class:`surefoot.models.scorer.StepModel`)."""

    family: ClassVar[str] = PROBE
    settings: ProbeSettings

    @classmethod
    def load(
        cls, directory: str | Path, *, base: str | Path | None = None, loading: Loading = LOADING
    ) -> Self:
        """Load what :meth:`save` wrote; see :meth:`RewardModel.load`."""
        directory = checkpoint_directory(directory) if is_hub_name(directory) else Path(directory)
        settings = read_json(directory / PROBE_SETTINGS, ProbeSettings)
        probe = super().load(directory, base=base, loading=loading)
        if settings.layer > probe.layers:
            raise CheckpointError(
                f"{directory / PROBE_SETTINGS}: 'layer' is {settings.layer}; the model has {probe.layers}"
            )
        probe.place(settings)
        return probe

    def save(self, directory: Path, **options: Any) -> None:
        """As :meth:`RewardModel.save`, with ``probe.json``."""
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / PROBE_SETTINGS, self.settings.model_dump())
        super().save(directory, **options)

    @property
    def layers(self) -> int:
        """Blocks of the trunk."""
        return int(self.trunk.config.get_text_config().num_hidden_layers)

    def place(self, settings: ProbeSettings) -> None:
        """Read where ``settings`` say, from now on."""
        self.settings = settings
        _give_layers(self.trunk, [settings.layer])

    def encode(self, items: Sequence[ProblemTrace]) -> list[EncodedTrace]:
        """Tokens, and the probe's position in the steps that it reads."""
        return [
            replace(
                trace,
                positions=tuple(
                    step_token(trace, step, self.settings.position) if step in chosen else None
                    for step in range(len(trace.positions))
                ),
            )
            for trace in super().encode(items)
            for chosen in [chosen_steps(len(trace.positions), self.settings.steps)]
        ]


class ProbeScorer(Scorer):
    """Scores of a probe: high = what its labels called good."""

    model: LinearProbe

    def _record(
        self, trace: Trace, encoded: EncodedTrace, scores: Sequence[float | None], tokens: int
    ) -> StepScores:
        record = super()._record(trace, encoded, scores, tokens)
        which = self.model.settings.steps
        if which == "every" or encoded.refused or all(score is None for score in scores):
            return record
        return record.model_copy(update={"unscored_reason": f"the probe reads the {which} step alone"})


def step_token(trace: EncodedTrace, step: int, position: Position) -> int | None:
    """Index of the token at which a step is read; ``None`` for a step that is cut off."""
    last = trace.positions[step]
    if last is None:
        return None
    first = min(trace.starts[step], last)
    return {
        "before": max(first - 1, 0),
        "first": first,
        "middle": (first + last) // 2,
        "late": max(last - 1, 0),
        "last": last,
    }[position]


def chosen_steps(count: int, which: StepChoice) -> range:
    """Numbers of the steps that are read, of a trace of ``count``."""
    if which == "every":
        return range(count)
    at = {"opening": 0, "middle": count // 2, "closing": count - 1}[which]
    return range(at, at + 1)


@contextmanager
def reading_layers(trunk: PreTrainedModel, layers: Sequence[int]) -> Iterator[None]:
    """Inside, ``last_hidden_state`` has the states of ``layers`` side by side: ``[B, T, layers * H]``."""
    handles = _give_layers(trunk, layers)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _give_layers(trunk: PreTrainedModel, layers: Sequence[int]) -> list[Any]:
    """Handles of the hooks that replace the trunk's output."""

    def ask(_: object, args: tuple[Any, ...], settings: dict[str, Any]) -> tuple[Any, Any]:
        return args, {**settings, "output_hidden_states": True}

    def choose(_: object, __: object, output: Any) -> Any:
        device = output.last_hidden_state.device
        states = [output.hidden_states[layer].to(device) for layer in layers]
        output.last_hidden_state = torch.cat(states, dim=-1)
        return output

    return [trunk.register_forward_pre_hook(ask, with_kwargs=True), trunk.register_forward_hook(choose)]
