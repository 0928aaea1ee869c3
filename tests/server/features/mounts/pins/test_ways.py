"""However a mounted server changes a tool after it was approved, no client is shown or can call what it has become."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.raw_client import STATELESS, Refusal, Server, eventually
from tests.clients.raw_http_client import Site, site, spoken
from tests.server.features.mounts.mounted import wait_listed, write_config
from tests.server.features.mounts.pins.listed import ListedMount, tool
from tests.server.features.mounts.pins.ways import BASE, CHANGES
from toolgate.server.cli import main

ALONE = ("--auth", "none")
HELD = "HELD: it is not approved as it is now"
PROMPT = {"name": "greet", "description": "greets", "arguments": [{"name": "who"}]}
TEMPLATE = {"uriTemplate": "far://item/{id}", "name": "item"}
VIEW = {"uri": "ui://far/view", "name": "view", "mimeType": "text/html;profile=mcp-app"}
BEFORE: dict[str, Any] = {
    "tools": [tool("steady"), tool("old_name"), *({"name": name, **BASE} for name in CHANGES)],
    "prompts": [PROMPT, {**PROMPT, "name": "steady"}],
    "resources": [VIEW, {"uri": "far://data", "name": "data"}],
    "resourceTemplates": [TEMPLATE, {"uriTemplate": "far://steady/{id}", "name": "steady"}],
}
AFTER: dict[str, Any] = {
    "tools": [
        dict(reversed(tool("steady").items())),  # another order is no change
        tool("new_name", description="does old_name"),
        tool("new_tool"),
        *({"name": name, **item} for name, item in CHANGES.items()),
    ],
    "prompts": [{**PROMPT, "description": "greets, and calls send_mail"}, {**PROMPT, "name": "steady"}],
    "resources": [
        {**VIEW, "_meta": {"ui": {"csp": {"connectDomains": ["https://far.example"]}}}},
        {"uri": "far://data", "name": "data", "size": 7},  # a plain resource is data
        {"uri": "far://new-data", "name": "new data"},
    ],
    "resourceTemplates": [
        {**TEMPLATE, "description": "any item"},
        {"uriTemplate": "far://steady/{id}", "name": "steady"},
        {"uriTemplate": "new://{id}", "name": "new"},
    ],
}


def test_there_are_forty_ways() -> None:
    assert len(CHANGES) >= 40
    assert all(item != BASE or json.dumps(item) != json.dumps(BASE) for item in CHANGES.values())


class Changed:
    """A server whose mount has changed all of its tools, with clients of two revisions."""

    def __init__(self, listening: Site, clients: list[Server]) -> None:
        self.listening = listening
        self.clients = clients
        self.tools = [list_tools(client) for client in clients]


def list_tools(client: Server) -> dict[str, Any]:
    return {each["name"]: each for each in client.request("tools/list")["tools"]}


@pytest.fixture(scope="module", params=["legacy", "modern"])
def changed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Changed]:
    folder = tmp_path_factory.mktemp("ways")
    mount = ListedMount(folder, request.param)
    mount.say(**BEFORE)
    with (
        site(folder, *ALONE, *write_config(folder, mount.table)) as listening,
        spoken(listening, "http") as first,
        spoken(listening, "http", revision=STATELESS) as second,
    ):
        clients = [first, second]
        for client in clients:
            assert set(wait_listed(client)) >= {f"far__{each}" for each in (*CHANGES, "steady", "old_name")}
            assert client.text("far__another_description") == "ran another_description"
        mount.say(**AFTER)
        first.text("far__reload")
        assert eventually(lambda: all("far__no_title" not in list_tools(client) for client in clients)), listening.log()
        yield Changed(listening, clients)


@pytest.mark.parametrize("way", [*CHANGES, "new_name", "new_tool"])
def test_a_tool_that_is_new_or_has_changed_is_held_at_every_door(changed: Changed, way: str) -> None:
    for client, tools in zip(changed.clients, changed.tools, strict=True):
        assert f"far__{way}" not in tools
        assert client.error(f"far__{way}").startswith(HELD)


def test_what_has_not_changed_is_served(changed: Changed) -> None:
    for client, tools in zip(changed.clients, changed.tools, strict=True):
        assert {name for name in tools if name.startswith("far__")} == {"far__reload", "far__steady"}
        assert client.text("far__steady") == "ran steady"
        with pytest.raises(Refusal, match="unknown tool"):
            client.call("far__old_name")  # it is gone


def test_prompts_templates_and_views_are_held_alike(changed: Changed) -> None:
    for client in changed.clients:
        assert {each["name"] for each in client.request("prompts/list")["prompts"] if "far" in each["name"]} == {
            "far__steady"
        }
        with pytest.raises(Refusal, match=HELD):
            client.request("prompts/get", {"name": "far__greet"})
        for reference in (
            {"type": "ref/prompt", "name": "far__greet"},
            {"type": "ref/resource", "uri": "far://item/{id}"},
        ):
            with pytest.raises(Refusal, match=HELD):
                argument = {"name": "who", "value": "a"}
                client.request("completion/complete", {"ref": reference, "argument": argument})
        templates = {each["uriTemplate"] for each in client.request("resources/templates/list")["resourceTemplates"]}
        assert "far://steady/{id}" in templates and not templates & {"far://item/{id}", "new://{id}"}
        for uri in ("far://item/7", "new://7", "ui://far/view"):
            with pytest.raises(Refusal, match=HELD):
                client.request("resources/read", {"uri": uri})
        assert client.request("resources/read", {"uri": "far://steady/7"})["contents"]


def test_plain_resources_come_and_go(changed: Changed) -> None:
    for client in changed.clients:
        uris = {each["uri"] for each in client.request("resources/list")["resources"]}
        assert uris >= {"far://data", "far://new-data"} and "ui://far/view" not in uris


def test_a_refused_call_is_in_the_audit_log(changed: Changed, capsys: pytest.CaptureFixture[str]) -> None:
    changed.clients[0].error("far__new_tool")
    words = ("audit", "--decision", "held", "--json", "--state", str(changed.listening.state))

    def read() -> list[Any]:
        assert main.run(words) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    wanted = {"tool": "far__new_tool", "mount": "far", "original": "new_tool"}
    assert eventually(lambda: any(wanted.items() <= entry.items() for entry in read())), read()


def test_the_log_says_so(changed: Changed) -> None:
    said = changed.listening.log()
    assert "mount far: its first lists" in said
    assert "mount far: new or changed, and held until toolgate mount review far: tool 'new_name'" in said
