"""Files of other clients as mounts: what is taken over, and what is said of the rest."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from toolgate.server.config.files.config_file import ConfigFileError
from toolgate.server.config.files.toml_table import parse_toml, set_table
from toolgate.server.features.mounts.config.imports.notation import read_client_file
from toolgate.server.features.mounts.config.imports.plan import ImportPlan, plan_import

ENVIRONMENT = {"HOME": "/home/ada", "TOKEN": "s3cret"}
CLAUDE_DESKTOP = """{
  "globalShortcut": "x",
  "mcpServers": {
    "My Files": {"command": "npx", "args": ["-y", "server-filesystem", "/srv"], "env": {"PORT": 80, "ON": true}},
    "Files!": {"command": "cmd", "args": ["/c", "npx", "other"]},
    "off": {"command": "npx", "disabled": true},
    "toolgate": {"command": "/usr/bin/toolgate", "args": []},
    "us": {"command": "uvx", "args": ["toolgate-mcp"]}
  }
}"""
CLAUDE_CODE = """{
  "mcpServers": {"web": {"type": "http", "url": "${BASE:-https://a}/mcp", "headers": {"K": "Bearer ${TOKEN}"}}},
  "projects": {
    "/a": {"mcpServers": {"db": {"type": "stdio", "command": "db", "args": ["${HOME}/x"], "env": {}}}},
    "/b": {"mcpServers": {"db": {"type": "stdio", "command": "db", "args": ["${HOME}/x"], "env": {}}}},
    "/c": {"mcpServers": {"db": {"type": "sse", "url": "https://db/sse"}}, "history": []},
    "/d": {}
  }
}"""
CURSOR = """{ // mine
  "mcpServers": {
    /* a local one */
    "local": {"command": "python", "args": ["${userHome}/s.py", "${workspaceFolder}",], "env": {"K": "${env:TOKEN}"}},
    "remote": {"url": "http://localhost:3000/sse", "auth": {"CLIENT_ID": "x"}},
  },
}"""
WINDSURF = '{"mcpServers": {"a": {"serverUrl": "https://a/mcp", "disabledTools": ["x"], "headers": {"K": "$TOKEN"}}}}'
CLINE = """{"mcpServers": {
  "a": {"command": "a", "alwaysAllow": ["x"], "timeout": 60, "disabled": false},
  "b": {"type": "streamableHttp", "url": "https://b"}, "c": {"type": "sse", "url": "https://c"}}}"""
ROO = '{"mcpServers": {"a": {"type": "streamable-http", "url": "https://a", "alwaysAllow": 1, "disabledTools": ["x"]}}}'
GEMINI = """{"theme": "x", "mcpServers": {
  "a": {"httpUrl": "https://a", "trust": true, "includeTools": ["x", "y"], "excludeTools": ["z"]},
  "b": {"command": "b", "env": {"K": "$TOKEN", "P": "pa$WORD", "Q": "$TOKEN-x"}, "cwd": "/srv"}}}"""
VSCODE = """{
  "inputs": [{"type": "promptString", "id": "key", "description": "Key of A", "password": true}],
  "servers": {
    "a": {"type": "stdio", "command": "a", "envFile": "${workspaceFolder}/.env", "env": {"K": "${input:key}"}},
    "b": {"type": "http", "url": "https://b", "headers": {"K": "${env:NONE}"}, "gallery": "x"}
  }
}"""
VSCODE_SETTINGS = '{"editor.x": 1, "mcp": {"inputs": [], "servers": {"a": {"command": "a"}}}}'
ZED = """{"context_servers": {
  "old": {"command": {"path": "old", "args": ["x"], "env": {"K": "v"}}, "settings": {}},
  "new": {"source": "custom", "enabled": true, "command": "new", "args": ["x"], "env": {"K": "v"}},
  "web": {"url": "https://a", "headers": {"K": "v"}},
  "extension": {"source": "extension", "enabled": true, "settings": {"key": "x"}}}}"""
CODEX = """
model = "x"
[mcp_servers.a]
command = "a"
args = ["x"]
env_vars = ["TOKEN"]
env = { K = "v" }
startup_timeout_sec = 20
tool_timeout_sec = 90
enabled_tools = ["x", "y"]
disabled_tools = ["y"]
[mcp_servers.b]
url = "https://b"
bearer_token_env_var = "TOKEN"
http_headers = { K = "v" }
env_http_headers = { L = "TOKEN" }
[mcp_servers.c]
command = "c"
enabled = false
"""
OPENCODE = """{"$schema": "x", "mcp": {
  "a": {"type": "local", "command": ["npx", "-y", "a"], "environment": {"K": "{env:TOKEN}"}, "enabled": true},
  "b": {"type": "remote", "url": "https://b", "headers": {"K": "{file:~/key}"}, "oauth": {}}}}"""
CONTINUE = """
name: x
mcpServers:
  - name: Web Search
    command: npx
    args: ["-y", "search"]
    connectionTimeout: 5
  - name: Web
    type: streamable-http
    url: https://a
