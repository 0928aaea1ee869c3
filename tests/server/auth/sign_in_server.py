"""Run a listening server with only the sign-in routes, in a thread of this process, a fake app that browsers are sent
back to, and a simple browser without a screen."""

import asyncio
import contextlib
import functools
import http.client
import http.server
import json
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from starlette.routing import Route, Router

from tests.clients.raw_client import PATIENCE
from tests.server.auth.authorization_in_process import VERIFIER, challenge, put_database
from toolgate.server.auth.grants import list_denied_tokens
from toolgate.server.auth.login.methods import SignInMethods, build_sign_in
from toolgate.server.auth.oauth_server.service import AuthorizationService
from toolgate.server.auth.tokens.access_tokens import OwnTokens
from toolgate.server.auth.tokens.signing_keys import SigningKeys
from toolgate.server.base.limits.budget import Budget
from toolgate.server.base.principals.scopes import SENTENCES, SERVED
from toolgate.server.state.keys.file import KeyFile
from toolgate.server.state.keys.sealed_state import Sealer
from toolgate.server.state.rows import clients as client_rows
from toolgate.server.state.sqlite.store import SqliteStore
from toolgate.server.state.store import Store
from toolgate.tools.api.outbound.fetch import Web
from toolgate.transports.http.requests.front import Front
from toolgate.transports.http.wire.asgi import answer_with
from toolgate.transports.http.wire.connection import HttpConnection
from toolgate.transports.http.wire.connections import Connections
from toolgate.transports.http.wire.listener import Listener
from toolgate.transports.web.oauth_routes import OAuthRoutes

T = TypeVar("T")
PASSWORD = "correct horse"
DOCUMENT = "https://app.example/client.json"  # a client's id
LONG_URI = f"https://{'a-very-long-name-of-a-host-' * 2}x.example/back"


@dataclass
class SignInServer:
    port: int
    url: str  # the public one
    authorization: AuthorizationService
    sign_in: SignInMethods
    store: Store
    loop: asyncio.AbstractEventLoop
    ahead: list[float]  # seconds by which the clock of questions and grants is ahead, in parts
    caught: list[dict[str, str]] = field(default_factory=list)
    app: str = ""  # where the app listens

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something in the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE)

    def add(self, name: str = "ada", password: str = PASSWORD) -> None:
        assert self.sign_in.accounts is not None
        self.do(self.sign_in.accounts.add(name, password))

    def know(self, id: str, kind: str, name: str, *redirect_uris: str) -> None:
        """Store a client as if it had registered, or its document had been fetched."""
        metadata = {
            "client_name": name,
            "redirect_uris": redirect_uris,
            "token_endpoint_auth_method": "none",
            "grant_types": ["authorization_code", "refresh_token"],
        }
        row = {"kind": kind, "metadata": json.dumps(metadata), "made_at": time.time(), "fresh_until": time.time() + 1e6}
        self.do(self.store.transact(lambda connection: client_rows.save_client(connection, id, **row)))

    def asking(self, client: str = DOCUMENT, uri: str = "", **more: str) -> str:
        """Return the path of an authorization request."""
        given = {
            "client_id": client,
            "redirect_uri": uri or self.app,
            "response_type": "code",
            "state": "s-1",
            "code_challenge": challenge(),
            "code_challenge_method": "S256",
            **more,
        }
        return f"/authorize?{urllib.parse.urlencode(given)}"

    def granted(self) -> list[tuple[str, str, str]]:
        """Return client, person and scopes of every grant, oldest first, redeemed or not."""
        words = (
            "SELECT client, name, scope FROM oauth_grant JOIN oauth_person USING (subject) ORDER BY oauth_grant.made_at"
        )
        return self.do(
            self.store.transact(lambda connection: [tuple(row) for row in connection.exec_driver_sql(words)])
        )

    def expire(self) -> None:
        """Let ten minutes pass for every consent request."""
        self.ahead.append(601)

    def redeem(self, answer: Mapping[str, str], client: str = DOCUMENT, uri: str = "") -> dict[str, Any]:
        """Return the token endpoint's answer to a code."""
        form = {
            "grant_type": "authorization_code",
            "client_id": client,
            "code": answer["code"],
            "redirect_uri": uri or self.app,
            "code_verifier": VERIFIER,
        }
        got = self.browser().post("/token", form)
        assert got.headers["cache-control"] == "no-store"
        return {"status": got.status, **json.loads(got.body)}

    def browser(self, **headers: str) -> "Browser":
        return Browser(self.port, headers)


