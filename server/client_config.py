"""Print the configuration that adds this server to an MCP client (`toolgate config CLIENT`), ready to paste."""

import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from toolgate.server.protocol.errors import UsageError
from toolgate.server.text import suggest

Snippet = tuple[str, str]  # the text to paste, and the place to paste it


@dataclass(frozen=True, slots=True)
class ClientEntry:
    """A client: its title, what it reads to start or reach a server, and where a hosted one asks for the URL."""

    title: str
    by_command: Callable[[str, list[str]], Snippet] | None = None
    by_url: Callable[[str], Snippet] | None = None
    paste_where: str = ""


def build_snippet(client: str, options: Sequence[str], public_url: str | None = None) -> Snippet:
    """Return the configuration for a client, and the place to paste it.

    The client starts a server with `options`. Hosted clients, and those that read URLs, connect to `public_url`.
    """
    entry = CLIENTS.get(client)
    if entry is None:
        listed = ", ".join(CLIENTS)
        raise UsageError(f"config: unknown client {client!r}{suggest(client, CLIENTS)}; clients are {listed}")
    if entry.paste_where and _is_reachable(public_url):
        where = f"{entry.paste_where}; toolgate doctor --url {public_url}/mcp checks that it will work"
        return f"{public_url}/mcp", where
    if public_url is not None and entry.by_url is not None:
        return entry.by_url(f"{public_url}/mcp")
    if entry.by_command is None:
        raise UsageError(
            f"config: {client} can't start a server on this machine: add --public-url with the https URL of your server"
        )
    return entry.by_command(_command(), list(options))


def list_snippets(public_url: str) -> list[tuple[str, str, str]]:
    """Return the title, text and place of each client that can reach a server at this URL."""
    url = f"{public_url}/mcp"
    found = [(entry.title, *entry.by_url(url)) for entry in CLIENTS.values() if entry.by_url is not None]
    if _is_reachable(public_url):
        found += [(entry.title, url, entry.paste_where) for _, entry in sorted(CLIENTS.items()) if entry.paste_where]
    return found


def _is_reachable(public_url: str | None) -> bool:
    """Return whether hosted clients can reach the server."""
    return public_url is not None and public_url.startswith("https://")


def _command() -> str:
    """Return the absolute path of the running command."""
    beside = Path(sys.executable).with_name("toolgate")
    found = str(beside) if beside.exists() else shutil.which("toolgate")
    return found or str(Path(sys.argv[0]).absolute())


def _json_client(
    title: str,
    key: str,
    where: str,
    command: Mapping[str, Any] | None = None,
    url: Mapping[str, Any] | None = None,
    url_key: str = "url",
    sign_in: str = "",
) -> ClientEntry:
    """Return a client that reads JSON, `{key: {"toolgate": {…}}}`; `command` and `url` are its further members."""
    return ClientEntry(
        title,
        lambda program, options: (_entry(key, {**(command or {}), "command": program, "args": options}), where),
        lambda address: (_entry(key, {**(url or {}), url_key: address}), where + sign_in),
    )


def _entry(key: str, entry: dict[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode({key: {"toolgate": entry}}), indent=2).decode()


def _claude_code(command: str, options: list[str]) -> Snippet:
    return shlex.join(["claude", "mcp", "add", "toolgate", "--", command, *options]), "run it in a shell"


def _claude_code_url(url: str) -> Snippet:
    words = ["claude", "mcp", "add", "--transport", "http", "toolgate", url]
    return shlex.join(words), "run it in a shell, then /mcp in Claude Code to sign in"


def _codex_url(url: str) -> Snippet:
    entry = f"[mcp_servers.toolgate]\nurl = {msgspec.json.encode(url).decode()}"
    return entry, f"{CODEX}; then codex mcp login toolgate signs in"


def _codex(command: str, options: list[str]) -> Snippet:
    """Return Codex's TOML, in which strings and lists are written as in JSON."""
    program, arguments = (msgspec.json.encode(value).decode() for value in (command, options))
    return f"[mcp_servers.toolgate]\ncommand = {program}\nargs = {arguments}\n{REQUIRED}", CODEX


def _opencode(command: str, options: list[str]) -> Snippet:
    return _entry("mcp", {"type": "local", "command": [command, *options], "enabled": True}), OPENCODE


def _opencode_url(url: str) -> Snippet:
    entry = _entry("mcp", {"type": "remote", "enabled": True, "url": url})
    return entry, f"{OPENCODE}; then opencode mcp auth toolgate signs in"


DESKTOP = "in claude_desktop_config.json (Settings, Developer, Edit Config)"
VS_CODE = "in .vscode/mcp.json, or by the command MCP: Open User Configuration"
CODEX = "in ~/.codex/config.toml"
REQUIRED = "# Without it Codex silently leaves out a server that takes over a second to start.\nrequired = true"
GEMINI = "in ~/.gemini/settings.json, or .gemini/settings.json of a project"
OPENCODE = "in ~/.config/opencode/opencode.json, or opencode.json of a project"
QWEN = "in ~/.qwen/settings.json, or .qwen/settings.json of a project"
COPILOT = "in ~/.copilot/mcp-config.json"
CLIENTS = {
    "claude-desktop": ClientEntry(
        "Claude Desktop",
        _json_client("", "mcpServers", DESKTOP).by_command,  # its file names local servers only
        paste_where="in Claude Desktop: Settings, Connectors, Add custom connector",
    ),
    "claude-code": ClientEntry("Claude Code", _claude_code, _claude_code_url),
    "cursor": _json_client("Cursor", "mcpServers", "in ~/.cursor/mcp.json, or .cursor/mcp.json of a project"),
    "vscode": _json_client("VS Code", "servers", VS_CODE, {"type": "stdio"}, {"type": "http"}),
    "windsurf": _json_client("Windsurf", "mcpServers", "in ~/.codeium/windsurf/mcp_config.json", url_key="serverUrl"),
    "zed": _json_client("Zed", "context_servers", "in Zed's settings.json", {"source": "custom"}),
    "codex": ClientEntry("Codex", _codex, _codex_url),
    "gemini-cli": _json_client(
        "Gemini CLI", "mcpServers", GEMINI, url={"type": "http"}, sign_in="; then /mcp auth toolgate signs in"
    ),
    "opencode": ClientEntry("opencode", _opencode, _opencode_url),
    "qwen-code": _json_client("Qwen Code", "mcpServers", QWEN, url_key="httpUrl", sign_in="; then /mcp signs in"),
    "copilot": _json_client(
        "Copilot CLI",
        "mcpServers",
        COPILOT,
        {"type": "local", "tools": ["*"]},
        {"type": "http", "tools": ["*"]},
        sign_in="; then /mcp signs in",
    ),
    "chatgpt": ClientEntry(
        "ChatGPT", paste_where="in ChatGPT: Settings, Apps & Connectors, Advanced settings, Developer mode; then Create"
    ),
    "claude-ai": ClientEntry("claude.ai", paste_where="in claude.ai: Settings, Connectors, Add custom connector"),
}
