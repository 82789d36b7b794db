"""A chest of three drawers: a small environment that can be replayed, its tasks, and an agent for it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from surefoot.policies import IN_PROCESS
from surefoot.protocols import Completion, Observation, SampleRequest, SampleResult
from surefoot.records import Message, Problem, Tool, ToolCall, Usage

NAMES = ("a", "b", "c")
_DRAWER = {"drawer": {"enum": list(NAMES)}}


def _tool(name: str, does: str, **more: dict) -> Tool:
    schema = {"type": "object", "properties": _DRAWER | more, "required": ["drawer", *more]}
    return Tool(name=name, description=does, parameters=json.dumps(schema))


TOOLS = (
    _tool("put", "Put a thing into a drawer, in place of what is there.", thing={}),
    _tool("peek", "Look into a drawer."),
    _tool("glue", "Glue a drawer shut, for good."),
)


class Drawers:
    """Puts things into drawers; every call shows the drawer. A text with ``done`` ends the run."""

    name = "drawers"
    tools = TOOLS

    def reset(self, problem, seed=0):
        self.drawers = {"a": 0, "b": 0, "c": {"d": []}}
        self.glued, self.wanted = [], problem.meta.get("wanted")
        return (Message(role="user", content=problem.text),)

    def step(self, action):
        if isinstance(action, str):
            return Observation(text="go on", done="done" in action)
        arguments = json.loads(action.arguments)
        name = arguments.get("drawer")
        if name not in self.drawers:
            return Observation(text=f"Error: no such drawer: {name}", error=True)
        if action.name == "glue":
            self.glued = [*self.glued, name]
        if action.name == "put":
            if name in self.glued:
                return Observation(text="Error: it is glued", error=True)
            self.drawers[name] = arguments["thing"]
        return Observation(text=json.dumps({name: self.drawers[name]}))

    def outcome(self):
        return None if self.wanted is None else self.drawers == self.wanted

    def state(self):
        return json.loads(json.dumps({**self.drawers, "glued": self.glued}))

    def snapshot(self):
        return self.state(), self.wanted

    def restore(self, snapshot):
        state, self.wanted = json.loads(json.dumps(snapshot))
        self.glued = state.pop("glued")
        self.drawers = state


def tidy_tasks(count: int, *, seed: int) -> list[Problem]:
    """Tasks with a number for each drawer, and the calls that put them there."""
    rng = np.random.default_rng(seed)
    tasks = []
    for number in range(count):
        wanted = dict(zip(NAMES, rng.integers(1, 10, 3).tolist(), strict=True))
        tasks.append(
            Problem(
                id=f"tidy-{seed}-{number}",
                text=" ".join(f"Put {thing} into {name}." for name, thing in wanted.items()),
                meta={
                    "wanted": wanted,
                    "gold_actions": [
                        {"name": "put", "arguments": {"drawer": name, "thing": thing}}
                        for name, thing in wanted.items()
                    ],
                },
            )
        )
    return tasks


@dataclass(frozen=True)
class TidyAgent:
    """Puts what is missing, and ends when all is there; with chance ``mistake`` a call puts another number,
    or glues a drawer too early."""

    mistake: float = 0.3
    name: str = "tidy-agent"

    def capabilities(self):
        return IN_PROCESS

    async def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: SampleRequest) -> SampleResult:
        wanted = {name: int(n) for n, name in re.findall(r"Put (\d) into (\w)", str(request.prompt))}
        seen, stuck = {}, set()
        asked = ""
        for message in request.prompt:
            for call in message.tool_calls:
                asked = json.loads(call.arguments)["drawer"]
            if message.role == "tool" and message.error:
                stuck.add(asked)
            elif message.role == "tool":
                seen |= json.loads(message.content)
        missing = [name for name, thing in wanted.items() if seen.get(name) != thing and name not in stuck]
        samples = range(request.first, request.first + request.n)
        written = [self._act(request, wanted, missing, sample) for sample in samples]
        return SampleResult(completions=tuple(written), usage=Usage(completion_tokens=request.n, calls=1))

    def _act(self, request, wanted, missing, sample) -> Completion:
        said = [message.model_dump(mode="json") for message in request.prompt]
        key = json.dumps([request.seed, sample, said])
        rng = np.random.default_rng(list(key.encode()))
        if not missing:
            return Completion(text="All done.", finish_reason="stop", tokens=1)
        name, arguments = "put", {"drawer": missing[0], "thing": wanted[missing[0]]}
        if rng.random() < self.mistake:
            arguments["thing"] = 10
            if rng.random() < 0.5:
                name = "glue"
                del arguments["thing"]
        call = ToolCall(id=f"call-{len(request.prompt)}", name=name, arguments=json.dumps(arguments))
        return Completion(text="", finish_reason="stop", tokens=1, tool_calls=(call,))
