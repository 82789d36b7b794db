"""Opening reward models: checkpoints trained here by their card, published ones by name or files, servers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from surefoot.errors import CheckpointError
from surefoot.extras import need
from surefoot.io.sources import checkpoint_directory, is_hub_name, reading_checkpoint, split_revision
from surefoot.lab.checkpoints import ORM, PRM
from surefoot.models.card import (
    CALIBRATION,
    CARD,
    CLASSIFIER,
    HEAD,
    IMPLICIT,
    IMPLICIT_SETTINGS,
    OWN,
    PROBE,
    PROBE_SETTINGS,
    TRAINING_PROBLEMS,
    VERIFIER_FORMAT,
    announce,
    read_card,
)
from surefoot.models.families.registry import FAMILIES, find_family, quoted
from surefoot.models.kinds.derived import CalibratedScorer, Ensemble, load_calibration
from surefoot.models.lora import base_of
from surefoot.models.scorer import CheckpointScorer, Scorer
from surefoot.policies.devices import LOADING, Loading

IDENTIFYING = (CARD, HEAD, IMPLICIT_SETTINGS, PROBE_SETTINGS, VERIFIER_FORMAT, "training.json", CALIBRATION)
"""Files of any kind that tell one checkpoint from another."""

_FOR = {
    "reference": "implicit rewards",
    "base": "adapters",
    "chains": "generative verifiers",
    "tokenizer": "models behind a server",
    "windows": "models that score each step at its own state",
}
"""What has the options that not every kind has."""


def load_prm(
    name: str | Path | Sequence[str | Path],
    *,
    family: str | None = None,
    loading: Loading = LOADING,
    reference: str | Path | None = None,
    base: str | Path | None = None,
    chains: int = 1,
    calibrated: bool = False,
    tokenizer: str | Path | None = None,
    windows: bool | None = None,
    images: str | Path | None = None,
) -> CheckpointScorer:
    """Load a reward model; ``load_prm(name).score(problem, solutions)`` scores.

    ``name`` is ``lab`` (:data:`surefoot.lab.PRM`, which reads texts of the lab alone), a directory, a name
    on the hub (``owner/name@revision``), or the address of a server (``http://host:8000``): the gateway of
    this package, or vLLM with a published model (``http://host:8000#qwen-prm`` names its family, as
    ``family`` does; ``tokenizer`` is its tokenizer's directory or name, where the server names none that is
    here), or, with ``family="generative"``, an OpenAI-compatible server of a model that writes critiques
    (:func:`surefoot.models.remote.opening.open_server`). Several names give the mean of their scores
    (:class:`surefoot.models.Ensemble`).

    A checkpoint trained here, of any kind (step classifier or outcome model, implicit, generative), is known
    by its ``surefoot.json``, a published one by its repository's name or its files, unless ``family`` names
    it. ``loading`` has device, type of weights, attention and the tokens of a forward pass. ``reference`` is
    the second model of an implicit reward, ``base`` the model that an adapter is for, each where it is not
    the one that the checkpoint names. ``chains`` critiques of a generative verifier are averaged. Code that
    comes with a checkpoint is never run. ``windows`` reads traces that are longer than the context in several
    windows (:class:`surefoot.models.Scorer`), or does not, whatever the checkpoint was trained with.
    ``images`` is the folder of the records' file, to which the paths of images are relative; only models that
    read images look there.

    Scores are the model's own unless ``calibrated``: then they go through the map in ``calibration.json``
    (:func:`surefoot.models.fit_calibration`), which has to be there. A threshold that was chosen on one is
    none for the other.

    The summary of a checkpoint trained here, or of its release card, is printed once on standard error; a
    warning is logged for text that differs from its test data.

    Raises ``CheckpointError`` if the checkpoint does not exist, it lacks files or weights, no family fits, an
    option is given that its kind does not have, or a server does not answer or is of no known kind.
    """
    options: _Options = {
        "reference": reference, "base": base, "chains": chains, "tokenizer": tokenizer, "windows": windows,
        "images": None if images is None else Path(images),
    }  # fmt: skip
    names = [name] if isinstance(name, str | Path) else list(name)
    scorers = [_open(path, family, loading, options, calibrated) for path in names]
    if len(scorers) == 1:
        return scorers[0]
    try:
        return Ensemble(scorers)
    except ValueError as error:
        raise CheckpointError(f"no ensemble of {', '.join(map(str, names)) or 'nothing'}: {error}") from error


_Options = dict[str, Any]
"""Options of :func:`load_prm` that not every kind has, by name."""


def _refuse(options: _Options, *known: str, of: str) -> None:
    """Raise ``CheckpointError`` if an option is set that a checkpoint ``of`` a kind does not know."""
    for name, value in options.items():
        if name in _FOR and name not in known and (value is True or value not in (None, False, 1)):
            raise CheckpointError(f"{name}={value!r} is for {_FOR[name]}; this is {of}")


def training_problems(name: str | Path) -> frozenset[str] | None:
    """``content_id`` of the text of each problem that a reward model was trained on; ``None`` if it does not
    say."""
    if is_server(name) or not (path := locate(name) / TRAINING_PROBLEMS).is_file():
        return None
    with reading_checkpoint(f"{path} cannot be read"):
        return frozenset(path.read_text(encoding="utf-8").split())


def is_server(name: str | Path) -> bool:
    """Whether ``name`` is the address of a server."""
    return str(name).startswith(("http://", "https://"))


def locate(path: str | Path) -> Path:
    """Directory of a checkpoint, the shipped PRM for ``lab``; a name on the hub is fetched.

    Raises ``CheckpointError`` if the hub has none of that name or cannot be reached.
    """
    if str(path) == "lab":
        return PRM
    return checkpoint_directory(path, safetensors=False) if is_hub_name(path) else Path(path)


def is_own(directory: Path) -> bool:
    """Whether the directory holds a checkpoint trained here, or nothing that another could have written."""
    return (directory / CARD).is_file() or not (directory / "config.json").is_file()


def identifying_files(path: str | Path | Sequence[str | Path]) -> dict[str, Path]:
    """Files that tell this checkpoint, or these, from another; none for a server.

    Of one trained here small files are enough, for they hold the losses of its training; a published one is
    identified by its weights.
    """
    if not isinstance(path, str | Path):
        return {
            f"{n}/{file}": at
            for n, member in enumerate(path)
            for file, at in identifying_files(member).items()
        }
    if is_server(path):
        return {}
    directory = locate(path)
    if directory.is_file():  # a policy as one GGUF file
        return {directory.name: directory}
    if is_own(directory):
        names = set(IDENTIFYING)
    else:
        names = {"config.json", "tokenizer_config.json", CALIBRATION}
        names |= {file.name for ending in ("safetensors", "bin") for file in directory.glob(f"*.{ending}")}
    return {name: directory / name for name in sorted(names) if (directory / name).is_file()}


def _open(
    name: str | Path, family: str | None, loading: Loading, options: _Options, calibrated: bool
) -> CheckpointScorer:
    if is_server(name):
        _refuse(options, "tokenizer", "chains", of=f"a server ({name})")
        if calibrated:
            raise CheckpointError(
                f"{name}: scores of a server cannot be calibrated here; calibrate its model"
            )
        from surefoot.models.remote.opening import open_server

        return open_server(str(name), family=family, tokenizer=options["tokenizer"], chains=options["chains"])
    if re.fullmatch(r"[\w.-]+:\d+(/.*)?", str(name)) and not Path(name).exists():
        raise CheckpointError(f"{name}: an address begins with http:// or https://; write http://{name}")
    directory = locate(name)
    need("torch", "a reward model in this process")
    if family in OWN or (family is None and is_own(directory)):
        scorer = _own(directory, Path(name).name, family, loading, options)
    else:
        scorer = _published(directory, str(name), family, loading, options)
    if type(scorer) is Scorer:
        scorer.windows = scorer.windows if options["windows"] is None else options["windows"]
    return CalibratedScorer(scorer, load_calibration(directory)) if calibrated else scorer


def _published(
    directory: Path, name: str, family: str | None, loading: Loading, options: _Options
) -> CheckpointScorer:
    from surefoot.models.families.checkpoint import Checkpoint

    checkpoint = Checkpoint(directory, loading=loading, reference=options["reference"])
    if family not in (None, *FAMILIES):
        raise CheckpointError(f"family={family!r} is not known; choose {quoted([*FAMILIES, *OWN])}")
    family = family or find_family(checkpoint, name=split_revision(name)[0])
    accepted = "reference" if FAMILIES[family].has_reference else "windows"
    accepted = {"thinkprm": "chains", "visualprm": "images"}.get(family, accepted)
    _refuse(options, accepted, of=f"of family {family!r}")
    settings = {"name": Path(name).name, "batch_tokens": loading.batch_tokens}
    settings |= {accepted: options[accepted]} if accepted in ("chains", "images") else {}
    scorer: CheckpointScorer = FAMILIES[family].load().load(checkpoint).scorer(**settings)
    return scorer


def _own(
    directory: Path, name: str, family: str | None, loading: Loading, options: _Options
) -> CheckpointScorer:
    card = read_card(directory, family=family)
    if card.family not in OWN:
        raise CheckpointError(
            f"{directory / CARD}: family {card.family!r} is none that is trained here: {quoted(OWN)}"
        )
    if base_of(directory) is None:
        _refuse({"base": options["base"]}, of=f"whole ({directory})")
    if directory not in (PRM, ORM):  # docs/reference/lab.md says how they were tested
        announce(directory, card)
    base = options["base"]
    if card.family == CLASSIFIER:
        _refuse(options, "base", "windows", of="a step classifier")
        from surefoot.models.kinds.classifier import RewardModel

        model = RewardModel.load(directory, base=base, loading=loading)
        return Scorer(model, name=name, batch_tokens=loading.batch_tokens)
    if card.family == PROBE:
        _refuse(options, "base", of="a probe")
        from surefoot.models.kinds.classifier import LinearProbe, ProbeScorer

        probe = LinearProbe.load(directory, base=base, loading=loading)
        return ProbeScorer(probe, name=name, batch_tokens=loading.batch_tokens)
    if card.family == IMPLICIT:
        _refuse(options, "base", "reference", of="an implicit reward model")
        from surefoot.models.kinds.implicit import ImplicitPRM

        implicit = ImplicitPRM.load(directory, reference=options["reference"], loading=loading)
        implicit.name = name
        return implicit
    _refuse(options, "base", "chains", of="a generative verifier")
    from surefoot.models.kinds.generative import load_verifier

    return load_verifier(directory, base=base, loading=loading, chains=options["chains"])
