"""Fake OpenID Connect and GitHub providers on loopback, which sign in every browser and check their clients'
requests."""

import base64
import contextlib
import hashlib
import http.server
import json
import secrets
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.clients.raw_client import PATIENCE
from toolgate.server.auth.tokens import jose

CLIENT, SECRET = "gate", "gate secret/%"


@dataclass
class Provider:
    """A fake provider. `claims` are added to the id_token's, None removes one; `metadata` likewise."""

    url: str = ""
    key: jose.JoseKey = field(default_factory=jose.generate_key)
    published: list[jose.JoseKey] = field(default_factory=list)
    claims: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    userinfo: dict[str, Any] = field(default_factory=dict)
    emails: list[dict[str, Any]] = field(default_factory=list)
    sign: Callable[[dict[str, Any]], str] | None = None
    asked: list[dict[str, str]] = field(default_factory=list)  # authorization requests
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)  # paths, in order

    def arrive(self, address: str) -> dict[str, str]:
        """Sign a person in at `address`, and return the query they are sent back with."""
        asked = dict(urllib.parse.parse_qsl(address.partition("?")[2]))
        self.asked.append(asked)
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        return {"code": code, "state": asked["state"]}

    def answer(self, path: str, form: dict[str, str], authorization: str) -> tuple[int, Any]:
        self.seen.append(path)
        bearer = authorization.removeprefix("Bearer ")
        match path:
            case "/.well-known/openid-configuration":
                return 200, _less({**self._own(), **self.metadata})
            case "/keys":
                return 200, jose.format_jwks(self.published or [self.key])
            case "/token" | "/login/oauth/access_token" | "/g/login/oauth/access_token":
                return self._redeemed(form, authorization)
            case "/userinfo" if bearer in self.codes:
                return 200, self.userinfo
            case "/user" if bearer in self.codes:
                return 200, {"id": 583231, "login": "octo"}
            case "/user/emails" if bearer in self.codes:
                return 200, self.emails
            case _:
                return 404, {}

    def _own(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize?tenant=x",
            "token_endpoint": f"{self.url}/token",
            "userinfo_endpoint": f"{self.url}/userinfo",
            "jwks_uri": f"{self.url}/keys",
        }

    def _redeemed(self, form: dict[str, str], authorization: str) -> tuple[int, Any]:
        asked = self.codes.get(form.get("code", ""))
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        right = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if asked is None or asked["code_challenge"] != right or asked["redirect_uri"] != form["redirect_uri"]:
            return 400, {"error": "invalid_grant"}
        if read_credentials(form, authorization) != (CLIENT, SECRET):
            return 401, {"error": "invalid_client"}
        token = self.issue_id_token(nonce=asked.get("nonce"))
        return 200, {"access_token": form["code"], "token_type": "bearer", "id_token": token}

    def issue_id_token(self, **more: Any) -> str:
        now = int(time.time())
        claims = {"iss": self.url, "aud": CLIENT, "sub": "248289", "iat": now, "exp": now + 300}
        claims = _less({**claims, **more, **self.claims})
        return self.sign(claims) if self.sign is not None else jose.sign(claims, self.key, "JWT")


def read_credentials(form: dict[str, str], authorization: str) -> tuple[str, str]:
    if authorization.startswith("Basic "):
        name, _, secret = base64.b64decode(authorization[6:]).decode().partition(":")
        return urllib.parse.unquote(name), urllib.parse.unquote(secret)
    return form.get("client_id", ""), form.get("client_secret", "")


def _less(named: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in named.items() if value is not None}


@contextlib.contextmanager
def provider(made: Provider | None = None) -> Iterator[Provider]:
    made = made or Provider()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            size = int(self.headers.get("content-length", "0"))
            form = dict(urllib.parse.parse_qsl(self.rfile.read(size).decode()))
            status, answer = made.answer(self.path.partition("?")[0], form, self.headers.get("authorization", ""))
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE)
