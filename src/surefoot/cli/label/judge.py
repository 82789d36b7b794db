"""``surefoot label judge``: labels from the critique of a language model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from surefoot.cli import _options as o

if TYPE_CHECKING:
    from surefoot.labelling.judge_prompt import JudgePrompt


def judge(
    traces: Annotated[str, typer.Argument(help="File of trace records with steps, or - for standard input.")],
    problems: o.Problems,
    policy: Annotated[
        str,
        typer.Option(
            "--policy", help="The judge: a checkpoint directory, a hub name, or the server's model."
        ),
    ],
    base_url: o.BaseUrl = None,
    dialect: o.Dialect = "openai",
    out: o.Out = "-",
    mode: Annotated[
        str, typer.Option("--mode", help="Ask for per-step verdicts, or for the first-error alone.")
    ] = "per-step",
    votes: Annotated[int, typer.Option("--votes", "-k", min=1, help="Replies per trace.")] = 1,
    rules: Annotated[
        str | None, typer.Option("--rules", help="Text file: a policy or specification to judge by.")
    ] = None,
    show_answer: Annotated[
        bool, typer.Option("--show-answer", help="Show the judge the problem's reference answer.")
    ] = False,
    structured: Annotated[
        bool | None,
        typer.Option(
            "--structured/--no-structured",
            help="Hold the server to a JSON schema (default: with --base-url).",
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", min=0, help="0 is greedy (default: 0 for one vote, 1 for several)."),
    ] = None,
    top_p: o.TopP = 1.0,
    max_tokens: o.MaxTokens = 2048,
    seed: o.Seed = 0,
    token_budget: o.TokenBudget = None,
    time_budget: o.TimeBudget = None,
    concurrency: o.Concurrency = 16,
    timeout: o.Timeout = 120.0,
    batch_size: o.BatchSize = 16,
    device: o.Device = "cpu",
) -> None:
    """Label steps by asking a language model for a critique (LLM as a judge).

    The labels say whether a step is correct (+1), neutral (0) or wrong (-1). Replies that are refused, cut
    off or not of the form asked for are counted and give no label.

    Example: `surefoot label judge traces.jsonl --problems problems.jsonl --policy Qwen/Qwen3-8B
    --base-url http://localhost:8000/v1 --out labels.jsonl`
    """
    from surefoot.cli._pieces import Budget, file_inputs
    from surefoot.cli._shared import open_policy, pair, read_all
    from surefoot.cli.label._write import answered, write_labels
    from surefoot.labelling.judge import JudgeLabeller, structured_output
    from surefoot.protocols import Sampling
    from surefoot.records import Problem, Trace

    # A larger budget goes on with the same work, so it is not part of what must be the same.
    config = {
        key: value
        for key, value in locals().items()
        if isinstance(value, str | int | float | None)
        and key not in ("token_budget", "time_budget", "timeout")
    }
    held = structured if structured is not None else base_url is not None
    prompt = _prompt(mode, rules, show_answer=show_answer, structured=held, served=base_url is not None)
    items = pair(read_all(problems, Problem), read_all(traces, Trace))
    if temperature is None:
        temperature = 0.0 if votes == 1 else 1.0
    labeller = JudgeLabeller(
        policy=open_policy(
            policy,
            base_url=base_url,
            chat=True,
            concurrency=concurrency,
            timeout=timeout,
            batch_size=batch_size,
            device=device,
            dialect=dialect,
            extra_body=structured_output(prompt.mode) if held else None,
        ),
        prompt=prompt,
        votes=votes,
        sampling=Sampling(temperature=temperature, top_p=top_p, max_tokens=max_tokens),
        seed=seed,
    )
    try:
        write_labels(
            out,
            labeller,
            answered(items) if show_answer else items,
            command="label judge",
            config=config | {"prompt": prompt.version},
            inputs=file_inputs(problems=problems, traces=traces),
            budget=Budget(tokens=token_budget, minutes=time_budget),
        )
    finally:
        for reason, count in labeller.failures.most_common():
            typer.echo(f"{count} votes not counted: {reason}", err=True)


def _prompt(
    mode: str, rules: str | None, *, show_answer: bool, structured: bool, served: bool
) -> JudgePrompt:
    from pathlib import Path
    from typing import cast

    from surefoot.errors import LabelError
    from surefoot.labelling.judge_prompt import JudgeMode, JudgePrompt

    if structured and not served:
        raise LabelError("--structured needs --base-url: nothing in this process holds a model to a schema")
    try:
        text = Path(rules).read_text(encoding="utf-8") if rules is not None else None
    except UnicodeDecodeError as error:
        raise LabelError(f"--rules {rules} is no UTF-8 text: {error}") from error
    # An unknown mode is refused by the prompt itself.
    return JudgePrompt(mode=cast(JudgeMode, mode), rules=text, show_answer=show_answer, structured=structured)
