"""The HTTP side of the composition root: routes, their guard, and how serving ends. Loaded only when HTTP is served."""

import asyncio
import ipaddress
import logging
from typing import Any
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route, Router

from toolgate.server.config import Config
from toolgate.server.dispatcher import Dispatcher
from toolgate.server.errors import UsageError
from toolgate.server.server import Server
from toolgate.transports import http, sse, streamable_http
from toolgate.transports.guard import Guard, Headers, Receive, Scope, Send
from toolgate.transports.sessions import Sessions

log = logging.getLogger("toolgate.http")

LOCAL = "local"  # the one principal of --auth none


class Site:
    """The transports of one server on one port, and what they share."""

    def __init__(self, config: Config, server: Server, dispatcher: Dispatcher) -> None:
        self._config = config
        self._server = server
        self._sessions = Sessions(server.close_session)
        self._sse_sessions = Sessions(server.close_session)
        self._streamable = streamable_http.Endpoint(dispatcher, self._sessions, _everyone, self._mirrored)
        self._sse = sse.Endpoints(dispatcher, self._sse_sessions, _everyone)
        self._ending = False

    def application(self) -> Any:
        """The ASGI application."""
        routes: list[BaseRoute] = []  # looked at in this order: what is asked for most comes first
        if self._config.http:
            routes += [Route(path, self._streamable) for path in ("/mcp", "/mcp/")]
        if self._config.sse:
            routes += [Route("/sse", _Raw(self._sse.stream)), Route("/messages", _Raw(self._sse.message))]
        routes += [Route("/health", self._health), Route("/ready", self._ready)]
        # The router alone: Starlette's middleware for errors costs a tenth of a call, and uvicorn answers 500 as well
        app = Router(routes, redirect_slashes=False)
        public = urlsplit(self._config.public_url or "")
        hosts = [*self._config.allowed_hosts, *([public.netloc] if public.netloc else [])]
        origins = [*self._config.allowed_origins, *([f"{public.scheme}://{public.netloc}"] if public.netloc else [])]
        loopback = is_loopback(self._config.host)
        return Guard(app, hosts, origins, loopback=loopback, behind_proxy=False, prefix=public.path.rstrip("/"))

    async def serve(self) -> None:
        """Serve until a signal comes. Raises UsageError when the port can't be had."""
        try:
            bound = http.bind(self._config.host, self._config.port)
        except OSError as error:
            raise UsageError(f"--host, --port: {self._config.host}:{self._config.port}: {error.strerror}") from None
        host, port = bound.getsockname()[:2]
        base = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        served = [path for path, on in (("/mcp", self._config.http), ("/sse", self._config.sse)) if on]
        log.info("serving %s", " and ".join(base + path for path in served))
        await http.serve(self.application(), bound, self._finish)

    async def _finish(self) -> None:
        """Let what runs finish in the grace time, end the subscriptions, then every stream and session."""
        self._ending = self._streamable.ending = self._sse.ending = True
        self._server.end_listeners()
        running = self._streamable.running | self._sse.running | self._server.deferrals.running
        if running:
            await asyncio.wait(running, timeout=self._config.grace)
        for task in self._streamable.running | self._sse.running:
            task.cancel()
        self._sessions.close_all()
        self._sse_sessions.close_all()

    def _mirrored(self, tool: str) -> dict[str, tuple[str, ...]]:
        held = self._server.registry.tools.get(tool)
        return held.mirrored if held is not None else {}

    async def _health(self, _request: Any) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    async def _ready(self, _request: Any) -> JSONResponse:
        return JSONResponse({"status": "ending" if self._ending else "ready"}, 503 if self._ending else 200)


class _Raw:
    """Starlette takes an object with `__call__` for an ASGI application, and a method for a request handler."""

    def __init__(self, application: Any) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._application(scope, receive, send)


def check(config: Config) -> None:
    """Raise UsageError for what must not be served: anything but loopback, as long as nobody signs in."""
    if config.auth != "none":
        raise UsageError("--auth: signing in comes with a later version; --auth none serves on loopback")
    if not is_loopback(config.host):
        raise UsageError(f"--host: --auth none serves on loopback only, not on {config.host}")
    public = urlsplit(config.public_url or "http://127.0.0.1")
    if public.scheme not in ("http", "https") or not public.hostname:
        raise UsageError("--public-url must be an http or https URL")
    if not is_loopback(public.hostname):
        raise UsageError("--public-url: --auth none serves on loopback only")


def is_loopback(host: str) -> bool:
    """Whether `host` is a name or an address of this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _everyone(_headers: Headers) -> str:
    return LOCAL
