"""Carry messages over Streamable HTTP, with and without sessions: a POST each, whose response brings what comes of it.

Redirects are not followed: the operator wrote the URL, and another address was nobody's choice. A response stream that
breaks is resumed from its last event, if the server gives its events ids (2025-11-25 basic/transports, "Resumability").
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

import msgspec

from toolgate.server.base.http.event_stream import EventTooLargeError, read_events
from toolgate.server.features.mounts.upstream import messages
from toolgate.server.features.mounts.upstream.errors import MountError, UpstreamFault
from toolgate.server.features.mounts.upstream.http_client import HttpAnswer, HttpClient
from toolgate.server.features.mounts.upstream.messages import MAX_MESSAGE, MAX_SHOWN
from toolgate.server.features.mounts.upstream.peer import Flight, UpstreamPeer

RESUMES = 5  # times in a row that a stream is taken up again without an event between
RESUME_AFTER = 1.0  # seconds, if the server names no time
MAX_RETRY = 30.0  # seconds that a server may have us wait
MIN_RETRY = 0.1
LISTEN_AFTER = 5.0  # seconds before the stream of unasked messages is opened again
END_WITHIN = 2.0  # seconds for the end of the session
GONE = frozenset((-32000, -32001, -32600))  # codes of a 400 by which servers say that they don't know a session
EXPIRED = "it does not know this session any more"


class HttpWire:
    """One conversation over HTTP."""

    def __init__(self, client: HttpClient, peer: UpstreamPeer) -> None:
        self._client = client
        self._peer = peer
        self._session = ""
        self._tasks: dict[asyncio.Task[None], Flight | None] = {}

    async def send(self, message: bytes, flight: Flight | None = None, headers: Mapping[str, str] = {}) -> None:
        if flight is None:
            await self._post(message, None, headers)
            return
        task = asyncio.get_running_loop().create_task(self._carry(message, flight, headers))
        self._tasks[task] = flight
        task.add_done_callback(self._tasks.pop)

    def abandon(self, flight: Flight) -> bool:
        for task, carried in self._tasks.items():
            if carried is flight:
                task.cancel()
        return not self._session  # without a session the end of the connection tells

    def listen(self) -> None:
        """Open the stream of unasked messages, for servers that have one, and keep it open."""
        task = asyncio.get_running_loop().create_task(self._listen())
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def read_log(self) -> str:
        return ""  # its log is elsewhere

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session and self._peer.failure is None:
            with contextlib.suppress(MountError, TimeoutError):
                async with asyncio.timeout(END_WITHIN):
                    async with self._client.open("DELETE", self._headers({}), b"", is_call=False):
                        pass

    def _headers(self, others: Mapping[str, str]) -> dict[str, str]:
        own = {"MCP-Protocol-Version": self._peer.revision} if self._peer.revision else {}
        return {**own, **({"Mcp-Session-Id": self._session} if self._session else {}), **others}

    async def _carry(self, message: bytes, flight: Flight, headers: Mapping[str, str]) -> None:
        """Send a request, and take what comes of it. The flight has an end whatever happens."""
        fault = UpstreamFault("CONNECTION_LOST", "the response ended before the answer came")
        try:
            await self._post(message, flight, headers)
        except MountError as error:
            fault = error.fault
        finally:
            self._peer.fail(fault, flight)
            if fault.code == "SESSION_EXPIRED":  # this request did not run, and others may have
                self._peer.has_expired = True
                self._peer.fail(UpstreamFault("CONNECTION_LOST", fault.sentence))

    async def _post(self, message: bytes, flight: Flight | None, headers: Mapping[str, str]) -> None:
        sent = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        is_call = flight is None or flight.is_call
        async with self._client.open("POST", self._headers({**sent, **headers}), message, is_call=is_call) as response:
            if response.status >= 300:
                await self._take_refusal(response, flight)
                return
            self._session = response.headers.get("mcp-session-id", "") or self._session
            if response.is_stream:
                await self._take_stream(response, flight)
            elif response.status != 202:
                body = await response.read(MAX_MESSAGE)
                if body or flight is not None:
                    self._take_body(response, body, flight)

    def _take_body(self, response: HttpAnswer, body: bytes, flight: Flight | None) -> None:
        if not response.is_json:
            raise MountError(
                "NOT_MCP", f"it answered with {response.describe(body)}: is this the URL of an MCP server?"
            )
        self._peer.receive(body, flight)
        if flight is not None and not flight.is_over:
            raise MountError("BAD_MESSAGE", "its response has no answer to the request")

    async def _take_refusal(self, response: HttpAnswer, flight: Flight | None) -> None:
        """Take a response whose status is no success. Raises MountError, unless an error answers the request."""
        body = await response.read(MAX_MESSAGE)
        code, told = _read_error(response, body)
        speaks_of_it = any(word in told.lower() for word in ("session", "initializ"))
        is_lost = response.status == 404 or (
            response.status in (400, 503) and speaks_of_it and (code is None or code in GONE)
        )
        if self._session and is_lost:
            raise MountError("SESSION_EXPIRED", EXPIRED)
        response.check_access()
        if flight is not None and code is not None:
            self._peer.receive(body, flight)
            if flight.is_over:
                return
        raise MountError("HTTP_STATUS", f"it answered with status {response.status} and {response.describe(body)}")

    async def _take_stream(self, response: HttpAnswer, flight: Flight | None) -> None:
        """Take the events of a response, and of those that resume it."""
        last, pause, resumes = await self._take_events(response.body, flight, "")
        if flight is not None and flight.is_over:
            await response.drain()
        while flight is not None and not flight.is_over and last and resumes < RESUMES:
            await asyncio.sleep(max(pause, MIN_RETRY))
            before = last
            headers = self._headers({"Accept": "text/event-stream", "Last-Event-ID": last})
            try:
                async with self._client.open("GET", headers, b"", is_call=False) as again:
                    if again.status != 200 or not again.is_stream:
                        return
                    last, pause, _ = await self._take_events(again.body, flight, last)
            except MountError as error:  # whatever it is, the request was sent
                raise MountError("CONNECTION_LOST", error.sentence) from None
            resumes = resumes + 1 if last == before else 0

    async def _take_events(
        self, body: AsyncIterator[bytes], flight: Flight | None, last: str
    ) -> tuple[str, float, int]:
        """Return the id of the last event, the seconds until the stream may be resumed, and 0."""
        pause = RESUME_AFTER
        try:
            async with contextlib.aclosing(read_events(body, MAX_MESSAGE)) as events:
                async for event in events:
                    last = event.id or last
                    pause = pause if event.retry is None else min(event.retry / 1000, MAX_RETRY)
                    if event.name == "message" and event.data:
                        self._peer.receive(event.data.encode(), flight)
                    if flight is not None and flight.is_over:
                        break
        except EventTooLargeError:
            raise MountError("TOO_LARGE", f"it sent an event of more than {MAX_MESSAGE // 2**20} MiB") from None
        except MountError as error:
            if not last or error.code != "CONNECTION_LOST":
                raise
        return last, pause, 0

    async def _listen(self) -> None:
        last = ""
        while self._peer.failure is None:
            headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}
            pause = LISTEN_AFTER
            try:
                async with self._client.open("GET", self._headers(headers), b"", is_call=False) as response:
                    if response.status != 200 or not response.is_stream:
                        return  # it has none
                    last, pause, _ = await self._take_events(response.body, None, last)
            except MountError:
                pass  # the next call hears of it
            await asyncio.sleep(max(pause, RESUME_AFTER))


def _read_error(response: HttpAnswer, body: bytes) -> tuple[int | None, str]:
    """Return the code and the text of an error of JSON-RPC; None and what is said, if it is none."""
    text = body[:MAX_SHOWN].decode(errors="replace")
    if not response.is_json:
        return None, text
    try:
        (message,) = messages.decode_messages(body)
    except (MountError, ValueError):
        return None, text
    if isinstance(message.error, msgspec.UnsetType):
        return None, text
    refusal = messages.read_refusal(message.error)
    return refusal.code, refusal.message
