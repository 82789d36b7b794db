"""``surefoot sample``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from pydantic import Field

from surefoot.cli import options as o
from surefoot.cli.settings import Command, Flag
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import Sampling
from surefoot.records import Problem, Trace


class Sample(Command):
    """Sample solutions of problems from a policy, cut them into steps and grade their answers.

    The output holds one trace per sample. A request that failed leaves a trace with an empty text and an
    `error`. If the command is stopped, the same command resumes.

    Example: `surefoot sample problems.jsonl --n 16 --policy lab --out traces.jsonl`
    """

    problems: Annotated[str, Flag(argument=True, transient=True)] = Field(
        description="File of problem records, or `-` for standard input."
    )
    out: o.Out = "-"
    n: Annotated[int, Flag(short="-n")] = Field(default=8, ge=1, description="Traces per problem.")
    segment: o.Segment = "line"
    seed: o.Seed = 0
    policy: o.PolicySettings = o.PolicySettings()
    prompt: PromptFormat = PromptFormat()
    sampling: Sampling = Sampling()
    grading: o.GradingSettings = o.GradingSettings()
    device: o.Device = "cpu"

    def run(self) -> None:
        """Sample in pieces."""
        from surefoot.cli.pieces import connections, in_pieces
        from surefoot.cli.runs import file_inputs, read_table
        from surefoot.policies.traces import sample_traces
        from surefoot.segment import segmenter

        policy = self.policy.open(chat=self.prompt.chat, device=self.device)
        count = 0
        with self.grading.open() as grader:

            async def work(piece: Sequence[Problem]) -> list[Trace]:
                nonlocal count
                traces = await sample_traces(
                    policy,
                    piece,
                    n=self.n,
                    seed=self.seed,
                    segmenter=segmenter(self.segment),
                    grader=grader,
                    prompt=self.prompt,
                    sampling=self.sampling,
                )
                flat = [trace for of_problem in traces for trace in of_problem]
                count += sum(trace.error is not None for trace in flat)
                return flat

            size = self.policy.piece(4 * max(1, self.policy.batch_size // self.n))
            written = in_pieces(
                self.out,
                Trace,
                read_table(self.problems, Problem),
                work,
                size=size,
                in_flight=self.policy.in_flight,
                during=connections(policy),
                failed=_failure,
                command="sample",
                config=self.resolved() | {"piece": size},
                inputs=file_inputs(problems=self.problems),
            )
        typer.echo(f"{written} traces written; {count} with an error", err=True)


def _failure(traces: Sequence[Trace]) -> str | None:
    """Why no request for these traces succeeded, if none did."""
    if any(trace.error is None or trace.text for trace in traces):
        return None
    return traces[-1].error