"""
CONTINUE_JSON = """{"experimental": {"modelContextProtocolServers": [
  {"transport": {"type": "stdio", "command": "a", "args": ["x"]}}, {"transport": {"type": "websocket", "url": "ws://a"}}
]}}"""
COPILOT = '{"mcpServers": {"a": {"type": "local", "command": "a x", "args": [], "tools": ["*"]}}}'
GOOSE = """
extensions:
  developer: {type: builtin, enabled: true}
  a: {type: stdio, cmd: a, args: [x], envs: {K: v}, env_keys: [TOKEN], enabled: true, timeout: 300}
  b: {type: streamable_http, uri: "https://b", enabled: true}
"""
NOT_SET = "is not set in the server's environment, or is empty: set it, or write the value"
YOURS = (
    "is to be set by you: write the value, ${secret:NAME} for what toolgate secret set keeps, or ${env:NAME} for a "
    "variable of the server's environment"
)

CASES: dict[str, tuple[str, Mapping[str, Any], Mapping[str, list[str]], list[str]]] = {
    # file → its text, the mounts, what is noted of each, and what is left out
    "claude_desktop_config.json": (
        CLAUDE_DESKTOP,
        {
            "my-files": {
                "command": "npx",
                "args": ["-y", "server-filesystem", "/srv"],
                "env": {"PORT": "80", "ON": "true"},
            },
            "files": {"command": "npx", "args": ["other"]},
        },
        {},
        ["off: it is disabled there", "toolgate: it is this program", "us: it is this program"],
    ),
    ".claude.json": (
        CLAUDE_CODE,
        {
            "web": {"url": "${env:BASE:-https://a}/mcp", "headers": {"K": "Bearer ${env:TOKEN}"}},
            "db": {"command": "db", "args": ["${env:HOME}/x"]},
            "db-2": {"url": "https://db/sse", "type": "sse"},
        },
        {},
        [],
    ),
    "mcp.json": (
        CURSOR,
        {
            "local": {
                "command": "python",
                "args": ["/home/ada/s.py", "${input:workspaceFolder}"],
                "env": {"K": "${env:TOKEN}"},
            },
            "remote": {"url": "http://localhost:3000/sse"},
        },
        {"local": [f"args: ${{input:workspaceFolder}} {YOURS}"], "remote": ["skipped: auth"]},
        [],
    ),
    "mcp_config.json": (
        WINDSURF,
        {"a": {"url": "https://a/mcp", "headers": {"K": "${env:TOKEN}"}, "tools": ["!x"]}},
        {},
        [],
    ),
    "cline_mcp_settings.json": (
        CLINE,
        {"a": {"command": "a"}, "b": {"url": "https://b"}, "c": {"url": "https://c", "type": "sse"}},
        {"a": ["skipped: alwaysAllow, timeout"]},
        [],
    ),
    "roo.json": (ROO, {"a": {"url": "https://a", "tools": ["!x"]}}, {"a": ["skipped: alwaysAllow"]}, []),
    "settings.json": (
        GEMINI,
        {
            "a": {"url": "https://a", "tools": ["x", "y", "!z"]},
            "b": {
                "command": "b",
                "cwd": "/srv",
                "env": {"K": "${env:TOKEN}", "P": "pa$WORD", "Q": "${env:TOKEN}-x"},
            },
        },
        {"a": ["skipped: trust"]},
        [],
    ),
    "vscode.json": (
        VSCODE,
        {
            "a": {"command": "a", "env": {"K": "${secret:key}"}},
            "b": {"url": "https://b", "headers": {"K": "${env:NONE}"}},
        },
        {
            "a": ["skipped: envFile", "set its secret: toolgate secret set key (Key of A)"],
            "b": [f"headers: K: the variable NONE {NOT_SET}"],
        },
        [],
    ),
    "vscode-settings.json": (VSCODE_SETTINGS, {"a": {"command": "a"}}, {}, []),
    "devcontainer.json": (f'{{"customizations": {{"vscode": {VSCODE_SETTINGS}}}}}', {"a": {"command": "a"}}, {}, []),
    "zed.json": (
        ZED,
        {
            "old": {"command": "old", "args": ["x"], "env": {"K": "v"}},
            "new": {"command": "new", "args": ["x"], "env": {"K": "v"}},
            "web": {"url": "https://a", "headers": {"K": "v"}},
        },
        {},
        ['extension: command or url is missing, such as command = "npx"'],
    ),
    "config.toml": (
        CODEX,
        {
            "a": {
                "command": "a",
                "args": ["x"],
                "env": {"TOKEN": "${env:TOKEN}", "K": "v"},
                "tools": ["x", "y", "!y"],
                "timeout": 90,
            },
            "b": {
                "url": "https://b",
                "headers": {"Authorization": "Bearer ${env:TOKEN}", "K": "v", "L": "${env:TOKEN}"},
            },
        },
        {"a": ["skipped: startup_timeout_sec"]},
        ["c: it is disabled there"],
    ),
    "opencode.json": (
        OPENCODE,
        {
            "a": {"command": "npx", "args": ["-y", "a"], "env": {"K": "${env:TOKEN}"}},
            "b": {"url": "https://b", "headers": {"K": "${file:~/key}"}},
        },
        {"b": ["skipped: oauth", f"headers: K: ${{file:~/key}} {YOURS.replace('is to be set by you', 'is unknown')}"]},
        [],
    ),
    "config.yaml": (
        CONTINUE,
        {"web-search": {"command": "npx", "args": ["-y", "search"]}, "web": {"url": "https://a"}},
        {"web-search": ["skipped: connectionTimeout"]},
        [],
    ),
    "continue.json": (
        CONTINUE_JSON,
        {"server": {"command": "a", "args": ["x"]}},
        {},
        ["server: url: must be an http or https URL, such as https://example.com/mcp"],
    ),
    "copilot": (COPILOT, {"a": {"command": "a", "args": ["x"]}}, {}, []),
    "goose.yml": (
        GOOSE,
        {
            "a": {"command": "a", "args": ["x"], "env": {"TOKEN": "${env:TOKEN}", "K": "v"}},
            "b": {"url": "https://b"},
        },
        {"a": ["skipped: timeout"]},
        [],
    ),
}


def read(folder: Path, name: str, text: str) -> ImportPlan:
    (folder / name).write_text(text)
    return plan_import(read_client_file(folder / name), ENVIRONMENT)


@pytest.mark.parametrize("name", CASES)
def test_the_file_of_a_client_is_read(name: str, tmp_path: Path) -> None:
    text, mounts, notes, left_out = CASES[name]
    plan = read(tmp_path, name, text)
    assert {mount.name: mount.rows for mount in plan.mounts} == mounts
    assert {mount.name: [*mount.notes] for mount in plan.mounts if mount.notes} == notes
    assert [*plan.left_out] == left_out


def test_names_show_where_a_server_comes_from(tmp_path: Path) -> None:
    origins = [mount.origin for mount in read(tmp_path, ".claude.json", CLAUDE_CODE).mounts]
    assert origins == ["web", "db in /a", "db in /c"]


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("3", "command or url is missing"),
        ('{"command": 3}', "command: must be a text"),
        ('{"command": []}', "command or url is missing"),
        ('{"command": "a", "args": {}}', ""),
        ('{"command": "a", "env": {"A": {}}}', "env: A must be a text"),
        ('{"command": "a", "cwd": "b"}', "cwd: must be an absolute path"),
        ('{"url": "https://u:hunter2@a"}', "url: must not carry"),
        ('{"url": "https://a", "headers": {"Host": "b"}}', "headers: Host is written"),
        ('{"command": "a", "url": "https://a"}', "name two servers"),
        ('{"command": "a", "type": "grpc"}', ""),
    ],
)
def test_what_can_not_be_mounted_is_left_out_with_the_reason(entry: str, reason: str, tmp_path: Path) -> None:
    plan = read(tmp_path, "a.json", f'{{"mcpServers": {{"x": {entry}, "good": {{"command": "a"}}}}}}')
    assert plan.mounts[-1].name == "good" and len(plan.mounts) == (1 if reason else 2)
    assert reason in "".join(plan.left_out) and "hunter2" not in "".join(plan.left_out)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.json", "{", "line 1"),
        ("a.json", "[1]", "line 1"),
        ("a.toml", "a = \nb", "line 1"),
        ("a.yaml", "a: [", "this is not YAML"),
        ("a.yaml", "- a", "must hold a mapping"),
        ("a", "a = = b", "line 1"),
    ],
)
def test_a_file_that_can_not_be_read_is_refused(name: str, text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigFileError, match=reason):
        read(tmp_path, name, text)
    with pytest.raises(ConfigFileError, match="no such file"):
        read_client_file(tmp_path / "none")
    with pytest.raises(ConfigFileError, match="is a directory"):
        read_client_file(tmp_path)


ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1.5,
    "",
    "a b",
    "\0",
    "${",
    "${}",
    "$" * 99,
    "x" * 9_000,
    [],
    [None],
    [[]],
    {},
    {"": {}},
)


@pytest.mark.parametrize("seed", range(60))
def test_odd_values_anywhere_leave_out_a_server_at_most(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    for name, (text, *_) in CASES.items():
        (tmp_path / name).write_text(text)
        content = {key: _spoil(each, rng) for key, each in read_client_file(tmp_path / name).items()}
        plan = plan_import(content, ENVIRONMENT)
        for mount in plan.mounts:
            written = set_table("", ("mounts", mount.name), mount.rows)
            assert parse_toml(written) == {"mounts": {mount.name: mount.rows}}


def _spoil(value: Any, rng: random.Random) -> Any:
    """Return the value with odd ones here and there."""
    if rng.random() < 0.1:
        return rng.choice(ODD)
    if isinstance(value, dict):
        return {key: _spoil(each, rng) for key, each in value.items()}
    return [_spoil(each, rng) for each in value] if isinstance(value, list) else value


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    assert read(tmp_path, "a.json", "\ufeff" + COPILOT).mounts
