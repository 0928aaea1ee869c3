"""`toolgate mount add` shows what a server lists, and a person approves it before any server serves it."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import STATELESS, Refusal, Server, eventually
from tests.clients.raw_http_client import site, spoken
from tests.server.features.mounts.mounted import wait_listed, write_config
from tests.server.features.mounts.pins.listed import PROGRAM, ListedMount, ask_at_terminal, tool
from toolgate.server.cli import main

ALONE = ("--auth", "none")
HELD = "HELD: it is not approved as it is now"
ECHO = tool("echo", description="does\u200becho")
LISTS: dict[str, Any] = {"tools": [ECHO], "more": [tool("ask")], "instructions": "Be kind."}


def add(mount: ListedMount, options: tuple[str, ...]) -> tuple[str, ...]:
    return ("mount", "add", "far", *options, "--", sys.executable, str(PROGRAM), str(mount.file), "legacy")


def test_without_a_terminal_the_first_lists_are_printed_and_approved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mount = ListedMount(tmp_path)
    mount.say(**LISTS)
    options = (*write_config(tmp_path, ""), "--state", str(tmp_path / "state"))
    with site(tmp_path, *ALONE, *options) as listening, spoken(listening, "http", revision=STATELESS) as client:
        assert main.run(add(mount, options)) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[1].startswith("far: 2 tools (2025-11-25, ")
        assert lines[2:] == [
            "  tool reload",
            '  tool echo  "does<U+200B>echo"',
            "    ! it has invisible characters: <U+200B>",
            '  instructions  "Be kind."',
            '  tool ask  "does ask"',
            "Approved 4 items of far",
        ]
        assert wait_listed(client).keys() >= {"far__reload", "far__echo"}
        mount.say(tools=[ECHO, tool("late")], more=[tool("ask"), tool("later")])
        client.text("far__reload")
        assert eventually(lambda: "tool 'late'" in listening.log()), listening.log()
        assert client.error("far__late").startswith(HELD)
        with spoken(listening, "http", revision=STATELESS, capabilities={"elicitation": {}}) as able:
            assert wait_listed(able).keys() >= {"far__ask"}
            assert able.error("far__later").startswith(HELD), "a person has seen the first lists: nothing else is taken"


@pytest.mark.parametrize(("word", "is_served"), [("y", True), ("n", False)])
def test_a_person_at_a_terminal_is_asked(tmp_path: Path, word: str, is_served: bool) -> None:
    mount = ListedMount(tmp_path)
    mount.say(**LISTS)
    options = (*write_config(tmp_path, ""), "--state", str(tmp_path / "state"))
    with site(tmp_path, *ALONE, *options) as listening, spoken(listening, "http") as client:
        shown = ask_at_terminal(tmp_path, add(mount, options), word)
        assert "Approve 4 items? [y]es, [n]o: " in shown
        if is_served:
            assert "Approved 4 items of far" in shown
            assert wait_listed(client).keys() >= {"far__reload", "far__echo"}
        else:
            assert "Nothing is approved yet: toolgate mount review far decides" in shown
            assert eventually(lambda: is_held(client)), listening.log()


def is_held(client: Server) -> bool:
    try:
        return client.error("far__echo").startswith(HELD)
    except Refusal:  # the mount is not known yet
        client.request("tools/list")
        return False


def test_a_server_that_fails_is_added_and_its_first_lists_are_the_operators_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mount = ListedMount(tmp_path)  # the file is not there yet
    options = (*write_config(tmp_path, ""), "--state", str(tmp_path / "state"))
    assert main.run(add(mount, options)) == 0
    shown = capsys.readouterr().out
    assert "far: STDIO_EXITED_BEFORE_INITIALIZE: " in shown
    assert "the first lists that a running server is told are taken as your word" in shown
    mount.say(**LISTS)
    with site(tmp_path, *ALONE, *options) as listening, spoken(listening, "http") as client:
        assert wait_listed(client).keys() >= {"far__echo"}
        assert eventually(lambda: "mount far: its first lists" in listening.log())
