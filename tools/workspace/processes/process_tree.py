"""Find and signal the processes of a tree. Standard library only: the supervisor, a program of its own, loads this."""

import os
import signal
import sys
from collections.abc import Callable

PASSES = 1000  # a fork bomb can outrun this many sweeps only where nothing would stop it
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h

LINUX = sys.platform == "linux"
CHILDREN_LISTED = os.path.exists("/proc/thread-self/children")


def kill(top: Callable[[], list[int]]) -> None:
    """SIGKILL the trees under `top`. All are stopped first, until none is new: a stopped process can't fork."""
    stopped: set[int] = set()
    for _ in range(PASSES):
        if not stop(top(), stopped):
            break
    send(signal.SIGKILL, stopped)


def stop(waiting: list[int], stopped: set[int]) -> bool:
    """SIGSTOP those not stopped yet, each before its children are listed. Return whether there were any."""
    known = len(stopped)
    while waiting:
        pid = waiting.pop()
        if pid not in stopped:
            send(signal.SIGSTOP, [pid])
            stopped.add(pid)
            waiting += children(pid)
    return len(stopped) > known


def send(number: signal.Signals, members: list[int] | set[int]) -> None:
    for pid in members:
        try:
            os.kill(pid, number)
        except OSError:  # gone already, or another user's (sudo)
            continue


def top_processes(pid: int) -> list[int]:
    """Return the processes from which `kill` finds all under `pid`."""
    return children(pid) if CHILDREN_LISTED else scan_descendants(pid)


def descendants(pid: int) -> list[int]:
    if not CHILDREN_LISTED:
        return scan_descendants(pid)
    members: list[int] = []
    waiting = children(pid)
    while waiting:
        child = waiting.pop()
        members.append(child)
        waiting += children(child)
    return members


def children(pid: int) -> list[int]:
    listed: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as listing:
                listed += map(int, listing.read().split())
    except OSError:  # it ended while we looked: its children are ours now, and the next look finds them
        pass
    return listed


def scan_descendants(pid: int) -> list[int]:
    """Descendants, where /proc does not list them."""
    import psutil  # start-up: few systems need it

    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def find_strays(session: int, known: list[int]) -> list[int]:
    """Best effort without a subreaper: orphans that stayed in the command's session."""
    import psutil  # start-up: see above

    members: list[int] = []
    for pid in psutil.pids():
        try:
            if pid not in known and os.getsid(pid) == session:
                members.append(pid)
        except OSError:
            continue
    return members


def become_subreaper() -> None:
    """Adopt orphans; and be woken, if stopped, when the parent dies.

    Best effort: other systems have no such calls, and `find_strays` looks for orphans instead.
    """
    if LINUX:
        import ctypes  # start-up: the server needs none

        prctl = ctypes.CDLL(None).prctl
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        prctl(PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0)
