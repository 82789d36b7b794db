"""The linear probe: what a policy's hidden states tell while it writes a step (Alain and Bengio, arXiv
1610.01644).

A probe reads one layer of the policy at one token of a step, and is linear: it finds what the policy
represents in a direction, not what a deep model could compute from its states.
:mod:`surefoot.training.probe` chooses layer and token on training problems alone and fits the direction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from transformers import PreTrainedModel

from surefoot.errors import CheckpointError
from surefoot.io import write_json
from surefoot.io.hub import checkpoint_directory, is_hub_name
from surefoot.models.card import PROBE, PROBE_SETTINGS, read_json
from surefoot.models.encoding import EncodedTrace
from surefoot.models.kinds.classifier import RewardModel
from surefoot.models.scorer import Scorer
from surefoot.policies.devices import LOADING, Loading
from surefoot.protocols import ProblemTrace
from surefoot.records import FrozenModel, StepScores, Trace

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
