"""Build the confinement of a command that may change nothing: the version of Landlock to use, and a seccomp filter for
what Landlock and read-only mounts do not cover.

Landlock knows no modes, owners, times and attributes of files, no ioctl on them, no sockets and no other processes'
limits. A call newer than this page gets "no such call", so a new way to write is closed until it is added here.
"""

import errno
import platform
import struct
import sys
from functools import cache

from toolgate.tools.workspace.processes import landlock
from toolgate.tools.workspace.processes.process import ReadOnly
from toolgate.tools.workspace.sandbox.syscalls import FilterRules, FilterUnavailableError

MACHINES = ("x86_64", "aarch64", "riscv64")  # little endian, and their ioctl requests have the generic numbers
FIRST_UNKNOWN_CALL = 470  # Linux 6.18 ends before; numbers are the same everywhere since 424
CHANGES_FILES = (
    # modes, owners, times, attributes
    "chmod fchmod fchmodat fchmodat2 chown lchown fchown fchownat chown32 lchown32 fchown32 "
    "utime utimes futimesat utimensat utimensat_time64 "
    "setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat file_setattr",
    # System V and POSIX queues, which outlive the command
    "shmget shmat shmctl semget semctl semop semtimedop semtimedop_time64 msgget msgsnd msgrcv msgctl "
    "mq_open mq_unlink mq_timedreceive mq_timedreceive_time64 mq_timedsend mq_timedsend_time64 mq_notify ipc",
)
SIGNALS = "kill tkill tgkill pidfd_send_signal rt_sigqueueinfo rt_tgsigqueueinfo"
OF_PROCESSES = {  # call → the index of its process, which may be only 0: the caller itself
    "prlimit64": 0,
    "sched_setaffinity": 0,
    "sched_setparam": 0,
    "sched_setscheduler": 0,
    "sched_setattr": 0,
    "setpriority": 1,
    "ioprio_set": 1,
}
PROCESS_TARGETS = {  # call → its first argument for one process; others mean all of a group or of a user
    "setpriority": 0,
    "ioprio_set": 1,
}
RLIMIT_CORE = 4  # asm-generic/resource.h; 1 byte keeps a core dump's handler from running (core(5))
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
TYPE_BITS, CONNECTED_TYPES = 0xF, (1, 5)  # streams and packets: a datagram socket of a pair can send to any path
F_SETOWN, F_SETOWN_EX = 8, 15  # choose who gets a file's signals
LOW = 0xFFFF_FFFF
IOCTLS = (  # that change no file; all others are refused
    0x5401, 0x540F, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x5452,  # TCGETS, TIOCGPGRP, TIOCGWINSZ, FIONREAD, FIONBIO…
    0x802C_542A, 0x5429,  # TCGETS2, TIOCGSID
    2, 0x8008_6601, 0x801C_581F, 0xC020_660B, 0x8008_7601,  # FIGETBSZ, FS_IOC_GETFLAGS, FS_IOC_FSGETXATTR…
    0x8910, 0x8912, 0x8913, 0x8915, 0x8919, 0x891B, 0x891D, 0x8921, 0x8927, 0x8933,  # SIOCGIF…: network interfaces
    0xB703, 0xB704,  # NS_GET_NSTYPE, NS_GET_OWNER_UID
)  # fmt: skip
LOAD, JUMP_EQUAL, JUMP_AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06  # linux/bpf_common.h
NUMBER_AT, SECOND_ARGUMENT_AT = 0, 24  # in struct seccomp_data, little endian: the low half of the argument
ERRNO = 0x0005_0000  # SECCOMP_RET_ERRNO


def _find_obstacle(version: int, *, needs_landlock: bool) -> str | None:
    """Return why this machine can't run a command read-only, or None."""
    if sys.platform != "linux" or platform.machine() not in MACHINES or sys.byteorder != "little":
        return f"it needs Linux on {', '.join(MACHINES)}"
    if needs_landlock and version < landlock.TRUNCATES:
        return "it needs Landlock, which Linux has since 6.2 and a container's engine may refuse, or --sandbox bwrap"
    return None


@cache
def _build(*, may_signal: bool) -> bytes:
    """Return the filter. Raises FilterUnavailableError. `may_signal`: signals can't reach a process outside."""
    rules = FilterRules()
    rules.refuse_escapes()
    for row in CHANGES_FILES:
        rules.refuse(row)
    for name, index in OF_PROCESSES.items():
        rules.refuse(name, rules.match(index, "NE", 0), *([rules.match(2, "NE", 0)] if name == "prlimit64" else []))
    for name, target in PROCESS_TARGETS.items():
        rules.refuse(name, rules.match(0, "NE", target))
    rules.refuse("prlimit64", rules.match_bits(1, LOW, RLIMIT_CORE), rules.match(2, "NE", 0))
    rules.refuse("setrlimit", rules.match_bits(0, LOW, RLIMIT_CORE))
    rules.refuse("process_mrelease")
    for command in (F_SETOWN, F_SETOWN_EX):
        rules.refuse("fcntl fcntl64", rules.match_bits(1, LOW, command))
    if not may_signal:
        rules.refuse(SIGNALS)
    rules.allow_families((AF_UNIX, AF_INET, AF_INET6, AF_NETLINK))
    rules.refuse("socket", rules.match_bits(0, LOW, AF_UNIX), error=errno.EACCES)
    for kind in set(range(TYPE_BITS + 1)).difference(CONNECTED_TYPES):
        rules.refuse("socketpair", rules.match_bits(1, TYPE_BITS, kind), error=errno.EACCES)
    return _checks_before(rules.resolve("ioctl")) + rules.export()


def build_read_only(version: int, *, needs_landlock: bool) -> ReadOnly | str:
    """Return the confinement on a kernel with this `version` of Landlock, or why there is none. `needs_landlock`: no
    read-only mounts help. Blocking at first."""
    why = _find_obstacle(version, needs_landlock=needs_landlock)
    if why is not None:
        return why
    try:
        rules = _build(may_signal=not needs_landlock or version >= landlock.HAS_SCOPES)
    except FilterUnavailableError as error:
        return str(error)
    return ReadOnly(rules, version if version >= landlock.TRUNCATES else 0)


def _checks_before(ioctl: int) -> bytes:
    """Return the instructions that refuse unknown calls and every ioctl but IOCTLS; others pass to what follows. The
    rules of libseccomp know neither "more than" for a call's number nor "none of these" for an argument."""
    count = len(IOCTLS)
    steps = [
        (LOAD, 0, 0, NUMBER_AT),
        (JUMP_AT_LEAST, 0, 1, FIRST_UNKNOWN_CALL),
        (RETURN, 0, 0, ERRNO | errno.ENOSYS),
        (JUMP_EQUAL, 0, count + 2, ioctl),
        (LOAD, 0, 0, SECOND_ARGUMENT_AT),
        *((JUMP_EQUAL, count - place, 0, request) for place, request in enumerate(IOCTLS)),
        (RETURN, 0, 0, ERRNO | errno.EPERM),
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)
