"""``surefoot rl``: train a policy on step rewards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from surefoot.cli._options import ReadingOptions
from surefoot.cli._rl_options import RLOptions

if TYPE_CHECKING:
    from surefoot.rl.log import RLLog, UpdateRow


def rl(options: RLOptions, reading: ReadingOptions) -> None:
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
    from surefoot.cli._rl_task import open_server, open_task
    from surefoot.cli._shared import one_writer, stages
    from surefoot.lab.checkpoints import POLICY
    from surefoot.models.engine.causal import load_causal
    from surefoot.models.loading import identifying_files
    from surefoot.rl.loop import train_policy

    config = options.settings()
    decisive = config.decisive
    del decisive["updates"]  # a run that is not finished may be made longer or shorter
    resolved = {"rl": decisive, **options.decisive(), **reading.decisive()}
    files = {"problems": options.problems, "held_out": options.held_out}
    inputs = file_inputs(**{name: path for name, path in files.items() if path != "lab"})
    inputs |= identifying_files(options.prm) if options.prm else {}
    with (
        open_task(options, reading, config.seed) as task,
        one_writer(options.out, "rl", resolved, inputs) as run,
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
        server = open_server(options, chat=reading.chat)
        log = train_policy(model, tokenizer, task, config, options.out, server=server, progress=show)
        if run is not None:
            from surefoot.rl.report import write_report

            settings = config.model_dump(mode="json")
            write_report(log, options.out / "report.html", samples=options.out / "samples", settings=settings)
            run.finish("rl", {"updates": len(log.updates), "stopped": log.stopped})
            _say(options.out, log)


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
