"""Install the program of a mount, know what is installed, and remove it."""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from toolgate.server.features.mounts.config.table import NAME
from toolgate.server.features.mounts.install import npm, uv
from toolgate.server.features.mounts.install.installer import InstallError
from toolgate.server.features.mounts.install.package_command import PackageCommand, read_package_command
from toolgate.tools.api.regular_file import read_regular
from toolgate.tools.api.text.json_text import JsonError, decode_json

FOLDER = "mounts"  # in the state folder
RECORD = "installed.json"
MAX_RECORD = 2**20  # bytes


class InstalledProgram(msgspec.Struct, frozen=True):
    """What was installed for a mount: `argv` starts it, and `shown` are the folders that it needs to see."""

    key: tuple[str, ...]
    argv: tuple[str, ...]
    shown: tuple[str, ...] = ()


def place_of(state: Path, name: str) -> Path:
    """Return the folder of what is installed for a mount. Raises ValueError for a name that no mount can have."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a mount")
    return state / FOLDER / name


class StagedProgram(msgspec.Struct, frozen=True):
    """A program that was installed beside what a mount has. It takes its place, or is given up."""

    place: Path
    folder: Path
    installed: InstalledProgram

    def take_place(self) -> None:
        """Have it started from now on, and remove what was installed before. Raises InstallError."""
        part = self.place / f"{RECORD}.part"
        try:
            part.write_bytes(msgspec.json.encode(self.installed))
            part.replace(self.place / RECORD)
        except OSError as error:
            self.give_up()
            raise InstallError(str(error)) from None
        for other in self.place.iterdir():
            if other.is_dir() and other != self.folder:
                shutil.rmtree(other, ignore_errors=True)

    def give_up(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def stage_program(state: Path, name: str, command: PackageCommand, environment: Mapping[str, str]) -> StagedProgram:
    """Install the program with this environment. Blocks for as long as packages need to come. Raises InstallError."""
    place = place_of(state, name)
    digest = hashlib.sha256("\0".join(command.key).encode()).hexdigest()[:12]
    folder = place / f"{digest}-{os.urandom(4).hex()}"
    try:
        _make_folders(state, place)
        folder.mkdir(mode=0o755)
        folder.chmod(0o755)
        argv = (npm if command.tool == "npx" else uv).install(command, folder, environment)
        shown = () if command.tool == "npx" else tuple(uv.list_interpreters(folder))
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise InstallError(str(error)) from None
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return StagedProgram(place, folder, InstalledProgram(command.key, tuple(argv), (str(folder), *shown)))


def find_installed(state: Path, name: str, command: PackageCommand) -> InstalledProgram | None:
    """Return what is installed for a mount if it is what this command names."""
    with contextlib.suppress(OSError, JsonError):
        found = decode_json(read_regular(place_of(state, name) / RECORD, MAX_RECORD), InstalledProgram)
        if found.key == command.key and Path(found.argv[-1]).exists():
            return found
    return None


def find_argv(state: Path, name: str, words: Sequence[str]) -> tuple[list[str], list[Path]]:
    """Return the words that start the command of a mount, and the folders that they need: those of what is installed,
    or the command's own."""
    command = read_package_command(words[0], words[1:])
    installed = find_installed(state, name, command) if command is not None else None
    if command is None or installed is None:
        return list(words), []
    return [*installed.argv, *command.arguments], [Path(folder) for folder in installed.shown]


def remove_program(state: Path, name: str) -> None:
    """Remove what is installed for a mount; one with a name that none can have has nothing. Blocks."""
    if NAME.fullmatch(name):
        shutil.rmtree(place_of(state, name), ignore_errors=True)


def _make_folders(state: Path, place: Path) -> None:
    """Make the folders so that users of the sandboxes can pass through them, and list nothing."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    for folder, mode in ((place.parent, 0o711), (place, 0o755)):
        folder.mkdir(exist_ok=True)
        folder.chmod(mode)
