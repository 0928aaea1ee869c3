"""`toolgate doctor`: whether this machine can serve, a line a finding; with a URL, whether a hosted client can come
there (chain.py). Looks, and changes nothing.
"""

import asyncio
import logging
import os
import shutil
import stat
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from toolgate.server.checks import Broken, Row, Skipped, report
from toolgate.server.config import Config
from toolgate.server.errors import UsageError

OLDEST = 1_767_225_600.0  # 2026-01-01: a clock that says less was never set, and no certificate or token is good then
DRIFT = 300.0  # seconds the files of the state may be newer than the clock
PROBE = 3.0  # seconds for a server of ours to say that it is there
LOAD = 30.0  # seconds for all plugins

Look = Callable[[Config], Awaitable[str]]


async def examine(config: Config) -> int:
    """Look at this machine: 0 when nothing fails."""
    rows: list[Row] = [(name, _bound(look, config), ()) for name, look in LOOKS.items()]
    return await report(rows)


async def walk(config: Config, url: str) -> int:
    """Go the way of a hosted client to `url`: 0 when it would arrive."""
    from toolgate.server.chain import Chain  # start-up

    return await report(Chain(url, config).rows())


def _bound(look: Look, config: Config) -> Callable[[], Awaitable[str]]:
    async def bound() -> str:
        return await look(config)

    return bound


async def _python(_config: Config) -> str:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.platform not in ("linux", "darwin"):
        raise Broken(f"{sys.platform} is not served", "use Linux, macOS, or WSL on Windows")
    return f"{version} on {sys.platform}"


async def _options(config: Config) -> str:
    """What a start with these options would refuse."""
    if not config.remote:
        return "as for stdio; add -t, -s and the others you serve with to have them checked"
    from toolgate.server import site  # start-up

    try:
        site.check(config)
    except UsageError as error:
        raise Broken(str(error), "change the option that is named") from None
    return "they can be served"


async def _sandbox(config: Config) -> str:
    from toolgate.server import confinement  # start-up

    try:
        found = await asyncio.to_thread(confinement.tried, config)
    except UsageError as error:
        raise Broken(str(error), "mend what is named, or name another --sandbox") from None
    if found is None:
        raise Skipped("stdio has none unless --sandbox asks for one: commands run as whoever starts the client")
    lacking = "".join(f"; no stronger one: {why}" for why in found.lacking)
    if found.level == "none":
        raise Broken(
            f"{found.told()}{lacking}", "whoever may use tools:shell has all this user has: install bubblewrap"
        )
    return found.told() + lacking


async def _state(config: Config) -> str:
    return await asyncio.to_thread(_folder, config.state)


def _folder(folder: Path) -> str:
    if not folder.exists():
        above = next(parent for parent in folder.parents if parent.exists())
        if not os.access(above, os.W_OK | os.X_OK):
            raise Broken(f"{folder} is not there, and {above} is not writable", "name another with --state")
        return f"{folder} will be made"
    found = folder.stat()
    if not stat.S_ISDIR(found.st_mode) or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise Broken(f"{folder} is no folder that can be written to", "name another with --state")
    if found.st_uid != os.geteuid():
        raise Broken(f"{folder} belongs to another user", f"chown it, or name another with --state: uid {found.st_uid}")
    for path in (folder, folder / "keys", folder / "state.db", *(folder / "keys").glob("*")):
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise Broken(f"{path} can be read by others", f"chmod go= {path}")
    return f"{folder}, private"


async def _database(config: Config) -> str:
    from toolgate.server.state.store import VERSION, StateError, Store, looked_at

    store = Store(config.state)
    if store.is_empty():
        raise Skipped("there is none yet")
    try:
        version = await asyncio.to_thread(looked_at, store.path)
    except StateError as error:
        raise Broken(str(error), "put back a copy of state.db and keys/, or name another folder with --state") from None
    if version > VERSION:
        raise Broken(f"version {version}, of a newer Toolgate; this one knows {VERSION}", "serve with that newer one")
    if version < 1:
        raise Broken("it was not made by Toolgate", "move it away, or name another folder with --state")
    if version < VERSION:
        return f"whole; version {version}, will be upgraded at the next start: copy state.db and keys/ before"
    return f"whole; version {version}"


