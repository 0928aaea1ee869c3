"""Find how this program was installed, and name the command that adds an extra to it there.

Each installer has its own: a package that pip adds to an environment of pipx or uv is lost at its next upgrade.
"""

import re
import shlex
import sys
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from toolgate.tools.api.text.json_text import JsonError, decode_json

DISTRIBUTION = "toolgate-mcp"  # its name at a package index, where `toolgate` is another project's
FORMER_DISTRIBUTION = "toolgate"  # its name until 0.1.0
COMMANDS = ("toolgate", "toolgate-mcp")  # the second is what `uvx toolgate-mcp` runs
UV_CACHE = ("archive-v", "environments-v")  # folders of its cache, with the version of their format
PIPX_CACHE = ("pipx", ".cache")  # ~/.cache/pipx, or .cache in the folder that PIPX_HOME names; in it, folders of hashes


class Installer(StrEnum):
    """What installed the program."""

    UVX = "uvx"
    UV_TOOL = "uv tool"
    UV_VENV = "uv"
    PIPX_RUN = "pipx run"
    PIPX = "pipx"
    MAKE = "make"  # in a clone
    DOCKER = "docker"
    PIP = "pip"


ADDITIONS = {  # the command that adds an extra; its words are quoted
    Installer.UVX: "uvx --from {source} toolgate",
    Installer.UV_TOOL: "uv tool install {source}",
    Installer.UV_VENV: "uv pip install --python {python} {packages}",
    Installer.PIPX_RUN: "pipx run --spec {source} toolgate",
    Installer.PIPX: "pipx inject {environment} {packages}",
    Installer.MAKE: "make -C {origin} setup",
    Installer.DOCKER: "docker build --build-arg CHROMIUM=1 -f deploy/Dockerfile -t toolgate .",
    Installer.PIP: "{python} -m pip install {packages}",
}
REPLACEMENTS = {  # the commands that leave this distribution alone where its former one is beside it
    Installer.PIPX: "pipx uninstall {environment}, then pipx install {source}",
    Installer.UV_TOOL: "uv tool uninstall {environment}, then uv tool install {source}",
    Installer.UV_VENV: "uv pip uninstall --python {python} toolgate, then "
    "uv pip install --python {python} --reinstall --no-deps {target}",
    Installer.PIP: "{python} -m pip uninstall -y toolgate, then "
    "{python} -m pip install --force-reinstall --no-deps {target}",
}
MARKERS = {  # files that an installer leaves in an environment of its own
    "uv-receipt.toml": Installer.UV_TOOL,
    "pipx_metadata.json": Installer.PIPX,
    "container-image": Installer.DOCKER,  # deploy/Dockerfile
}


class Installation(msgspec.Struct, frozen=True):
    """How the program was installed: the installer, its environment, the source, and the extras that are there.

    `source` is a path or a URL as pip takes it, or "" for a package index. `requirements` has what each extra needs.
    """

    installer: Installer
    prefix: Path
    source: str = ""
    is_editable: bool = False
    extras: tuple[str, ...] = ()
    requirements: dict[str, tuple[str, ...]] = {}  # msgspec copies it

    def name_source(self, *more: str) -> str:
        """Return what an installer takes to get this program with its extras and `more`."""
        extras = ",".join(sorted({*self.extras, *more}))
        extras = f"[{extras}]" if extras else ""
        if self.source.startswith("/") or not self.source:
            return f"{self.source or DISTRIBUTION}{extras}"
        return f"{DISTRIBUTION}{extras} @ {self.source}"

    def format_addition(self, extra: str) -> str:
        """Return the command that adds an extra."""
        packages = self.requirements.get(extra) or (self.name_source(extra),)
        return self._format(ADDITIONS[self.installer], extra, packages=shlex.join(packages))

    def format_replacement(self) -> str:
        """Return the commands that remove the former distribution from the same environment."""
        editable = "-e " if self.is_editable else ""
        return self._format(
            REPLACEMENTS.get(self.installer, REPLACEMENTS[Installer.PIP]),
            target=editable + shlex.quote(self.source or DISTRIBUTION),
        )

    def _format(self, command: str, *extras: str, **more: str) -> str:
        return command.format(
            source=shlex.quote(self.name_source(*extras)),
            origin=shlex.quote(self.source),
            environment=shlex.quote(self.prefix.name),
            python=shlex.quote(str(self.prefix / "bin" / "python")),
            **more,
        )


