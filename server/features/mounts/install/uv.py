"""Install packages of Python with uv, and find a program of theirs."""

from collections.abc import Mapping
from pathlib import Path

from toolgate.server.features.mounts.install.installer import InstallError, run_installer
from toolgate.server.features.mounts.install.package_command import PackageCommand


def install(command: PackageCommand, folder: Path, environment: Mapping[str, str]) -> list[str]:
    """Install into the folder, and return the words that start the program. Raises InstallError."""
    first, *others = command.packages
    words = ["uv", "tool", "install", "--quiet", *(f"--with={each}" for each in others)]
    words += [f"--python={command.python}"] if command.python else []
    own = {"UV_TOOL_DIR": str(folder / "tools"), "UV_TOOL_BIN_DIR": str(folder / "bin")}
    run_installer([*words, "--", first], folder, {**environment, **own})
    program = folder / "bin" / command.program
    if not program.exists():
        listed = ", ".join(sorted(each.name for each in (folder / "bin").glob("*"))) or "none"
        raise InstallError(f"{first} has no program {command.program} (it has {listed}): use uvx --from")
    return [str(program)]


def list_interpreters(folder: Path) -> list[str]:
    """Return the folders of the interpreters that what is installed runs with, outside of its own."""
    found: set[str] = set()
    for settings in (folder / "tools").glob("*/pyvenv.cfg"):
        for line in settings.read_text(errors="replace").splitlines():
            key, _, value = line.partition("=")
            if key.strip() == "home":
                found.add(str(Path(value.strip()).resolve().parent))
    return sorted(found - {"/usr", "/usr/local"})
