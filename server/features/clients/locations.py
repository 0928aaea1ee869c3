"""Say where each client keeps its configuration on this machine, and what makes it read a change."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

WSL_APPS = ("claude-desktop", "cursor", "vscode", "windsurf", "zed")  # on Windows, with their files
MAC_SUPPORT = "Library/Application Support"


class Platform(msgspec.Struct, frozen=True):
    """The facts that a file's place depends on: sys.platform, the environment and the home folder."""

    name: str
    environment: Mapping[str, str]
    home: Path

    @property
    def wsl_distribution(self) -> str:
        """Return the name of the distribution under the Windows Subsystem for Linux, or ""."""
        return self.environment.get("WSL_DISTRO_NAME", "")

    @property
    def config(self) -> Path:
        """Return the XDG folder of configurations."""
        return self.folder("XDG_CONFIG_HOME", ".config")

    @property
    def support(self) -> Path:
        """Return the folder in which desktop programs keep their data."""
        return self.home / MAC_SUPPORT if self.name == "darwin" else self.config

    def folder(self, variable: str, default: str) -> Path:
        """Return the folder that a variable names with an absolute path, or `default` in the home."""
        named = self.environment.get(variable, "")
        return Path(named) if named.startswith("/") else self.home / default


class FilePlace(msgspec.Struct, frozen=True):
    """Where a client's file is: `folder` in the home ("support" and "config" are those of the platform), the path in
    it, and the path in a project. The last step, or the project's own, makes the client read it. `variable` names
    another folder, `program` the command that the client has."""

    folder: str
    file: str
    project: str = ""
    last_step: str = "Restart {title}"
    variable: str = ""
    project_step: str = ""
    program: str = ""


TRUST = "Open the project in {title}, and trust its folder"  # its servers do not start before that
SESSION = "Start a new session of {title}"
PLACES = {
    "claude-desktop": FilePlace(
        "support",
        "Claude/claude_desktop_config.json",
        last_step="Quit {title} (closing its window is not enough) and start it",
    ),
    "claude-code": FilePlace("", ".claude.json", ".mcp.json", SESSION, "CLAUDE_CONFIG_DIR", program="claude"),
    "cursor": FilePlace(
        ".cursor",
        "mcp.json",
        ".cursor/mcp.json",
        last_step="Enable toolgate in {title}'s settings, under MCP",
        program="cursor",
    ),
    "vscode": FilePlace(
        "support",
        "Code/User/mcp.json",
        ".vscode/mcp.json",
        "Start toolgate in {title} by MCP: List Servers",
        program="code",
    ),
    "windsurf": FilePlace(
        ".codeium/windsurf",
        "mcp_config.json",
        last_step="Press the refresh button of {title}'s MCP servers",
        program="windsurf",
    ),
    "zed": FilePlace(
        "config",
        "zed/settings.json",
        ".zed/settings.json",
        "{title} reads it by itself",
        project_step=TRUST,
        program="zed",
    ),
    "codex": FilePlace(".codex", "config.toml", ".codex/config.toml", SESSION, "CODEX_HOME", TRUST, "codex"),
    "gemini-cli": FilePlace(".gemini", "settings.json", ".gemini/settings.json", SESSION, program="gemini"),
    "opencode": FilePlace("config", "opencode/opencode.json", "opencode.json", SESSION, program="opencode"),
    "qwen-code": FilePlace(".qwen", "settings.json", ".qwen/settings.json", SESSION, program="qwen"),
    "copilot": FilePlace(".copilot", "mcp-config.json", ".github/mcp.json", SESSION, "COPILOT_HOME", TRUST, "copilot"),
}


def find_file(client: str, platform: Platform, project: Path | None) -> Path | None:
    """Return the file of a client, or its file in a project, or None if it has none there."""
    place = PLACES[client]
    if project is not None:
        return _choose_jsonc(project / place.project) if place.project else None
    match place.folder:
        case "support":
            folder = platform.support
        case "config":
            folder = platform.config if platform.name != "darwin" or client != "zed" else platform.home / ".config"
        case named:
            folder = platform.folder(place.variable, named) if place.variable else platform.home / named
    return _choose_jsonc(folder / place.file)


def is_present(client: str, platform: Platform) -> bool:
    """Return whether the client seems to be on this machine: its file, the folder of that, or its program.

    An empty folder does not count: `uninstall` leaves the folder that `install` made.
    """
    path = find_file(client, platform, None)
    if path is not None and (path.exists() or (path.parent != platform.home and _has_files(path.parent))):
        return True
    program = PLACES[client].program
    return bool(program) and shutil.which(program, path=platform.environment.get("PATH", "")) is not None


def _has_files(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except OSError:
        return False


def _choose_jsonc(path: Path) -> Path:
    """Return the path with the ending .jsonc if only that file is there: opencode reads both."""
    other = path.with_suffix(".jsonc")
    return other if path.name == "opencode.json" and other.exists() and not path.exists() else path
