"""Requests for each row of the table in docs/http.md, and what the handler sees of them."""

from collections.abc import Mapping
from typing import NamedTuple

NEXT = b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"  # answered if the connection stays open
MANY = 70_000  # bytes: more than a head or a trailer may have
CHUNKED = "Transfer-Encoding: chunked\r\n"


class Case(NamedTuple):
    """Bytes of one request or more, the statuses of their answers, and what the last served one is to its handler."""

    data: bytes
    statuses: tuple[int, ...]
    closes: bool = False
    body: bytes = b""
    headers: Mapping[str, str] = {}
    needs_app: bool = False  # the answer is the application's


def head(lines: str = "", line: str = "GET /health HTTP/1.1", host: str = "Host: localhost\r\n") -> bytes:
    return f"{line}\r\n{host}{lines}\r\n".encode("latin-1")


def served(lines: str = "", content: bytes = b"", *, body: bytes | None = None, **headers: str) -> Case:
    """A request that is served. `content` are the bytes behind its head, `body` what they say."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Case(head(lines) + content, (200,), body=content if body is None else body, headers=names)


def refused(data: bytes, status: int = 400) -> Case:
    return Case(data, (status,), closes=True)


def chunked(content: bytes, status: int = 400) -> Case:
    return refused(head(CHUNKED) + content, status)


INNER = head()  # a request inside a body

CASES: dict[str, list[Case]] = {
    "`Upgrade`": [
        served(f"{upgrade}{length}", content, body=INNER)
        for upgrade in (
            "Connection: Upgrade\r\nUpgrade: websocket\r\n",
            "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nConnection: Upgrade, HTTP2-Settings\r\n",
        )
        for length, content in (
            (f"Content-Length: {len(INNER)}\r\n", INNER),
            (CHUNKED, b"%x\r\n%b\r\n0\r\n\r\n" % (len(INNER), INNER)),
        )
    ],
    "`CONNECT`": [
        refused(head(line="CONNECT localhost:443 HTTP/1.1")),
        refused(head("Content-Length: 3\r\n", line="CONNECT /health HTTP/1.1") + b"abc"),
    ],
    "`Content-Length` alone": [
        served("Content-Length: 3\r\n", b"abc"),
        served("Content-Length: 0\r\n"),
        served(f"Content-Length: {'0' * 40}3\r\n", b"abc"),
    ],
    "`Transfer-Encoding: chunked` alone": [
        served(CHUNKED, b"3\r\nabc\r\n002\r\nde\r\n0\r\n\r\n", body=b"abcde"),
        served("transfer-encoding: \tCHUNKED \r\n", b"A\r\n0123456789\r\n00\r\n\r\n", body=b"0123456789"),
    ],
    "`Content-Length` and `Transfer-Encoding`": [
        refused(head("Content-Length: 5\r\n" + CHUNKED) + b"0\r\n\r\n"),
        refused(head(CHUNKED + "Content-Length: 0\r\n") + b"0\r\n\r\n"),
        refused(head("Content-Length: 3\r\nTransfer-Encoding: identity\r\n") + b"abc"),
    ],
    "`Content-Length` in two lines": [
        refused(head("Content-Length: 3\r\nContent-Length: 3\r\n") + b"abc"),
        refused(head("Content-Length: 3\r\ncontent-length: 0\r\n") + b"abc"),
    ],
    "`Content-Length` that is no number": [
        refused(head(f"Content-Length:{value}\r\n") + b"abc")
        for value in ("3, 3", "3,", "+3", "-3", "0x3", "3 3", "3;", "3.0", "", " ", "\xb3", "a")
    ],
    "a body larger than 16 MiB": [
        Case(head(f"Content-Length: {length}\r\n{json}", "POST /mcp HTTP/1.1"), (413,), closes=True, needs_app=True)
        for length in (10**9, 10**60)
        for json in ("Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n",)
    ],
    "another `Transfer-Encoding`": [
        refused(head(f"Transfer-Encoding:{value}\r\n") + b"0\r\n\r\n", 501)
        for value in (
            "gzip",
            "gzip, chunked",
            "chunked, chunked",
            "identity",
            "xchunked",
            "chunked;x=y",
            '"chunked"',
            "",
        )
    ]
    + [refused(head(CHUNKED + CHUNKED) + b"0\r\n\r\n", 501)],
    "`Transfer-Encoding` in HTTP/1.0": [
        refused(head(CHUNKED, "GET /health HTTP/1.0") + b"0\r\n\r\n"),
        refused(head("Connection: keep-alive\r\n" + CHUNKED, "GET /health HTTP/1.0") + b"0\r\n\r\n"),
    ],
    "chunk extensions": [
        served(CHUNKED, b'3;a=b;c="d;e"\r\nabc\r\n0;x\r\n\r\n', body=b"abc"),
        served(CHUNKED, b"3;\r\nabc\r\n0; \t\xff\r\n\r\n", body=b"abc"),
    ],
    "long chunk extensions": [
        chunked(b"3;" + b"x" * 5_000 + b"\r\nabc\r\n0\r\n\r\n"),
        chunked((b"1;" + b"x" * 4_000 + b"\r\na\r\n") * 17 + b"0\r\n\r\n"),
    ],
    "a malformed chunk": [
        chunked(content + b"0\r\n\r\n")
        for content in (
            *(
                b"%b\r\nabc\r\n" % size
                for size in (b"+3", b"-3", b"0x3", b" 3", b"3 ", b"3\t;x", b"g", b"", b"3,", b'"3"')
            ),
            b"0000000000000003\r\nabc\r\n",
            b"3\nabc\n",
            b"3\nabc\r\n",
            b"3\rabc\r\n",
            b"3\r\nabc\n",
            b"3\r\nabcd\r\n",
            b"4\r\nabc\r\n",
            b"3;x\ny\r\nabc\r\n",
            b"3;x\ry\r\nabc\r\n",
            b"3;x\0\r\nabc\r\n",
        )
    ],
    "trailers": [
        served(CHUNKED, b"3\r\nabc\r\n0\r\nHost: evil\r\nX-Own: y\r\n\r\n", body=b"abc", host="localhost"),
        served(CHUNKED + "X-Own: x\r\n", b"0\r\nx-own: y\r\nConnection: close\r\n\r\n", body=b"", x_own="x"),
    ],
    "a malformed trailer": [
        chunked(b"3\r\nabc\r\n0\r\n%b\r\n\r\n" % line)
        for line in (b"a", b"a : b", b": b", b"a: b\n", b"a: b\rc: d", b"a: \0", b"a: b\r\n c", b" a: b")
    ],
    "a long trailer": [
        chunked(b"0\r\n" + b"a: b\r\n" * 300 + b"\r\n", 431),
        chunked(b"0\r\na: " + b"b" * MANY + b"\r\n\r\n", 431),
        chunked(b"0\r\na: " + b"b" * MANY, 431),
    ],
    "a bare CR": [
        refused(data)
        for data in (
            head("X: a\rb\r\n"),
            head("X: a\r\r\n"),
            head("\r"),
            head("X: a\rY: b\r\n"),
            head(line="GET /health\r HTTP/1.1"),
            head(line="GET /health HTTP/1.1\r"),
            b"\r" + head(),
        )
    ],
    "a bare LF": [
        refused(data)
        for data in (
            head().replace(b"\r\n", b"\n"),
            head("X: a\n"),
            head("X: a\nY: b\r\n"),
            head("\n"),
            head(line="GET /health HTTP/1.1\nX: y"),
            b"\n" + head(),
        )
    ],
    "a folded line": [
        refused(head("X: a\r\n b\r\n")),
        refused(head("X: a\r\n\tb: c\r\n")),
        refused(head(host=" Host: localhost\r\n")),
        refused(head(" \r\n")),
    ],
    "NUL and other control characters": [
        *(refused(head(f"X: a{chr(code)}b\r\n")) for code in (0, 1, 8, 0x0B, 0x0C, 0x1F, 0x7F)),
        refused(head("X\0: a\r\n")),
        refused(head(line="GET /\0health HTTP/1.1")),
    ],
    "white space before a colon": [
        *(refused(head(f"{name}: a\r\n")) for name in ("X ", "X\t", "Content-Length ", "Transfer-Encoding\t")),
        refused(head(host="Host : localhost\r\n")),
    ],
    "white space around a value": [
        served("X-Own: \t a b \t\r\nContent-Length:3\t \r\n", b"abc", x_own="a b"),
        served("X-Own:\r\nX-Other: \t \r\n", x_own="", x_other=""),
        Case(head(host="Host:localhost \t\r\n"), (200,), headers={"host": "localhost"}),
    ],
    "a name that is no token": [
        *(refused(head(f"{name}: a\r\n")) for name in ("", "X Y", "(X)", "X/Y", '"X"', "X\xe9", "@")),
        refused(head("X\r\n")),
        refused(head(":\r\n")),
    ],
    "an absolute target": [
        Case(head("X-Own: a\r\n", f"GET {target} HTTP/1.1", "Host: evil\r\n"), (200,), headers={"host": "localhost"})
        for target in ("http://localhost/health", "HTTPS://localhost/health", "http://localhost/health?")
    ],
    "another target": [
        refused(head(line=f"GET {target} HTTP/1.1"))
        for target in (
            "*",
            "health",
            "localhost:80",
            "ftp://localhost/",
            "http:///health",
            "http://a@localhost/",
            "/a#b",
        )
    ]
    + [refused(head(line="GET /\xe9 HTTP/1.1")), refused(head(line="GET /a b HTTP/1.1"))],
    "a malformed request line": [
        refused(head(line=line))
        for line in ("GET  /health HTTP/1.1", " GET /health HTTP/1.1", "GET /health HTTP/1.1 ", "GET\t/health HTTP/1.1")
    ]
    + [
        refused(head(line=line))
        for line in ("G(T /health HTTP/1.1", "GET /health http/1.1", "GET /health HTTP/1.10", "GET /health HTTP/11")
    ],
    "no `Host`, or two": [
        refused(head(host="")),
        refused(head("Host: localhost\r\n")),
        refused(head("host: evil\r\n")),
        refused(head("Host: localhost\r\n", "GET /health HTTP/1.0")),
    ],
    "HTTP/1.0": [
        Case(head(line="GET /health HTTP/1.0"), (200,), closes=True),
        Case(head("Connection: keep-alive\r\n", "GET /health HTTP/1.0"), (200,), closes=True),
        Case(head("Content-Length: 3\r\n", "GET /health HTTP/1.0") + b"abc", (200,), closes=True, body=b"abc"),
    ],
    "another version": [
        refused(head(line=f"GET /health HTTP/{version}"), 505) for version in ("2.0", "1.2", "0.9", "3.0", "1.9")
    ]
    + [refused(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505)],
    "HTTP/0.9": [refused(b"GET /health\r\n\r\n"), refused(b"GET /health \r\n\r\n")],
    "another `Expect`": [
        refused(head(f"Expect: {value}\r\nContent-Length: 3\r\n") + b"abc", 417)
        for value in ("200-ok", "100-continue, x", "", "100-continue=1")
    ],
    "`HEAD`": [
        Case(head(line="HEAD /health HTTP/1.1"), (200,)),
        Case(head("Content-Length: 3\r\n", "HEAD /health HTTP/1.1") + b"abc", (200,), body=b"abc"),
    ],
    "a head of more than 64 KiB": [
        refused(head("X: " + "a" * MANY + "\r\n"), 431),
        refused(head("X: a\r\n" * 12_000), 431),
        refused(b"GET /health HTTP/1.1\r\nX: " + b"a" * MANY, 431),
    ],
    "more than 256 header lines": [refused(head("X: a\r\n" * 256), 431)],
    "a repeated header that has one value": [
        *(
            refused(head(f"{name}: a\r\n{name.lower()}: b\r\n"))
            for name in (
                "Authorization",
                "Origin",
                "Content-Type",
                "Mcp-Session-Id",
                "MCP-Protocol-Version",
                "Mcp-Param-X",
            )
        ),
        served("X-Request-Id: a\r\nX-Request-Id: a\r\n", x_request_id="a"),
    ],
    "a repeated header that is a list": [
        served("X-Own: a\r\nX-Other: b\r\nx-own: c\r\n", x_own="a, c", x_other="b"),
        served("Cookie: a=b\r\nCookie: c=d\r\n", cookie="a=b; c=d"),
        served("Connection: x\r\nConnection: y\r\n", connection="x, y"),
        Case(head("Connection: x\r\nConnection: close\r\n"), (200,), closes=True),
    ],
    "empty lines before a request": [
        Case(b"\r\n" * 8 + head(), (200,)),
        Case(head() + b"\r\n" + head("Content-Length: 3\r\n") + b"abc", (200, 200), body=b"abc"),
    ],
    "more than eight empty lines": [refused(b"\r\n" * 9 + head())],
    "a broken request behind good ones": [
        Case(head() + head("Content-Length: 3\r\n") + b"abc" + broken, (200, 200, status), closes=True)
        for broken, status in ((b"!!!\r\n\r\n", 400), (head(host=""), 400), (head(line="GET / HTTP/2.0"), 505))
    ],
}
