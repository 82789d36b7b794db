"""The guard in front of MCP servers: a real client and server of the `mcp` package, and hostile messages."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from surefoot.errors import GuardError
from surefoot.guard import Guard, GuardDecision, GuardSettings, Review
from surefoot.guard.mcp import MAX_LINE, McpProxy, run_proxy
from surefoot.labelling import PolicyRule, ToolCallVerifier, ToolPolicy
from surefoot.messages import strict_decoder

SCHEMA = {"type": "object", "properties": {"amount": {"type": "number"}}, "required": ["amount"]}
TOOLS = {"tools": [{"name": name, "inputSchema": SCHEMA} for name in ("pay", "delete", "look")]}
RULES = ToolCallVerifier(policy=ToolPolicy(forbidden=("delete",)))


class Pipe:
    """One direction: what is written can be read as lines."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader(limit=2**27)

    def write(self, data: bytes) -> None:
        self.reader.feed_data(data)

    async def drain(self) -> None:
        await asyncio.sleep(0)

    def close(self) -> None:
        self.reader.feed_eof()


def line_of(message: dict[str, Any] | str) -> bytes:
    text = message if isinstance(message, str) else json.dumps(message)
    return text.encode(errors="surrogateescape") + b"\n"


async def read(pipe: Pipe) -> dict[str, Any]:
    """The next message, which is strict JSON."""
    line = await asyncio.wait_for(pipe.reader.readline(), 10)
    message: dict[str, Any] = strict_decoder().decode(line.decode())
    assert message.keys() <= {"jsonrpc", "id", "method", "params", "result", "error"}
    return message


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
        self.to_proxy.write(line_of(message))

    async def client_reads(self) -> dict[str, Any]:
        return await read(self.to_client)

    async def server_reads(self) -> dict[str, Any]:
        return await read(self.to_server)

    def server_sends(self, message: dict[str, Any] | str) -> None:
        self.from_server.write(line_of(message))

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
        guard = Guard(GuardSettings(**options.pop("settings", {})), verifiers=(options.pop("rules", RULES),))
        serves = options.pop("serves", True)
        note = decisions.append if decisions is not None else lambda _: None
        session = Session(McpProxy(guard, on_decision=note, **options))
        serving = asyncio.create_task(session.serve() if serves else asyncio.sleep(0))
        await test(session)
        (session.to_proxy if serves else session.from_server).close()
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


@pytest.mark.parametrize(
    "line",
    [
        '{"jsonrpc":"2.0","id":1,"method":"ping","Method":"tools/call","params":{"name":"delete"}}',
        '{"jsonrpc":"2.0","id":1,"METHOD":"tools/call","params":{"name":"delete"}}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay"},"Params":{"name":"delete"}}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay","Name":"delete"}}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"Name":"delete","arguments":{"amount":1}}}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay","arguments":{"amount":1},"ARGUMENTS":{}}}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay","arguments":{"amount":1,"Amount":9}}}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay","arguments":{"amount":1,"\uff41mount":9}}}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay","arguments":{"amount":1},"tool":"delete"}}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay","_meta":{"a":1,"A":2}}}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":["delete"]}',
        '{"jsonrpc":"2.0","id":1,"method":"tools\uff0fcall","params":{"name":"delete"}}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/\u200bcall","params":{"name":"delete"}}',
        '{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}',
        '{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":NaN}}',
        '{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":1e400}}',
        '{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":' + "9" * 5000 + "}}",
        '{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":' + "[" * 20_000 + "]" * 20_000 + "}}",
        '{"jsonrpc":"2.0","method":"ping","params":{"a":"' + "x" * 70_000 + '","a":1},"id":1}',
        '{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"' + "x" * MAX_LINE + '"}}',
        '[{"jsonrpc":"2.0","id":1,"method":"ping"}]',
    ],
    ids=range(21),
)
def test_a_message_is_refused_under_its_id_and_the_session_goes_on(line: str) -> None:
    async def client(session: Session) -> None:
        session.client_sends(line)
        answer = await session.client_reads()
        assert answer["id"] == 1
        assert "error" in answer
        session.client_sends(call(2, "pay", {"amount": 5}))
        assert (await session.client_reads())["id"] == 2

    assert [message["params"]["name"] for message in run(client).received] == ["pay"]


