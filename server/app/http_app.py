"""Compose what is served over HTTP: routes, transports, authentication, and how serving ends."""

import asyncio
import contextlib
import logging
import pkgutil
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import BaseRoute, Route, Router

from toolgate.server.app.session_opener import LocalSessionOpener, OpenSessions
from toolgate.server.auth.login.trusted_proxies import TrustedProxies
from toolgate.server.auth.revocation_watch import CHECK_INTERVAL, HOLDER_CHECK_INTERVAL, GrantHolder, RevocationWatch
from toolgate.server.base.errors import StateError, UsageError
from toolgate.server.base.merged_rows import merge_rows
from toolgate.server.base.principals import scopes
from toolgate.server.base.principals.principal import GrantKey
from toolgate.server.base.reports.client_settings import ClientSettings
from toolgate.server.base.reports.health import READY, ServerHealth
from toolgate.server.base.reports.http_gauges import HttpGauges
from toolgate.server.calls.dashboard import Dashboard
from toolgate.server.config.load import Config
from toolgate.server.config.transports import HTTP_TRANSPORTS, HttpTransport
from toolgate.server.config.types import is_loopback
from toolgate.server.methods.server import Server
from toolgate.server.protocol.dispatcher import Dispatcher
from toolgate.transports.http import activation
from toolgate.transports.http import server as http
from toolgate.transports.http.requests.asgi import Application
from toolgate.transports.http.requests.bearer import BearerAuth, EndpointPage, LocalAuth, ScopeCheck, SignedInHandler
from toolgate.transports.http.requests.documents import PublicDocument
from toolgate.transports.http.requests.front import PROBES, Front
from toolgate.transports.http.requests.message_refusal import MessageRefusal, opens_stream, posts_message
from toolgate.transports.http.sessions.sessions import MAX_PER_OWNER, MAX_PER_PERSON
from toolgate.transports.http.transport import Transport, TransportServices, create_budgets
from toolgate.transports.http.wire.asgi import answer_with
from toolgate.transports.http.wire.connections import Connections
from toolgate.transports.http.wire.listener import Listener
from toolgate.transports.http.wire.request import Handler
from toolgate.transports.web.home import HomePage, ServerFacts
from toolgate.transports.web.home_events import HomeEvents
from toolgate.transports.web.page_context import PageContext

if TYPE_CHECKING:
    from toolgate.server.app.host import AddRoutes
    from toolgate.server.auth.setup import Access
    from toolgate.transports.web.oauth_routes import OAuthRoutes

TRIES = 5  # at the start, of what needs the state: each waits two seconds where another process holds it
# Asked for before a server is listed at ChatGPT, without signing in
OPENAI_CHALLENGE = "/.well-known/openai-apps-challenge"

ANSWER_TIME = 0.5  # seconds for released and interrupted calls to be answered
DRAIN_TIME = 10.0  # seconds behind a load balancer: longer than its checks, and than it keeps idle connections
HANDED_DRAIN_TIME = 0.5  # on a service manager's socket new connections wait meanwhile; requests may be arriving

T = TypeVar("T")
log = logging.getLogger("toolgate.http")


