"""Start, confine and end one Chromium, with Playwright's driver beside it."""

import asyncio
import contextlib
import importlib
import json
import os
import re
import shutil
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from toolgate.tools.workspace.processes import process_tree

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Playwright

    from toolgate.tools.reading.browser.proxy import Ticket

REAPER = Path(__file__).with_name("reaper.py")
BROWSER_UID = 65533  # Chromium's user when the server is root: a number that systems leave free
PATH = "/usr/local/bin:/usr/bin:/bin"  # for Debian's program, which is a shell script
MAX_SOCKET = 90  # characters of a unix socket's path; the system's limit is about 104
START = 20.0  # seconds; one takes
END = 5.0  # seconds for all to end; a kill takes a tenth of one
PAGE = os.sysconf("SC_PAGE_SIZE")

# Playwright's own that matter without a window and with many pages, then those that stop Chromium's own requests, then
# those that keep pages from bypassing the proxy.
ARGUMENTS = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-startup-window",
    "--block-new-web-contents",  # Chromium without windows does not block them by itself
    "--hide-scrollbars",
    "--mute-audio",
    "--disable-gpu",
    "--disable-software-rasterizer",
    "--disable-dev-shm-usage",  # containers have little of it
    "--disable-field-trial-config",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--disable-back-forward-cache",
    "--disable-hang-monitor",
    "--disable-prompt-on-repost",
    "--disable-breakpad",
    "--disable-crash-reporter",
    "--disable-search-engine-choice-screen",
    "--password-store=basic",
    "--use-mock-keychain",
    "--no-first-run",
    "--no-default-browser-check",
    "--no-service-autorun",
    "--disable-background-networking",
    "--disable-component-extensions-with-background-pages",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-extensions",
    "--disable-sync",
    "--disable-client-side-phishing-detection",
    "--metrics-recording-only",
    "--disable-features=MediaRouter,Translate,OptimizationHints,NetworkTimeServiceQuerying,GlobalMediaControls,"
    "DestroyProfileOnBrowserClose,HttpsUpgrades,AimEnabled,PreconnectToSearch,DialMediaRouteProvider,WebUIReloadButton,"
    "PreloadTopChromeWebUI",
    "--disable-blink-features=WebTransport,WebUSB,WebBluetooth,DirectSockets",
    "--disable-quic",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",  # as it was called once
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--dns-prefetch-disable",
    "--proxy-bypass-list=<-loopback>",  # without it loopback bypasses the proxy
)
PREFERENCES = {
    "plugins": {"always_open_pdf_externally": True},  # the PDF viewer is not exposed to pages
    "alternate_error_pages": {"enabled": False},  # no captive-portal probe in the page's name
    "net": {"network_prediction_options": 2},
    "webrtc": {"ip_handling_policy": "disable_non_proxied_udp", "multiple_routes_enabled": False},
}


class BrowserStartError(Exception):
    """Chromium could not be started. The text says why."""


class LaunchMode(msgspec.Struct, frozen=True):
    """How Chromium is confined: its own sandbox on or off, and whether it may gain privileges to make one."""

    sandbox: bool
    privileges: str  # "none" or "some": the PRIVILEGES argument of reaper.py


# Tried in this order. Without user namespaces Chromium's sandbox needs its setuid-root helper.
LAUNCH_MODES = (LaunchMode(True, "none"), LaunchMode(True, "some"), LaunchMode(False, "none"))
ABOUT_SANDBOX = re.compile(r"sandbox|namespace|zygote", re.IGNORECASE)


