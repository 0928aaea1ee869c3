"""Gives each HTTP request an id: its answer carries it, and so does each line that is logged while it is handled.
Counts them by how they were answered. The outermost of the ASGI applications; knows nothing of what is served.
"""

import random
import re
from collections import Counter
from collections.abc import Callable

from toolgate.server.telemetry.log_format import LOG_CONTEXT, LogContext
from toolgate.transports.http.host_origin import Application, Message, Receive, Scope, Send

NAME = b"x-request-id"
REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class RequestIdMiddleware:
    """`trusts(peer)` says whether the other end of a connection may name its requests; None: nobody may."""

    def __init__(self, app: Application, trusts: Callable[[str], bool] | None) -> None:
        self.running = 0  # being answered: open streams are
        self.answered: Counter[int] = Counter()  # by status
        self._app = app
        self._trusts = trusts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        id = self._proxy_id(scope) or f"{random.getrandbits(64):016x}"  # no secret, but no count either
        told = (NAME, id.encode())

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.answered[message["status"]] += 1
                message["headers"] = [*message.get("headers", ()), told]
            await send(message)

        LOG_CONTEXT.set(LogContext(id))  # the server starts each request in a task of its own
        self.running += 1
        try:
            await self._app(scope, receive, send_named)
        finally:
            self.running -= 1

    def _proxy_id(self, scope: Scope) -> str:
        """The id it comes with, from a proxy of ours; "" where there is none, or none that may be in a log."""
        if self._trusts is None or not self._trusts((scope.get("client") or ("",))[0]):
            return ""
        given = [value for name, value in scope["headers"] if name == NAME]
        return given[0].decode() if len(given) == 1 and REQUEST_ID.fullmatch(given[0]) else ""
