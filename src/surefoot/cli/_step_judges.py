"""Who judges steps, by option: a reward model (``--prm``) or verifiers (``--verifier``, ``--gold``)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING

from surefoot.errors import RunError

if TYPE_CHECKING:
    from surefoot.protocols import Labeller, StepScorer


def by_steps(prm: str | None, verifier: Sequence[str] | None) -> bool:
    """Whether somebody is to judge steps. Raises ``RunError`` if both are."""
    if prm and verifier:
        raise RunError("--prm and --verifier both judge steps; give one of them")
    return bool(prm or verifier)


def step_scorer(
    stack: ExitStack,
    *,
    prm: str | None,
    family: str | None,
    verifier: Sequence[str] | None,
    device: str,
    calibrated: bool = False,
) -> StepScorer | None:
    """The one of the two that is given, open as long as ``stack``. Raises ``RunError`` if both are."""
    if not by_steps(prm, verifier):
        return None
    if verifier:
        from surefoot.models.kinds.label_scorer import LabelScorer

        return LabelScorer(verifiers(stack, verifier), name="+".join(verifier))
    from surefoot.models.loading import load_prm

    return load_prm(prm or "", family=family, calibrated=calibrated, device=device)


def verifiers(stack: ExitStack, names: Sequence[str]) -> Labeller:
    """The verifiers of these names as one labeller, open as long as ``stack``."""
    from surefoot.labelling.verifier import VerifierLabeller, open_verifier

    opened = [open_verifier(name) for name in dict.fromkeys(names)]
    for one in opened:
        if isinstance(one, AbstractContextManager):
            stack.enter_context(one)
    return VerifierLabeller(verifiers=tuple(opened))