def test_what_leaves_is_built_from_the_fields_of_the_protocol() -> None:
    sent = call(7, "pay", {"amount": 5})
    sent["params"] |= {"_meta": {"progressToken": 7}, "task": {"ttl": 9}, "requestState": "s"}

    async def client(session: Session) -> None:
        for message in (
            {"jsonrpc": "9", "id": "a", "method": "prompts/get", "params": {"name": "p"}},
            sent,
            {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": 1}},
        ):
            session.client_sends(message)
        assert {(await session.client_reads())["id"] for _ in range(2)} == {"a", 7}

    leaving = sorted(run(client).received, key=lambda message: message["method"])
    assert [{name: message[name] for name in message if name != "id"} for message in leaving] == [
        {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": 1}},
        {"jsonrpc": "2.0", "method": "prompts/get", "params": {"name": "p"}},
        {"jsonrpc": "2.0", "method": "tools/call", "params": sent["params"]},
    ]
    numbers = [message["id"] for message in leaving if "id" in message]
    assert all(type(number) is int for number in numbers)
    assert len(set(numbers)) == 2


ANSWERS: dict[str, str] = {
    "NaN": '{"jsonrpc":"2.0","id":ID,"result":{"content":[],"structuredContent":{"a":NaN}}}',
    "infinity": '{"jsonrpc":"2.0","id":ID,"result":{"content":[],"structuredContent":{"a":1e400}}}',
    "a name twice": '{"jsonrpc":"2.0","id":ID,"result":{"content":[],"content":[]}}',
    "the id twice": '{"jsonrpc":"2.0","id":999,"id":ID,"result":{}}',
    "5,000 digits": '{"jsonrpc":"2.0","id":ID,"result":{"a":' + "9" * 5000 + "}}",
    "20,000 levels": '{"jsonrpc":"2.0","id":ID,"result":{"a":' + "[" * 20_000 + "]" * 20_000 + "}}",
    "too long": '{"jsonrpc":"2.0","id":ID,"result":{"a":"' + "x" * MAX_LINE + '"}}',
    "too long, the id last": '{"jsonrpc":"2.0","result":{"a":"' + "x" * MAX_LINE + '"},"id":ID}',
    "cut": '{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"te',
    "not UTF-8": '{"jsonrpc":"2.0","id":ID,"result":{"a":"\udcff"}}',
    "neither result nor error": '{"jsonrpc":"2.0","id":ID}',
    "both": '{"jsonrpc":"2.0","id":ID,"result":{},"error":{"code":1,"message":"m"}}',
    "a result that is no object": '{"jsonrpc":"2.0","id":ID,"result":[1]}',
    "an error without code": '{"jsonrpc":"2.0","id":ID,"error":{"message":7}}',
    "an error that is text": '{"jsonrpc":"2.0","id":ID,"error":"x"}',
    "fields that nobody knows": '{"jsonrpc":"2.0","id":ID,"result":{},"Result":{},"extra":1}',
    "in a batch": '[{"jsonrpc":"2.0","id":ID,"result":{}}]',
    "noise, then the answer": 'Server started\n{"status":200}\n[]\n7\n\n'
    '{"jsonrpc":"2.0","id":ID,"result":{}}',
    "another's id, then the answer": '{"jsonrpc":"2.0","id":999,"result":{"a":1}}\n'
    '{"jsonrpc":"2.0","id":ID,"result":{}}',
    "twice": '{"jsonrpc":"2.0","id":ID,"result":{}}\n{"jsonrpc":"2.0","id":ID,"result":{"again":1}}',
    "an unreadable progress": '{"jsonrpc":"2.0","method":"notifications/progress","params":{"a":NaN}}\n'
    '{"jsonrpc":"2.0","id":ID,"result":{}}',
}


@pytest.mark.parametrize("fault", ANSWERS)
@pytest.mark.parametrize("method", ["tools/call", "prompts/get", "initialize", "tools/list"])
def test_every_request_of_the_client_is_answered_once(fault: str, method: str) -> None:
    """Whatever the server says, the client reads one strict answer with its id, and the session goes on."""
    request = {
        "jsonrpc": "2.0",
        "id": "x",
        "method": method,
        "params": {"name": "pay", "arguments": {"amount": 1}},
    }

    async def client(session: Session) -> None:
        session.client_sends(request)
        number = None
        while number is None:
            message = await session.server_reads()
            listing = message["method"] == "tools/list" and method == "tools/call"
            if listing:
                session.server_sends({"jsonrpc": "2.0", "id": message["id"], "result": TOOLS})
            else:
                number = message["id"]
        session.server_sends(ANSWERS[fault].replace("ID", str(number)))
        session.server_sends({"jsonrpc": "2.0", "method": "notifications/message", "params": {}})
        answers = []
        while "method" not in (read := await session.client_reads()):
            answers.append(read)
        [answer] = answers
        assert answer["id"] == "x"
        assert answer.keys() in ({"jsonrpc", "id", "result"}, {"jsonrpc", "id", "error"})
        if "error" in answer:
            assert type(answer["error"]["code"]) is int
            assert isinstance(answer["error"]["message"], str)

    run(client, serves=False)


@pytest.mark.parametrize("fault", ANSWERS)
def test_every_request_of_the_server_is_answered_once(fault: str) -> None:
    async def client(session: Session) -> None:
        session.server_sends({"jsonrpc": "2.0", "id": 0, "method": "sampling/createMessage", "params": {}})
        number = (await session.client_reads())["id"]
        session.client_sends(ANSWERS[fault].replace("ID", str(number)))
        session.client_sends({"jsonrpc": "2.0", "method": "notifications/initialized"})
        answers = []
        while "method" not in (read := await session.server_reads()):
            answers.append(read)
        [answer] = answers
        assert answer["id"] == 0
        assert answer.keys() in ({"jsonrpc", "id", "result"}, {"jsonrpc", "id", "error"})

    run(client, serves=False)


@pytest.mark.parametrize("end", ["it ends", "a message without end"])
def test_when_the_server_is_gone_every_request_has_its_answer(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [call(1, "pay", {"amount": 1}), call(2, "pay", {"amount": 2})]
    requests += [{"jsonrpc": "2.0", "id": name, "method": name} for name in ("ping", "resources/list")]

    async def client(session: Session) -> None:
        for request in requests:
            session.client_sends(request)
        for _ in range(3):  # the list of tools, and two requests that are passed on at once
            await session.server_reads()
        if end == "it ends":
            session.from_server.close()
        else:
            for _ in range(17):
                session.from_server.write(b"x" * MAX_LINE)
        answers = [await session.client_reads() for _ in requests]
        assert {answer["id"] for answer in answers} == {1, 2, "ping", "resources/list"}
        assert all("error" in answer for answer in answers)
        if end != "it ends":
            with pytest.raises(GuardError, match="does not end"):
                await session.running
            session.running = asyncio.create_task(asyncio.sleep(0))

    run(client, serves=False)


def test_a_list_without_end_is_asked_once_and_kept() -> None:
    asked: list[Any] = []

    async def client(session: Session) -> None:
        for number, tools in ((1, TOOLS | {"nextCursor": "same"}), (2, None), (3, TOOLS), (4, None)):
            if number == 3:
                session.server_sends({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
                assert (await session.client_reads())["method"] == "notifications/tools/list_changed"
            session.client_sends(call(number, "pay", {"amount": number}))
            while (message := await session.server_reads())["method"] == "tools/list":
                asked.append(number)
                assert tools is not None
                session.server_sends({"jsonrpc": "2.0", "id": message["id"], "result": tools})
            session.server_sends({"jsonrpc": "2.0", "id": message["id"], "result": {"content": []}})
            assert (await session.client_reads())["id"] == number
        fresh = (TOOLS | {"nextCursor": str(number)} for number in itertools.count())
        session.server_sends({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        assert await session.client_reads()
        session.client_sends(call(5, "pay", {"amount": 5}))
        while (message := await session.server_reads())["method"] == "tools/list":
            asked.append(5)
            session.server_sends({"jsonrpc": "2.0", "id": message["id"], "result": next(fresh)})

    run(client, serves=False)
    assert {number: asked.count(number) for number in asked} == {1: 2, 3: 1, 5: 100}


def test_an_id_is_the_id_of_one_request() -> None:
    async def client(session: Session) -> None:
        session.client_sends({"jsonrpc": "2.0", "id": 1, "method": "resources/read"})
        number = (await session.server_reads())["id"]
        for reused in ({"jsonrpc": "2.0", "id": 1, "method": "ping"}, call(1, "pay", {"amount": 1})):
            session.client_sends(reused)
            answer = await session.client_reads()
            assert answer["id"] is None
            assert "error" in answer
        session.client_sends('{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":NaN}}')
        assert (await session.client_reads())["id"] is None
        session.client_sends({"jsonrpc": "2.0", "id": "1", "method": "ping"})
        other = (await session.server_reads())["id"]
        assert other != number
        session.server_sends({"jsonrpc": "2.0", "id": number, "result": {"of": 1}})
        assert await session.client_reads() == {"jsonrpc": "2.0", "id": 1, "result": {"of": 1}}
        session.server_sends({"jsonrpc": "2.0", "id": str(other), "result": {}})  # a text is another id
        session.server_sends({"jsonrpc": "2.0", "id": other, "result": {"of": "1"}})
        assert await session.client_reads() == {"jsonrpc": "2.0", "id": "1", "result": {"of": "1"}}
        session.client_sends({"jsonrpc": "2.0", "id": 1, "method": "ping"})  # free again
        assert (await session.server_reads())["method"] == "ping"

    run(client, serves=False)


def test_a_request_is_cancelled_under_the_id_that_the_other_side_knows() -> None:
    cancel = {
        "jsonrpc": "2.0",
        "method": "notifications/cancelled",
        "params": {"requestId": 1, "reason": "r"},
    }

    async def client(session: Session) -> None:
        session.client_sends({"jsonrpc": "2.0", "id": 1, "method": "resources/read"})
        number = (await session.server_reads())["id"]
        session.client_sends(cancel)
        cancelled = await session.server_reads()
        assert cancelled == cancel | {"params": {"requestId": number, "reason": "r"}}
        session.client_sends(cancel)  # it is not pending any more, so this names nothing
        session.client_sends({"jsonrpc": "2.0", "id": 1, "method": "ping"})
        again = (await session.server_reads())["id"]
        session.server_sends({"jsonrpc": "2.0", "id": number, "result": {"late": 1}})
        session.server_sends({"jsonrpc": "2.0", "id": again, "result": {}})
        assert await session.client_reads() == {"jsonrpc": "2.0", "id": 1, "result": {}}

    run(client, serves=False)


def test_requests_that_wait_are_bounded() -> None:
    async def client(session: Session) -> None:
        for number in range(10_001):
            session.client_sends({"jsonrpc": "2.0", "id": number, "method": "ping"})
        answer = await session.client_reads()
        assert answer["id"] == 10_000
        assert "requests wait for answers" in answer["error"]["message"]
        session.from_server.close()
        assert {(await session.client_reads())["id"] for _ in range(10_000)} == set(range(10_000))

    run(client, serves=False)


def test_calls_at_the_same_time_are_open_until_their_own_results_come() -> None:
    policy = ToolPolicy(rules=(PolicyRule(tools=("pay",), require="calls.all(c, c.answered)", reason="one"),))

    async def client(session: Session) -> None:
        answers = []
        for number in (1, 2):
            session.client_sends(call(number, "look", {"amount": number}))
            answers.append((await session.server_reads())["id"])
            if number == 1:
                session.server_sends({"jsonrpc": "2.0", "id": answers[0], "result": TOOLS})
                answers[0] = (await session.server_reads())["id"]
        for number, open_calls in ((3, 2), (4, 1), (5, 0)):
            session.client_sends(call(number, "pay", {"amount": number}))
            if open_calls:
                assert (await session.client_reads())["result"]["isError"] is True
                session.server_sends(
                    {"jsonrpc": "2.0", "id": answers[open_calls - 1], "result": {"content": []}}
                )
                assert (await session.client_reads())["id"] == open_calls
            else:
                assert (await session.server_reads())["params"]["name"] == "pay"

    run(client, serves=False, rules=ToolCallVerifier(policy=policy))


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
