"""A small MCP client over stdio, for `demo`, `call` and `tools`: it spawns this very server and talks to it as any
client would. Speaks 2025-11-25. Knows nothing of the server's inside."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

import msgspec

LINE = 64 * 2**20  # bytes of one message we take
PATIENCE = 60.0  # seconds for an answer

Note = Callable[[str, dict[str, Any]], None]
Question = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]


class Fault(Exception):
    """The server answered with an error, or not at all."""


class Ended(Fault):
    """The server ended before it had answered, with exit code `code`."""

    def __init__(self, code: int) -> None:
        super().__init__("the server ended")
        self.code = code


class Client:
    """`note(method, params)` hears notifications; `question(method, params)` answers requests of the server."""

    def __init__(self, process: asyncio.subprocess.Process, note: Note | None, question: Question | None) -> None:
        self._process = process
        self._note = note
        self._question = question
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._last_id = 0
        self._ended: Ended | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, method: str, params: dict[str, Any] | None = None) -> "tuple[int, asyncio.Future[Any]]":
        """Send a request; gives its id and the future of its result."""
        if self._ended is not None:
            raise self._ended
        self._last_id += 1
        answer = asyncio.get_running_loop().create_future()
        self._waiting[self._last_id] = answer
        self._send({"id": self._last_id, "method": method, "params": params or {}})
        return self._last_id, answer

    async def request(self, method: str, params: dict[str, Any] | None = None) -> Any:
        """The result of a request. Raises Fault."""
        _, answer = self.begin(method, params)
        async with asyncio.timeout(PATIENCE):
            return await answer

    def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        self._send({"method": method, "params": params or {}})

    async def call(self, tool: str, arguments: dict[str, Any], **extra: Any) -> dict[str, Any]:
        result: dict[str, Any] = await self.request("tools/call", {"name": tool, "arguments": arguments, **extra})
        return result

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode({"jsonrpc": "2.0", **message}) + b"\n")

    async def read(self) -> None:
        """Hand on what the server says, until it ends."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            message = msgspec.json.decode(line)
            if "method" not in message:
                self._settle(message)
            elif "id" in message:
                task = asyncio.get_running_loop().create_task(self._answer(message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif self._note is not None:
                self._note(message["method"], message.get("params", {}))
        self._ended = Ended(await self._process.wait())
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(self._ended)
                answer.exception()  # nobody may be waiting for it any more, which is no fault

    def _settle(self, message: dict[str, Any]) -> None:
        answer = self._waiting.pop(message.get("id") or 0, None)
        if answer is None or answer.done():
            return
        if "error" in message:
            answer.set_exception(Fault(f"{message['error']['code']} {message['error']['message']}"))
        else:
            answer.set_result(message["result"])

    async def _answer(self, message: dict[str, Any]) -> None:
        if self._question is None:
            self._send({"id": message["id"], "error": {"code": -32601, "message": "not served"}})
            return
        result = await self._question(message["method"], message.get("params", {}))
        self._send({"id": message["id"], "result": result})


@contextlib.asynccontextmanager
async def spawned(
    options: Sequence[str], *, note: Note | None = None, question: Question | None = None
) -> AsyncGenerator[tuple[Client, dict[str, Any]], None]:
    """A server of our own with `options`, initialized: the client and the initialize result. Ended on the way out."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "toolgate.server",
        *options,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE,
    )
    client = Client(process, note, question)
    reading = asyncio.create_task(client.read())
    try:
        capabilities: dict[str, Any] = {} if question is None else {"elicitation": {}}
        hello = {
            "protocolVersion": "2025-11-25",
            "capabilities": capabilities,
            "clientInfo": {"name": "toolgate-cli", "version": "1"},
        }
        answer = await client.request("initialize", hello)
        client.notify("notifications/initialized")
        yield client, answer
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(10):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        await reading
