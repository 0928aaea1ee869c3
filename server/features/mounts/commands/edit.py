"""Add a mounted server to the config file, and remove one (`toolgate mount add` and `remove`)."""

import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from toolgate.server.base.errors import UsageError
from toolgate.server.base.text import escape_unprintable, suggest
from toolgate.server.config.files.config_file import ConfigFileError
from toolgate.server.config.load import Config
from toolgate.server.features.mounts.commands.first_lists import FirstLists
from toolgate.server.features.mounts.commands.stored_pins import forget_pins
from toolgate.server.features.mounts.config.access import find_exposed
from toolgate.server.features.mounts.config.editing import MountsFile, open_mounts_file
from toolgate.server.features.mounts.config.faults import MountFault
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.config.table import read_mount
from toolgate.server.features.mounts.install.installation import StagedProgram, remove_program, stage_program
from toolgate.server.features.mounts.install.installer import InstallError
from toolgate.server.features.mounts.install.package_command import read_package_command

ITEM = re.compile(r"\s*([^=:\s]+)\s*[=:](.*)", re.DOTALL)
LATER = ("CONFIG_VARIABLE_NOT_SET",)  # faults that the server's own environment may not have


def add_mount(
    config: Config,
    *,
    name: str,
    commands: Sequence[str],
    url: str | None = None,
    header: Sequence[str] = (),
    env: Sequence[str] = (),
    per: str | None = None,
    scope: str | None = None,
    tools: Sequence[str] = (),
    network: Sequence[str] = (),
    files: Sequence[str] = (),
    replace: bool = False,
    no_install: bool = False,
    no_test: bool = False,
) -> int:
    """Add a mount to the config file. The package of an `npx` or `uvx` command is installed before, and what the server
    lists is shown to be approved."""
    if bool(commands) == bool(url):
        raise UsageError("mount add: give either the command of the server, behind --, or its --url")
    rows = _make_rows(
        command=commands[0] if commands else None,
        args=list(commands[1:]),
        url=url,
        headers=_parse_items("--header", header),
        env=_parse_items("--env", env, separator="="),
        per=per,
        scope=scope,
        tools=[pattern.strip() for word in tools for pattern in word.split(",") if pattern.strip()],
        network=[*network],
        files=[*files],
    )
    notes = check_rows("mount add", name, rows, config.environment)
    found = read_mount(name, rows, "mount add", config.environment)
    _check_files(config, found)
    first = FirstLists(config, found) if isinstance(found, MountConfig) and not no_test else None
    staged: list[StagedProgram] = []

    def add(file: MountsFile) -> str:
        if name in file.mounts and not replace:
            raise UsageError(f"mount add: {file.file} already has a mount {name}: --replace replaces it")
        if not no_install:
            staged.extend(filter(None, [install_for(config, name, commands)]))
        file.set_mount(name, rows)
        if first is not None:
            first.begin()
        return f"Added {name} to {file.file}"

    code = 1
    try:
        code = edit_file(config, "mount add", add, notes, after=lambda: _take_place(config, name, staged))
    finally:
        for program in staged if code else ():
            program.give_up()
        if code and first is not None:
            first.give_up()
    if first is not None and not code:
        first.show()
    return code


def _check_files(config: Config, found: MountConfig | list[MountFault]) -> None:
    """Raise UsageError for files of the server's own that the mount would see."""
    if isinstance(found, MountConfig) and (fault := find_exposed(config, found)) is not None:
        raise UsageError(f"mount add: --files: {fault}")


def _make_rows(**values: Any) -> dict[str, Any]:
    """Return the rows of a table: what was given."""
    return {key: value for key, value in values.items() if value}


def _take_place(config: Config, name: str, staged: Sequence[StagedProgram]) -> None:
    """Put what was installed in the place of what the mount had before."""
    if not staged:
        remove_program(config.state, name)
    for program in staged:
        program.take_place()


def install_for(config: Config, name: str, words: Sequence[str]) -> StagedProgram | None:
    """Install the package that the words of a command name, if they name one. Raises InstallError."""
    package = read_package_command(words[0], words[1:]) if words else None
    if package is not None and shutil.which(words[0], path=config.environment.get("PATH")):
        print(f"Installing {' '.join(package.packages)} for {name}", file=sys.stderr)
        return stage_program(config.state, name, package, config.own_environment)
    return None


def remove_mount(config: Config, *, name: str) -> int:
    """Remove a mount from the config file."""

    def remove(file: MountsFile) -> str:
        if name not in file.mounts:
            near = suggest(name, file.mounts)
            listed = ", ".join(file.mounts)
            known = near or (f"; mounts are {listed}" if listed else "")
            raise UsageError(f"mount remove: {file.file} has no mount {name!r}{known}")
        file.remove_mount(name)
        return f"Removed {escape_unprintable(name)} from {file.file}"

    def clean() -> None:
        remove_program(config.state, name)
        forget_pins(config, name)

    return edit_file(config, "mount remove", remove, after=clean)


def edit_file(
    config: Config,
    command: str,
    work: Callable[[MountsFile], str],
    notes: Iterable[str] = (),
    *,
    is_dry: bool = False,
    after: Callable[[], None] = lambda: None,
) -> int:
    """Have the config file changed, print what `work` says and the notes, and return the exit code. A dry run writes
    nothing. `after` is called once the file is written."""
    try:
        file = open_mounts_file(config.config_path)
        done = work(file)
        if not is_dry:
            file.save()
            after()
    except (ConfigFileError, InstallError) as error:
        print(f"toolgate: {command}: {escape_unprintable(str(error))}", file=sys.stderr)
        return 1
    print(done)
    for note in notes:
        print(f"note: {note}")
    return 0


def check_rows(place: str, name: str, rows: Mapping[str, Any], environment: Mapping[str, str]) -> list[str]:
    """Return what is to be known of a valid mount. Raises UsageError for one that is not valid."""
    found = read_mount(name, rows, place, environment)
    if isinstance(found, MountConfig):
        return list(filter(None, [_describe_missing_program(found, environment)]))
    faults = [fault.text for fault in found if fault.code not in LATER]
    if faults:
        raise UsageError("\n".join(faults))
    return [fault.text.removeprefix(f"{place}: ") for fault in found]


def _describe_missing_program(mount: MountConfig, environment: Mapping[str, str]) -> str:
    """Return that the program of a command is not there, or ""."""
    if not mount.command or shutil.which(mount.command, path=environment.get("PATH")):
        return ""
    return f"there is no program {mount.command} here: install it, or give its path"


def _parse_items(flag: str, words: Sequence[str], separator: str = "=:") -> dict[str, str]:
    """Return the values of NAME=VALUE by name. No error repeats a value."""
    items: dict[str, str] = {}
    for word in words:
        found = ITEM.fullmatch(word)
        if found is None or word[found.end(1) :].lstrip()[:1] not in separator:
            raise UsageError(f"mount add: {flag} must be NAME=VALUE")
        if found[1] in items:
            raise UsageError(f"mount add: {flag} {found[1]} is given twice")
        items[found[1]] = found[2].lstrip() if ":" in separator else found[2]
    return items
