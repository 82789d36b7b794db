"""``surefoot guard``: tool policies in front of servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from surefoot.cli import options as o
from surefoot.cli.settings import Command, Flag, OptionGroup
from surefoot.errors import RunError
from surefoot.guard.records import GuardSettings
from surefoot.policies.devices import Loading

if TYPE_CHECKING:
    from surefoot.protocols import StepVerifier

_GUARD = OptionGroup(title="Guard", common=("threshold",))


@contextmanager
def open_rules(names: Sequence[str], policy: str | None) -> Iterator[tuple[StepVerifier, ...]]:
    """A guard's rules; ``policy`` is the file of ``tool-calls``."""
    from surefoot.labelling.verifiers.tool_calls import ToolCallVerifier, ToolPolicy

    if not names:
        yield ()
        return
    calls = ToolCallVerifier(policy=ToolPolicy.of_file(policy) if policy else ToolPolicy())
    with o.open_verifiers(names, {"tool-calls": calls}) as labeller:
        yield labeller.verifiers


class Mcp(Command):
    """Run an MCP server behind the guard: clients start this command instead of the server's.

    Calls that a rule forbids, or that do not fit the server's schema, never reach the server, and the client
    reads the reason as their result. The server's other messages pass unchanged. Write the server's command
    after `--`. A held call is refused, because nobody can be asked here.

    Example: `surefoot guard mcp --policy policy.json -- npx -y @modelcontextprotocol/server-filesystem /data`
    """

    server: Annotated[tuple[str, ...], Flag(argument=True, metavar="SERVER")] = Field(
        description="Command of the MCP server and its arguments."
    )
    policy: Annotated[str | None, o.INPUT, Flag(common=True)] = Field(
        default=None, description="JSON file of a tool policy, for the rule `tool-calls`."
    )
    rules: Annotated[tuple[str, ...], Flag(name="--rule")] = Field(
        default=("tool-calls",),
        description="Rules that calls are checked by: `tool-calls`, or another verifier of `label verify`.",
    )
    reward_model: Annotated[o.JudgeSettings, OptionGroup(omit=("verifier", "sandbox"))] = o.JudgeSettings()
    loading: o.Models = Loading()
    guard: Annotated[GuardSettings, _GUARD] = GuardSettings()
    decisions: Annotated[Path | None, Flag(common=True)] = Field(
        default=None, description="File that each decision is appended to, as a line of JSON."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.policy is not None and "tool-calls" not in self.rules:
            raise ValueError("'policy' belongs to --rule tool-calls")
        return self

    def run(self) -> None:
        """Serve until the client or the server ends the session."""
        from surefoot.guard import Guard, GuardDecision
        from surefoot.guard.mcp import McpProxy, run_proxy

        with (
            open_rules(self.rules, self.policy) as verifiers,
            self.reward_model.open(self.loading) as scorer,
            self.decisions.open("a", encoding="utf-8") if self.decisions else nullcontext() as log,
        ):

            def note(decision: GuardDecision) -> None:
                if log is not None:
                    log.write(f"{decision.model_dump_json()}\n")
                    log.flush()

            guard = Guard(self.guard, verifiers=verifiers, scorer=scorer)
            try:
                status = asyncio.run(run_proxy(McpProxy(guard, on_decision=note), self.server))
            finally:
                guard.close()
        if status:
            raise RunError(f"the MCP server ended with status {status}")
