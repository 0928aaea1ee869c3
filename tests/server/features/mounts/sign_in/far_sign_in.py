"""A mounted server where people sign in, with its authorization server: strict, and with faults to order."""

import base64
import contextlib
import hashlib
import http.server
import json
import re
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from tests.clients.raw_client import PATIENCE, STATELESS

JWT = re.compile(r"eyJ[\w-]+\.eyJ[\w-]+\.")  # no token of its own is one
HUGE = 10 * 2**20


class FarSignIn:
    """What it knows and counts. A test sets the rest.

    subject: who signs in next at its page; lifetime: of an access token, in seconds
    metadata, resource: what its documents say beside the truth; answer: in place of the next answers of the token
    endpoint: (status, body) or "break"
    """

    def __init__(self) -> None:
        self.subject = "ada-there"
        self.lifetime: float | None = 3600
        self.rotates = True
        self.refreshable = True
        self.iss: str | None = "own"
        self.metadata: dict[str, Any] = {}
        self.resource: dict[str, Any] = {}
        self.answers: list[Any] = []
        self.registered: list[dict[str, Any]] = []
        self.static: dict[str, str] = {}  # id → secret
        self.codes: dict[str, dict[str, Any]] = {}
        self.access: dict[str, tuple[str, float, str]] = {}  # token → subject, end, scope
        self.refresh: dict[str, str] = {}  # usable token → subject
        self.used: set[str] = set()
        self.reused = 0
        self.refreshes = 0
        self.redeemed = 0  # codes whose answers are sent
        self.refresh_takes = 0.0
        self.refresh_may_end = threading.Event()
        self.refresh_may_end.set()
        self.code_may_end = threading.Event()
        self.code_may_end.set()
        self.revoked: list[str] = []
        self.revocation_faults: list[int] = []  # statuses of the next answers to revocations
        self.seen: list[str] = []  # every Authorization header, and every form
        self.needed_scope = ""
        self.needs = ('Bearer error="insufficient_scope", scope="{}"',)  # the challenges of a call without it
        self.grants = ""  # in place of what a code was asked for
        self.repeats = False  # a refresh gives the access token that it gave last
        self.takes_tokens = True  # else it answers each with 401
        self.echoes = False  # lists have the request's token, and a call fails with its Authorization header
        self.asks = ""  # the name of the question of each call; the server is of the stateless era then
        self.answered: list[dict[str, Any]] = []
        self.tools: tuple[str, ...] = ()  # that it lists to everybody, beside its own
        self.last = ""
        self.challenge_scope = "read"
        self.origin = ""
        self.lock = threading.Lock()

    def issue(self, subject: str, scope: str) -> dict[str, Any]:
        access, again = f"at-{secrets.token_hex(12)}", f"rt-{secrets.token_hex(12)}"
        end = time.time() + (3600 if self.lifetime is None else self.lifetime)
        if self.repeats:
            access = self.last
        else:
            self.access[access] = (subject, end, scope)
            self.last = access
        told: dict[str, Any] = {"access_token": access, "token_type": "Bearer", "scope": scope}
        if self.lifetime is not None:
            told["expires_in"] = self.lifetime
        if self.refreshable and (self.rotates or not self.refresh):
            self.refresh[again] = subject
            told["refresh_token"] = again
        return told

    def end_access(self) -> None:
        """End all access tokens at once, whatever their lifetime was."""
        self.access.clear()