class HttpApp:
    """The transports and pages of one server on one port.

    - `access(public_url)` opens what people sign in with; None for `--auth none`.
    - `end_background(principal)` ends what a person has running besides requests; `overview` shows it.
    - `release_calls()` fails the calls whose commands go on without this server, and returns whether there were any.
    - `count_running()` returns how many commands run that the end of the server ends.
    - `revocation_interval`: seconds between two checks for revoked people and grants. `sandbox`: the level of commands.
    - `documents` are answered beside the transports, by their paths; `on_serving` gets what HTTP serves.
    - `open_sessions(transport, limits)` returns the sessions of a transport, by default of this process alone.
    - `grant_holders` send to clients without requests, as long as grants allow it.
    - `begin_end()` ends what waits for no answer, when the end of serving begins.
    - `list_clients(public_url)` returns what the first page shows for clients to read.
    - `announce(public_url, pairing_link)` is called when the server accepts requests.
    """

    def __init__(
        self,
        config: Config,
        server: Server,
        dispatcher: Dispatcher,
        access: "Callable[[str], Access] | None",
        *,
        end_background: Callable[[str], Awaitable[None]],
        release_calls: Callable[[], bool] = lambda: False,
        count_running: Callable[[], int] = lambda: 0,
        overview: Dashboard,
        revocation_interval: float = CHECK_INTERVAL,
        sandbox: str = "none",
        documents: Mapping[str, Handler] | None = None,
        on_serving: Callable[[HttpGauges], None] = lambda _: None,
        open_sessions: OpenSessions | None = None,
        grant_holders: Sequence[GrantHolder] = (),
        begin_end: Callable[[], None] = lambda: None,
        list_clients: Callable[[str], ClientSettings] = lambda _: ClientSettings(),
        page_routes: "Sequence[AddRoutes]" = (),
        announce: Callable[[str, str], None] | None = None,
    ) -> None:
        self._config = config
        self._server = server
        self._dispatcher = dispatcher
        self._open = access
        self._leave = end_background
        self._release_calls = release_calls
        self._count_running = count_running
        self._overview = overview
        self._every = revocation_interval
        self._sandbox = sandbox
        self._holders = grant_holders
        self._begin_end = begin_end
        self._list_clients = list_clients
        self._page_routes = page_routes
        self._announce = announce
        self._documents = documents or {}
        self._on_serving = on_serving
        self._refused_tokens: Counter[str] = Counter()  # tokens, by why
        self._shared = create_budgets(dispatcher.answers, is_single_principal=access is None)
        self._proxies = TrustedProxies(config.trusted_proxies)
        self._connections = Connections(trusts=self._proxies.trusts)
        self._open_sessions = open_sessions or LocalSessionOpener(server)
        self._transports: dict[str, Transport] = {}  # those that are served
        self._access: Access | None = None
        self._live: HomeEvents | None = None
        self._ending = False

    def create_listener(self, public_url: str) -> Listener:
        """Return what answers the requests to `public_url`."""
        access = self._access = self._open(public_url) if self._open is not None else None
        oauth = self._oauth(access, public_url) if access is not None else None
        pages = oauth.context if oauth is not None else PageContext(public_url, self._config.name)
        public = urlsplit(public_url)
        endpoints: dict[str, Handler] = {}
        for row in self._config.transports:
            transport = self._transports[row.name] = self._create_transport(row, public.path)
            page = partial(pages.endpoint_page, row.path)
            for path, endpoint in transport.endpoints().items():
                endpoints[path] = self._authenticate(row.path, endpoint, page)
        documents: dict[str, Handler] = {}
        if access is not None:
            for path, about in access.resource.metadata_paths().items():
                documents[path] = documents[f"{path}/"] = PublicDocument(partial(access.resource.metadata, about))
        if access is None or (access.sign_in is not None and access.sign_in.has_page):
            self._server.questions.url = f"{public_url}/"
        app = self._route(public_url, access, oauth, pages)
        shared = [*documents, *(oauth.cross_origin_paths if oauth is not None else ())]
        trusted = access.sign_in.trusted_header if access is not None and access.sign_in is not None else None
        front = Front(
            merge_rows("endpoints", endpoints.items(), self._documents.items(), documents.items()),
            partial(answer_with, app, root_path=public.path),
            [*self._config.allowed_hosts, public.netloc],
            [*self._config.allowed_origins, f"{public.scheme}://{public.netloc}"],
            loopback=is_loopback(self._config.host),
            behind_proxy=access is not None,
            prefix=public.path,
            shared=shared,
            single=trusted.names if trusted is not None else (),
            trusts=self._proxies.trusts if self._proxies else None,
        )
        listener = Listener(front, self._connections, self._shared.answers, (*PROBES, *self._documents))
        self._on_serving(self._measure(listener))
        return listener

    def _measure(self, listener: Listener) -> HttpGauges:
        """Return what of this can be measured; 0 for a transport that is not served."""
        tokens = self._access.tokens if self._access is not None else None
        ways = self._access.sign_in if self._access is not None else None
        served = self._transports

        def measure(read: Callable[[Transport], int]) -> dict[str, Callable[[], int]]:
            names = [row.name for row in HTTP_TRANSPORTS]
            return {name: partial(read, served[name]) if name in served else int for name in names}

        return HttpGauges(
            sessions=measure(lambda transport: len(transport.sessions)),
            calls=measure(lambda transport: len(transport.running)),
            streams=measure(lambda transport: len(transport.streams)),
            waiting=measure(lambda transport: sum(stream.last - stream.sent for stream in transport.streams)),
            replay_bytes=measure(lambda transport: sum(stream.size for stream in transport.sessions.streams())),
            connections=self._connections.__len__,
            budgets=self._shared.by_name(),
            running=lambda: listener.running,
            responses=listener.answered,
            refused_tokens=self._refused_tokens,
            issued_tokens=lambda: tokens.minted_count if tokens is not None else 0,
            sign_ins=ways.counts if ways is not None else {},
        )

    def listen(self) -> None:
        """Have clients wait for `serve`, rather than be refused.

        Raises UsageError when the port can't be had, and when commands could sign in as any person.
        """
        if self._open is not None:
            from toolgate.server.auth import setup as access  # start-up

            can_reach = self._config.can_commands_reach_host(self._sandbox)
            access.check_login_header(self._config, can_commands_reach_host=can_reach)
        try:
            handed = activation.take_socket(self._config.socket_variables, self._config.host, self._config.port)
            self._bound = handed or http.bind(self._config.host, self._config.port)
        except OSError as error:
            where = f"{self._config.host}:{self._config.port}"
            reason = (error.strerror or str(error)).lower()
            raise UsageError(f"--host, --port: can't listen on {where}: {reason}") from None
        self._is_handed = handed is not None

    async def serve(self) -> None:
        """Serve until a signal comes."""
        bound = self._bound
        host, port = bound.getsockname()[:2]
        base = _base_url(host, port)
        where = ", on the socket that was handed over" if self._is_handed else ""
        try:
            public_url: str = self._config.public_url or _base_url(self._config.host, port)
            listener = self.create_listener(public_url)
            log.info("serving %s%s", " and ".join(base + row.path for row in self._config.transports), where)
            if self._config.is_public and self._sandbox == "none":
                log.warning("--sandbox none: commands may do all that this process may do")
            if self._config.approve and self._open is None and self._config.can_commands_reach_host(self._sandbox):
                log.warning("--approve: with --auth none, commands that reach this port can approve their own calls")
            link = None
            if self._access is not None and self._access.sign_in is not None:
                pairing = self._access.sign_in.offer_pairing  # unless there is an account
                link = await _retry(pairing, "accounts can't be read: no pairing code is offered")
            if self._announce is not None:
                self._announce(public_url, link or "")
            for transport in self._transports.values():  # clients wait meanwhile, so as not to initialize again
                await _retry(transport.sessions.recall, "sessions of earlier processes can't be recalled yet")
            async with self._watch_revocations():
                await http.serve(
                    listener,
                    bound,
                    self._finish,
                    begin_drain=self._begin_drain,
                    drain_time=self._choose_drain_time(),
                    is_handed=self._is_handed,
                )
        finally:
            if self._access is not None:
                await self._access.close()

    @contextlib.asynccontextmanager
    async def _watch_revocations(self) -> AsyncGenerator[None]:
        """Meanwhile, end what belongs to revoked people and grants.

        Of an external issuer's revocations the server learns nothing: there only the tokens' expiry ends access.
        """
        authorization = self._access.authorization if self._access is not None else None
        if self._access is None or authorization is None:
            yield
            return
        standing = RevocationWatch(
            authorization.find_valid_keys,
            authorization.revoke_barred_people,
            list_open=self._open_rights,
            end_grants=self._end_rights,
            end_person=self._leave,
            changed=self._access.revoked,
        )
        unasked = RevocationWatch(
            authorization.find_valid_keys,
            _find_no_people,  # the other watch does
            list_open=self._list_rights_of_holders,
            end_grants=self._end_rights_of_holders,
            end_person=self._leave,
        )
        checks = (standing.run(self._every), unasked.run(min(self._every, HOLDER_CHECK_INTERVAL)))
        tasks = [asyncio.get_running_loop().create_task(check) for check in checks]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _open_rights(self) -> Iterator[GrantKey]:
        """By which sessions, calls, tasks and questions are open."""
        for transport in self._transports.values():
            yield from transport.rights()
        yield from self._server.call_tasks.rights()
        yield from self._server.questions.rights()
        yield from self._list_rights_of_holders()

    def _list_rights_of_holders(self) -> Iterator[GrantKey]:
        """Yield the grants by which something is sent without a request."""
        for holder in self._holders:
            yield from holder.rights()

    async def _end_rights_of_holders(self, rights: Collection[GrantKey]) -> None:
        for holder in self._holders:
            await holder.terminate_rights(rights)

    async def _end_rights(self, rights: Collection[GrantKey]) -> None:
        """End all that these opened: sessions, their calls, calls of no session, tasks, questions and streams."""
        await self._end_rights_of_holders(rights)
        for transport in self._transports.values():
            transport.end_by_rights(rights)
        self._server.questions.drop_rights(rights)
        await self._server.call_tasks.cancel_rights(rights)

    def _choose_drain_time(self) -> float:
        if self._config.drain is not None:
            return float(self._config.drain)
        if self._is_handed:
            return HANDED_DRAIN_TIME
        return DRAIN_TIME if self._open is not None else 0.0

    def _begin_drain(self) -> None:
        """Be unready, and end what waits for no answer. Requests are served as before."""
        self._ending = True
        for transport in self._transports.values():
            transport.drain()
        self._server.notifications.end_subscriptions()
        self._begin_end()
        if self._live is not None:
            self._live.end()

    async def _finish(self) -> None:
        """Let what runs finish in the grace time, end the subscriptions, then every stream and session."""
        self._ending = self._dispatcher.is_ending = True
        transports = self._transports.values()
        for transport in transports:
            transport.running.is_ending = True
        self._server.notifications.end_subscriptions()
        self._begin_end()
        self._server.questions.close()
        if self._live is not None:
            self._live.end()
        running = self._server.call_tasks.work.union(*(transport.running.tasks for transport in transports))
        try:
            if running:
                await asyncio.wait(running, timeout=self._config.grace)
        finally:  # before a connection's end cancels its calls, also at a second signal
            self._log_end(sum(not task.done() for task in running))
            released = self._release_calls()
        if running and released:
            await asyncio.wait(running, timeout=ANSWER_TIME)
        await _interrupt([task for transport in transports for task in transport.running.tasks])
        for transport in transports:
            await transport.sessions.suspend_all()

    def _log_end(self, calls: int) -> None:
        """Log how many calls and commands the end of the server ends. Commands elsewhere go on."""
        commands = self._count_running()
        counts = [(calls, "call"), (commands, "command")]
        ending = [f"{count} {name}{'' if count == 1 else 's'}" for count, name in counts if count]
        if ending:
            log.warning("the server ends with %s unfinished", " and ".join(ending))

    def _create_transport(self, row: HttpTransport, prefix: str) -> Transport:
        server = self._server
        check = None
        if self._access is not None:
            resource, needed_scopes = self._access.resource, server.needed_scopes
            on_missing, identity = server.observers.scope_missing, server.identity
            check = ScopeCheck(row.path, resource, self._dispatcher, on_missing, identity, needed_scopes)
        limits: dict[str, Any] = {"transport": row.name, "events": self._shared.events}
        if self._access is not None:
            limits |= {"per_owner": MAX_PER_OWNER, "per_person": MAX_PER_PERSON}
        sessions, forwarder = self._open_sessions(row, limits)
        services = TransportServices(
            row,
            self._dispatcher,
            sessions,
            self._shared,
            check,
            self._mirrored_headers,
            prefix,
            forwarder,
            self._server.now,
        )
        transport: Transport = pkgutil.resolve_name(row.factory)(services)
        return transport

    def _authenticate(self, path: str, endpoint: SignedInHandler, page: EndpointPage) -> Handler:
        """The endpoint behind authentication of its own: no spelling of a path comes around it."""
        if self._access is None:
            return LocalAuth(endpoint, page)
        return BearerAuth(endpoint, path, self._access.verifier, self._access.resource, self._refused_tokens, page)

    def _oauth(self, access: "Access", public_url: str) -> "OAuthRoutes | None":
        """The routes of our own authorization server; None where an outside issuer has them."""
        if access.authorization is None or access.sign_in is None:
            return None
        from toolgate.transports.web.oauth_routes import OAuthRoutes  # start-up: its forms and pages

        paths = tuple(row.path for row in self._config.transports)
        remembered = self._server.policy.remembered
        config, is_shared = self._config, self._config.workspace is not None
        sentences = scopes.describe_for_people(self._sandbox, config.sandbox_network, is_shared=is_shared)
        return OAuthRoutes(public_url, config.name, access.authorization, access.sign_in, sentences, paths, remembered)

    def _route(self, url: str, access: "Access | None", oauth: "OAuthRoutes | None", pages: PageContext) -> Application:
        """The probes, what OAuth clients ask for, and the pages."""
        routes: list[BaseRoute] = [Route("/health", self._health), Route("/ready", self._ready)]
        if self._config.openai_challenge is not None:
            routes.append(Route(OPENAI_CHALLENGE, self._challenge))
        if oauth is not None:
            routes += [Route(path, endpoint) for path, endpoint in oauth.client_routes()]
        router = Router(routes, redirect_slashes=False)
        router.default = self._pages(url, access, oauth, pages)
        return router

    def _pages(
        self, url: str, access: "Access | None", oauth: "OAuthRoutes | None", pages: PageContext
    ) -> MessageRefusal:
        """The pages for people, and the answer to unknown paths. MCP clients are refused there."""
        signing_in = [Route(path, endpoint) for path, endpoint in oauth.page_routes()] if oauth is not None else []
        router = Router([*signing_in, *self._home(url, access, oauth, pages)], redirect_slashes=False)
        urls = [(row.title, url + row.path) for row in self._config.transports]
        router.default = MessageRefusal(partial(pages.answer_unknown_path, router.not_found), opens_stream, urls)
        return MessageRefusal(router, posts_message, urls)

    def _home(self, url: str, access: "Access | None", oauth: "OAuthRoutes | None", pages: PageContext) -> list[Route]:
        """The first page, and what it needs."""
        config = self._config
        served = ServerFacts(
            config.name,
            self._read_health,
            urls=[(row.title, url + row.path) for row in config.transports],
            clients=self._list_clients(url),
        )
        sessions = {row.title: self._transports[row.name].sessions for row in config.transports}
        home = HomePage(
            pages,
            served,
            self._overview,
            sessions,
            self._server.questions,
            access.authorization.grants if access is not None and access.authorization is not None else None,
            oauth.context.identify_visitor if oauth is not None else None,
            oauth.context.recall_visitor if oauth is not None else lambda _: None,
            is_open=access is None,
        )
        self._live = HomeEvents(home)
        added = [row for add in self._page_routes for row in add(pages, home.identify_visitor)]
        live: tuple[str, Any] = ("/events", self._live)
        rows = merge_rows("pages", home.routes(), added, [live])
        return [Route(path, endpoint) for path, endpoint in rows.items()]

    def _mirrored_headers(self, tool: str, arguments: Any) -> dict[str, Any]:
        found = self._server.registry.tools.get(tool)
        return found.find_mirrored(arguments) if found is not None else {}

    async def _health(self, _request: Any) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    async def _challenge(self, _request: Any) -> PlainTextResponse:
        return PlainTextResponse(self._config.openai_challenge)

    async def _ready(self, _request: Any) -> JSONResponse:
        health = self._read_health()
        return JSONResponse(health.describe(), 200 if health.status == READY else 503)

    def _read_health(self) -> ServerHealth:
        return self._overview.read_health(is_ending=self._ending)


async def _retry(work: Callable[[], Awaitable[T]], failing: str) -> T | None:
    """Return the result of `work`, as soon as the state can be used. After TRIES failures log `failing`."""
    for left in reversed(range(TRIES)):
        try:
            return await work()
        except StateError as error:
            if not left:
                log.warning("%s: %s", failing, error)
    return None


async def _interrupt(tasks: Collection["asyncio.Task[Any]"]) -> None:
    """Cancel these tasks, and give their requests time to be answered."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=ANSWER_TIME)


async def _find_no_people() -> list[str]:
    return []


def _base_url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
