"""Add this server to an MCP client's own configuration, and remove it (`toolgate install CLIENT`)."""

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec

from toolgate.server.base.errors import UsageError
from toolgate.server.base.text import escape_unprintable
from toolgate.server.config.files.config_file import ConfigFileError, read_config_file
from toolgate.server.config.load import Config, read_environment
from toolgate.server.config.types import parse_public_url
from toolgate.server.features.clients import links, program, snippets
from toolgate.server.features.clients.clients import NAME, ClientEntry, ClientSpec
from toolgate.server.features.clients.commands.client_prompt import choose_client
from toolgate.server.features.clients.commands.start_check import check_start
from toolgate.server.features.clients.entries import (
    FileEdit,
    format_change,
    has_entry,
    plan_install,
    plan_uninstall,
)
from toolgate.server.features.clients.locations import PLACES, WSL_APPS, Platform, find_file, is_present
from toolgate.tools.api.installation import COMMANDS, name_extra
from toolgate.tools.reading.browser.find_chromium import find_chromium

WITHIN = 60.0  # seconds for the client's own command, which takes one or two


def install(
    config: Config, *, client: str | None, url: str | None = None, project: bool = False, dry_run: bool = False
) -> int:
    """Add the server to a client: one that the client starts with these options, or the one at a URL."""
    platform = _describe_platform(config.environment)
    client = client or choose_client("install", platform, Path.cwd() if project else None)
    spec = snippets.find_client(client, "install")
    public_url = _parse_url(url) if url else config.public_url
    entry = _build_entry(config, client, spec, public_url)
    path = _find_path(client, spec, platform, project, "install")
    if not public_url:
        check_start("install", config, config.to_client_flags(), keeps_state=not dry_run)
    try:
        if path is None:
            return _explain_wsl(client, spec, entry, platform)
        edit = plan_install(spec, read_config_file(path, Path.cwd() if project else None), entry)
        if not edit.is_change:
            print(f"{spec.title} already has Toolgate, in {edit.file}")
            return 0
        if dry_run:
            return _show_edit(spec, edit, entry)
        is_missing = not project and not is_present(client, platform)
        claude = None if project else _find_claude(client, config.environment)
        if claude:
            _run_claude(claude, config.own_environment, entry, replace=has_entry(spec, edit.file))
            print(f"Added Toolgate to {spec.title}, in {edit.file}")
        else:
            _apply(edit, f"Added Toolgate to {spec.title}, in")
    except (ConfigFileError, OSError) as error:
        _print_failure("install", error)
        print("To add it by hand, put this into the file:", file=sys.stderr)
        return _print_entry(client, spec, entry)
    if is_missing:
        print(f"note: neither a file nor the program of {spec.title} was on this machine; is it installed?")
    if not public_url and (lacking := _find_lacking(config, client)):
        print(f"note: {lacking}")
    place = PLACES[client]
    last_step = (project and place.project_step) or place.last_step
    print(f"{last_step.format(title=spec.title)}{spec.sign_in if public_url else ''}.")
    return 0


def uninstall(*, client: str | None, project: bool = False, dry_run: bool = False) -> int:
    """Remove what `install` added, and nothing else."""
    environment = read_environment()
    platform = _describe_platform(environment)
    client = client or choose_client("uninstall", platform, Path.cwd() if project else None)
    spec = snippets.find_client(client, "uninstall")
    path = _find_path(client, spec, platform, project, "uninstall")
    try:
        if path is None:
            raise ConfigFileError(f"{spec.title} runs on Windows: remove the entry {NAME} from its file there")
        edit = plan_uninstall(spec, read_config_file(path, Path.cwd() if project else None))
        if not edit.is_change:
            print(f"{spec.title} has no Toolgate in {edit.file}")
            return 0
        if dry_run:
            return _show_edit(spec, edit)
        claude = None if project else _find_claude(client, environment)
        if claude:
            own = {name: value for name, value in environment.items() if not name.startswith("TOOLGATE_")}
            _run_claude(claude, own, None, replace=True)
            print(f"Removed Toolgate from {spec.title}, in {edit.file}")
        else:
            _apply(edit, f"Removed Toolgate from {spec.title}, in")
    except (ConfigFileError, OSError) as error:
        _print_failure("uninstall", error)
        return 1
    print(f"Restart {spec.title}.")
    return 0


def _parse_url(word: str) -> str:
    """Return the public URL of a server, given with or without /mcp. Raises UsageError."""
    try:
        return parse_public_url(word.rstrip("/").removesuffix("/mcp"))
    except ValueError as error:
        raise UsageError(f"--url: {error}") from None


def _build_entry(config: Config, client: str, spec: ClientSpec, public_url: str | None) -> ClientEntry:
    """Return what the client reads. Raises UsageError for a client that keeps its servers in an account."""
    if client not in PLACES or (public_url and spec.from_url is None):
        more = f" --public-url {public_url}" if public_url else ""
        raise UsageError(
            f"install: {spec.title} has no file for such servers: `toolgate config {client}{more}` prints the URL and "
            "says where to paste it"
        )
    if public_url and spec.from_url is not None:
        return spec.from_url(f"{public_url}/mcp")
    assert spec.from_command is not None, "each client of PLACES starts servers"
    return spec.from_command([*program.find_program(config.environment), *config.to_client_flags()])


