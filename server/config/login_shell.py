"""Find the login shell of a person whose desktop program started the server, which then has the system's PATH alone."""

import os
import pwd
import sys
from collections.abc import Mapping

SHELLS = ("bash", "zsh", "fish", "ksh", "mksh", "dash", "sh")  # that take -l, -i and -c
SYSTEM_FOLDERS = frozenset(
    (
        *("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/games"),
        *("/usr/local/games", "/snap/bin", "/var/lib/snapd/snap/bin", "/var/lib/flatpak/exports/bin"),
        *("/run/wrappers/bin", "/run/current-system/sw/bin", "/nix/var/nix/profiles/default/bin"),
    )
)
OWN_FOLDERS = ("bin", ".local/bin")  # in the home folder, which a desktop session may add


def find_login_shell(environment: Mapping[str, str]) -> str | None:
    """Return the path of the person's login shell, or None: PATH is more than the system's, or the home folder is not
    that of the server's user."""
    home = environment.get("HOME", "")
    if not _has_plain_path(environment.get("PATH", ""), home):
        return None
    try:
        is_own = home.startswith("/") and os.stat(home).st_uid == os.geteuid()
        shell = environment.get("SHELL") or pwd.getpwuid(os.geteuid()).pw_shell
    except (OSError, KeyError):  # a container may have no users
        return None
    return shell if is_own and os.path.basename(shell) in SHELLS and os.access(shell, os.X_OK) else None


def _has_plain_path(path: str, home: str) -> bool:
    own = {os.path.join(home, folder) for folder in OWN_FOLDERS}
    program = os.path.join(sys.prefix, "bin")  # `uvx` adds it
    return all(folder.rstrip("/") in SYSTEM_FOLDERS | own | {program, ""} for folder in path.split(":"))
