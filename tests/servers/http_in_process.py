"""The HTTP endpoints without sockets, in this process: with shortened limits, and callers named by a header."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.clients.raw_client import PATIENCE, ROOT
from toolgate.server.app.app import App
from toolgate.server.base.http.head import parse_head
from toolgate.server.base.principals.principal import Principal
from toolgate.server.config import load
from toolgate.server.config.transports import HTTP_TRANSPORTS
from toolgate.server.methods import lifecycle
from toolgate.server.state.rows.sessions import SessionRecords
from toolgate.transports.http.requests.bearer import SignedInHandler
from toolgate.transports.http.sessions.local_store import NOTE, LocalSessionStore
from toolgate.transports.http.sessions.sessions import Sessions
from toolgate.transports.http.transport import HttpBudgets, TransportServices, create_budgets
from toolgate.transports.http.wire.request import HttpRequest, PendingResponse, StreamedResponse, WholeResponse
from toolgate.transports.http.wire.writer import AnswerWriter
from toolgate.transports.sse import SseTransport
from toolgate.transports.streamable_http import StreamableHttpTransport

HELLO = {
    "jsonrpc": "2.0",
    "id": "hello",
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "tests", "version": "1"},
    },
}


ADA = Principal("tests", "ada", "client")


def user(headers: Mapping[bytes, bytes]) -> Principal:
    until = headers.get(b"x-until")
    name = headers.get(b"x-user", b"ada").decode()
    return Principal("tests", name, "client", until=None if until is None else float(until))


def named(user: str) -> str:
    """Return the name of a user's folders and rows."""
    return Principal("tests", user, "client").name


class Exchange:
    """One request and its answer, of which this is the sink."""

    def __init__(self, handler: SignedInHandler, method: str, path: str, body: bytes, headers: dict[str, str]) -> None:
        lines = {"host": "localhost", **headers, "content-length": str(len(body))}
        text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        head = parse_head(f"{method} {path} HTTP/1.1\r\n{text}\r\n".encode())
        self._request = HttpRequest(head, body, None, "")
        self._came: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._started = asyncio.Event()
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.task = asyncio.create_task(self._answer_and_release(handler))

    async def _answer_and_release(self, handler: SignedInHandler) -> None:
        try:
            await self._answer(handler)
        finally:
            if self._request.on_end is not None:
                self._request.on_end()

    async def _answer(self, handler: SignedInHandler) -> None:
        answer: Any = handler(user(self._request.headers), self._request)
        while not isinstance(answer, (WholeResponse, StreamedResponse)):
            if isinstance(answer, PendingResponse):
                decided = asyncio.get_running_loop().create_future()
                answer.then(decided.set_result)
                answer = await decided
            else:
                answer = await answer
        if isinstance(answer, WholeResponse):
            self.begin_answer(answer.status, answer.lines, closes=answer.closes)
            self._came.put_nowait(answer.body)
            self.end_answer()
        else:
            await answer.write(AnswerWriter(self, is_head=False, is_old=True))  # as it is, without chunks

    def begin_answer(self, status: int, lines: bytes, *, closes: bool) -> bytes:
        self.status = status
        self.headers = dict(line.split(b": ", 1) for line in lines.split(b"\r\n") if line)
        self._started.set()
        return b""

    def send(self, data: bytes) -> None:
        if not self._request.is_lost:
            self._came.put_nowait(data.removeprefix(b"\r\n"))

    async def drain(self) -> None:
        pass

    def end_answer(self) -> None:
        self._came.put_nowait(None)

    def abort(self) -> None:
        self._came.put_nowait(None)

    async def started(self) -> "Exchange":
        async with asyncio.timeout(PATIENCE):
            await self._started.wait()
        return self

    async def events(self) -> AsyncIterator[dict[str, str]]:
        """Yield the events as they arrive; comments under ''."""
        async with asyncio.timeout(PATIENCE):
            while (chunk := await self._came.get()) is not None:
                for part in chunk.decode().split("\r\n\r\n"):
                    fields = (line.partition(":") for line in part.split("\r\n") if line)
                    event = {name: value.removeprefix(" ") for name, _, value in fields}
                    if event:
                        yield event

    async def messages(self) -> list[Any]:
        """Return all messages until the end of the stream."""
        return [json.loads(event["data"]) async for event in self.events() if event.get("data")]

    async def first(self, method: str) -> dict[str, str]:
        """Return the first event with a message of `method`."""
        async for event in self.events():
            if event.get("data") and json.loads(event["data"]).get("method") == method:
                return event
        raise AssertionError(f"no {method} came")

    async def json(self) -> Any:
        """Return the body, or the last message of a stream, which a slow answer is."""
        await self.started()
        if self.headers.get(b"content-type", b"").startswith(b"text/event-stream"):
            return (await self.messages())[-1]
        async with asyncio.timeout(PATIENCE):
            chunks = []
            while (chunk := await self._came.get()) is not None:
                chunks.append(chunk)
        return json.loads(b"".join(chunks)) if chunks else None

    async def hang_up(self) -> None:
        self._request.lose_client()
        async with asyncio.timeout(PATIENCE):
            await self.task


