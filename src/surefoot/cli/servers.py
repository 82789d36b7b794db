"""``surefoot doctor`` and ``surefoot serve-config``: other servers, of policies and of reward models."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from surefoot import models, policies
from surefoot.cli import options as o
from surefoot.cli.settings import Command, Flag
from surefoot.cli.terminal import echo, echo_table
from surefoot.errors import PolicyError
from surefoot.policies.devices import Loading
from surefoot.protocols import StepScorer


class Doctor(Command):
    """Show what an OpenAI-compatible server can do, by some short requests to both of its endpoints.

    Fields that a server does not know are often ignored without an error, so each capability is decided by
    what came back. `mc` and `tree` of `label` and searches over steps need `continuation`; agents need
    `tool_calls`; `--dialect vllm` needs `n` and `token_ids`. The key is read from `OPENAI_API_KEY`.

    Example: `surefoot doctor http://localhost:8000/v1`
    """

    url: Annotated[str, Flag(argument=True)] = Field(description="Address of the server, with `/v1`.")
    model: str | None = None
    """Model to probe; by default the first that is listed."""
    timeout: float = Field(default=60.0, ge=1, description="Seconds for one request.")

    def run(self) -> None:
        """Probe and print. Raises ``PolicyError`` if neither endpoint answers."""
        from surefoot.policies.capabilities import MEANINGS
        from surefoot.policies.probe import checked_url, list_models

        url = checked_url(self.url)
        models = list_models(url)
        if not models and self.model is None:
            raise PolicyError(f"{url} lists no models; name one with --model")
        model = self.model or models[0].id
        echo(f"{url} serves {', '.join(served.id for served in models[:20]) or 'no listed model'}")
        statuses = set()
        for mode in ("chat", "completions"):
            policy = policies.OpenAIPolicy(
                model=model, base_url=url, mode=mode, timeout_s=self.timeout, max_retries=0
            )
            capabilities = policy.capabilities()
            rows = []
            for name, meaning in MEANINGS.items():
                capability = getattr(capabilities, name)
                statuses.add(capability.status)
                rows.append([name, capability.status, meaning, capability.evidence])
            echo_table(f"{model}, {policy.path}", ["capability", "can", "what", "evidence"], rows)
        if "yes" not in statuses:
            raise PolicyError(
                f"{url}: no request for {model!r} was answered as asked; see the evidence above"
            )


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
        return models.load_prm(self.model, family=family, loading=self.loading)
