"""What people and operators see of a node through a server: the first page."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.auth.minted_tokens import Signed, signed_site
from tests.server.auth.sign_in_server import Browser
from tests.server.node.nodes import NodeProcess, running_node
from tests.servers.home_page_server import AppUser


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with running_node(tmp_path_factory.mktemp("node"), "--sandbox", "none") as node:
        yield node


def sign_in(signed: Signed, name: str) -> Browser:
    browser = Browser(signed.site.port, {"accept": "text/html"})
    assert browser.sign_in(name=name).location == "/"
    return browser


def press(browser: Browser, button: str, value: str) -> tuple[int, str]:
    """Press a button of the first page. Return the status and the page."""
    csrf = browser.get("/").text.partition('action="/"')[2].partition('name="csrf" value="')[2].partition('"')[0]
    page = browser.post("/", {"csrf": csrf, button: value})
    return page.status, page.text


def test_the_first_page_shows_and_stops_what_began_before_its_server(node: NodeProcess, tmp_path: Path) -> None:
    words = ("--node", f"unix:{node.socket}")
    with signed_site(tmp_path, *words, workspace=False) as signed:
        ada = AppUser(signed, "ada", "App")
        zoe = AppUser(signed, "zoe", "Workbench")  # who never called
        running, ended = ada.run("echo one; exec sleep 500"), ada.run("echo two")
        signed.site.kill()
    (folder,) = os.listdir(node.state / "workspaces")
    with signed_site(tmp_path, *words, workspace=False) as signed:
        browser = sign_in(signed, "ada")
        page = browser.get("/").text
        row = page.partition(f'id="run-{running}"')[2].partition("</pre>")[0]
        assert "running" in row and row.endswith("one\n")
        assert page.partition(f'id="run-{ended}"')[2].partition("</pre>")[0].endswith("two\n")
        stranger = sign_in(signed, zoe.name)
        assert 'id="run-' not in stranger.get("/").text
        assert press(stranger, "stop", str(running))[0] == 404
        assert press(browser, "stop", str(running))[0] == 200
        assert "stopped" in browser.get("/").text.partition(f'id="run-{running}"')[2]
        for kept in ("workspaces", "spool"):
            assert os.listdir(node.state / kept) == [folder]
