"""Secrets of mounts in running servers: whose reach which conversation, and where none shows."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import Server, eventually
from tests.clients.raw_http_client import site, spoken
from tests.folder_contents import read_files
from tests.server.auth.minted_tokens import Signed
from tests.server.features.mounts.mounted import (
    PROGRAM,
    FarSite,
    call_through,
    command_mount,
    far_site,
    url_mount,
    wait_listed,
    write_config,
)
from tests.server.features.mounts.test_people import People
from tests.servers import forked_command
from tests.servers.forked_command import COMMAND
from toolgate.server.auth.tokens.access_tokens import OWN_ISSUER
from toolgate.server.base.principals.principal import Principal

ALONE = ("--auth", "none")
KEY = "sk-0123456789-of-the-team"
Start = Callable[..., Server]


def secret(state: Path, *words: str, value: str = "") -> subprocess.CompletedProcess[str]:
    """Run `toolgate secret …` on a state."""
    env = {"PATH": "/usr/bin:/bin", "HOME": str(state.parent)}
    return forked_command.run([COMMAND, "secret", *words, "--state", str(state)], value, cwd=state.parent, env=env)


def set_secret(state: Path, name: str, value: str, who: str = "") -> None:
    done = secret(state, "set", name, *(("--for", who) if who else ()), value=value)
    assert done.returncode == 0, done


def principal(who: str) -> str:
    return Principal(OWN_ISSUER, who, "").name


def find_files_with(folder: Path, text: str) -> list[Path]:
    return [path for path, content in read_files(folder).items() if text.encode() in content]


def header_mount(far: FarSite, *lines: str) -> str:
    return url_mount(far.url, "far", 'headers = { X-Far-Key = "Bearer ${secret:KEY}" }', *lines)


pytestmark = pytest.mark.rotated(1)  # the eras


@pytest.fixture(params=["legacy", "modern"])
def far(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FarSite]:
    with far_site(tmp_path, request.param) as opened:
        yield opened


def read_key(server: Server) -> str:
    """Return the secret that the mounted server got with this call."""
    told = call_through(server, "far__headers")["content"][0]["text"]
    return str(json.loads(told).get("X-Far-Key", "")).removeprefix("Bearer ")


def test_a_command_gets_a_secret_in_its_environment_and_another_one_without_a_restart(
    start: Start, tmp_path: Path
) -> None:
    server = start(*write_config(tmp_path, command_mount("legacy", "far", 'env = { KEY = "${secret:KEY}" }')))
    set_secret(server.state, "KEY", KEY)
    wait_listed(server)
    assert json.loads(server.text("far__env"))["KEY"] == KEY
    first = server.text("far__pid")
    assert server.text("far__pid") == first
    set_secret(server.state, "KEY", "another-secret")
    assert json.loads(server.text("far__env"))["KEY"] == "another-secret"
    assert server.text("far__pid") != first
    assert secret(server.state, "remove", "KEY").returncode == 0
    assert "SECRET_MISSING: the secret KEY is not set: toolgate secret set KEY sets it" in server.error("far__env")
    set_secret(server.state, "KEY", "line one\nline two")
    assert json.loads(server.text("far__env"))["KEY"] == "line one\nline two"


def test_a_url_gets_a_secret_and_another_one_at_once(start: Start, far: FarSite, tmp_path: Path) -> None:
    server = start(*write_config(tmp_path, header_mount(far)))
    set_secret(server.state, "KEY", KEY)
    wait_listed(server)
    assert read_key(server) == KEY
    set_secret(server.state, "KEY", "another-secret")
    assert read_key(server) == "another-secret"
    set_secret(server.state, "KEY", "two\nlines")
    assert "SECRET_UNFIT: the secret in header X-Far-Key must be of printable ASCII" in server.error("far__headers")
    set_secret(server.state, "KEY", KEY)
    assert read_key(server) == KEY


def target_mount(far: FarSite) -> str:
    return url_mount(f"{far.url}/${{secret:PLACE}}/x?key=${{secret:KEY}}&n=1")


def test_the_path_and_query_of_a_url_get_a_secret_and_another_one_at_once(
    start: Start, far: FarSite, tmp_path: Path
) -> None:
    server = start(*write_config(tmp_path, target_mount(far)), "--audit", "on")
    set_secret(server.state, "PLACE", "team place/é")
    set_secret(server.state, "KEY", "sk-of&the=team")
    wait_listed(server)
    server.text("far__count")
    assert far.ask("/target") == "/mcp/team%20place%2F%C3%A9/x?key=sk-of%26the%3Dteam&n=1"
    set_secret(server.state, "KEY", "sk-another")
    server.text("far__count")
    assert far.ask("/target") == "/mcp/team%20place%2F%C3%A9/x?key=sk-another&n=1"
    set_secret(server.state, "PLACE", "elsewhere")
    server.text("far__count")
    assert far.ask("/target") == "/mcp/elsewhere/x?key=sk-another&n=1"
    set_secret(server.state, "PLACE", "..")
    assert "SECRET_UNFIT" in server.error("far__count")
    set_secret(server.state, "PLACE", "elsewhere")
    far.process.kill()
    assert "CONNECT" in server.error("far__count")
    server.close()
    for text in ("sk-another", "sk-of", "elsewhere", "team%20place", "team place"):
        assert find_files_with(server.state, text) == [] and text not in server.log()


def test_a_persons_own_secret_in_a_url_is_in_their_requests_alone(far: FarSite, tmp_path: Path) -> None:
    options = ("--auth", "oauth", *write_config(tmp_path, target_mount(far)))
    with site(tmp_path / "server", *options) as listening:
        people = People(Signed(listening))
        for name, value in (("PLACE", "hall"), ("KEY", KEY)):
            set_secret(listening.state, name, value)
        for value in ("sk-first-of-ada", "sk-second-of-ada"):
            set_secret(listening.state, "KEY", value, principal("ada"))
            for who, key in (("ada", value), ("bob", KEY)):
                people.wait_listed(who)
                people.call(who, "far__count")
                assert far.ask("/target") == f"/mcp/hall/x?key={key}&n=1"


def test_nothing_that_the_server_writes_has_a_secret(start: Start, tmp_path: Path) -> None:
    lines = 'env = { KEY = "${secret:KEY}" }'
    server = start(*write_config(tmp_path, command_mount("legacy", "far", lines)), "--audit", "on")
    set_secret(server.state, "KEY", KEY)
    wait_listed(server)
    assert KEY not in server.error("far__exit")  # its last words have it
    assert json.loads(server.text("far__env"))["KEY"] == KEY  # its own result goes to whose secret it is
    listed = secret(server.state, "list", "--json")
    assert '"name": "KEY"' in listed.stdout and KEY not in listed.stdout
    server.close()
    assert find_files_with(server.state, KEY) == []
    assert KEY not in server.log()


def test_mount_add_shows_and_keeps_no_secret(far: FarSite, tmp_path: Path) -> None:
    state = tmp_path / "state"
    set_secret(state, "TOOL", f"key-{KEY}")
    add = [COMMAND, "mount", "add", "far", "--url", far.url, "--header", "X-Far-Tool=${secret:TOOL}"]
    words = [*add, "--state", str(state), *write_config(tmp_path, "")]
    done = forked_command.run(words, "", cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)})
    assert done.returncode == 0 and f'"does {KEY} by …"' in done.stdout, done
    assert find_files_with(state, f"key-{KEY}") == []


def describe_tools(people: People, who: str) -> dict[str, str]:
    _, listed = people.request(who, "tools/list", {})
    return {tool["name"]: tool.get("description", "") for tool in listed["result"]["tools"]}


def test_what_a_team_secret_lists_is_shown_and_not_written(far: FarSite, tmp_path: Path) -> None:
    table = url_mount(far.url, "far", 'headers = { X-Far-Tool = "${secret:TOOL}" }', 'on_change = "warn"')
    options = ("--auth", "oauth", *write_config(tmp_path, table), "--audit", "on")
    with site(tmp_path / "server", *options) as listening:
        signed = Signed(listening)
        people = People(signed)
        for name in ("first", "second"):
            set_secret(listening.state, "TOOL", f"key-{name}")
            assert eventually(lambda name=name: f"far__{name}" in describe_tools(people, "ada")), listening.log()
            assert describe_tools(people, "ada")[f"far__{name}"] == f"does {name} by key-{name}"
            assert people.call("ada", f"far__{name}") == f"no tool {name}"
        state, log = listening.state, listening.log()
        assert "new or changed since it was approved: tool 'second'" in log
    far.process.kill()
    with site(tmp_path / "server", *options) as listening:
        signed.site, signed.issuer = listening, listening.url
        assert "far__second" in describe_tools(people, "ada")  # by the sealed lists
        log += listening.log()
    for value in ("key-first", "key-second"):
        assert find_files_with(state, value) == [] and value not in log


def test_a_name_that_repeats_a_secret_is_left_out(far: FarSite, tmp_path: Path) -> None:
    options = ("--auth", "oauth", *write_config(tmp_path, tool_mount(far)))
    with site(tmp_path / "server", *options) as listening:
        people = People(Signed(listening))
        for who, value in (("", "tool-of-all"), (principal("ada"), "tool-of-ada")):
            set_secret(listening.state, "TOOL", value, who)
            people.wait_listed("ada")
            people.wait_listed("bob")
            assert {name for name in list_far(people, "ada") | list_far(people, "bob") if "tool-of" in name} == set()
            assert find_files_with(listening.state, value) == [] and value not in listening.log()
        assert "items are left out: their names repeat a secret of the mount" in listening.log()


@pytest.mark.rotated(2)  # no person gets the secret of another in either era
def test_a_persons_own_goes_before_the_teams_and_is_nobody_elses(far: FarSite, tmp_path: Path) -> None:
    options = ("--auth", "oauth", *write_config(tmp_path, header_mount(far)))
    with site(tmp_path / "server", *options) as listening:
        people = People(Signed(listening))
        set_secret(listening.state, "KEY", KEY)
        for who in ("ada", "bob"):
            people.wait_listed(who)
        assert [read_own(people, who) for who in ("ada", "bob")] == [KEY, KEY]
        set_secret(listening.state, "KEY", "the-secret-of-ada", principal("ada"))
        for _ in range(2):
            assert [read_own(people, who) for who in ("ada", "bob")] == ["the-secret-of-ada", KEY]
        set_secret(listening.state, "KEY", "the-secret-of-bob", principal("bob"))
        assert [read_own(people, who) for who in ("ada", "bob")] == ["the-secret-of-ada", "the-secret-of-bob"]
        done = secret(listening.state, "remove", "KEY", "--for", principal("ada"))
        assert done.returncode == 0, done
        assert [read_own(people, who) for who in ("ada", "bob")] == [KEY, "the-secret-of-bob"]


def read_own(people: People, who: str) -> str:
    return str(json.loads(people.call(who, "far__headers"))["X-Far-Key"]).removeprefix("Bearer ")


def test_a_mount_may_demand_a_persons_own(far: FarSite, tmp_path: Path) -> None:
    options = ("--auth", "oauth", *write_config(tmp_path, header_mount(far, 'secrets = "own"')))
    with site(tmp_path / "server", *options) as listening:
        people = People(Signed(listening))
        set_secret(listening.state, "KEY", KEY)
        assert list_far(people, "ada") == set()
        set_secret(listening.state, "KEY", "the-secret-of-ada", principal("ada"))
        people.wait_listed("ada")
        assert read_own(people, "ada") == "the-secret-of-ada"
        assert list_far(people, "bob") == set()  # what ada's secret lists is hers
        assert b"SECRET_MISSING" not in listening.ask("GET", "/ready")[1]  # the mount lacks nothing
        status, answered = people.request("bob", "tools/call", {"name": "far__headers", "arguments": {}})
        assert "the-secret-of-ada" not in json.dumps(answered) and "result" not in answered, (status, answered)


def list_far(people: People, who: str) -> set[str]:
    _, listed = people.request(who, "tools/list", {})
    return {tool["name"] for tool in listed["result"]["tools"] if tool["name"].startswith("far__")}


def test_what_a_persons_secret_lists_is_shown_to_nobody_else(tmp_path: Path) -> None:
    with far_site(tmp_path, "legacy") as far:
        table = url_mount(far.url, "far", 'headers = { X-Far-Tool = "${secret:TOOL}" }')
        with site(tmp_path / "server", "--auth", "oauth", *write_config(tmp_path, table)) as listening:
            people = People(Signed(listening))
            set_secret(listening.state, "TOOL", "key-of-all")
            for who in ("ada", "bob"):
                people.wait_listed(who)
            assert "far__of-all" in list_far(people, "ada") & list_far(people, "bob")
            set_secret(listening.state, "TOOL", "key-private-to-ada", principal("ada"))
            assert eventually(lambda: "far__private-to-ada" in list_far(people, "ada"))
            assert "far__of-all" not in list_far(people, "ada")
            for _ in range(3):
                assert {"far__private-to-ada", "far__of-all"} & list_far(people, "bob") == {"far__of-all"}
                assert "far__private-to-ada" in list_far(people, "ada")
            assert find_files_with(listening.state, "key-private-to-ada") == []
            status, answered = people.request("bob", "tools/call", {"name": "far__private-to-ada", "arguments": {}})
            assert "result" not in answered, (status, answered)


def test_one_conversation_for_all_has_the_teams(far: FarSite, tmp_path: Path) -> None:
    options = ("--auth", "oauth", *write_config(tmp_path, header_mount(far, 'per = "all"')))
    with site(tmp_path / "server", *options) as listening:
        people = People(Signed(listening))
        set_secret(listening.state, "KEY", KEY)
        set_secret(listening.state, "KEY", "the-secret-of-ada", principal("ada"))
        people.wait_listed("ada")
        assert read_own(people, "ada") == KEY


def test_without_sign_in_the_team_is_whoever_calls(tmp_path: Path) -> None:
    with far_site(tmp_path, "legacy") as far:
        options = write_config(tmp_path, header_mount(far, 'secrets = "own"'))
        with site(tmp_path / "server", *ALONE, *options) as listening, spoken(listening, "http") as client:
            set_secret(listening.state, "KEY", KEY)
            wait_listed(client)
            assert read_key(client) == KEY


def test_a_call_under_way_ends_with_the_secret_that_it_began_with(start: Start, tmp_path: Path) -> None:
    server = start(*write_config(tmp_path, command_mount("legacy", "far", 'env = { KEY = "${secret:KEY}" }')))
    set_secret(server.state, "KEY", KEY)
    wait_listed(server)
    before = server.text("far__pid")
    slow = server.begin("tools/call", {"name": "far__slow", "arguments": {}})
    set_secret(server.state, "KEY", "another-secret")
    assert server.text("far__pid") != before
    assert Path(f"/proc/{before}").exists()  # its call goes on
    server.notify("notifications/cancelled", {"requestId": slow})


def test_mount_test_has_the_teams_secret(tmp_path: Path) -> None:
    state = tmp_path / "state"
    words = [COMMAND, "mount", "test", "far", "--state", str(state)]
    words += write_config(tmp_path, command_mount("legacy", "far", 'env = { KEY = "${secret:KEY}" }'))
    env: dict[str, Any] = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = forked_command.run(words, "", cwd=tmp_path, env=env)
    assert done.returncode == 1 and "SECRET_MISSING: the secret KEY is not set" in done.stdout, done
    set_secret(state, "KEY", KEY)
    done = forked_command.run(words, "", cwd=tmp_path, env=env)
    assert done.returncode == 0 and "tools" in done.stdout, done


def test_part_of_a_variable_that_is_a_secret_is_hidden(start: Start, tmp_path: Path) -> None:
    table = f"""[mounts.far]
