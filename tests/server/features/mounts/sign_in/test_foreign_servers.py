"""People sign in at mounted servers and authorization servers of others: the official Python SDK with oidc-provider of
npm, the demo of the official TypeScript SDK, and FastMCP's own."""

import contextlib
import html
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx
import pytest

from tests.clients.raw_client import PATIENCE, eventually
from tests.interop.node import FOLDER, node, package
from tests.server.auth.minted_tokens import signed_site
from tests.server.auth.sign_in_server import Browser
from tests.server.features.mounts.mounted import url_mount, write_config
from tests.server.features.mounts.test_real_servers import PYPI
from tests.servers.home_page_server import AppUser
from tests.servers.reserved_port import reserved_port
from tests.transports.web.test_home import _csrf as find_csrf

RESOURCE = Path(__file__).with_name("resource_server.py")
DEMO = "dist/esm/examples/server/simpleStreamableHttp.js"
MAX_PAGES = 12  # between a person's leaving and their return


class ForeignServer:
    """A mounted server at `url`, whose programs write a log. `tool` returns `text`."""

    def __init__(self, url: str, log: Path, tool: str, text: str) -> None:
        self.url, self.tool, self.text = url, tool, text
        self.arguments = {"name": "Ada"} if tool == "greet" else {}
        self._log = log

    def log(self) -> str:
        return self._log.read_text()

    def refuses(self) -> bool:
        """Return whether it asks for a token."""
        try:
            return httpx.post(self.url, json={}).status_code == 401
        except httpx.TransportError:
            return False


@contextlib.contextmanager
def running(server: ForeignServer, log: Path, *commands: list[str], **variables: str) -> Iterator[ForeignServer]:
    """Yield the server once its programs serve."""
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(log.open("ab"))
        for words in commands:
            process = stack.enter_context(subprocess.Popen(words, stdout=output, stderr=output, env=variables))
            stack.callback(process.kill)
        assert eventually(server.refuses), server.log()
        yield server


@contextlib.contextmanager
def oidc_provider(log: Path) -> Iterator[ForeignServer]:
    with reserved_port() as port, reserved_port() as issuer:
        url = f"http://127.0.0.1:{port}/mcp"
        commands = (
            [node(), str(FOLDER / "oidc_provider.mjs"), str(issuer), url],
            [sys.executable, str(RESOURCE), str(port), f"http://127.0.0.1:{issuer}"],
        )
        with running(ForeignServer(url, log, "whoami", "ada"), log, *commands) as server:
            assert eventually(lambda: "listening" in server.log()), server.log()
            yield server


@contextlib.contextmanager
def typescript_sdk(log: Path) -> Iterator[ForeignServer]:
    with reserved_port() as port, reserved_port() as issuer:
        words = [node(), str(package("@modelcontextprotocol/sdk") / DEMO), "--oauth", "--oauth-strict"]
        server = ForeignServer(f"http://localhost:{port}/mcp", log, "greet", "Hello, Ada!")
        with running(server, log, words, MCP_PORT=str(port), MCP_AUTH_PORT=str(issuer)):
            yield server


@contextlib.contextmanager
def fastmcp(log: Path) -> Iterator[ForeignServer]:
    with reserved_port() as port:
        words = [str(PYPI), str(FOLDER / "frameworks" / "fastmcp_sign_in.py"), str(port)]
        with running(ForeignServer(f"http://127.0.0.1:{port}/mcp", log, "whoami", "notes:read"), log, words) as server:
            yield server


KINDS = [
    pytest.param(oidc_provider, id="oidc-provider"),
    pytest.param(typescript_sdk, id="TypeScript SDK"),
    pytest.param(fastmcp, id="FastMCP", marks=pytest.mark.soak),  # `make frameworks` installs it
]


class Scene:
    """A server with the mount, and a person with an app."""

    def __init__(self, far: ForeignServer, ada: AppUser) -> None:
        self.far, self.ada = far, ada

    def connect(self) -> Browser:
        """Walk a person's browser through the pages of both servers."""
        browser = self.ada.browser()
        page = browser.get("/mounts/connect?name=far")
        assert page.status == 200, page.text
        fields = {name: page.field(name) for name in ("csrf", "name", "shown")}
        left = browser.post("/mounts/connect", fields)
        assert left.status in (302, 303), left.text
        back = urlsplit(sign_in(left.location, self.ada.url))
        connected = browser.get(f"{back.path}?{back.query}")
        assert (connected.status, "Connected" in connected.text) == (200, True), connected.text
        return browser

    def call(self) -> str:
        """Return the text of the result, or of the error."""
        answer = self._ask("tools/call", {"name": f"far__{self.far.tool}", "arguments": self.far.arguments})
        return str(answer["error"]["message"] if "error" in answer else answer["result"]["content"][0]["text"])

    def is_listed(self) -> bool:
        listed = self._ask("tools/list", {})["result"]["tools"]
        return f"far__{self.far.tool}" in {tool["name"] for tool in listed}

    def _ask(self, method: str, params: dict[str, Any]) -> Any:
        _, raw, said = self.ada.ask(method, params)
        return said or json.loads(raw.decode().rpartition("data: ")[2])


def sign_in(location: str, home: str) -> str:
    """Go through the pages at `location` as a person does, and return the URL at `home` that they lead back to."""
    with httpx.Client(timeout=PATIENCE) as browser:
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
def scene_with(kind: Any, folder: Path) -> Iterator[Scene]:
    with kind(folder / "log") as far:
        table = url_mount(far.url, "far", 'auth = "oauth"', 'scope = "tools:shell"')
        with signed_site(folder / "server", *write_config(folder, table)) as signed:
            yield Scene(far, AppUser(signed, "ada", "Fern"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_person_signs_in_at_a_server_of_others(kind: Any, tmp_path: Path) -> None:
    with scene_with(kind, tmp_path) as scene:
        browser = scene.connect()
        assert eventually(scene.is_listed), scene.ada.log()
        assert scene.call() == scene.far.text, scene.far.log()
        ended = browser.post("/", {"csrf": find_csrf(browser.get("/").text), "disconnect": "far"})
        assert (ended.status, "The connection was ended." in ended.text) == (200, True)
        assert "SIGN_IN_REQUIRED" in scene.call()
        scene.connect()
        assert scene.call() == scene.far.text, scene.far.log()


def test_a_server_that_detects_the_reuse_of_refresh_tokens_sees_none(tmp_path: Path) -> None:
    with scene_with(oidc_provider, tmp_path) as scene:
        browser = scene.connect()
        assert eventually(scene.is_listed), scene.ada.log()

        def is_refreshed() -> bool:
            assert scene.call() == "ada", scene.far.log()
            return scene.far.log().count("grant.success refresh_token") >= 2

        assert eventually(is_refreshed), scene.far.log()
        assert "grant.error" not in scene.far.log() and "grant.revoked" not in scene.far.log()
        browser.post("/", {"csrf": find_csrf(browser.get("/").text), "disconnect": "far"})
        assert eventually(lambda: "grant.revoked" in scene.far.log()), scene.far.log()
