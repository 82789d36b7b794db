"""``surefoot.json``: a checkpoint's kind, encoding and the meaning of its scores."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from multiprocessing import parent_process
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from surefoot.errors import CheckpointError
from surefoot.io.atomic import sync_tree, write_json
from surefoot.io.files import error_reason
from surefoot.io.runs import digest_of
from surefoot.models.encoding import Encoding
from surefoot.models.measured_text import MeasuredText
from surefoot.printable import printable
from surefoot.protocols import Segmenter, TraceChannel
from surefoot.records import FrozenModel, LabelKind
from surefoot.scores import Aggregator
from surefoot.segment.segmenters import BlankLine, Line
from surefoot.stats.reading import Reading

M = TypeVar("M", bound=BaseModel)

_WEIGHTS = (
    "model*.safetensors",
    "adapter_model.safetensors",
    "head.safetensors",
    "reference/model*.safetensors",
)
"""Weights in a checkpoint's directory; training state and feature caches are stored elsewhere in it."""

CARD = "surefoot.json"
CALIBRATION = "calibration.json"
"""Beside the card, where scores were calibrated (:mod:`surefoot.models.kinds.derived`)."""

RELEASE = "card.json"
"""Next to it, where ``surefoot card build`` wrote it."""
_announced: set[tuple[Path, str]] = set()

HEAD, IMPLICIT_SETTINGS, VERIFIER_FORMAT = "head.safetensors", "implicit.json", "verifier.json"
"""What a step classifier, an implicit and a generative checkpoint hold besides the card and the weights."""
PROBE_SETTINGS = "probe.json"
"""Where a probe reads, besides its head."""
TRAINING_PROBLEMS = "training-problems.txt"
"""Hashes of the texts of the problems that it was trained on, one per line."""

CLASSIFIER, IMPLICIT, GENERATIVE, PROBE = OWN = ("surefoot", "implicit", "generative", "probe")
"""Families of the checkpoints trained here."""

SERVER = "server"
"""Family of scores that come from a server, which does not state their meaning."""

Head = Literal["logit", "linear", "classes"]
"""logit: one output, score = its sigmoid; linear: one output that is the score itself, not bounded; classes:
three outputs (bad, neutral, good), score = chance of good, or of good or neutral."""


class Trust(FrozenModel):
    """How far a trained scorer can be trusted, on problems held out from its training."""

    problems: int
    steps: int
    auc: tuple[float, float, float]
    """Area under the ROC curve over steps, with its 95 % interval over problems."""
    rival: str
    """What has the largest area without reading: length, position, or one of
    :data:`surefoot.stats.RIVALS`."""
    rival_auc: float
    threshold: float
    """Steps that score below it are more likely bad."""
    choices: int = 0
    """Problems with several graded traces."""
    best_of_n: float | None = None
    """Share of these that best-of-N by the scorer solves."""
    majority: float | None = None
    """Share that majority voting solves."""
    lead: tuple[float, float, float] | None = None
    """The difference, with its 95 % interval over problems."""
    reading: Reading | None = Field(default=None, exclude_if=lambda value: value is None)
    """Whether it reads the steps: the comparison with the strongest rival."""

    def __str__(self) -> str:
        value, low, high = self.auc
        area = self.rival_auc
        beats = "more than" if low > area else "less than" if high < area else "not clearly more than"
        text = (
            f"on {self.problems} held-out problems its step AUC is {value:.2f} [{low:.2f}, {high:.2f}], "
            f"{beats} the {area:.2f} of {self.rival} alone"
        )
        text += f"; {self.reading}" if self.reading else ""
        if self.lead is None or self.best_of_n is None or self.majority is None:
            return f"{text}; whether it selects better than majority voting was not measured"
        better = "better" if self.lead[1] > 0 else "worse" if self.lead[2] < 0 else "not clearly better"
        return (
            f"{text}; best-of-N by it solves {self.best_of_n:.0%}, {better} than majority voting with "
            f"{self.majority:.0%}"
        )