async def _clock(config: Config) -> str:
    now = time.time()
    told = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < OLDEST:
        raise Broken(f"it says {told}", "set the clock: tokens and certificates go by it")
    if await asyncio.to_thread(_changed, config.state / "state.db") > now + DRIFT:
        raise Broken(f"it says {told}, and the state database is newer", "set the clock: tokens go by it")
    return told


def _changed(file: Path) -> float:
    return file.stat().st_mtime if file.exists() else 0.0


async def _commands(config: Config) -> str:
    shell = shutil.which("bash", path=config.environment.get("PATH"))
    if shell is None:
        raise Broken("there is no bash in PATH", "install it: Bash and BackgroundBash run it")
    return shell


async def _browser(config: Config) -> str:
    """Started for real: whether its own sandbox holds here is not to be seen otherwise."""
    from toolgate.tools.browser.browser import Browser  # start-up
    from toolgate.tools.browser.chromium import NotStarted
    from toolgate.tools.browser.program import program
    from toolgate.tools.guard import Allowed

    try:
        found = program(config.browser, config.environment.get("PATH"))
    except ValueError as error:
        raise Broken(str(error), "--browser names it") from None
    if found is None:
        without = "ReadDocs fetches pages without running their scripts"
        raise Skipped(f"{without}; for a browser: apt-get install chromium, pip install 'toolgate[browser]'")
    browser = Browser(found, Allowed())
    try:
        sandboxed = await browser.try_start()
    except NotStarted as failure:
        raise Broken(f"{found}: {failure}", "ReadDocs does without; --browser none says so") from None
    finally:
        await browser.close()
    return f"{found}, its sandbox {'on' if sandboxed else 'OFF: this machine does not let it make one'}"


async def _plugins(config: Config) -> str:
    if not config.plugins:
        raise Skipped("none are configured")
    from toolgate.server.modules import Modules
    from toolgate.server.plugins import Plugins
    from toolgate.tools.registry import Registry

    for folder in config.plugins:
        if not folder.is_dir():
            raise Broken(f"there is no folder {folder}", "--plugins names it")
    told = _Told()
    logger = logging.getLogger("toolgate.plugins")
    logger.addHandler(told)
    propagate, logger.propagate = logger.propagate, False
    modules = Modules()
    plugins = Plugins(config.plugins, modules.load, changed=lambda: None)
    try:
        await plugins.look(LOAD)
        parts = list(plugins.registry(Registry([])).parts)
    finally:
        plugins.close()
        modules.close()
        logger.removeHandler(told)
        logger.propagate = propagate
    if told.lines:
        raise Broken("; ".join(told.lines), "mend that file; the server goes on without it")
    return f"{len(parts)} part{'' if len(parts) == 1 else 's'}"


class _Told(logging.Handler):
    """Keeps the first line of each complaint, and what was raised."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        raised = f" ({record.exc_info[1]})" if record.exc_info and record.exc_info[1] else ""
        self.lines.append(record.getMessage().splitlines()[0] + raised)


async def _port(config: Config) -> str:
    if not config.remote:
        raise Skipped("stdio needs none")
    import socket  # start-up

    where = f"{config.host}:{config.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
    except OSError as error:
        if await _is_ours(config.host, config.port):
            return f"{where} is taken, by a Toolgate that runs"
        reason = (error.strerror or str(error)).lower()
        raise Broken(f"{where}: {reason}", "end what has it, or name another with --host and --port") from None
    return f"{where} is free"


async def _is_ours(host: str, port: int) -> bool:
    from toolgate.server.client import Fault
    from toolgate.server.http_client import exchange

    named = f"[{host}]" if ":" in host else host
    try:
        async with (
            asyncio.timeout(PROBE),
            exchange("GET", f"http://{named}:{port}/health", {}, b"") as response,
        ):
            return response.status == 200
    except (Fault, TimeoutError):
        return False


LOOKS: dict[str, Look] = {
    "python": _python,
    "options": _options,
    "sandbox": _sandbox,
    "state folder": _state,
    "state database": _database,
    "clock": _clock,
    "shell": _commands,
    "browser": _browser,
    "plugins": _plugins,
    "port": _port,
}
