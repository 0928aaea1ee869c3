"""Carry messages over HTTP+SSE (2024-11-05): what comes, comes on one stream, which names where to post."""

import asyncio
import contextlib
from collections.abc import Mapping
from urllib.parse import urljoin, urlsplit

from toolgate.server.base.http.event_stream import EventTooLargeError, read_events
from toolgate.server.features.mounts.upstream.errors import MountError, UpstreamFault
from toolgate.server.features.mounts.upstream.http_client import HttpClient
from toolgate.server.features.mounts.upstream.messages import MAX_MESSAGE
from toolgate.server.features.mounts.upstream.peer import Flight, UpstreamPeer

OPEN_WITHIN = 10.0  # seconds for the event that names where to post


class SseWire:
    """One stream and where its messages are posted."""

    def __init__(self, url: str, client: HttpClient, peer: UpstreamPeer) -> None:
        self._url = url
        self._peer = peer
        self._client = client.at(url)
        self._sender: HttpClient | None = None
        self._opened = asyncio.Event()
        self._reading = asyncio.get_running_loop().create_task(self._read())

    async def open(self) -> None:
        """Wait until messages can be sent. Raises MountError."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OPEN_WITHIN):
                await self._opened.wait()
        if self._peer.failure is not None:
            raise self._peer.failure.create_error()
        if self._sender is None:
            raise MountError("NOT_MCP", "its event stream names no place to post to")

    async def send(self, message: bytes, flight: Flight | None = None, headers: Mapping[str, str] = {}) -> None:
        assert self._sender is not None
        sent = {"Content-Type": "application/json"}
        async with self._sender.open("POST", sent, message) as response:
            if response.status >= 300:
                response.check_access()
                told = response.describe(await response.read(MAX_MESSAGE))
                raise MountError("HTTP_STATUS", f"it answered with status {response.status} and {told}")

    def abandon(self, flight: Flight) -> bool:
        return False

    async def read_log(self) -> str:
        return ""  # its log is elsewhere

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self._client.close()
        if self._sender is not None:
            await self._sender.close()

    async def _read(self) -> None:
        fault = UpstreamFault("CONNECTION_LOST", "its event stream ended")
        try:
            async with self._client.open("GET", {"Accept": "text/event-stream"}, b"") as response:
                response.check_access()
                if response.status != 200 or not response.is_stream:
                    told = response.describe(await response.read(MAX_MESSAGE))
                    raise MountError("NOT_MCP", f"it answered with status {response.status} and {told}")
                async for event in read_events(response.body, MAX_MESSAGE):
                    if event.name == "endpoint" and self._sender is None:
                        self._sender = self._client.at(self._find_endpoint(event.data))
                        self._opened.set()
                    elif event.name == "message" and event.data:
                        self._peer.receive(event.data.encode())
        except EventTooLargeError:
            fault = UpstreamFault("TOO_LARGE", f"it sent an event of more than {MAX_MESSAGE // 2**20} MiB")
        except MountError as error:
            fault = error.fault
        finally:
            self._peer.fail(fault)
            self._opened.set()

    def _find_endpoint(self, said: str) -> str:
        """Return where to post: an address of the same origin, to which the operator's headers may go."""
        url = urljoin(self._url, said)
        ours, theirs = urlsplit(self._url), urlsplit(url)
        if (ours.scheme, ours.netloc) != (theirs.scheme, theirs.netloc):
            raise MountError("REDIRECTED", f"it wants messages posted to another server, {theirs.netloc[:100]!r}")
        return url
