"""The published families, and which of them a checkpoint belongs to; a family's module is imported when it is
asked for."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from surefoot.errors import CheckpointError

if TYPE_CHECKING:
    from surefoot.models.families.checkpoint import Checkpoint


@dataclass(frozen=True)
class Family:
    """A published family: where it is implemented, and how its checkpoints are recognised."""

    source: str
    """Module in this package and class, ``module:Class``."""
    repositories: tuple[str, ...]
    """Names on the hub, ``owner/name``."""
    matches: Callable[[Checkpoint], bool]
    """Whether a checkpoint's files fit."""
    certain: bool = True
    """Whether files that fit show a reward model; a plain language model could be anything."""
    has_reference: bool = False
    """Whether scores compare the model with a second one."""
    vllm: bool = False
    """Whether vLLM can read the family's step scores."""

    def load(self) -> type[Any]:
        """Import the class: a ``PublishedModel``, ``ThinkPRM`` or ``ImplicitModel``."""
        module, name = self.source.split(":")
        loaded: type[Any] = getattr(import_module(f"surefoot.models.families.{module}"), name)
        return loaded


def _causal(model_type: str, token: str | None = None) -> Callable[[Checkpoint], bool]:
    """A plain language model of a type that has ``token``."""
    return lambda it: it.is_causal(model_type) and (token is None or it.token_id(token) is not None)


def _qwen_head(marker: bool) -> Callable[[Checkpoint], bool]:
    """Qwen's head, with or without its step marker in the vocabulary."""
    architecture = "Qwen2ForProcessRewardModel"
    return lambda it: architecture in it.architectures and (it.token_id("<extra_0>") is not None) == marker


def _head(architecture: str, weight: str) -> Callable[[Checkpoint], bool]:
    """An architecture by a pattern for its name, or a weight of its head."""
    return lambda it: bool(fnmatch.filter(it.architectures, architecture)) or weight in it.tensors


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "math-shepherd": Family(
            "step_models:MathShepherd",
            ("peiyi9979/math-shepherd-mistral-7b-prm",),
            _causal("mistral", "▁ки"),
            certain=False,
            vllm=True,
        ),
        "rlhflow": Family(
            "step_models:RLHFlow",
            ("RLHFlow/Llama3.1-8B-PRM-Mistral-Data", "RLHFlow/Llama3.1-8B-PRM-Deepseek-Data"),
            _causal("llama", "<|reserved_special_token_0|>"),
            certain=False,
            vllm=True,
        ),
        "skywork": Family(
            "step_models:Skywork",
            ("Skywork/Skywork-o1-Open-PRM-Qwen-2.5-1.5B", "Skywork/Skywork-o1-Open-PRM-Qwen-2.5-7B"),
            _head("Qwen2ForPrmModel", "v_head.summary.weight"),
        ),
        "qwen-prm": Family(
            "step_models:QwenPRM",
            ("Qwen/Qwen2.5-Math-PRM-7B", "Qwen/Qwen2.5-Math-PRM-72B", "Qwen/Qwen2.5-Math-7B-PRM800K"),
            _qwen_head(marker=True),
            vllm=True,
        ),
        "pure": Family(
            "step_models:Pure",
            ("jinachris/PURE-PRM-7B", "jinachris/Qwen2.5-Math-7B-PRM800K"),
            _qwen_head(marker=False),
            vllm=True,
        ),
        "reasoneval": Family(
            "step_models:ReasonEval",
            ("GAIR/ReasonEval-7B", "GAIR/ReasonEval-34B"),
            _head("ReasonEval*", "score_head.weight"),
        ),
        "trl": Family(
            "step_models:TokenClassifier",
            ("trl-lib/Qwen2-0.5B-Reward-Math-Sheperd",),
            lambda it: bool(fnmatch.filter(it.architectures, "*ForTokenClassification")) and it.labels == 2,
        ),
        "eurus": Family(
            "causal:ImplicitModel",
            ("PRIME-RL/EurusPRM-Stage1", "PRIME-RL/EurusPRM-Stage2"),
            _causal("qwen2"),
            certain=False,
            has_reference=True,
        ),
        "visualprm": Family(
            "visualprm:VisualPRM",
            ("OpenGVLab/VisualPRM-8B", "OpenGVLab/VisualPRM-8B-v1_1"),
            lambda it: any(name.startswith("InternVL") for name in it.architectures),
            certain=False,
        ),
        # it closes thoughts, as DeepSeek-R1-Distill-Qwen does, which it is trained from
        "thinkprm": Family(
            "causal:ThinkPRM",
            ("launch/ThinkPRM-1.5B", "launch/ThinkPRM-7B", "launch/ThinkPRM-14B"),
            _causal("qwen2", "</think>"),
            certain=False,
        ),
    }
)
"""By name."""


def find_family(checkpoint: Checkpoint, *, name: str) -> str:
    """The family of the repository ``name``, else the one that the checkpoint's files show.

    A plain language model shows no family: nothing in its files says that it is a reward model. Raises
    ``CheckpointError`` if none or several come into question, or if name and files disagree.
    """
    fitting = [family for family, row in FAMILIES.items() if row.matches(checkpoint)]
    by_files = [family for family in fitting if FAMILIES[family].certain]
    named = family_named(name, checkpoint.directory)
    if named and (named in by_files or not by_files):
        return named
    if len(by_files) == 1 and not named:
        return by_files[0]
    if named or by_files:
        both = quoted([*([named] if named else []), *by_files])
        raise CheckpointError(f"{name}: its name and files speak for {both}; say which with family=")
    if fitting:
        raise CheckpointError(
            f"{name} is a plain language model that could be {quoted(fitting)}, or no reward model "
            "at all; say which with family="
        )
    what = ", ".join(checkpoint.architectures) or "no architecture"
    raise CheckpointError(
        f"{name} ({what}) is of no known family; say which with family=: {quoted(FAMILIES)}"
    )


def quoted(names: Iterable[str]) -> str:
    """A list of families, for an error."""
    return ", ".join(map(repr, names))


def family_named(name: str, directory: Path = Path()) -> str | None:
    """The family by ``owner/name`` (asked for, or of the hub's cache that either lies in), else by the last
    part of the name or the directory's name if it is unique."""
    parts = (*Path(name).parts, *directory.parts)
    cached = [part.split("--", 1)[1].replace("--", "/") for part in parts if part.startswith("models--")]
    full = {"/".join(Path(name).parts[-2:]).lower(), *(repository.lower() for repository in cached)}
    last = {Path(name).name.lower(), directory.name.lower()}
    repositories = [(at.lower(), family) for family, row in FAMILIES.items() for at in row.repositories]
    exact = {family for repository, family in repositories if repository in full}
    loose = {family for repository, family in repositories if repository.split("/")[1] in last}
    return next((families.pop() for families in (exact, loose) if len(families) == 1), None)
