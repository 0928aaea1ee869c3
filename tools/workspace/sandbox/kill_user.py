"""Kill every process of one user, and remove the System V shared memory, semaphores and queues it made.

A program, run as root as `python -I -S kill_user.py UID NOBODY`. Processes of UID may signal, stop and trace any
process of UID. They could stop a plain `kill -9 -1`, or take it over. So this program is UID only by its effective
user. Its real and saved user is NOBODY, as which nothing else runs, and those decide who may signal or trace it.
"""

import contextlib
import ctypes
import os
import signal
import sys

IPC_RMID = 0  # linux/ipc.h


def main() -> None:
    uid, nobody = (int(word) for word in sys.argv[1:])
    if uid <= 0 or nobody <= 0:  # it would kill root's processes, or stay root and kill those of all users
        sys.exit(f"not a user of commands: {uid}, {nobody}")
    os.setgroups([])
    os.setresgid(nobody, nobody, nobody)
    os.setresuid(nobody, uid, nobody)  # none of them is 0, so this drops every capability
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)  # all at once: no process can fork in between
    libc = ctypes.CDLL(None)
    for number in list_ipc_objects("shm", uid):
        libc.shmctl(number, IPC_RMID, None)  # it may be gone
    for number in list_ipc_objects("sem", uid):
        libc.semctl(number, 0, IPC_RMID)
    for number in list_ipc_objects("msg", uid):
        libc.msgctl(number, IPC_RMID, None)


def list_ipc_objects(kind: str, uid: int) -> list[int]:
    """Return the ids of the objects that `uid` created, whatever their owner now (proc(5), /proc/sysvipc)."""
    try:
        with open(f"/proc/sysvipc/{kind}") as listing:
            names, *rows = (line.split() for line in listing)
    except OSError:  # the kernel has none
        return []
    maker = names.index("cuid")
    return [int(row[1]) for row in rows if int(row[maker]) == uid]


if __name__ == "__main__":
    main()
