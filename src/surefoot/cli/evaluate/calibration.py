"""``surefoot evaluate calibration``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from surefoot.cli import _options as o

if TYPE_CHECKING:
    from surefoot.evaluation.scorer_calibration import CalibrationAudit, MapKind
    from surefoot.protocols import LabelledTrace
    from surefoot.records import StepLabel
    from surefoot.stats.calibration import Binning


def calibration(
    sources: Annotated[
        list[str],
        typer.Argument(help="NAME=CHECKPOINT, or NAME=FILE of step scores, also of published ones."),
    ],
    problems: o.Problems,
    traces: o.Traces,
    labels: Annotated[
        str, typer.Option("--labels", help="File of true labels, or 'lab' for the exact checker of the lab.")
    ],
    out: Annotated[
        str, typer.Option("--out", "-o", help="Directory for calibration.json, calibration.html and scores.")
    ],
    fit: Annotated[
        list[str] | None,
        typer.Option("--fit", help="Map to fit: temperature, isotonic or none; both if not given."),
    ] = None,
    store: Annotated[
        bool,
        typer.Option("--store", help="Write calibration.json into each checkpoint; needs one --fit."),
    ] = False,
    after_error: Annotated[
        str,
        typer.Option(
            "--after-error", help="With --labels lab, steps after the first error: unlabelled, step or wrong."
        ),
    ] = "unlabelled",
    good_above: Annotated[
        float, typer.Option("--good-above", min=0, max=1, help="A value label above this is good.")
    ] = 0.0,
    neutral: Annotated[
        str, typer.Option("--neutral", help="What a correctness label of 0 is: good, bad or drop.")
    ] = "good",
    bins: Annotated[int, typer.Option("--bins", min=1, help="Bins of the scores.")] = 10,
    binning: Annotated[str, typer.Option("--binning", help="equal-mass or equal-width.")] = "equal-mass",
    device: o.Device = "cpu",
    draws: Annotated[int, typer.Option("--draws", min=1, help="Bootstrap draws for the intervals.")] = 1000,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the bootstrap.")] = 0,
) -> None:
    """Do step scores mean what they say? Reliability, ECE and Brier score, and what a fitted map changes.

    Overall and by the step's position, with 95 % intervals over problems. Maps are fitted on one half of the
    problems and judged, before and after, on the other. With `--store` the map is written beside the
    checkpoint, for `load_prm(path, calibrated=True)`. Tables are printed; DIR/calibration.json has every
    number and DIR/calibration.html the plots. Scores of checkpoints are kept in DIR/scores and used again.

    Example: `surefoot evaluate calibration prm=runs/prm --problems problems.jsonl --traces traces.jsonl
    --labels gold.jsonl --fit temperature --store --out calibration`
    """
    from surefoot.cli._shared import choice, labelled, read_all
    from surefoot.cli.evaluate._sources import named, open_all
    from surefoot.errors import CheckpointError
    from surefoot.evaluation.label_sets import label_set
    from surefoot.evaluation.scorer_calibration import MAP_KINDS, audit_calibration, write_calibration_report
    from surefoot.io import write_json
    from surefoot.labels import LabelRule
    from surefoot.records import Problem, Trace

    for kind in fit or []:
        choice("--fit", kind, *MAP_KINDS, "none")
    kinds = [kind for kind in dict.fromkeys(fit or MAP_KINDS) if kind != "none"]
    choice("--after-error", after_error, "unlabelled", "step", "wrong")
    choice("--neutral", neutral, "good", "bad", "drop")
    choice("--binning", binning, "equal-mass", "equal-width")
    files = named(sources)
    if store and len(kinds) != 1:
        raise CheckpointError("--store writes one map: say which with --fit temperature or --fit isotonic")
    if store and (stored := [name for name, path in files.items() if not Path(path).is_dir()]):
        raise CheckpointError(f"--store needs a checkpoint's directory; {stored[0]} is none")
    items = labelled(read_all(problems, Problem), read_all(traces, Trace), [])
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    reading = LabelRule(good_above=good_above, neutral=neutral)  # type: ignore[arg-type]
    facts = _labels(labels, after_error, items)
    solutions = [item.trace for item in items]
    audit = audit_calibration(
        open_all(files, items, folder, device=device),
        label_set("labels", facts, solutions, reading),
        solutions,
        fits=cast("list[MapKind]", kinds),
        bins=bins,
        binning=cast("Binning", binning),
        draws=draws,
        seed=seed,
    )
    inputs: dict[str, object] = {"sources": files, "problems": problems, "traces": traces, "labels": labels}
    inputs |= {"after_error": after_error, "good_above": good_above, "neutral": neutral}
    write_json(folder / "calibration.json", {"inputs": inputs, **audit.to_json()})
    write_calibration_report(audit, folder / "calibration.html")
    _print(audit)
    if store:
        _store(audit, files)


def _labels(labels: str, after_error: str, items: Sequence[LabelledTrace]) -> list[StepLabel]:
    import asyncio
    from typing import Literal

    from surefoot.cli._shared import read_all
    from surefoot.lab.world import ExactLabeller
    from surefoot.protocols import ProblemTrace
    from surefoot.records import StepLabel

    if labels != "lab":
        return read_all(labels, StepLabel)
    labeller = ExactLabeller(after_error=cast("Literal['unlabelled', 'step', 'wrong']", after_error))
    pairs = [ProblemTrace(problem=item.problem, trace=item.trace) for item in items]
    return [label for row in asyncio.run(labeller.label(pairs)) for label in row]


def _store(audit: CalibrationAudit, files: dict[str, str]) -> None:
    from surefoot.errors import CheckpointError
    from surefoot.models.kinds.calibrated import save_calibration

    for scorer in audit.scorers:
        if not scorer.fits:
            [reason] = scorer.unfitted.values()
            raise CheckpointError(f"{scorer.name}: nothing to store; {reason}")
        save_calibration(files[scorer.name], scorer.fits[0].fitted)
        typer.echo(f"{scorer.name}: calibration.json written to {files[scorer.name]}", err=True)


def _print(audit: CalibrationAudit) -> None:
    from surefoot.cli.evaluate._sources import show

    known = audit.labels["good"] + audit.labels["bad"]
    show(
        f"{audit.traces} traces of {audit.problems} problems; {known} of {audit.steps} steps labelled good "
        "or bad; 95 % intervals over problems",
        ("scorer", "steps", "ECE", "mean score less share good", "Brier", "Brier of a constant"),
        [
            [
                s.name,
                s.overall.calibration.steps,
                s.overall.ece,
                f"{s.overall.calibration.bias:+.3f}",
                s.overall.brier,
                s.overall.calibration.brier_constant,
            ]
            for s in audit.scorers
        ],
        spec=".3f",
    )
    show(
        f"Maps fitted on {audit.fit_problems} of {audit.problems} problems, judged on the others",
        ("scorer", "map", "ECE before", "after", "change", "Brier before", "after", "change"),
        [
            [
                s.name,
                fit.kind,
                fit.before.ece.value,
                fit.after.ece.value,
                f"{fit.ece_change:+.3f}",
                fit.before.brier.value,
                fit.after.brier.value,
                f"{fit.brier_change:+.3f}",
            ]
            for s in audit.scorers
            for fit in s.fits
        ],
        spec=".3f",
    )
    for scorer in audit.scorers:
        for kind, reason in scorer.unfitted.items():
            typer.echo(f"{scorer.name}: no {kind} map; {reason}", err=True)
    if audit.traces_without_record:
        typer.echo(f"{audit.traces_without_record} traces left out: no scorer has a record", err=True)
