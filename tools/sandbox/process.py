"""One principal's sandbox, as the server sees it: how its zygote is started, and how all of it is ended. Knows nothing
of commands.
"""

import contextlib
import logging
import marshal
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolgate.tools.egress.sandbox_proxy import Outlet
from toolgate.tools.sandbox.bwrap_args import SYSTEM, View, arguments, contents

ENTRY = Path(__file__).with_name("enter.py")
ENDING = Path(__file__).with_name("kill_user.py")
SUPERVISOR = ENTRY.parents[1] / "workspace" / "supervisor.py"
INSIDE = {"/.toolgate/enter.py": ENTRY, "/.toolgate/supervisor.py": SUPERVISOR}
PORT = 3128  # of the proxy on the sandbox's own loopback, where programs that have one by convention look for it
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
PATH = "/usr/local/bin:/usr/bin:/bin"
PROGRAM = str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())  # of a venv's, the one it stands on
END_WITHIN = 5.0  # seconds; nothing of the user's can delay it

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cell:
    """`bwrap` is its path, None without it. `uid` is whom commands run as; None: the server's user. `proxied` is
    whether a proxy's listener comes with it. `groups` are files that take a process id. `alone`: nothing but this
    sandbox runs as `uid`. `nobody` is a user that nothing runs as."""

    view: View
    bwrap: str | None
    uid: int | None
    filter: bytes
    proxied: bool
    groups: Sequence[Path] = ()
    alone: bool = True
    nobody: int | None = None

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """What commands get."""
        home = str(self.view.root)
        own = {**given, "HOME": home, "USER": "user", "LOGNAME": "user", "SHELL": "/bin/bash"}
        own = {name: value for name, value in own.items() if name not in PROXIES}
        own["PATH"] = self._path(given.get("PATH", ""))
        if self.proxied:
            own |= Outlet.environment(PORT)
        return own

    def _path(self, path: str) -> str:
        """Of the folders that programs are looked for in, those that can be seen."""
        if self.bwrap is None:
            return path or PATH
        trees = [*map(Path, SYSTEM), *self.view.shown, self.view.root]
        seen = [each for each in path.split(":") if any(Path(each).is_relative_to(tree) for tree in trees)]
        return ":".join(seen) or PATH

    def spawn(self, channel: socket.socket, report: socket.socket) -> subprocess.Popen[bytes]:
        """Start the zygote, which answers on `report`. Raises OSError."""
        with contextlib.ExitStack() as held:
            files = {name: held.enter_context(_file(data)) for name, data in self._files().items()}
            told = {
                "report": report.fileno(),
                "channel": channel.fileno(),
                "groups": [str(path) for path in self.groups],
                "bwrap": [],
                "uid": -1 if self.uid is None else self.uid,
                "namespace": self.bwrap is not None and self.uid is not None,
                "port": PORT if self.proxied else 0,
                "filter": self.filter,
                "limits": [(resource.RLIMIT_CORE, 0)],
                "supervisor": str(SUPERVISOR),
                "python": [],
            }
            if self.bwrap is not None:
                words = arguments(self.view, files)
                if self.uid is None:  # pid 1 runs as the same user as commands, who would use it to go without
                    files["filter"] = held.enter_context(_file(self.filter))
                    words += ["--seccomp", str(files["filter"])]
                    told["filter"] = b""
                listed = "\0".join(words).encode("utf-8", "surrogateescape")
                files["arguments"] = held.enter_context(_file(listed))
                told["bwrap"] = [self.bwrap, "--args", str(files["arguments"])]
                told["python"] = [PROGRAM, "-I", "-S", "/.toolgate/enter.py"]
                told["supervisor"] = "/.toolgate/supervisor.py"
            fd = held.enter_context(_file(marshal.dumps(told)))
            return subprocess.Popen(
                [PROGRAM, "-I", "-S", str(ENTRY), "outside", str(fd)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # the server's own carries the protocol
                stderr=report.fileno(),
                cwd="/",
                env={},
                pass_fds=[channel.fileno(), report.fileno(), fd, *files.values()],
                start_new_session=True,
            )

    def kill(self) -> None:
        """SIGKILL to whatever runs as its user, where that user is this principal's alone. What bwrap holds ends with
        bwrap. Blocking."""
        if self.uid is not None and self.nobody is not None and self.bwrap is None and self.alone:
            end(self.uid, self.nobody)

    def _files(self) -> dict[str, bytes]:
        if self.bwrap is None:
            return {}
        return contents(self.view) | {name: path.read_bytes() for name, path in INSIDE.items()}


def end(uid: int, nobody: int) -> None:
    """SIGKILL to whatever runs as `uid`; `nobody` is a user that nothing runs as. Blocking, for some hundredths."""
    try:
        subprocess.run(
            [PROGRAM, "-I", "-S", str(ENDING), str(uid), str(nobody)],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
            timeout=END_WITHIN,
        )
    except (OSError, subprocess.SubprocessError) as error:
        log.error("what runs as user %d can't be ended: %s", uid, error)


@contextlib.contextmanager
def _file(data: bytes) -> Generator[int, None, None]:
    """A file in memory, at its beginning."""
    fd = os.memfd_create("toolgate", os.MFD_CLOEXEC)
    try:
        os.write(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)
