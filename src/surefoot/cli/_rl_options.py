"""Options of ``surefoot rl``, and the settings that they make."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surefoot.cli import _options as o

if TYPE_CHECKING:
    from surefoot.rl.config import RLConfig


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
            help="Rewards by rule in place of --prm: arithmetic, lab or module:Class; may be repeated.",
        ),
    ] = None
    gold: o.Gold = None
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
    batch_size: Annotated[
        int | None,
        typer.Option("--batch-size", min=1, help="Samples decoded together in this process; 256."),
    ] = None
    evaluate_every: Annotated[
        int | None, typer.Option("--evaluate-every", min=1, help="Updates between evaluations; 10.")
    ] = None
    seed: Annotated[int | None, typer.Option("--seed", help="Of problems, samples and updates; 0.")] = None
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

    def settings(self) -> RLConfig:
        """Of the file and of the options. Raises ``RunError``."""
        from surefoot.cli._rl_settings import settle

        names = ("updates", "samples", "temperature", "max_tokens", "learning_rate", "batch_size")
        flags = {name: getattr(self, name) for name in (*names, "evaluate_every", "seed")}
        flags["problems"] = self.round_problems
        flags["lora"] = None if self.lora is None else {"rank": self.lora}
        return settle(
            file=self.config,
            credit=self.credit,
            advantage=self.advantage,
            process_weight=self.process_weight,
            outcome_weight=self.outcome_weight,
            kl=self.kl,
            flags=flags,
            assignments=self.assignments or (),
        )

    def decisive(self) -> dict[str, Any]:
        """What else decides what a run comes to."""
        names = "validation policy prm family calibrated verifier gold aggregate dtype base_url server_model"
        return {name: getattr(self, name) for name in names.split()}
