"""Send requests as an MCP client, and start our own server over stdio, for `demo`, `call` and `tools`."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

MAX_MESSAGE = 64 * 2**20  # bytes of one message
ANSWER_TIMEOUT = 60.0  # seconds for an answer
MAX_ROUNDS = 100  # of questions in one call: only a broken server asks more
CLIENT_IDENTITY = {"name": "toolgate-cli", "version": "1"}
SERVER_COMMAND = (sys.executable, "-m", "toolgate.server", "--config", os.devnull)  # its options are flags

NotificationHandler = Callable[[str, dict[str, Any]], None]
QuestionHandler = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]


class McpClientError(Exception):
    """The server answered with an error, or not at all."""


class ConnectionLostError(McpClientError):
    """The connection broke before the answer came: what was asked for may go on."""


class ServerExitError(McpClientError):
    """The server exited before it answered."""

    def __init__(self, code: int) -> None:
        super().__init__("the server exited")
        self.code = code


class McpClient:
    """A client over any transport. It sends by `send(message)`; incoming messages are passed to `receive`.

    `note(method, params)` gets notifications. `question(method, params)` answers the server's requests, or raises
    LookupError.
    """

    def __init__(
        self, send: Callable[[dict[str, Any]], None], note: NotificationHandler | None, question: QuestionHandler | None
    ) -> None:
        self._send_message = send
        self._note = note
        self._question = question
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._last_id = 0
        self._failure: McpClientError | None = None  # the reason why no more answers come
        self._questions: dict[bytes, asyncio.Task[None]] = {}  # by the id of the server's request, in JSON

    def send_request(self, method: str, params: dict[str, Any] | None = None) -> "tuple[int, asyncio.Future[Any]]":
        """Send a request; return its id and a future for its result."""
        if self._failure is not None:
            raise self._failure
        self._last_id += 1
        answer = asyncio.get_running_loop().create_future()
        self._waiting[self._last_id] = answer
        self._send({"id": self._last_id, "method": method, "params": params or {}})
        return self._last_id, answer

    async def request(self, method: str, params: dict[str, Any] | None = None) -> Any:
        """Return the result. Raises McpClientError, and TimeoutError after a time without an open question."""
        _, answer = self.send_request(method, params)
        while not answer.done():
            was_asked = bool(self._questions)
            await asyncio.wait([answer], timeout=ANSWER_TIMEOUT)
            if not (answer.done() or was_asked or self._questions):
                answer.cancel()
                raise TimeoutError(f"no answer to {method} within {ANSWER_TIMEOUT:g} s")
        return answer.result()

    def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        self._send({"method": method, "params": params or {}})

    async def call(self, tool: str, arguments: dict[str, Any], **extra: Any) -> dict[str, Any]:
        """Return the result of a call, answering the server's questions on the way."""
        given: dict[str, Any] = {"name": tool, "arguments": arguments, **extra}
        result: dict[str, Any] = await self.request("tools/call", given)
        for _ in range(MAX_ROUNDS if self._question is not None else 0):
            if result.get("resultType") != "input_required":
                break
            result = await self.request("tools/call", given | await self._collect_input(result))
        return result

    async def _collect_input(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return the answers to the result's questions, and its state. Raises McpClientError."""
        assert self._question is not None
        answers: dict[str, Any] = {}
        try:
            for key, request in result.get("inputRequests", {}).items():
                answers[key] = await self._question(request["method"], request.get("params") or {})
        except (LookupError, TypeError, AttributeError) as error:
            raise McpClientError(f"the server asks for something this client can't answer: {error}") from None
        state = {"requestState": result["requestState"]} if "requestState" in result else {}
        return {"inputResponses": answers, **state}

    def receive(self, message: Any) -> None:
        """Handle one message from the server. Raises McpClientError for what is no message."""
        if not isinstance(message, dict):
            raise McpClientError("the server's message is not a JSON object")
        if "method" not in message:
            self._receive_answer(message)
        elif "id" in message:
            id = msgspec.json.encode(message["id"])
            task = self._questions[id] = asyncio.get_running_loop().create_task(self._answer_request(message))
            task.add_done_callback(lambda _: self._questions.pop(id, None))
        else:
            method, params = message["method"], message.get("params")
            params = params if isinstance(params, dict) else {}
            if method == "notifications/cancelled":
                question = self._questions.get(msgspec.json.encode(params.get("requestId")))
                if question is not None:
                    question.cancel()
            if self._note is not None:
                self._note(method, params)

    def fail(self, fault: McpClientError, id: int | None = None) -> None:
        """Fail the request `id`, or all of them and later ones."""
        if id is None:
            self._failure = fault
        for waiting in list(self._waiting) if id is None else [id]:
            answer = self._waiting.pop(waiting, None)
            if answer is not None and not answer.done():
                answer.set_exception(fault)
                answer.exception()  # marks it as retrieved: its caller may be gone

    def _send(self, message: dict[str, Any]) -> None:
        self._send_message({"jsonrpc": "2.0", **message})

    def _receive_answer(self, message: dict[str, Any]) -> None:
        id, result = message.get("id"), message.get("result")
        answer = self._waiting.pop(int(id), None) if isinstance(id, (int, float)) else None  # 7.0 is 7
        if answer is None or answer.done():
            return
        if isinstance(result, dict):
            answer.set_result(result)
        else:
            answer.set_exception(McpClientError(format_error(message.get("error"))))

    async def _answer_request(self, message: dict[str, Any]) -> None:
        try:
            if self._question is None:
                raise LookupError("nothing was declared")
            result = await self._question(message["method"], message.get("params") or {})
        except LookupError as error:
            self._send({"id": message["id"], "error": {"code": -32601, "message": f"not served: {error}"}})
        else:
            self._send({"id": message["id"], "result": result})


def format_error(error: Any) -> str:
    """Return the code and the message of a JSON-RPC error."""
    if isinstance(error, dict):
        return f"{error.get('code')} {error.get('message')}"
    return "the server's answer has neither a result nor an error"


def initialize_params(revision: str, *, can_answer: bool) -> dict[str, Any]:
    """Return the params of an initialize; `can_answer` declares elicitation."""
    capabilities: dict[str, Any] = {"elicitation": {}} if can_answer else {}
    return {"protocolVersion": revision, "capabilities": capabilities, "clientInfo": CLIENT_IDENTITY}


@contextlib.asynccontextmanager
async def spawn_server(
    options: Sequence[str],
    environment: Mapping[str, str],
    *,
    note: NotificationHandler | None = None,
    question: QuestionHandler | None = None,
) -> AsyncGenerator[tuple[McpClient, dict[str, Any]], None]:
    """Start a server with `options`; yield the client and the initialize result. Leaving ends the server."""
    process = await asyncio.create_subprocess_exec(
        *SERVER_COMMAND,
        *options,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=MAX_MESSAGE,
        env=environment,
    )
    assert process.stdin is not None and process.stdout is not None
    sink = process.stdin
    client = McpClient(lambda message: sink.write(msgspec.json.encode(message) + b"\n"), note, question)
    reading = asyncio.create_task(_read(process, process.stdout, client))
    try:
        answer = await client.request("initialize", initialize_params("2025-11-25", can_answer=question is not None))
        client.notify("notifications/initialized")
        yield client, answer
    finally:
        sink.close()
        await wait_for_exit(process)
        await reading


async def _read(process: asyncio.subprocess.Process, source: asyncio.StreamReader, client: McpClient) -> None:
    while line := await source.readline():
        client.receive(msgspec.json.decode(line))
    client.fail(ServerExitError(await process.wait()))


async def wait_for_exit(process: asyncio.subprocess.Process) -> None:
    """Wait for a server that should exit, and kill it after ten seconds."""
    try:
        async with asyncio.timeout(10):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