class CheckpointCard(FrozenModel):
    """``surefoot.json``; for a published checkpoint, the same facts as its family knows them."""

    format: Literal[1] = 1
    family: str = "surefoot"
    """``surefoot`` for checkpoints trained here, else the published family's name."""
    kind: Literal["prm", "orm"]
    encoding: Encoding = Encoding()
    aggregation: Aggregator = "min"
    """How step scores become one number unless the caller says otherwise."""
    score_means: LabelKind | Literal["outcome"] = "value"
    label_source: str
    reads: tuple[TraceChannel, ...] = ("reasoning", "text", "calls", "observations")
    """Channels of a trace that it reads; ``surefoot rl`` and its like leave reasoning out unless asked."""
    base: str
    """Name of the trunk that training started from; ``owner/name@commit`` where it came from the hub."""
    frozen_trunk: bool = False
    separator: Literal["\n", "\n\n"] | None = Field(default=None, exclude_if=lambda value: value is None)
    """What stands between steps in the data of its training, where that is known: pasted solutions and
    searches are cut there."""
    head: Head = Field(default="logit", exclude_if=lambda value: value == "logit")
    neutral: Literal["good", "bad"] = Field(default="good", exclude_if=lambda value: value == "good")
    """Whether a ``classes`` head counts the chance of "neutral" to the score (Lightman et al., arXiv
    2305.20050, report both); no other head knows the class."""
    trust: Trust | None = Field(default=None, exclude_if=lambda value: value is None)
    """Measured on held-out problems, if there were any."""
    tested: MeasuredText | None = Field(default=None, exclude_if=lambda value: value is None)
    """The text that it was measured on."""
    weights: dict[str, str] = Field(default={}, exclude_if=lambda value: not value)
    """SHA-256 of each weight file by its path in the directory, as :func:`write_card` computed it; empty for
    checkpoints of earlier versions, which load unchecked."""

    @property
    def summary(self) -> str:
        """One line: where it detects wrong steps, where it was not tested, and its threshold's source."""
        if self.trust is None or self.tested is None:
            return "not tested: no labelled problems were held out of its training"
        _, low, _ = self.trust.auc
        reading = self.trust.reading
        detects = low > self.trust.rival_auc and reading is not None and reading.reads
        claim = "detects wrong steps" if detects else "is not shown to detect wrong steps"
        return (
            f"{claim} on {self.tested.data}, not tested on {self.tested.limits}; threshold "
            f"{self.trust.threshold:.3g} from {self.trust.problems} held-out problems"
        )

    @property
    def segmenter(self) -> Segmenter | None:
        """What cuts a text as the data of its training were cut; ``None`` = not known."""
        return {"\n": Line(), "\n\n": BlankLine(), None: None}[self.separator]


def announce(directory: Path, card: CheckpointCard) -> None:
    """Print a checkpoint's summary on standard error: its release card's, if ``card.json`` is there.

    Once per process, not in worker processes, and not while the checkpoint's own training run tests it.
    """
    in_training = (directory / "manifest.json").exists() and not (directory / "done").exists()
    if in_training or parent_process() is not None:
        return
    summary = card.summary
    with suppress(OSError, ValueError, KeyError, TypeError):
        summary = str(json.loads((directory / RELEASE).read_bytes())["summary"])[:2000]
    if (directory.resolve(), summary) not in _announced:
        _announced.add((directory.resolve(), summary))
        print(printable(f"{directory.name}: {summary}"), file=sys.stderr)


def mark_announced(directory: Path) -> None:
    """Say nothing more about a checkpoint that this process has just trained and described."""
    _announced.add((directory.resolve(), read_card(directory).summary))


def write_card(directory: Path, card: CheckpointCard) -> None:
    """Write ``surefoot.json`` last and atomically, with checksums of the weights.

    All other files are synced first: a directory that has the card is complete, also after a power cut.
    """
    sync_tree(directory)
    weights = sorted(path for pattern in _WEIGHTS for path in directory.glob(pattern))
    sums = {path.relative_to(directory).as_posix(): digest_of(path.name, path) for path in weights}
    write_json(directory / CARD, card.model_copy(update={"weights": sums}).model_dump())


def verified_card(directory: Path, *, family: str) -> CheckpointCard:
    """:func:`read_card`, once every weight file has the checksum that the card states for it.

    A missing file is reported by the loader, which knows whether another one replaces it. The returned card
    omits the checksums: it describes the model, not the files. Raises ``CheckpointError``
    naming a file that differs, e.g. because a bit flipped.
    """
    card = read_card(directory, family=family)
    for name, stated in card.weights.items():
        path = directory / name
        if path.is_file() and digest_of(name, path) != stated:
            raise CheckpointError(
                f"{path} is damaged: its checksum is not the one in {CARD}; fetch or save it again"
            )
    return card.model_copy(update={"weights": {}})


def read_card(directory: Path, *, family: str | None = None) -> CheckpointCard:
    """The card of a checkpoint. Raises ``CheckpointError`` if it is absent, broken or of another family."""
    missing = f"{directory} is not a surefoot checkpoint: {CARD} is missing"
    card = read_json(directory / CARD, CheckpointCard, missing)
    if family not in (None, card.family):
        raise CheckpointError(
            f"{directory / CARD}: family {card.family!r} is not {family!r}; load_prm without family= opens it"
        )
    return card


def read_json(path: Path, kind: type[M], missing: str = "") -> M:
    """A file of a checkpoint. Raises ``CheckpointError``, which says ``missing`` if it cannot be read."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise CheckpointError(missing or f"{path} cannot be read: {error}") from error
    except ValidationError as error:
        raise CheckpointError(f"{path}: {error_reason(error)}; fetch it again") from error
