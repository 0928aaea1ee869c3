"""Attack a server through a proxy that other people use too, and watch what each of them is answered."""

import contextlib
import http.client
import json
import re
import select
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.clients.raw_client import PATIENCE
from tests.clients.raw_http_client import POSTED, Site
from tests.server.auth.authorization_in_process import VERIFIER, challenge
from tests.server.auth.http_browser import Person
from tests.server.auth.sign_in_server import Browser
from tests.transports.test_streamable_http import modern

DELAY = 0.008  # seconds after which a proxy has sent the first part of a body on, and may have been answered
BRIEF = 1.0  # seconds for an answer that need not come
BACK = "http://127.0.0.1:5000/back"
ADMIN = "admin@corp.example"  # whom the header may name, and who never comes
QUESTION = json.dumps([{"question": "Which?", "options": ["a", "b"]}])


class User:
    """A person with an account at `site`, and an app."""

    def __init__(self, site: Site, name: str) -> None:
        self.site = site
        self.browser = Browser(site.port, {"accept": "text/html"})
        assert self.browser.sign_in(name=name).status == 303
        asked = {"client_name": "Fern", "redirect_uris": [BACK], "token_endpoint_auth_method": "none"}
        client = site.ask("POST", "/register", asked)[2]["client_id"]
        query = {"client_id": client, "redirect_uri": BACK, "response_type": "code"}
        query |= {"code_challenge": challenge(), "code_challenge_method": "S256"}
        url = f"{site.url}/authorize?{urllib.parse.urlencode(query)}"
        code = Person(site, name, browser=self.browser).answer(url)["code"]
        form = {"grant_type": "authorization_code", "client_id": client, "code": code, "redirect_uri": BACK}
        told = urllib.parse.urlencode({**form, "code_verifier": VERIFIER})
        kind = "application/x-www-form-urlencoded"
        self.token = str(site.ask("POST", "/token", told, content_type=kind)[2]["access_token"])

    def request(self, tool: str, arguments: dict[str, Any], id: Any = 1) -> tuple[bytes, dict[str, str]]:
        """Return body and headers of a call."""
        body, named = modern("tools/call", {"name": tool, "arguments": arguments}, id)
        return json.dumps(body).encode(), {**POSTED, **named, "Authorization": f"Bearer {self.token}"}

    def call(self, tool: str, **arguments: Any) -> str:
        """Return the text of a call's result, made past all proxies."""
        body, headers = self.request(tool, arguments)
        answer = self.site.ask("POST", "/mcp", body, **headers)[2]
        return str(answer["result"]["content"][0]["text"])


class Door:
    """A proxy in front of `site`, as its clients reach it."""

    def __init__(self, site: Site, port: int, authority: Path) -> None:
        self.site = site
        self.host = f"localhost:{site.port}"
        self._port = port
        self._trust = ssl.create_default_context(cafile=str(authority))

    def connect(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("localhost", self._port, timeout=PATIENCE, context=self._trust)

    @contextlib.contextmanager
    def wire(self, source: str = "127.0.0.1") -> Iterator[ssl.SSLSocket]:
        plain = socket.create_connection(("127.0.0.1", self._port), PATIENCE, (source, 0))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._trust.wrap_socket(plain, server_hostname="localhost") as wire:
            yield wire

    def smuggle(self, head: str, fill: bytes, smuggled: bytes, *, is_chunked: bool) -> None:
        """Send a request whose body is `fill` and, a little later, `smuggled`."""
        length = "Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {len(fill + smuggled)}"
        first, second = (chunk(fill), chunk(smuggled) + b"0\r\n\r\n") if is_chunked else (fill, smuggled)
        with self.wire() as wire, contextlib.suppress(OSError, http.client.HTTPException):
            wire.sendall(f"{head}Host: {self.host}\r\n{length}\r\n\r\n".encode() + first)
            select.select([wire], [], [], DELAY)
            wire.sendall(second)
            wire.settimeout(BRIEF)
            receive(wire)

    def ask(self, data: bytes, source: str = "127.0.0.1") -> tuple[int, bytes]:
        """Return status and body of the answer to a raw request."""
        with self.wire(source) as wire:
            wire.sendall(data)
            return receive(wire)

    def is_healthy(self) -> bool:
        """Whether a stranger's request is answered with its own answer."""
        status, body = self.ask(f"GET /health HTTP/1.1\r\nHost: {self.host}\r\n\r\n".encode())
        return status == 200 and body == b'{"status":"ok"}'

    def is_open(self) -> bool:
        """Whether the proxy has read its files: Traefik listens before that."""
        try:
            return self.is_healthy()
        except (OSError, http.client.HTTPException):
            return False


class Watch:
    """Calls of `user` through `door`, one after the other, until the end. `wrong` has answers that are not theirs."""

    def __init__(self, door: Door, user: User) -> None:
        self.wrong = list[str]()
        self.answered = 0
        self._door = door
        self._user = user
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._call)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(PATIENCE)

    def _call(self) -> None:
        with contextlib.closing(self._door.connect()) as connection:
            while not self._ending.is_set():
                id = f"ada-{self.answered}-{len(self.wrong)}"
                body, headers = self._user.request("PlanMode", {"action": "status"}, id)
                try:
                    connection.request("POST", "/mcp", body, {**headers, "Host": self._door.host})
                    response = connection.getresponse()
                    content = response.read()
                except (OSError, http.client.HTTPException) as error:
                    self.wrong.append(repr(error))
                    connection.close()
                    continue
                if response.status == 200 and json.loads(content)["id"] == id:
                    self.answered += 1
                else:
                    self.wrong.append(f"{response.status} {content[:200]!r}")


def receive(wire: ssl.SSLSocket) -> tuple[int, bytes]:
    response = http.client.HTTPResponse(wire)
    response.begin()
    return response.status, response.read()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole_call(door: Door, user: User, command: str) -> bytes:
    """Return a whole request: a call of Bash by `user`, which takes a while."""
    body, headers = user.request("Bash", {"command": f"sleep 0.1; {command}"})
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST /mcp HTTP/1.1\r\nHost: {door.host}\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def unfinished_head(door: Door) -> bytes:
    """Return a head that names a person, and that the next request would complete with the proxy's secret."""
    lines = f"Host: {door.host}\r\nAccept: text/html\r\nX-Remote-User: {ADMIN}\r\nX-Ignore: "
    return f"GET /account HTTP/1.1\r\n{lines}".encode()


def unfinished_form(door: Door, user: User) -> bytes:
    """Return the answer to a question of `user`'s app, which the next request's head would complete."""
    page = user.browser.get("/").text
    csrf, question = (
        re.findall(r'name="csrf" value="(\w+)"', page)[0],
        re.findall(r'name="accept" value="([^"]+)"', page)[0],
    )
    form = urllib.parse.urlencode({"csrf": csrf, "accept": question}) + "&f0=other&f1="
    cookies = "; ".join(f"{name}={value}" for name, value in user.browser.cookies.items())
    lines = f"Host: {door.host}\r\nOrigin: http://{door.host}\r\nCookie: {cookies}\r\nAccept: application/json\r\n"
    lines += f"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {len(form) + 1_000}\r\n"
    return f"POST / HTTP/1.1\r\n{lines}\r\n{form}".encode()
