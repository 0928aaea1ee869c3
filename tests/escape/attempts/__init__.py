"""The table of attempts, by target.

DNS rebinding is tried in tests/tools/api/outbound/test_fetch.py; forged or reused approvals with the tests of
approvals."""

from collections.abc import Mapping, Sequence

from tests.escape.attempt import Attempt
from tests.escape.attempts import files, guarded, kernel, limits, network, processes, survival

GROUPS: Mapping[str, Sequence[Attempt]] = {
    "the state folder, the keys, the program": files.STATE,
    "files of root's": files.MACHINE,
    "what every user of the machine may see": files.SEEN,
    "another principal's files and processes": files.NEIGHBOURS,
    "another principal by what is shared: /tmp, sockets, shared memory, the list of processes": files.BESIDE,
    "the server's process": processes.SERVER,
    "what watches over commands": processes.WATCHERS,
    "mounts": kernel.MOUNTS,
    "namespaces": kernel.NAMESPACES,
    "calls of the kernel": kernel.CALLS,
    "odd sockets, terminals, other system call tables": kernel.CHANNELS,
    "/proc/sys, devices, control groups, its own limits": kernel.FILES,
    "privileges, setuid programs": kernel.RIGHTS,
    "what listens on the machine or a private network": network.DIRECT,
    "sockets that are files of root's": network.SOCKETS,
    "sockets that every user of the machine may use": network.OPEN_SOCKETS,
    "the same by the proxy": (*network.PROXY, *limits.PROXY),
    "limits": limits.LIMITS,
    "filling /tmp, /var/tmp, /dev/shm": limits.MEMORY,
    "the server's own reading and writing, led astray": guarded.GUARDED,
    "outliving a call, a task, what watches over it": survival.SURVIVAL,
    "outliving the server": survival.LAST,
}
ATTEMPTS = tuple(attempt for group in GROUPS.values() for attempt in group)
