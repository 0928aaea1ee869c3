"""Open the sessions of each HTTP transport, of which those that clients can resume are stored."""

from collections.abc import Callable
from functools import partial
from typing import Any

from toolgate.server.config.transports import HttpTransport
from toolgate.server.methods import lifecycle
from toolgate.server.methods.server import Server
from toolgate.server.state.rows.sessions import SessionRecords
from toolgate.transports.http.sessions.local_store import LocalSessionStore
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
        store = LocalSessionStore()
        if row.is_resumable:
            store = LocalSessionStore(self._records, partial(lifecycle.resume_session, self._server))
        return Sessions(self._server.close_session, store, **limits), None
