"""The guard in front of MCP servers: a real client and server of the `mcp` package, and hostile messages."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from surefoot.errors import GuardError
from surefoot.guard import Guard, GuardDecision, GuardSettings, Review
from surefoot.guard.mcp import McpProxy, run_proxy
from surefoot.labelling import ToolCallVerifier, ToolPolicy

SCHEMA = {"type": "object", "properties": {"amount": {"type": "number"}}, "required": ["amount"]}
RULES = ToolCallVerifier(policy=ToolPolicy(forbidden=("delete",)))


class Pipe:
    """One direction: what is written can be read as lines."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader(limit=2**16)

    def write(self, data: bytes) -> None:
        self.reader.feed_data(data)

    async def drain(self) -> None:
        await asyncio.sleep(0)

    def close(self) -> None:
        self.reader.feed_eof()


class Session:
    """A proxy between two scripted sides."""

    def __init__(self, proxy: McpProxy) -> None:
        self.to_proxy, self.to_client, self.to_server, self.from_server = (Pipe() for _ in range(4))
        self.running = asyncio.create_task(
            proxy.run((self.to_proxy.reader, self.to_client), (self.from_server.reader, self.to_server))
        )
        self.received: list[dict[str, Any]] = []
        """What the server has read, except requests for its tools."""

    def client_sends(self, message: dict[str, Any] | str) -> None:
        text = message if isinstance(message, str) else json.dumps(message)
        self.to_proxy.write(text.encode() + b"\n")

    async def client_reads(self) -> dict[str, Any]:
        return json.loads(await asyncio.wait_for(self.to_client.reader.readline(), 5))

    async def serve(self, answer: Callable[[dict[str, Any]], Any] = lambda _: "done") -> None:
        """The server: lists its tools, and answers calls."""
        while line := await self.to_server.reader.readline():
            message = json.loads(line)
            if message.get("method") == "tools/list":
                tools = [{"name": name, "inputSchema": SCHEMA} for name in ("pay", "delete")]
                result: dict[str, Any] = {"tools": tools}
            else:
                self.received.append(message)
                if "id" not in message:
                    continue
                result = {"content": [{"type": "text", "text": answer(message)}]}
            self.from_server.write(
                json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode() + b"\n"
            )


