"""Kill every process of one user, and remove the System V shared memory, semaphores and queues it made.

A program, run as root as `python -I -S kill_user.py UID NOBODY`. What runs as UID may signal, stop and look into
whatever runs as UID, and so would keep a plain `kill -9 -1` from its work, or take it over while it has no filter. So
this is UID only in what it may do: who may do what to it goes by its real and saved user, NOBODY, which nothing runs
as.
"""

import contextlib
import ctypes
import os
import signal
import sys

IPC_RMID = 0  # linux/ipc.h


def main() -> None:
    uid, nobody = (int(word) for word in sys.argv[1:])
    if uid <= 0 or nobody <= 0:  # it would be root's processes, or this would stay root and kill those of all users
        sys.exit(f"not a user of commands: {uid}, {nobody}")
    os.setgroups([])
    os.setresgid(nobody, nobody, nobody)
    os.setresuid(nobody, uid, nobody)  # none of them is 0: with this, every capability goes
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)  # all at once: no fork is between two of them
    libc = ctypes.CDLL(None)
    for number in list_ipc_objects("shm", uid):
        libc.shmctl(number, IPC_RMID, None)  # it may be gone
    for number in list_ipc_objects("sem", uid):
        libc.semctl(number, 0, IPC_RMID)
    for number in list_ipc_objects("msg", uid):
        libc.msgctl(number, IPC_RMID, None)


def list_ipc_objects(kind: str, uid: int) -> list[int]:
    """Return the numbers of what `uid` made, whoever owns it now (proc(5), /proc/sysvipc)."""
    try:
        with open(f"/proc/sysvipc/{kind}") as listing:
            names, *rows = (line.split() for line in listing)
    except OSError:  # the kernel has none
        return []
    maker = names.index("cuid")
    return [int(row[1]) for row in rows if int(row[maker]) == uid]


if __name__ == "__main__":
    main()
