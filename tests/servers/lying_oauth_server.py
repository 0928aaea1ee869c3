"""An MCP server and its authorization server, whose answers a test can change into lies."""

import contextlib
import http.server
import json
import time
import urllib.parse
from typing import Any

TOKENS = {"access_token": "new", "refresh_token": "next", "token_type": "Bearer", "expires_in": 600}


class LyingServer(http.server.ThreadingHTTPServer):
    """An MCP server and its authorization server, whose answers a test can change; `forms` are the token requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), LyingHandler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        named = f"{self.url}/.well-known/oauth-protected-resource/mcp"
        self.challenge = f'Bearer resource_metadata="{named}", scope="tools:read"'
        self.status = 401
        self.answers: dict[str, Any] = {
            "/.well-known/oauth-protected-resource/mcp": {
                "resource": f"{self.url}/mcp",
                "authorization_servers": [self.url],
            },
            "/.well-known/oauth-authorization-server": {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "code_challenge_methods_supported": ["S256"],
            },
            "/token": TOKENS,
        }
        self.forms: list[dict[str, str]] = []


class LyingHandler(http.server.BaseHTTPRequestHandler):
    server: LyingServer

    def do_GET(self) -> None:
        self._answer(self.server.answers.get(self.path))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        if self.path == "/token":
            self.server.forms.append(dict(urllib.parse.parse_qsl(body)))
            time.sleep(0.05)  # others come meanwhile
            self._answer(self.server.answers["/token"])
            return
        if self.path in self.server.answers:
            self._answer(self.server.answers[self.path])
            return
        self.send_response(self.server.status)
        self.send_header("www-authenticate", self.server.challenge)
        self.send_header("content-length", "0")
        self.end_headers()

    def _answer(self, told: Any) -> None:
        if isinstance(told, str) and told.startswith("http"):
            self.send_response(302)
            self.send_header("location", told)
            told = b""
        else:
            self.send_response(404 if told is None else 400 if isinstance(told, dict) and "error" in told else 200)
        data = told if isinstance(told, bytes) else json.dumps(told).encode()
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(OSError):  # the client has read enough
            self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...
