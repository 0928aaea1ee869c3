"""Guess from the words of a mounted command which line of its table would let it use a file.

A command can print anything, so a line is offered for a path that is there and that a mount may be given: never for the
server's own or the system's. What the permissions refuse (EACCES) no line allows.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from toolgate.server.config.load import Config
from toolgate.server.features.mounts.config.access import WRITABLE, find_exposed
from toolgate.server.features.mounts.config.mount_config import MountConfig, MountPath

MISSING = re.compile(r"ENOENT|No such file or directory", re.IGNORECASE)
READ_ONLY = re.compile(r"EROFS|Read-only file system", re.IGNORECASE)
PATH = re.compile(r"(?<![\w./@+-])/[\w./@+-]{1,200}(?![\w./@+-])", re.ASCII)
VISIBLE = tuple(
    Path("/", name)
    for name in [
        "bin",
        "boot",
        "dev",
        "etc",
        "lib",
        "lib64",
        "opt",
        "proc",
        "run",
        "sbin",
        "sys",
        "tmp",
        "usr",
        "var/tmp",
    ]
)
MAX_LINES = 200  # the last ones
MAX_PATHS = 20  # that are looked at
MAX_HINTS = 3


def list_file_hints(config: Config, mount: MountConfig, said: str) -> list[str]:
    """Return the lines that the words of a command ask for. Those of a node's command are about another machine."""
    if not mount.command or config.node:
        return []
    wanted = dict.fromkeys(_find_wanted(said.splitlines()[-MAX_LINES:]))
    fitting = (each for each in list(wanted)[-MAX_PATHS:] if _may_add(config, mount, each))
    lines = [
        f'add "{each.path}{WRITABLE if each.is_writable else ""}" to files of [mounts.{mount.name}]' for each in fitting
    ]
    return lines[:MAX_HINTS]


def _find_wanted(lines: list[str]) -> Iterator[MountPath]:
    for line in lines:
        is_read_only = READ_ONLY.search(line) is not None
        if is_read_only or MISSING.search(line):
            for word in PATH.findall(line):
                yield MountPath(Path(word.rstrip(".")), is_read_only)


def _may_add(config: Config, mount: MountConfig, wanted: MountPath) -> bool:
    path = wanted.path
    if ".." in path.parts or any(path.is_relative_to(each) for each in VISIBLE):
        return False
    if any(path.is_relative_to(each.path) and each.is_writable >= wanted.is_writable for each in mount.files):
        return False
    try:
        is_there = path.exists()
    except OSError:
        return False
    return is_there and find_exposed(config, replace(mount, files=(wanted,))) is None
