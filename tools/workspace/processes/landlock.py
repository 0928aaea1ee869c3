"""Restrict what this process and its descendants may write and which processes they reach, by Landlock (landlock(7)).
Standard library only: the supervisor, a program of its own, loads this."""

import ctypes
import os
import struct

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the numbers of its calls, everywhere, since Linux 5.13
RULESET_VERSION, PATH_BENEATH = 1, 1
WRITE_FILE, REFER, TRUNCATE, IOCTL_DEVICE = 1 << 1, 1 << 13, 1 << 14, 1 << 15
REMOVING = 0b11 << 4  # folders, files
MAKING = 0b111_1111 << 6  # devices, folders, files, sockets, pipes, links
OF_FILES = WRITE_FILE | TRUNCATE | IOCTL_DEVICE  # the rights that a rule may give for one file
SCOPES = 0b11  # abstract sockets and signals: none reach a process outside
REFERS, TRUNCATES, CONTROLS_DEVICES, HAS_SCOPES = 2, 3, 5, 6  # the versions that know these: 3 is Linux 6.2, 6 is 6.12
NETWORKED = 4  # the version whose ruleset has a second word, for TCP


def find_version() -> int:
    """Return the kernel's version of Landlock; below 1 it has none, or a container's engine refuses it."""
    version: int = ctypes.CDLL(None).syscall(CREATE_RULESET, None, ctypes.c_size_t(0), RULESET_VERSION)
    return version


def writing_rights(version: int) -> int:
    """Return every right by which a file or folder can be changed."""
    rights = WRITE_FILE | REMOVING | MAKING
    for since, right in ((REFERS, REFER), (TRUNCATES, TRUNCATE), (CONTROLS_DEVICES, IOCTL_DEVICE)):
        rights |= right if version >= since else 0
    return rights


def restrict(version: int, rights: int, allowed: "list[tuple[int, int]]", scopes: int = 0) -> None:
    """Take `rights` away for good, except those `allowed`: descriptors of files or folders, and the rights below each.
    Raises OSError. The process has no new privileges by then, or is root."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    words = [rights, 0, scopes if version >= HAS_SCOPES else 0]
    size = 24 if version >= HAS_SCOPES else 16 if version >= NETWORKED else 8
    ruleset = _check(call(CREATE_RULESET, struct.pack("QQQ", *words), ctypes.c_size_t(size), 0))
    try:
        for descriptor, kept in allowed:
            rule = struct.pack("=Qi", kept & rights, descriptor)
            _check(call(ADD_RULE, ruleset, PATH_BENEATH, rule, 0))
        _check(call(RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)


def separate() -> None:
    """Keep this process and its descendants, for good, from the memory and the environment of all other processes and,
    since HAS_SCOPES, from their signals and abstract sockets. Nothing where the kernel has no such Landlock: under that
    of the first version no file could be moved between folders. Raises OSError."""
    version = find_version()
    if version < REFERS:
        return
    root = os.open("/", os.O_PATH | os.O_CLOEXEC)
    try:
        restrict(version, REFER, [(root, REFER)], SCOPES)  # which takes no right away
    finally:
        os.close(root)


def _check(answer: int) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"Landlock: {os.strerror(number)}")
    return answer
