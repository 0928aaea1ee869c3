"""Stand between Playwright's driver and Chromium, and end all of Chromium when the server or the driver is gone.

    server ── driver (Node) ── doorman ── keeper ── Chromium ── its processes

A program, run as `python -I -S reaper.py LINE FOLDER UID PRIVILEGES PROGRAM ARGUMENTS…`. LINE is a unix socket of the
server; when it closes, Chromium ends. FOLDER is removed at the end. UID is the user and group for Chromium (-1: this
one). PRIVILEGES `none` keeps Chromium from gaining any; its sandbox may need some. Descriptors 3 and 4 are Playwright's
pipe, for Chromium only.

Playwright's driver may kill the process it started, with its group, at any time: also while the keeper removes the
folder. So that process is a doorman; the keeper has its own session and notices the doorman's end.

Like a command's supervisor (tools/workspace/processes/supervisor.py) the keeper adopts every orphan below it, and
ends last. Standard library only.
"""

import contextlib
import ctypes
import importlib.util
import os
import resource
import shutil
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolgate.tools.workspace.processes import process_tree, supervisor
else:  # without site-packages the package can't be imported by name
    SUPERVISOR = Path(__file__).parents[2] / "workspace" / "processes" / "supervisor.py"
    _spec = importlib.util.spec_from_file_location("supervisor", SUPERVISOR)
    supervisor = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(supervisor)
    process_tree = supervisor.process_tree

PIPE = (3, 4)
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38  # linux/prctl.h
SERVER_GONE = 3  # the keeper's exit code
FIRST_TO_GO = b"500"  # when memory runs out, before the server (proc(5), oom_score_adj)


class ChromiumSupervisor(supervisor.Supervisor):
    """A supervisor whose process tree ends with its first process."""

    def say(self, line: str) -> bool:
        if line.startswith("exited"):
            self.abandoned = self.deadline = time.monotonic()
        return True


def main() -> None:
    driver = os.getppid()
    for number in supervisor.IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    theirs, ours = os.pipe()
    keeper = os.fork()
    if not keeper:
        os.close(ours)
        os.setsid()
        sys.exit(_supervise(theirs))
    for descriptor in (theirs, *PIPE):
        os.close(descriptor)
    code = os.waitstatus_to_exitcode(os.waitpid(keeper, 0)[1])
    if code == SERVER_GONE and os.getppid() == driver:
        os.kill(driver, signal.SIGCONT)  # it ends with the server, unless it is stopped


def _supervise(doorman: int) -> int:
    """Run Chromium until it ends, and return the exit code. `doorman` is a pipe that closes with the doorman."""
    line, folder, uid, privileges, *command = sys.argv[1:]
    process_tree.become_subreaper()
    control = socket.socket(socket.AF_UNIX)
    try:
        control.connect(line)
        wake, _ = supervisor.wake_on_child()
        os.chdir(folder)  # leave the server's working directory
        keeper = ChromiumSupervisor(control, wake)
        keeper.shell = _start(command, int(uid), privileges == "none")
        for descriptor in PIPE:
            os.close(descriptor)  # so that the driver sees Chromium close it
        threading.Thread(target=_listen, args=(doorman, control), daemon=True).start()
        keeper.watch()
        return 0 if _is_there(control) else SERVER_GONE
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _listen(doorman: int, control: socket.socket) -> None:
    """Treat the doorman's end as the server's end."""
    os.read(doorman, 1)
    with contextlib.suppress(OSError):
        control.shutdown(socket.SHUT_RD)


def _is_there(control: socket.socket) -> bool:
    try:
        return bool(control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except OSError:
        return True


def _start(command: list[str], uid: int, confined: bool) -> int:
    keeper = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        _confine(uid, confined)
        if os.getppid() == keeper:  # else the keeper died before the death signal was set
            os.execv(command[0], command)  # noqa: S606  # the arguments are a list
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def _confine(uid: int, confined: bool) -> None:
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if uid >= 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    if process_tree.LINUX:
        try:
            with open("/proc/self/oom_score_adj", "wb") as file:
                file.write(FIRST_TO_GO)
        except OSError:
            pass  # already higher, or /proc is not writable
        prctl = ctypes.CDLL(None).prctl
        prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if confined:
            prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


if __name__ == "__main__":
    main()
