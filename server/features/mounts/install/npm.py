"""Install packages of npm, and find a program of theirs."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolgate.server.features.mounts.install.installer import InstallError, run_installer
from toolgate.server.features.mounts.install.package_command import PackageCommand

FLAGS = ("--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")


def install(command: PackageCommand, folder: Path, environment: Mapping[str, str]) -> list[str]:
    """Install into the folder, and return the words that start the program. Raises InstallError."""
    (folder / "package.json").write_text("{}")  # else npm takes that of a folder above
    run_installer(["npm", "install", "--prefix", str(folder), *FLAGS, "--", *command.packages], folder, environment)
    script = _find_script(command, folder)
    if not _runs_in_node(script):
        return [str(script)]
    node = shutil.which("node", path=environment.get("PATH"))
    if node is None:
        raise InstallError("node is not installed")
    return [str(Path(node).absolute()), str(script)]


def _find_script(command: PackageCommand, folder: Path) -> Path:
    installed = _read(folder / "package.json").get("dependencies")
    if not isinstance(installed, dict) or not installed:
        raise InstallError("npm has installed nothing")
    found: dict[str, Path] = {}
    for name in installed:
        package = folder / "node_modules" / name
        found |= {program: package / file for program, file in _list_programs(name, package).items()}
    if command.program:
        chosen = found.get(command.program)
    else:
        own = next(iter(installed)).rpartition("/")[2]
        chosen = found.get(own) or (next(iter(found.values())) if len(set(found.values())) == 1 else None)
    if chosen is None or not chosen.resolve().is_relative_to(folder.resolve()):
        listed = ", ".join(found) or "none"
        raise InstallError(f"{command.packages[0]} does not say which program to run (it has {listed}): use npx -p")
    return chosen.resolve()


def _list_programs(name: str, package: Path) -> dict[str, str]:
    """Return the files of a package's programs by their names."""
    programs = _read(package / "package.json").get("bin")
    if isinstance(programs, str):
        return {name.rpartition("/")[2]: programs}
    if not isinstance(programs, dict):
        return {}
    return {str(program): file for program, file in programs.items() if isinstance(file, str)}


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise InstallError(f"{file.name} of what npm installed can't be read: {error}") from None
    return found if isinstance(found, dict) else {}


def _runs_in_node(script: Path) -> bool:
    try:
        with script.open("rb") as opened:
            first = opened.readline(200)
    except OSError as error:
        raise InstallError(f"the program can't be read: {error}") from None
    if not first.startswith(b"#!"):
        return script.suffix in (".js", ".mjs", ".cjs")
    words = first[2:].decode(errors="replace").split()
    names = [word.rpartition("/")[2] for word in words]
    return names in (["node"], ["env", "node"])  # with flags, or another program, it is started as it says