command = "sh"
args = ["-c", 'echo "the key is ${{DSN#*:}}" >&2; exec {sys.executable} {PROGRAM} legacy']
env = {{ DSN = "user:${{secret:KEY}}" }}
"""
    server = start(*write_config(tmp_path, table))
    set_secret(server.state, "KEY", KEY)
    wait_listed(server)
    words = [COMMAND, "mount", "logs", "far", "--state", str(server.state), "--config", str(tmp_path / "mounts.toml")]
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    assert eventually(lambda: "the key is …" in forked_command.run(words, "", cwd=tmp_path, env=env).stdout)
    assert KEY not in server.error("far__exit") and find_files_with(server.state, KEY) == []


def test_many_who_lack_a_secret_keep_nobody_else_out(far: FarSite, tmp_path: Path) -> None:
    options = ("--auth", "oauth", *write_config(tmp_path, header_mount(far, 'secrets = "own"')))
    with site(tmp_path / "server", *options) as listening:
        people = People(Signed(listening))
        for number in range(40):
            assert list_far(people, f"nobody-{number}") == set()
        set_secret(listening.state, "KEY", "the-secret-of-ada", principal("ada"))
        people.wait_listed("ada")
        assert read_own(people, "ada") == "the-secret-of-ada"


def tool_mount(far: FarSite) -> str:
    return url_mount(far.url, "far", 'headers = { X-Far-Tool = "${secret:TOOL}" }', 'on_change = "allow"')


def test_another_secret_of_the_team_shows_what_it_lists(tmp_path: Path) -> None:
    with far_site(tmp_path, "legacy") as far:
        options = ("--auth", "oauth", *write_config(tmp_path, tool_mount(far)))
        with site(tmp_path / "server", *options) as listening:
            people = People(Signed(listening))
            set_secret(listening.state, "TOOL", "key-first")
            for who in ("ada", "bob"):
                assert eventually(lambda who=who: "far__first" in list_far(people, who))
            set_secret(listening.state, "TOOL", "key-second")
            for who in ("ada", "bob"):
                assert eventually(lambda who=who: "far__second" in list_far(people, who))
                assert "far__first" not in list_far(people, who)


def test_what_one_person_is_shown_renames_nothing_of_all(tmp_path: Path) -> None:
    with far_site(tmp_path, "legacy") as far:
        options = ("--auth", "oauth", *write_config(tmp_path, tool_mount(far)))
        with site(tmp_path / "server", *options) as listening:
            people = People(Signed(listening))
            set_secret(listening.state, "TOOL", "key-team_tool")
            assert eventually(lambda: "far__team_tool" in list_far(people, "bob"))
            set_secret(listening.state, "TOOL", "key-team.tool", principal("ada"))
            assert eventually(lambda: any(name.startswith("far__team_tool_") for name in list_far(people, "ada")))
            assert "far__team_tool" in list_far(people, "bob")
