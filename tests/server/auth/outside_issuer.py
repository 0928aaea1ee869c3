"""An issuer that is not this server: its metadata and its key."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, NamedTuple

from toolgate.server.auth.tokens import jose


class OutsideIssuer(NamedTuple):
    url: str
    key: jose.JoseKey


class _Issuer(BaseHTTPRequestHandler):
    documents: dict[str, Any]

    def do_GET(self) -> None:
        found = self.documents.get(self.path)
        body = json.dumps(found).encode()
        self.send_response(404 if found is None else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@contextlib.contextmanager
def outside_issuer() -> Iterator[OutsideIssuer]:
    documents: dict[str, Any] = {}
    login = HTTPServer(("127.0.0.1", 0), type("Documents", (_Issuer,), {"documents": documents}))
    url, key = f"http://127.0.0.1:{login.server_port}", jose.generate_key()
    documents["/.well-known/openid-configuration"] = {"issuer": url, "jwks_uri": f"{url}/jwks"}
    documents["/jwks"] = jose.format_jwks([key])
    threading.Thread(target=login.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield OutsideIssuer(url, key)
    finally:
        login.shutdown()
        login.server_close()
