"""``surefoot rl``: train a policy on step rewards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surefoot.cli import _options as o
from surefoot.cli._rounds import Gold, verifiers

if TYPE_CHECKING:
    from surefoot.protocols import StepScorer
    from surefoot.records import Problem
    from surefoot.rl.config import RLConfig
    from surefoot.rl.log import RLLog, UpdateRow
    from surefoot.rl.task import Server, Task

_LAB_PROBLEMS, _LAB_HELD_OUT, _LAB_SEED = 2_000, 300, 1_000_000


@dataclass(frozen=True, kw_only=True)
class RLOptions:
    """Who learns, from what, and how."""

    out: Annotated[
        Path, typer.Option("--out", "-o", help="Run directory; the trained policy is its folder policy.")
    ]
    problems: Annotated[
        str,
        typer.Option("--problems", help="File of problem records, or 'lab': problems of the lab's world."),
    ] = "lab"
    held_out: Annotated[
        str | None,
        typer.Option("--held-out", help="File of problems to evaluate on; else a share of the problems."),
    ] = None
    validation: Annotated[
        float, typer.Option("--validation", min=0, max=0.9, help="That share, without --held-out.")
    ] = 0.1
    policy: Annotated[
        str,
        typer.Option("--policy", help="Policy to train: 'lab', a checkpoint directory or a hub name."),
    ] = "lab"
    credit: Annotated[
        str | None,
        typer.Option(
            "--credit",
            help="Rule (outcome, summed, min-form, clip-delta, effective, implicit) or published method "
            "(grpo, process-grpo, step-ppo, pure, prime, pav); outcome if nothing says otherwise.",
        ),
    ] = None
    advantage: Annotated[
        str | None, typer.Option("--advantage", help="Estimator: group, leave-one-out, gae or none.")
    ] = None
    prm: Annotated[
        str | None,
        typer.Option("--prm", "-m", help="Reward model of steps: a checkpoint directory or hub name."),
    ] = None
    family: Annotated[
        str | None, typer.Option("--family", help="Published family, where name and files do not tell.")
    ] = None
    calibrated: Annotated[
        bool, typer.Option("--calibrated", help="Put scores through the checkpoint's calibration.json.")
    ] = False
    verifier: Annotated[
        list[str] | None,
        typer.Option(
            "--verifier",
            help="Rewards by rule in place of --prm: arithmetic, game24 or lab; may be repeated.",
        ),
    ] = None
    gold: Gold = None
    aggregate: Annotated[
        str,
        typer.Option(
            "--aggregate", help="Scores to the proxy that is drawn: min, product, last, mean or sum."
        ),
    ] = "min"
    process_weight: Annotated[
        float | None, typer.Option("--process-weight", min=0, help="Of step rewards, mixed with the outcome.")
    ] = None
    outcome_weight: Annotated[
        float | None, typer.Option("--outcome-weight", min=0, help="Of the outcome, mixed with step rewards.")
    ] = None
    config: Annotated[
        Path | None, typer.Option("--config", help="TOML or JSON file of settings (RLConfig); flags win.")
    ] = None
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any setting, such as objective.clip_high=0.3; may be repeated."),
    ] = None
    updates: Annotated[int | None, typer.Option("--updates", min=1, help="Rounds of sampling; 100.")] = None
    round_problems: Annotated[
        int | None, typer.Option("--round-problems", min=1, help="Problems a round; 16.")
    ] = None
    samples: Annotated[
        int | None, typer.Option("--samples", "-n", min=1, help="Rollouts a problem and round; 8.")
    ] = None
    temperature: Annotated[
        float | None, typer.Option("--temperature", min=0.01, help="Of rollouts and evaluations; 1.")
    ] = None
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=1, help="Longest response; 96.")] = (
        None
    )
    learning_rate: Annotated[
        float | None,
        typer.Option("--learning-rate", min=0, help="1e-4 suits the lab's policy; 1e-6 a 7B one."),
    ] = None
    kl: Annotated[
        float | None,
        typer.Option("--kl", min=0, help="Penalty per nat of leaving the first policy; 0 = none."),
    ] = None
    lora: Annotated[
        int | None, typer.Option("--lora", min=1, help="Train an adapter of this rank alone.")
    ] = None
    evaluate_every: Annotated[
        int | None, typer.Option("--evaluate-every", min=1, help="Updates between evaluations; 10.")
    ] = None
    seed: Annotated[int | None, typer.Option("--seed", help="Of problems, samples and updates; 0.")] = None
    chat: o.Chat = False
    system: o.System = None
    template: o.Template = "{problem}\n"
    segment: o.Segment = "line"
    extract: o.Extract = "boxed,hash,phrase,last_number"
    equality: o.Equality = "math"
    dtype: Annotated[
        str,
        typer.Option("--dtype", help="Of the policy's weights: float32; with --lora also bfloat16, auto."),
    ] = "float32"
    device: o.Device = "cpu"
    base_url: Annotated[
        str | None,
        typer.Option(
            "--base-url", help="vLLM server that draws the rollouts and takes new weights, with /v1."
        ),
    ] = None
    server_model: Annotated[
        str | None, typer.Option("--server-model", help="The server's name for the policy, with --base-url.")
    ] = None
    concurrency: o.Concurrency = 16
    timeout: o.Timeout = 120.0


def rl(options: RLOptions) -> None:
    """Train a policy by reinforcement learning on step rewards, on outcomes, or on both.

    Step scores come from a reward model (`--prm`) or a rule (`--verifier`); the credit rule makes rewards
    of them. Held-out problems are sampled every few updates; `--gold` counts wrong steps there by a rule that
    the reward does not see. Guards watch for gaming and may end the run. Start a killed command again and it
    goes on along the same curve. Several processes: `accelerate launch -m surefoot rl ...`

    Example: `surefoot rl --credit min-form --verifier lab --gold lab --out rl` (the lab, some minutes)

    Example: `surefoot rl --credit pure --policy Qwen/Qwen2.5-Math-7B --prm Qwen/Qwen2.5-Math-PRM-7B
    --problems train.jsonl --chat --learning-rate 1e-6 --config rl.toml --out rl`
    """
    from surefoot.cli._pieces import file_inputs
    from surefoot.cli._rl_settings import settle
    from surefoot.cli._shared import one_writer, stages
    from surefoot.lab.checkpoints import POLICY
    from surefoot.models.causal import load_causal
    from surefoot.models.families import identifying_files
    from surefoot.rl.loop import train_policy

    config = settle(
        file=options.config,
        credit=options.credit,
        advantage=options.advantage,
        process_weight=options.process_weight,
        outcome_weight=options.outcome_weight,
        kl=options.kl,
        flags=_flags(options),
        assignments=options.assignments or (),
    )
    files = {"problems": options.problems, "held_out": options.held_out}
    inputs = file_inputs(**{name: path for name, path in files.items() if path != "lab"})
    inputs |= identifying_files(options.prm) if options.prm else {}
    with (
        _task(options, config.seed) as task,
        one_writer(options.out, "rl", _resolved(options, config), inputs) as run,
        stages() as progress,
    ):
        task.check(config)
        if run is not None and run.done("rl"):
            _say_finished(options.out, run.result("rl"), config.updates)
            return
        start = POLICY if options.policy == "lab" else options.policy
        model, tokenizer = load_causal(start, dtype=options.dtype, trust_remote_code=False)

        def show(done: int, total: int, _row: UpdateRow) -> None:
            progress("rl", done, total)

        model.to(options.device)
        log = train_policy(
            model, tokenizer, task, config, options.out, server=_server(options), progress=show
        )
        if run is not None:
            from surefoot.rl.report import write_report

            settings = config.model_dump(mode="json")
            write_report(log, options.out / "report.html", samples=options.out / "samples", settings=settings)
            run.finish("rl", {"updates": len(log.updates), "stopped": log.stopped})
            _say(options.out, log)


def _flags(options: RLOptions) -> dict[str, Any]:
    """Fields of the settings that have an option of their own."""
    names = ("updates", "samples", "temperature", "max_tokens", "learning_rate", "evaluate_every", "seed")
    flags = {name: getattr(options, name) for name in names}
    flags["problems"] = options.round_problems
    flags["lora"] = None if options.lora is None else {"rank": options.lora}
    return flags


def _resolved(options: RLOptions, config: RLConfig) -> dict[str, Any]:
    """All that decides what a run comes to."""
    names = (
        "validation policy prm family calibrated verifier gold aggregate chat system template segment "
        "extract equality dtype base_url server_model"
    )
    decisive = config.decisive
    del decisive["updates"]  # a run that is not finished may be made longer or shorter
    return {"rl": decisive} | {name: getattr(options, name) for name in names.split()}


@contextmanager
def _task(options: RLOptions, seed: int) -> Iterator[Task]:
    """What is learned, with the grader and the verifiers open."""
    from surefoot.cli._shared import checked_options, choice, grader
    from surefoot.models.aggregate import AGGREGATORS
    from surefoot.policies.prompts import PromptFormat
    from surefoot.rl.task import Task
    from surefoot.segment import segmenter

    choice("--aggregate", options.aggregate, *AGGREGATORS, "sum")
    with checked_options():
        prompt = PromptFormat(template=options.template, chat=options.chat, system=options.system)
    train, held_out = _problems(options, seed)
    with ExitStack() as stack:
        yield Task(
            problems=train,
            held_out=held_out,
            segmenter=segmenter(options.segment),
            grader=stack.enter_context(grader(options.extract, options.equality)),
            prompt=prompt,
            scorer=_scorer(options, stack),
            gold=verifiers(stack, options.gold) if options.gold else None,
            aggregation=options.aggregate,  # type: ignore[arg-type]
        )


def _problems(options: RLOptions, seed: int) -> tuple[list[Problem], list[Problem]]:
    """Problems to train on, and held-out ones."""
    from surefoot.cli._shared import is_held_out, read_all
    from surefoot.errors import RunError
    from surefoot.lab.world import generate_problems
    from surefoot.records import Problem

    given = read_all(options.held_out, Problem) if options.held_out else []
    if options.problems == "lab":
        held_out = given or generate_problems(_LAB_HELD_OUT, seed=_LAB_SEED)
        return generate_problems(_LAB_PROBLEMS, seed=seed, exclude=held_out), held_out
    found = read_all(options.problems, Problem)
    if given:
        known = {problem.id for problem in given}
        left = [problem for problem in found if problem.id not in known]
        if len(left) < len(found):
            typer.echo(f"{len(found) - len(left)} problems are held out, and not trained on", err=True)
        return left, given
    held_out = [problem for problem in found if is_held_out(problem.id, options.validation)]
    if not held_out or len(held_out) == len(found):
        raise RunError(f"--validation {options.validation:g} of {len(found)} problems leaves one side empty")
    kept = {problem.id for problem in held_out}
    return [problem for problem in found if problem.id not in kept], held_out


def _scorer(options: RLOptions, stack: ExitStack) -> StepScorer | None:
    from surefoot.errors import RunError
    from surefoot.models.label_scorer import LabelScorer
    from surefoot.models.scorer import load_prm

    if options.prm and options.verifier:
        raise RunError("--prm and --verifier both give step scores; choose one")
    if options.prm:
        return load_prm(
            options.prm, family=options.family, calibrated=options.calibrated, device=options.device
        )
    if options.verifier:
        return LabelScorer(verifiers(stack, options.verifier), name="+".join(options.verifier))
    return None


def _server(options: RLOptions) -> Server | None:
    from surefoot.errors import RunError
    from surefoot.policies.openai import OpenAIPolicy
    from surefoot.rl.server_weights import ServerWeights
    from surefoot.rl.task import Server

    if (options.base_url is None) != (options.server_model is None):
        raise RunError("--base-url and --server-model go together: one needs the other")
    if options.base_url is None or options.server_model is None:
        return None
    policy = OpenAIPolicy(
        model=options.server_model,
        base_url=options.base_url,
        mode="chat" if options.chat else "completions",
        dialect="vllm",
        concurrency=options.concurrency,
        timeout_s=options.timeout,
    )
    return Server(
        policy=policy, publisher=ServerWeights(model=options.server_model, base_url=options.base_url)
    )


def _say_finished(out: Path, result: dict[str, Any], updates: int) -> None:
    """Raises ``RunError`` if more updates are wanted than there were: the checkpoint is gone."""
    from surefoot.errors import RunError

    if not result["stopped"] and result["updates"] < updates:
        raise RunError(
            f"{out} is finished with {result['updates']} updates: train on from --policy {out / 'policy'}, "
            "with another --out"
        )
    typer.echo(f"{out} is finished already", err=True)


def _say(out: Path, log: RLLog) -> None:
    """What came of it, on standard error."""
    from surefoot.rl.report import findings

    for sentence in findings(log):
        typer.echo(sentence, err=True)
    typer.echo(f"policy: {out / 'policy'}; curves: {out / 'report.html'}", err=True)
