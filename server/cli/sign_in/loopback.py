"""Receive the browser that comes back from signing in, on a port of this machine, or as a pasted URL.

Source: RFC 8252 section 7.3, RFC 9207.
"""

import asyncio
import contextlib
import hmac
import secrets
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from urllib.parse import parse_qsl, urlsplit

from toolgate.server.base.text import to_line
from toolgate.server.cli.sign_in.requests import MAX_SHOWN, LoginError

WAIT = 600.0  # seconds for the person: consent requests live as long
READ_TIMEOUT = 5.0  # seconds for a request
MAX_HEAD = 16 * 1024  # bytes
PATH = "/callback"
HEADERS = (
    "Content-Type: text/html; charset=utf-8\r\nCache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n"
    "X-Content-Type-Options: nosniff\r\nContent-Security-Policy: default-src 'none'\r\nConnection: close\r\n"
)


class LoopbackReceiver:
    """Wait for the redirect of one authorization request. `issuer` must come back where it is sent."""

    def __init__(self, issuer: str, *, sends_issuer: bool) -> None:
        self.state = secrets.token_urlsafe(32)
        self._issuer = issuer
        self._sends_issuer = sends_issuer
        self._start = secrets.token_urlsafe(16)  # the path that leads the browser on, once
        self._authorize_url = ""
        self._port = 0
        self._answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def redirect_uri(self) -> str:
        return f"http://127.0.0.1:{self._port}{PATH}"

    @contextlib.asynccontextmanager
    async def listen(self, port: int = 0) -> AsyncGenerator[None]:
        """Listen at `port`, or at a free one if that is 0 or taken."""
        try:
            server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=MAX_HEAD)
        except OSError:
            server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=MAX_HEAD)
        self._port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()

    def lead_to(self, authorize_url: str) -> str:
        """Return a URL for the browser that leads to `authorize_url` once: other users see what a command opens."""
        self._authorize_url = authorize_url
        return f"http://127.0.0.1:{self._port}/{self._start}"

    async def wait(self) -> str:
        """Return the authorization code. Raises LoginError."""
        with _pasted_lines(self._take_pasted):
            try:
                async with asyncio.timeout(WAIT):
                    return await self._answer
            except TimeoutError:
                raise LoginError(f"nobody signed in within {WAIT / 60:.0f} minutes: run the command again") from None

    def _take_pasted(self, line: str) -> None:
        if not line.strip() or self._answer.done():
            return
        fault = self._take(line.strip())
        if fault:
            print(f"toolgate: {fault}", file=sys.stderr)

    def _take(self, url: str) -> str:
        """Take the URL of a redirect; return why it is not that of this sign-in, or ""."""
        try:
            parts = urlsplit(url)
            pairs = parse_qsl(parts.query, max_num_fields=50)
        except ValueError:
            return "that is not a URL"
        fields = dict(pairs)
        if parts.path != PATH or len(fields) != len(pairs):
            return f"that is not the URL that the browser ended at: it begins with {self.redirect_uri}"
        if not hmac.compare_digest(fields.get("state", "").encode(), self.state.encode()):
            return "that is the end of another sign-in: its state differs"
        issuer = fields.get("iss")
        if (issuer is None and self._sends_issuer) or issuer not in (None, self._issuer):
            sender = to_line(str(issuer), MAX_SHOWN)
            self._fail(f"the answer comes from {sender}, not from {self._issuer}: it is refused")
        elif "error" in fields:
            error = ": ".join(filter(None, (fields["error"], fields.get("error_description"))))
            self._fail(f"the server refuses: {to_line(error, MAX_SHOWN)}")
        elif not fields.get("code"):
            self._fail("the answer has no code")
        elif not self._answer.done():
            self._answer.set_result(fields["code"])
        return ""

    def _fail(self, why: str) -> None:
        if not self._answer.done():
            self._answer.set_exception(LoginError(why))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(READ_TIMEOUT):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                writer.write(self._respond(head).encode())
                await writer.drain()
        writer.close()

    def _respond(self, head: str) -> str:
        first, *lines = head.split("\r\n")
        words = first.split(" ")
        hosts = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("host:")]
        if len(words) != 3 or words[0] != "GET" or hosts != [f"127.0.0.1:{self._port}"]:
            return _page("400 Bad Request", "This address is for signing in only.")
        if hmac.compare_digest(words[1].encode(), f"/{self._start}".encode()) and self._authorize_url:
            onward, self._authorize_url = self._authorize_url, ""
            return f"HTTP/1.1 302 Found\r\nLocation: {onward}\r\n{HEADERS}Content-Length: 0\r\n\r\n"
        fault = self._take(words[1])
        if fault:
            return _page("400 Bad Request", "This is not the sign-in that the terminal waits for.")
        return _page("200 OK", "You can close this window and go back to the terminal.")


def _page(status: str, sentence: str) -> str:
    body = f"<!doctype html><meta charset=utf-8><title>toolgate</title><p>{sentence}</p>\n"
    return f"HTTP/1.1 {status}\r\n{HEADERS}Content-Length: {len(body.encode())}\r\n\r\n{body}"


@contextlib.contextmanager
def _pasted_lines(take: Callable[[str], None]) -> Generator[None]:
    """Pass on the lines that the person types or pastes meanwhile, on a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_reader(0, lambda: take(sys.stdin.readline(MAX_HEAD)))
    try:
        yield
    finally:
        loop.remove_reader(0)
