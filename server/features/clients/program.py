"""Find the words with which a client starts this program, also if it runs from the cache of uvx or `pipx run`."""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolgate.tools.api.installation import Installation


def find_program(environment: Mapping[str, str] | None = None) -> list[str]:
    """Return the command line of the running program, with an absolute path.

    uvx and `pipx run` install into a cache that they empty, so a client has to start the program through them.
    `environment` has PATH, and UV if uv is its parent.
    """
    from toolgate.tools.api.installation import (  # start-up: pages import this file
        COMMANDS,
        Installer,
        find_installation,
    )

    environment = environment or {}
    installation = find_installation()
    if installation.installer is Installer.UVX and (runner := _find_uv(environment)):
        return [*runner, *_name_source(installation, "--from")]
    pipx = shutil.which("pipx", path=environment.get("PATH")) if installation.installer is Installer.PIPX_RUN else None
    if pipx:
        return [pipx, "run", *_name_source(installation, "--spec")]
    beside = Path(sys.executable).with_name(COMMANDS[0])
    found = str(beside) if beside.exists() else shutil.which(COMMANDS[0])
    return [found or str(Path(sys.argv[0]).absolute())]


def _find_uv(environment: Mapping[str, str]) -> list[str]:
    """Return the words that run a tool: uvx, or uv, which uv's children find in UV."""
    if found := shutil.which("uvx", path=environment.get("PATH")):
        return [found]
    uv = environment.get("UV") or shutil.which("uv", path=environment.get("PATH"))
    return [uv, "tool", "run"] if uv else []


def _name_source(installation: "Installation", flag: str) -> list[str]:
    """Return the flag with the source and its extras, and the command. From an index without extras, the distribution's
    name is the command."""
    from toolgate.tools.api.installation import COMMANDS, DISTRIBUTION  # start-up, as above

    if installation.source or installation.extras:
        return [flag, installation.name_source(), COMMANDS[0]]
    return [DISTRIBUTION]