class Inside:
    """`streamable` and `sse` endpoints over one real server core."""

    def __init__(self, app: App, streamable: StreamableHttpTransport, sse: SseTransport, sessions: Sessions) -> None:
        self.app, self.streamable, self.sse, self.sessions = app, streamable, sse, sessions

    def ask(self, method: str, message: Any = None, **headers: str) -> Exchange:
        told = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        body = b"" if message is None else json.dumps(message).encode()
        return Exchange(self.streamable.endpoints()["/mcp"], method, "/mcp", body, told)

    async def session(self, revision: str = "2025-11-25", capabilities: Any = None, **headers: str) -> str:
        """Return the id of a new session, after its handshake."""
        params = {**HELLO["params"], "protocolVersion": revision, "capabilities": capabilities or {}}  # type: ignore[dict-item]
        hello = await self.ask("POST", {**HELLO, "params": params}, **headers).started()
        assert hello.status == 200, await hello.json()
        id = hello.headers[b"mcp-session-id"].decode()
        note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        noted = await self.ask("POST", note, mcp_session_id=id, **headers).started()
        assert noted.status == 202
        return id

    def call(self, session: str, id: Any, tool: str, arguments: Any = None, **headers: str) -> Exchange:
        params = {"name": tool, "arguments": arguments or {}, "_meta": {"progressToken": f"of {id}"}}
        message = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
        return self.ask("POST", message, mcp_session_id=session, **headers)


@contextlib.asynccontextmanager
async def inside(
    folder: Path,
    *,
    idle: float = 1_800.0,
    most: int = 10_000,
    pulse: float = 15.0,
    each: int | None = None,
    remembers: bool = False,
    note: float = NOTE,
    now: Callable[[], float] = time.time,
    shared: HttpBudgets | None = None,
    **limits: Any,
) -> AsyncIterator[Inside]:
    """Yield endpoints with the given limits, and check that nothing runs in the end. With `remembers` they resume the
    sessions of the previous ones. `now` is the clock of all servers."""
    plugins = [str(ROOT / "tests" / "plugins")]
    flags = {"http": "true", "auth": "none", "state": str(folder / "state"), "plugins": plugins, "sandbox": "none"}
    options = load.load({**flags, "browser": "none"})
    app = App(options)
    await app.host.served().plugins.reload(PATIENCE)
    records = SessionRecords(app.host.store(), app.host.clock().processes, "", now) if remembers else None
    take_up = partial(lifecycle.resume_session, app.host.server())
    sessions = Sessions(
        app.host.server().close_session,
        LocalSessionStore(records, take_up, note),
        idle=idle,
        limit=most,
        per_owner=each,
        events=shared.events if shared is not None else None,
    )
    await sessions.recall()
    budgets = shared or create_budgets(app.host.dispatcher().answers)
    streamable = StreamableHttpTransport(
        TransportServices(HTTP_TRANSPORTS[0], app.host.dispatcher(), sessions, budgets, now=now), pulse=pulse, **limits
    )
    sse_sessions = Sessions(app.host.server().close_session, LocalSessionStore())
    before = asyncio.all_tasks()
    try:
        yield Inside(
            app,
            streamable,
            SseTransport(TransportServices(HTTP_TRANSPORTS[1], app.host.dispatcher(), sse_sessions, budgets)),
            sessions,
        )
    finally:
        await sessions.suspend_all()
        sse_sessions.close_all()
        async with asyncio.timeout(PATIENCE):
            while left := asyncio.all_tasks() - before:
                await asyncio.wait(left)
        await app.close()
