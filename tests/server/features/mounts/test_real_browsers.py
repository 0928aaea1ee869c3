"""Servers that drive a browser, mounted for each session: navigate, take a snapshot, click by its reference."""

import http.server
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import Server
from tests.clients.raw_http_client import site, spoken
from tests.interop.node import FOLDER, node
from tests.server.features.mounts.mounted import wait_listed, write_config

CHROMIUM = "/usr/bin/chromium"
PAGE = (
    b"""<title>Lamp</title><button onclick="document.title = 'Lit'; this.textContent = 'Put out'">Light it</button>"""
)


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *words: Any) -> None: ...


@pytest.fixture
def page() -> Iterator[str]:
    """Yield the URL of a page with a button."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page) as listening:
        threading.Thread(target=listening.serve_forever).start()
        yield f"http://127.0.0.1:{listening.server_port}/"
        listening.shutdown()


@dataclass(frozen=True)
class BrowserServer:
    """A server with a browser: its words, the tool that opens a page, and how others show page 2 and click there."""

    words: list[str]
    navigate: str
    snapshot: Callable[[Server], str]
    find: str  # the pattern of the button's reference in a snapshot
    click: Callable[[Server, str], str]


PLAYWRIGHT = BrowserServer(
    ["@playwright/mcp/cli.js", "--headless", "--isolated", "--no-sandbox", "--executable-path", CHROMIUM],
    "far__browser_navigate",
    lambda server: server.text("far__browser_snapshot"),
    r'button "Light it" \[ref=(\w+)\]',
    lambda server, ref: server.text("far__browser_click", {"element": "the button", "target": ref}),
)
DEVTOOLS = BrowserServer(
    [
        "chrome-devtools-mcp/build/src/bin/chrome-devtools-mcp.js",
        "--headless",
        "--isolated",
        "--executablePath",
        CHROMIUM,
        "--chromeArg=--no-sandbox",
    ],
    "far__new_page",
    lambda server: server.text("far__take_snapshot", {"pageId": 2}),
    r'uid=(\w+) button "Light it"',
    lambda server, uid: server.text("far__click", {"uid": uid, "pageId": 2}),
)


@pytest.mark.soak  # four browsers
@pytest.mark.programs("chromium")
@pytest.mark.parametrize("browser", [PLAYWRIGHT, DEVTOOLS], ids=["playwright", "devtools"])
def test_each_session_has_a_browser_of_its_own(tmp_path: Path, page: str, browser: BrowserServer) -> None:
    program = FOLDER / "node_modules" / browser.words[0]
    args = json.dumps([str(program), *browser.words[1:]])
    table = f'[mounts.far]\ncommand = "{node()}"\nargs = {args}\nper = "session"\n'
    with (
        site(tmp_path / "server", *write_config(tmp_path, table)) as listening,
        spoken(listening, "http") as first,
        spoken(listening, "http") as second,
    ):
        for server in (first, second):
            wait_listed(server)
            server.text(browser.navigate, {"url": page})
        found = re.search(browser.find, browser.snapshot(first))
        assert found, browser.snapshot(first)
        browser.click(first, found[1])
        assert 'button "Put out"' in browser.snapshot(first)
        assert 'button "Light it"' in browser.snapshot(second)
