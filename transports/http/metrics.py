"""Serve `/metrics`, to clients with its token where it has one."""

import hmac
from collections.abc import Callable
from hashlib import sha256

from toolgate.transports.http.asgi import Headers, Receive, Scope, Send, refuse

CHALLENGE = (b"www-authenticate", b'Bearer realm="metrics"')
NO_STORE = (b"cache-control", b"no-store")


class MetricsEndpoint:
    """`shown()` is the body, `kind` its content type. `token`: what it takes; None where anyone may look."""

    def __init__(self, render: Callable[[], bytes], content_type: str, token: str | None) -> None:
        self._shown = render
        self._kind = content_type.encode()
        self._token = sha256(token.encode()).digest() if token is not None else None

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            await refuse(send, 405, "GET", [(b"allow", b"GET, HEAD")])
        elif not self._is_authorized(scope["toolgate.headers"]):
            await refuse(send, 401, "this needs the token for metrics", [CHALLENGE, NO_STORE])
        else:
            body = self._shown()
            told = [(b"content-type", self._kind), (b"content-length", str(len(body)).encode()), NO_STORE]
            await send({"type": "http.response.start", "status": 200, "headers": told})
            await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _is_authorized(self, headers: Headers) -> bool:
        if self._token is None:
            return True
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        return kind.lower() == b"bearer" and hmac.compare_digest(sha256(token.strip(b" ")).digest(), self._token)
