"""A person switches off a tool, or a whole mounted server: every client of theirs is held to it, and nobody else's."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import STATELESS, Refusal, Server, eventually, served
from tests.clients.raw_http_client import Site, site, spoken
from tests.server.auth.minted_tokens import signed_site
from tests.server.auth.sign_in_server import Browser
from tests.server.features.mounts.choices.chooser import Chooser
from tests.server.features.mounts.mounted import command_mount, far_site, url_mount, wait_listed, write_config
from tests.server.features.mounts.pins.listed import ListedMount, tool
from tests.servers import forked_command
from tests.servers.forked_command import COMMAND
from tests.servers.home_page_server import AppUser
from tests.servers.postgres import Postgres
from tests.servers.replicas import running_replicas
from toolgate.server.auth.tokens.access_tokens import OWN_ISSUER
from toolgate.server.base.principals.principal import Principal
from toolgate.server.cli import main
from toolgate.server.state import tables

ALONE = ("--auth", "none")
OFF = "SWITCHED_OFF: you have switched it off for yourself"
SKILL = {"uri": "far://skills/pdf/SKILL.md", "name": "pdf", "description": "reads PDF"}
LISTS: dict[str, Any] = {
    "tools": [tool("echo"), tool("sum")],
    "prompts": [{"name": "greet"}],
    "resources": [{"uri": "far://data", "name": "data"}],
    "resourceTemplates": [{"uriTemplate": "far://item/{id}", "name": "item"}],
    "skills": [SKILL],
    "instructions": "Ask far.",
}


class Scene:
    """A server whose one person has clients of two revisions and over both transports."""

    def __init__(self, listening: Site, clients: dict[str, Server], mount: ListedMount) -> None:
        self.listening, self.clients, self.mount = listening, clients, mount
        self.person = Chooser(Browser(listening.port, {"accept": "text/html"}))


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    mount = ListedMount(tmp_path, "modern", 'on_change = "allow"')
    mount.say(**LISTS)
    options = (*ALONE, "--sse", *write_config(tmp_path, mount.table))
    with (
        site(tmp_path, *options) as listening,
        spoken(listening, "http") as session,
        spoken(listening, "http", revision=STATELESS) as stateless,
        spoken(listening, "sse", revision="2024-11-05") as classic,
    ):
        clients = {"session": session, "stateless": stateless, "classic": classic}
        for client in clients.values():
            wait_listed(client)
        yield Scene(listening, clients, mount)


def names(client: Server, method: str = "tools/list", field: str = "tools", key: str = "name") -> set[str]:
    found = {each[key] for each in client.request(method)[field]}
    return {each for each in found if "far" in each}


def skills(client: Server) -> set[str]:
    return {each["uri"] for each in client.request("skills/list")["skills"] if each["uri"].startswith("far://")}


def is_refused(client: Server, method: str, params: dict[str, Any]) -> bool:
    try:
        client.request(method, params)
    except Refusal as refusal:
        return OFF in str(refusal)
    return False


def test_a_tool_that_is_off_is_neither_listed_nor_called(scene: Scene) -> None:
    assert scene.person.read("far") == {"echo": True, "reload": True, "sum": True}
    for client in scene.clients.values():
        assert client.text("far__echo") == "ran echo"
    answer = scene.person.choose("far", ["echo"])
    assert (answer.status, "This is kept for you alone" in answer.text) == (200, True)
    assert scene.person.read("far") == {"echo": False, "reload": True, "sum": True}
    assert "3 tools, 1 off" in scene.person.first_page()
    for client in scene.clients.values():
        assert names(client) == {"far__reload", "far__sum"}
        place = f"{scene.listening.url}/mounts/tools?name=far"
        assert client.error("far__echo") == f"{OFF}: switch it on at {place}"
        assert client.text("far__sum") == "ran sum"
    assert scene.person.choose("far", []).status == 200
    for client in scene.clients.values():
        assert client.text("far__echo") == "ran echo"
        assert names(client) == {"far__reload", "far__echo", "far__sum"}


def test_clients_hear_of_it(scene: Scene) -> None:
    session = scene.clients["session"]
    scene.person.choose("far", ["echo"])
    session.wait(lambda message: message.get("method") == "notifications/tools/list_changed")
    assert session.notes("notifications/prompts/list_changed") == []
    assert scene.person.switch("far", off=True).status == 200
    session.wait(lambda message: message.get("method") == "notifications/prompts/list_changed")
    session.wait(lambda message: message.get("method") == "notifications/resources/list_changed")


def test_of_a_server_that_is_off_nothing_is_left(scene: Scene) -> None:
    stateless, session = scene.clients["stateless"], scene.clients["session"]
    assert "Ask far." in stateless.request("server/discover")["instructions"]
    assert skills(stateless) == {SKILL["uri"]}
    answer = scene.person.switch("far", off=True)
    assert (answer.status, "far is off for you" in answer.text) == (200, True)
    assert "off for you</b>" in scene.person.first_page()
    for client in (stateless, session):
        assert names(client) == names(client, "prompts/list", "prompts") == set()
        assert names(client, "resources/list", "resources", "uri") == set()
        assert names(client, "resources/templates/list", "resourceTemplates", "uriTemplate") == set()
        assert client.error("far__sum").startswith(OFF)
        assert is_refused(client, "prompts/get", {"name": "far__greet"})
        for uri in ("far://data", "far://item/1", "far://skills/pdf/SKILL.md"):
            assert is_refused(client, "resources/read", {"uri": uri}), uri
        reference = {"type": "ref/prompt", "name": "far__greet"}
        completion = {"ref": reference, "argument": {"name": "who", "value": "a"}}
        assert is_refused(client, "completion/complete", completion)
    assert is_refused(session, "resources/subscribe", {"uri": "far://data"})
    nothing = {"notifications": {"resourceSubscriptions": ["far://data", "far://item/1"]}}
    assert stateless.request("subscriptions/listen", nothing)["resultType"] == "complete", "it ends at once"
    assert "Ask far." not in stateless.request("server/discover").get("instructions", "")
    assert skills(stateless) == set()
    assert scene.person.switch("far", off=False).status == 200
    assert names(session, "prompts/list", "prompts") == {"far__greet"}
    assert "Ask far." in stateless.request("server/discover")["instructions"]


def test_what_vanishes_and_comes_back_stays_off_and_what_is_new_is_on(scene: Scene) -> None:
    scene.person.choose("far", ["echo"])
    client = scene.clients["stateless"]
    scene.mount.say(**{**LISTS, "tools": [tool("sum"), tool("new")]})
    client.text("far__reload")
    assert eventually(lambda: names(client) == {"far__reload", "far__sum", "far__new"}), scene.listening.log()
    assert "not listed now" in scene.person.browser.get("/mounts/tools?name=far").text
    scene.mount.say(**{**LISTS, "tools": [tool("echo", title="again"), tool("newer")]})
    client.text("far__reload")
    assert eventually(lambda: names(client) == {"far__reload", "far__newer"}), scene.listening.log()
    assert client.error("far__echo").startswith(OFF)


def test_it_holds_after_a_restart_and_over_stdio(scene: Scene, tmp_path: Path, capfd: Any) -> None:
    scene.person.choose("far", ["echo"])
    words = ("tools", "--state", str(scene.listening.state), "--config", str(tmp_path / "mounts.toml"))
    assert main.run(words) == 0
    shown = capfd.readouterr().out
    assert "far__sum" in shown and "far__echo" not in shown


def test_a_server_over_stdio_on_the_same_state_follows(scene: Scene, tmp_path: Path) -> None:
    options = ("--config", str(tmp_path / "mounts.toml"))
    (tmp_path / "beside").mkdir()
    with served(tmp_path / "beside", *options, state=scene.listening.state) as client:
        assert {"far__echo", "far__sum"} <= wait_listed(client).keys()
        scene.person.choose("far", ["echo"])
        client.wait(lambda message: message.get("method") == "notifications/tools/list_changed")
        assert names(client) == {"far__reload", "far__sum"}


@pytest.fixture
def people(tmp_path: Path) -> Iterator[tuple[AppUser, AppUser]]:
    with far_site(tmp_path, "modern") as far:
        table = url_mount(far.url, "far", 'scope = "tools:shell"')
        with signed_site(tmp_path / "server", *write_config(tmp_path, table)) as signed:
            yield AppUser(signed, "ada", "Fern"), AppUser(signed, "bob", "Workbench")


def list_far(who: AppUser) -> set[str]:
    _, raw, said = who.ask("tools/list", {})
    listed = said or json.loads(raw.decode().rpartition("data: ")[2])
    return {each["name"] for each in listed["result"]["tools"] if each["name"].startswith("far__")}


def test_one_persons_choice_is_nobody_elses_and_goes_with_the_account(
    people: tuple[AppUser, AppUser], tmp_path: Path
) -> None:
    ada, bob = people
    for who in people:
        assert eventually(lambda who=who: "far__echo" in list_far(who))
    mine, theirs = Chooser(ada.browser()), Chooser(bob.browser())
    assert mine.choose("far", ["echo"]).status == 200
    assert "far__echo" not in list_far(ada) and "far__echo" in list_far(bob)
    assert ada.call("far__echo")["content"][0]["text"].startswith(OFF)
    assert "isError" not in bob.call("far__echo")
    assert theirs.read("far")["echo"]
    strange = mine.browser.get("/mounts/tools?name=far").field("csrf")
    fields = {"csrf": strange, "name": "far", "page": "1", "shown": "echo"}
    assert theirs.browser.post("/mounts/tools", fields).status == 403
    assert theirs.switch("far", off=False).status == 404
    state = str(tmp_path / "server" / "state")
    words = [COMMAND, "user", "remove", "ada", "--state", state]
    assert forked_command.run(words, "", cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}).returncode == 0
    assert count_rows(people) == 0


def test_a_choice_that_cant_be_read_shuts_out_its_person_alone(people: tuple[AppUser, AppUser]) -> None:
    ada, bob = people
    for who in people:
        assert eventually(lambda who=who: "far__echo" in list_far(who))
    assert Chooser(ada.browser()).choose("far", ["sum"]).status == 200
    spoil_rows(people)
    assert Chooser(bob.browser()).choose("far", ["sum"]).status == 200  # has the server read the state
    assert eventually(lambda: not list_far(ada)), ada.log()
    assert_shut_out(ada, bob)


def test_a_server_starts_with_a_choice_that_cant_be_read(tmp_path: Path) -> None:
    options = write_config(tmp_path, command_mount("modern", "far", 'scope = "tools:shell"'))
    with signed_site(tmp_path / "server", *options) as signed:
        ada, bob = AppUser(signed, "ada", "Fern"), AppUser(signed, "bob", "Workbench")
        assert Chooser(ada.browser()).switch("far", off=True).status == 200
        spoil_rows((ada, bob))
    with signed_site(tmp_path / "server", *options) as signed:
        for who in (ada, bob):
            who.move(signed)
        assert eventually(lambda: "far__echo" in list_far(bob)), signed.site.log()
        assert_shut_out(ada, bob)


def spoil_rows(people: tuple[AppUser, AppUser]) -> None:
    """Make what is stored of all people unreadable, as of a moment later."""
    table = tables.mount_choice
    row = {"switched_off": '{"mounts": "private"}', "changed_at": table.c.changed_at + 0.5}
    people[0]._signed.with_store(
        lambda store: store.transact(lambda connection: connection.execute(table.update().values(**row)))
    )


def assert_shut_out(ada: AppUser, bob: AppUser) -> None:
    assert list_far(ada) == set() and "far__echo" in list_far(bob)
    assert "CHOICES_UNREADABLE: " in ada.call("far__echo")["content"][0]["text"]
    assert "isError" not in bob.call("far__echo")
    log = ada.log()
    assert f'"{Principal(OWN_ISSUER, ada.subject, "").name}" has switched off can\'t be read' in log
    assert "private" not in log and "Traceback" not in log
    mine = Chooser(ada.browser())
    assert "#CHOICES_UNREADABLE" in mine.first_page()
    assert mine.switch("far", off=True).status == mine.choose("far", ["echo"]).status == 409
    assert list_far(ada) == set()


def count_rows(people: tuple[AppUser, AppUser]) -> int:
    from toolgate.server.features.mounts.choices.rows import list_choices

    _, bob = people
    signed = bob._signed
    return len(signed.with_store(lambda store: store.read(lambda connection: list_choices(connection, 0.0))))


UNKNOWN = [
    ([("shown", "none")], 409),
    ([("shown", "echo"), ("on", "none")], 409),
    ([("on", "echo")], 409),
    ([("shown", "")], 409),
    ([("shown", "echo"), ("name", "other")], 400),
    ([("shown", "x" * 1_025)], 409),
    ([("shown", f"{number}") for number in range(300)], 400),
    ([("shown", "x" * 2**20)], 413),
]


def test_names_that_are_not_known_are_refused(scene: Scene) -> None:
    for fields, status in UNKNOWN:
        csrf = scene.person.browser.get("/mounts/tools?name=far").field("csrf")
        given = [("csrf", csrf), ("name", "far"), *fields]
        assert scene.person.browser.post("/mounts/tools", given).status == status, fields[0]
        assert all(scene.person.read("far").values()), fields[0]


def test_mounts_that_are_not_known_are_refused(scene: Scene) -> None:
    for name in ("other", "", "../far", "x" * 5_000):
        assert scene.person.switch(name, off=True).status == 404
        assert scene.person.switch(name, off=False).status == 404
    assert scene.person.browser.get("/mounts/tools?name=other").status == 404
    assert scene.person.switch("far", off=False).status == 404


def test_a_name_that_no_form_carries_is_switched_off(scene: Scene) -> None:
    odd = "a\0b\r\nc <b>&amp;\u202e"
    scene.mount.say(**{**LISTS, "tools": [tool("echo"), tool(odd)]})
    client = scene.clients["stateless"]
    client.text("far__reload")
    assert eventually(lambda: len(names(client)) == 3 and "far__sum" not in names(client)), scene.listening.log()
    (shown,) = [name for name in scene.person.read("far") if name.startswith("a")]
    assert scene.person.choose("far", [shown]).status == 200
    assert names(client) == {"far__reload", "far__echo"}


def test_many_tools_have_pages_and_what_is_not_shown_stays(scene: Scene) -> None:
    many = [tool(f"t{number:03}") for number in range(230)]
    scene.mount.say(**{**LISTS, "tools": many})
    client = scene.clients["stateless"]
    client.text("far__reload")
    assert eventually(lambda: "far__t229" in names(client)), scene.listening.log()
    assert [len(scene.person.read("far", page)) for page in (1, 2, 3, 9)] == [100, 100, 31, 31]
    scene.person.choose("far", ["t010"], 1)
    scene.person.choose("far", ["t150"], 2)
    assert {"far__t010", "far__t150"}.isdisjoint(names(client))
    assert len(names(client)) == 229


def test_every_replica_follows_at_once(tmp_path: Path, postgres: Postgres) -> None:
    with far_site(tmp_path, "modern") as far:
        options = (*ALONE, *write_config(tmp_path, url_mount(far.url, "far")))
        with running_replicas(tmp_path, postgres, *options) as replicas:
            first, second = replicas.sites
            person = Chooser(Browser(first.port, {"accept": "text/html"}))
            with spoken(second, "http") as client:
                assert "far__echo" in wait_listed(client)
                with spoken(first, "http") as other:
                    wait_listed(other)
                person.choose("far", ["echo"])
                client.wait(lambda message: message.get("method") == "notifications/tools/list_changed")
                assert "far__echo" not in names(client)
                assert client.error("far__echo").startswith(OFF)
                again = replicas.restart(0)
                with spoken(again, "http") as other:
                    assert "far__echo" not in wait_listed(other)
