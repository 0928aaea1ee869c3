"""Start the zygote of a principal's sandbox, and end the whole sandbox."""

import contextlib
import logging
import marshal
import os
import resource
import socket
import subprocess
from collections.abc import Generator, Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec
from msgspec.structs import replace

from toolgate.tools.api.context.services import PYTHON
from toolgate.tools.workspace.sandbox import syscalls
from toolgate.tools.workspace.sandbox.bwrap_args import SYSTEM, SandboxView, bwrap_arguments, generate_files
from toolgate.tools.workspace.sandbox.egress.sandbox_proxy import PROXIES, SandboxProxy
from toolgate.tools.workspace.workspace import ProgramAccess

ENTER = Path(__file__).with_name("enter.py")
KILL_USER = Path(__file__).with_name("kill_user.py")
SUPERVISOR = ENTER.parents[1] / "processes" / "supervisor.py"
BESIDE_SUPERVISOR = (
    "channel_slot.py",
    "command_start.py",
    "landlock.py",
    "own_limits.py",
    "process_tree.py",
    "read_only.py",
)  # what it imports
PROGRAMS = (ENTER, SUPERVISOR, *map(SUPERVISOR.with_name, BESIDE_SUPERVISOR))
FILES_INSIDE = {f"/.toolgate/{file.name}": file for file in PROGRAMS}
PORT = 3128  # of the proxy on the sandbox's own loopback: its conventional port
PATH = "/usr/local/bin:/usr/bin:/bin"
END_WITHIN = 5.0  # seconds; no command can delay it
MARK = 8  # CAP_SETPCAP (linux/capability.h), which docs/container.md has; it gives nothing without a bounding set

log = logging.getLogger(__name__)


