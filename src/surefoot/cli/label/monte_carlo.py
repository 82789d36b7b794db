"""``surefoot label mc``: Monte Carlo rollouts from the prefixes of given traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from surefoot.cli import _options as o

if TYPE_CHECKING:
    from surefoot.labelling.stopping import StoppingRule


def monte_carlo(
    traces: Annotated[str, typer.Argument(help="File of trace records with steps, or - for standard input.")],
    problems: o.Problems,
    out: o.Out = "-",
    rollouts: Annotated[
        int, typer.Option("--rollouts", "-k", min=1, help="Completions per prefix; sequential: at most.")
    ] = 8,
    estimate: Annotated[
        str,
        typer.Option(
            "--estimate",
            help="soft = share that succeeded, hard = any did, sequential = a test that ends when sure.",
        ),
    ] = "soft",
    order: Annotated[
        str,
        typer.Option("--order", help="Prefixes to roll out: every, until-error, or bisect (binary search)."),
    ] = "every",
    after_error: Annotated[
        str, typer.Option("--after-error", help="Steps after the first error: unlabelled, or wrong (0).")
    ] = "unlabelled",
    own_outcome: Annotated[
        str,
        typer.Option(
            "--own-outcome",
            help="Count a trace's outcome as a rollout of its prefixes: same-policy, always, never.",
        ),
    ] = "same-policy",
    first: Annotated[
        int, typer.Option("--first", min=1, help="Hard: completions in the first batch of a prefix.")
    ] = 2,
    p_bad: Annotated[
        float, typer.Option("--p-bad", help="Sequential: a prefix of at most this value is bad.")
    ] = 0.05,
    p_good: Annotated[
        float, typer.Option("--p-good", help="Sequential: a prefix of at least this value is good.")
    ] = 0.4,
    error_rate: Annotated[
        float, typer.Option("--error-rate", help="Sequential: chance of a wrong decision, either way.")
    ] = 0.05,
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
    """Label steps by Monte Carlo rollouts from their prefixes (Math-Shepherd; binary search of OmegaPRM).

    The labels are values (chance of the right answer from here), with successes and trials as evidence.
    Start a killed command again and it goes on where it was.

    Example: `surefoot label mc traces.jsonl --problems problems.jsonl --estimate hard --order until-error
    --out labels.jsonl`
    """
    from surefoot.answers import Grader
    from surefoot.cli._pieces import Budget, file_inputs
    from surefoot.cli._shared import checked_options, choice, grader, open_policy, pair, read_all
    from surefoot.cli.label._write import answered, write_labels
    from surefoot.labelling.dry_run import predict
    from surefoot.labelling.monte_carlo import MonteCarloLabeller, Order, OwnOutcome
    from surefoot.policies.prompts import PromptFormat
    from surefoot.protocols import Policy, Sampling
    from surefoot.records import Problem, Trace

    spending = {"token_budget", "time_budget", "dry_run", "out", "concurrency", "timeout", "batch_size"}
    config = {
        key: value
        for key, value in locals().items()
        if key not in spending and isinstance(value, str | int | float | list | None)
    }
    choice("--order", order, "every", "until-error", "bisect")
    choice("--after-error", after_error, "unlabelled", "wrong")
    choice("--own-outcome", own_outcome, "same-policy", "always", "never")
    rule = _rule(estimate, rollouts, first, p_bad, p_good, error_rate)
    with checked_options():
        prompt = PromptFormat(template=template, chat=chat, system=system)
    sampling = Sampling(temperature=temperature, top_p=top_p, max_tokens=max_tokens, stop=tuple(stop or ()))

    def build(completer: Policy, judge: Grader) -> MonteCarloLabeller:
        return MonteCarloLabeller(
            policy=completer,
            grader=judge,
            prompt=prompt,
            rule=rule,
            order=cast("Order", order),
            after_error=cast("Literal['unlabelled', 'wrong']", after_error),
            own_outcome=cast("OwnOutcome", own_outcome),
            sampling=sampling,
            seed=seed,
        )

    items = answered(pair(read_all(problems, Problem), read_all(traces, Trace)))
    if dry_run:
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
    with grader(extract, equality) as judge:
        write_labels(
            out,
            build(completer, judge),
            items,
            command="label mc",
            config=config,
            inputs=file_inputs(problems=problems, traces=traces),
            budget=Budget(tokens=token_budget, minutes=time_budget),
        )


def _rule(
    estimate: str, rollouts: int, first: int, p_bad: float, p_good: float, error_rate: float
) -> StoppingRule:
    from surefoot.cli._shared import choice
    from surefoot.labelling.stopping import HardEstimate, SequentialTest, SoftEstimate

    choice("--estimate", estimate, "soft", "hard", "sequential")
    if estimate == "soft":
        return SoftEstimate(rollouts=rollouts)
    if estimate == "hard":
        return HardEstimate(rollouts=rollouts, first=first)
    return SequentialTest(
        p_bad=p_bad, p_good=p_good, false_good=error_rate, false_bad=error_rate, max_rollouts=rollouts
    )