def create_handler(far: FarSignIn) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *words: Any) -> None: ...

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if parts.path == "/authorize":
                self._authorize({name: values[0] for name, values in parse_qs(parts.query).items()})
            elif parts.path == "/.well-known/oauth-protected-resource/mcp":
                self._send(
                    200, {"resource": f"{far.origin}/mcp", "authorization_servers": [far.origin], **far.resource}
                )
            elif parts.path == "/.well-known/oauth-authorization-server":
                self._send(200, self._metadata())
            else:
                self._send(405 if parts.path == "/mcp" else 404, {})

        def _metadata(self) -> dict[str, Any]:
            return {
                "issuer": far.origin,
                "authorization_endpoint": f"{far.origin}/authorize",
                "token_endpoint": f"{far.origin}/token",
                "registration_endpoint": f"{far.origin}/register",
                "revocation_endpoint": f"{far.origin}/revoke",
                "code_challenge_methods_supported": ["S256"],
                "authorization_response_iss_parameter_supported": True,
                **far.metadata,
            }

        def _authorize(self, asked: dict[str, str]) -> None:
            known = {each["client_id"]: each["redirect_uris"] for each in far.registered}
            assert asked["redirect_uri"] in known.get(asked["client_id"], [asked["redirect_uri"]]), asked
            assert asked["code_challenge_method"] == "S256" and asked["resource"] == f"{far.origin}/mcp", asked
            code = secrets.token_hex(8)
            far.codes[code] = {**asked, "subject": far.subject}
            back = {"code": code, "state": asked["state"]}
            if far.iss is not None:
                back["iss"] = far.origin if far.iss == "own" else far.iss
            self.send_response(302)
            self.send_header("Location", f"{asked['redirect_uri']}?{urlencode(back)}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            given = self.headers.get("Authorization", "")
            far.seen += [given, body.decode() if self.path != "/mcp" else ""]
            match self.path:
                case "/mcp":
                    self._mcp(json.loads(body), given)
                case "/register":
                    self._send(201, self._register(json.loads(body)))
                case "/token":
                    with far.lock:
                        self._token({name: values[0] for name, values in parse_qs(body.decode()).items()}, given)
                case "/revoke":
                    status = far.revocation_faults.pop() if far.revocation_faults else 200
                    if status == 200:
                        far.revoked.append(parse_qs(body.decode())["token"][0])
                    self._send(status, {})
                case _:
                    self._send(404, {})

        def _register(self, client: dict[str, Any]) -> dict[str, Any]:
            id, method = f"c-{len(far.registered)}", client["token_endpoint_auth_method"]
            assert method in far.metadata.get("token_endpoint_auth_methods_supported", ["none"])
            if method != "none":
                client["client_secret"] = far.static[id] = f"cs-{secrets.token_hex(12)}"
            client["client_id"] = id
            far.registered.append(client)
            return client

        def _token(self, asked: dict[str, str], given: str) -> None:
            if given.startswith("Basic "):
                id, _, secret = base64.b64decode(given[6:]).decode().partition(":")
                assert far.static[id] == secret
                asked["client_id"] = id
            assert asked["resource"] == f"{far.origin}/mcp", asked
            ordered = far.answers.pop(0) if far.answers else None
            if ordered == "break":
                self.connection.close()
                self.close_connection = True
                return
            if asked["grant_type"] == "refresh_token":
                far.refreshes += 1
                time.sleep(far.refresh_takes)
                far.refresh_may_end.wait(PATIENCE)
                token = asked["refresh_token"]
                if token in far.used:
                    far.reused += 1
                if ordered is None and token not in far.refresh:
                    ordered = (400, {"error": "invalid_grant"})
                if ordered is None:
                    subject = far.refresh[token]
                    if far.rotates:
                        del far.refresh[token]
                        far.used.add(token)
                    self._send(200, far.issue(subject, "read"))
                    return
            if ordered is not None:
                self._send(*ordered)
                return
            code = far.codes.pop(asked["code"], None)
            digest = hashlib.sha256(asked["code_verifier"].encode()).digest()
            is_right = code is not None and code["code_challenge"] == base64.urlsafe_b64encode(digest).decode().rstrip(
                "="
            )
            if code is None or not is_right or code["redirect_uri"] != asked["redirect_uri"]:
                self._send(400, {"error": "invalid_grant"})
                return
            told = far.issue(code["subject"], far.grants or code.get("scope", ""))
            far.code_may_end.wait(PATIENCE)
            self._send(200, told)
            far.redeemed += 1

        def _mcp(self, message: dict[str, Any], given: str) -> None:
            found = far.access.get(given.removeprefix("Bearer "))
            if not far.takes_tokens or found is None or time.time() >= found[1]:
                self._refuse_token()
                return
            subject, _, scope = found
            match message.get("method"):
                case "initialize":
                    told: Any = {
                        "protocolVersion": "2025-11-25",
                        "capabilities": {"tools": {}, "prompts": {}},
                        "serverInfo": {"name": "far", "version": "1"},
                    }
                case "server/discover" if far.asks:
                    told = {"supportedVersions": [STATELESS], "capabilities": {"tools": {}}, "resultType": "complete"}
                case "tools/list":
                    names = ["whoami", f"of_{subject.replace('-', '_')}", *far.tools]
                    names += [given.removeprefix("Bearer ")] if far.echoes else []
                    about = {"inputSchema": {"type": "object"}, **({"description": given} if far.echoes else {})}
                    told = {"tools": [{"name": name, **about} for name in names]}
                case "prompts/list":
                    told = {"prompts": [{"name": "hello"}]}
                case "prompts/get":
                    told = {"messages": [{"role": "user", "content": {"type": "text", "text": subject}}]}
                case "tools/call" if far.echoes:
                    self._send(500, f"debug: {given}".encode())
                    return
                case "tools/call":
                    if far.needed_scope and far.needed_scope not in scope.split():
                        self._refuse_scope()
                        return
                    told = {"content": [{"type": "text", "text": subject}]}
                    if far.asks and "inputResponses" not in message["params"]:
                        told = self._create_question()
                    elif far.asks:
                        far.answered.append(message["params"]["inputResponses"])
                case _:
                    if "id" not in message:
                        self._send(202, None)
                    else:
                        error = {"code": -32601, "message": "unknown method"}
                        self._send(200, {"jsonrpc": "2.0", "id": message["id"], "error": error})
                    return
            self._send(200, {"jsonrpc": "2.0", "id": message["id"], "result": told})

        def _refuse_token(self) -> None:
            challenge = f'Bearer resource_metadata="{far.origin}/.well-known/oauth-protected-resource/mcp"'
            self._send(401, {}, ("WWW-Authenticate", f'{challenge}, scope="{far.challenge_scope}"'))

        def _refuse_scope(self) -> None:
            needs = [("WWW-Authenticate", each.format(far.needed_scope)) for each in far.needs]
            self._send(403, {}, *needs)

        def _create_question(self) -> dict[str, Any]:
            asked = {"mode": "url", "url": f"{far.origin}/pay", "message": "Pay there."}
            requests = {far.asks: {"method": "elicitation/create", "params": asked}}
            return {"resultType": "input_required", "inputRequests": requests, "requestState": "far-state"}

        def _send(self, status: int, told: Any, *headers: tuple[str, str]) -> None:
            body = b"" if told is None else told if isinstance(told, bytes) else json.dumps(told).encode()
            self.send_response(status)
            for name, value in (("Content-Type", "application/json"), ("Content-Length", str(len(body))), *headers):
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

    return Handler


@contextlib.contextmanager
def far_sign_in() -> Iterator[FarSignIn]:
    far = FarSignIn()
    with serve(far, create_handler(far)):
        yield far
    assert not [each for each in far.seen if JWT.search(each)], "a token of a client of Toolgate came here"


@contextlib.contextmanager
def serve(far: FarSignIn, handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[None]:
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    far.origin = f"http://127.0.0.1:{served.server_port}"
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    try:
        yield
    finally:
        served.shutdown()
        thread.join()
        served.server_close()
