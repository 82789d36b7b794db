"""The record of a release card. Its JSON schema is ``ReleaseCard.model_json_schema()``.

Everything but ``about`` and the paths in ``runs`` and ``scope`` is computed from the runs, so a card can be
built again and compared (:func:`surefoot.cards.check_card`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal, get_args

from pydantic import Field, ValidationError

from surefoot.errors import RunError
from surefoot.evaluation.report import Tested
from surefoot.io.files import error_reason
from surefoot.records import FrozenModel
from surefoot.stats.intervals import Interval

ROLES: Final = (
    *("base model", "policy", "outcome reward model", "process reward model"),
    *("automated judge", "human label source", "tool scaffold", "deployment monitor"),
)
TESTS: Final[tuple[Tested, ...]] = get_args(Tested)

Verdict = Literal["yes", "no", "not decided", "measured"]


class EvidenceFile(FrozenModel):
    """A file that a figure is computed from."""

    path: str
    sha256: str


class CardClaim(FrozenModel):
    """One figure: a named function over files, its value, and the sentence that states it."""

    id: str
    run: str
    """Path of the run's record."""
    tests: tuple[str, ...] = ()
    figure: str
    """Name in :data:`surefoot.cards.figures.FIGURES`."""
    arguments: dict[str, str] = Field(default={})
    evidence: tuple[EvidenceFile, ...]
    value: float | None
    low: float | None = None
    high: float | None = None
    units: int = 0
    """Problems, traces or records behind the value."""
    verdict: Verdict = "measured"
    """Whether the effect that the sentence names was shown (:func:`surefoot.stats.intervals.decide`)."""
    text: str

    @property
    def estimate(self) -> Interval:
        """Value and interval; of zero width without one."""
        value = float("nan") if self.value is None else self.value
        low, high = (value if end is None else end for end in (self.low, self.high))
        return Interval(value=value, low=low, high=high)


class CardRun(FrozenModel):
    """A run on the card."""

    path: str
    """Its record (``manifest.json``, or ``FILE.manifest.json``)."""
    command: str
    version: str
    sha256: str
    """Of the record, which has the hashes of inputs and outputs."""


class Role(FrozenModel):
    """One of :data:`ROLES`, and the models or people in it; ``not used`` without any."""

    name: str
    filled_by: tuple[str, ...] = ("not used",)
    base: tuple[str, ...] = ()
    """Base models of those that fill it."""
    shares_base_with: tuple[str, ...] = ()
    """Other roles of the same base model: their errors may agree."""


class CardModel(FrozenModel):
    """A checkpoint on the card."""

    path: str
    sha256: dict[str, str]
    facts: dict[str, Any] = Field(default={})
    """Its ``surefoot.json`` (:class:`surefoot.models.CheckpointCard`), without the list of words."""


class CardSource(FrozenModel):
    """Data or a model that no command here has made."""

    name: str
    licence: str


class About(FrozenModel):
    """What only the author can say."""

    name: str
    intended_use: str = "not stated"
    not_for: str = "not stated"
    licence: str = "not stated"
    language: str = "en"


class ReleaseCard(FrozenModel):
    """The card: ``card.json``."""

    format: Literal[1] = 1
    about: About
    summary: str
    process: tuple[str, ...]
    """What process was supervised."""
    labels: tuple[str, ...]
    """How the labels were produced, with cost and agreement."""
    tested: tuple[str, ...]
    """Where the method was tested: the sentences of all claims, whichever way they went."""
    not_tested: tuple[str, ...]
    failures: tuple[str, ...]
    """What failed or could not be decided, and the limits that the runs state."""
    roles: tuple[Role, ...]
    models: tuple[CardModel, ...]
    claims: tuple[CardClaim, ...]
    runs: tuple[CardRun, ...]
    scope: str
    """Folder whose evaluations and audits of these models must all be on the card."""
    sources: tuple[CardSource, ...]
    versions: dict[str, str]


def read_release(path: Path) -> ReleaseCard:
    """Read ``card.json``. Raises ``RunError`` if the file is not a card."""
    try:
        return ReleaseCard.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise RunError(f"{path}: {error_reason(error)}; build the card again") from error
