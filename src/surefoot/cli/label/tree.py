"""``surefoot label tree``: OmegaPRM's tree search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from surefoot.cli import _options as o
from surefoot.records import Record, StepLabel, StepPair, Trace, Usage

if TYPE_CHECKING:
    from pathlib import Path

    from surefoot.labelling.omegaprm import OmegaPRMLabeller
    from surefoot.labelling.omegaprm_tree import ProblemTree


class GrownTree(Record):
    """What the search of one problem yields: a line of ``trees.jsonl``."""

    problem_id: str
    traces: tuple[Trace, ...]
    labels: tuple[StepLabel, ...]
    pairs: tuple[StepPair, ...]
    selections: int
    reason: str | None
    """Why nothing was searched."""
    usage: Usage


def tree(
    problems: Annotated[
        str, typer.Argument(help="File of problem records with 'answer', or - for standard input.")
    ],
    out: Annotated[str, typer.Option("--out", "-o", help="Directory for traces, labels and pairs.")],
    traces: Annotated[
        str | None, typer.Option("--traces", help="File of traces that seed the trees (same policy).")
    ] = None,
    estimate: Annotated[
        str, typer.Option("--estimate", help="soft = share of right rollouts, hard = is any right.")
    ] = "soft",
    rollouts: Annotated[int, typer.Option("--rollouts", "-k", min=1, help="Completions per prefix.")] = 8,
    search_limit: Annotated[
        int, typer.Option("--search-limit", min=0, help="Wrong solutions searched per problem.")
    ] = 100,
    alpha: Annotated[float, typer.Option("--alpha", help="Weight of the value in Q.")] = 0.5,
    beta: Annotated[float, typer.Option("--beta", help="Weight of the length in Q.")] = 0.9,
    length: Annotated[int, typer.Option("--length", min=1, help="L in Q, in tokens.")] = 500,
    c_puct: Annotated[float, typer.Option("--c-puct", min=0, help="Weight of exploration.")] = 0.125,
    pieces: Annotated[
        int,
        typer.Option("--pieces", min=1, help="Longer solutions are probed at the ends of this many pieces."),
    ] = 16,
    policy: o.PolicyName = "lab",
    base_url: o.BaseUrl = None,
    dialect: o.Dialect = "openai",
    chat: o.Chat = False,
    system: o.System = None,
    template: o.Template = "{problem}\n",
    temperature: o.Temperature = 1.0,
    top_p: o.TopP = 1.0,
    max_tokens: o.MaxTokens = 512,
    stop: o.Stop = None,
    seed: o.Seed = 0,
    segment: o.Segment = "line",
    extract: o.Extract = "boxed,hash,phrase,last_number",
    equality: o.Equality = "math",
    concurrency: o.Concurrency = 16,
    timeout: o.Timeout = 120.0,
    batch_size: o.BatchSize = 256,
    device: o.Device = "cpu",
    token_budget: o.TokenBudget = None,
    time_budget: o.TimeBudget = None,
    dry_run: o.DryRun = False,
) -> None:
    """Grow a tree of solutions for each problem and label its steps (OmegaPRM).

    Writes `traces.jsonl`, `labels.jsonl` (values), `pairs.jsonl` (rival steps) and `trees.jsonl` into the
    directory. Start a killed command again and it goes on where it was.

    Example: `surefoot label tree problems.jsonl --search-limit 20 --out trees/`
    """
    import asyncio
    from pathlib import Path

    from surefoot.answers import Grader
    from surefoot.cli._pieces import Budget, file_inputs, in_pieces
    from surefoot.cli._shared import checked_options, choice, grader, open_policy, pair, read_all
    from surefoot.errors import LabelError
    from surefoot.labelling.dry_run import predict
    from surefoot.labelling.omegaprm import OmegaPRMLabeller
    from surefoot.labelling.omegaprm_tree import TreeSettings
    from surefoot.policies.prompts import PromptFormat
    from surefoot.protocols import Policy, Sampling
    from surefoot.records import Problem
    from surefoot.segment import segmenter

    spending = {"token_budget", "time_budget", "dry_run", "out", "concurrency", "timeout", "batch_size"}
    config = {
        key: value
        for key, value in locals().items()
        if key not in spending and isinstance(value, str | int | float | list | None)
    }
    choice("--estimate", estimate, "soft", "hard")
    settings = TreeSettings(
        rollouts=rollouts,
        alpha=alpha,
        beta=beta,
        length=length,
        c_puct=c_puct,
        search_limit=search_limit,
        pieces=pieces,
    )
    with checked_options():
        prompt = PromptFormat(template=template, chat=chat, system=system)
    wanted = read_all(problems, Problem)
    answered = [problem for problem in wanted if problem.answer is not None]
    if len(answered) < len(wanted):
        typer.echo(f"{len(wanted) - len(answered)} problems skipped: they have no 'answer'", err=True)
    items = pair(answered, read_all(traces, Trace)) if traces is not None else []
    sampling = Sampling(temperature=temperature, top_p=top_p, max_tokens=max_tokens, stop=tuple(stop or ()))

    def build(completer: Policy, judge: Grader) -> OmegaPRMLabeller:
        return OmegaPRMLabeller(
            policy=completer,
            grader=judge,
            segmenter=segmenter(segment),
            prompt=prompt,
            settings=settings,
            estimate=cast("Literal['soft', 'hard']", estimate),
            sampling=sampling,
            seed=seed,
        )

    if dry_run:
        if not items:
            raise LabelError("--dry-run reads lengths and success rates off traces; give some with --traces")
        typer.echo(predict(items, build, prompt=prompt, seed=seed).summary())
        return
    completer = open_policy(
        policy,
        base_url=base_url,
        dialect=dialect,
        chat=chat,
        concurrency=concurrency,
        timeout=timeout,
        batch_size=batch_size,
        device=device,
    )
    seeds: dict[str, list[Trace]] = {}
    for item in items:
        seeds.setdefault(item.problem.id, []).append(item.trace)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    with grader(extract, equality) as judge:
        labeller = build(completer, judge)

        def work(piece: Sequence[Problem]) -> list[GrownTree]:
            return [_grown(labeller, grown) for grown in asyncio.run(labeller.grow(piece, seeds))]

        in_pieces(
            str(folder / "trees.jsonl"),
            GrownTree,
            answered,
            work,
            size=20,
            command="label tree",
            config=config,
            inputs=file_inputs(problems=problems, **({"traces": traces} if traces is not None else {})),
            budget=Budget(tokens=token_budget, minutes=time_budget),
            cost=lambda grown: sum(tree.usage.tokens for tree in grown),
        )
    _split(folder)


def _grown(labeller: OmegaPRMLabeller, grown: ProblemTree) -> GrownTree:
    labelled = labeller.labelled_traces(grown)
    return GrownTree(
        problem_id=grown.problem.id,
        traces=tuple(item.trace for item in labelled),
        labels=tuple(label for item in labelled for label in item.labels),
        pairs=tuple(labeller.pairs(grown)),
        selections=len(grown.selected),
        reason=grown.reason,
        usage=grown.usage,
    )


def _split(folder: Path) -> None:
    """Write traces, labels and pairs of all trees into files of their own, and say what there is."""
    from surefoot.io import read_records, write_records

    trees = list(read_records(folder / "trees.jsonl", GrownTree))
    write_records(folder / "traces.jsonl", (trace for grown in trees for trace in grown.traces), record=Trace)
    labels = write_records(
        folder / "labels.jsonl", (label for grown in trees for label in grown.labels), record=StepLabel
    )
    pairs = write_records(
        folder / "pairs.jsonl", (pair for grown in trees for pair in grown.pairs), record=StepPair
    )
    spent = sum((grown.usage for grown in trees), Usage())
    typer.echo(f"{len(trees)} trees, {labels} labels, {pairs} pairs, {spent.tokens} tokens", err=True)
    for reason, count in Counter(grown.reason for grown in trees if grown.reason).most_common():
        typer.echo(f"  {count} problems not searched: {reason}", err=True)
