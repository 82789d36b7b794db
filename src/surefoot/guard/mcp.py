"""The guard in front of any MCP server: a proxy between a client and a server on standard input and output.

Protocol: Model Context Protocol over stdio, one JSON-RPC message per line, all versions up to 2026-07-28
(https://modelcontextprotocol.io). Only ``tools/call`` is checked; every other message is passed on.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from surefoot.errors import GuardError
from surefoot.failures import fields_failed
from surefoot.guard.guard import Guard
from surefoot.guard.loop import Reviewer, checked_call, refusal_text, refuse_deferring
from surefoot.guard.records import GuardDecision
from surefoot.records import Message, Tool, ToolCall

_LOG = logging.getLogger("surefoot.guard.mcp")
MAX_LINE: Final = 16 * 2**20
"""Bytes of one message; a longer one ends the session."""
_MAX_PAGES: Final = 100
"""Pages of a server's list of tools that are read."""
_LIST_TIMEOUT_S: Final = 30.0
_EXIT_TIMEOUT_S: Final = 5.0
_INVALID_REQUEST: Final = -32600


class Writer(Protocol):
    """The part of :class:`asyncio.StreamWriter` that the proxy needs."""

    def write(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...
    def close(self) -> None: ...


@dataclass
class _Call:
    """A call that was released to the server."""

    call: ToolCall
    result: Message | None = None


class McpProxy:
    """Passes messages between one client and one server; calls that ``guard`` does not release stay here.

    The client reads the reason of a refused call as the call's result, with ``isError``. ``resample`` is the
    same, because the client samples. ``review`` decides about held calls; without it they are refused.
    ``on_decision`` gets each decision. Raises ``GuardError`` for the protocol defer-to-trusted.

    The guard's run has the calls of this session with their results, and no messages of the user, which a
    server never sees. Rules about the user's messages are therefore not satisfied here. A request for a call
    that a client sends again, for example with requested input (2026-07-28), counts as another attempt.

    Messages from the client are parsed once, without duplicate keys, and serialized again, so the server
    reads exactly the message that was checked.
    """

    def __init__(
        self,
        guard: Guard,
        *,
        review: Reviewer | None = None,
        on_decision: Callable[[GuardDecision], None] = lambda _: None,
    ) -> None:
        refuse_deferring(guard)
        self.guard, self.review, self.on_decision = guard, review, on_decision
        self._session = uuid.uuid4().hex
        self._calls: list[_Call] = []
        self._pending: dict[str, _Call] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._tools: tuple[Tool, ...] | None = None
        self._lists: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._turn = asyncio.Lock()

    async def run(
        self,
        client: tuple[asyncio.StreamReader, Writer],
        server: tuple[asyncio.StreamReader, Writer],
    ) -> None:
        """Pass messages on until either side closes its output."""
        self._client, self._server = client[1], server[1]
        sides = [
            asyncio.create_task(self._read(client[0], self._from_client)),
            asyncio.create_task(self._read(server[0], self._from_server)),
        ]
        try:
            done, _ = await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
            for side in done:
                side.result()
            if self._tasks and not sides[1].done():  # the client closed its input and waits for results
                await asyncio.wait(self._tasks.values(), timeout=_EXIT_TIMEOUT_S)
        finally:
            for task in (*sides, *self._tasks.values()):
                task.cancel()
            await asyncio.gather(*sides, *self._tasks.values(), return_exceptions=True)

    async def _read(
        self, reader: asyncio.StreamReader, handle: Callable[[dict[str, Any] | None], Any]
    ) -> None:
        while True:
            try:
                line = await reader.readline()
            except ValueError:  # asyncio's error for a line above the reader's limit
                raise GuardError(f"a message is longer than {MAX_LINE:,} bytes; the session ends") from None
            if not line:
                return
            if line.strip():
                await handle(_parsed(line))

    async def _from_client(self, message: dict[str, Any] | None) -> None:
        if message is None:
            await self._refuse_message(None, "not a JSON-RPC message (or it has a duplicate key)")
            return
        method, number = message.get("method"), message.get("id")
        if not isinstance(method, str | None):
            await self._refuse_message(None, "'method' must be a string")
        elif method == "tools/call":
            if (key := _key(number)) is None or key in self._tasks or key in self._pending:
                await self._refuse_message(number, "'id' of a tool call must be a new string or integer")
                return
            task = asyncio.create_task(self._call(key, message))
            self._tasks[key] = task
            task.add_done_callback(partial(self._ended, key))
        elif method is not None and "".join(method.split()).casefold() == "tools/call":
            await self._refuse_message(number, "the method for calls is 'tools/call'")
        else:
            if method == "notifications/cancelled":
                params = message.get("params")
                key = _key(params.get("requestId")) if isinstance(params, dict) else None
                if key is not None and key in self._tasks:  # still with the guard: the server never saw it
                    self._tasks[key].cancel()
                    return
            await _send(self._server, message)

    async def _from_server(self, message: dict[str, Any] | None) -> None:
        if message is None:
            _LOG.warning("left out a message of the server that is not a JSON-RPC message")
            return
        if message.get("method") == "notifications/tools/list_changed":
            self._tools = None
        elif "method" not in message and (key := _key(message.get("id"))) is not None:
            if (waiting := self._lists.pop(key, None)) is not None:
                if not waiting.done():
                    waiting.set_result(message)
                return
            if (call := self._pending.pop(key, None)) is not None:
                call.result = _result(call.call, message)
        await _send(self._client, message)

    def _ended(self, key: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(key, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.warning("a call was not passed on: %s", type(error).__name__)  # a side has gone

    async def _call(self, key: str, message: dict[str, Any]) -> None:
        """Check one ``tools/call``; calls are checked one at a time, in the order in which they arrived."""
        params = message.get("params")
        if not isinstance(params, dict) or not isinstance(params.get("name"), str) or not params["name"]:
            await self._refuse_message(message["id"], "'params.name' must name a tool")
            return
        arguments = params.get("arguments")
        call = ToolCall(
            id=f"call_{len(self._calls)}_{key}",
            name=params["name"],
            arguments=json.dumps({} if arguments is None else arguments),
        )
        async with self._turn:
            try:
                tools = await self._listed(params)
                decision = await checked_call(
                    self.guard, self._messages(), tools, call, review=self.review, conversation=self._session
                )
                self.on_decision(decision)
            except Exception as error:  # the client waits for an answer, whatever fails
                _LOG.warning("the guard failed", exc_info=error)
                await self._refuse_call(message["id"], "this call was not executed: the guard failed")
                return
            if decision.action != "release":
                await self._refuse_call(message["id"], refusal_text(decision))
                return
            [released] = self.guard.redeem(decision)
            self._pending[key] = _Call(released)
            self._calls.append(self._pending[key])
            params = {**params, "name": released.name, "arguments": json.loads(released.arguments)}
            await _send(self._server, {**message, "params": params})

    async def _listed(self, params: dict[str, Any]) -> tuple[Tool, ...]:
        """The server's tools, asked for before the first call and after each change.

        Requests repeat the call's ``_meta``, in which 2026-07-28 has the version of the protocol.
        """
        if self._tools is not None:
            return self._tools
        tools: list[Tool] = []
        meta = params.get("_meta")
        fields: dict[str, Any] = {}
        if isinstance(meta, dict):
            fields["_meta"] = {name: value for name, value in meta.items() if name != "progressToken"}
        for page in range(_MAX_PAGES):
            number = f"surefoot-tools-{len(self._calls)}-{page}"
            waiting = self._lists[json.dumps(number)] = asyncio.get_running_loop().create_future()
            request = {"jsonrpc": "2.0", "id": number, "method": "tools/list", "params": fields}
            await _send(self._server, request)
            try:
                async with asyncio.timeout(_LIST_TIMEOUT_S):
                    answer = await waiting
            except TimeoutError:
                _LOG.warning("the server has not listed its tools within %g s", _LIST_TIMEOUT_S)
                break
            result = answer.get("result")
            result = result if isinstance(result, dict) else {}
            tools += map(_tool, filter(_is_tool, result.get("tools") or ()))
            fields = {**fields, "cursor": result.get("nextCursor")}
            if not isinstance(fields["cursor"], str):
                self._tools = tuple(tools)
                break
        return tuple(tools)

    def _messages(self) -> tuple[Message, ...]:
        """The calls so far with their results, in the order of the calls."""
        messages: list[Message] = []
        for call in self._calls:
            messages.append(Message(role="assistant", tool_calls=(call.call,)))
            if call.result is not None:
                messages.append(call.result)
        return tuple(messages)

    async def _refuse_call(self, number: Any, text: str) -> None:
        content = [{"type": "text", "text": text}]
        result = {"content": content, "isError": True, "resultType": "complete"}
        await _send(self._client, {"jsonrpc": "2.0", "id": number, "result": result})

    async def _refuse_message(self, number: Any, text: str) -> None:
        number = number if _key(number) is not None else None
        error = {"code": _INVALID_REQUEST, "message": f"not passed on: {text}"}
        await _send(self._client, {"jsonrpc": "2.0", "id": number, "error": error})


async def run_proxy(proxy: McpProxy, command: Sequence[str]) -> int:
    """Start the server ``command``, and be that server on this process's standard input and output.

    Returns 0 if the client ends the session, otherwise the server's exit status. Raises ``GuardError`` if the
    command cannot be started.
    """
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=MAX_LINE)
    except OSError as error:
        raise GuardError(f"cannot start the MCP server {command[0]!r}: {error.strerror or error}") from error
    to_server, from_server = process.stdin, process.stdout
    if to_server is None or from_server is None:
        raise GuardError("the MCP server has no standard input or output")
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MAX_LINE)
    try:
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
        # StreamReaderProtocol is the only public protocol with which a StreamWriter can wait for a full pipe
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), sys.stdout.buffer
        )
        writer = asyncio.StreamWriter(transport, protocol, None, loop)
        await proxy.run((reader, writer), (from_server, to_server))
    finally:
        to_server.close()
        # the order in which the specification ends a server: close its input, then terminate, then kill
        stops: tuple[Callable[[], object], ...] = (lambda: None, process.terminate, process.kill)
        for stop in stops:
            with suppress(ProcessLookupError):
                stop()
            with suppress(TimeoutError):
                async with asyncio.timeout(_EXIT_TIMEOUT_S):
                    await process.wait()
                break
    return 0 if reader.at_eof() else abs(process.returncode or 0)


