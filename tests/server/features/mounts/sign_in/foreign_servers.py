"""Mounted servers and authorization servers of others, and people who walk through their pages: the official Python SDK
with oidc-provider of npm and with Authlib, the demo of the official TypeScript SDK, and FastMCP's own."""

import contextlib
import functools
import html
import json
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import httpx

from tests.bench.mounts.context_forge import protect, register, write_environment
from tests.bench.mounts.sides import ECHO, START, forge
from tests.clients.raw_client import PATIENCE, ROOT, eventually
from tests.interop.node import FOLDER, node, package
from tests.interop.sign_in_server import certified
from tests.server.auth.minted_tokens import signed_site
from tests.server.auth.sign_in_server import PageAnswer
from tests.server.features.mounts.mounted import url_mount, write_config
from tests.server.features.mounts.test_real_servers import PYPI
from tests.servers.home_page_server import AppUser
from tests.servers.reserved_port import reserved_port

RESOURCE = Path(__file__).with_name("resource_server.py")
AUTHLIB = ("-m", "tests.server.features.mounts.sign_in.authlib_provider")  # Python's arguments
DEMO = "dist/esm/examples/server/simpleStreamableHttp.js"
MAX_PAGES = 12  # between a person's leaving and their return


class ForeignServer:
    """A mounted server at `url`, whose programs write a log. `tool` returns `text` for the arguments.

    authority: the certificate that Toolgate has to trust, if any
    """

    def __init__(
        self, url: str, log: Path, tool: str, text: str, arguments: Mapping[str, str], authority: Path | None = None
    ) -> None:
        self.url, self.tool, self.text, self.arguments, self.authority = url, tool, text, arguments, authority
        self._log = log

    def log(self) -> str:
        return self._log.read_text()

    def await_start(self, word: str = "") -> "ForeignServer":
        """Wait until it asks for a token, and its log has a word."""
        assert eventually(self._refuses) and eventually(lambda: word in self.log()), self.log()
        return self

    def _refuses(self) -> bool:
        try:
            return httpx.post(self.url, json={}).status_code == 401
        except httpx.TransportError:
            return False


@contextlib.contextmanager
def running(log: Path, *commands: list[str], **variables: str) -> Iterator[None]:
    """Run programs, which write a log."""
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(log.open("ab"))
        for words in commands:
            process = stack.enter_context(
                subprocess.Popen(words, stdout=output, stderr=output, cwd=ROOT, env=variables)
            )
            stack.callback(process.kill)
        yield


@contextlib.contextmanager
def oidc_provider(log: Path) -> Iterator[ForeignServer]:
    with reserved_port() as port, reserved_port() as issuer:
        url = f"http://127.0.0.1:{port}/mcp"
        commands = (
            [node(), str(FOLDER / "oidc_provider.mjs"), str(issuer), url],
            [sys.executable, str(RESOURCE), str(port), f"http://127.0.0.1:{issuer}"],
        )
        with running(log, *commands):
            yield ForeignServer(url, log, "whoami", "ada", {}).await_start("listening")


@contextlib.contextmanager
def authlib(log: Path, methods: Sequence[str]) -> Iterator[ForeignServer]:
    """`methods`: how clients show who they are at its token endpoint."""
    with reserved_port() as port, reserved_port() as issuer:
        url = f"http://127.0.0.1:{port}/mcp"
        commands = (
            [sys.executable, *AUTHLIB, str(issuer), url, *methods],
            [sys.executable, str(RESOURCE), str(port), f"http://127.0.0.1:{issuer}/notes"],
        )
        with running(log, *commands):
            yield ForeignServer(url, log, "whoami", "ada", {}).await_start(f"127.0.0.1:{issuer}")


@contextlib.contextmanager
def typescript_sdk(log: Path) -> Iterator[ForeignServer]:
    with reserved_port() as port, reserved_port() as issuer:
        words = [node(), str(package("@modelcontextprotocol/sdk") / DEMO), "--oauth", "--oauth-strict"]
        server = ForeignServer(f"http://localhost:{port}/mcp", log, "greet", "Hello, Ada!", {"name": "Ada"})
        with running(log, words, MCP_PORT=str(port), MCP_AUTH_PORT=str(issuer)):
            yield server.await_start()


@contextlib.contextmanager
def fastmcp(log: Path) -> Iterator[ForeignServer]:
    with reserved_port() as port:
        words = [str(PYPI), str(FOLDER / "frameworks" / "fastmcp_sign_in.py"), str(port)]
        with running(log, words):
            yield ForeignServer(f"http://127.0.0.1:{port}/mcp", log, "whoami", "notes:read", {}).await_start()


