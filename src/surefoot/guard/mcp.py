"""The guard in front of any MCP server: a proxy between a client and a server on standard input and output.

Protocol: Model Context Protocol over stdio, one JSON-RPC message per line, all versions up to 2026-07-28
(https://modelcontextprotocol.io). Only ``tools/call`` is checked; every other message is passed on.

Every message that leaves is built here from the fields that the protocol has, and every request gets an
answer: the other side's, or an error that says why there is none.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import re
import sys
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from surefoot.errors import GuardError
from surefoot.failures import fields_failed
from surefoot.guard.guard import Guard
from surefoot.guard.loop import Reviewer, checked_call, refusal_text
from surefoot.guard.records import GuardDecision
from surefoot.messages import normal_name, strict_decoder
from surefoot.records import Message, Tool, ToolCall

_LOG = logging.getLogger("surefoot.guard.mcp")
MAX_LINE: Final = 16 * 2**20
"""Bytes of one message; a longer one is refused."""
_MAX_SKIPPED: Final = 16 * MAX_LINE
"""Bytes of a refused message up to its end; a longer one ends the session."""
_CHUNK: Final = 2**16
_OUTLINE: Final = 2**16
"""Bytes at the beginning of an unreadable message in which its id is looked for."""
_TAIL: Final = 1000
"""Bytes at its end in which the id is looked for, too."""
_MAX_METHOD: Final = 200
_MAX_WAITING: Final = 10_000
"""Requests of one side without an answer."""
_MAX_PAGES: Final = 100
"""Pages of a server's list of tools that are read."""
_LIST_TIMEOUT_S: Final = 30.0
_EXIT_TIMEOUT_S: Final = 5.0
_INVALID_REQUEST, _NO_ANSWER, _ENDED = -32600, -32603, -32000
_CALL: Final = "tools/call"
_FIELDS: Final = {"jsonrpc", "id", "method", "params", "result", "error"}
_CALL_FIELDS: Final = {"name", "arguments", "_meta", "task", "inputResponses", "requestState"}
"""Parameters of a call; of the last ones, 2025-11-25 has ``task``, 2026-07-28 the others."""
_STRICT, _JSON = strict_decoder(), strict_decoder(same=str)
"""Of the client's messages, and of the server's, whose results may have keys such as "the" and "The"."""
_TOKENS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s"{}\[\]:,]+')
_LAST_ID: Final = re.compile(rb'"id"\s*:\s*("(?:[^"\\]|\\.)*"|-?\d{1,20})\s*\}\s*$')


