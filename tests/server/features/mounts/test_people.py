"""Mounted servers over HTTP: people and sessions do not share a conversation, and scopes and rules hold."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import Refusal, Server, eventually
from tests.clients.raw_http_client import site, spoken
from tests.server.auth.minted_tokens import Signed, asked
from tests.server.features.mounts.mounted import (
    CAPABILITIES,
    PROGRAM,
    FarSite,
    answer,
    command_mount,
    far_site,
    url_mount,
    wait_listed,
    write_config,
)

MODERN_MOUNT, LEGACY_MOUNT = "modern", "legacy"


@pytest.fixture
def far(tmp_path: Path) -> Iterator[FarSite]:
    with far_site(tmp_path, LEGACY_MOUNT) as opened:
        yield opened


class People:
    """A server with sign-in, whose people call with tokens of their own."""

    def __init__(self, signed: Signed) -> None:
        self._signed = signed

    def request(self, who: str, method: str, params: dict[str, Any], scopes: str | None = None) -> Any:
        """Return the status and the answer."""
        how = {} if scopes is None else {"scope": scopes}
        response, _, answered = asked(self._signed, self._signed.token(who, **how), method, params)
        return response.status, answered

    def wait_listed(self, who: str) -> None:
        """Wait until the tools of the mount are known for a client like this."""

        def are_listed() -> bool:
            _, listed = self.request(who, "tools/list", {})
            return any(tool["name"].startswith("far__") for tool in listed["result"]["tools"])

        assert eventually(are_listed)

    def call(self, who: str, tool: str, **arguments: Any) -> str:
        status, answered = self.request(who, "tools/call", {"name": tool, "arguments": arguments})
        assert status == 200, answered
        text: str = answered["result"]["content"][0]["text"]
        return text


@pytest.fixture
def people(far: FarSite, tmp_path: Path) -> Iterator[People]:
    options = ("--auth", "oauth", *write_config(tmp_path, url_mount(far.url)))
    with site(tmp_path / "server", *options) as listening:
        yield People(Signed(listening))


def test_two_people_have_a_conversation_each(people: People) -> None:
    for who in ("ada", "bob"):
        people.wait_listed(who)
    assert [people.call("ada", "far__count") for _ in range(3)] == ["1", "2", "3"]
    assert people.call("bob", "far__count") == "1"


def test_a_call_needs_the_scope_of_the_mount(people: People) -> None:
    people.wait_listed("ada")
    _, listed = people.request("ada", "tools/list", {}, "tools:read")
    assert "far__count" in {tool["name"] for tool in listed["result"]["tools"]}
    status, _ = people.request("ada", "tools/call", {"name": "far__count", "arguments": {}}, "tools:read")
    assert status == 403


def test_sessions_have_a_conversation_each(far: FarSite, tmp_path: Path) -> None:
    options = write_config(tmp_path, url_mount(far.url))
    with site(tmp_path / "server", *options) as listening, spoken(listening, "http") as first:
        wait_listed(first)
        assert [first.text("far__count") for _ in range(2)] == ["1", "2"]
        with spoken(listening, "http") as second:
            wait_listed(second)
            assert second.text("far__count") == "1"


@pytest.mark.parametrize("transport", ["http", "sse"])
def test_a_question_reaches_the_client_over_http(far: FarSite, tmp_path: Path, transport: str) -> None:
    revision = "2024-11-05" if transport == "sse" else "2025-11-25"
    options, how = write_config(tmp_path, url_mount(far.url)), {"capabilities": CAPABILITIES, "answer": answer}
    with (
        site(tmp_path / "server", *options) as listening,
        spoken(listening, transport, revision=revision, **how) as client,  # type: ignore[arg-type]
    ):
        wait_listed(client)
        assert json.loads(client.text("far__roots"))["roots"][0]["name"] == "far"


def test_a_rule_names_a_mount(far: FarSite, tmp_path: Path) -> None:
    options = ("--deny", "mount:far", *write_config(tmp_path, url_mount(far.url)))
    with site(tmp_path / "server", *options) as listening, spoken(listening, "http") as client:
        assert not [tool for tool in client.request("tools/list")["tools"] if tool["name"].startswith("far__")]
        assert eventually(lambda: _is_known(client, "far__count"))
        assert "the rule --deny mount:far" in client.error("far__count")


def _is_known(client: Server, tool: str) -> bool:
    try:
        client.call(tool)
    except Refusal:
        return False
    return True


def test_a_plan_holds_a_mounted_tool_unless_the_operator_says_it_is_harmless(far: FarSite, tmp_path: Path) -> None:
    options = write_config(tmp_path, url_mount(far.url, "far", 'read_only = ["echo"]'))
    with site(tmp_path / "server", *options) as listening, spoken(listening, "http") as client:
        wait_listed(client)
        client.text("PlanMode", {"action": "enter", "goal": "look"})
        assert "refused while a plan is active" in client.error("far__count")  # which calls itself read-only
        assert client.text("far__echo")


def test_a_person_who_reaches_a_limit_of_a_mount_is_told_and_others_are_not(far: FarSite, tmp_path: Path) -> None:
    table = url_mount(far.url, "far", "limits = { calls = 2 }")
    with site(tmp_path / "server", "--auth", "oauth", *write_config(tmp_path, table)) as listening:
        people = People(Signed(listening))
        people.wait_listed("ada")
        assert [people.call("ada", "far__count") for _ in range(2)] == ["1", "2"]
        assert people.call("ada", "far__count").startswith("LIMITED: ")
        assert people.call("bob", "far__count")[:7] != "LIMITED"


def test_no_more_calls_are_under_way_than_the_limit_of_a_mount(far: FarSite, tmp_path: Path) -> None:
    options = write_config(tmp_path, url_mount(far.url, "far", "limits = { at_once = 1 }"))
    with site(tmp_path / "server", *options) as listening, spoken(listening, "http") as client:
        wait_listed(client)
        before = int(far.ask("/requests"))
        slow = client.begin("tools/call", {"name": "far__slow", "arguments": {}})
        assert eventually(lambda: int(far.ask("/requests")) > before)
        assert client.error("far__count").startswith("LIMITED: more than 1 at once")
        client.notify("notifications/cancelled", {"requestId": slow})
        assert eventually(lambda: not client.call("far__count").get("isError"))


def test_a_command_runs_for_each_person_over_their_own_workspace(tmp_path: Path) -> None:
    with site(
        tmp_path / "server", "--auth", "oauth", *write_config(tmp_path, command_mount(LEGACY_MOUNT))
    ) as listening:
        people = People(Signed(listening))
        for who in ("ada", "bob"):
            people.wait_listed(who)
        assert [people.call("ada", "far__count") for _ in range(2)] == ["1", "2"]
        assert people.call("bob", "far__count") == "1"
        assert people.call("ada", "far__pid") != people.call("bob", "far__pid")


def test_variables_of_a_mount_are_refused_where_commands_could_read_them(tmp_path: Path) -> None:
    table = command_mount(LEGACY_MOUNT, "far", 'env = { KEY = "secret" }')
    with site(tmp_path / "server", "--auth", "oauth", *write_config(tmp_path, table)) as listening:
        people = People(Signed(listening))
        _, listed = people.request("ada", "tools/list", {})
        assert not [tool for tool in listed["result"]["tools"] if tool["name"].startswith("far__")]
        assert eventually(lambda: "SECRETS_EXPOSED" in listening.log())
        assert "secret" not in listening.log()


def test_the_program_of_a_session_ends_with_it(tmp_path: Path) -> None:
    options = write_config(tmp_path, command_mount(LEGACY_MOUNT, "far", 'per = "session"'))
    with site(tmp_path / "server", *options) as listening, spoken(listening, "http") as kept:
        wait_listed(kept)
        with spoken(listening, "http") as first:
            wait_listed(first)
            pid = int(first.text("far__pid"))
        assert eventually(lambda: not Path(f"/proc/{pid}").exists())  # its DELETE came
        assert Path(f"/proc/{kept.text('far__pid')}").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has all levels")
@pytest.mark.programs("bwrap")
@pytest.mark.brief("bwrap")
@pytest.mark.parametrize("level", ["bwrap", "uid"])
def test_a_shell_does_not_see_the_variables_of_a_mount(tmp_path_factory: pytest.TempPathFactory, level: str) -> None:
    folder = Path(tempfile.mkdtemp(prefix="toolgate-mount-"))
    try:
        folder.chmod(0o755)
        shutil.copy(PROGRAM, folder)
        table = (
            f'[mounts.far]\ncommand = "python3"\nargs = ["{PROGRAM.name}", "legacy"]\ncwd = "{folder}"\n'
            'env = { KEY = "the-secret-of-the-mount" }\n'
        )
        server = tmp_path_factory.mktemp("mounts")
        options = ("--auth", "oauth", "--sandbox", level, *write_config(server, table))
        with site(folder / "server", *options, workspace=False) as listening:
            people = People(Signed(listening))
            people.wait_listed("ada")
            assert "the-secret-of-the-mount" in people.call("ada", "far__env")
            look = "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c the-secret; echo looked"
            assert people.call("ada", "Bash", command=look) == "0\nlooked\n"
    finally:
        shutil.rmtree(folder)
