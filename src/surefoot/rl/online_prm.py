"""The implicit reward model that learns from the outcomes of the policy's own rollouts.

PRIME (Cui et al., arXiv 2502.01456). Policy, reward model φ and reference start as one model. The process
reward of a token is log π_φ / π_ref; after it was used, φ takes a step on the outcomes of the same rollouts.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from surefoot.errors import TrainingError
from surefoot.models.encoding import Encoding
from surefoot.models.engine.causal import read_logprobs
from surefoot.models.kinds.implicit import ImplicitPRM, ImplicitSettings
from surefoot.models.lora import has_adapter
from surefoot.policies.prompts import PromptFormat
from surefoot.rl.actor import Actor, Learner, LearnerSettings
from surefoot.rl.config import OnlinePRMConfig
from surefoot.rl.credit import FloatArray
from surefoot.rl.rollouts import Rollout
from surefoot.training.optimisation import recompute_activations

_Key = tuple[tuple[int, ...], tuple[int, ...]]


class OnlinePRM:
    """Log-ratios of tokens as rewards, and their learning from outcomes.

    ``prm`` is trained in place: :meth:`from_policy` makes one from the start policy, ``ImplicitPRM.load``
    opens one that was trained before, with the reference that it was trained against. ``parameters`` (by
    name) and ``optimiser`` are its state, which the loop's checkpoint holds. Dropout is off, as in the
    policy that drew the rollouts. Raises ``TrainingError`` if ``prm`` has another ``beta`` than ``config``.
    """

    def __init__(
        self,
        prm: ImplicitPRM,
        config: OnlinePRMConfig,
        execution: LearnerSettings,
    ) -> None:
        if prm.settings.beta != config.beta:
            raise TrainingError(
                f"'beta' is {config.beta}, and the reward model was made with {prm.settings.beta}: give that"
            )
        prm.policy.eval().requires_grad_(True)
        if execution.gradient_checkpointing:
            recompute_activations(prm.policy)
        self.prm, self.config, self.execution = prm, config, execution
        self._actor = Actor(prm.policy, bf16=execution.bf16)
        self._learner = Learner(
            prm.policy,
            config,
            execution,
            name="the online implicit reward model",
            reader=self._actor.reader,
        )
        self.parameters, self.optimiser = self._learner.parameters, self._learner.optimiser
        if prm.reference.model is not None:
            prm.reference.model.to(prm.policy.device)
        self._reference: dict[_Key, torch.Tensor] = {}

    @classmethod
    def from_policy(
        cls,
        policy: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        config: OnlinePRMConfig,
        execution: LearnerSettings,
        *,
        prompt: PromptFormat,
        name: str,
        reference: PreTrainedModel | None = None,
    ) -> Self:
        """A copy of ``policy``, which is called ``name``, before it is trained or given an adapter.

        The reference is a second copy, or ``reference``, which is frozen. ``prompt`` goes into the saved
        checkpoint, so that it reads problems as the policy does.

        Raises ``TrainingError`` for a policy with an adapter, ``CheckpointError`` for one whose head is not
        plain.
        """
        if has_adapter(policy):
            raise TrainingError("the policy carries an adapter; make the reward model before it is added")
        prm = ImplicitPRM.assemble(
            copy.deepcopy(policy).float(),
            tokenizer,
            ImplicitSettings(beta=config.beta, reference=name),
            # in the same type: rounding would be a reward, which is scaled up to 1 where nothing was learned
            reference=copy.deepcopy(policy).float() if reference is None else reference,
            base=name,
            encoding=Encoding(
                template=prompt.template,
                chat=prompt.chat,
                system=prompt.system,
                max_length=getattr(policy.config.get_text_config(), "max_position_embeddings", 1 << 30),
            ),
        )
        return cls(prm, config, execution)

    def log_ratios(self, rollouts: Sequence[Rollout]) -> list[FloatArray]:
        """log π_φ - log π_ref [T] of every response token, in nats; not scaled by beta.

        Prompts that rollouts share are read once. The reference's values are kept for :meth:`learn`.
        """
        keys = [_key(rollout) for rollout in rollouts]
        self._reference = {key: self._reference[key] for key in keys if key in self._reference}
        reference = self._reference_logprobs(rollouts)
        with self._autocast():
            policy, _ = read_logprobs(self.prm.policy, *_sequences(rollouts))
        both = zip(policy, reference, strict=True)
        return [(logprobs.double() - base.double()).numpy() for logprobs, base in both]

    def learn(self, rollouts: Sequence[Rollout], outcomes: Sequence[float]) -> float:
        """Steps on -[l log σ(r) + (1 - l) log(1 - σ(r))], the mean over the rollouts, l their outcomes.

        r = beta Σ_t (log π_φ - log π_ref) of all tokens of the response, end of sequence included (the
        equation of :class:`surefoot.training.implicit.OutcomeLoss`). Returns the loss before the first step.
        Read a round's rewards before learning from it (PRIME's order "after").

        Raises ``TrainingError`` without rollouts, for outcomes outside [0, 1] or not one
        per rollout, or for numbers that are not finite.
        """
        if len(outcomes) != len(rollouts) or not all(0 <= outcome <= 1 for outcome in outcomes):
            raise TrainingError(
                f"'outcomes' must be {len(rollouts)} numbers in [0, 1], one per rollout; leave out rollouts "
                "that were not judged"
            )
        reference = [float(logprob.double().sum()) for logprob in self._reference_logprobs(rollouts)]
        everyone = self.execution.processes.all_reduce(float(len(rollouts)))

        def share(part: list[int]) -> torch.Tensor:
            chosen = [rollouts[at] for at in part]
            rewards = self._rewards(chosen, [reference[at] for at in part])
            targets = torch.tensor([outcomes[at] for at in part]).to(rewards)
            return binary_cross_entropy_with_logits(rewards, targets, reduction="sum") / everyone

        losses = [self._learner.step(rollouts, share)[0] for _ in range(self.config.epochs)]
        self._reference = {}
        return losses[0]

    def save(self, directory: Path) -> None:
        """Write a checkpoint with its reference, which ``ImplicitPRM.load`` and ``load_prm`` open.

        A step's reward there leaves out the end-of-sequence token, which belongs to no step.
        """
        self.prm.save(directory)

    def _rewards(self, rollouts: Sequence[Rollout], reference: Sequence[float]) -> torch.Tensor:
        """r [B] of each rollout, with gradient."""
        logprobs_n = self._actor.read(rollouts, called=self._learner.called).logprobs
        device = logprobs_n.device
        rows = [row for row, rollout in enumerate(rollouts) for _ in rollout.ids]
        sums = logprobs_n.new_zeros(len(rollouts)).index_add(0, torch.tensor(rows, device=device), logprobs_n)
        return self.config.beta * (sums - torch.tensor(reference, device=device))

    def _reference_logprobs(self, rollouts: Sequence[Rollout]) -> list[torch.Tensor]:
        """log π_ref [T] of every rollout; each is read once between two calls of :meth:`learn`."""
        missing = list(
            {_key(rollout): rollout for rollout in rollouts if _key(rollout) not in self._reference}.values()
        )
        if missing:
            with self._autocast():
                computed, _ = self.prm.reference.logprobs(list(zip(*_sequences(missing), strict=True)))
            self._reference |= {
                _key(item): logprobs for item, logprobs in zip(missing, computed, strict=True)
            }
        return [self._reference[_key(rollout)] for rollout in rollouts]

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.prm.policy.device.type, dtype=torch.bfloat16, enabled=self.execution.bf16)


def _key(rollout: Rollout) -> _Key:
    return rollout.prompt_ids, rollout.ids


def _sequences(rollouts: Sequence[Rollout]) -> tuple[list[tuple[int, ...]], list[int]]:
    """Whole sequences, and where their responses begin."""
    return [rollout.prompt_ids + rollout.ids for rollout in rollouts], [
        len(rollout.prompt_ids) for rollout in rollouts
    ]
