"""System users for the sandboxes of a test: no other test has them, in this run or another on the machine.

Each block of users is an abstract socket, which the kernel gives to one process at a time, and takes back at its end.
"""

import os
import socket
import sys

BLOCK = 20  # users
USERS = range(50_000, 65_000, BLOCK)  # no server's default: it would end their processes


def kept_users(count: int) -> range:
    """Return users that are kept until this process ends."""
    needed = -(-count // BLOCK)
    places = len(USERS) - needed + 1
    for turn in range(places):
        place = (os.getpid() + turn) % places  # the processes of a test that has just ended may be ending still
        blocks = USERS[place : place + needed]
        if _keep(blocks):
            return range(blocks[0], blocks[0] + count)
    raise OSError(f"no {count} users in a row are free")


def _keep(blocks: range) -> bool:
    """Take these blocks, or none of them. Only Linux has such sockets, and sandboxes with users."""
    held: list[socket.socket] = []
    for first in blocks if sys.platform == "linux" else ():
        held.append(keeper := socket.socket(socket.AF_UNIX))
        try:
            keeper.bind(f"\0toolgate-test-users-{first}")
        except OSError:
            for each in held:
                each.close()
            return False
    for each in held:
        each.detach()  # open until the process ends
    return True
