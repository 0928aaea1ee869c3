"""`auth = "client_credentials"`: one token of the team's secret, each person's of their own, and how both end."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import Server, eventually
from tests.clients.raw_http_client import site
from tests.server.auth.minted_tokens import Signed
from tests.server.features.mounts.grants.far_grants import CLIENT, SECRET, FarGrants, far_grants
from tests.server.features.mounts.kept_secrets.test_secrets import (
    describe_tools,
    find_files_with,
    list_far,
    principal,
    secret,
    set_secret,
)
from tests.server.features.mounts.mounted import call_through, url_mount, wait_listed, write_config
from tests.server.features.mounts.sign_in.far_sign_in import HUGE
from tests.server.features.mounts.test_people import People
from tests.servers import forked_command
from tests.servers.forked_command import COMMAND
from toolgate.server.features.mounts.grants.token_endpoint import list_forms

Start = Callable[..., Server]
LEAST = ("grant_type", "resource", "way")


@pytest.fixture
def far() -> Iterator[FarGrants]:
    with far_grants() as opened:
        yield opened


def machine_mount(far: FarGrants, *lines: str) -> str:
    keys = (
        'auth = "client_credentials"',
        f'client_id = "{CLIENT}"',
        'client_secret = "${secret:FAR}"',
        f'token_url = "{far.origin}/token"',
    )
    return url_mount(f"{far.origin}/mcp", "far", *keys, *lines)


def run(folder: Path, state: Path, *words: str) -> str:
    """Return what a command says of the mounts in a folder."""
    options = ("--state", str(state), "--config", str(folder / "mounts.toml"))
    env = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
    return forked_command.run([COMMAND, *words, *options], "", cwd=folder, env=env).stdout


def start_mounted(start: Start, folder: Path, far: FarGrants, *lines: str) -> Server:
    server = start(*write_config(folder, machine_mount(far, *lines)))
    set_secret(server.state, "FAR", SECRET)
    wait_listed(server)
    return server


def test_the_team_has_one_token_for_all_and_it_is_nowhere_else(far: FarGrants, tmp_path: Path) -> None:
    options = ("--auth", "oauth", *write_config(tmp_path, machine_mount(far, 'scopes = ["read", "write"]')))
    with site(tmp_path / "server", *options) as listening:
        people = People(Signed(listening))
        set_secret(listening.state, "FAR", SECRET)
        for who in ("ada", "bob"):
            people.wait_listed(who)
            assert people.call(who, "far__whoami") == "the-team"
        assert far.asked == [
            {
                "grant_type": "client_credentials",
                "resource": f"{far.origin}/mcp",
                "scope": "read write",
                "way": "basic",
            }
        ]
        (token,) = far.access
        for text in (token, SECRET):
            assert find_files_with(listening.state, text) == [] and text not in listening.log()
        outbound = {each.partition("-")[0] for each in far.seen if each.startswith("Bearer ")}
        assert outbound == {"Bearer at"} and not [each for each in far.seen if "eyJ" in each], "no client's token"


def test_a_token_that_its_server_lists_is_shown_and_not_written(far: FarGrants, tmp_path: Path) -> None:
    far.echoes = True
    options = ("--auth", "oauth", *write_config(tmp_path, machine_mount(far)))
    with site(tmp_path / "server", *options) as listening:
        people = People(Signed(listening))
        set_secret(listening.state, "FAR", SECRET)
        people.wait_listed("ada")
        (token,) = far.access
        assert describe_tools(people, "ada")["far__whoami"] == f"Bearer {token}"
        assert list_far(people, "ada") == {"far__whoami", "far__of_the_team"}  # the third one has it as its name
        assert eventually((listening.state / "cache/mounts/far.json").exists)
        assert find_files_with(listening.state, token) == [] and token not in listening.log()


def test_a_persons_own_secret_gets_a_token_of_their_own(far: FarGrants, tmp_path: Path) -> None:
    far.subjects |= {"the-secret-of-ada": "ada-there"}
    options = ("--auth", "oauth", *write_config(tmp_path, machine_mount(far)))
    with site(tmp_path / "server", *options) as listening:
        people = People(Signed(listening))
        set_secret(listening.state, "FAR", SECRET)
        set_secret(listening.state, "FAR", "the-secret-of-ada", principal("ada"))
        for who in ("ada", "bob"):
            people.wait_listed(who)
        for _ in range(2):
            assert [people.call(who, "far__whoami") for who in ("ada", "bob")] == ["ada-there", "the-team"]
        assert "far__of_ada_there" in list_far(people, "ada") - list_far(people, "bob")
        assert len(far.asked) == 2
        assert secret(listening.state, "remove", "FAR", "--for", principal("ada")).returncode == 0
        assert people.call("ada", "far__whoami") == "the-team"
        assert len(far.asked) == 2


def test_a_mount_may_demand_a_persons_own_secret(far: FarGrants, tmp_path: Path) -> None:
    far.subjects |= {"the-secret-of-ada": "ada-there"}
    options = ("--auth", "oauth", *write_config(tmp_path, machine_mount(far, 'secrets = "own"')))
    with site(tmp_path / "server", *options) as listening:
        people = People(Signed(listening))
        set_secret(listening.state, "FAR", SECRET)
        set_secret(listening.state, "FAR", "the-secret-of-ada", principal("ada"))
        people.wait_listed("ada")
        assert people.call("ada", "far__whoami") == "ada-there"
        assert list_far(people, "bob") == set()
        assert [each["way"] for each in far.asked] == ["basic"]
        assert "not tried, as it wants a person's own" in run(
            tmp_path, listening.state, "doctor", "--http", "--browser", "none"
        )


def test_a_secret_that_is_missing_is_named_and_another_one_counts_at_once(
    start: Start, far: FarGrants, tmp_path: Path
) -> None:
    far.subjects |= {"another-secret": "another-team"}
    server = start_mounted(start, tmp_path, far)
    assert server.text("far__whoami") == "the-team"
    set_secret(server.state, "FAR", "another-secret")
    assert server.text("far__whoami") == "another-team"
    assert secret(server.state, "remove", "FAR").returncode == 0
    assert "SECRET_MISSING: the secret FAR is not set: toolgate secret set FAR" in server.error("far__whoami")


@pytest.mark.parametrize(
    ("line", "sent"),
    [
        ('audience = "api://far"', {"audience": "api://far"}),
        ('audience = ""', {}),
    ],
)
def test_an_audience_goes_in_the_place_of_the_url(
    start: Start, far: FarGrants, tmp_path: Path, line: str, sent: dict[str, str]
) -> None:
    server = start_mounted(start, tmp_path, far, line)
    assert server.text("far__whoami") == "the-team"
    assert far.asked == [{"grant_type": "client_credentials", "way": "basic", **sent}]


def test_a_server_that_takes_the_secret_in_the_form_alone_gets_it_there(
    start: Start, far: FarGrants, tmp_path: Path
) -> None:
    far.methods = ["post"]
    server = start_mounted(start, tmp_path, far)
    assert server.text("far__whoami") == "the-team"
    far.end_access()
    assert server.text("far__whoami") == "the-team"
    assert [each["way"] for each in far.asked] == ["basic", "post", "post"]


def test_a_token_that_its_server_ended_early_is_another_one_at_the_next_try(
    start: Start, far: FarGrants, tmp_path: Path
) -> None:
    server = start_mounted(start, tmp_path, far)
    for number in range(2, 5):
        far.end_access()
        assert server.text("far__whoami") == "the-team"
        assert len(far.asked) == number


def test_a_server_that_gives_a_rejected_token_again_is_asked_once(start: Start, far: FarGrants, tmp_path: Path) -> None:
    server = start_mounted(start, tmp_path, far)
    far.repeats = True
    far.end_access()
    text = server.error("far__whoami")
    assert "gives the token again that it rejects; check audience and scopes of [mounts.far]" in text, text
    assert len(far.asked) == 2


def test_a_token_with_too_few_scopes_names_those_that_are_lacking(start: Start, far: FarGrants, tmp_path: Path) -> None:
    server = start_mounted(start, tmp_path, far, 'scopes = ["read"]')
    far.needed_scope = "write"
    assert "TOKEN_REFUSED: it wants more rights: write; write scopes in [mounts.far]" in server.error("far__whoami")


FAULTS: list[tuple[Any, str]] = [
    ((400, {"error": "invalid_scope"}), "TOKEN_REFUSED: HOST gives no token: it says invalid_scope; check scopes of"),
    ((400, {"error": "invalid_target", "error_description": "no"}), "it says invalid_target: no; check audience of"),
    ((400, {"error": "invalid_client"}), "check client_id and client_secret of [mounts.far]"),
    (
        (400, {"error": "invalid_scope", "error_description": "!".join(list_forms(CLIENT, SECRET))}),
        "it says invalid_scope: …!…!…!…; check",
    ),
    ((302, {}), "it refuses: HTTP 302"),
    ((200, b"<html>"), "it sent no bearer token"),
    ((200, b"x" * HUGE), "the answer is larger than 256 KiB"),
    ((200, {"access_token": "a\nb", "token_type": "Bearer"}), "it sent no bearer token"),
    ((503, {}), "CONNECT_FAILED: HOST gives no token now: it is busy: HTTP 503"),
]


@pytest.mark.parametrize(("answer", "told"), FAULTS)
def test_a_token_endpoint_that_gives_no_token_says_why(
    start: Start, far: FarGrants, tmp_path: Path, answer: Any, told: str
) -> None:
    server = start_mounted(start, tmp_path, far)
    far.end_access()
    before = len(far.asked)
    far.answers = [answer] * 2
    text = server.error("far__whoami")
    assert told.replace("HOST", far.origin.removeprefix("http://")) in text, text
    assert SECRET not in text
    assert text == server.error("far__whoami"), "it is not asked again at once"
    assert len(far.asked) <= before + 2


def test_commands_get_a_token_as_the_server_does(far: FarGrants, tmp_path: Path) -> None:
    state = tmp_path / "state"
    write_config(tmp_path, machine_mount(far))
    assert "SECRET_MISSING: the secret FAR is not set" in run(tmp_path, state, "mount", "test", "far")
    told = secret(state, "set", "FAR", value=SECRET)
    assert told.returncode == 0
    assert run(tmp_path, state, "mount", "test", "far").startswith("far: 2 tools, 1 prompt (")
    assert "far: 2 tools, 1 prompt (" in run(tmp_path, state, "doctor", "--browser", "none")
    listed = json.loads(run(tmp_path, state, "mount", "list", "--json"))["mounts"][0]
    keys = ("auth", "client_id", "client_secret", "token_url", "audience")
    assert {key: listed[key] for key in keys} == {
        "auth": "client_credentials",
        "client_id": CLIENT,
        "client_secret": "${secret:FAR}",
        "token_url": f"{far.origin}/token",
        "audience": None,
    }
    (tmp_path / "mounts.toml").write_text(machine_mount(far).replace("${secret:FAR}", SECRET))
    assert SECRET not in run(tmp_path, state, "mount", "list", "--json")


def test_a_call_over_http_that_repeats_its_token_hides_it(start: Start, far: FarGrants, tmp_path: Path) -> None:
    server = start_mounted(start, tmp_path, far)
    far.echoes = True
    assert "debug: Bearer …" in server.error("far__whoami")
    far.echoes = False
    assert eventually(lambda: call_through(server, "far__whoami")["content"][0]["text"] == "the-team")
