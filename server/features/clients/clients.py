"""List the MCP clients: what each reads to start or reach a server, and where."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

NAME = "toolgate"  # of the server in a client's configuration

ClientEntry = dict[str, Any]
TOML_COMMENTS = {
    "required": "# Without it Codex silently leaves out a server that takes over a second to start.\n"
}  # key → lines before it


class ClientSpec(msgspec.Struct, frozen=True):
    """A client: its title, the object of its file that holds the servers, and what it reads there.

    `from_command` makes the entry that starts a server, from the words of its command line, and `from_url` the one that
    reaches a server. `notation` is json, toml or shell. `paste_where` is where a hosted client asks for the URL.
    """

    title: str
    where: str = ""
    container: str = "mcpServers"
    from_command: Callable[[Sequence[str]], ClientEntry] | None = None
    from_url: Callable[[str], ClientEntry] | None = None
    sign_in: str = ""
    notation: str = "json"
    paste_where: str = ""


def _start(words: Sequence[str], more: Mapping[str, Any] | None = None) -> ClientEntry:
    return {**(more or {}), "command": words[0], "args": list(words[1:])}


def _reach(url: str, key: str = "url", more: Mapping[str, Any] | None = None) -> ClientEntry:
    return {**(more or {}), key: url}


def _start_with(**more: Any) -> Callable[[Sequence[str]], ClientEntry]:
    return partial(_start, more=more)


def _reach_with(key: str = "url", **more: Any) -> Callable[[str], ClientEntry]:
    return partial(_reach, key=key, more=more)


def _start_codex(words: Sequence[str]) -> ClientEntry:
    return {**_start(words), "required": True}  # without it Codex silently leaves out a slow server


def _start_opencode(words: Sequence[str]) -> ClientEntry:
    return {"type": "local", "command": list(words), "enabled": True}


CLIENTS = {
    "claude-desktop": ClientSpec(
        "Claude Desktop",
        "in claude_desktop_config.json (Settings, Developer, Edit Config)",
        from_command=_start,  # its file names local servers only
        paste_where="in Claude Desktop: Settings, Connectors, Add custom connector",
    ),
    "claude-code": ClientSpec(
        "Claude Code",
        "run it in a shell",
        from_command=_start_with(type="stdio"),
        from_url=_reach_with(type="http"),
        sign_in=", then /mcp in Claude Code to sign in",
        notation="shell",
    ),
    "cursor": ClientSpec(
        "Cursor", "in ~/.cursor/mcp.json, or .cursor/mcp.json of a project", from_command=_start, from_url=_reach
    ),
    "vscode": ClientSpec(
        "VS Code",
        "in .vscode/mcp.json, or by the command MCP: Open User Configuration",
        container="servers",
        from_command=_start_with(type="stdio"),
        from_url=_reach_with(type="http"),
    ),
    "windsurf": ClientSpec(
        "Windsurf",
        "in ~/.codeium/windsurf/mcp_config.json",
        from_command=_start,
        from_url=_reach_with("serverUrl"),
    ),
    "zed": ClientSpec(
        "Zed",
        "in Zed's settings.json, or .zed/settings.json of a project",
        container="context_servers",
        from_command=_start_with(source="custom"),
        from_url=_reach,
    ),
    "codex": ClientSpec(
        "Codex",
        "in ~/.codex/config.toml, or .codex/config.toml of a trusted project",
        container="mcp_servers",
        from_command=_start_codex,
        from_url=_reach,
        sign_in="; then codex mcp login toolgate signs in",
        notation="toml",
    ),
    "gemini-cli": ClientSpec(
        "Gemini CLI",
        "in ~/.gemini/settings.json, or .gemini/settings.json of a project",
        from_command=_start,
        from_url=_reach_with(type="http"),
        sign_in="; then /mcp auth toolgate signs in",
    ),
    "opencode": ClientSpec(
        "opencode",
        "in ~/.config/opencode/opencode.json, or opencode.json of a project",
        container="mcp",
        from_command=_start_opencode,
        from_url=_reach_with(type="remote", enabled=True),
        sign_in="; then opencode mcp auth toolgate signs in",
    ),
    "qwen-code": ClientSpec(
        "Qwen Code",
        "in ~/.qwen/settings.json, or .qwen/settings.json of a project",
        from_command=_start,
        from_url=_reach_with("httpUrl"),
        sign_in="; then /mcp signs in",
    ),
    "copilot": ClientSpec(
        "Copilot CLI",
        "in ~/.copilot/mcp-config.json, or .github/mcp.json of a trusted project",
        from_command=_start_with(type="local", tools=["*"]),
        from_url=_reach_with(type="http", tools=["*"]),
        sign_in="; then /mcp signs in",
    ),
    "chatgpt": ClientSpec(
        "ChatGPT", paste_where="in ChatGPT: Settings, Apps & Connectors, Advanced settings, Developer mode; then Create"
    ),
    "claude-ai": ClientSpec("claude.ai", paste_where="in claude.ai: Settings, Connectors, Add custom connector"),
}
FILE_CLIENTS = {name: spec for name, spec in CLIENTS.items() if spec.from_command is not None}  # with a file to edit
