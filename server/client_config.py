"""`toolgate config CLIENT`: the configuration that adds this server to an MCP client, ready to paste."""

import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from toolgate.server.protocol.errors import UsageError


def build_snippet(words: Sequence[str], options: Sequence[str], public_url: str | None = None) -> tuple[str, str]:
    """The configuration for the client `words[0]`; and where it belongs. It starts a server of its own with `options`,
    or, for hosted clients and those that are told URLs, reaches the one at `public_url`."""
    if len(words) != 1 or words[0] not in (CLIENTS.keys() | HOSTED.keys()):
        raise UsageError(f"config: name a client: {', '.join(CLIENTS | HOSTED)}")
    (client,) = words
    if client in HOSTED and (client not in CLIENTS or _is_reachable(public_url)):
        return _hosted_snippet(client, public_url)
    if public_url is not None and client in REMOTE:
        return REMOTE[client](f"{public_url}/mcp")
    return CLIENTS[client](_command(), list(options))


def _command() -> str:
    """The absolute path of this very command."""
    beside = Path(sys.executable).with_name("toolgate")
    found = str(beside) if beside.exists() else shutil.which("toolgate")
    return found or str(Path(sys.argv[0]).absolute())


def _command_entry(key: str, where: str, **extra: Any) -> Callable[[str, list[str]], tuple[str, str]]:
    """The JSON most clients read: `{key: {"toolgate": {…}}}`, and where it belongs."""

    def build_entry(command: str, options: list[str]) -> tuple[str, str]:
        return _entry(key, {**extra, "command": command, "args": options}), where

    return build_entry


def _url_entry(key: str, where: str, named: str = "url", **extra: Any) -> Callable[[str], tuple[str, str]]:
    """The same for a server at a URL, which the client calls `named`; it signs in there by itself."""
    return lambda url: (_entry(key, {**extra, named: url}), where)


def _entry(key: str, entry: dict[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode({key: {"toolgate": entry}}), indent=2).decode()


def _claude_code(command: str, options: list[str]) -> tuple[str, str]:
    return shlex.join(["claude", "mcp", "add", "toolgate", "--", command, *options]), "run it in a shell"


def _claude_code_url(url: str) -> tuple[str, str]:
    words = ["claude", "mcp", "add", "--transport", "http", "toolgate", url]
    return shlex.join(words), "run it in a shell, then /mcp in Claude Code to sign in"


def _codex_url(url: str) -> tuple[str, str]:
    entry = f"[mcp_servers.toolgate]\nurl = {msgspec.json.encode(url).decode()}"
    return entry, f"{CODEX}; then codex mcp login toolgate signs in"


def _codex(command: str, options: list[str]) -> tuple[str, str]:
    """TOML, whose strings and lists are spelled as JSON's."""
    program, arguments = (msgspec.json.encode(value).decode() for value in (command, options))
    return f"[mcp_servers.toolgate]\ncommand = {program}\nargs = {arguments}\n{REQUIRED}", CODEX


def _opencode(command: str, options: list[str]) -> tuple[str, str]:
    return _entry("mcp", {"type": "local", "command": [command, *options], "enabled": True}), OPENCODE


def _is_reachable(public_url: str | None) -> bool:
    """Whether what runs elsewhere can come there."""
    return public_url is not None and public_url.startswith("https://")


def _hosted_snippet(client: str, public_url: str | None) -> tuple[str, str]:
    """What runs elsewhere is given a URL, and signs in there by itself."""
    if not _is_reachable(public_url):
        raise UsageError(f"config: {client} runs elsewhere: say with --public-url under which https URL it reaches you")
    return f"{public_url}/mcp", f"{HOSTED[client]}; toolgate doctor --url {public_url}/mcp says whether it will work"


CURSOR = "in ~/.cursor/mcp.json, or .cursor/mcp.json of a project"
VS_CODE = "in .vscode/mcp.json, or by the command MCP: Open User Configuration"
WINDSURF = "in ~/.codeium/windsurf/mcp_config.json"
ZED = "in Zed's settings.json"
CODEX = "in ~/.codex/config.toml"
REQUIRED = "# Without it Codex silently leaves out a server that takes over a second to start.\nrequired = true"
GEMINI = "in ~/.gemini/settings.json, or .gemini/settings.json of a project"
OPENCODE = "in ~/.config/opencode/opencode.json, or opencode.json of a project"
QWEN = "in ~/.qwen/settings.json, or .qwen/settings.json of a project"
COPILOT = "in ~/.copilot/mcp-config.json"
CLIENTS: dict[str, Callable[[str, list[str]], tuple[str, str]]] = {
    "claude-desktop": _command_entry("mcpServers", "in claude_desktop_config.json (Settings, Developer, Edit Config)"),
    "claude-code": _claude_code,
    "cursor": _command_entry("mcpServers", CURSOR),
    "vscode": _command_entry("servers", VS_CODE, type="stdio"),
    "windsurf": _command_entry("mcpServers", WINDSURF),
    "zed": _command_entry("context_servers", ZED, source="custom"),
    "codex": _codex,
    "gemini-cli": _command_entry("mcpServers", GEMINI),
    "opencode": _opencode,
    "qwen-code": _command_entry("mcpServers", QWEN),
    "copilot": _command_entry("mcpServers", COPILOT, type="local", tools=["*"]),
}
REMOTE: dict[str, Callable[[str], tuple[str, str]]] = {  # client → what it is told about a URL
    "claude-code": _claude_code_url,
    "cursor": _url_entry("mcpServers", CURSOR),
    "vscode": _url_entry("servers", VS_CODE, type="http"),
    "windsurf": _url_entry("mcpServers", WINDSURF, "serverUrl"),
    "zed": _url_entry("context_servers", ZED),
    "codex": _codex_url,
    "gemini-cli": _url_entry("mcpServers", f"{GEMINI}; then /mcp auth toolgate signs in", type="http"),
    "opencode": _url_entry("mcp", f"{OPENCODE}; then opencode mcp auth toolgate signs in", type="remote", enabled=True),
    "qwen-code": _url_entry("mcpServers", f"{QWEN}; then /mcp signs in", "httpUrl"),
    "copilot": _url_entry("mcpServers", f"{COPILOT}; then /mcp signs in", type="http", tools=["*"]),
}
HOSTED = {  # client → where the URL is pasted
    "chatgpt": "in ChatGPT: Settings, Apps & Connectors, Advanced settings, Developer mode; then Create",
    "claude-ai": "in claude.ai: Settings, Connectors, Add custom connector",
    "claude-desktop": "in Claude Desktop: Settings, Connectors, Add custom connector",  # its file names local ones only
}
TITLES = {  # as people call them
    "claude-code": "Claude Code",
    "cursor": "Cursor",
    "vscode": "VS Code",
    "windsurf": "Windsurf",
    "zed": "Zed",
    "codex": "Codex",
    "gemini-cli": "Gemini CLI",
    "opencode": "opencode",
    "qwen-code": "Qwen Code",
    "copilot": "Copilot CLI",
    "chatgpt": "ChatGPT",
    "claude-ai": "claude.ai",
    "claude-desktop": "Claude Desktop",
}


def list_snippets(public_url: str) -> list[tuple[str, str, str]]:
    """What each client is told that can be given a URL: its title, the text to paste, and where it belongs. Those that
    run elsewhere only where they could reach it."""
    pasted = f"{public_url}/mcp"
    snippets = [(TITLES[client], *REMOTE[client](pasted)) for client in REMOTE]
    if _is_reachable(public_url):
        snippets += [(TITLES[client], pasted, where) for client, where in HOSTED.items()]
    return snippets
