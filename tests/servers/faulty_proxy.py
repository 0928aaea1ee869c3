"""A proxy on loopback that passes everything on, except for one fault at a time; and doctor's verdicts on it."""

import contextlib
import gzip
import http.client
import http.server
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Headers = dict[str, str]  # names in lower case
Answer = tuple[int, Headers, bytes]
HOP = ("connection", "keep-alive", "transfer-encoding", "content-length")
PREFIX = "/tools"


def as_asked(method: str, path: str, headers: Headers) -> Answer | None:
    return None


def as_answered(path: str, answer: Answer) -> Answer:
    return answer


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault. `asked` may change a request's headers, or answer it; `answered` changes an answer, and of a stream the
    head.

    A stream is `held` before its head or after it, or cut after `patience` seconds of silence. `most` limits a
    request's bytes; `version` is the proxy's HTTP version."""

    asked: Callable[[str, str, Headers], Answer | None] = as_asked
    answered: Callable[[str, Answer], Answer] = as_answered
    held: str = ""
    patience: float = 60.0
    most: int = 2**24
    version: str = "HTTP/1.1"


SOUND = Fault()


class Front:
    """The proxy: its address and its fault. `behind` is the server's port."""

    def __init__(self) -> None:
        self.url = ""
        self.behind = 0
        self.fault = SOUND


@contextlib.contextmanager
def front(shared: Front | None = None, tls: ssl.SSLContext | None = None) -> Iterator[Front]:
    """Yield a proxy on a free port, which removes `PREFIX`; it has the faults and the server of `shared`."""
    made = Front()
    whose = shared or made

    class Passing(http.server.BaseHTTPRequestHandler):
        def pass_on(self) -> None:
            fault = whose.fault
            self.protocol_version = fault.version
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            path = self.path.removeprefix(PREFIX)
            if whose is not made:  # the server has one public name
                headers["host"] = whose.url.partition("//")[2]
            if len(body) > fault.most:
                own: Answer | None = (413, {"content-type": "text/html"}, b"<h1>too large</h1>")
            else:
                own = fault.asked(self.command, self.path, headers)
            if own is not None:
                self.tell(own)
                return
            connection = http.client.HTTPConnection("127.0.0.1", whose.behind, timeout=fault.patience)
            with contextlib.closing(connection):
                kept = {name: value for name, value in headers.items() if name not in HOP}
                connection.request(self.command, path, body or None, kept)
                answer = connection.getresponse()
                given = {name.lower(): value for name, value in answer.getheaders() if name.lower() not in HOP}
                if given.get("content-type", "").startswith("text/event-stream"):
                    self.pour(fault, answer, given)
                else:
                    self.tell(fault.answered(self.path, (answer.status, given, answer.read())))

        do_GET = do_POST = do_DELETE = do_OPTIONS = pass_on

        def tell(self, answer: Answer) -> None:
            status, headers, content = answer
            self.head(status, {**headers, "content-length": str(len(content))})
            self.wfile.write(content)

        def pour(self, fault: Fault, answer: http.client.HTTPResponse, headers: Headers) -> None:
            """Pass a stream on; its end, for any reason, closes the connection."""
            self.close_connection = True
            status, headers, _ = fault.answered(self.path, (answer.status, headers, b""))
            if fault.held == "head":
                answer.read()
            self.head(status, headers)
            if fault.held == "body":
                answer.read()
            packed = gzip.compress if headers.get("content-encoding") == "gzip" else bytes
            with contextlib.suppress(OSError, http.client.HTTPException):
                while piece := answer.read1(65_536):
                    self.wfile.write(packed(piece))
                    self.wfile.flush()

        def head(self, status: int, headers: Headers) -> None:
            self.send_response_only(status)
            for name, value in ({"date": self.date_time_string()} | headers).items():
                self.send_header(name, value)
            self.end_headers()

        def handle(self) -> None:
            with contextlib.suppress(OSError, http.client.HTTPException):  # the client has gone
                super().handle()

        def log_message(self, *_: object) -> None: ...

    with listening(Passing, tls) as url:
        made.url = url
        yield made


@contextlib.contextmanager
def listening(handler: type[http.server.BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http{'s' if tls is not None else ''}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(20)


# -- faults of proxies


def without(*names: str) -> Callable[[str, str, Headers], None]:
    """Return a change that removes these headers from requests."""

    def asked(_method: str, _path: str, headers: Headers) -> None:
        for name in names:
            headers.pop(name, None)

    return asked


def answered_without(*names: str) -> Callable[[str, Answer], Answer]:
    def answered(_path: str, answer: Answer) -> Answer:
        status, headers, body = answer
        return status, {name: value for name, value in headers.items() if name not in names}, body

    return answered


def answered_with(**more: str) -> Callable[[str, Answer], Answer]:
    """Return a change that adds headers to answers. `_` is `-`."""

    def answered(_path: str, answer: Answer) -> Answer:
        status, headers, body = answer
        return status, headers | {name.replace("_", "-"): value for name, value in more.items()}, body

    return answered


def asked_with(**more: str) -> Callable[[str, str, Headers], None]:
    def asked(_method: str, _path: str, headers: Headers) -> None:
        headers.update(
            {name.replace("_", "-"): value for name, value in more.items() if name.replace("_", "-") in headers}
        )

    return asked


def instead(status: int, where: str = "", method: str = "", page: str = "<h1>no</h1>") -> Callable[..., Answer | None]:
    """Return a change that answers with the proxy's own page if `where` is in the path."""

    def asked(asking: str, path: str, _headers: Headers) -> Answer | None:
        is_meant = where in path and method in ("", asking)
        return (status, {"content-type": "text/html"}, page.encode()) if is_meant else None

    return asked


def pages_for(*statuses: int, where: str = "") -> Callable[[str, Answer], Answer]:
    """Return a change that replaces the body of these statuses by the proxy's own page."""

    def answered(path: str, answer: Answer) -> Answer:
        status, headers, _ = answer
        if status not in statuses or where not in path:
            return answer
        return status, headers | {"content-type": "text/html"}, b"<h1>an error</h1>"

    return answered


def respelled(old: bytes, new: bytes) -> Callable[[str, Answer], Answer]:
    def answered(_path: str, answer: Answer) -> Answer:
        status, headers, body = answer
        return status, headers, body.replace(old, new)

    return answered


def slow(seconds: float) -> Callable[[str, str, Headers], None]:
    def asked(_method: str, _path: str, _headers: Headers) -> None:
        time.sleep(seconds)

    return asked


def verdicts(told: str) -> dict[str, str]:
    """Return name → ok, note, FAIL or skip."""
    return {line[6:24].strip(): line[:4].strip() for line in told.splitlines() if re.match("ok  |note|FAIL|skip", line)}