def find_installation() -> Installation:
    """Return how the running program was installed."""
    prefix = Path(sys.prefix)
    try:
        distribution = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:  # from a folder of sources
        return Installation(_find_installer(prefix, "", False), prefix)
    origin = _read_origin(distribution)
    source, is_editable = _name_origin(origin), bool((origin.get("dir_info") or {}).get("editable"))
    requirements = _list_requirements(distribution)
    extras = tuple(name for name, needed in requirements.items() if all(map(_is_installed, needed)))
    return Installation(_find_installer(prefix, source, is_editable), prefix, source, is_editable, extras, requirements)


def name_extra(extra: str) -> str:
    """Return the command that adds an extra to the running program."""
    return find_installation().format_addition(extra)


def find_marker(prefix: Path) -> Installer | None:
    """Return the installer that has left its marker in the environment, or None."""
    return next((installer for name, installer in MARKERS.items() if (prefix / name).is_file()), None)


def _find_installer(prefix: Path, source: str, is_editable: bool) -> Installer:
    if any(part.startswith(UV_CACHE) for part in prefix.parts):
        return Installer.UVX
    if prefix.parent.name in PIPX_CACHE and re.fullmatch("[0-9a-f]{15}", prefix.name):
        return Installer.PIPX_RUN
    if (installer := find_marker(prefix)) is not None:
        return installer
    if is_editable and prefix.parent == Path(source):
        return Installer.MAKE
    return Installer.UV_VENV if _is_of_uv(prefix) else Installer.PIP


def _is_of_uv(prefix: Path) -> bool:
    """Return whether uv made the environment: it has no pip then."""
    try:
        return re.search(r"^uv = ", (prefix / "pyvenv.cfg").read_text(), re.MULTILINE) is not None
    except OSError:
        return False


def _read_origin(distribution: metadata.Distribution) -> dict[str, Any]:
    """Return where the distribution came from (PEP 610), or nothing if from an index."""
    try:
        origin = decode_json(distribution.read_text("direct_url.json") or "{}")
    except JsonError:
        return {}
    return origin if isinstance(origin, dict) else {}


def _name_origin(origin: dict[str, Any]) -> str:
    """Return the path or the URL of the origin, as pip takes it."""
    url = _drop_password(str(origin.get("url", "")))
    parts = urlsplit(url)
    if parts.scheme == "file":
        return unquote(parts.path)
    control = origin.get("vcs_info") or {}
    if control.get("vcs"):
        revision = control.get("requested_revision")
        url = f"{control['vcs']}+{url}{f'@{revision}' if revision else ''}"
    return url


def _drop_password(url: str) -> str:
    """Return the URL without what signs in there: PEP 610 asks installers to leave it out, and this is shown."""
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    is_secret = ":" in user or parts.scheme in ("http", "https")
    return parts._replace(netloc=host).geturl() if user and is_secret else url


def _list_requirements(distribution: metadata.Distribution) -> dict[str, tuple[str, ...]]:
    """Return what each extra needs, as pip takes it."""
    found: dict[str, list[str]] = {}
    for line in distribution.requires or ():
        requirement, _, condition = line.partition(";")
        if extra := re.search(r"""extra == ["']([\w-]+)["']""", condition):
            found.setdefault(extra[1], []).append(requirement.strip())
    return {name: tuple(needed) for name, needed in found.items()}


def _is_installed(requirement: str) -> bool:
    name = re.match(r"[\w.-]+", requirement)
    try:
        metadata.distribution(name[0] if name else "")
    except (metadata.PackageNotFoundError, ValueError):
        return False
    return True
