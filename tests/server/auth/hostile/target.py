"""A server process under attack: hostile requests, valid sign-ins to compare with, and a list of all secrets seen,
which must not be in a log or a file."""

import contextlib
import http.client
import json
import re
import secrets
import socket
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.clients.raw_client import PATIENCE, eventually
from tests.folder_contents import read_files
from tests.server.auth.authorization_in_process import challenge
from tests.server.auth.minted_tokens import Signed, signed_site
from tests.server.auth.sign_in_server import Browser, PageAnswer

FORM = "application/x-www-form-urlencoded"
BACK = "https://app.example/cb"
QUERY = "https://app.example/cb?x=1"
PORT = "https://app.example:8443/cb"
LOOP = "http://127.0.0.1/back"
REDIRECTS = (BACK, QUERY, PORT, LOOP)
ADA, PASSWORD = "ada", "correct horse battery"  # of the one account
SECRET = re.compile(r'"(?:access_token|refresh_token|client_secret)":\s*"([^"]+)"')


class Attacker(Browser):
    """A browser that reports every secret it receives to its target."""

    def __init__(self, target: "Target", headers: Mapping[str, str]) -> None:
        super().__init__(target.port, headers)
        self._target = target

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> PageAnswer:
        got = super().ask(method, path, body, **headers)
        self._target.learn(*self.cookies.values(), *SECRET.findall(got.body.decode(errors="replace")))
        if "location" in got.headers:
            told = urllib.parse.parse_qs(urllib.parse.urlsplit(got.location).query)
            self._target.learn(*told.get("code", ()))
        return got


@dataclass
class Target:
    signed: Signed
    client: str = ""  # a public one, of REDIRECTS
    confidential: tuple[str, str] = ("", "")  # another one's id and secret
    known: set[str] = field(default_factory=set)
    ada: Attacker | None = None  # signed in
    source: str = "127.0.0.1"  # where the others come from

    @property
    def port(self) -> int:
        return self.signed.site.port

    @property
    def url(self) -> str:
        return self.signed.site.url

    def log(self) -> str:
        return self.signed.site.log()

    def learn(self, *given: str) -> None:
        self.known.update(secret for secret in given if len(secret) >= 16)

    def token(self, *who: Any, **other: Any) -> str:
        made = self.signed.token(*who, **other)
        self.learn(made)
        return made

    # -- the honest way, to compare with

    def browser(self, **headers: str) -> Attacker:
        made = Attacker(self, headers)
        made.source = self.source
        return made

    def register(self, **more: Any) -> PageAnswer:
        body = {"client_name": "Fernhill", "redirect_uris": list(REDIRECTS), "token_endpoint_auth_method": "none"}
        return self.posted("/register", {**body, **more})

    def posted(self, path: str, body: Any, **headers: str) -> PageAnswer:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.browser().ask("POST", path, data, **{"content_type": "application/json", **headers})

    def asking(self, verifier: str, **more: str | None) -> str:
        given = {
            "client_id": self.client,
            "redirect_uri": BACK,
            "response_type": "code",
            "state": "s-1",
            "scope": "tools:read",
            "code_challenge": challenge(verifier),
            "code_challenge_method": "S256",
            **more,
        }
        return "/authorize?" + urllib.parse.urlencode(
            {name: value for name, value in given.items() if value is not None}
        )

    def verifier(self) -> str:
        made = secrets.token_urlsafe(40)
        self.learn(made)
        return made

    def code(self, verifier: str, **more: str | None) -> str:
        """Return a code approved by ada."""
        assert self.ada is not None
        first = self.ada.get(self.asking(verifier, prompt="consent", **more))
        assert first.status == 303, first.text
        page = self.ada.get(first.location)
        answered = self.ada.post("/consent", consenting(page))
        assert answered.status == 303, answered.text
        return told(answered)["code"]

    def exchange(self, code: str, verifier: str, **more: str | None) -> PageAnswer:
        given = {"grant_type": "authorization_code", "code": code, "code_verifier": verifier, "redirect_uri": BACK}
        return self.form("/token", {**given, "client_id": self.client, **more})

    def refresh(self, token: str, **more: str | None) -> PageAnswer:
        return self.form(
            "/token", {"grant_type": "refresh_token", "refresh_token": token, "client_id": self.client, **more}
        )

    def form(self, path: str, given: Mapping[str, str | None], **headers: str) -> PageAnswer:
        return self.browser().post(path, {name: value for name, value in given.items() if value is not None}, **headers)

    def granted(self, **more: str | None) -> dict[str, str]:
        """Return fresh tokens of ada's."""
        verifier = self.verifier()
        got = self.exchange(self.code(verifier, **more), verifier, client_id=more.get("client_id", self.client))
        assert got.status == 200, got.text
        held: dict[str, str] = json.loads(got.body)
        return held

    def works(self, token: str) -> bool:
        ping = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
        return self.signed.site.ask("POST", "/mcp", ping, authorization=f"Bearer {token}")[0].status == 200

    # -- as nobody's library would

    def raw(self, request: bytes) -> tuple[int, bytes]:
        """Send these bytes; return the status and the whole answer, or 0 if the server hung up without one."""
        with contextlib.closing(socket.create_connection(("127.0.0.1", self.port), PATIENCE)) as connection:
            connection.sendall(request)
            response = http.client.HTTPResponse(connection)
            try:
                response.begin()
            except (http.client.HTTPException, ConnectionError):
                return 0, b""
            return response.status, str(response.headers).encode("utf-8", "surrogateescape") + response.read()

    # -- what must not be

    def assert_no_secret_is_written(self) -> None:
        """Search the log, which is at debug level, and every file of the state folder, with the database."""
        assert len(self.known) > 2
        written = {"the log": self.log().encode()}
        written |= {str(path): content for path, content in read_files(self.signed.site.state).items()}
        for secret in self.known:
            parts = [secret.rpartition(".")[2]] if secret.count(".") == 2 else [secret]  # of a JWT the signature
            for place, text in written.items():
                assert all(part.encode() not in text for part in parts), f"a secret is in {place}: {secret[:6]}…"


HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "tests", "version": "1"}}


def consenting(page: PageAnswer, **changed: str) -> list[tuple[str, str]]:
    """Return the consent form with all boxes ticked."""
    fields = {"csrf": page.field("csrf"), "question": page.field("question"), "via": "", "decision": "approve"}
    scopes = re.findall(r'name="scope" value="([^"]+)"', page.text)
    return [*{**fields, **changed}.items(), *(("scope", scope) for scope in scopes)]


def told(got: PageAnswer) -> dict[str, str]:
    """Return the parameters of a redirect."""
    return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(got.location).query))


def runs_nothing_foreign(got: PageAnswer) -> bool:
    """Return whether the page has no script but the file that takes a pairing code out of the address."""
    return "<script" not in re.sub(r'<script src="/pairing\.js\?[0-9a-f]{8}" defer></script>', "", got.text)


def shut_out(got: PageAnswer, *statuses: int) -> None:
    """Check for a refusal with one of `statuses` (any 4xx if there are none), without a secret in it."""
    assert 400 <= got.status < 500, (got.status, got.body[:300])
    assert not statuses or got.status in statuses, (got.status, got.body[:300])
    assert "location" not in got.headers
    text = got.body.decode(errors="replace")
    for word in ("access_token", "Traceback", 'File "', "sqlalchemy", "authlib", "/site-packages/", "toolgate/server"):
        assert word not in text, text[:500]  # MCP-13
    assert not any("session=" in line for line in got.set_cookies)


def refused(got: PageAnswer, *errors: str) -> None:
    """Check for a refusal of the token endpoint and the like: one OAuth error in JSON, not cacheable."""
    shut_out(got)
    assert got.headers["content-type"] == "application/json"
    assert got.headers["cache-control"] == "no-store"
    said = json.loads(got.body)
    assert {"error", "error_description"} == set(said), said
    assert not errors or said["error"] in errors, said
    assert (got.status == 401) == (said["error"] == "invalid_client") or got.status in (400, 403, 405, 413, 429), said


@contextlib.contextmanager
def target_site(folder: Path, *options: str, **how: Any) -> Iterator[Target]:
    with signed_site(folder, "-v", *options, **how) as signed:
        made = Target(signed)
        code = paired(made)
        made.ada = made.browser()
        page = made.ada.get("/login")
        fields = {"csrf": page.field("csrf"), "question": "", "username": ADA, "password": PASSWORD, "code": code}
        assert made.ada.post("/login", fields).location == "/"
        made.learn(PASSWORD)
        made.client = json.loads(made.register().body)["client_id"]
        other = json.loads(made.register(client_name="Vault", token_endpoint_auth_method="client_secret_basic").body)
        made.confidential = other["client_id"], other["client_secret"]
        yield made


def paired(target: Target) -> str:
    """Return the pairing code from the one log line that may have it."""
    assert eventually(lambda: "pairing code" in target.log())
    lines = [line for line in target.log().splitlines() if "pairing code" in line]
    assert len(lines) == 1, lines
    found = re.search(r"pairing code ([A-Z2-7-]{20,})", lines[0])
    assert found is not None
    return found[1]
