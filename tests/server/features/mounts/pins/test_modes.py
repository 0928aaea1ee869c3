"""What becomes of a change: by the transport, by `on_change`, at a restart, and at the first lists of a mount."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.raw_client import STATELESS, Server, eventually
from tests.clients.raw_http_client import Site, site, spoken
from tests.server.features.mounts.mounted import wait_listed, write_config
from tests.server.features.mounts.pins.listed import ListedMount, tool
from tests.servers.postgres import Postgres
from tests.servers.replicas import running_replicas
from toolgate.server.cli import main

ALONE = ("--auth", "none")
CHANGED = tool("echo", title="new")
HELD = "HELD: it is not approved as it is now"
Start = Callable[..., Server]


def names(client: Server) -> set[str]:
    return {each["name"] for each in client.request("tools/list")["tools"] if each["name"].startswith("far__")}


def title(client: Server) -> str | None:
    tools = {each["name"]: each for each in client.request("tools/list")["tools"]}
    return tools["far__echo"].get("title") if "far__echo" in tools else None


def wait_baseline(server: Server | Site) -> None:
    assert eventually(lambda: "its first lists" in server.log()), server.log()


@pytest.mark.parametrize(
    ("line", "is_told"), [("", True), ('on_change = "warn"', True), ('on_change = "allow"', False)]
)
def test_over_stdio_a_change_is_served_and_the_log_says_so(
    start: Start, tmp_path: Path, line: str, is_told: bool
) -> None:
    mount = ListedMount(tmp_path, "legacy", line)
    mount.say(tools=[tool("echo")])
    server = start(*write_config(tmp_path, mount.table), "--verbose")
    wait_listed(server)
    if is_told:
        wait_baseline(server)
    mount.say(tools=[CHANGED, tool("more")])
    server.text("far__reload")
    assert eventually(lambda: title(server) == "new" and "far__more" in names(server))
    assert server.text("far__more") == "ran more"
    if is_told:
        told = "mount far: new or changed since it was approved: tool 'echo', tool 'more'"
        assert eventually(lambda: told in server.log())
    else:
        assert "approved" not in server.log()


def test_hold_holds_over_stdio_too_and_after_a_restart(start: Start, tmp_path: Path) -> None:
    mount = ListedMount(tmp_path, "legacy", 'on_change = "hold"')
    mount.say(tools=[tool("echo"), tool("sum")], instructions="Be kind.")
    options = write_config(tmp_path, mount.table)
    server = start(*options, "--verbose")
    wait_listed(server)
    wait_baseline(server)
    assert eventually(lambda: main.run(("mount", "review", "far", *options, "--state", str(server.state))) == 0)
    server.close()
    mount.say(tools=[CHANGED, tool("sum")], instructions="Be cruel.")
    again = start(*options)
    assert "Be kind." in again.hello["instructions"]  # as it was listed last
    assert again.text("far__sum") == "ran sum"  # which begins a conversation
    assert eventually(lambda: names(again) == {"far__reload", "far__sum"}), again.log()
    assert again.error("far__echo").startswith(HELD)
    again.close()
    third = start(*options)
    assert "Be" not in third.hello.get("instructions", "")  # new ones are held
    assert names(third) == {"far__reload", "far__sum"}, "from the first list on"


def test_another_command_is_another_server(start: Start, tmp_path: Path) -> None:
    mount = ListedMount(tmp_path, "legacy", 'on_change = "hold"')
    mount.say(tools=[tool("echo")])
    server = start(*write_config(tmp_path, mount.table), "--verbose")
    wait_listed(server)
    wait_baseline(server)
    other = ListedMount(tmp_path, "modern", 'on_change = "hold"')
    other.say(tools=[CHANGED, tool("more")])
    write_config(tmp_path, other.table)
    assert eventually(lambda: names(server) == {"far__reload", "far__echo", "far__more"}), server.log()
    assert server.log().count("its first lists") == 2
    mount.say(tools=[CHANGED])
    write_config(tmp_path, mount.table)
    assert eventually(lambda: names(server) == {"far__reload"}), server.log()  # what it was approved for stays known


def test_another_kind_of_client_may_be_shown_more_at_first_and_no_change(tmp_path: Path) -> None:
    mount = ListedMount(tmp_path)
    mount.say(tools=[tool("echo")], more=[tool("ask"), CHANGED])
    with (
        site(tmp_path, *ALONE, *write_config(tmp_path, mount.table)) as listening,
        spoken(listening, "http") as plain,
        spoken(listening, "http", revision=STATELESS, capabilities={"elicitation": {}}) as able,
    ):
        assert eventually(lambda: names(plain) == {"far__reload", "far__echo"})
        assert eventually(lambda: names(able) == {"far__reload", "far__echo", "far__ask"}), listening.log()
        mount.say(tools=[tool("echo")], more=[tool("ask"), tool("late")])
        able.text("far__reload")
        assert eventually(lambda: "tool 'late'" in listening.log()), listening.log()
        assert able.error("far__late").startswith(HELD)
        assert names(able) == {"far__reload", "far__echo", "far__ask"}


def test_two_servers_on_one_state_share_what_is_approved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mount = ListedMount(tmp_path)
    mount.say(tools=[tool("echo")])
    options = (*write_config(tmp_path, mount.table), "--state", str(tmp_path / "shared"))
    with (
        site(tmp_path / "a", *ALONE, *options) as first,
        site(tmp_path / "b", *ALONE, *options) as second,
        spoken(first, "http") as one,
        spoken(second, "http") as two,
    ):
        clients = (one, two)
        for client in clients:
            wait_listed(client)
        mount.say(tools=[CHANGED])
        for client in clients:
            client.text("far__reload")
            assert eventually(lambda client=client: names(client) == {"far__reload"})
        assert eventually(lambda: main.run(("mount", "review", "far", "--approve", "echo", *options)) == 0)
        for client in clients:
            assert names(client) == {"far__reload", "far__echo"} and title(client) == "new"
        capsys.readouterr()
        assert main.run(("mount", "review", "far", *options)) == 0
        assert capsys.readouterr().out == "far: nothing is held\n"


def test_a_bad_word_is_refused_with_those_that_are_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mount = ListedMount(tmp_path, "legacy", 'on_change = "deny"')
    options = (*write_config(tmp_path, mount.table), "--state", str(tmp_path / "state"))
    assert main.run(("mount", "test", "far", *options)) == 1
    shown = capsys.readouterr().out
    assert "CONFIG_VALUE" in shown and "on_change: " in shown and "hold" in shown


@pytest.mark.soak  # two servers on one state look by themselves, too: above
def test_replicas_on_a_database_share_what_is_approved(
    tmp_path: Path, postgres: Postgres, capsys: pytest.CaptureFixture[str]
) -> None:
    mount = ListedMount(tmp_path)
    mount.say(tools=[tool("echo")])
    options = write_config(tmp_path, mount.table)
    with running_replicas(tmp_path, postgres, *options) as replicas:
        first, second = replicas.sites
        with spoken(first, "http") as one, spoken(second, "http") as two:
            clients = (one, two)
            for client in clients:
                wait_listed(client)
            mount.say(tools=[CHANGED])
            for client in clients:
                client.text("far__reload")
                assert eventually(lambda client=client: names(client) == {"far__reload"}), replicas.log()
            words = (*options, "--database", replicas.database, "--state", str(tmp_path / "elsewhere"))
            review = ("mount", "review", "far", "--approve", "echo", *words)
            assert eventually(lambda: main.run(review) == 0), capsys.readouterr()
            for client in clients:  # the command ran on another machine: they look by themselves
                assert eventually(lambda client=client: title(client) == "new"), replicas.log()


def test_mounts_of_different_modes_are_known_apart(start: Start, tmp_path: Path) -> None:
    held = ListedMount(tmp_path, "legacy", 'on_change = "hold"')
    held.say(tools=[tool("echo")])
    (tmp_path / "other").mkdir()
    other = ListedMount(tmp_path / "other")
    other.say(tools=[tool("echo")])
    tables = held.table, other.table.replace("[mounts.far]", "[mounts.other]")
    server = start(*write_config(tmp_path, *tables), "--verbose")
    wait_listed(server, "far", "other")
    assert eventually(lambda: server.log().count("its first lists") == 2), server.log()
    other.say(tools=[CHANGED])
    server.text("other__reload")
    assert eventually(lambda: "mount other: new or changed since it was approved: tool 'echo'" in server.log())
    server.close()
    held.say(tools=[CHANGED])
    again = start(*write_config(tmp_path, *tables), "--verbose")
    assert again.text("far__reload") == "ran reload"
    assert eventually(lambda: names(again) == {"far__reload"}), again.log()
    other.say(tools=[CHANGED, tool("more")])
    assert again.text("other__reload") == "ran reload"
    assert eventually(lambda: "mount other: new or changed since it was approved: tool 'more'" in again.log())
    assert again.log().count("its first lists") == 2, "both were known"


def test_calls_of_what_is_held_are_limited(start: Start, tmp_path: Path) -> None:
    mount = ListedMount(tmp_path, "legacy", 'on_change = "hold"')
    mount.say(tools=[tool("echo")])
    server = start(*write_config(tmp_path, mount.table), "--verbose", "--limit", "calls=3")
    wait_listed(server)
    wait_baseline(server)
    mount.say(tools=[CHANGED])
    server.text("far__reload")
    assert eventually(lambda: names(server) == {"far__reload"}), server.log()
    told = [server.error("far__echo") for _ in range(3)]
    assert [each.startswith(HELD) for each in told] == [True, True, False]
    assert "3 calls" in told[2]


@pytest.mark.parametrize("mode", ["hold", "warn", "allow"])
def test_what_has_a_very_long_name_is_left_out(start: Start, tmp_path: Path, mode: str) -> None:
    mount = ListedMount(tmp_path, "modern", f'on_change = "{mode}"')
    long, longest = "x" * 1_025, "x" * 1_024
    uris = [f"far://{long}", f"ui://{long}"]
    mount.say(
        tools=[tool("echo"), tool(longest), tool(long)],
        prompts=[{"name": long}, {"name": "short"}],
        resources=[{"uri": uri, "name": "long"} for uri in uris],
        resourceTemplates=[{"uriTemplate": f"far://{{id}}/{long}", "name": "long"}],
        skills=[{"uri": f"far://{long}/SKILL.md", "name": "long", "frontmatter": {}}],
    )
    server = start(*write_config(tmp_path, mount.table), "--verbose", revision=STATELESS)
    assert eventually(lambda: "far__echo" in names(server))
    assert eventually(lambda: "mount far: 5 items are left out: their names are longer than 1024" in server.log())
    assert len(names(server)) == 3  # a name of 1,024 characters is shortened here
    assert {each["name"] for each in server.request("prompts/list")["prompts"] if "far" in each["name"]} == {
        "far__short"
    }
    listed = {each["uri"] for each in server.request("resources/list")["resources"]}
    assert uris[0] in listed and uris[1] not in listed
    assert not any(long in each["uri"] for each in server.request("skills/list")["skills"])


def test_a_mount_that_was_removed_has_first_lists_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mount = ListedMount(tmp_path)
    mount.say(tools=[tool("echo")])
    options = write_config(tmp_path, mount.table)
    with site(tmp_path, *ALONE, *options) as listening, spoken(listening, "http") as client:
        wait_listed(client)
        mount.say(tools=[CHANGED])
        client.text("far__reload")
        assert eventually(lambda: names(client) == {"far__reload"})
        assert main.run(("mount", "remove", "far", *options, "--state", str(listening.state))) == 0
        assert eventually(lambda: not names(client))
        write_config(tmp_path, mount.table)
        assert eventually(lambda: title(client) == "new"), listening.log()
        assert listening.log().count("its first lists") == 2
    capsys.readouterr()


def test_while_the_state_cannot_be_read_nothing_is_served(start: Start, tmp_path: Path) -> None:
    mount = ListedMount(tmp_path, "legacy", 'on_change = "hold"')
    mount.say(tools=[tool("echo")])
    options = write_config(tmp_path, mount.table)
    server = start(*options, "--verbose")
    wait_listed(server)
    wait_baseline(server)
    state = server.state / "state.db"
    assert eventually(state.exists)
    server.close()
    whole = state.read_bytes()
    state.write_bytes(b"no database" * 1_000)
    again = start(*options)
    assert not names(again)
    assert eventually(lambda: "can't be kept in the state yet" in again.log()), again.log()
    assert again.error("far__echo").startswith(HELD)
    state.write_bytes(whole)
    assert eventually(lambda: names(again) == {"far__reload", "far__echo"}), again.log()
