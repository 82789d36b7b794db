"""Turns of a policy and an environment."""

from __future__ import annotations

import asyncio

import pytest
from click.testing import CliRunner
from drawers import Drawers, TidyAgent, tidy_tasks
from openai_server import Reply, chat, serve

from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.cli.parser import SettingsCommand
from surefoot.cli.sample import SampleTraces
from surefoot.errors import PolicyError
from surefoot.io import read_records, write_records
from surefoot.labelling import StateReplayVerifier, ToolCallVerifier, VerifierLabeller
from surefoot.policies import OpenAIPolicy, load_environment, sample_runs
from surefoot.protocols import Observation, ProblemTrace
from surefoot.records import Message, Problem, Trace

PROBLEM = Problem(text="Count to three.")


class Echo:
    """Asks for more until the agent says 3."""

    name = "echo"
    tools = ()

    def reset(self, problem, seed=0):
        self.said = ""
        return (Message(role="user", content=problem.text),)

    def step(self, action):
        self.said = action
        return Observation(text="more", done="3" in action)

    def outcome(self):
        return "3" in self.said


def test_texts_go_to_the_user_until_the_environment_ends():
    policy = ScriptedPolicy(lambda request, sample: str((len(request.prompt) + 1) // 2))
    [[run]] = asyncio.run(sample_runs(policy, [PROBLEM], Echo, n=1))
    assert [message.content for message in run.messages] == ["Count to three.", "1", "more", "2", "more", "3"]
    assert (run.outcome, run.error, run.usage.calls, len(run.steps)) == (True, None, 3, 3)


def test_a_run_may_be_too_long_or_fail():
    slow = ScriptedPolicy(lambda *_: "0")
    [[run]] = asyncio.run(sample_runs(slow, [PROBLEM], Echo, n=1, max_turns=2))
    assert (run.outcome, run.finish_reason, run.usage.calls) == (False, "length", 2)
    failing = ScriptedPolicy(
        lambda *_: "0", fail=lambda request: "policy: down" if len(request.prompt) > 1 else None
    )
    [[run]] = asyncio.run(sample_runs(failing, [PROBLEM], Echo, n=1))
    assert (run.outcome, run.error, len(run.messages)) == (None, "policy: down", 3)


def test_a_server_is_given_the_tools_and_its_calls_are_taken():
    [task] = tidy_tasks(1, seed=0)
    call = {"id": "c1", "type": "function", "function": {"name": "peek", "arguments": '{"drawer": "a"}'}}

    def answer(body):
        first = len(body["messages"]) == 1
        return Reply(payload=chat([None], tool_calls=[call]) if first else chat(["I am done."]))

    with serve(answer) as server:
        policy = OpenAIPolicy(model="m", base_url=server.url, mode="chat", timeout_s=5.0)
        [[run]] = asyncio.run(sample_runs(policy, [task], Drawers, n=1))
    assert [message.role for message in run.messages] == ["user", "assistant", "tool", "assistant"]
    assert run.messages[2].tool_call_id == "c1"
    assert (run.outcome, run.error) == (False, None)
    assert [tool["function"]["name"] for tool in server.bodies[0]["tools"]] == [t.name for t in run.tools]
    assert server.bodies[1]["messages"][2]["tool_call_id"] == "c1"


def test_half_a_character_in_a_call_leaves_a_run_that_can_be_written(tmp_path):
    [task] = tidy_tasks(1, seed=0)
    arguments = '{"drawer": "\\ud800"}'
    call = {"id": "c1", "type": "function", "function": {"name": "peek", "arguments": arguments}}

    def answer(body):
        first = len(body["messages"]) == 1
        return Reply(payload=chat([None], tool_calls=[call]) if first else chat(["I am done."]))

    with serve(answer) as server:
        policy = OpenAIPolicy(model="m", base_url=server.url, mode="chat", timeout_s=5.0)
        [[run]] = asyncio.run(sample_runs(policy, [task], Drawers, n=1))
    write_records(tmp_path / "t.jsonl", [run])
    labeller = VerifierLabeller(verifiers=(StateReplayVerifier(environment=Drawers), ToolCallVerifier()))
    [labels] = asyncio.run(labeller.label([ProblemTrace(problem=task, trace=run)]))
    write_records(tmp_path / "l.jsonl", labels)
    assert labels[0].value == -1
    assert run.messages[2].content == "Error: no such drawer: \\ud800"


def test_an_environment_by_name():
    assert load_environment("drawers:Drawers") is Drawers
    assert load_environment(f"{__name__}:Echo")().name == "echo"
    for name, reason in (
        ("chess", "no environment is called 'chess'; give module:Class"),
        ("builtins:dict", "is not an environment"),
        ("builtins:Chess", "cannot be opened"),
    ):
        with pytest.raises(PolicyError, match=reason):
            load_environment(name)


def test_the_command_samples_runs(tmp_path):
    tasks = tidy_tasks(4, seed=0)
    write_records(tmp_path / "p.jsonl", tasks)
    app = SettingsCommand("sample", SampleTraces)
    asked = [
        str(tmp_path / "p.jsonl"),
        "--environment",
        "drawers:Drawers",
        "--policy",
        "drawers:TidyAgent",
        "--n",
        "2",
    ]
    done = CliRunner().invoke(app, [*asked, "--out", str(tmp_path / "t.jsonl")])
    assert done.exit_code == 0, done.output
    refused = CliRunner().invoke(app, [*asked[:3], "--policy", "lab", "--out", str(tmp_path / "u.jsonl")])
    assert "needs a policy that calls tools" in str(refused.exception)
    expected = asyncio.run(sample_runs(TidyAgent(), tasks, Drawers, n=2))
    assert list(read_records(tmp_path / "t.jsonl", Trace)) == [run for runs in expected for run in runs]
