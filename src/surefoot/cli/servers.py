"""``surefoot doctor``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from surefoot import policies
from surefoot.cli.settings import Command, Flag
from surefoot.cli.terminal import echo, echo_table
from surefoot.errors import PolicyError


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
