"""Servers of MCP Apps: what a tool names as its view is found there, also where two mounts claim one `ui://` URI."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import STATELESS, Refusal, Server, eventually, served
from tests.interop.node import node, package
from tests.server.features.mounts.mounted import wait_listed, write_config

UI = "io.modelcontextprotocol/ui"
KIND = "text/html;profile=mcp-app"
CAPABILITIES = {"extensions": {UI: {"mimeTypes": [KIND]}}}
APPS = {  # each server → a tool with a view
    "map": ("show-map", "ui://cesium-map/mcp-app.html"),
    "system-monitor": ("get-system-info", "ui://system-monitor/mcp-app.html"),
}
Start = Callable[..., Server]


def _command(app: str) -> list[str]:
    return [node(), str(package(f"@modelcontextprotocol/server-{app}") / "dist/index.js"), "--stdio"]


def _table(app: str, name: str, *lines: str) -> str:
    command, *args = _command(app)
    return "\n".join((f"[mounts.{name}]", f"command = {json.dumps(command)}", f"args = {json.dumps(args)}", *lines, ""))


def _read_alone(folder: Path, app: str, uri: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tools by name, and the view, as the server gives them alone."""
    with served(folder, command=_command(app), capabilities=CAPABILITIES) as alone:
        tools = {tool["name"]: tool for tool in alone.request("tools/list")["tools"]}
        view = alone.request("resources/read", {"uri": uri})
        alone.kill()
    return tools, view


def _find_views(meta: dict[str, Any]) -> tuple[str, str]:
    """Return the two forms in which a tool names its view."""
    return meta["ui"]["resourceUri"], meta["ui/resourceUri"]


@pytest.mark.brief(f"map-{STATELESS}")
@pytest.mark.parametrize("revision", ["2025-11-25", STATELESS])
@pytest.mark.parametrize("app", APPS)
def test_a_view_is_found_under_the_uri_that_its_tool_names(
    start: Start, tmp_path: Path, app: str, revision: str
) -> None:
    tool, uri = APPS[app]
    own_tools, own_view = _read_alone(tmp_path, app, uri)
    server = start(*write_config(tmp_path, _table(app, "one")), capabilities=CAPABILITIES, revision=revision)
    tools = wait_listed(server, "one")
    assert _find_views(tools[f"one__{tool}"]["_meta"]) == _find_views(own_tools[tool]["_meta"]) == (uri, uri)
    assert {name for name in tools if name.startswith("one__")} == {f"one__{name}" for name in own_tools}
    for name, own in own_tools.items():  # a tool for views alone is theirs by the same mark
        assert tools[f"one__{name}"]["_meta"].get("ui") == own.get("_meta", {}).get("ui")
    (resource,) = (each for each in server.request("resources/list")["resources"] if each["uri"] == uri)
    assert resource["mimeType"] == KIND
    view = server.request("resources/read", {"uri": uri})
    assert view["contents"] == own_view["contents"] and view["contents"][0]["mimeType"] == KIND


@pytest.mark.brief("system-monitor-2025-11-25")
@pytest.mark.parametrize("revision", ["2025-11-25", STATELESS])
@pytest.mark.parametrize("app", APPS)
def test_of_two_mounts_with_one_view_each_tool_names_its_own(
    start: Start, tmp_path: Path, app: str, revision: str
) -> None:
    tool, uri = APPS[app]
    _, own_view = _read_alone(tmp_path, app, uri)
    tables = (_table(app, "one"), _table(app, "two"))
    server = start(*write_config(tmp_path, *tables), capabilities=CAPABILITIES, revision=revision)
    tools = wait_listed(server, "one", "two")
    listed = {each["uri"] for each in server.request("resources/list")["resources"]}
    for mount in ("one", "two"):
        exposed = f"ui://{mount}/{uri.removeprefix('ui://')}"
        assert _find_views(tools[f"{mount}__{tool}"]["_meta"]) == (exposed, exposed)
        assert exposed in listed
        view = server.request("resources/read", {"uri": exposed})
        assert view["contents"] == [{**each, "uri": exposed} for each in own_view["contents"]]
    assert uri not in listed
    with pytest.raises(Refusal) as refused:
        server.request("resources/read", {"uri": uri})
    assert all(f"ui://{mount}/" in str(refused.value) for mount in ("one", "two"))


def test_without_a_prefix_a_view_can_call_the_tools_that_it_knows(start: Start, tmp_path: Path) -> None:
    options = write_config(tmp_path, _table("system-monitor", "one", 'prefix = ""'))
    server = start(*options, capabilities=CAPABILITIES)
    assert eventually(lambda: "poll-system-stats" in {tool["name"] for tool in server.request("tools/list")["tools"]})
    assert server.call("poll-system-stats")["structuredContent"]["uptime"]["seconds"] > 0