class SandboxProcess(msgspec.Struct, frozen=True):
    """The process of one sandbox. `bwrap` is its path, or None. Commands run as `uid`; None: the server's user.

    `has_proxy`: it passes out a proxy's listener. `groups` are files that take a process id. `is_exclusive`: nothing
    but this sandbox runs as `uid`. `unused_uid` is a user as which nothing runs.

    `is_program`: it has one program, beside the principal's commands. Without bwrap these run as the same user, and the
    program holds the capability MARK, so that they can't read its memory and environment (see enter.py).
    """

    view: SandboxView
    bwrap: str | None
    uid: int | None
    filter: bytes
    has_proxy: bool
    groups: Sequence[Path] = ()
    is_exclusive: bool = True
    unused_uid: int | None = None
    is_program: bool = False

    def read_only(self, writable: Sequence[Path]) -> "SandboxProcess":
        """Return a sandbox with the same view, in which nothing outside it can be written but what is `writable`."""
        return replace(self, view=replace(self.view, writable=writable))

    def for_program(self, shown_paths: Sequence[Path], access: ProgramAccess | None = None) -> "SandboxProcess":
        """Return a sandbox beside this one for one program, which sees `shown_paths` too, and to which `access`
        applies."""
        view = replace(self.view, shown_paths=shown_paths)
        if access is None:
            return replace(self, view=view, is_program=True)
        view = replace(
            view,
            readable_paths=[*view.readable_paths, *access.readable_paths],
            writable_paths=access.writable_paths,
        )
        if access.hosts is None:
            return replace(self, view=view, is_program=True)
        filter = syscalls.program(offline=True) if self.bwrap is None else self.filter
        has_proxy = self.bwrap is not None and bool(access.hosts)
        return replace(self, view=replace(view, network=False), filter=filter, has_proxy=has_proxy, is_program=True)

    @property
    def is_alone(self) -> bool:
        return not self.is_program

    def variables(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the variables for commands."""
        home = str(self.view.root)
        own = {name: value for name, value in given.items() if name not in PROXIES}
        own |= {"HOME": home, "USER": "user", "LOGNAME": "user", "SHELL": "/bin/bash"}
        own["PATH"] = self._visible_path(given.get("PATH", ""))
        if self.has_proxy:
            own |= SandboxProxy.environment(PORT)
        return own

    def _visible_path(self, path: str) -> str:
        """Return the folders of PATH that are visible inside."""
        if self.bwrap is None:
            return path or PATH
        trees = [*map(Path, SYSTEM), *self.view.readable_paths, *self.view.shown_paths, self.view.root]
        seen = [each for each in path.split(":") if any(Path(each).is_relative_to(tree) for tree in trees)]
        return ":".join(seen) or PATH

    def spawn(self, channel: socket.socket, report: socket.socket) -> subprocess.Popen[bytes]:
        """Start the zygote, which answers on `report`. Raises OSError."""
        with contextlib.ExitStack() as held:
            files = {name: held.enter_context(_memory_file(data)) for name, data in self._files().items()}
            config = {
                "report": report.fileno(),
                "channel": channel.fileno(),
                "groups": [str(path) for path in self.groups],
                "bwrap": [],
                "uid": -1 if self.uid is None else self.uid,
                "namespace": self.bwrap is not None and self.uid is not None,
                "mark": MARK if self.is_program and self.bwrap is None and can_mark() else -1,
                "port": PORT if self.has_proxy else 0,
                "filter": self.filter,
                "limits": [(resource.RLIMIT_CORE, 0)],
                "supervisor": str(SUPERVISOR),
                "python": [],
            }
            if self.bwrap is not None:
                words = bwrap_arguments(self.view, files)
                if self.uid is None:  # pid 1 runs as the commands' user, who could use it to escape the limits
                    files["filter"] = held.enter_context(_memory_file(self.filter))
                    words += ["--seccomp", str(files["filter"])]
                    config["filter"] = b""
                listed = "\0".join(words).encode("utf-8", "surrogateescape")
                files["arguments"] = held.enter_context(_memory_file(listed))
                config["bwrap"] = [self.bwrap, "--args", str(files["arguments"])]
                config["python"] = [PYTHON, "-I", "-S", "/.toolgate/enter.py"]
                config["supervisor"] = "/.toolgate/supervisor.py"
            fd = held.enter_context(_memory_file(marshal.dumps(config)))
            return subprocess.Popen(
                [PYTHON, "-I", "-S", str(ENTER), "outside", str(fd)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # the server's stdout carries the protocol
                stderr=report.fileno(),
                cwd="/",
                env={},
                pass_fds=[channel.fileno(), report.fileno(), fd, *files.values()],
                start_new_session=True,
            )

    def kill(self) -> None:
        """SIGKILL its user's processes, if no other principal has that user. bwrap's end with bwrap. Blocking."""
        if self.uid is not None and self.unused_uid is not None and self.bwrap is None and self.is_exclusive:
            kill_user(self.uid, self.unused_uid)

    def _files(self) -> dict[str, bytes]:
        if self.bwrap is None:
            return {}
        return generate_files(self.view) | {name: path.read_bytes() for name, path in FILES_INSIDE.items()}


@cache
def can_mark() -> bool:
    """Return whether programs can hold MARK: a container's root may lack it."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:  # not Linux
        return False
    sets = {
        name: int(value, 16)
        for name, _, value in (line.partition(":\t") for line in status.splitlines())
        if name in ("CapEff", "CapBnd")
    }
    return len(sets) == 2 and all(each >> MARK & 1 for each in sets.values())


def isolates_programs(level: str) -> bool:
    """Return whether a principal's commands can't read the memory and the environment of its programs."""
    return level == "bwrap" or can_mark()


def kill_user(uid: int, unused_uid: int) -> None:
    """Kill every process of `uid`. Blocking, for some hundredths of a second."""
    try:
        subprocess.run(
            [PYTHON, "-I", "-S", str(KILL_USER), str(uid), str(unused_uid)],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
            timeout=END_WITHIN,
        )
    except (OSError, subprocess.SubprocessError) as error:
        log.error("cannot end the processes of user %d: %s", uid, error)


@contextlib.contextmanager
def _memory_file(data: bytes) -> Generator[int, None, None]:
    """Yield the descriptor of a file in memory, at its beginning."""
    fd = os.memfd_create("toolgate", os.MFD_CLOEXEC)
    try:
        os.write(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)