def _parsed(line: bytes) -> dict[str, Any] | None:
    """A message; ``None`` for anything else, and for objects that name a key twice."""
    try:
        message = json.loads(line, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("duplicate key")
    return fields


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _key(number: Any) -> str | None:
    """The id of a request as a key, so that 1 and "1" differ; ``None`` for one that is not valid."""
    valid = isinstance(number, str | int) and not isinstance(number, bool)
    return json.dumps(number) if valid else None


async def _send(writer: Writer, message: dict[str, Any]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")
    await writer.drain()


def _is_tool(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("name"), str) and bool(entry["name"])


def _tool(entry: dict[str, Any]) -> Tool:
    schema = entry.get("inputSchema")
    return Tool(
        name=entry["name"],
        description=str(entry.get("description") or ""),
        parameters=json.dumps(schema if isinstance(schema, dict) else {"type": "object"}),
    )


def _result(call: ToolCall, message: dict[str, Any]) -> Message | None:
    """The answer to a call as a tool's message; ``None`` if the server asks for input before it answers."""
    error, result = message.get("error"), message.get("result")
    if error is not None or not isinstance(result, dict):
        return Message(role="tool", tool_call_id=call.id, content=json.dumps(error), error=True)
    if result.get("resultType", "complete") != "complete":
        return None
    if "structuredContent" in result:
        text = json.dumps(result["structuredContent"])
    else:
        blocks = result.get("content")
        blocks = blocks if isinstance(blocks, list) else []
        texts = [block.get("text") for block in blocks if isinstance(block, dict)]
        text = "\n".join(text for text in texts if isinstance(text, str))
    return Message(
        role="tool",
        tool_call_id=call.id,
        content=text,
        error=fields_failed({"isError": result.get("isError", False)}),
    )