@contextlib.contextmanager
def sign_in_server(
    folder: Path,
    *ways: str,
    public_url: str = "",
    credentials: Mapping[str, tuple[str, str]] | None = None,
    allow_users: tuple[str, ...] = (),
    trusted_proxies: tuple[str, ...] = (),
    change: Callable[[SignInMethods, Web], SignInMethods] = lambda sign_in, _web: sign_in,
    **options: Any,
) -> Iterator[SignInServer]:
    """Run the server. `options` are those of the authorization server; it fetches well-known documents only if they
    name some."""
    bound = socket.create_server(("127.0.0.1", 0))
    port = bound.getsockname()[1]
    url = public_url or f"http://127.0.0.1:{port}"
    put_database(folder / "state")
    store, web = SqliteStore(folder / "state"), Web(["127.0.0.1"])
    keys = SigningKeys(store, Sealer(KeyFile(folder / "state" / "keys" / "signing"), None))
    tokens = OwnTokens(url, (f"{url}/mcp", f"{url}/sse"), keys, functools.partial(list_denied_tokens, store))
    people = build_sign_in(store, web.fetch, url, ways, credentials or {}, allow_users, trusted_proxies)
    people = change(people, web)
    ahead: list[float] = []

    def now() -> float:
        return time.time() + sum(ahead)

    authorization = AuthorizationService(
        url,
        store,
        keys,
        KeyFile(folder / "state" / "keys" / "questions"),
        tokens,
        lambda: SERVED,
        web.fetch,
        can_sign_in=people.can_sign_in,
        now=now,
        **{"document_copies": {}, **options},
    )
    oauth = OAuthRoutes(url, "toolgate", authorization, people, SENTENCES, ("/mcp", "/sse"))
    parts = urllib.parse.urlsplit(url)
    routes = [Route(path, endpoint) for path, endpoint in (*oauth.client_routes(), *oauth.page_routes())]
    app = Router(routes, redirect_slashes=False)
    front = Front(
        {},
        functools.partial(answer_with, app, root_path=parts.path),
        [parts.netloc],
        [f"{parts.scheme}://{parts.netloc}"],
        loopback=True,
        behind_proxy=True,
        prefix=parts.path,
        shared=oauth.cross_origin_paths,
        single=people.trusted_header.names if people.trusted_header is not None else (),
    )
    listener = Listener(front, Connections(), Budget(2**30, 2**30))
    options = {"lifespan": "off", "log_config": None, "access_log": False, "proxy_headers": False}
    options["http"] = functools.partial(HttpConnection, listener)
    server = uvicorn.Server(uvicorn.Config(app, timeout_graceful_shutdown=1, **options))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(server.serve([bound]),), daemon=True)
    thread.start()
    made = SignInServer(port, url, authorization, people, store, loop, ahead)
    try:
        made.know(DOCUMENT, "document", "Fernhill", "https://app.example/back", "http://127.0.0.1/back")
        made.know("self", "dynamic", "Definitely Claude", "https://evil.example/back", LONG_URI)
        made.know("local", "dynamic", "Workbench", "http://127.0.0.1/back")
        with waiting(made.caught) as made.app:
            yield made
    finally:
        made.do(authorization.close())
        made.do(web.close())
        server.should_exit = True
        thread.join(PATIENCE)
        store.close()
        loop.close()
        bound.close()


@contextlib.contextmanager
def waiting(caught: list[dict[str, str]]) -> Iterator[str]:
    """Run an app that waits for its redirect on loopback."""

    class Catcher(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            if path == "/back":
                referer = {"referer": self.headers["referer"]} if "referer" in self.headers else {}
                caught.append({**dict(urllib.parse.parse_qsl(query)), **referer})
            body = b"<!doctype html><title>app</title><h1>connected</h1>"
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Catcher)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/back"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE)


@dataclass
class PageAnswer:
    status: int
    headers: dict[str, str]
    set_cookies: list[str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def location(self) -> str:
        return self.headers["location"]

    def field(self, name: str) -> str:
        """Return the value of a hidden field."""
        return self.text.split(f'name="{name}" value="', 1)[1].split('"', 1)[0]


class Browser:
    """A client with cookies that follows no redirect by itself."""

    def __init__(self, port: int, headers: Mapping[str, str]) -> None:
        self.port = port
        self.headers = dict(headers)
        self.cookies: dict[str, str] = {}
        self.source = "127.0.0.1"  # the address it has

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> PageAnswer:
        told = {name.replace("_", "-"): value for name, value in {**self.headers, **headers}.items()}
        if self.cookies:
            told["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        with contextlib.closing(self.opened()) as connection:
            connection.request(method, path, body, told)
            response = connection.getresponse()
            content = response.read()
        given = [value for name, value in response.getheaders() if name.lower() == "set-cookie"]
        for line in given:
            name, _, rest = line.partition("=")
            value, _, attributes = rest.partition(";")
            if "Max-Age=0" in attributes:
                self.cookies.pop(name, None)
            else:
                self.cookies[name] = value
        return PageAnswer(
            response.status, {name.lower(): value for name, value in response.getheaders()}, given, content
        )

    def opened(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, PATIENCE, (self.source, 0))

    def get(self, path: str, **headers: str) -> PageAnswer:
        return self.ask("GET", path, **headers)

    def post(self, path: str, fields: Mapping[str, Any] | list[tuple[str, str]], **headers: str) -> PageAnswer:
        told = {"content_type": "application/x-www-form-urlencoded", **headers}
        return self.ask("POST", path, urllib.parse.urlencode(fields, doseq=True).encode(), **told)

    def sign_in(self, path: str = "/login", name: str = "ada", password: str = PASSWORD) -> PageAnswer:
        page = self.get(path)
        asked = {"csrf": page.field("csrf"), "question": page.field("question")}
        return self.post("/login", {**asked, "username": name, "password": password})