def call(number: Any, name: str, arguments: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


def run(
    test: Callable[[Session], Any], *, decisions: list[GuardDecision] | None = None, **options: Any
) -> Session:
    """A session in which ``test`` is the client."""

    async def go() -> Session:
        guard = Guard(GuardSettings(**options.pop("settings", {})), verifiers=(RULES,))
        note = decisions.append if decisions is not None else lambda _: None
        session = Session(McpProxy(guard, on_decision=note, **options))
        serving = asyncio.create_task(session.serve())
        await test(session)
        session.to_proxy.close()
        await asyncio.wait_for(session.running, 10)
        serving.cancel()
        guard.close()
        return session

    return asyncio.run(go())


def test_a_released_call_reaches_the_server_and_its_result_the_client() -> None:
    async def client(session: Session) -> None:
        session.client_sends(call(1, "pay", {"amount": 5}))
        assert (await session.client_reads())["result"]["content"][0]["text"] == "done"

    session = run(client)
    [message] = session.received
    assert message["params"] == {"name": "pay", "arguments": {"amount": 5}}


def test_a_refused_call_never_reaches_the_server() -> None:
    async def client(session: Session) -> None:
        session.client_sends(call("a", "delete", {"amount": 5}))
        answer = await session.client_reads()
        assert answer["id"] == "a"
        assert answer["result"]["isError"] is True
        assert "delete is forbidden" in answer["result"]["content"][0]["text"]

    decisions: list[GuardDecision] = []
    assert run(client, decisions=decisions).received == []
    assert [decision.action for decision in decisions] == ["reject"]


@pytest.mark.parametrize(
    "line",
    [
        '{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call","params":{"name":"delete"}}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay","name":"delete"}}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay","arguments":{"amount":1,"\\u0061mount":9}}}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay","arguments":{"amount":NaN}}}',
        '{"jsonrpc":"2.0","id":1,"method":"TOOLS/CALL","params":{"name":"delete","arguments":{"amount":1}}}',
        '{"jsonrpc":"2.0","id":1,"method":" tools/call","params":{"name":"delete","arguments":{"amount":1}}}',
        '{"jsonrpc":"2.0","method":"tools/call","params":{"name":"pay","arguments":{"amount":1}}}',
        '{"jsonrpc":"2.0","id":true,"method":"tools/call","params":{"name":"pay","arguments":{"amount":1}}}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":["delete"]}}',
        '{"jsonrpc":"2.0","id":1,"method":["tools/call"],"params":{"name":"delete"}}',
        '[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"delete"}}]',
        "[" * 5000,
        "delete",
    ],
)
def test_ambiguous_messages_are_refused(line: str) -> None:
    async def client(session: Session) -> None:
        session.client_sends(line)
        assert "error" in await session.client_reads()

    assert run(client).received == []


def test_arguments_that_do_not_fit_the_schema_of_the_server_are_refused() -> None:
    async def client(session: Session) -> None:
        session.client_sends(call(1, "pay", {"amount": "5000"}))
        assert (await session.client_reads())["result"]["isError"] is True
        session.client_sends(call(2, "unknown", {}))
        assert (await session.client_reads())["result"]["isError"] is True

    assert run(client).received == []


def test_earlier_calls_of_the_session_count() -> None:
    async def client(session: Session) -> None:
        session.client_sends(call(1, "pay", {"amount": 5}))
        await session.client_reads()
        session.client_sends(call(2, "pay", {"amount": 5}))
        assert "repeated-call" in (await session.client_reads())["result"]["content"][0]["text"]

    assert len(run(client).received) == 1


def test_calls_sent_at_once_are_judged_one_after_the_other() -> None:
    async def client(session: Session) -> None:
        for number in range(5):
            session.client_sends(call(number, "pay", {"amount": 5}))
        answers = [await session.client_reads() for _ in range(5)]
        assert sum(answer["result"].get("isError", False) for answer in answers) == 4

    assert len(run(client).received) == 1


def test_other_messages_pass_and_a_reused_id_does_not() -> None:
    async def client(session: Session) -> None:
        session.client_sends({"jsonrpc": "2.0", "method": "notifications/initialized"})
        session.client_sends({"jsonrpc": "2.0", "id": 1, "method": "ping"})
        await session.client_reads()

    assert [message["method"] for message in run(client).received] == ["notifications/initialized", "ping"]


def test_a_held_call_waits_for_the_reviewer_and_can_be_cancelled() -> None:
    reviewed = []

    async def review(*_: Any) -> tuple[Review, str]:
        reviewed.append(1)
        if len(reviewed) == 1:
            return Review(approved=True, by="ann"), "1"
        await asyncio.sleep(60)
        raise AssertionError

    async def client(session: Session) -> None:
        session.client_sends(call(1, "delete", {"amount": 1}))
        assert "isError" not in (await session.client_reads())["result"]
        session.client_sends(call(2, "delete", {"amount": 2}))
        while len(reviewed) < 2:
            await asyncio.sleep(0.01)
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}}
        session.client_sends(cancel)

    session = run(client, review=review, settings={"on_rule": "hold"})
    assert [message["params"]["arguments"] for message in session.received] == [{"amount": 1}]


def test_a_line_that_is_too_long_ends_the_session() -> None:
    async def client(session: Session) -> None:
        session.client_sends("x" * 2**17)

    with pytest.raises(GuardError, match="longer than"):
        run(client)


def test_a_server_that_cannot_be_started() -> None:
    with pytest.raises(GuardError, match="cannot start the MCP server 'no-such-program'"):
        asyncio.run(run_proxy(McpProxy(Guard()), ["no-such-program"]))


SERVER = """
from mcp.server import MCPServer

server = MCPServer("bank")

@server.tool()
def pay(amount: float) -> str:
    return f"paid {amount}"

@server.tool()
def delete(account: str) -> str:
    return "deleted"

server.run()
"""


def test_a_real_client_and_a_real_server(tmp_path: Path) -> None:
    mcp = pytest.importorskip("mcp", reason="mcp is not installed")
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "policy.json").write_text('{"forbidden": ["delete"]}')
    decisions = tmp_path / "decisions.jsonl"
    options = ["--policy", str(tmp_path / "policy.json"), "--decisions", str(decisions)]
    server = ["--", sys.executable, str(tmp_path / "server.py")]
    command = mcp.StdioServerParameters(
        command=sys.executable,
        args=["-m", "surefoot", "guard", "mcp", *options, *server],
        env=dict(os.environ),
    )

    async def go() -> tuple[Any, ...]:
        async with mcp.Client(command) as client:
            tools = await client.list_tools()
            paid = await client.call_tool("pay", {"amount": 12.5})
            deleted = await client.call_tool("delete", {"account": "a"})
            return tools, paid, deleted

    tools, paid, deleted = asyncio.run(asyncio.wait_for(go(), 60))
    assert [tool.name for tool in tools.tools] == ["pay", "delete"]
    assert (paid.is_error, paid.content[0].text) == (False, "paid 12.5")
    assert deleted.is_error
    assert "delete is forbidden" in deleted.content[0].text
    actions = [json.loads(line)["action"] for line in decisions.read_text().splitlines()]
    assert actions == ["release", "reject"]
