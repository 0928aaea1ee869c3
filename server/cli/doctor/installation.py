"""Check how the program was installed, and whether an installation by its former name is in its way."""

import asyncio
import shutil
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

from toolgate.server.cli.doctor.report import CheckError, CheckFinding, CheckNote
from toolgate.server.config.load import Config
from toolgate.tools.api.installation import (
    COMMANDS,
    FORMER_DISTRIBUTION,
    Installation,
    Installer,
    find_installation,
    find_marker,
)

ENTRY_POINT = "toolgate.server.__main__:main"  # of the former distribution too; another project's differs
REMOVALS = {  # installer of the former distribution → the command that removes it
    Installer.PIPX: f"pipx uninstall {FORMER_DISTRIBUTION}",
    Installer.UV_TOOL: f"uv tool uninstall {FORMER_DISTRIBUTION}",
}


async def installation(config: Config) -> CheckFinding:
    """Check that one distribution owns the program's files, and one installation the command."""
    return await asyncio.to_thread(_look, config)


def _look(config: Config) -> CheckFinding:
    found = find_installation()
    for former in metadata.distributions(name=FORMER_DISTRIBUTION, path=[sysconfig.get_path("purelib")]):
        if not any(each.value == ENTRY_POINT for each in former.entry_points):
            raise CheckError(
                f"another project's {FORMER_DISTRIBUTION} is in the same environment, {found.prefix}",
                "install Toolgate into an environment of its own: both have a package and a command of that name",
            )
        return CheckNote(
            f"its former distribution {FORMER_DISTRIBUTION} is still in {found.prefix}, and owns the same files: "
            "removing it alone would break this one",
            found.format_replacement(),
        )
    command = shutil.which(COMMANDS[0], path=config.environment.get("PATH", ""))
    if command is not None and (other := _find_former(Path(command))) is not None:
        removal = REMOVALS.get(find_marker(other) or Installer.PIP, f"rm {command}")
        return CheckNote(f"{command} is an earlier installation, in {other}", f"{removal}, then install this one again")
    return _describe(found)


def _find_former(command: Path) -> Path | None:
    """Return the environment of a command if only the former distribution is in it."""
    prefix = command.resolve().parent.parent
    if prefix == Path(sys.prefix).resolve():
        return None
    packages = [path.name for path in prefix.glob("lib/python3*/site-packages/toolgate*.dist-info")]
    is_former = bool(packages) and all(name.startswith(f"{FORMER_DISTRIBUTION}-") for name in packages)
    return prefix if is_former else None


def _describe(found: Installation) -> str:
    extras = f", with {', '.join(found.extras)}" if found.extras else ""
    source = found.source or "a package index"
    where = "" if found.installer is Installer.MAKE else f", in {found.prefix}"
    return f"by {found.installer} from {source}{where}{extras}"
