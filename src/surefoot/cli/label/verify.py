"""``surefoot label verify``: labels from deterministic verifiers."""

from __future__ import annotations

from typing import Annotated

import typer

from surefoot.cli import _options as o


def verify(
    traces: Annotated[str, typer.Argument(help="File of trace records with steps, or - for standard input.")],
    problems: o.Problems,
    verifier: Annotated[
        list[str],
        typer.Option(
            "--verifier", help="arithmetic, lab or module:Class; may be repeated, the lowest verdict counts."
        ),
    ],
    out: o.Out = "-",
) -> None:
    """Label steps by rule: equations that hold, the lab's exact checker, or a verifier of your own.

    The labels are of kind correctness, with the verifier's reason as evidence. What a verifier cannot check
    has no value, and a reason.

    Example: `surefoot label verify traces.jsonl --problems problems.jsonl --verifier arithmetic -o l.jsonl`
    """
    from contextlib import AbstractContextManager, ExitStack

    from surefoot.cli._pieces import file_inputs
    from surefoot.cli._shared import pair, read_all
    from surefoot.cli.label._write import write_labels
    from surefoot.labelling.verifier import VerifierLabeller, open_verifier
    from surefoot.records import Problem, Trace

    items = pair(read_all(problems, Problem), read_all(traces, Trace))
    with ExitStack() as stack:
        verifiers = [open_verifier(name) for name in dict.fromkeys(verifier)]
        for opened in verifiers:
            if isinstance(opened, AbstractContextManager):
                stack.enter_context(opened)
        write_labels(
            out,
            VerifierLabeller(verifiers=tuple(verifiers)),
            items,
            command="label verify",
            config={"verifier": verifier},
            inputs=file_inputs(problems=problems, traces=traces),
            size=500,
        )
