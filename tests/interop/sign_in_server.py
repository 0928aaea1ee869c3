"""A real server behind sign-in, a person who signs in, and clients' metadata documents, served over TLS with a
certificate that the server trusts."""

import contextlib
import datetime
import http.server
import ipaddress
import json
import ssl
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.clients.raw_client import PATIENCE, eventually
from tests.clients.raw_http_client import Site, site
from tests.server.auth.http_browser import Person

SHORT_TOKENS = (
    sys.executable,
    str(Path(__file__).with_name("short_tokens.py")),
)  # the server, with access tokens for seconds
CALLBACK = "http://127.0.0.1/callback"  # on any port (RFC 8252 section 7.3)
WAYS_IN = ["dynamic", "document"]  # how a client becomes known: by registration, or by its document


@dataclass
class SignInServer:
    site: Site
    person: Person
    document: str  # the URL of a client's metadata document
    fetched: list[str] = field(default_factory=list)  # what was asked of its server

    def url(self, carrier: str) -> str:
        return self.site.url + ("/sse" if carrier == "sse" else "/mcp")

    def takes(self, token: str) -> bool:
        """Return whether the server accepts the access token now."""
        response, _, _ = self.site.ask("DELETE", "/mcp", authorization=f"Bearer {token}")
        return bool(response.status != 401)

    def outlive(self, token: str) -> None:
        """Wait until the token has expired."""
        assert eventually(lambda: not self.takes(token))

    def revoke(self, token: str, client: str) -> None:
        """Revoke the token."""
        form = urllib.parse.urlencode({"token": token, "client_id": client})
        self.site.ask("POST", "/revoke", form, content_type="application/x-www-form-urlencoded")
        assert not self.takes(token)


def visit(url: str) -> int:
    """Request a page of a local program, which may not listen yet; return the status."""
    got: list[int] = []

    def go() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as response:
                got.append(response.status)
        except urllib.error.HTTPError as error:
            got.append(error.code)
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionRefusedError):
                raise
        return bool(got)

    assert eventually(go), f"no program listens at {url}"
    return got[0]


@contextlib.contextmanager
def sign_in_server(folder: Path, *options: str, short_tokens: bool = False, **document: Any) -> Iterator[SignInServer]:
    """Yield a server; `document` changes the client's metadata document."""
    folder.mkdir(exist_ok=True)
    authority = folder / "authority.pem"
    with published(authority, document) as (url, fetched):
        how: dict[str, Any] = {"command": SHORT_TOKENS} if short_tokens else {}
        allowed = ("--auth", "oauth", "--allow-private", "localhost")
        with site(folder, *allowed, *options, env={"SSL_CERT_FILE": str(authority)}, **how) as listening:
            yield SignInServer(listening, Person(listening), url, fetched)


@contextlib.contextmanager
def published(authority: Path, changed: Mapping[str, Any], port: int = 0) -> Iterator[tuple[str, list[str]]]:
    """Yield the https URL of a client's metadata document, and the list of its requests. `authority` gets the
    certificate, unless it has one already."""
    fetched: list[str] = []

    class Publisher(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            fetched.append(self.path)
            body = json.dumps({**metadata(url), **changed}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Publisher)
    url = f"https://localhost:{server.server_address[1]}/client.json"
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate = authority.with_name("server.pem")
    context.load_cert_chain(certificate if certificate.exists() else certified(authority))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield url, fetched
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE)


def metadata(url: str) -> dict[str, Any]:
    return {
        "client_id": url,
        "client_name": "Fernhill",
        "redirect_uris": [CALLBACK],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    }


def certified(authority: Path) -> Path:
    """Write a key and a certificate for this machine to a file, and the certificate alone to `authority`."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a test's own")])
    now = datetime.datetime.now(datetime.UTC)
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    ).public_bytes(serialization.Encoding.PEM)
    authority.write_bytes(made)
    both = authority.with_name("server.pem")
    plain = serialization.NoEncryption()
    both.write_bytes(made + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return both
