"""Define what a session of an HTTP client has outside this process: its record, and other servers that have it, too."""

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from toolgate.server.base.principals.principal import Principal
from toolgate.server.protocol.messages import Inbound, Outbound
from toolgate.transports.http.sessions.event_stream import EventStream


class SessionBackend(Protocol):
    """The record of one session, and what reaches its client at other servers."""

    @property
    def is_stored(self) -> bool:
        """Whether a later process, or another server, can go on with the session."""
        ...

    @property
    def can_ask(self) -> bool:
        """Whether a GET stream has a reader, at any server."""
        ...

    def note_rights(self) -> None:
        """Store that another grant, or other scopes, used the session."""
        ...

    def note_stream(self, stream: EventStream) -> None:
        """Keep the events of a new stream, for readers at other servers."""
        ...

    def note_end(self) -> None:
        """The session is closed here."""
        ...

    def send(self, message: Outbound) -> None:
        """Send an unrequested message where the client reads."""
        ...

    async def write(self) -> None:
        """Store what a notification changed, for other servers."""
        ...

    async def pass_on(self, message: Inbound | list[Inbound]) -> None:
        """Pass the parts of a message that are for other servers on to them."""
        ...

    async def resume(self, id: str, principal: Principal) -> tuple[EventStream, int] | None:
        """Return the stream and number of an event id of any server, or None if there is no such event any more."""
        ...

    def keep_request(self, stream: EventStream, message: Inbound | list[Inbound]) -> None:
        """Keep a request, to be made again at another server if this one dies before its answer."""
        ...

    def listen(self, stream: EventStream) -> AbstractAsyncContextManager[None]:
        """Return a context in which unrequested messages of all servers come to this stream of a GET."""
        ...