def _find_lacking(config: Config, client: str) -> str:
    """Return what the server will do without on this machine, and what adds it, or ""."""
    if config.browser == "none":
        return ""
    has_package = find_spec("playwright") is not None
    program = find_chromium(config.browser, config.environment.get("PATH"))
    if has_package and program is not None:
        return ""
    steps = [] if program is not None else ["apt-get install chromium-headless-shell"]
    if not has_package:
        addition = name_extra("browser")
        steps.append(f"{addition} install {client}" if addition.endswith(f" {COMMANDS[0]}") else addition)
    return f"ReadDocs runs no scripts of pages yet; to add that: {', then '.join(steps)}"


def _describe_platform(environment: Mapping[str, str]) -> Platform:
    return Platform(sys.platform, environment, Path(environment.get("HOME") or "~").expanduser())


def _find_path(client: str, spec: ClientSpec, platform: Platform, project: bool, command: str) -> Path | None:
    """Return the client's file, or None if that is on the Windows side of WSL. Raises UsageError."""
    if client not in PLACES:
        raise UsageError(f"{command}: {spec.title} keeps its servers in your account, not in a file")
    if platform.wsl_distribution and client in WSL_APPS and not project:
        return None
    path = find_file(client, platform, Path.cwd() if project else None)
    if path is None:
        known = ", ".join(name for name, place in PLACES.items() if place.project)
        raise UsageError(
            f"{command}: {spec.title} reads no file of a project: omit --project; those that do are {known}"
        )
    return path


def _explain_wsl(client: str, spec: ClientSpec, entry: ClientEntry, platform: Platform) -> int:
    """Print what a program on Windows reads to start or reach this server."""
    if isinstance(command := entry.get("command"), str):
        inside = ["-d", platform.wsl_distribution, "--", command, *entry["args"]]
        entry = {**entry, "command": "wsl.exe", "args": inside}
    reason = f"toolgate: install: {spec.title} runs on Windows, and its file is there. Put this into it"
    print(f"{reason} ({spec.where}):", file=sys.stderr)
    return _print_entry(client, spec, entry)


def _print_entry(client: str, spec: ClientSpec, entry: ClientEntry) -> int:
    """Print what the client reads, and the link that adds it."""
    print(snippets.NOTATIONS["json" if spec.notation == "shell" else spec.notation](spec.container, entry), flush=True)
    if link := links.build_install_link(client, entry):
        print(f"or open this link: {link}", file=sys.stderr)
    return 1


def _apply(edit: FileEdit, done: str) -> None:
    has_backup = edit.apply()
    print(f"{done} {edit.file}")
    if edit.drops_mark:
        print("The file began with a byte order mark, which the client can't read: it is removed.")
    if has_backup:
        print(f"The file as it was is {escape_unprintable(str(edit.file.backup))}")


def _show_edit(spec: ClientSpec, edit: FileEdit, entry: ClientEntry | None = None) -> int:
    """Print how this server's entry would change, and nothing else of the file: it may hold secrets."""
    print(f"Dry run: nothing is written. In {edit.file}, {spec.container} would change so:")
    for line in format_change(spec, edit, entry):
        print(escape_unprintable(line))
    return 0


def _find_claude(client: str, environment: Mapping[str, str]) -> str | None:
    """Return the program of Claude Code: it rewrites its file while it runs, so it had better do the change itself."""
    return shutil.which("claude", path=environment.get("PATH")) if client == "claude-code" else None


def _run_claude(claude: str, environment: dict[str, str], entry: ClientEntry | None, replace: bool) -> None:
    """Have Claude Code remove the old entry of the user, and add the new one. Raises ConfigFileError."""
    commands: list[Sequence[str]] = [["remove", "--scope", "user", NAME]] if replace else []
    if entry is not None:
        commands.append(["add-json", "--scope", "user", NAME, msgspec.json.encode(entry).decode()])
    for words in commands:
        try:
            ran = subprocess.run(
                [claude, "mcp", *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=environment,
                timeout=WITHIN,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ConfigFileError(f"claude mcp {words[0]} did not end within {WITHIN:.0f} seconds") from None
        if ran.returncode:
            said = (ran.stderr or ran.stdout).decode(errors="replace").strip().replace("\n", " ")[:500]
            raise ConfigFileError(f"claude mcp {words[0]} failed: {escape_unprintable(said)}")


def _print_failure(command: str, error: ConfigFileError | OSError) -> None:
    from toolgate.server.base.text import describe_os_error

    said = describe_os_error(error) if isinstance(error, OSError) else str(error)
    print(f"toolgate: {command}: {said}", file=sys.stderr)