class Chromium:
    """One running Chromium. `is_sandboxed`: whether its own sandbox is on."""

    def __init__(
        self, driver: "Playwright", browser: "Browser", line: socket.socket, proxy_port: int, is_sandboxed: bool
    ) -> None:
        self.is_sandboxed = is_sandboxed
        self._driver = driver
        self._browser = browser
        self._line = line
        self._proxy_port = proxy_port
        self._reaper = _peer_pid(line)
        self._ending: asyncio.Task[None] | None = None
        major = browser.version.partition(".")[0]
        self._agent = (
            f"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/{major}.0.0.0 Safari/537.36"
        )

    @classmethod
    async def start(cls, program: str, proxy_port: int, mode: LaunchMode) -> "Chromium":
        """Start `program`, which can reach only the proxy's port. Raises BrowserStartError."""
        try:
            from playwright.async_api import Error, async_playwright  # start-up: half a second
        except ImportError:
            from toolgate.tools.api.installation import name_extra  # start-up: seldom needed

            raise BrowserStartError(f"the package playwright is not installed: {name_extra('browser')}") from None
        folder = await asyncio.to_thread(_make_folder)
        driver = None
        try:
            with socket.socket(socket.AF_UNIX) as door:
                door.bind(str(folder / "line"))
                door.listen(1)
                door.setblocking(False)
                async with asyncio.timeout(START):
                    with _empty_driver_environment(folder):
                        driver = await async_playwright().start()
                    browser = await driver.chromium.launch(
                        executable_path=sys.executable,
                        ignore_default_args=True,
                        args=_arguments(program, folder, proxy_port, mode),
                        env=_environment(folder / "home"),
                        handle_sigint=False,
                        handle_sigterm=False,
                        handle_sighup=False,
                        timeout=START * 1000,
                    )
                    line, _ = await asyncio.get_running_loop().sock_accept(door)
        except BaseException as error:
            if driver is not None:
                await _stop_driver(driver)
            shutil.rmtree(folder, ignore_errors=True)
            # TimeoutError is an OSError; Playwright raises a bare Exception when the driver ends
            if isinstance(error, Error | OSError) or type(error) is Exception:
                raise BrowserStartError(_error_line(error)) from None
            raise
        return cls(driver, browser, line, proxy_port, mode.sandbox)

    @property
    def is_alive(self) -> bool:
        return self._browser.is_connected()

    async def context(self, ticket: "Ticket") -> "BrowserContext":
        """Return a fresh context: no cookies, cache, permissions or downloads. Raises Playwright's Error."""
        return await self._browser.new_context(
            proxy={
                "server": f"http://127.0.0.1:{self._proxy_port}",
                "bypass": "<-loopback>",
                "username": ticket.name,
                "password": ticket.password,
            },
            accept_downloads=False,
            service_workers="block",
            user_agent=self._agent,
        )

    def memory(self) -> dict[int, int]:
        """Return the private memory in bytes of each process; empty where the system does not tell (not Linux)."""
        held = {pid: _private_memory(pid) for pid in process_tree.descendants(self._reaper)} if self._reaper else {}
        return {pid: size for pid, size in held.items() if size}

    def end_pages(self, pid: int) -> bool:
        """Kill one process and the pages it had. False for one that all pages need."""
        if not _is_renderer(pid):
            return False
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
        return True

    async def close(self) -> None:
        """End all processes and the driver. The keeper ends Chromium and removes the folder."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        with self._line, contextlib.suppress(OSError, TimeoutError):
            self._line.setblocking(False)
            self._line.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(END):
                await asyncio.get_running_loop().sock_recv(self._line, 1)  # returns when the keeper ends
        await _stop_driver(self._driver)


@contextlib.contextmanager
def _empty_driver_environment(folder: Path) -> Generator[None, None, None]:
    """Keep the server's environment from the driver, which is a child too. Playwright has no option for that; a test
    checks that this still works."""
    transport: Any = importlib.import_module("playwright._impl.transport")  # start-up
    usual = transport.get_driver_env
    given = {"PATH": PATH, "LANG": "C.UTF-8", "HOME": str(folder), "TMPDIR": str(folder), "PW_LANG_NAME": "python"}
    transport.get_driver_env = lambda: dict(given)
    try:
        yield
    finally:
        transport.get_driver_env = usual


async def _stop_driver(driver: "Playwright") -> None:
    with contextlib.suppress(TimeoutError, Exception):  # it is gone already
        async with asyncio.timeout(END):
            await driver.stop()


def _make_folder() -> Path:
    """Make the browser's folder: home/ belongs to its user, the rest to the server."""
    folder = Path(tempfile.mkdtemp(prefix="toolgate-browser-"))
    if len(str(folder)) > MAX_SOCKET:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="toolgate-browser-", dir="/tmp"))  # mkdtemp makes it ours
    folder.chmod(0o711)
    defaults = folder / "home" / "profile" / "Default"
    defaults.mkdir(parents=True, mode=0o700)
    (defaults / "Preferences").write_text(json.dumps(PREFERENCES))
    home = folder / "home"
    home.chmod(0o700)
    user = _browser_uid()
    if user >= 0:
        for path in (home, *home.rglob("*")):
            os.chown(path, user, user)
    return folder


def _browser_uid() -> int:
    """Return the user for Chromium, or -1 for the server's own."""
    return BROWSER_UID if os.geteuid() == 0 else -1


def _arguments(program: str, folder: Path, proxy_port: int, mode: LaunchMode) -> list[str]:
    keeper = ["-I", "-S", str(REAPER), str(folder / "line"), str(folder), str(_browser_uid()), mode.privileges, program]
    own = [f"--user-data-dir={folder / 'home' / 'profile'}", f"--proxy-server=http://127.0.0.1:{proxy_port}"]
    return [*keeper, *ARGUMENTS, *own, *([] if mode.sandbox else ["--no-sandbox"])]


def _environment(home: Path) -> dict[str, str | float | bool]:
    """Return an environment with nothing of the server's."""
    names = ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "TMPDIR")
    return {**dict.fromkeys(names, str(home)), "PATH": PATH, "LANG": "C.UTF-8", "TZ": "UTC"}


def _error_line(error: BaseException) -> str:
    """Return the line of Playwright's or Chromium's message that names the fault."""
    if isinstance(error, TimeoutError):
        return f"it did not start within {START:g} s"
    lines = [line.strip(" -") for line in str(error).splitlines()]
    telling = [line for line in lines if re.search(r"FATAL|ERROR|\[err\]|Errno", line)]
    return (telling or lines or ["it did not start"])[0][:300]


def _peer_pid(line: socket.socket) -> int:
    """Return the pid at the other end, or 0 where the system does not tell."""
    if not process_tree.LINUX:
        return 0
    credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", credentials)[0]
    return pid


def _private_memory(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            _, resident, shared = file.read().split()[:3]
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * PAGE


def _is_renderer(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"--type=renderer" in file.read()
    except OSError:
        return False
