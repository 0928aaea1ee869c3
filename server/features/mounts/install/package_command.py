"""Read what a command of `npx` or `uvx` runs."""

import re
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

PackageTool = Literal["npx", "uvx"]

NPX_SWITCHES = ("-y", "--yes", "-q", "--quiet", "--silent", "--prefer-offline")
NPX_VALUES: Mapping[str, str] = {"-p": "package", "--package": "package"}
UVX_SWITCHES = ("-q", "--quiet", "--isolated")
UVX_VALUES: Mapping[str, str] = {"--from": "package", "--with": "with", "-p": "python", "--python": "python"}
REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(\[[^\]]*\])?(?:@(.+)|([<>=!~].*))?")


class PackageCommand(msgspec.Struct, frozen=True):
    """What a command runs: `program` of the first of the `packages`, "" for its only one, with `arguments`. `python`
    is the interpreter that it asks for, or ""."""

    tool: PackageTool
    packages: tuple[str, ...]
    program: str
    python: str
    arguments: tuple[str, ...]

    @property
    def key(self) -> tuple[str, ...]:
        """What must be the same for the same installation."""
        return (self.tool, *self.packages, self.program, self.python)


def read_package_command(command: str, args: Sequence[str]) -> PackageCommand | None:
    """Return what the words run, or None if that can't be told, or they run no package."""
    name = command.rpartition("/")[2]
    if name == "npx":
        return _read_npx(args)
    if name == "uvx":
        return _read_uvx(args)
    return _read_uvx(args[2:]) if name == "uv" and tuple(args[:2]) == ("tool", "run") else None


def _read_npx(args: Sequence[str]) -> PackageCommand | None:
    read = _read_options(args, NPX_SWITCHES, NPX_VALUES)
    if read is None:
        return None
    given, (word, *rest) = read
    packages = given.get("package", [])
    if any(each.startswith((".", "~")) for each in packages or [word]):
        return None  # a path from where the command is typed
    if not packages:
        return PackageCommand("npx", (word,), "", "", tuple(rest))
    return PackageCommand("npx", tuple(packages), word, "", tuple(rest))


def _read_uvx(args: Sequence[str]) -> PackageCommand | None:
    read = _read_options(args, UVX_SWITCHES, UVX_VALUES)
    if read is None:
        return None
    given, (word, *rest) = read
    found = REQUIREMENT.fullmatch(word)
    if found is None:
        return None
    name, extras, version, comparison = found.groups(default="")
    if version and version != "latest":
        comparison = f"=={version}"
    sources = given.get("package", [])
    if len(sources) > 1 or (sources and comparison):
        return None
    first = sources[0] if sources else f"{name}{extras}{comparison}"
    python = given.get("python", [""])[-1]
    return PackageCommand("uvx", (first, *given.get("with", [])), name, python, tuple(rest))


def _read_options(
    args: Sequence[str], switches: Sequence[str], values: Mapping[str, str]
) -> tuple[dict[str, list[str]], list[str]] | None:
    """Return the options before the first other word, and that word with all behind it. None: one is not known."""
    given: dict[str, list[str]] = {}
    words = list(args)
    while words and words[0].startswith("-"):
        option = words.pop(0)
        name, mark, value = option.partition("=")
        if option == "--":
            break
        if name in values and (mark or words):
            given.setdefault(values[name], []).append(value if mark else words.pop(0))
        elif option not in switches:
            return None
    return (given, words) if words else None
