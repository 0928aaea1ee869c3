"""A server as clients reach it through a proxy: raw requests, a browser, and the clients of raw_http_client."""

import http.client
import socket
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.clients.raw_client import PATIENCE
from tests.clients.raw_http_client import Site
from tests.server.auth.http_browser import Person
from tests.server.auth.sign_in_server import PASSWORD, Browser


class Connection(http.client.HTTPSConnection):
    """A connection to a proxy, with a token and the server's path."""

    def __init__(self, front: "Front", timeout: float, source: str) -> None:
        super().__init__(front.host, front.port, timeout=timeout, source_address=(source, 0), context=front.trust)
        self._front = front

    def request(self, method: str, url: str, body: Any = None, headers: Any = None, **more: Any) -> None:
        told = dict(headers or {})
        if self._front.token:
            told.setdefault("Authorization", f"Bearer {self._front.token}")
        super().request(method, self._front.path(url), body, told, **more)


class Front(Site):
    """A server as reached at `url`, through its proxy."""

    def __init__(self, behind: Site | None, url: str, authority: Path) -> None:
        parts = urlsplit(url)
        if behind is not None:  # else it has no process here
            self.process, self.state, self.stderr = behind.process, behind.state, behind.stderr
        self.url, self.port, self.prefix = url, parts.port or 443, parts.path
        self.host = parts.hostname or ""
        self.authority = authority
        self.trust = ssl.create_default_context(cafile=str(authority))
        self.token = ""

    def path(self, url: str) -> str:
        below = url.startswith((f"{self.prefix}/", "/.well-known/"))
        return url if below else self.prefix + url

    def connect(self, timeout: float = PATIENCE, source: str = "127.0.0.1") -> http.client.HTTPConnection:
        return Connection(self, timeout, source)

    def raw(self, head: str, name: str = "localhost") -> bytes:
        """Return the answer to a raw request; `name` is the TLS server name."""
        text = head.strip().replace("\n", "\r\n") + "\r\nConnection: close\r\n\r\n"
        plain = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        with self.trust.wrap_socket(plain, server_hostname=name) as wrapped:
            wrapped.sendall(text.encode())
            return b"".join(iter(lambda: wrapped.recv(65536), b""))

    def person(self, name: str = "ada", password: str = PASSWORD) -> Person:
        return Person(self, name, password, self.window())

    def window(self) -> "Window":
        return Window(self)


class Window(Browser):
    """A browser that uses a proxy."""

    def __init__(self, front: Front) -> None:
        super().__init__(front.port, {})
        self._front = front

    def opened(self) -> http.client.HTTPConnection:
        return self._front.connect(source=self.source)
