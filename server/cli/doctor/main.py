"""`toolgate doctor`: check whether this machine can serve or, with a URL, whether a hosted client can reach it.

Checks change nothing: what a trial makes, it removes.
"""

import asyncio
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, PIPE

from toolgate.server import VERSION, progress
from toolgate.server.cli.doctor.local import browser, machine, metadata_documents, plugins, serving, state
from toolgate.server.cli.doctor.report import CheckFailedError, CheckFinding, CheckRow, CheckSkippedError, run_checks
from toolgate.server.config.load import Config
from toolgate.server.protocol.errors import UsageError

RUN_WITHIN = 10.0  # seconds; it takes milliseconds
OLDEST = 1_767_225_600.0  # 2026-01-01: a clock that says less was never set, and no certificate or token is good then
DRIFT = 300.0  # seconds the files of the state may be newer than the clock

MachineCheck = Callable[[Config], Awaitable[CheckFinding]]


async def check(config: Config, *, url: str | None, json: bool) -> int:
    """Check this machine, or `url` as a hosted client meets it; 0 when nothing fails."""
    rows: list[CheckRow]
    if url is None:
        rows = [(name, partial(look, config), ()) for name, look in MACHINE_CHECKS.items()]
    else:
        from toolgate.server.cli.doctor.remote import remote_checks  # start-up

        rows = remote_checks(url, config)
    about = {"toolgate": VERSION, "url": url} if json else None
    return await run_checks(rows, progress.terminal_progress(config.environment), about)


async def _python(_config: Config) -> str:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.platform not in ("linux", "darwin"):
        raise CheckFailedError(f"{sys.platform} is not supported", "use Linux, macOS, or WSL on Windows")
    return f"{version} on {sys.platform}"


async def _options(config: Config) -> str:
    """Find what a start with these options would refuse."""
    if not config.is_remote:
        return "for stdio; add -t or -s and your other options to check those"
    from toolgate.server import http_app  # start-up

    try:
        http_app.check_http(config)
    except UsageError as error:
        raise CheckFailedError(str(error), "change the option that is named") from None
    return "a server can start with them"


async def _state(config: Config) -> str:
    return await asyncio.to_thread(_check_folder, config.state)


def _check_folder(folder: Path) -> str:
    if not folder.exists():
        above = next(parent for parent in folder.parents if parent.exists())
        if not os.access(above, os.W_OK | os.X_OK):
            raise CheckFailedError(f"{folder} does not exist, and {above} is not writable", "name another with --state")
        return f"{folder} will be made at the start"
    found = folder.stat()
    if not stat.S_ISDIR(found.st_mode) or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise CheckFailedError(f"{folder} is not a writable folder", "name another with --state")
    if found.st_uid != os.geteuid():
        raise CheckFailedError(
            f"{folder} belongs to another user",
            f"chown it, or name another with --state (its owner is uid {found.st_uid})",
        )
    for path in (folder, folder / "keys", folder / "state.db", *(folder / "keys").glob("*")):
        private = 0o066 if path == folder else 0o077  # at level uid, the users of commands pass through it
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & private:
            remedy = f"chmod go-rw {path}" if path == folder else f"chmod go= {path}"
            raise CheckFailedError(f"{path} can be read by others", remedy)
    return f"{folder}, private"


async def _database(config: Config) -> str:
    from toolgate.server.state.store import VERSION, StateError, Store, check_database

    store = Store(config.state)
    if store.is_empty():
        raise CheckSkippedError("none yet")
    try:
        version = await asyncio.to_thread(check_database, store.path)
    except StateError as error:
        raise CheckFailedError(
            str(error), "restore state.db and keys/ from a backup, or name another folder with --state"
        ) from None
    if version > VERSION:
        raise CheckFailedError(
            f"version {version} is from a newer Toolgate; this one knows {VERSION}", "use the newer Toolgate"
        )
    if version < 1:
        raise CheckFailedError("it was not made by Toolgate", "move it away, or name another folder with --state")
    if version < VERSION:
        return f"whole; version {version}, will be upgraded at the next start: make a backup first"
    return f"whole; version {version}"


async def _clock(config: Config) -> str:
    now = time.time()
    told = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < OLDEST:
        raise CheckFailedError(f"it says {told}", "set the clock: tokens and certificates go by it")
    if await asyncio.to_thread(_modified_at, config.state / "state.db") > now + DRIFT:
        raise CheckFailedError(f"it says {told}, and the state database is newer", "set the clock: tokens go by it")
    return told


def _modified_at(file: Path) -> float:
    return file.stat().st_mtime if file.exists() else 0.0


async def _commands(config: Config) -> str:
    shell = shutil.which("bash", path=config.environment.get("PATH"))
    if shell is None:
        raise CheckFailedError("there is no bash in PATH", "install bash: Bash and BackgroundBash need it")
    said = await asyncio.to_thread(_run_echo, shell, config.command_environment)
    if said != b"ready\n":
        raise CheckFailedError(
            f"{shell} can't run a command", "put a working bash first in PATH: Bash and BackgroundBash need it"
        )
    return shell


def _run_echo(shell: str, environment: Mapping[str, str]) -> bytes:
    """Return the output of a command; nothing where it can't be run."""
    try:
        command = [shell, "-c", "echo ready"]
        return subprocess.run(
            command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, env=environment, timeout=RUN_WITHIN, check=False
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return b""


MACHINE_CHECKS: dict[str, MachineCheck] = {
    "python": _python,
    "options": _options,
    "sandbox": serving.sandbox,
    "limits": serving.limits,
    "proxies": serving.proxies,
    "client documents": metadata_documents.documents,
    "state folder": _state,
    "state database": _database,
    "signing key": state.signing_key,
    "audit": state.audit,
    "clock": _clock,
    "disk space": machine.disk,
    "memory": machine.memory,
    "open files": machine.open_files,
    "shell": _commands,
    "browser": browser.browser,
    "plugins": plugins.plugins,
    "skills": plugins.skills,
    "rules": plugins.rules,
    "port": serving.port,
}
