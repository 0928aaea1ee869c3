"""Run a package manager."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

WITHIN = 900.0  # seconds for an installation
MAX_SAID = 1_000  # characters of its last words


class InstallError(Exception):
    """A program could not be installed; the text says why."""


def run_installer(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
    """Run the program with the environment of the operator, whose settings say where packages come from. Raises
    InstallError."""
    program = shutil.which(words[0], path=environment.get("PATH"))
    if program is None:
        raise InstallError(f"{words[0]} is not installed")
    try:
        ran = subprocess.run(
            [program, *words[1:]],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=WITHIN,
            umask=0o022,  # sandboxes of other users show it
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(f"{words[0]} can't install it: {error}") from None
    if ran.returncode != 0:
        said = (ran.stderr or ran.stdout).decode(errors="replace").strip()[-MAX_SAID:]
        raise InstallError(f"{words[0]} can't install it: {said or f'exit code {ran.returncode}'}")
