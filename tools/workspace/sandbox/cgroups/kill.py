"""Kill every process in a cgroup, and no other.

A pid may name another process by the time a signal is sent. So each process is held by a descriptor, checked again, and
signalled through that. It blocks, for at most the time given.
"""

import contextlib
import errno
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from toolgate.tools.workspace.sandbox.cgroups.files import list_groups, read_numbers, write

BATCH = 64  # descriptors at once
ROUND = 0.1  # seconds for a batch to end before the next is signalled: a process may be stuck in the kernel
PAUSE = 0.005  # seconds: no event tells when a group of v1 can be removed
NO_PIDFD = {errno.ENOSYS, errno.EMFILE, errno.ENFILE}  # Linux before 5.3, or a server out of descriptors


def kill(groups: Callable[[], Iterable[Path]], halt: Mapping[str, str], until: float) -> bool:
    """Kill the groups' processes until none is left, or `until` (monotonic). Return whether none is left."""
    while pids := _halt_groups(groups(), halt):
        for first in range(0, len(pids), BATCH):
            _end(pids[first : first + BATCH], lambda: processes(groups()))
        if time.monotonic() >= until:
            return not processes(groups())
    return True


def clear(group: Path, halt: Mapping[str, str], until: float) -> bool:
    """Kill the processes in the group and below, and remove the groups. Return whether it is gone. Raises OSError."""
    while kill(lambda: list_groups(group), halt, until):
        try:
            for each in list_groups(group):
                with contextlib.suppress(FileNotFoundError):
                    each.rmdir()
            return True
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
        if time.monotonic() >= until:
            return False
        time.sleep(PAUSE)
    return False


def processes(groups: Iterable[Path]) -> list[int]:
    return sorted({pid for group in groups for pid in read_numbers(group / "cgroup.procs")})


def _halt_groups(groups: Iterable[Path], halt: Mapping[str, str]) -> list[int]:
    """Stop forks in the groups, and return the processes in them."""
    seen = list(groups)
    pids = processes(seen)
    for file in [(group / name, value) for group in seen if pids for name, value in halt.items()]:
        with contextlib.suppress(FileNotFoundError):
            write(*file)
    return pids


def _end(pids: Sequence[int], members: Callable[[], list[int]]) -> None:
    with contextlib.ExitStack() as stack:
        held: dict[int, int | None] = {}
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                held[pid] = _open_pidfd(pid, stack)
        for pid in held.keys() & set(members()):
            _signal(pid, held[pid])
        _await([descriptor for descriptor in held.values() if descriptor is not None])


def _open_pidfd(pid: int, stack: contextlib.ExitStack) -> int | None:
    """Return a descriptor of the process, closed with the stack, or None if there can't be one."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError as error:
        if error.errno in NO_PIDFD:
            return None
        raise
    stack.callback(os.close, descriptor)
    return descriptor


def _signal(pid: int, descriptor: int | None) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # already gone, or another user's (setuid)
        if descriptor is None:
            os.kill(pid, signal.SIGKILL)
        else:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)


def _await(descriptors: Sequence[int]) -> None:
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    until, left = time.monotonic() + ROUND, len(descriptors)
    if not left:
        time.sleep(PAUSE)
    while left and (rest := until - time.monotonic()) > 0:
        for descriptor, _ in poller.poll(rest * 1000):
            poller.unregister(descriptor)
            left -= 1
