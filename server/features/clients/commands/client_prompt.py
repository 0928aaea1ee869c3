"""Ask which client is meant where the command line names none: those that are on this machine come first."""

import sys
from pathlib import Path

from toolgate.server.base.errors import UsageError
from toolgate.server.base.text import escape_unprintable
from toolgate.server.cli.terminal.style import is_terminal
from toolgate.server.config.files.config_file import ConfigFileError, read_config_file
from toolgate.server.features.clients.clients import FILE_CLIENTS
from toolgate.server.features.clients.entries import has_entry
from toolgate.server.features.clients.locations import Platform, find_file, is_present


def choose_client(command: str, platform: Platform, project: Path | None) -> str:
    """Return the client that the person chooses. Raises UsageError where nobody is there to ask."""
    usage = f"usage: toolgate {command} CLIENT [OPTIONS]"
    present = [name for name in FILE_CLIENTS if is_present(name, platform)]
    if not present:
        raise UsageError(f"{command}: CLIENT is missing: {', '.join(FILE_CLIENTS)}; none is on this machine\n{usage}")
    states = [f"{name}{_describe_entry(name, platform, project)}" for name in present]
    if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
        others = [name for name in FILE_CLIENTS if name not in present]
        rest = f"; others are {', '.join(others)}" if others else ""
        raise UsageError(f"{command}: CLIENT is missing. On this machine: {', '.join(states)}{rest}\n{usage}")
    print("Clients on this machine:")
    for number, (name, state) in enumerate(zip(present, states, strict=True), 1):
        path = find_file(name, platform, project)
        print(f"{number:4}  {state:40} {escape_unprintable(str(path)) if path else ''}".rstrip())
    return _read_choice(command, present, usage)


def _read_choice(command: str, present: list[str], usage: str) -> str:
    """Return the client whose number or name is typed."""
    while True:
        try:
            word = input(f"{command.capitalize()} which? Type a number or a name: ").strip()
        except EOFError:
            word = ""
        if not word:
            raise UsageError(f"{command}: CLIENT is missing, and nothing was changed\n{usage}")
        if word.isdecimal() and 1 <= int(word) <= len(present):
            return present[int(word) - 1]
        if word in FILE_CLIENTS:
            return word
        print(f"There is no client {escape_unprintable(word)!r}.")


def _describe_entry(name: str, platform: Platform, project: Path | None) -> str:
    """Return whether the client's file has an entry of Toolgate, in brackets."""
    path = find_file(name, platform, project)
    if path is None:
        return ""
    try:
        return " (has Toolgate)" if has_entry(FILE_CLIENTS[name], read_config_file(path, project)) else ""
    except (ConfigFileError, OSError):
        return " (its file can't be read)"
