"""Kills every process of one user, for certain. Knows a user's number, and nothing of whose it is.

A program, run as root as `python -I -S ending.py UID NOBODY`. What runs as UID may signal, stop and look into whatever
runs as UID, and so would keep a plain `kill -9 -1` from its work, or take it over while it has no filter. So this is
UID only in what it may do: who may do what to it goes by its real and saved user, NOBODY, which nothing runs as.
"""

import contextlib
import os
import signal
import sys


def main() -> None:
    uid, nobody = (int(word) for word in sys.argv[1:])
    if uid <= 0 or nobody <= 0:  # it would be root's processes, or this would stay root and kill everybody's
        sys.exit(f"not a user of commands: {uid}, {nobody}")
    os.setgroups([])
    os.setresgid(nobody, nobody, nobody)
    os.setresuid(nobody, uid, nobody)  # none of them is 0: with this, every capability goes
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)  # all at once: no fork is between two of them


if __name__ == "__main__":
    main()
