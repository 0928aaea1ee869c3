"""Open the sessions of each HTTP transport, of which those that clients can resume are stored."""

from collections.abc import Callable
from functools import partial
from typing import Any

from toolgate.server.config.transports import HttpTransport
from toolgate.server.methods import lifecycle
from toolgate.server.methods.server import Server
from toolgate.server.state.rows.sessions import SessionRecords
from toolgate.transports.http.sessions.sessions import Sessions
from toolgate.transports.http.transport import PostForwarder

# The transport, and the limits of `Sessions` → its sessions, and the way to those of other servers, if there is one
OpenSessions = Callable[[HttpTransport, dict[str, Any]], tuple[Sessions, PostForwarder | None]]


class LocalSessionOpener:
    """Opens the sessions of one server. `records` stores them for its next process."""

    def __init__(self, server: Server, records: SessionRecords | None = None) -> None:
        self._server = server
        self._records = records

    def __call__(self, row: HttpTransport, limits: dict[str, Any]) -> tuple[Sessions, None]:
        if not row.is_resumable:
            return Sessions(self._server.close_session, **limits), None
        take_up = partial(lifecycle.resume_session, self._server)
        return Sessions(self._server.close_session, records=self._records, take_up=take_up, **limits), None
