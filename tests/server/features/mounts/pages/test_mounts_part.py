"""The first page shows each mounted server with its state, its last error and what its code means."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import ROOT, eventually
from tests.clients.raw_http_client import site, spoken
from tests.server.auth.minted_tokens import Signed
from tests.server.auth.sign_in_server import Browser
from tests.server.features.mounts.choices.chooser import Chooser
from tests.server.features.mounts.mounted import command_mount, url_mount, wait_listed, write_config
from tests.server.features.mounts.pins.listed import ListedMount, tool
from tests.servers.home_page_server import AppUser
from toolgate.server.features.mounts.upstream.errors import CODES

DIARY = """[mounts.far]
command = "/bin/sh"
args = ["-c", "cat ~/diary.txt >&2; exit 3"]
"""
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def test_a_mount_is_shown_with_its_state_and_the_page_of_its_code(tmp_path: Path) -> None:
    tables = command_mount("legacy"), url_mount("http://127.0.0.1:9/mcp", "away")
    with (
        site(tmp_path, "--auth", "none", *write_config(tmp_path, *tables)) as listening,
        spoken(listening, "http") as client,
    ):
        wait_listed(client)
        person = Chooser(Browser(listening.port, {"accept": "text/html"}))
        row = read_row(person, "far")
        assert "running</b> since <time" in row and re.search(r">\d+ tools</a>", row)
        assert eventually(lambda: "failed</b>" in read_row(person, "away")), person.first_page()
        failed = read_row(person, "away")
        assert '<a href="/mounts/codes#CONNECT_FAILED">CONNECT_FAILED</a>: ' in failed
        since = re.findall(r'datetime="([^"]*)"', failed)
        assert eventually(lambda: listening.log().count("CONNECT_FAILED") >= 1)
        assert re.findall(r'datetime="([^"]*)"', read_row(person, "away")) == since
        codes = person.browser.get("/mounts/codes").text
        assert all(f'<div id="{code}"' in codes for code in CODES)


def read_row(person: Chooser, mount: str) -> str:
    """Return what the first page says of a mount."""
    return person.first_page().partition(f'id="mount-{mount}"')[2].partition('<div class="row"')[0]


def test_what_a_failure_says_is_shown_to_the_person_whose_it_was(tmp_path: Path) -> None:
    with site(tmp_path, "--auth", "oauth", *write_config(tmp_path, DIARY), workspace=False) as listening:
        ada = AppUser(Signed(listening), "ada", "Fern", scope="tools:shell")
        bob = AppUser(Signed(listening), "bob", "Workbench", is_connected=False)
        ada.call("Bash", command="echo private words > ~/diary.txt")
        mine, theirs = Chooser(ada.browser()), Chooser(bob.browser())

        def fails() -> bool:
            ada.ask("tools/list")
            return "private words" in read_row(mine, "far")

        assert eventually(fails), listening.log()
        row = read_row(theirs, "far")
        assert "failed</b> since <time" in row and "#STDIO_EXITED_BEFORE_INITIALIZE" in row
        assert "it exited" not in theirs.first_page() and "private" not in theirs.first_page()


def test_a_failure_of_what_all_share_is_shown_to_all(tmp_path: Path) -> None:
    table = url_mount("http://127.0.0.1:9/mcp", "away", 'per = "all"')
    with site(tmp_path, "--auth", "oauth", *write_config(tmp_path, table)) as listening:
        ada = AppUser(Signed(listening), "ada", "Fern")
        bob = AppUser(Signed(listening), "bob", "Workbench", is_connected=False)
        ada.ask("tools/list")
        theirs = Chooser(bob.browser())
        assert eventually(lambda: "CONNECT_FAILED</a>: " in read_row(theirs, "away")), theirs.first_page()


def test_a_tool_that_is_held_is_not_on_the_page_of_tools(tmp_path: Path) -> None:
    mount = ListedMount(tmp_path)
    mount.say(tools=[tool("echo"), tool("sum")])
    with (
        site(tmp_path, "--auth", "none", *write_config(tmp_path, mount.table)) as listening,
        spoken(listening, "http") as client,
    ):
        wait_listed(client)
        person = Chooser(Browser(listening.port, {"accept": "text/html"}))
        assert person.read("far") == {"reload": True, "echo": True, "sum": True}
        mount.say(tools=[tool("echo", title="new"), tool("sum"), tool("more")])
        client.text("far__reload")
        assert eventually(lambda: person.read("far") == {"reload": True, "sum": True}), listening.log()


def test_a_mount_that_is_gone_is_shown_as_long_as_something_is_off(tmp_path: Path) -> None:
    options = write_config(tmp_path, command_mount("legacy"))
    with (
        site(tmp_path, "--auth", "none", *options) as listening,
        spoken(listening, "http") as client,
    ):
        wait_listed(client)
        person = Chooser(Browser(listening.port, {"accept": "text/html"}))
        assert person.switch("far", off=True).status == 200
        assert person.choose("far", ["echo"]).status == 200
        write_config(tmp_path, "")
        assert eventually(lambda: "not mounted</b>" in read_row(person, "far"))
        assert person.switch("far", off=False).status == 200
        assert person.read("far") == {"echo": False}
        assert person.choose("far", []).location == "/"
        assert read_row(person, "far") == ""


def test_the_page_of_codes_says_what_the_documentation_says() -> None:
    text = (ROOT / "docs" / "gateway.md").read_text().partition("| code | |")[2]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    told = {
        code: LINK.sub(r"\1", row[1]).replace("`", "").strip()
        for row in rows
        for code in re.findall(r"`(\w+)`", row[0])
    }
    assert {code: told.get(code) for code in CODES} == CODES


@pytest.mark.brief("None", "['b']")
@pytest.mark.parametrize("name", [None, ["b"], {"b": 1}, 3, ""], ids=str)
def test_a_tool_without_a_name_of_its_own_is_left_out(tmp_path: Path, name: Any) -> None:
    mount = ListedMount(tmp_path, "legacy", 'on_change = "allow"')
    nameless = {"description": ["b"], "inputSchema": {"type": "object"}} | ({} if name is None else {"name": name})
    mount.say(
        tools=[tool("a"), nameless],
        prompts=[nameless],
        resources=[{"uri": name}],
        resourceTemplates=[{"uri": name, "uriTemplate": "far://{id}", "name": name}],
        skills=[{"uri": name}],
    )
    with (
        site(tmp_path, "--auth", "none", *write_config(tmp_path, mount.table)) as listening,
        spoken(listening, "http") as client,
    ):
        assert "far__a" in wait_listed(client)
        person = Chooser(Browser(listening.port, {"accept": "text/html"}))
        assert "2 tools</a>" in read_row(person, "far")
        assert person.read("far") == {"a": True, "reload": True}
        assert person.choose("far", ["a"]).status == 200
        assert "far__a" not in wait_listed(client)
