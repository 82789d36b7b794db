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
            "--verifier", help="arithmetic, game24 or lab; may be repeated, the lowest verdict counts."
        ),
    ],
    out: o.Out = "-",
    value: Annotated[
        bool, typer.Option("--value", help="With game24 alone: label the value too (can 24 still be made).")
    ] = False,
) -> None:
    """Label steps by rule: equations that hold, legal moves in the Game of 24, the lab's exact checker.

    The labels are of kind correctness, with the verifier's reason as evidence. What a verifier cannot check
    has no value, and a reason.

    Example: `surefoot label verify traces.jsonl --problems problems.jsonl --verifier arithmetic -o l.jsonl`
    """
    from contextlib import AbstractContextManager, ExitStack

    from surefoot.cli._pieces import file_inputs
    from surefoot.cli._shared import pair, read_all
    from surefoot.cli.label._write import write_labels
    from surefoot.errors import LabelError
    from surefoot.labelling.game24 import Game24Labeller
    from surefoot.labelling.verifier import VerifierLabeller, open_verifier
    from surefoot.protocols import Labeller
    from surefoot.records import Problem, Trace

    if value and verifier != ["game24"]:
        raise LabelError("--value needs --verifier game24 and no other: the others know no value")
    items = pair(read_all(problems, Problem), read_all(traces, Trace))
    with ExitStack() as stack:
        verifiers = [open_verifier(name) for name in dict.fromkeys(verifier)]
        for opened in verifiers:
            if isinstance(opened, AbstractContextManager):
                stack.enter_context(opened)
        labeller: Labeller = Game24Labeller() if value else VerifierLabeller(verifiers=tuple(verifiers))
        write_labels(
            out,
            labeller,
            items,
            command="label verify",
            config={"verifier": verifier, "value": value},
            inputs=file_inputs(problems=problems, traces=traces),
            size=500,
        )
