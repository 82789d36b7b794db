"""``surefoot serve-config``: how to start a server for a reward model, and whether a running one is right."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from surefoot.cli import options as o
from surefoot.cli.settings import Command, Flag
from surefoot.cli.terminal import echo
from surefoot.policies.devices import Loading
from surefoot.protocols import StepScorer


class ServeConfig(Command):
    """Print the command that serves a published reward model with vLLM or SGLang; check a running server.

    The command has the pooler settings of the model's family, so that `--prm URL` reads its step scores. With
    `--check` the server is tested: one score per step, earlier scores that do not depend on later steps, the
    step's tag honoured, and the scores of the same weights in this process where MODEL is a directory.

    Example: `surefoot serve-config Qwen/Qwen2.5-Math-PRM-7B`

    Example: `surefoot serve-config models/math-shepherd --family math-shepherd --check http://localhost:8000`
    """

    model: Annotated[str, Flag(argument=True)]
    """Directory or hub name of the reward model."""
    engine: Literal["vllm", "sglang", "surefoot"] = Field(default="vllm", description="The server.")
    port: int = Field(default=8000, ge=1, le=65535, description="Its port.")
    family: o.Family = None
    tokenizer: o.Tokenizer = None
    check: str | None = Field(default=None, description="Address of a running server to test.")
    compare: bool = True
    """Compare with the weights in this process, where MODEL is a directory."""
    loading: o.Models = Loading()

    def run(self) -> None:
        import shlex

        from surefoot.models.remote.opening import check_server, find_tokenizer, server_command

        model = find_tokenizer(self.model, family=self.family, tokenizer=self.tokenizer)
        if self.check is None:
            echo(shlex.join(server_command(model, self.model, engine=self.engine, port=self.port)))
            return
        reference = self._reference(model.family.CARD.family)
        path = check_server(self.check, model, tokenizer=self.tokenizer or self.model, reference=reference)
        compared = "equal to the weights in this process" if reference else "not compared with weights"
        echo(
            f"{self.check} passes: family {model.family.CARD.family}, {path}, one score per step, earlier "
            f"scores independent of later steps, {compared}"
        )

    def _reference(self, family: str) -> StepScorer | None:
        if not self.compare or not Path(self.model).is_dir():
            return None
        from surefoot.models import load_prm

        return load_prm(self.model, family=family, loading=self.loading)
