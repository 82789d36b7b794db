"""Does a judge look? Its scores with another problem's images, with blank ones, and without any.

The text stays the same. Scores that do not move although the images show something else were not read off
the images: the steps alone, or the wording, gave them away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal, get_args

import numpy as np

from surefoot.errors import RecordError, ScoreError, counted
from surefoot.evaluation.audits.cases import AuditedScorer, Case
from surefoot.evaluation.audits.perturbations import edit_stream
from surefoot.evaluation.measures import Measured
from surefoot.evaluation.report import Section
from surefoot.evaluation.verdict import Conclusion, measured
from surefoot.images import blank, is_kept
from surefoot.protocols import ProblemTrace
from surefoot.records import Attachment
from surefoot.stats.bootstrap import Bootstrap, FloatArray

ImageChange = Literal["asked again", "swapped", "blank", "removed"]
CHANGES: Final[tuple[ImageChange, ...]] = get_args(ImageChange)
_Change = Callable[[int, Attachment], Attachment | None]


def audit_images(
    audited: AuditedScorer,
    cases: Sequence[Case],
    folder: Path,
    *,
    tolerance: float = 0.05,
    draws: int = 1000,
    seed: int = 0,
) -> Measured:
    """Score each trace as it is, asked again, and after each change of its images.

    ``folder`` holds the images, as the records name them. Asked ``again``, scores move by chance. Of each
    change ``effects`` has the mean ``size`` by which a step's score moves and its ``excess`` over asking
    again, both over problems, and the ``traces`` with a score before and after. *Swapped* shows the images of
    a random other problem, *blank* grey ones of the same size.

    Raises ``ScoreError`` for stored scores, and if no trace has an image or scores to compare.
    """
    audited.require_live()
    used = [case for case in cases if _images(case)]
    if not used:
        raise ScoreError(f"none of {len(cases)} traces holds a kept image")
    original = audited.score([case.item for case in used])
    usage, moves = original.usage, dict[ImageChange, FloatArray]()
    for change in CHANGES:
        changed = [
            (row, new) for row, case in enumerate(used) if (new := _made(change, case, used, folder, seed))
        ]
        answers = audited.score([new for _, new in changed])
        usage += answers.usage
        moves[change] = np.full(len(used), math.nan)
        for (row, _), scores in zip(changed, answers.steps, strict=True):
            sizes = np.abs(scores - original.steps[row])
            finite = sizes[~np.isnan(sizes)]
            moves[change][row] = finite.mean() if len(finite) else math.nan
    bootstrap, problems = Bootstrap(draws=draws, seed=seed), [case.problem_id for case in used]
    effects = [
        Measured(
            change=change,
            size=bootstrap.mean(moves[change], problems),
            excess=bootstrap.mean(moves[change] - moves["asked again"], problems),
            traces=int((~np.isnan(moves[change])).sum()),
        )
        for change in CHANGES[1:]
    ]
    if not any(effect.traces for effect in effects):
        raise ScoreError(f"{audited.name}: none of {len(used)} traces with images has scores to compare")
    return Measured(
        scorer=audited.name,
        tolerance=tolerance,
        again=bootstrap.mean(moves["asked again"], problems),
        effects=effects,
        without_image=len(cases) - len(used),
        usage=usage,
    )


def _images(case: Case) -> list[Attachment]:
    return [each for message in case.item.trace.messages for each in message.attachments if is_kept(each)]


def _made(
    change: ImageChange, case: Case, cases: Sequence[Case], folder: Path, seed: int
) -> ProblemTrace | None:
    """The case after a change; ``None`` if no other problem has images, or one cannot be read."""
    trace, donors = case.item.trace, list[Attachment]()
    if change == "swapped":
        other_cases = [other for other in cases if other.problem_id != case.problem_id]
        if not other_cases:
            return None
        donors = _images(other_cases[int(edit_stream(seed, change, trace.id).integers(len(other_cases)))])
    changes: dict[ImageChange, _Change] = {
        "asked again": lambda _, image: image,
        # the text names the image as before
        "swapped": lambda number, image: _named(donors[number % len(donors)], image),
        "blank": lambda _, image: _named(blank(image, folder), image),
        "removed": lambda _, __: None,
    }
    number, messages = 0, []
    for message in trace.messages:
        attachments: list[Attachment] = []
        for each in message.attachments:
            try:
                new = changes[change](number, each) if is_kept(each) else each
            except RecordError:
                return None
            number += is_kept(each)
            attachments += [] if new is None else [new]
        messages.append(message.model_copy(update={"attachments": tuple(attachments)}))
    # a scorer may keep what it said of a trace by its id
    new_trace = trace.model_copy(update={"id": f"{trace.id} {change}", "messages": tuple(messages)})
    return ProblemTrace(problem=case.item.problem, trace=new_trace)


def _named(image: Attachment, like: Attachment) -> Attachment:
    return image.model_copy(update={"name": like.name or like.media_type or "no name", "at": like.at})


def images_section(audits: Sequence[Measured]) -> Section:
    """How far scores move if the images show something else."""
    return Section(
        title="Does it look",
        about="The same text with another problem's images, with blank ones and without any: scores must "
        "move more than they do when the judge is only asked again.",
        results={"look": audits},
        verdicts={audit.scorer: _looks(audit) for audit in audits},
        limits=[f"{counted(audits[0].without_image, 'trace')} without a kept image left out."]
        * (audits[0].without_image > 0),
    )


def _looks(audit: Measured) -> list[Conclusion]:
    """The larger excess of the two changes that leave an image in its place.

    That an image is missing can be told without looking at any.
    """
    effects = [effect for effect in audit.effects if effect.change in ("swapped", "blank") and effect.traces]
    if not effects:
        return []
    most = max(effects, key=lambda effect: effect.excess.value)
    text = f"is how much more the score of a step moves with {most.change} images than when asked again."
    smallest = audit.tolerance
    return [measured("looks", most.excess, text, most.traces, "traces", smallest=smallest)]
