"""Try one mount (`toolgate mount test`): start or reach it, list what it has, and end it."""

import asyncio

from toolgate.server.base.errors import UsageError
from toolgate.server.base.text import escape_unprintable, suggest
from toolgate.server.cli.terminal.output import print_json_line
from toolgate.server.config.load import Config
from toolgate.server.features.mounts.commands.edit import install_for
from toolgate.server.features.mounts.commands.trial import MountTrial, describe_trial, try_mounts
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.config.table import read_own_mounts
from toolgate.server.features.mounts.install.installation import find_installed
from toolgate.server.features.mounts.install.installer import InstallError
from toolgate.server.features.mounts.install.package_command import read_package_command

MAX_SHOWN = 100  # tools that are named
MAX_TITLE = 80  # characters of a title


def test_mount(config: Config, *, name: str, json: bool = False) -> int:
    """Print what the mount has, or why it fails: exit code 1."""
    found = read_own_mounts(config)
    mount = next((each for each in found.mounts if each.name == name), None)
    faults = [fault for fault in found.faults if fault.name == name]
    if mount is None and not faults:
        known = [each.name for each in found.mounts] + [fault.name for fault in found.faults]
        raise UsageError(f"mount test: {config.config_path} has no mount {name!r}{suggest(name, known)}")
    trial = (
        _try(config, mount) if mount is not None else MountTrial(name, 0.0, code=faults[0].code, error=faults[0].text)
    )
    if json:
        tools = [tool.get("name") for tool in trial.lists.tools]
        print_json_line({"name": name, "code": trial.code, "error": trial.error, "tools": tools})
    elif trial.code:
        print(f"{name}: {trial.code}: {escape_unprintable(trial.error)}")
    else:
        _print_trial(trial)
    return 1 if trial.code else 0


def _try(config: Config, mount: MountConfig) -> MountTrial:
    """Return how a mount does, whose package is installed first where it was not."""
    try:
        _install_missing(config, mount)
    except InstallError as error:
        return MountTrial(mount.name, 0.0, code="NOT_STARTED", error=str(error))
    (trial,) = asyncio.run(try_mounts(config, [mount]))
    return trial


def _install_missing(config: Config, mount: MountConfig) -> None:
    """Install the package of a command that was written by hand. Raises InstallError."""
    package = read_package_command(mount.command, mount.args)
    if package is not None and find_installed(config.state, mount.name, package) is None:
        staged = install_for(config, mount.name, [mount.command, *mount.args])
        if staged is not None:
            staged.take_place()


def _print_trial(trial: MountTrial) -> None:
    print(f"{trial.name}: {describe_trial(trial)}")
    for tool in trial.lists.tools[:MAX_SHOWN]:
        title = str(tool.get("title") or tool.get("description") or "").splitlines()
        shown = escape_unprintable(title[0][:MAX_TITLE]) if title else ""
        print(f"  {escape_unprintable(str(tool.get('name')))}  {shown}".rstrip())
    left = len(trial.lists.tools) - MAX_SHOWN
    if left > 0:
        print(f"  and {left} more")
