"""``surefoot label expert``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from surefoot.cli import _options as o

if TYPE_CHECKING:
    from surefoot.labelling.expert import StepMatch


def expert(
    traces: Annotated[str, typer.Argument(help="File of trace records with steps, or - for standard input.")],
    problems: o.Problems,
    expert: Annotated[
        str,
        typer.Option("--expert", help="File of the experts' traces with steps; several per problem can be."),
    ],
    out: o.Out = "-",
    match: Annotated[
        str,
        typer.Option(
            "--match", help="When a step is an expert's: exact text, numbers, tolerance of words, tool-call."
        ),
    ] = "exact",
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance",
            help="Relative difference of numbers (numbers 1e-6, tool-call 1e-9), or share of words that "
            "may differ (tolerance 0.2).",
        ),
    ] = None,
    disagreement: Annotated[
        str,
        typer.Option(
            "--disagreement", help="What the first step that no expert took becomes: unknown or wrong."
        ),
    ] = "unknown",
) -> None:
    """Label steps by agreement with an expert's step at the same point (imitation).

    Steps shared with an expert are +1; the first that no expert took is unknown, or -1 if you say so; those
    after it are unknown. Expert traces with a wrong outcome are not followed.

    Example: `surefoot label expert traces.jsonl --problems problems.jsonl --expert solutions.jsonl
    --match numbers --out labels.jsonl`
    """
    from surefoot.cli._pieces import file_inputs
    from surefoot.cli._shared import pair, read_all
    from surefoot.cli.label._write import write_labels
    from surefoot.errors import LabelError
    from surefoot.labelling.expert import ExpertLabeller, expert_traces
    from surefoot.records import Problem, Trace

    config = {key: value for key, value in locals().items() if isinstance(value, str | float | None)}
    if disagreement not in ("unknown", "wrong"):
        raise LabelError(f"--disagreement is {disagreement!r}; choose unknown or wrong")
    rule = _match(match, tolerance)
    experts, left_out = expert_traces(read_all(expert, Trace))
    for reason, count in left_out.items():
        typer.echo(f"{count} expert traces left out: {reason}", err=True)
    labeller = ExpertLabeller(
        experts=experts, match=rule, disagreement="wrong" if disagreement == "wrong" else "unknown"
    )
    write_labels(
        out,
        labeller,
        pair(read_all(problems, Problem), read_all(traces, Trace)),
        command="label expert",
        config=config,
        inputs=file_inputs(problems=problems, traces=traces, expert=expert),
    )


def _match(name: str, tolerance: float | None) -> StepMatch[Any]:
    """The rule called ``name``; without ``tolerance`` its own default holds."""
    from surefoot.errors import LabelError
    from surefoot.labelling.expert import ExactText, SameNumbers, SameToolCalls, SimilarText

    if name == "exact":
        if tolerance is not None:
            raise LabelError("--match exact takes no --tolerance; choose numbers, tolerance or tool-call")
        return ExactText()
    rules: dict[str, type[SameNumbers | SimilarText | SameToolCalls]] = {
        "numbers": SameNumbers,
        "tolerance": SimilarText,
        "tool-call": SameToolCalls,
    }
    if name not in rules:
        raise LabelError(f"--match is {name!r}; choose exact, {', '.join(rules)}")
    return rules[name]() if tolerance is None else rules[name](tolerance=tolerance)
