"""``surefoot train prm``: step classifiers from labels of any kind, or from pairs."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import TYPE_CHECKING, Annotated

import typer

from surefoot.cli import _options as o
from surefoot.cli.train._options import Balance, ClassifierOptions, Directory, InputOptions

if TYPE_CHECKING:
    from surefoot.cli.train._run import Material
    from surefoot.models.kinds.classifier import RewardModel
    from surefoot.protocols import LabelledTrace
    from surefoot.records import LabelKind, StepLabel


def prm(
    problems: o.Problems,
    out: Directory,
    reads: InputOptions,
    options: ClassifierOptions,
    traces: Annotated[str | None, typer.Option("--traces", help="File of trace records.")] = None,
    labels: Annotated[str | None, typer.Option("--labels", help="File of step labels.")] = None,
    pairs: Annotated[
        str | None, typer.Option("--pairs", help="File of step pairs, for --loss pairwise.")
    ] = None,
    loss: Annotated[str, typer.Option("--loss", help="bce, mse, classes or pairwise.")] = "bce",
    linear: Annotated[
        bool, typer.Option("--linear", help="With --loss mse: the output is the score, without a sigmoid.")
    ] = False,
    hard: Annotated[
        bool, typer.Option("--hard", help="Train on 1[value > 0] in place of the value.")
    ] = False,
    neutral: Annotated[
        str, typer.Option("--neutral", help="What a 0 rating becomes: good, bad or drop.")
    ] = "good",
    up_to_first_error: Annotated[
        bool, typer.Option("--up-to-first-error", help="No loss after the first bad step.")
    ] = False,
    balance: Balance = None,
    aggregation: Annotated[str, typer.Option("--aggregation", help="min, product, last or mean.")] = "min",
    segment: Annotated[
        str, typer.Option("--segment", help="How the prefixes of pairs are cut, where there is a marker.")
    ] = "line",
) -> None:
    """Train a process reward model: one score a step.

    The labels say what it learns: correctness, values, or advantages (then a score s means 2 s - 1).
    Start a killed command again and it goes on from its last checkpoint. Several processes:
    `accelerate launch -m surefoot train prm ...`

    Example: `surefoot train prm --problems p.jsonl --traces t.jsonl --labels l.jsonl --out prm`
    """
    from surefoot.cli._pieces import file_inputs
    from surefoot.cli._shared import checked_options, choice, labelled, read_all
    from surefoot.cli.train._run import of_traces, split, train_classifier
    from surefoot.errors import RunError
    from surefoot.records import Problem, StepLabel, Trace, content_id
    from surefoot.training.config import StepTargets, TrainingConfig
    from surefoot.training.examples import check_kinds

    choice("--loss", loss, "bce", "mse", "classes", "pairwise")
    if linear and loss == "classes":
        raise RunError("--linear is a head with one output; --loss classes has three")
    _check_files(loss, traces=traces, labels=labels, pairs=pairs)
    found = read_all(labels, StepLabel) if labels else []
    kinds = {label.kind for label in found}
    with checked_options():
        targets = StepTargets.model_validate(
            {
                "neutral": "class" if loss == "classes" else neutral,
                "hard": hard,
                "up_to_first_error": up_to_first_error,
            }
        )
        check_kinds(kinds, targets)
        card = options.card(
            reads,
            kind="prm",
            aggregation=aggregation,
            score_means=_meaning(kinds),
            label_source=_sources(found),
            head="classes" if loss == "classes" else "linear" if linear else "logit",
            neutral=neutral if loss == "classes" else "good",
        )
        config = options.config(TrainingConfig, loss=loss, balance=balance)
    items = labelled(read_all(problems, Problem), read_all(traces, Trace), found) if traces else []
    training, held_out = split(items, options.validation)
    train_classifier(
        "prm",
        out,
        base=reads.base,
        card=card,
        config=config,
        material=(
            _of_pairs(problems, pairs, segment, hard=hard, held_out=held_out)
            if pairs
            else of_traces(training, targets)
        ),
        held_out=(held_out, targets),
        settings={
            "targets": targets.model_dump(),
            "validation": options.validation,
            "items": content_id(*items),
        },
        inputs=file_inputs(problems=problems, traces=traces, labels=labels, pairs=pairs),
        device=options.device,
    )


def _check_files(loss: str, *, traces: str | None, labels: str | None, pairs: str | None) -> None:
    from surefoot.errors import RunError

    if (loss == "pairwise") != (pairs is not None):
        raise RunError("--loss pairwise and --pairs go together: one needs the other")
    if (traces is None) != (labels is None) or (pairs is None and traces is None):
        raise RunError("give --traces and --labels (or --pairs, with those two for --validation alone)")


def _meaning(kinds: Set[LabelKind]) -> LabelKind:
    """What the scores mean; mixed labels, which is said, count as correctness."""
    if len(kinds) > 1:
        typer.echo(f"labels of several kinds are mixed: {', '.join(sorted(kinds))}", err=True)
        return "correctness"
    return next(iter(kinds), "value")


def _sources(labels: list[StepLabel]) -> str:
    return ", ".join(sorted({label.source for label in labels})) or "pairs"


def _of_pairs(
    problems: str, pairs: str, segment: str, *, hard: bool, held_out: list[LabelledTrace]
) -> Callable[[RewardModel], Material]:
    """What builds the material from a file of pairs, without those of held-out problems."""

    def build(model: RewardModel) -> Material:
        from surefoot.cli._shared import read_all
        from surefoot.cli.train._run import Material
        from surefoot.records import Problem, StepPair
        from surefoot.segment import segmenter
        from surefoot.training.examples import build_pairs

        held = {item.problem.id for item in held_out}
        rows = [pair for pair in read_all(pairs, StepPair) if pair.problem_id not in held]
        data = build_pairs(
            model.tokenizer,
            model.card.encoding,
            read_all(problems, Problem),
            rows,
            segmenter=segmenter(segment),
            hard=hard,
        )
        return Material(items=data.examples, dropped=data.dropped, first=data.first)

    return build