@contextlib.contextmanager
def context_forge(log: Path) -> Iterator[ForeignServer]:
    """It takes tokens of an https issuer, which name a person that it has by an e-mail address."""
    authority, echo = log.with_name("authority.pem"), log.with_name("echo")
    certificate = certified(authority)
    with reserved_port() as port, reserved_port() as issuer:
        address = f"http://127.0.0.1:{port}"
        variables = {
            **write_environment(log.with_name("forge")),
            "APP_DOMAIN": address,
            "PLATFORM_ADMIN_EMAIL": "ada@example.com",
            "SSL_CERT_FILE": str(authority),
        }
        gateway = running(log.with_name("forge.log"), forge(log.parent, {}, port), **variables)
        with running(echo, [*ECHO, "http"]), gateway:
            assert eventually(lambda: answers(f"{address}/health"), START), log.with_name("forge.log").read_text()
            register(port, {"notes": f"{echo.read_text().strip()}/mcp"})
            url = address + protect(port, f"https://localhost:{issuer}/notes")
            words = [sys.executable, *AUTHLIB, str(issuer), url, "none", "--tls", str(certificate)]
            with running(log, words):
                server = ForeignServer(url, log, "notes-echo", "ada", {"text": "ada"}, authority)
                yield server.await_start("startup complete")


def answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


public_authlib = functools.partial(authlib, methods=["none"])
strict_authlib = functools.partial(authlib, methods=["client_secret_basic", "client_secret_post"])  # its defaults

KINDS = {
    "oidc-provider": oidc_provider,
    "Authlib": public_authlib,
    "Authlib, with secrets": strict_authlib,
    "TypeScript SDK": typescript_sdk,
    "FastMCP": fastmcp,
    "ContextForge": context_forge,
}
QUICK = ("oidc-provider", "TypeScript SDK")  # they start in a second


class ForeignScene:
    """A server with the mount `far`, and a person with an app."""

    def __init__(self, far: ForeignServer, ada: AppUser) -> None:
        self.far, self.ada = far, ada
        self.link = f"{ada.url}/mounts/connect?name=far"

    def connect(self, who: AppUser) -> PageAnswer:
        """Open the link in a person's browser, and walk through the pages of both servers."""
        browser = who.browser()
        page = browser.get(self.link.removeprefix(who.url))
        assert page.status == 200, page.text
        left = browser.post("/mounts/connect", {name: page.field(name) for name in ("csrf", "name", "shown")})
        assert left.status in (302, 303), left.text
        back = urlsplit(sign_in(left.location, who.url, self.far.authority))
        connected = browser.get(f"{back.path}?{back.query}")
        assert (connected.status, "Connected" in connected.text) == (200, True), connected.text
        return connected

    def call(self) -> str:
        return str(self.ada.call(f"far__{self.far.tool}", **self.far.arguments)["content"][0]["text"])

    def is_listed(self) -> bool:
        _, raw, said = self.ada.ask("tools/list", {})
        listed = said or json.loads(raw.decode().rpartition("data: ")[2])
        return f"far__{self.far.tool}" in {tool["name"] for tool in listed["result"]["tools"]}


def sign_in(location: str, home: str, authority: Path | None) -> str:
    """Go through the pages at `location` as a person does, and return the URL at `home` that they lead back to."""
    with httpx.Client(timeout=PATIENCE, verify=ssl.create_default_context(cafile=authority)) as browser:
        page = browser.get(location)
        for _ in range(MAX_PAGES):
            if not page.is_redirect:
                page = browser.send(fill_in(browser, page))
                continue
            location = urljoin(str(page.url), page.headers["location"])
            if location.startswith(f"{home}/mounts/callback?"):
                return location
            page = browser.get(location)
    raise AssertionError(f"{page.url}: {page.text}")


def fill_in(browser: httpx.Client, page: httpx.Response) -> httpx.Request:
    """Return the request of a page's form, in which a person is `ada`."""
    action = re.search(r'<form[^>]* action="([^"]+)"', page.text)
    assert action is not None, page.text
    hidden = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', page.text))
    fields = {
        name: html.unescape(hidden.get(name, "ada")) for name in re.findall(r'<input[^>]* name="(\w+)"', page.text)
    }
    return browser.build_request("POST", urljoin(str(page.url), html.unescape(action[1])), data=fields)


@contextlib.contextmanager
def scene_with(kind: str, folder: Path) -> Iterator[ForeignScene]:
    with KINDS[kind](folder / "log") as far:
        table = url_mount(far.url, "far", 'auth = "oauth"', 'scope = "tools:shell"')
        env = {"SSL_CERT_FILE": str(far.authority)} if far.authority is not None else {}
        with signed_site(folder / "server", *write_config(folder, table), env=env) as signed:
            yield ForeignScene(far, AppUser(signed, "ada", "Fern"))