class Writer(Protocol):
    """The part of :class:`asyncio.StreamWriter` that the proxy needs."""

    def write(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...
    def close(self) -> None: ...


@dataclass(eq=False)
class _Request:
    """A request that was passed on."""

    number: Any
    """Its sender's id."""
    call: ToolCall | None = None
    tools: asyncio.Future[dict[str, Any]] | None = None
    """Gets the answer to a request of the proxy itself."""
    cancelled: bool = False


class _Side:
    """The client or the server."""

    def __init__(self, name: str, writer: Writer) -> None:
        self.name, self._writer = name, writer
        self.asked: dict[str, int | None] = {}
        """Its requests without an answer, by id; the number under which each was passed on."""
        self.waiting: dict[int, _Request] = {}
        """Requests that it has not answered, by number."""
        self.idle = asyncio.Event()
        """Every request of it has its answer."""
        self.idle.set()

    async def send(self, **fields: Any) -> None:
        self._writer.write(json.dumps({"jsonrpc": "2.0", **fields}).encode() + b"\n")
        await self._writer.drain()

    def asks(self, key: str) -> None:
        self.asked[key] = None
        self.idle.clear()

    def forget(self, key: str) -> None:
        self.asked.pop(key, None)
        if not self.asked:
            self.idle.set()

    async def answer(self, number: Any, **result: Any) -> None:
        """Answer its request ``number`` with ``result`` or ``error``."""
        self.forget(json.dumps(number))
        await self.send(id=number, **result)

    async def refuse(self, number: Any, text: str) -> None:
        """Answer its request with an error; without id if ``number`` is none, or another request's."""
        error = {"code": _INVALID_REQUEST, "message": text}
        if (key := _key(number)) is not None and key not in self.asked:
            await self.answer(number, error=error)
        elif self.name == "client":  # it reads errors without id; a server cannot be notified
            await self.send(id=None, error=error)


class McpProxy:
    """Passes messages between one client and one server; calls that ``guard`` does not release stay here.

    The client reads the reason of a refused call as the call's result, with ``isError``. ``resample`` is the
    same, because the client samples. ``review`` decides about held calls; without it they are refused.
    ``on_decision`` gets each decision.

    The guard's run has the calls of this session with their results, and no messages of the user, which a
    server never sees. Rules about the user's messages are therefore not satisfied here. A request for a call
    that a client sends again, for example with requested input (2026-07-28), counts as another attempt.

    Messages are parsed once, the client's without names that are equal but for case, Unicode form or spaces.
    What leaves is built from the protocol's fields, under an id of the proxy: a server reads exactly the
    message that was checked, and no answer can belong to two requests. Every request is answered, also if the
    other side's answer cannot be read, is too long or never comes because that side has ended. One that its
    sender cancels is not, as the protocol asks.
    """

    def __init__(
        self,
        guard: Guard,
        *,
        review: Reviewer | None = None,
        on_decision: Callable[[GuardDecision], None] = lambda _: None,
    ) -> None:
        self.guard, self.review, self.on_decision = guard, review, on_decision
        self._session = uuid.uuid4().hex
        self._numbers = itertools.count(1)
        self._done: list[Message] = []
        """The answered calls with their results, in the order of the answers."""
        self._open: dict[str, ToolCall] = {}
        """The released calls without a result."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._tools: tuple[Tool, ...] | None = None
        self._changes = 0
        """How often the server has changed its tools."""
        self._turn = asyncio.Lock()

    async def run(
        self,
        client: tuple[asyncio.StreamReader, Writer],
        server: tuple[asyncio.StreamReader, Writer],
    ) -> None:
        """Pass messages on until either side closes its output. Raises ``GuardError`` for an endless one."""
        self._client, self._server = _Side("client", client[1]), _Side("server", server[1])
        readers: list[asyncio.Task[Any]] = [
            asyncio.create_task(self._read(self._client, client[0])),
            asyncio.create_task(self._read(self._server, server[0])),
        ]
        try:
            ended, _ = await asyncio.wait(readers, return_when=asyncio.FIRST_COMPLETED)
            for reader in ended:
                with suppress(OSError):  # the other side reads no more
                    reader.result()
            if readers[0] in ended:  # the client closed its input and waits for results
                readers[0] = asyncio.create_task(self._client.idle.wait())
                await asyncio.wait(readers, timeout=_EXIT_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks = (*readers, *self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for side in (self._client, self._server):
                for key in list(side.asked):
                    error = {"code": _ENDED, "message": "the session has ended without an answer"}
                    with suppress(OSError):
                        await side.answer(json.loads(key), error=error)

    async def _read(self, side: _Side, reader: asyncio.StreamReader) -> None:
        line, head, skipped = bytearray(), b"", 0
        while chunk := await reader.read(_CHUNK):
            *ends, remainder = chunk.split(b"\n")
            for end in ends:
                line += end
                if head or len(line) > MAX_LINE:
                    await self._unreadable(side, head + line, f"it is longer than {MAX_LINE:,} bytes")
                elif line.strip():
                    await self._line(side, bytes(line))
                line, head, skipped = bytearray(), b"", 0
            line += remainder
            if len(line) > (_TAIL if head else MAX_LINE):
                head = head or bytes(line[:_OUTLINE])
                skipped += len(line) - _TAIL
                del line[:-_TAIL]
            if skipped > _MAX_SKIPPED:
                raise GuardError(f"a message of the {side.name} does not end; the session ends")
        if line.strip():
            await self._line(side, bytes(line))

    async def _line(self, side: _Side, line: bytes) -> None:
        try:
            message = (_STRICT if side is self._client else _JSON).decode(line.decode())
        except (ValueError, RecursionError) as error:
            await self._unreadable(side, line, str(error)[:200])
            return
        for part in message if isinstance(message, list) else [message]:
            if not isinstance(part, dict):
                await self._refuse(side, (), None, "it is not a JSON-RPC message")
            elif side is self._client and part is not message:
                await self._refuse(side, part, part.get("id"), "batches are not supported")
            else:
                await self._message(side, part)

    async def _unreadable(self, side: _Side, line: bytes, reason: str) -> None:
        _LOG.warning("left out a message of the %s that cannot be read: %s", side.name, reason)
        names, numbers = _outline(line)
        for number in numbers or [None]:
            await self._refuse(side, names, number, reason)

    async def _refuse(self, side: _Side, names: Collection[str], number: Any, reason: str) -> None:
        """Answer the request that a message with the fields ``names`` is, or would have answered."""
        if "method" not in names and type(number) is int and number in side.waiting:
            await self._answer(side, number, None, reason)
        elif "method" in names or side is self._client:
            await side.refuse(number, f"not passed on: {reason}")

    async def _message(self, side: _Side, message: dict[str, Any]) -> None:
        number, method, params = (message.get(name) for name in ("id", "method", "params"))
        unknown = sorted(message.keys() - _FIELDS)
        if unknown and side is self._client:
            await self._refuse(side, message, number, f"unknown field {unknown[0][:100]!r}")
        elif "method" not in message:
            await self._answer(side, number, message, "it is not an answer")
        elif not isinstance(method, str) or len(method) > _MAX_METHOD or message.keys() & {"result", "error"}:
            await self._refuse(side, message, number, "it is not one request or one answer")
        elif not isinstance(params, dict | None):
            await self._refuse(side, message, number, "'params' must be an object")
        elif method != _CALL and normal_name(method) == _CALL:
            await self._refuse(side, message, number, f"the method for calls is {_CALL!r}")
        elif "id" not in message and method != _CALL:
            await self._notify(side, method, params)
        elif (key := _key(number)) is None or key in side.asked:
            await self._refuse(side, message, None, "'id' must be a new string or integer")
        elif max(len(side.asked), len(self._other(side).waiting)) >= _MAX_WAITING:
            await self._refuse(side, message, number, f"{_MAX_WAITING:,} requests wait for answers")
        else:
            side.asks(key)
            if side is self._client and method == _CALL:
                self._tasks[key] = task = asyncio.create_task(self._call(number, params or {}))
                task.add_done_callback(partial(self._ended, key))
            else:
                await self._pass(side, number, method, params)

    def _other(self, side: _Side) -> _Side:
        return self._server if side is self._client else self._client

    async def _pass(
        self, side: _Side, number: Any, method: str, params: Any, call: ToolCall | None = None
    ) -> None:
        """Pass a request on, under a number of the proxy."""
        to, sent_id = self._other(side), next(self._numbers)
        to.waiting[sent_id] = _Request(number, call)
        side.asked[json.dumps(number)] = sent_id
        await to.send(id=sent_id, method=method, **({} if params is None else {"params": params}))

    async def _notify(self, side: _Side, method: str, params: dict[str, Any] | None) -> None:
        """Pass a notification on. One that cancels a request names it as the other side knows it."""
        if method == "notifications/tools/list_changed" and side is self._server:
            self._tools = None
            self._changes += 1
        elif method == "notifications/cancelled":
            key = _key((params or {}).get("requestId"))
            if key is None or key not in side.asked:
                return
            sent_id = side.asked[key]
            side.forget(key)
            if sent_id is None:  # still with the guard: the server never saw it
                if (task := self._tasks.get(key)) is not None:
                    task.cancel()
                return
            self._other(side).waiting[sent_id].cancelled = True
            params = {**(params or {}), "requestId": sent_id}
        await self._other(side).send(method=method, **({} if params is None else {"params": params}))

    async def _answer(self, side: _Side, number: Any, message: dict[str, Any] | None, reason: str) -> None:
        """Pass on what ``side`` answers to the request ``number``; if that cannot be read, the ``reason``."""
        request = side.waiting.pop(number, None) if type(number) is int else None
        if request is None:
            _LOG.warning("left out a message of the %s that answers no request", side.name)
            return
        answer = _answer_of(message or {}, reason)
        if request.tools is not None:
            if not request.tools.done():
                request.tools.set_result(answer)
            return
        if request.call is not None:
            self._note(request.call, answer)
            if "error" in answer and message is None:
                answer = {"result": _refusal(f"the call may have been executed; no result: {reason}")}
        if not request.cancelled:
            await self._other(side).answer(request.number, **answer)

    def _note(self, call: ToolCall, answer: dict[str, Any]) -> None:
        """Move a call with its result to the answered ones."""
        if (result := _result(call, answer)) is not None and self._open.pop(call.id or "", None) is not None:
            self._done += [Message(role="assistant", tool_calls=(call,)), result]

    def _ended(self, key: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.warning("a call was not passed on: %s", type(error).__name__)  # a side has gone

    async def _call(self, number: Any, params: dict[str, Any]) -> None:
        """Check one ``tools/call``; calls are checked one at a time, in the order in which they arrived."""
        name, arguments = params.get("name"), params.get("arguments")
        unknown = sorted(params.keys() - _CALL_FIELDS)
        if unknown or not isinstance(name, str) or not name:
            why = f"unknown field {unknown[0][:100]!r}" if unknown else "'params.name' must name a tool"
            error = {"code": _INVALID_REQUEST, "message": f"not passed on: {why}"}
            await self._client.answer(number, error=error)
            return
        call = ToolCall(
            id=f"call_{next(self._numbers)}",
            name=name,
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
                refusal = _refusal("this call was not executed: the guard failed")
                await self._client.answer(number, result=refusal)
                return
            if decision.action != "release":
                await self._client.answer(number, result=_refusal(refusal_text(decision)))
                return
            [released] = self.guard.redeem(decision)
            self._open[released.id or ""] = released
            checked = {"name": released.name, "arguments": json.loads(released.arguments)}
            await self._pass(self._client, number, _CALL, {**params, **checked}, released)

    async def _listed(self, params: dict[str, Any]) -> tuple[Tool, ...]:
        """The server's tools, asked for before the first call and after each change.

        Requests repeat the call's ``_meta``, in which 2026-07-28 has the version of the protocol.
        """
        if self._tools is not None:
            return self._tools
        tools: list[Tool] = []
        cursors = set[str]()
        meta, changes = params.get("_meta"), self._changes
        fields: dict[str, Any] = {}
        if isinstance(meta, dict):
            fields["_meta"] = {name: value for name, value in meta.items() if name != "progressToken"}
        for _ in range(_MAX_PAGES):
            sent_id, answered = next(self._numbers), asyncio.get_running_loop().create_future()
            self._server.waiting[sent_id] = _Request(None, tools=answered)
            await self._server.send(id=sent_id, method="tools/list", params=fields)
            try:
                async with asyncio.timeout(_LIST_TIMEOUT_S):
                    answer = await answered
            except TimeoutError:
                _LOG.warning("the server has not listed its tools within %g s", _LIST_TIMEOUT_S)
                return tuple(tools)
            finally:
                self._server.waiting.pop(sent_id, None)
            result = answer.get("result")
            if result is None:
                return tuple(tools)
            listed = result.get("tools")
            tools += map(_tool, filter(_is_tool, listed if isinstance(listed, list) else ()))
            cursor = result.get("nextCursor")
            if not isinstance(cursor, str) or cursor in cursors:
                break
            cursors.add(cursor)
            fields = {**fields, "cursor": cursor}
        else:
            _LOG.warning("the server lists more than %d pages of tools; the others are unknown", _MAX_PAGES)
        if changes == self._changes:
            self._tools = tuple(tools)
        return tuple(tools)

    def _messages(self) -> tuple[Message, ...]:
        """The calls so far with their results; those without one are last, in one message."""
        last = [Message(role="assistant", tool_calls=tuple(self._open.values()))] if self._open else []
        return (*self._done, *last)


async def run_proxy(proxy: McpProxy, command: Sequence[str]) -> int:
    """Start the server ``command``, and be that server on this process's standard input and output.

    Returns 0 if the client ends the session, otherwise the server's exit status. Raises ``GuardError`` if the
    command cannot be started.
    """
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    except OSError as error:
        raise GuardError(f"cannot start the MCP server {command[0]!r}: {error.strerror or error}") from error
    to_server, from_server = process.stdin, process.stdout
    if to_server is None or from_server is None:
        raise GuardError("the MCP server lacks standard input or output")
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
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


def _key(number: Any) -> str | None:
    """The id of a request as a key, so that 1 and "1" differ; ``None`` for one that is not valid."""
    valid = isinstance(number, str | int) and not isinstance(number, bool)
    return json.dumps(number) if valid else None


def _outline(line: bytes) -> tuple[set[str], list[Any]]:
    """Names at the top level of a message that cannot be parsed, and its ids."""
    names, numbers = set[str](), []
    depth, name, last = 0, "", b""
    for token in _TOKENS.findall(line[:_OUTLINE]):
        if token == b":" and depth == 1:
            name = str(_value(last))
            names.add(name)
        elif token in (b"{", b"["):
            depth += 1
        elif token in (b"}", b"]"):
            depth -= 1
        elif depth == 1 and last == b":" and name == "id":
            numbers.append(_value(token))
        last = token
    if not numbers and (match := _LAST_ID.search(line[-_TAIL:])):
        numbers.append(_value(match[1]))
    return names, [number for number in numbers if _key(number) is not None]


def _value(token: bytes) -> Any:
    """A name, text or number of JSON; ``None`` for anything else."""
    try:
        return json.loads(token[:_TAIL])
    except ValueError:
        return None


def _answer_of(message: dict[str, Any], reason: str) -> dict[str, Any]:
    """``result`` or ``error`` of an answer, built from the protocol's fields."""
    result, error = message.get("result"), message.get("error")
    if isinstance(result, dict) and error is None:
        return {"result": result}
    if not isinstance(error, dict) or "result" in message:
        return {"error": {"code": _NO_ANSWER, "message": f"the answer cannot be passed on: {reason}"}}
    code = error["code"] if type(error.get("code")) is int else _NO_ANSWER
    data = {"data": error["data"]} if "data" in error else {}
    return {"error": {"code": code, "message": str(error.get("message", "")), **data}}


def _refusal(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": True, "resultType": "complete"}


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
