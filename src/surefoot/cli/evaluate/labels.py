"""``surefoot evaluate labels``: measure labels against the truth and each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from surefoot.cli import _options as o

if TYPE_CHECKING:
    from surefoot.evaluation.label_audit import LabelAudit
    from surefoot.labels import LabelRule
    from surefoot.records import StepLabel, Trace


def labels(
    sources: Annotated[
        list[str],
        typer.Argument(help="Files of labels, as NAME=FILE or FILE; without NAME the file's stem is it."),
    ],
    traces: o.Traces,
    out: Annotated[str, typer.Option("--out", "-o", help="Directory for labels.json and labels.html.")],
    problems: Annotated[
        str | None, typer.Option("--problems", help="File of problem records; needed for --truth lab.")
    ] = None,
    truth: Annotated[
        str | None,
        typer.Option("--truth", help="File of true labels, or 'lab' for the exact checker of the lab."),
    ] = None,
    after_error: Annotated[
        str,
        typer.Option(
            "--after-error", help="With --truth lab, steps after the first error: unlabelled, step or wrong."
        ),
    ] = "unlabelled",
    good_above: Annotated[
        list[str] | None,
        typer.Option(
            "--good-above",
            help="A value label above this is good; NUMBER for all, NAME=NUMBER for one. May be repeated.",
        ),
    ] = None,
    neutral: Annotated[
        str, typer.Option("--neutral", help="What a correctness label of 0 is: good, bad or drop.")
    ] = "good",
    by_rater: Annotated[
        bool, typer.Option("--by-rater", help="Take each rater of a file for a source of its own.")
    ] = False,
    bins: Annotated[int, typer.Option("--bins", min=1, help="Bins of the calibration.")] = 10,
    binning: Annotated[
        str, typer.Option("--binning", help="Bins of the calibration: equal-mass or equal-width.")
    ] = "equal-mass",
    draws: Annotated[int, typer.Option("--draws", min=1, help="Bootstrap draws for the intervals.")] = 1000,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the bootstrap.")] = 0,
) -> None:
    """Audit labels: errors found, first error, calibration, agreement between sources, cost.

    Without `--truth` only counts, cost and agreement are reported. The tables are printed; DIR/labels.json
    has every number and DIR/labels.html the plots.

    Example: `surefoot evaluate labels mc=mc.jsonl judge=judge.jsonl --traces traces.jsonl --truth gold.jsonl
    --out audit`
    """
    from pathlib import Path

    from surefoot.cli._shared import read_all
    from surefoot.cli.evaluate._sources import named
    from surefoot.evaluation.label_audit import TRUTH, audit_labels
    from surefoot.evaluation.label_report import write_label_report
    from surefoot.io import write_json
    from surefoot.records import StepLabel, Trace

    _choose("--neutral", neutral, "good", "bad", "drop")
    _choose("--binning", binning, "equal-mass", "equal-width")
    files = named(sources)
    every = _readings(good_above or [], neutral)
    solutions = read_all(traces, Trace)
    found = {name: read_all(path, StepLabel) for name, path in files.items()}
    if by_rater:
        found = _split(found)
    audit = audit_labels(
        solutions,
        found,
        truth=_truth(truth, after_error, problems, solutions),
        reading=every.pop("", None),
        readings=every,
        bins=bins,
        binning=cast("Literal['equal-mass', 'equal-width']", binning),
        draws=draws,
        seed=seed,
    )
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    inputs = {"traces": traces, "problems": problems, **files, TRUTH: truth}
    write_json(folder / "labels.json", {"inputs": inputs, **audit.to_json()})
    write_label_report(audit, folder / "labels.html")
    _print(audit)


def _readings(good_above: list[str], neutral: str) -> dict[str, LabelRule]:
    """Readings by name; the one for all others is under the empty name."""
    from surefoot.errors import LabelError
    from surefoot.labels import LabelRule

    cuts = {"": 0.0}
    for text in good_above:
        name, _, number = text.rpartition("=")
        try:
            cuts[name] = float(number)
        except ValueError as error:
            raise LabelError(f"--good-above {text}: give a number, or NAME=NUMBER") from error
        if not 0 <= cuts[name] < 1:
            raise LabelError(
                f"--good-above {text}: values lie in [0, 1], so give a number of 0 or more below 1"
            )
    meaning = cast("Literal['good', 'bad', 'drop']", neutral)
    return {name: LabelRule(good_above=cut, neutral=meaning) for name, cut in cuts.items()}


def _split(found: dict[str, list[StepLabel]]) -> dict[str, list[StepLabel]]:
    from surefoot.evaluation.label_sets import by_rater

    return {rater: rows for name, labels in found.items() for rater, rows in by_rater(name, labels).items()}


def _truth(
    truth: str | None, after_error: str, problems: str | None, traces: list[Trace]
) -> list[StepLabel] | None:
    """Reference labels from a file or from the lab's exact checker."""
    import asyncio

    from surefoot.cli._shared import pair, read_all
    from surefoot.errors import LabelError
    from surefoot.lab.world import ExactLabeller
    from surefoot.records import Problem, StepLabel

    if truth != "lab":
        return read_all(truth, StepLabel) if truth else None
    _choose("--after-error", after_error, "unlabelled", "step", "wrong")
    if problems is None:
        raise LabelError("--truth lab needs --problems: the checker reads each trace against its problem")
    labeller = ExactLabeller(after_error=cast("Literal['unlabelled', 'step', 'wrong']", after_error))
    items = pair(read_all(problems, Problem), traces)
    return [label for row in asyncio.run(labeller.label(items)) for label in row]


def _choose(option: str, value: str, *choices: str) -> None:
    from surefoot.errors import LabelError

    if value not in choices:
        raise LabelError(f"{option} is {value!r}; choose {', '.join(choices[:-1])} or {choices[-1]}")


def _print(audit: LabelAudit) -> None:
    """The main numbers as tables on standard output; shares in percent."""
    from surefoot.cli.evaluate._sources import show

    left_out = f", {audit.traces_without_steps} traces without steps left out" * bool(
        audit.traces_without_steps
    )
    show(
        f"{audit.traces} traces of {audit.problems} problems, {audit.steps} steps{left_out}",
        (
            "source",
            "labels",
            "used",
            "unread",
            "foreign",
            "policy tokens per label",
            "verifier tokens per label",
        ),
        [
            [
                s.name,
                s.counts.labels,
                s.counts.used,
                sum(s.counts.unread.values()),
                s.counts.unknown_traces + s.counts.unknown_steps,
                s.cost.policy_tokens_per_label,
                s.cost.verifier_tokens_per_label,
            ]
            for s in (*audit.sources, *([audit.truth] if audit.truth else []))
        ],
        spec=".1f",
    )
    judged = [(s.name, s.against_truth) for s in audit.sources if s.against_truth]
    if judged:
        show(
            "Bad steps and first errors found, with 95 % interval over problems",
            ("source", "precision", "recall", "F1", "first error"),
            [[name, t.precision, t.recall, t.f1, t.first_error.accuracy] for name, t in judged],
        )
    if audit.pairs:
        show(
            "Agreement on steps",
            ("sources", "steps", "raw", "kappa", "alpha", "AC1"),
            [
                [
                    f"{p.first}, {p.second}",
                    p.steps.units,
                    p.steps.raw,
                    p.steps.kappa,
                    p.steps.alpha,
                    p.steps.ac1,
                ]
                for p in audit.pairs
            ],
            spec=".3f",
        )
